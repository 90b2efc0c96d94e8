"""PyTorch without a serving engine: what its host was seen to need, and who reduces. All releases are one."""

from __future__ import annotations

from predictor.engines.base import CALLS, CAPTURED
from predictor.engines.vintage import Collectives, Host, HostTime, Vintage

_COLLECTIVES = Collectives("torch.distributed, backend nccl", unverified="symmetric memory, which callers may ask for")
_TIMES = (
    HostTime(
        "launches of a decode step of 96 layers, beyond one captured graph", "OPT-175B, 8 A100, July 2022",
        "facebookresearch/metaseq pull 270: 95 against 66 ms a token", step_s=(29e-3, 29e-3),
    ),
    HostTime(
        "launches of a decode step of 32 layers, beyond a graph", "LLaMA-7B, August 2023, GPU not said",
        "vLLM issue 914: 30 against 69 tokens/s", step_s=(18.8e-3, 18.8e-3),
    ),
)  # fmt: skip

EAGER_VINTAGES = (
    Vintage(
        "", "",
        Host(CALLS, CALLS, overlaps=(), source="PyTorch, eager: a framework call for each operator", times=_TIMES),
        collectives=_COLLECTIVES,
    ),
)  # fmt: skip
COMPILE_VINTAGES = (
    Vintage(
        "", "", Host(CAPTURED, CAPTURED, overlaps=(), source='torch.compile, mode "reduce-overhead"'),
        collectives=_COLLECTIVES,
    ),
)  # fmt: skip
