"""Recorded nodes -> blocks: layers that do the same, one after the other, are one block that repeats.

A layer is what runs under one numbered module ("model.layers.3"). Runs of layers, or of a pattern of several, are one
block where their operators are the same and every tensor that one of them reads has its like in the others: made in the
layer itself, by the layer before it (what is carried from run to run), or outside: the very same, or one that no other
layer reads, as its weights and its cache. A layer that
differs, as the last one whose gradients come from the head alone, stays by itself. A layer's backward pass folds along.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import WEIGHT, Tensor
from predictor.ops.base import BACKWARD

#: Layers of a pattern that repeats: Gemma 3 has six, Jamba eight, Nemotron-H more. Chosen by hand, not from data.
LONGEST_PATTERN = 12
_AHEAD, _BACK = 0, 1

#: Where a tensor is made: (unit, ahead or back, node, output).
Place = tuple[int, int, int, int]
#: Of a tensor from outside that a single unit reads: a layer's weight, its cache, its gradients of passes before.
_OWN: Place = (-1, 0, 0, 0)


class _LayerNodes(NamedTuple):
    """Nodes of one layer (``path`` "model.layers.3"), or what runs between layers (""): ahead and back."""

    path: str
    nodes: tuple[tuple[Node, ...], tuple[Node, ...]]


def folded(nodes: Sequence[Node], level: int = 0) -> Graph:
    """The graph of recorded ``nodes`` in order, their scopes paths of modules; backward nodes come after forward ones.

    ``level``: how many numbers of a path are passed over before the one that a layer has.
    """
    ahead = [n for n in nodes if n.phase != BACKWARD]
    back = [n for n in nodes if n.phase == BACKWARD]
    units, order = _units(ahead, back, level)
    depth = max((_numbers(n.scope) for n in ahead), default=0)
    groups = _repeats(units, order)
    if not any(count > 1 for _, _, count in groups) and level + 1 < depth:
        return folded(nodes, level + 1)
    return _BlockWriter(units, order, groups).graph()


def _numbers(path: str) -> int:
    return sum(part.isdigit() for part in path.split("."))


def layer_of(path: str, level: int) -> str:
    """The path up to its number at ``level``, "" where it has none."""
    parts = path.split(".")
    places = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: places[level] + 1]) if len(places) > level else ""


def _units(ahead: list[Node], back: list[Node], level: int) -> tuple[list[_LayerNodes], list[int]]:
    """Layers in the order in which they run, and (places of them) that of their backward passes.

    A layer that runs twice, or whose backward pass is not in one piece, is none.
    """
    runs = [(path, tuple(run)) for path, run in groupby(ahead, key=lambda n: layer_of(n.scope, level))]
    backward = [(path, tuple(run)) for path, run in groupby(back, key=lambda n: layer_of(n.scope, level))]
    times: dict[str, int] = {}
    for path, _ in (*runs, *backward):
        times[path] = times.get(path, 0) + 1
    seen = {path for path, _ in runs}
    limit = {path: (path in seen) + any(path == p for p, _ in backward) for path in times}
    whole = {path for path, count in times.items() if path and path in seen and count <= limit[path]}
    units: list[_LayerNodes] = []
    for path, run in runs:
        if path in whole or not units or units[-1].path:
            units.append(_LayerNodes(path if path in whole else "", (run, ())))
        else:
            units[-1] = _LayerNodes("", ((*units[-1].nodes[0], *run), ()))
    place = {unit.path: i for i, unit in enumerate(units) if unit.path}
    scope_at = {n.scope: i for i, unit in enumerate(units) for n in unit.nodes[0]}
    order: list[int] = []
    last = len(units) - 1
    for path, run in backward:
        if path in place:
            u = place[path]
            units[u] = _LayerNodes(path, (units[u].nodes[0], run))
            order.append(u)
            last = u
            continue
        for node in run:  # between layers: to the piece whose scope it has, else to that after the layer before
            unit_of_scope = scope_at.get(node.scope, -1)
            u = unit_of_scope if unit_of_scope >= 0 and not units[unit_of_scope].path else next(
                (i for i in range(last, -1, -1) if not units[i].path), -1
            )  # fmt: skip
            if u < 0:
                units.append(_LayerNodes("", ((), ())))
                u = len(units) - 1
            units[u] = _LayerNodes("", (units[u].nodes[0], (*units[u].nodes[1], node)))
            if not order or order[-1] != u:
                order.append(u)
    return units, order


def _repeats(units: list[_LayerNodes], order: list[int]) -> list[tuple[int, int, int]]:
    """(first unit, units of the pattern, how often it comes) of all units, in order."""
    where = _places(units)
    marks = [_mark(unit) for unit in units]
    follows = {(b, a) for a, b in pairwise(order)}  # (b, a): a's backward pass comes right before b's
    repeats: list[tuple[int, int, int]] = []
    i = 0
    while i < len(units):
        best = (i, 1, 1)
        if units[i].path:
            for size in range(1, LONGEST_PATTERN + 1):
                count = 1
                while (
                    i + (count + 1) * size <= len(units)
                    and all(units[i + count * size + j].path for j in range(size))
                    and all(marks[i + count * size + j] == marks[i + j] for j in range(size))
                ):
                    count += 1
                if count > 1 and count * size > best[1] * best[2]:
                    count = _agreeing(units, where, follows, i, size, count)
                    if count > 1 and count * size > best[1] * best[2]:
                        best = (i, size, count)
        repeats.append(best)
        i += best[1] * best[2]
    return repeats


def _mark(unit: _LayerNodes) -> tuple[object, ...]:
    cut = len(unit.path) + 1
    return tuple(tuple((n.op, n.scope[cut:], n.host_calls) for n in side) for side in unit.nodes)


def _places(units: list[_LayerNodes]) -> dict[int, Place]:
    """Where every tensor is made, by id; `_OWN` for one from outside that a single unit reads."""
    places: dict[int, Place] = {}
    readers: dict[int, int] = {}
    for u, unit in enumerate(units):
        for side in (_AHEAD, _BACK):
            for k, node in enumerate(unit.nodes[side]):
                for t in node.inputs:
                    if readers.setdefault(key := id(t.storage), u) != u:
                        readers[key] = -1
                places |= {id(t): (u, side, k, o) for o, t in enumerate(node.outputs)}
    return {key: _OWN for key, u in readers.items() if u >= 0} | places


def _agreeing(
    units: list[_LayerNodes], where: dict[int, Place], follows: set[tuple[int, int]], first: int, size: int, count: int
) -> int:
    """How many of ``count`` repetitions read what is alike; 1 where they do not, or not in the same order backward."""
    trained = bool(units[first].nodes[_BACK])
    end = first + count * size
    if trained and any((u, u + 1) not in follows for u in range(first, end - 1)):
        return 1
    sides = [
        [_reads(units[first + r * size + j], where, first + r * size, size) for j in range(size)] for r in range(count)
    ]
    middle = sides[1]
    for r in range(count):
        for mine, theirs in zip(sides[r], middle, strict=True):
            if not all(_alike(a, b, r, count) for a, b in zip(mine, theirs, strict=True)):
                return max(1, r) if r > 1 else 1
    return count


#: One tensor that is read: ("in", steps back, unit of the pattern, side, node, output), or ("out", id).
Read = tuple[object, ...]


def _reads(unit: _LayerNodes, where: dict[int, Place], start: int, size: int) -> list[Read]:
    """What a unit reads, relative to the repetition that starts at unit ``start``."""
    reads: list[Read] = []
    for side in (_AHEAD, _BACK):
        for node in unit.nodes[side]:
            for t in node.inputs:
                reads.append(_relative(t.storage, where, start, size))
    return reads


def _relative(t: Tensor, where: dict[int, Place], start: int, size: int) -> Read:
    place = where.get(id(t))
    if place == _OWN or (place is None and t.role == WEIGHT):
        return ("own", t.shape, t.dtype)
    if place is None:
        return ("out", id(t))
    u, side, k, o = place
    step = (start - u + size - 1) // size if u < start else -((u - start) // size)
    if abs(step) <= 1:
        return ("in", step, u - start + step * size, side, k, o)
    return ("out", id(t))


def _alike(mine: Read, theirs: Read, r: int, count: int) -> bool:
    """Whether repetition ``r`` reads the like of what the second one reads: the first has its carried tensors from
    outside, and the last its gradients."""
    if mine == theirs:
        return True
    if theirs[0] == "in" and theirs[1] == 1:
        return r == 0
    if theirs[0] == "in" and theirs[1] == -1:
        return r == count - 1
    if r == count - 1 and mine[0] == "in" and mine[1] == -1:
        return False
    return count == 2 and r == 0 and mine[0] == "in" and mine[1] == -1


class _BlockWriter:
    """Writes the blocks: forward, then backward in the order in which they ran."""

    def __init__(self, units: list[_LayerNodes], order: list[int], groups: list[tuple[int, int, int]]) -> None:
        self.units = units
        self.order = order
        self.groups = groups
        self.where = _places(units)
        self.group_of = {u: g for g, (i, size, n) in enumerate(groups) for u in range(i, i + size * n)}
        self.stands: dict[int, Tensor] = {}
        self.views: dict[tuple[int, int], Tensor] = {}

    def graph(self) -> Graph:
        """The whole."""
        for g, (_, _, count) in enumerate(self.groups):
            if count > 1:
                self._stand_in(g)
        blocks: list[Block] = []
        place: dict[int, int] = {}  # by unit, the block
        for g, (i, size, count) in enumerate(self.groups):
            made = self._block(g, _AHEAD)
            if count == 1 and blocks and blocks[-1].repeat == 1 and i and self.groups[g - 1][2] == 1:
                blocks[-1] = _merged(blocks[-1], made)
            else:
                blocks.append(made)
            place.update(dict.fromkeys(range(i, i + size * count), len(blocks) - 1))
        done: set[int] = set()
        for u in self.order:
            g = self.group_of[u]
            if g in done:
                continue
            if self.groups[g][2] > 1:
                done.add(g)
            made = self._block(g, _BACK)
            at = place[u]
            last = blocks[-1]
            if self.groups[g][2] == 1 and last.backward_of == at and last.repeat == 1:
                blocks[-1] = _merged(last, made)
            else:
                blocks.append(Block(made.name, made.nodes, made.repeat, made.carried, made.layers, at, made.running))
            done.add(g)
        empty = [b for b, block in enumerate(blocks) if not block.nodes and block.backward_of is None]
        if not empty:
            return Graph(tuple(blocks), recorded=True)
        return _without(blocks, set(empty))

    def _stand_in(self, g: int) -> None:
        """Tensors that repetitions of a group make are those of the one that stands for all: the first ahead, and the
        last, which comes first, back."""
        first, size, count = self.groups[g]
        for r in range(count):
            for j in range(size):
                for side, kept in ((_AHEAD, 0), (_BACK, count - 1)):
                    here = self.units[first + r * size + j].nodes[side]
                    there = self.units[first + kept * size + j].nodes[side]
                    for mine, theirs in zip(here, there, strict=True):
                        for a, b in zip(mine.outputs, theirs.outputs, strict=True):
                            if a is not b:
                                self.stands[id(a)] = b

    def _block(self, g: int, side: int) -> Block:
        first, size, count = self.groups[g]
        if count == 1:
            unit = self.units[first]
            nodes = tuple(self._node(n, {}, "") for n in unit.nodes[side])
            return Block(_title(unit.path, nodes, side), nodes)
        kept, other = (0, 1) if side == _AHEAD else (count - 1, count - 2)
        pairs: dict[int, tuple[Tensor, Tensor]] = {}
        nodes_: list[Node] = []
        units = range(size) if side == _AHEAD else range(size - 1, -1, -1)
        for j in units:
            mine = self.units[first + kept * size + j]
            for n, like in zip(mine.nodes[side], self.units[first + other * size + j].nodes[side], strict=True):
                stands: dict[int, Tensor] = {}
                for t, theirs in zip(n.inputs, like.inputs, strict=True):
                    self._carried(t.storage, theirs.storage, g, side, stands, pairs)
                nodes_.append(self._node(n, stands, mine.path))
        ordered = sorted(pairs.values(), key=lambda pair: -pair[0].nbytes)
        path = self.units[first].path
        name = path.rpartition(".")[0] or path
        layers = () if side == _BACK else tuple(
            int(self.units[first + r * size].path.rpartition(".")[2]) for r in range(count)
        )  # fmt: skip
        return Block(
            name if side == _AHEAD else f"{name} backward", tuple(nodes_), count, ordered[0] if ordered else None,
            layers, None, tuple(ordered[1:]),
        )  # fmt: skip

    def _carried(
        self, t: Tensor, theirs: Tensor, g: int, side: int, stands: dict[int, Tensor],
        pairs: dict[int, tuple[Tensor, Tensor]],
    ) -> None:  # fmt: skip
        """What a run gets from the run before it: the tensor that the first run has from outside, and the one that
        every run makes."""
        first, size, count = self.groups[g]
        kept, other = (0, 1) if side == _AHEAD else (count - 1, count - 2)
        place, ours = self.where.get(id(theirs)), self.where.get(id(t))
        end = first + size * count
        if place is not None and first <= place[0] < end and place[1] == side:
            run = (place[0] - first) // size
            if run == kept and run != other:  # the other run has it from the one that stands for all
                made = self.stands.get(id(theirs), theirs)
                start = self.stands.get(id(t), t)
                pairs.setdefault(id(start), (start, made))
        if side == _BACK and ours is not None and ours[1] == _AHEAD and first <= ours[0] < end - size:
            begin = self._start_of(g, t)  # the input of the forward run, saved
            if begin is not None:
                stands[id(t)] = begin

    def _start_of(self, g: int, theirs: Tensor) -> Tensor | None:
        """What the first forward run reads where a later one reads ``theirs``, which the run before it made."""
        first, size, count = self.groups[g]
        u = self.where[id(theirs)][0]
        r = (u - first) // size + 1
        if r >= count:
            return None
        for j in range(size):
            for mine, later in zip(
                self.units[first + j].nodes[_AHEAD], self.units[first + r * size + j].nodes[_AHEAD], strict=True
            ):
                for a, b in zip(mine.inputs, later.inputs, strict=True):
                    if b.storage is theirs:
                        return a.storage
        return None

    def _node(self, node: Node, stands: dict[int, Tensor], path: str) -> Node:
        scope, name = node.scope, node.name
        if path:
            scope, name = scope[len(path) + 1 :], name[len(path) :].lstrip(". ")
        inputs = tuple(self._tensor(t, stands) for t in node.inputs)
        return Node(
            node.op, name, inputs, node.outputs, node.count, node.phase, node.host_calls, node.share, node.part, scope
        )

    def _tensor(self, t: Tensor, stands: dict[int, Tensor]) -> Tensor:
        storage = t.storage
        stand_in = stands.get(id(storage)) or self.stands.get(id(storage))
        if stand_in is None:
            return t
        if t is storage:
            return stand_in
        key = (id(t), id(stand_in))
        if key not in self.views:
            self.views[key] = t.copied(stand_in)
        return self.views[key]


def _title(path: str, nodes: Sequence[Node], side: int) -> str:
    name = path or next((n.scope.split(".")[0] for n in nodes if n.scope), "") or "model"
    return f"{name} backward" if side == _BACK else name


def _merged(first: Block, second: Block) -> Block:
    return Block(first.name, (*first.nodes, *second.nodes), 1, None, (), first.backward_of)


def _without(blocks: list[Block], empty: set[int]) -> Graph:
    """The blocks without the ``empty`` ones, whose backward passes then belong to the block before."""
    place: dict[int, int] = {}
    kept: list[Block] = []
    for b, block in enumerate(blocks):
        if b in empty:
            place[b] = max(0, len(kept) - 1)
            continue
        place[b] = len(kept)
        kept.append(block)
    return Graph(tuple(
        block if block.backward_of is None else Block(
            block.name, block.nodes, block.repeat, block.carried, block.layers, place[block.backward_of], block.running
        )
        for block in kept
    ), recorded=True)  # fmt: skip
