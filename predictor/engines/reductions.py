"""all_reduce within a node as of a release: whose algorithm takes a buffer of how many bytes over how many GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from predictor.engines.library import CUSTOM_ONE_SHOT
from predictor.engines.vintage import NO_LIMIT
from predictor.files.records import dataclass

#: Algorithms of an all_reduce within a node: a kernel of the engine's own that reads all peers' buffers at once, or
#: reduces a share and gathers, or either (by a table that is not here); PyTorch's symmetric memory, with the switch
#: reducing (multimem) or in two shots; NCCL.
ALGORITHMS = ONE_SHOT, TWO_SHOT, EITHER_SHOT, MULTIMEM, SYMMETRIC, NCCL = (
    "one-shot", "two-shot", "one-shot or two-shot", "multimem", "symmetric two-shot", "nccl",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reduction:
    """``algorithm`` takes buffers of fewer than ``below`` bytes, by the number of GPUs; of none that is not listed.

    ``of_elements``: the limits are elements, not bytes.
    """

    algorithm: str
    below: Mapping[int, float]
    of_elements: bool = False


@dataclass(frozen=True, slots=True)
class FusedNorm:
    """all_reduce, residual sum and norm (and what narrows its output) in one kernel.

    For buffers of up to ``largest`` bytes, in one shot up to ``one_shot``, else in two, by the number of GPUs (None:
    nobody read where it changes); for calls of up to ``tokens`` tokens; for ``models`` (Hugging Face model types; ()
    for all).
    """

    largest: Mapping[int, float]
    one_shot: Mapping[int, float] | None
    source: str
    tokens: int = NO_LIMIT
    models: tuple[str, ...] = ()
    unverified: str = ""


@dataclass(frozen=True, slots=True)
class AllReduceRules:
    """all_reduce within a node: rules in order, by compute capability ("9.0", "10" for a major number, "" for the
    rest), and what no rule takes is NCCL's; from ``linked_from`` GPUs on the rules need NVLink. ``fused`` by compute
    capability."""

    source: str
    reductions: Mapping[str, tuple[Reduction, ...]] = field(default_factory=lambda: MappingProxyType({}))
    linked_from: int = 2
    fused: Mapping[str, FusedNorm] = field(default_factory=lambda: MappingProxyType({}))
    unverified: str = ""


def shots(in_one: Mapping[int, float], most: Mapping[int, float]) -> tuple[Reduction, ...]:
    """Rules of a kernel that takes one shot below ``in_one`` bytes and two shots below ``most``, by GPUs."""
    below = {ranks: min(size, most[ranks]) for ranks, size in in_one.items()}
    return Reduction(ONE_SHOT, below), Reduction(TWO_SHOT, most)


def custom_shots(most: Mapping[int, float]) -> tuple[Reduction, ...]:
    """Rules of the custom kernel (`CUSTOM_ONE_SHOT`) for buffers below ``most`` bytes by GPUs."""
    in_one = {ranks: next(size for some, size in CUSTOM_ONE_SHOT if ranks <= some) for ranks in most}
    return shots(in_one, most)
