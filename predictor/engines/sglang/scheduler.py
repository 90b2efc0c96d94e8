"""SGLang's scheduler: get_next_batch_to_run of managers/scheduler.py with PrefillAdder of managers/schedule_policy.py,
at the lines that `sglang_releases` names."""

from __future__ import annotations

from predictor.engines.scheduling import Batching, StepBatch


class PrefillFirst(Batching):
    """Prompts in steps of their own, one of them in chunks, whenever memory allows; else a step of decodes.

    Admission keeps room for a share of what those who run may still write, which falls with every decode step. Where
    it was not enough, those with the fewest output tokens are retracted.
    """

    def batch(self) -> StepBatch:
        rules, found = self.rules, StepBatch()
        budget = min(rules.tokens, rules.prefill_tokens) if rules.chunks else rules.prefill_tokens
        for one in list(self.begun):
            tokens = min(one.left, budget)
            if tokens and self.wants(one, tokens) <= self.pages.free:
                found.chunks.append(self.extend(one, tokens))
                budget -= tokens
        room = (self.pages.free - self._set_aside()) * self.pages.size
        while self.waiting and budget > 0 and self.running < rules.sequences:
            one = self.waiting[0]
            left = one.prompt - self.found(one)
            needs = left + min(one.output, rules.reserve.most_tokens)
            if needs > room and self.running:
                break
            if left > budget and (not rules.chunks or (self.begun and self.begun[-1].left)):
                break
            tokens = min(left, budget)
            if self.wants(one, tokens) > self.pages.free:
                break
            found.chunks.append(self.admit(tokens))
            budget, room = budget - tokens, room - needs
        if not found.chunks:
            if self.spare < 0:
                self.steps = 0
            self.make_room(found)
            found.decodes = bool(self.decoding)
        return found

    def _set_aside(self) -> int:
        """Pages for what those who run may still write."""
        left = self.ending - self.clock * len(self.decoding) + sum(one.output + one.left for one in self.begun)
        most = self.rules.reserve.most_tokens * self.running
        return self.pages.count(int(self.rules.reserve.share(self.steps) * min(left, most)))

    def patience(self) -> int:
        return 8 if self.waiting else 2**30  # chosen by hand, not from data: the share falls by 1 % in 7 steps
