"""One case of every stratum of the sweeps on the simulated board: the smallest, and small enough for a processor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from microbench import sweep
from microbench.case import Case
from predictor.data.schema import CUDA_GRAPH, SUSTAINED
from predictor.ops import Attention

#: Sizes that say nothing of a stratum, cut to what a processor computes in a moment.
_SMALL = {
    "elementwise": {"elements": 2048}, "moe": {"hidden": 64, "intermediate": 64, "tokens": 16, "experts": 16},
    "routing": {"tokens": 16}, "optimizer": {"parameters": 65536}, "embedding": {"vocab": 1024},
    "cross_entropy": {"vocab": 1000}, "convolution": {"batch": 1}, "pool": {"maps": 16}, "sort": {"rows": 4},
    "embedding_bag": {"rows": 1000, "bags": 64}, "aggregate": {"edges": 2000}, "index": {"rows": 64, "table": 1024},
    "dropout": {"elements": 2048}, "copy": {"size": 65536}, "attention": {"batch": 1},
}  # fmt: skip
_KINDS = ("kind", "fn", "layout", "bias", "causal", "distribution", "gated", "axis", "in_dtype", "inputs",
          "mixed", "transposed", "channels_last", "training", "inner")  # fmt: skip


def stratum(case: Case) -> tuple[Any, ...]:
    """What decides which code runs, whatever the sizes."""
    op = case.op
    shape = (getattr(op, "q_len", 0) == 1, getattr(op, "heads", 0) != getattr(op, "kv_heads", 0))
    flat = (getattr(op, "in_h", 0) == 1, getattr(op, "in_d", 0) == 1, getattr(op, "top_k", 0) > 0)
    fields = tuple(getattr(op, name, "") for name in _KINDS)
    return (case.launcher, op.dtype, case.phase, case.options, case.cache, case.protocol, type(op), fields, shape, flat)


def cost(case: Case) -> float:
    op = case.op
    return max(op.flops(), 20.0 * sweep._footprint(op))


def smallest(cases: Iterable[Case]) -> list[Case]:
    """A case of every stratum."""
    found: dict[tuple[Any, ...], Case] = {}
    for case in cases:
        key = stratum(case)
        if key not in found or cost(case) < cost(found[key]):
            found[key] = case
    for key, case in found.items():  # long runs are of large shapes: their code is that of the small ones
        other = found.get(stratum(replace(case, protocol=CUDA_GRAPH)))
        if case.protocol == SUSTAINED and other is not None:
            found[key] = replace(other, protocol=SUSTAINED)
    return [_cut(case) for case in found.values()]


def _cut(case: Case) -> Case:
    small = {k: v for k, v in _SMALL.get(case.launcher, {}).items() if getattr(case.op, k, 0) > v}
    if isinstance(case.op, Attention):  # one group of heads that share keys and values
        small |= {"heads": case.op.heads // case.op.kv_heads, "kv_heads": 1}
        if case.op.q_len == case.op.kv_len:
            small |= {"q_len": min(case.op.q_len, 32), "kv_len": min(case.op.kv_len, 32)}
    cut = replace(case, op=replace(case.op, **small)) if small else case  # type: ignore[arg-type, type-var]
    assert stratum(cut) == stratum(case), cut.describe()
    return cut
