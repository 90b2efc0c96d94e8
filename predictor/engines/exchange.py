"""Ways in which tokens come to experts on other GPUs, as words."""

from __future__ import annotations

from predictor.engines.registry import libraries, library

#: Tokens to all GPUs, sums back, which needs no library of its own and is vLLM's default (config/parallel.py:152 of
#: 0.14.1, `allgather_reducescatter`).
ALL_GATHER = "allgather"


def exchanges() -> tuple[str, ...]:
    """The ways: an all_gather, or the all_to_all of a library (`Library.sends_tokens`)."""
    return (ALL_GATHER, *(name for name in libraries() if library(name).sends_tokens))
