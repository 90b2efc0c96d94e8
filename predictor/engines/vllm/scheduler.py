"""vLLM's schedulers, without the parts that change no time: vllm/core/scheduler.py (0.2 to 0.6) and
vllm/v1/core/sched/scheduler.py (0.14 on), at the lines that `vllm_releases` names."""

from __future__ import annotations

from predictor.engines.scheduling import Batching, StepBatch


class PromptsFirst(Batching):
    """The first engine core: a step of whole prompts whenever one can be made, else one of decodes.

    Prompts of 0.2 are padded to the longest of the step.
    """

    def batch(self) -> StepBatch:
        rules = self.rules
        spared = int(rules.watermark * self.pages.total)
        found = StepBatch()
        longest = tokens = 0
        while self.waiting and self.running < rules.sequences:
            one = self.waiting[0]
            left, wide = one.prompt - self.found(one), max(longest, one.prompt)
            count = len(found.chunks) + 1
            padded = count * wide if rules.padding is not None else tokens + left
            if found.chunks and (padded > min(rules.tokens, rules.prefill_tokens)):
                break
            if rules.padding is not None and padded - tokens - left > rules.padding:
                break
            if self.wants(one, left) > self.pages.free - (spared if self.running else 0):
                break
            found.chunks.append(self.admit(left))
            longest, tokens = wide, tokens + left
        if not found.chunks:
            self.make_room(found)
            found.decodes = bool(self.decoding)
        return found


class RunningFirst(Batching):
    """The second one: who decodes, prompts that were begun, new prompts, in this order and in one step, until the
    token budget is used. The last admitted gives way where pages are missing."""

    def batch(self) -> StepBatch:
        rules = self.rules
        found = StepBatch()
        self.make_room(found)
        found.decodes = bool(self.decoding)
        budget = rules.tokens - self.width * len(self.decoding)
        for one in list(self.begun):
            tokens = min(one.left, budget)
            while tokens > 0 and one in self.begun and self.wants(one, tokens) > self.spare:
                self.give_way(self.begun[-1], found)
            if tokens > 0 and one in self.begun:
                found.chunks.append(self.extend(one, tokens))
                budget -= tokens
        if found.preempted:
            return found
        spared = int(rules.watermark * self.pages.total)
        while self.waiting and budget > 0 and self.running < rules.sequences:
            one = self.waiting[0]
            left = one.prompt - self.found(one)
            tokens = min(left, budget) if rules.chunks else left
            needs = self.wants(one, left if rules.whole_prompt else tokens)
            if tokens > budget or needs > self.spare - (spared if self.running else 0):
                break
            found.chunks.append(self.admit(tokens))
            budget -= tokens
        return found
