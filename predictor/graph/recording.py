"""A recording: the graph of one pass as a frontend saw it, and what belongs to it beside its edges."""

from __future__ import annotations

from dataclasses import field

from predictor.files.records import dataclass
from predictor.formats.dtypes import bytes_of
from predictor.graph.graph import Graph
from predictor.graph.samples import unit_of


@dataclass(frozen=True, slots=True)
class Recording:
    """One pass of a model that was traced, or read from a file.

    ``graph``: its forward blocks, with mode "train" their backward blocks after them. ``update``: the blocks of its own
    optimizer's step (none: the house's). ``parameters``: of the whole model, those that are trained apart
    (``trained``); ``weight_bytes`` and ``state_bytes``: of its parameters, and of buffers and caches that it keeps.
    ``inputs``: in words, as they were asked for. ``batch`` and ``tokens``: sequences of a pass, and tokens of each.
    ``cache_per_token`` and ``cache_fixed``: bytes of a sequence's cache, of each token and beside those.
    ``tp``: of how many ranks of tensor parallelism it is one, whose ``weight_bytes`` and caches it tells; its
    collectives have no links (`predictor.passes.tensor_parallel.joined`).
    ``unknown``: names of operators that no table knows. ``source``: what recorded it, with its version.
    """

    name: str
    mode: str
    dtype: str
    graph: Graph
    parameters: int
    trained: int
    weight_bytes: float
    state_bytes: float = 0.0
    update: Graph = field(default_factory=lambda: Graph(()))
    inputs: tuple[str, ...] = ()
    batch: int = 1
    tokens: int = 1
    attention: str = "flash"
    unknown: tuple[str, ...] = ()
    source: str = ""
    cache_per_token: float = 0.0
    cache_fixed: float = 0.0
    notes: tuple[str, ...] = ()
    tp: int = 1

    @property
    def unit(self) -> str:
        """What its throughput is counted in, of `predictor.graph.samples.UNITS`."""
        return unit_of(self.inputs, (node.op for node, _ in self.graph.nodes()), self.tokens)

    def parameters_of(self, tp: int) -> int:
        """Elements of a rank's weights where it is one of ``tp``, else of all."""
        return round(self.weight_bytes / bytes_of(self.dtype)) if self.tp == tp > 1 else self.parameters
