"""Operators that look through rows in order, or pick of them: index, scan, sort and top-k, at the bytes they pass over.

A sort of PyTorch is CUB's radix sort: four passes of eight bits for a key of 32, each over keys and positions, forth
and back between two buffers; rows that one block holds are sorted where they are (`BLOCK_SORT`). A top-k of PyTorch
reads its row once for every digit that it settles (TensorTopK.cu), and then to pick.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from predictor.files.records import dataclass, replace
from predictor.ops.base import Gradient, Kept, Op, Piece
from predictor.ops.elementwise import Elementwise, PlainElementwise

_INDEX_BYTES = 8  # by definition of int64, with which PyTorch indexes
_DIGIT_BITS = 8  # of a pass; source: CUB's DeviceRadixSort policies (dispatch_radix_sort.cuh)
#: Elements of a row that one block sorts without another pass. Source: Sort.cpp, segmented_sort_large/small sizes.
BLOCK_SORT = 4096
_SECTOR = 32  # bytes that DRAM gives at least; source: CUDA Programming Guide, device memory accesses


@dataclass(frozen=True, slots=True)
class Index(PlainElementwise):
    """Rows of ``width`` elements picked from a table ("gather") or put into one ("scatter", "scatter_add") by
    ``rows`` indices, of ``table`` rows. Rows are picked apart from each other: a narrow one costs a whole sector."""

    rows: int
    width: int
    table: int
    kind: str = "gather"

    @property
    def fn(self) -> str:  # type: ignore[override]
        return "gather" if self.kind == "gather" else "scatter"

    @property
    def label(self) -> str:
        return self.kind.replace("_", " ")

    @property
    def elements(self) -> int:
        return self.rows * self.width

    @property
    def read_bytes(self) -> float:
        rows = min(self.rows, self.table) if self.kind == "gather" else self.rows
        reread = min(self.rows, self.table) if self.kind == "scatter_add" else 0
        return (rows + reread) * self.width * self.itemsize + self.rows * _INDEX_BYTES

    @property
    def write_bytes(self) -> float:
        rows = self.rows if self.kind == "gather" else min(self.rows, self.table)
        return rows * self.width * self.itemsize

    @property
    def again_bytes(self) -> float:  # type: ignore[override]
        """The rest of the sectors, and rows that are picked more than once."""
        row = self.width * self.itemsize
        whole = -(-row // _SECTOR) * _SECTOR
        return self.rows * (whole - row) + max(self.rows - self.table, 0) * row

    @property
    def reuse_bytes(self) -> float:  # type: ignore[override]
        """The table, between two picks of a row."""
        return min(self.rows, self.table) * self.width * self.itemsize

    @property
    def flop_count(self) -> float:
        return float(self.elements) if self.kind == "scatter_add" else 0.0

    def backward(self) -> tuple[Op, ...]:
        """A gather's fills a gradient of the whole table with zeros and adds rows into it, a scatter's gathers."""
        if self.kind == "gather":
            fill = Elementwise(self.dtype, "fill", self.table * self.width)
            return (fill, replace(self, kind="scatter_add"))
        return (replace(self, kind="gather"),)

    def gradients(self) -> tuple[Gradient, ...]:
        if self.kind == "gather":
            return (Gradient(incoming=False), Gradient((0,), (1,), before=True))
        return (Gradient((0,), (1,)),)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Index:
        """Its rows."""
        piece = outputs[0] if self.kind == "gather" else inputs[0]
        return replace(self, rows=piece.share(self.rows))


@dataclass(frozen=True, slots=True)
class Scan(PlainElementwise):
    """A running sum, product or maximum over ``cols``, row by row (rows, cols). ``inner``: along the axis that lies
    side by side in memory."""

    rows: int
    cols: int
    inner: bool = True

    fn: ClassVar[str] = "cumsum"

    @property
    def label(self) -> str:
        return "scan"

    @property
    def elements(self) -> int:
        return self.rows * self.cols

    @property
    def read_bytes(self) -> float:
        return self.elements * self.itemsize

    @property
    def write_bytes(self) -> float:
        return self.elements * self.itemsize

    @property
    def flop_count(self) -> float:
        return float(self.elements)

    def backward(self) -> tuple[Op, ...]:
        """The same, from the other end: flip, scan, flip."""
        flip = Elementwise(self.dtype, "copy", self.elements)
        return (flip, self, flip)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Scan:
        """Its rows."""
        return replace(self, rows=outputs[0].share(self.rows * self.cols) // self.cols)


@dataclass(frozen=True, slots=True)
class Sort(PlainElementwise):
    """Sort of every row of (rows, cols), with where each element was; with ``top_k`` > 0 the largest k alone."""

    rows: int
    cols: int
    top_k: int = 0

    fn: ClassVar[str] = "sort"

    @property
    def label(self) -> str:
        return "top-k" if self.top_k else "sort"

    @property
    def elements(self) -> int:
        return self.rows * (self.top_k or self.cols)

    @property
    def _passes(self) -> int:
        """Times that a row is gone through beyond the first."""
        digits = round(self.itemsize * 8) // _DIGIT_BITS
        if self.top_k:
            return digits
        return 0 if self.cols <= BLOCK_SORT else max(digits - 1, 0)

    @property
    def read_bytes(self) -> float:
        return self.rows * self.cols * self.itemsize

    @property
    def write_bytes(self) -> float:
        return self.elements * (self.itemsize + _INDEX_BYTES)

    @property
    def again_bytes(self) -> float:  # type: ignore[override]
        """Top-k reads its row again; a sort reads and writes keys and positions."""
        once = self.rows * self.cols * self.itemsize
        if self.top_k:
            return self._passes * once
        return self._passes * 2.0 * self.rows * self.cols * (self.itemsize + _INDEX_BYTES)

    @property
    def reuse_bytes(self) -> float:  # type: ignore[override]
        return self.rows * self.cols * self.itemsize

    @property
    def flop_count(self) -> float:
        return float(self.rows * self.cols * (self._passes + 1))

    def kernels(self) -> int:
        """Of a sort by digits: a histogram and a pass each."""
        return 1 + 2 * self._passes if self._passes and not self.top_k else 1

    def backward(self) -> tuple[Op, ...]:
        """The gradients go back to where their elements were."""
        fill = Elementwise(self.dtype, "fill", self.rows * self.cols)
        return (fill, Index(self.dtype, self.elements, 1, self.rows * self.cols, "scatter"))

    def gradients(self) -> tuple[Gradient, ...]:
        return (Gradient(incoming=False), Gradient((0,), kept=(0,), before=True))

    def kept(self) -> tuple[Kept, ...]:
        """Where the elements were."""
        return (Kept("positions", "int64"),)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Sort:
        """Its rows."""
        return replace(self, rows=inputs[0].share(self.rows * self.cols) // self.cols)
