"""TensorRT-LLM's scheduler: in-flight batching with GUARANTEED_NO_EVICT, as the page that `tensorrt_llm_releases`
names describes it."""

from __future__ import annotations

from predictor.engines.scheduling import Batching, StepBatch


class InFlight(Batching):
    """Generation first, then context, in one step: whole prompts (or chunks, where they are asked for) of requests
    whose pages are free to the last token."""

    def batch(self) -> StepBatch:
        rules = self.rules
        found = StepBatch(decodes=bool(self.decoding))
        budget = rules.tokens - self.width * len(self.decoding)
        for one in self.begun:
            tokens = min(one.left, budget)
            if tokens > 0:
                found.chunks.append(self.extend(one, tokens))
                budget -= tokens
        while self.waiting and budget > 0 and self.running < rules.sequences:
            one = self.waiting[0]
            left = one.prompt - self.found(one)
            tokens = min(left, budget) if rules.chunks else left
            if tokens > budget or self.wants(one, tokens) > self.pages.free:
                break
            found.chunks.append(self.admit(tokens))
            budget -= tokens
        return found
