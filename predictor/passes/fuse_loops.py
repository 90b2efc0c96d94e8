"""A recorded graph as a compiler (TorchInductor) would run it: element-wise kernels and reductions in chains are one.

What Inductor does, of it what decides the number of kernels (torch/_inductor/scheduler.py, lowering.py):

- Products, convolutions and fused attention are calls of libraries; nothing is fused into them. Attention that is
  written out is fused first (`predictor.passes.fuse_attention`), and layouts are chosen (`channels_last`).
- All else is a loop over an iteration space: the elements of the result, or of what a reduction reads. Loops over one
  space fuse where one reads what another makes, and where two read the same, unless something between them needs the
  first and is needed by the second. What works on a reduction's results alone (rows) fuses with it.
- Constants are no kernels, and what nothing outside a kernel reads is not written.

What its partitioner recomputes in the backward pass in place of saving it is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from predictor.engines import Engine
from predictor.files.records import replace
from predictor.graph.graph import Block, Graph, Node
from predictor.ops.base import COMPUTE, FORWARD, Op
from predictor.ops.channel_norm import ChannelNorm
from predictor.ops.elementwise import Dropout, Elementwise, Reduce, Rotary
from predictor.ops.embedding import CrossEntropy, Embedding
from predictor.ops.norm import Norm, Softmax
from predictor.ops.ordering import Index
from predictor.ops.resample import Interpolate, Pool
from predictor.passes.channels_last import with_channels_last
from predictor.passes.fuse_attention import with_attention
from predictor.passes.fuse_edges import Fusion
from predictor.passes.fuse_products import quantizes, without_quantizing
from predictor.passes.serve_recorded import as_served, with_static_cache

#: Kernels that are loops, and those among them that reduce rows. Source: torch/_inductor/lowering.py (what is lowered
#: to Pointwise and Reduction; scatters are loops, too, but their results are not read in the same kernel).
_LOOPS = (Elementwise, Dropout, Rotary, Reduce, Norm, Softmax, CrossEntropy, ChannelNorm, Index, Pool, Interpolate)
_REDUCING = (Reduce, Norm, Softmax, CrossEntropy, ChannelNorm)
#: Nodes of one kernel at most. Source: max_fusion_size of torch/_inductor/config.py.
_LARGEST = 64
#: Groups that are looked at for one that reads the same: a guard against long blocks, chosen by hand, not from data.
_NEAR = 32


def fuse_loops(graph: Graph, engine: Engine, attention: str = "flash") -> Graph:
    """``graph`` in fused kernels; itself where ``engine`` fuses nothing. With ``attention`` "math" what a
    model writes out stays so, as in releases whose patterns did not fit it."""
    if not engine.fuses:
        return graph
    graph = _products_quantize(graph, engine)
    if not engine.serves:
        graph = with_channels_last(graph)
    if not any(block.backward_of is not None for block in graph.blocks):
        graph = as_served(graph, engine) if engine.serves else with_static_cache(graph, engine)
    readers = _readers(graph)
    blocks = tuple(with_attention(block, readers) if attention == "flash" else block for block in graph.blocks)
    if any(new is not old for new, old in zip(blocks, graph.blocks, strict=True)):
        readers = _readers(replace(graph, blocks=blocks))
    return replace(graph, blocks=tuple(_fused(block, readers) for block in blocks), fused=True)


def _products_quantize(graph: Graph, engine: Engine) -> Graph:
    """``graph`` without the kernels that quantize the input of a product, which the product's own call does."""
    if not any(quantizes(node) for block in graph.blocks for node in block.nodes):
        return graph
    on = Fusion(engine)
    blocks = []
    for block in graph.blocks:
        nodes = without_quantizing(block.nodes, on)
        blocks.append(replace(block, nodes=tuple(on.kept(node) for node in nodes)))
    return replace(graph, blocks=tuple(blocks))


def _readers(graph: Graph) -> dict[int, set[tuple[int, int]]]:
    """By id of a storage, the nodes that read it: (block, place)."""
    readers: dict[int, set[tuple[int, int]]] = {}
    for b, block in enumerate(graph.blocks):
        for i, node in enumerate(block.nodes):
            for t in node.inputs:
                readers.setdefault(id(t.storage), set()).add((b, i))
        for pair in (block.carried, block.branch, *block.running):
            for t in pair or ():
                readers.setdefault(id(t.storage), set()).add((b, -1))
    return readers


def _fused(block: Block, readers: dict[int, set[tuple[int, int]]]) -> Block:
    groups: list[_Group] = []
    maker: dict[int, _Group] = {}
    for place, node in enumerate(block.nodes):
        if _constant(node.op) and not node.inputs:
            continue
        needs = {g.place: g for g in (maker.get(id(t.storage)) for t in node.inputs) if g is not None}
        group = _home(node, needs, groups)
        if group is None:
            group = _Group(len(groups), place)
            groups.append(group)
        group.nodes.append(node)
        group.places.add(place)
        group.last = place
        group.needs |= {k: g for k, g in needs.items() if g is not group}
        for t in node.outputs:
            maker[id(t.storage)] = group
    return replace(block, nodes=tuple(group.kernel(readers) for group in _in_order(groups)))


def _constant(op: Op) -> bool:
    return isinstance(op, Elementwise) and op.fn == "fill"


class _Group:
    """Nodes that are one kernel. ``needs``: by place, the groups whose results it reads; ``places`` of its nodes in the
    block, ``first`` and ``last``."""

    __slots__ = ("first", "last", "needs", "nodes", "place", "places")

    def __init__(self, place: int, first: int) -> None:
        self.place = place
        self.first = self.last = first
        self.nodes: list[Node] = []
        self.places: set[int] = set()
        self.needs: dict[int, _Group] = {}

    @property
    def loops(self) -> bool:
        return is_loop(self.nodes[0])

    @property
    def space(self) -> int:
        return max(_space(node) for node in self.nodes)

    @property
    def rows(self) -> set[int]:
        """Results of its reductions: spaces that fuse with them."""
        return {node.outputs[0].elements for node in self.nodes if isinstance(node.op, _REDUCING) and node.outputs}

    def kernel(self, readers: dict[int, set[tuple[int, int]]]) -> Node:
        """The node of the kernel; the first one itself where it is alone, in a loop that knows where elements lie."""
        first, last = self.nodes[0], self.nodes[-1]
        if len(self.nodes) == 1:
            alone = isinstance(first.op, Elementwise) and first.op.offsets
            return replace(first, op=replace(first.op, offsets=False)) if alone else first  # type: ignore[call-arg]
        made = {id(t.storage): t for node in self.nodes for t in node.outputs}
        read = {id(t.storage): t for node in self.nodes for t in node.inputs if id(t.storage) not in made}
        outputs = [t for key, t in made.items() if _outside(readers.get(key, set()), self.places)]
        outputs = outputs or list(made.values())[-1:]
        whole = max(outputs, key=lambda t: t.nbytes)
        moved = _bytes_read(self.nodes, set(made)) + sum(t.nbytes for t in outputs) - whole.nbytes
        flops = sum(node.op.flops() for node in self.nodes)
        n = max(whole.elements, 1)
        op = Elementwise(whole.dtype, "fused", n, 0, float(moved), chain_flops=flops / n)
        return Node(
            op, _title(self.nodes), tuple(read.values()), tuple(outputs), first.count, first.phase, 1, first.share,
            first.part, last.scope,
        )  # fmt: skip


def _bytes_read(nodes: Sequence[Node], made: set[int]) -> float:
    """Bytes that a kernel of ``nodes`` reads of what is not ``made`` in it: of a table the rows that are picked, of any
    other tensor the parts that are read, each once and all of it at most."""
    parts: dict[int, dict[int, float]] = {}  # by id of a storage: by id of a part of it, bytes
    whole: dict[int, float] = {}
    for node in nodes:
        op = node.op
        for place, t in enumerate(node.inputs):
            key = id(t.storage)
            if key in made:
                continue
            table = place == 0 and (isinstance(op, Embedding) or (isinstance(op, Index) and op.kind == "gather"))
            rows = min(op.tokens, op.vocab) if isinstance(op, Embedding) else 0
            rows = min(op.rows, op.table) if isinstance(op, Index) else rows
            size = float(rows * op.width * op.itemsize) if table else t.nbytes  # type: ignore[attr-defined]
            of = parts.setdefault(key, {})
            of[id(t)] = max(of.get(id(t), 0.0), size)
            whole[key] = t.storage.nbytes
    return sum(min(sum(of.values()), whole[key]) for key, of in parts.items())


def _outside(places: set[tuple[int, int]], inside: set[int]) -> bool:
    """Whether a tensor is read outside a group, or by nobody. Readers of other blocks cannot be told from its own."""
    return not places or len({b for b, _ in places}) > 1 or any(place not in inside for _, place in places)


def _title(nodes: Sequence[Node]) -> str:
    names = list(dict.fromkeys(node.name.split()[-1] for node in nodes))
    shown = " ".join(names[:3]) + (" ..." if len(names) > 3 else "")
    return f"{nodes[-1].scope} fused {shown}".strip()


def _space(node: Node) -> int:
    """Elements of the loop: those that a reduction reads, else those of the result."""
    op = node.op
    if isinstance(op, (Reduce, Norm, Softmax, CrossEntropy)):
        return op.rows * (op.vocab if isinstance(op, CrossEntropy) else op.cols)
    if isinstance(op, (Elementwise, Dropout, Index, ChannelNorm, Pool, Interpolate)):
        return op.elements
    return node.outputs[0].elements if node.outputs else 0


def _home(node: Node, needs: dict[int, _Group], groups: Sequence[_Group]) -> _Group | None:
    """The group that a node joins: one whose results it reads, else one that reads what it reads."""
    if not is_loop(node) or node.count != 1:
        return None
    tried = dict(sorted(needs.items(), reverse=True))
    read = {id(t) for t in node.inputs}  # the same part of it: slices of one tensor are not read together
    for group in groups[: -_NEAR - 1 : -1]:
        if group.place not in tried and any(id(t) in read for n in group.nodes for t in n.inputs):
            tried[group.place] = group
    for group in tried.values():
        if _joins(node, group, needs):
            return group
    return None


def is_loop(node: Node) -> bool:
    """Whether a node is a loop that a compiler writes, no call of a library."""
    op = node.op
    if isinstance(op, Embedding):
        return op.phase == FORWARD
    return isinstance(op, _LOOPS) and op.stream == COMPUTE


def _joins(node: Node, group: _Group, needs: dict[int, _Group]) -> bool:
    first = group.nodes[0]
    if not group.loops or len(group.nodes) >= _LARGEST or first.count != 1 or first.phase != node.phase:
        return False
    if any(_depends(need, group) for need in needs.values() if need is not group):
        return False
    if not node.outputs and not any(each.outputs for each in group.nodes):
        return False  # nothing says what a kernel of both would write
    space = _space(node)
    if space in group.rows:
        return True
    if space > group.space and group.place in needs and not group.rows and not isinstance(node.op, _REDUCING):
        return True  # a table that is broadcast, or parts that are joined: made anew where they are read
    down = isinstance(node.op, Reduce) and node.op.axis == 0  # a sum down the columns: its loop is not that of rows
    return space == group.space and not (down and group.rows)


def _depends(group: _Group, on: _Group) -> bool:
    """Whether ``group`` has to wait for ``on``; what ended before that began cannot."""
    seen: set[int] = set()
    waiting = [group]
    while waiting:
        before = waiting.pop()
        if before is on:
            return True
        if before.place not in seen and before.last >= on.first:
            seen.add(before.place)
            waiting += before.needs.values()
    return False


def _in_order(groups: Sequence[_Group]) -> list[_Group]:
    """Groups with what they need before them, otherwise as they came."""
    left = {g.place: len(g.needs) for g in groups}
    feeds: dict[int, list[_Group]] = {}
    for g in groups:
        for place in g.needs:
            feeds.setdefault(place, []).append(g)
    ready = [g.place for g in groups if not left[g.place]]
    ordered: list[_Group] = []
    while ready:
        group = groups[heappop(ready)]
        ordered.append(group)
        for later in feeds.get(group.place, ()):
            left[later.place] -= 1
            if not left[later.place]:
                heappush(ready, later.place)
    return ordered
