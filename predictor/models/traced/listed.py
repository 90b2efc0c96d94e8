"""A part of a pipeline that is a list of operators and collectives, not a module: what one GPU does.

    - {op: gemm, m: batch/gpus, n: 1024, k: 479}
    - {op: elementwise, fn: relu, elements: batch/gpus*1024}
    - {collective: all_reduce, bytes: 4*100000, ranks: 8}
    - {mlp: [479, 1024, 1024, 1], rows: batch/gpus, phase: backward}
    - {tables: {rows: [40000000, 39060], pooling: [3, 2], width: 128, batch: batch, sharding: planned}, phase: backward}

Fields are those of the operator's class; whole numbers may be formulas of the pipeline's sizes. ``mlp`` is a chain of
linear layers of these widths with a relu behind each (none with ``relu: false``), backward the products of both
gradients. A collective is of all GPUs, or of the first ``ranks`` side by side. ``tables`` are embedding tables over all
GPUs with their exchanges (`predictor.models.traced.tables`).

What one entry exchanges and others do not wait for can hide behind them: a collective or tables may have a list of
entries ``beside``, which run once the largest of its exchanges has begun; what follows in the entry waits for that.

    - {tables: {...}, beside: [{mlp: [13, 512, 256, 128], rows: batch/gpus}]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

from predictor.errors import RequestError, SpecError, nearest
from predictor.files.records import replace
from predictor.formats.dtypes import bytes_of
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.recording import Recording
from predictor.graph.samples import SAMPLES
from predictor.graph.saved_checks import checked_op
from predictor.graph.tensor import Tensor
from predictor.models.step import Step
from predictor.models.traced.model import Alone, Source
from predictor.models.traced.tables import INDEX_BYTES, PLANNED, spread
from predictor.ops import OPERATORS, Op
from predictor.ops.base import BACKWARD, FORWARD
from predictor.ops.collective import KINDS, Collective
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import Gemm
from predictor.ops.sparse import EmbeddingBag

#: What an entry of a list is, by the key that it has -> what else it may say; an operator: fields of its class.
_KINDS: Mapping[str, tuple[str, ...]] = {
    "op": (), "collective": ("bytes", "ranks"), "mlp": ("rows", "relu", "phase"), "tables": ("phase",),
}  # fmt: skip
_OF_TABLES = ("rows", "pooling", "width", "batch", "sharding")
#: Makes a whole number of a formula; the text says where it stands.
Size = Callable[[Any, str], int]


class Listed(Alone, Source):
    """The operators of a list; collectives are of ``gpus`` GPUs, whose links `predictor.simulate.plan` fills in."""

    sizes: tuple[int, int] | None = (1, 1)
    dtype = ""
    modes: tuple[str, ...] = ("forward",)

    def __init__(self, name: str, asked: Sequence[Any], gpus: int, size: Size) -> None:
        self.name, self.asked, self.gpus, self.size = name, asked, gpus, size
        self._ops("bf16")  # says what is wrong before anything runs

    def record(self, step: Step, accumulate: bool | None, tp: int = 1) -> Recording:
        self.check_whole(tp)
        blocks = tuple(self._block(alone, beside) for alone, beside in self._ops(step.act_dtype))
        return Recording(
            self.name, "forward", step.act_dtype, Graph(blocks, recorded=True), 0, 0, 0.0, source="a list of operators",
        )  # fmt: skip

    def _block(self, ops: list[Op], beside: list[Op]) -> Block:
        """Operators, each of which waits for the one before it; those ``beside`` for none, behind the largest
        collective of ``ops``."""
        nodes = [self._node(op) for op in ops]
        if not beside:
            return Block(self.name, tuple(nodes))
        nodes[1:] = [replace(node, inputs=before.outputs) for before, node in pairwise(nodes)]
        sizes = [op.size if isinstance(op, Collective) else 0 for op in ops]
        at = sizes.index(max(sizes)) + 1
        return Block(self.name, (*nodes[:at], *map(self._node, beside), *nodes[at:]), beside=True)

    def _node(self, op: Op) -> Node:
        return Node(op, f"{self.name} {op.label}", outputs=(Tensor(op.label, ("d0",), (1,), op.dtype),))

    def parameters(self, tp: int = 1) -> int:
        """Entries of the tables that a GPU looks up in."""
        every = (op for part in self._ops("bf16") for ops in part for op in ops)
        ops = [op for op in every if isinstance(op, EmbeddingBag) and op.phase == FORWARD]
        return sum(op.rows * op.width for op in ops)

    @property
    def unit(self) -> str:
        return SAMPLES

    def cache_bytes(self, batch: int, tokens: int, kv_dtype: str, tp: int = 1) -> float:
        return 0.0

    def _ops(self, dtype: str) -> list[tuple[list[Op], list[Op]]]:
        """Of each run of entries without ``beside``, and of each entry with it: its own operators, and those beside."""
        runs: list[tuple[list[Op], list[Op]]] = []
        for place, entry in enumerate(self.asked):
            where = f"{self.name}: operator {place + 1}"
            ops = self._entry(entry, dtype, where)
            said = entry.get("beside", [])
            if not isinstance(said, list) or (said and not ("tables" in entry or "collective" in entry)):
                raise SpecError(f"{where}: beside: expected a list of operators, of tables or a collective")
            if any(isinstance(each, Mapping) and "beside" in each for each in said):
                raise SpecError(f"{where}: beside: has a beside of its own; expected one level")
            beside = [op for i, each in enumerate(said) for op in self._entry(each, dtype, f"{where}, beside {i + 1}")]
            if not any(isinstance(op, Collective) for op in ops):  # one GPU exchanges nothing
                ops, beside = ops + beside, []
            if beside or not runs or runs[-1][1]:
                runs.append((ops, beside))
            else:
                runs[-1][0].extend(ops)
        return runs

    def _entry(self, entry: Any, dtype: str, where: str) -> list[Op]:
        """The operators of one entry itself."""
        if not isinstance(entry, Mapping) or sum(key in entry for key in _KINDS) != 1:
            raise SpecError(f"{where}: expected a mapping with one of {', '.join(_KINDS)}")
        kind = next(key for key in _KINDS if key in entry)
        if kind != "op":
            _check_keys([key for key in entry if key != "beside"], (kind, *_KINDS[kind]), f"{where}: {kind}")
        if _phase(entry, where) and "tables" in entry:
            return self._tables(entry, dtype, where)
        if "mlp" in entry:
            return self._chain(entry, dtype, where)
        if "op" in entry:
            return [_operator(entry, dtype, where, self.size)]
        kind = str(entry["collective"])
        if kind not in KINDS:
            raise SpecError(f"{where}: unknown collective {kind!r}: expected one of {', '.join(KINDS)}")
        ranks = min(self.size(entry.get("ranks", self.gpus), where), self.gpus)
        return self._collective(kind, self.size(entry.get("bytes", 0), where), dtype, ranks)

    def _collective(self, kind: str, size: int, dtype: str, ranks: int = 0) -> list[Op]:
        ranks = ranks or self.gpus
        return [Collective(dtype, kind, size, ranks)] if ranks > 1 and size else []

    def _chain(self, entry: Mapping[str, Any], dtype: str, where: str) -> list[Op]:
        """Linear layers one after the other."""
        if not isinstance(entry["mlp"], list) or len(entry["mlp"]) < 2:
            raise SpecError(f"{where}: mlp: expected a list of two widths or more")
        if not isinstance(entry.get("relu", True), bool):
            raise SpecError(f"{where}: relu is {entry['relu']!r:.40}; expected true or false")
        widths, rows = [self.size(width, where) for width in entry["mlp"]], self.size(entry.get("rows", 1), where)
        ops: list[Op] = []
        for k, n in pairwise(widths):
            product, relu = Gemm(dtype, rows, n, k, bias=True), Elementwise(dtype, "relu", rows * n)
            chain: tuple[Op, ...] = (product, relu) if entry.get("relu", True) else (product,)
            ops += chain if _phase(entry, where) == FORWARD else [op for at in chain[::-1] for op in at.backward()]
        return ops

    def _tables(self, entry: Mapping[str, Any], dtype: str, where: str) -> list[Op]:
        """Look-ups and what is exchanged for them; backward, updates of what was looked up, and gradients."""
        asked = entry["tables"]
        if not isinstance(asked, Mapping) or not all(isinstance(asked.get(key), list) for key in ("rows", "pooling")):
            raise SpecError(f"{where}: tables: expected rows and pooling, a list each, width, batch and sharding")
        _check_keys(asked, _OF_TABLES, f"{where}: tables")
        rows, pooling = ([self.size(n, where) for n in asked[key]] for key in ("rows", "pooling"))
        width, batch = (self.size(asked.get(key, 1), where) for key in ("width", "batch"))
        over = spread(rows, pooling, width, batch, self.gpus, str(asked.get("sharding", PLANNED)))
        phase = _phase(entry, where)
        bags: list[Op] = [EmbeddingBag(dtype, *each, phase=phase) for each in over.looked_up]
        wide = bytes_of(dtype)
        pooled = self._collective("all_to_all", round(over.pooled * wide), dtype)
        if phase == BACKWARD:
            back = self._collective("all_gather", round(over.scattered * wide), dtype)
            return [*pooled, *back, *bags, *self._collective("all_reduce", round(over.summed * wide), dtype)]
        indices = self._collective("all_to_all", over.indices * INDEX_BYTES, dtype)
        return [*indices, *bags, *pooled, *self._collective("reduce_scatter", round(over.scattered * wide), dtype)]


def _check_keys(said: Iterable[Any], known: Sequence[str], where: str) -> None:
    """SpecError, one line, for a key that nobody reads."""
    for key in said:
        if key not in known:
            close = nearest(str(key), known, 1)
            tail = f"; nearest: {close[0]}" if close else ""
            raise SpecError(f"{where} has no field {key!r}; expected some of {', '.join(known)}{tail}")


def _phase(entry: Mapping[str, Any], where: str) -> str:
    phase = str(entry.get("phase", FORWARD))
    if phase not in (FORWARD, BACKWARD):
        raise SpecError(f"{where}: phase {phase!r}: expected {FORWARD} or {BACKWARD}")
    return phase


def _operator(entry: Mapping[str, Any], dtype: str, where: str, size: Size) -> Op:
    """An operator by its name and fields. SpecError, one line, for one that there is not."""
    name = str(entry["op"])
    if name not in OPERATORS:
        close = nearest(name, OPERATORS, 1)
        tail = f"; nearest: {close[0]}" if close else ""
        raise SpecError(f"{where}: unknown operator {name!r}{tail}")
    cls = OPERATORS[name]
    known = {field.name: str(field.type) for field in fields(cls)}
    given = {key: value for key, value in entry.items() if key != "op"}
    _check_keys(given, tuple(known), f"{where}: {name}")
    said: dict[str, Any] = {"dtype": dtype}
    said |= {key: size(value, where) if known[key] == "int" else value for key, value in given.items()}
    try:
        return checked_op(cls(**said))
    except (TypeError, ValueError, RequestError) as error:
        raise SpecError(f"{where}: {name}: {error}") from None
