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
        rules, batch = self.rules, StepBatch()
        budget = min(rules.tokens, rules.prefill_tokens) if rules.chunks else rules.prefill_tokens
        for sequence in list(self.begun):
            tokens = min(sequence.left, budget)
            if tokens and self.wants(sequence, tokens) <= self.pages.free:
                batch.chunks.append(self.extend(sequence, tokens))
                budget -= tokens
        room = (self.pages.free - self._set_aside()) * self.pages.size
        while self.waiting and budget > 0 and self.running < rules.sequences:
            sequence = self.waiting[0]
            left = sequence.prompt - self.cached(sequence)
            needs = left + min(sequence.output, rules.reserve.most_tokens)
            if needs > room and self.running:
                break
            if left > budget and (not rules.chunks or (self.begun and self.begun[-1].left)):
                break
            tokens = min(left, budget)
            if self.wants(sequence, tokens) > self.pages.free:
                break
            batch.chunks.append(self.admit(tokens))
            budget, room = budget - tokens, room - needs
        if not batch.chunks:
            if self.spare < 0:
                self.steps = 0
            self.make_room(batch)
            batch.decodes = bool(self.decoding)
        return batch

    def _set_aside(self) -> int:
        """Pages for what those who run may still write."""
        left = (
            self.ending
            - self.clock * len(self.decoding)
            + sum(sequence.output + sequence.left for sequence in self.begun)
        )
        most = self.rules.reserve.most_tokens * self.running
        return self.pages.count(int(self.rules.reserve.share(self.steps) * min(left, most)))

    def patience(self) -> int:
        return 8 if self.waiting else 2**30  # chosen by hand, not from data: the share falls by 1 % in 7 steps
