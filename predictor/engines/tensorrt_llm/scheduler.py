"""TensorRT-LLM's scheduler: in-flight batching with GUARANTEED_NO_EVICT, as the page that `tensorrt_llm_releases`
names describes it."""

from __future__ import annotations

from predictor.engines.scheduling import Batching, StepBatch


class InFlight(Batching):
    """Generation first, then context, in one step: whole prompts (or chunks, where they are asked for) of requests
    whose pages are free to the last token."""

    joins = True

    def batch(self) -> StepBatch:
        rules = self.rules
        batch = StepBatch(decodes=bool(self.decoding))
        budget = rules.tokens - self.width * len(self.decoding)
        for sequence in self.begun:
            tokens = min(sequence.left, budget)
            if tokens > 0:
                batch.chunks.append(self.extend(sequence, tokens))
                budget -= tokens
        while self.waiting and budget > 0 and self.running < rules.sequences:
            sequence = self.waiting[0]
            left = sequence.prompt - self.cached(sequence)
            tokens = min(left, budget) if rules.chunks else left
            if tokens > budget or self.wants(sequence, tokens) > self.pages.free:
                break
            batch.chunks.append(self.admit(tokens))
            budget -= tokens
        return batch
