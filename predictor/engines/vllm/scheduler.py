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
        batch = StepBatch()
        longest = tokens = 0
        while self.waiting and self.running < rules.sequences:
            sequence = self.waiting[0]
            left, wide = sequence.prompt - self.cached(sequence), max(longest, sequence.prompt)
            count = len(batch.chunks) + 1
            padded = count * wide if rules.padding is not None else tokens + left
            if batch.chunks and (padded > min(rules.tokens, rules.prefill_tokens)):
                break
            if rules.padding is not None and padded - tokens - left > rules.padding:
                break
            if self.wants(sequence, left) > self.pages.free - (spared if self.running else 0):
                break
            batch.chunks.append(self.admit(left))
            longest, tokens = wide, tokens + left
        if not batch.chunks:
            self.make_room(batch)
            batch.decodes = bool(self.decoding)
        return batch


class RunningFirst(Batching):
    """The second one: who decodes, prompts that were begun, new prompts, in this order and in one step, until the
    token budget is used. The last admitted gives way where pages are missing."""

    joins = True

    def batch(self) -> StepBatch:
        rules = self.rules
        batch = StepBatch()
        self.make_room(batch)
        batch.decodes = bool(self.decoding)
        budget = rules.tokens - self.width * len(self.decoding)
        for sequence in list(self.begun):
            tokens = min(sequence.left, budget)
            while tokens > 0 and sequence in self.begun and self.wants(sequence, tokens) > self.spare:
                self.give_way(self.begun[-1], batch)
            if tokens > 0 and sequence in self.begun:
                batch.chunks.append(self.extend(sequence, tokens))
                budget -= tokens
        if batch.preempted:
            return batch
        spared = int(rules.watermark * self.pages.total)
        while self.waiting and budget > 0 and self.running < rules.sequences:
            sequence = self.waiting[0]
            left = sequence.prompt - self.cached(sequence)
            tokens = min(left, budget) if rules.chunks else left
            needs = self.wants(sequence, left if rules.whole_prompt else tokens)
            if tokens > budget or needs > self.spare - (spared if self.running else 0):
                break
            batch.chunks.append(self.admit(tokens))
            budget -= tokens
        return batch
