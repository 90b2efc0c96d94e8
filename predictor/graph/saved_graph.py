"""Recordings as JSON, of one schema version: operators, tensors and words once each, nodes by their places.

    {"schema": "tilecast graph", "version": 1, "name", "mode", "dtype", ..., "words": [...],
     "ops": [[class, fields]], "tensors": [[name, axes, shape, dtype, role, base, part, segments]],
     "blocks": [[name, repeat, carried, branch, running, layers, backward_of, nodes]], "update": [blocks]}

A node is [op, name, inputs, outputs, count, phase, host_calls, share, part, scope]; names and axes are places in
"words", tensors places in "tensors". A view whose gradient needs operators of its own (`View.gradient`) is written
without them: what is saved has its backward pass, or needs none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from predictor.errors import SpecError
from predictor.files.read import atomic_write, read_json
from predictor.formats.dtypes import DTYPES
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.recording import Recording
from predictor.graph.saved_checks import (
    DEEPEST_VIEW,
    NO_NUMBERS,
    at,
    check_operands,
    check_order,
    checked_op,
    number,
    text,
    whole,
)
from predictor.graph.tensor import ROLES, Tensor
from predictor.ops import OPERATORS, Op, Opaque
from predictor.ops.elementwise import Accumulate, HandGelu
from predictor.ops.recurrent import Recurrence

SCHEMA, VERSION = "tilecast graph", 1
_PLAIN = (
    "name", "mode", "dtype", "parameters", "trained", "weight_bytes", "state_bytes", "batch", "tokens", "attention",
    "source", "cache_per_token", "cache_fixed",
)  # fmt: skip
_LISTS = ("inputs", "unknown", "notes")
#: Operators that stand in eager graphs and in no data set, which has their kernels under other names.
_OF_GRAPHS: Mapping[str, type[Op]] = {
    "opaque": Opaque, "accumulate": Accumulate, "hand_gelu": HandGelu, "recurrence": Recurrence,
}  # fmt: skip


@lru_cache(maxsize=1)
def _classes() -> Mapping[str, type[Op]]:
    return {**OPERATORS, **_OF_GRAPHS}


def save_recording(recording: Recording, path: Path) -> None:
    """Write it to ``path``, whole or not at all. Raises OSError."""
    atomic_write(path, recording_bytes(recording))


def recording_bytes(recording: Recording) -> bytes:
    """It as a file."""
    return json.dumps(to_json(recording), separators=(",", ":")).encode()


def load_recording(path: Path) -> Recording:
    """The recording of a file. SpecError, one line, for what is none, or of another version."""
    return from_json(read_json(path), str(path))


def is_recording(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object says that it is one."""
    return data.get("schema") == SCHEMA


def to_json(recording: Recording) -> dict[str, Any]:
    """The object that is written."""
    writer = _GraphWriter()
    blocks = [writer.block(block) for block in recording.graph.blocks]
    update = [writer.block(block) for block in recording.update.blocks]
    return {
        "schema": SCHEMA, "version": VERSION,
        **{name: getattr(recording, name) for name in _PLAIN},
        **{name: list(getattr(recording, name)) for name in _LISTS},
        **({"tp": recording.tp} if recording.tp > 1 else {}),
        "fused": recording.graph.fused, "recorded": recording.graph.recorded,
        "words": list(writer.words), "ops": writer.ops, "tensors": writer.tensors,
        "blocks": blocks, "update": update,
    }  # fmt: skip


def from_json(data: Mapping[str, Any], where: str) -> Recording:
    """The recording of such an object; ``where`` names it in errors."""
    if not is_recording(data):
        raise SpecError(f"{where}: 'schema' is {data.get('schema')!r}, expected {SCHEMA!r}")
    if data.get("version") != VERSION:
        raise SpecError(f"{where}: version {data.get('version')!r} of a saved graph; expected {VERSION}: save it again")
    try:
        reader = _GraphReader(data)
        graph = Graph(tuple(map(reader.block, data["blocks"])), bool(data["fused"]), bool(data["recorded"]))
        update = Graph(tuple(map(reader.block, data["update"])))
        said = {name: data[name] for name in _PLAIN} | {name: tuple(data[name]) for name in _LISTS}
        said["tp"] = data.get("tp", 1)
        recording = Recording(graph=graph, update=update, **said)
        _check(recording)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise SpecError(f"{where}: not a graph as it was saved ({type(error).__name__}: {str(error)[:120]})") from None
    return recording


def _check(recording: Recording) -> None:
    """ValueError for what no trace gives."""
    if recording.mode not in ("forward", "train", "prefill", "decode"):
        raise ValueError(f"mode {recording.mode!r}")
    for name in ("parameters", "trained", "batch", "tokens", "tp"):
        whole(getattr(recording, name), name, least=int(name == "tp"))
    for name in ("weight_bytes", "state_bytes"):
        number(getattr(recording, name), name)
    for name in ("cache_per_token", "cache_fixed"):
        number(getattr(recording, name), name, least=-1.0)  # below 0: it is not known
    for name in ("name", "dtype", "attention", "source"):
        text(getattr(recording, name), name)
    for name in _LISTS:
        for each in getattr(recording, name):
            text(each, name)
    if recording.dtype not in DTYPES:
        raise ValueError(f"dtype {recording.dtype!r}")
    for graph in (recording.graph, recording.update):
        for place, block in enumerate(graph.blocks):
            if block.backward_of is not None and whole(block.backward_of, "backward_of") >= max(place, 1):
                raise ValueError(f"block {block.name!r} is the backward pass of one behind it")
        check_order(graph)
    if not recording.graph.recorded:
        check_operands(recording.graph)
    for block in (*recording.graph.blocks, *recording.update.blocks):
        for node in block.nodes:
            number(node.op.bytes_moved(), f"bytes of {node.name!r}")
            number(node.op.flops(), f"FLOPs of {node.name!r}")


class _GraphWriter:
    """Gathers what nodes refer to."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.ops: list[list[Any]] = []
        self.tensors: list[list[Any]] = []
        self._op: dict[Op, int] = {}
        self._tensor: dict[int, int] = {}
        self._names = {cls: name for name, cls in _classes().items()}

    def block(self, block: Block) -> list[Any]:
        def pair(two: tuple[Tensor, Tensor] | None) -> list[int] | None:
            return None if two is None else [self.tensor(two[0]), self.tensor(two[1])]

        return [
            self.word(block.name), block.repeat, pair(block.carried), pair(block.branch), [*map(pair, block.running)],
            list(block.layers), block.backward_of, [self.node(node) for node in block.nodes],
        ]  # fmt: skip

    def node(self, n: Node) -> list[Any]:
        return [
            self.op(n.op), self.word(n.name), [*map(self.tensor, n.inputs)], [*map(self.tensor, n.outputs)], n.count,
            self.word(n.phase), n.host_calls, n.share, self.word(n.part), self.word(n.scope),
        ]  # fmt: skip

    def word(self, text: str) -> int:
        return self.words.setdefault(text, len(self.words))

    def op(self, op: Op) -> int:
        if op not in self._op:
            name = self._names.get(type(op))
            if name is None:
                raise SpecError(f"an operator {type(op).__name__} that is not registered cannot be saved")
            said = {f.name: getattr(op, f.name) for f in fields(op) if getattr(op, f.name) != f.default}
            self._op[op] = len(self.ops)
            self.ops.append([name, said])
        return self._op[op]

    def tensor(self, t: Tensor) -> int:
        if id(t) not in self._tensor:
            base = None if t.base is None else self.tensor(t.base)
            self._tensor[id(t)] = len(self.tensors)
            segments = {axis: [list(s) for s in parts] for axis, parts in t.segments.items()}
            self.tensors.append(
                [self.word(t.name), [*map(self.word, t.axes)], list(t.shape), self.word(t.dtype),
                 ROLES.index(t.role), base, int(t.part), segments]
            )  # fmt: skip
        return self._tensor[id(t)]


class _GraphReader:
    """Makes again what was written."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.words: list[str] = [text(word, "a word") for word in data["words"]]
        self.ops = [checked_op(_classes()[name](**said)) for name, said in data["ops"]]
        self.tensors: list[Tensor] = []
        self._depths: list[int] = []
        for row in data["tensors"]:
            self.tensors.append(self._tensor(*row))

    def _tensor(
        self, name: int, axes: list[int], shape: list[int], dtype: int, role: int, base: int | None, part: int,
        segments: Mapping[str, Any],
    ) -> Tensor:  # fmt: skip
        sizes, names = tuple(shape), tuple(at(self.words, a) for a in axes)
        if len(sizes) != len(names):
            raise ValueError(f"shape {shape}")
        for n in sizes:
            whole(n, "a size")
        if base is not None:
            view = at(self.tensors, base).view(names, sizes, part=bool(part))
            view.role = at(ROLES, role)
            self._depths.append(self._depths[base] + 1)
            if self._depths[-1] > DEEPEST_VIEW:
                raise ValueError(f"a view of a view, {DEEPEST_VIEW} deep")
            return view
        self._depths.append(0)
        parts = {axis: tuple((whole(s[0], axis), whole(s[1], axis)) for s in parts) for axis, parts in segments.items()}
        if at(self.words, dtype) not in (*DTYPES, *NO_NUMBERS):
            raise ValueError(f"dtype {self.words[dtype]!r}")
        return Tensor(at(self.words, name), names, sizes, self.words[dtype], at(ROLES, role), parts)

    def _pairs(self, pairs: list[list[int]]) -> Iterator[tuple[Tensor, Tensor]]:
        for first, second in pairs:
            yield at(self.tensors, first), at(self.tensors, second)

    def block(self, row: list[Any]) -> Block:
        name, repeat, carried, branch, running, layers, backward_of, nodes = row
        return Block(
            at(self.words, name), tuple(map(self.node, nodes)), whole(repeat, "repeat", least=1),
            next(self._pairs([carried])) if carried else None, tuple(whole(layer, "a layer") for layer in layers),
            backward_of, tuple(self._pairs(running)),
            next(self._pairs([branch])) if branch else None,
        )  # fmt: skip

    def node(self, row: list[Any]) -> Node:
        op, name, inputs, outputs, count, phase, calls, share, part, scope = row
        tensors, words = self.tensors, self.words
        return Node(
            at(self.ops, op), at(words, name), tuple([at(tensors, t) for t in inputs]),
            tuple([at(tensors, t) for t in outputs]), whole(count, "count", least=1), at(words, phase),
            whole(calls, "host calls"), number(share, "share", most=1.0), at(words, part), at(words, scope),
        )  # fmt: skip
