"""Operators whose rows are picked by data: embedding bags, message passing over a graph, and DeepSeek's indexer.

How often a row is picked follows a power law: of n rows the r-th is picked r^-skew as often as the first (0: all
alike). ``distinct`` rows of them are expected among so many picks; the others were read before.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np

from predictor.files.records import dataclass, replace
from predictor.formats.dtypes import bytes_of
from predictor.ops.attention import attended_pairs
from predictor.ops.base import BACKWARD, FORWARD, Gradient, Op, Piece
from predictor.ops.elementwise import Elementwise, PlainElementwise

_INDEX_BYTES = 8  # by definition of int64, with which PyTorch indexes
_LANES, _VECTOR = 32, 16  # of a warp, and bytes of the widest load; source: CUDA Programming Guide
#: Ranks that are counted one by one, and bins a decade beyond them: chosen by hand, not from data. Against the whole
#: sum they are off by less than 0.1 %.
_RANKS, _BINS = 1000, 60


@lru_cache(maxsize=4096)
def distinct(picks: int, rows: int, skew: float = 0.0) -> float:
    """Rows of ``rows`` that ``picks`` independent picks are expected to touch: sum over r of 1 - (1 - p(r))^picks.

    >>> distinct(10, 1), round(distinct(1000, 1000), 1)
    (1.0, 632.3)
    """
    edges = np.arange(1.0, min(rows, _RANKS) + 1.0)
    if rows > _RANKS:
        bins = max(2, int(np.log10(rows / _RANKS) * _BINS))
        edges = np.unique(np.concatenate([edges, np.floor(np.geomspace(_RANKS + 1, rows + 1, bins))]))
    else:
        edges = np.append(edges, rows + 1.0)
    counts = np.diff(edges)
    weight = np.sqrt(edges[:-1] * (edges[1:] - 1.0)) ** -skew  # of the middle rank of a bin
    share = weight / (weight * counts).sum()
    with np.errstate(divide="ignore"):
        missed = np.exp(picks * np.log1p(-np.minimum(share, 1.0)))
    return float(min((counts * (1.0 - missed)).sum(), picks))


class Picking(PlainElementwise):
    """Rows that are read once from DRAM, and from there or from L2 whenever they are picked again."""

    __slots__ = ()

    @property
    @abstractmethod
    def elements(self) -> int:
        """Of all rows that are picked."""

    @property
    @abstractmethod
    def distinct_bytes(self) -> float:
        """Of the rows that are touched at all."""

    @property
    def again_bytes(self) -> float:  # type: ignore[override]
        """Rows that are picked once more."""
        return self.elements * self.itemsize - self.distinct_bytes

    @property
    def reuse_bytes(self) -> float:  # type: ignore[override]
        """The rows that are touched at all, between two picks of one."""
        return self.distinct_bytes

    @property
    def indexed(self) -> float:
        """Vectors that lanes load, each by an index: kernels read whole rows side by side, no element by itself."""
        return self.elements * self.itemsize / _VECTOR

    def missed_bytes(self, l2_bytes: float) -> float:
        """Of the rows that are picked again, in no order, those that L2 does not hold."""
        return self.again_bytes * max(0.0, 1.0 - l2_bytes / self.distinct_bytes)


@dataclass(frozen=True, slots=True)
class EmbeddingBag(Picking):
    """``bags`` sums of ``pooling`` rows of ``width`` elements each, out of a table of ``rows``, picked with ``skew``.

    ``sparse``: the backward pass updates the rows that were picked, in place (a fused optimizer); else it makes a
    gradient of the whole table.
    """

    bags: int
    pooling: int
    width: int
    rows: int
    skew: float = 0.0
    sparse: bool = True
    phase: str = FORWARD

    @property
    def fn(self) -> str:  # type: ignore[override]
        return "gather" if self.phase == FORWARD else "scatter"

    @property
    def label(self) -> str:
        return "embedding bag"

    @property
    def picks(self) -> int:
        """Rows that all bags sum."""
        return self.bags * self.pooling

    @property
    def elements(self) -> int:
        """Of the rows that are picked."""
        return self.picks * self.width

    @property
    def _row_bytes(self) -> float:
        return self.width * self.itemsize

    @property
    def distinct_bytes(self) -> float:
        return distinct(self.picks, self.rows, self.skew) * self._row_bytes

    @property
    def indexed(self) -> float:
        """A warp reads a row by 32 lanes of 16 bytes, those beyond its end idle (FBGEMM's table-batched embeddings,
        pytorch/FBGEMM pull 1197)."""
        return float(self.picks * _LANES * -(-self._row_bytes // (_LANES * _VECTOR)))

    @property
    def read_bytes(self) -> float:
        indices = (self.picks + self.bags) * float(_INDEX_BYTES)
        if self.phase == FORWARD:
            return self.distinct_bytes + indices
        return self.bags * self._row_bytes + (self.distinct_bytes if self.sparse else 0.0) + indices

    @property
    def write_bytes(self) -> float:
        if self.phase == FORWARD:
            return self.bags * self._row_bytes
        return self.distinct_bytes if self.sparse else self.rows * self._row_bytes

    @property
    def flop_count(self) -> float:
        return float(self.elements)

    def cold_bytes(self) -> float:
        return self.distinct_bytes

    def weights(self) -> int:
        """The table."""
        return self.rows * self.width

    def kernels(self) -> int:
        """Backward sorts the indices first."""
        return 1 if self.phase == FORWARD else 3

    def backward(self) -> tuple[Op, ...]:
        return () if self.phase == BACKWARD else (replace(self, phase=BACKWARD),)

    def gradients(self) -> tuple[Gradient, ...]:
        return () if self.phase == BACKWARD else (Gradient((0,), (1,)),)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> EmbeddingBag:
        """Its bags, of its columns."""
        table, result = (outputs[0], inputs[0]) if self.phase == BACKWARD else (inputs[0], outputs[0])
        width = table.share(self.width, table.whole.axes[-1])
        bags = result.share(self.bags * self.width) // width
        return replace(self, bags=bags, width=width, rows=table.share(self.rows, table.whole.axes[0]))


@dataclass(frozen=True, slots=True)
class Aggregate(Picking):
    """Message passing: every node of a graph sums the ``width`` features of its neighbours, ``edges`` in all (SpMM).

    ``nodes`` results out of ``sources`` rows of features, picked with ``skew`` (in a graph whose degrees follow k^-a,
    skew = 1 / (a - 1)). ``weighted``: every edge has a weight for each of ``heads`` parts of the features.
    """

    nodes: int
    sources: int
    edges: int
    width: int
    heads: int = 1
    skew: float = 0.0
    weighted: bool = False
    phase: str = FORWARD

    fn: ClassVar[str] = "gather"

    @property
    def label(self) -> str:
        return "message passing"

    @property
    def elements(self) -> int:
        """Of the messages."""
        return self.edges * self.width

    @property
    def indexed(self) -> float:
        """Weights of several heads are no sparse matrix: DGL's own kernel looks up an element a lane, where cuSPARSE
        takes one weight an edge, or none (dmlc/dgl src/array/cuda/spmm.cu, as recalled, unverified)."""
        if self.weighted and self.heads > 1:
            return float(self.elements)
        return Picking.indexed.fget(self)  # type: ignore[attr-defined,no-any-return]

    @property
    def distinct_bytes(self) -> float:
        return distinct(self.edges, self.sources, self.skew) * self.width * self.itemsize

    @property
    def _structure_bytes(self) -> float:
        weights = self.edges * self.heads * self.itemsize if self.weighted else 0.0
        return (self.edges + self.nodes + 1) * float(_INDEX_BYTES) + weights

    @property
    def read_bytes(self) -> float:
        return self.distinct_bytes + self._structure_bytes

    @property
    def write_bytes(self) -> float:
        return self.nodes * self.width * self.itemsize

    @property
    def flop_count(self) -> float:
        return self.elements * (2.0 if self.weighted else 1.0)

    def backward(self) -> tuple[Op, ...]:
        """The features' gradient is passed along the edges the other way round; a weight's is a product of two rows."""
        turned = replace(self, nodes=self.sources, sources=self.nodes, phase=BACKWARD)
        if self.phase == BACKWARD:
            return ()
        if not self.weighted:
            return (turned,)
        row_bytes = 2.0 * self.elements * self.itemsize
        dots = Elementwise(self.dtype, "fused", self.edges * self.heads, 0, row_bytes, chain_flops=2.0 * self.width)
        return (turned, dots)

    def gradients(self) -> tuple[Gradient, ...]:
        if self.phase == BACKWARD:
            return ()
        return (Gradient((0,), (1, 2)), Gradient((2,), (0,))) if self.weighted else (Gradient((0,), (1,)),)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Aggregate:
        """Its nodes, and its columns of the features."""
        out = outputs[0]
        width = out.share(self.width, out.whole.axes[-1])
        nodes = out.share(self.nodes * self.width) // width
        return replace(self, nodes=nodes, edges=self.edges * nodes // self.nodes, width=width)


@dataclass(frozen=True, slots=True)
class Indexer(Op):
    """Scores by which sparse attention picks its keys: for each query and key, the weighted sum over ``heads`` of
    relu(q k) (DeepSeek-V3.2-Exp's lightning indexer). Keys are one vector a token; scores are kept in fp32.

    Shapes: q (batch, heads, q_len, head_dim), k (batch, kv_len, head_dim), scores (batch, q_len, kv_len).
    """

    batch: int
    heads: int
    q_len: int
    kv_len: int
    head_dim: int

    family: ClassVar[str] = "indexer"
    columns: ClassVar[tuple[str, ...]] = ("batch", "heads", "q_len", "kv_len", "head_dim")
    unit: ClassVar[str] = "matrix"

    @property
    def pairs(self) -> float:
        """(query, key) pairs of all sequences, of one head."""
        return self.batch * attended_pairs(self.q_len, self.kv_len, True, 0)

    @property
    def product(self) -> tuple[int, int, int, int]:
        """(groups, m, n, k): every head's queries against the keys, of which a prompt sees half."""
        seen = max(1, round(self.pairs / (self.batch * self.q_len)))
        return self.batch, self.q_len * self.heads, seen, self.head_dim

    @property
    def weight_bytes(self) -> float:
        """Of the keys, which lie in a cache."""
        return self.batch * self.kv_len * self.head_dim * self.itemsize

    def flops(self) -> float:
        return self.pairs * self.heads * (2.0 * self.head_dim + 3.0)  # relu, times a weight, added up

    def bytes_read(self) -> float:
        queries = self.batch * self.q_len * self.heads * (self.head_dim * self.itemsize + bytes_of("fp32"))
        return queries + self.weight_bytes

    def bytes_written(self) -> float:
        return self.pairs * bytes_of("fp32")

    def activation_bytes(self) -> float:
        return self.bytes_moved() - self.weight_bytes

    def cold_bytes(self) -> float:
        return self.weight_bytes

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Indexer:
        """Its sequences: every rank scores with all heads, so that all pick the same keys."""
        return replace(self, batch=outputs[0].share(self.batch))
