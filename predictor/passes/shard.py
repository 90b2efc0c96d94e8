"""The graph of one rank of a mesh: local tensors and operators, and collectives where partial sums meet.

Rules map logical axes to axes of the mesh, as {"mlp": "tp"}: a tensor that has such an axis is split there. An operator
says by itself what it is on local tensors (`Op.local`). A result is a partial sum over an axis of the mesh that splits
what it was made of, but not itself: a product contracts it, a look-up is indexed along it. A sum of partial sums
is one again (`Op.stays_partial`); before anything else reads one, an all_reduce makes it whole, directly after the node
that made it. So it is for gradients as well, which have the axes of their tensors. What the graph gives in the end is
gathered, unless it is split into samples.

Soft rules split what no rule splits, along the same axis of the mesh: sequences, outside of what tensor parallelism
splits. A node that reads one of each gathers the softly split one first, once a block; a partial sum that is to be
softly split is reduce_scattered. What is summed over softly split tokens into a weight's gradient stays a partial sum:
it is reduced once a step, with the other gradients.

Sizes that a degree does not divide are rounded up: vocabularies are padded, and ranks that outnumber the heads of keys
and values have a copy of one each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from predictor.errors import RequestError
from predictor.files.records import replace
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import ACTIVATION, GRADIENT, WEIGHT, Tensor, View
from predictor.ops.base import BACKWARD, FORWARD, Piece
from predictor.ops.elementwise import Elementwise
from predictor.passes.layout import Cut, Layout, Rules, layout_of
from predictor.passes.mesh import Mesh

#: Axes along which results of different ranks may stay apart: each has samples of its own.
SAMPLES = ("batch", "sequence", "tokens")
#: What a collective is called after, where that is not the first word of the node that made its operand.
_CALLED = {"experts": "mlp", "shared": "mlp", "token": "embedding", "lm": "logits"}


def shard(graph: Graph, mesh: Mesh, rules: Rules, soft: Rules = MappingProxyType({})) -> Graph:
    """``graph`` as one rank of ``mesh`` runs it. What no rule splits stays the same object, a graph of which none
    splits anything, too. ``soft``: rules for tensors that no other rule splits over that axis of the mesh.

    Raises RequestError, one line, where rules split a tensor twice over one axis of the mesh, and UnsupportedError for
    an operator that does not say what it is on a part.
    """
    layout = layout_of(mesh.axes, tuple(rules.items()), tuple(soft.items()))
    return _RankGraph(mesh, layout).graph(graph) if layout.degrees else graph


def local_size(mesh: Mesh | None, rules: Rules) -> Callable[[str, int], int]:
    """A function of (logical axis, size) that gives what a rank has of an axis."""
    if mesh is None:
        return _whole_size
    degrees = {axis: mesh.degree(to) for axis, to in rules.items()}
    return lambda axis, size: -(-size // degrees.get(axis, 1))


def _whole_size(axis: str, size: int) -> int:
    return size


_UNSPLIT: Mapping[str, tuple[int, int]] = MappingProxyType({})


class _Made:
    """Where a node stands that made a tensor to be joined over ranks: what is to follow in its block, after it."""

    __slots__ = ("after", "index", "kept", "node", "over", "partial", "piece")

    def __init__(
        self, after: dict[int, list[Node]], index: int, node: Node, piece: Piece, over: tuple[str, ...], partial: Tensor
    ) -> None:
        self.after = after
        self.index = index
        self.node = node
        self.piece = piece
        self.over = over
        #: what the node makes in place of the whole sum
        self.partial = partial
        #: whether a sum of partial sums has read it as it is
        self.kept = False


class _RankGraph:
    """One rank's graph in the making; tensors are known by their ids."""

    def __init__(self, mesh: Mesh, layout: Layout) -> None:
        self.mesh = mesh
        self.layout = layout
        self.cuts = layout.known
        self.pieces: dict[int, Piece] = {}
        #: of softly split tensors, what there is of them where they are gathered, and the gathered ones of a block
        self.wholes: dict[int, Piece] = {}
        #: by id of a tensor in 8 bits, that of the one which was quantized: for several products, it is one
        self.narrowed: dict[int, int] = {}
        self.gathered: dict[tuple[int, tuple[int, ...], bool], Tensor] = {}
        self.partial: dict[int, _Made] = {}
        #: split results that nothing has read yet
        self.unread: dict[int, _Made] = {}

    def graph(self, graph: Graph) -> Graph:
        of_blocks = [self._nodes(block) for block in graph.blocks]
        for made in self.unread.values():
            self._gather(made)
        if all(nodes is None for nodes, _ in of_blocks):
            return graph
        blocks = [self._block(block, *of_block) for block, of_block in zip(graph.blocks, of_blocks, strict=True)]
        return replace(graph, blocks=tuple(blocks))

    def _block(self, block: Block, nodes: list[Node] | None, after: dict[int, list[Node]]) -> Block:
        if nodes is None:
            return block
        if after:
            nodes = [*after.get(-1, ()), *(new for i, node in enumerate(nodes) for new in (node, *after.get(i, ())))]
        carried = self._pair(block.carried) if block.carried else None
        return replace(block, nodes=tuple(nodes), carried=carried, running=tuple(map(self._pair, block.running)))

    def _nodes(self, block: Block) -> tuple[list[Node] | None, dict[int, list[Node]]]:
        """The nodes of a block on this rank, None where they are the block's own, and the collectives that follow
        them."""
        nodes: list[Node] = []
        after: dict[int, list[Node]] = {}
        known, cut, partial, unread = self.pieces.get, self._cut, self.partial, self.unread
        if block.nodes[0].phase == FORWARD:
            unread.clear()  # what ends before the last block is no result of the graph
        made: list[_Made] = []
        changed = False
        self.gathered.clear()
        for i, node in enumerate(block.nodes):
            if self.layout.soft and (on_ranks := self._mixed(node, i, after)) is not None:
                changed = True
                self._among_ranks(on_ranks, i, after, made)
                nodes.append(on_ranks[0])
                continue
            if self.layout.soft and isinstance(node.op, Elementwise) and node.op.fn == "quantize":
                self.narrowed[id(node.outputs[0])] = id(node.inputs[0].storage)
            inputs: list[Piece] = []
            read: list[Tensor] = []
            split: tuple[str, ...] = ()  # axes of the mesh that split what it reads
            for t in node.inputs:
                piece = known(id(t)) or cut(t)
                inputs.append(piece)
                read.append(piece.local)
                if piece.over:
                    if piece.over is not split:
                        split = _union(split, piece.over)
                    if unread:
                        unread.pop(id(t.storage), None)
            summed = self._summed(node) if partial else ()
            for j, sum_ in summed:
                split = _union(split, sum_.over)
                read[j] = sum_.partial if node.inputs[j] is sum_.piece.whole else read[j].copied(sum_.partial)
            outputs: list[Piece] = []
            results: list[Tensor] = []
            any_split = bool(split)
            for j, t in enumerate(node.outputs):
                piece = known(id(t)) or cut(t)
                outputs.append(piece)
                over, result = piece.over, piece.local
                of = node.op.made_of(j) if split else None
                mixed = split if of is None else _union((), *(inputs[place].over for place in of))
                if mixed and node.phase == BACKWARD and self.layout.soft and not any(a in SAMPLES for a in t.axes):
                    mixed = tuple(axis for axis in mixed if not self._of_tokens(inputs, axis))
                if mixed and mixed is not over and (lacking := tuple(axis for axis in mixed if axis not in over)):
                    result = result.copied()
                    sum_ = partial[id(t)] = _Made(after, i, node, piece, lacking, result)
                    made.append(sum_)
                elif over:
                    any_split = True
                    if node.phase == FORWARD and t.role == ACTIVATION and not _for_backward(node, j):
                        unread[id(t)] = _Made(after, i, node, piece, over, result)
                results.append(result)
            if not any_split:
                nodes.append(node)
                continue
            changed = True
            op = node.op
            if len(summed) < len(inputs) or any(piece.over for piece in (*inputs, *outputs)):
                op = op.local(inputs, outputs)
            new = Node(
                op, node.name, tuple(read), tuple(results), node.count, node.phase, node.host_calls, node.share,
                node.part, node.scope,
            )  # fmt: skip
            nodes.append(new)
        if made:
            pairs = (block.carried, *block.running) if block.carried else block.running
            handed = {id(pair[1].storage) for pair in pairs}
            for sum_ in made:
                key = id(sum_.piece.whole)
                if key in self.partial and (key in handed or not sum_.kept):
                    self._reduce(self.partial.pop(key))
        return nodes if changed else None, after

    def _of_tokens(self, inputs: list[Piece], axis: str) -> bool:
        """Whether ``axis`` splits operands by their samples alone: what is summed of them is a weight's gradient."""
        return all(
            name in SAMPLES
            for piece in inputs
            for name, over in zip(piece.split, piece.over, strict=True)
            if over == axis
        )

    def _soft(self, t: Tensor) -> Cut | None:
        """The cut of a tensor that is softly split; None where it is not."""
        cuts = self.cuts.get(t.axes)
        if cuts is None:
            cuts = self.layout.cuts(t.axes)
        return cuts[-1] if cuts and cuts[-1].soft else None

    def _mixed(
        self, node: Node, i: int, after: dict[int, list[Node]]
    ) -> tuple[Node, list[Piece], tuple[str, ...], bool] | None:
        """The node on this rank, the pieces of its results, what its operands are split over, and whether they are
        partial sums that it adds up, where operands are softly split, or to be, and others split by the rules; it reads
        the former gathered, by nodes that run before it. None for a node that does not mix them."""
        soft = [self._soft(t) for t in node.inputs]
        over = {cut.over[0] for cut in soft if cut is not None}
        over |= {cut.over[0] for t in node.outputs if (cut := self._soft(t)) is not None}
        if not over:
            return None
        summed = dict(self._summed(node)) if self.partial else {}
        pieces = [self.pieces.get(id(t)) or self._cut(t) for t in node.inputs]
        hard = _union((), *(p.over for p, cut in zip(pieces, soft, strict=True) if cut is None))
        hard = _union(hard, *(made.over for made in summed.values()))
        if not over & set(hard):
            return None
        read: list[Tensor] = []
        for j, (t, cut) in enumerate(zip(node.inputs, soft, strict=True)):
            self.unread.pop(id(t.storage), None)
            whole = pieces[j] if cut is None or cut.over[0] not in hard else self._whole(t)
            if j in summed:
                made = summed[j]
                read.append(made.partial if t is made.piece.whole else whole.local.copied(made.partial))
            elif whole is pieces[j]:
                read.append(whole.local)
            else:
                read.append(self._gathered(t, whole, pieces[j], node, i, after))
            pieces[j] = whole
        outputs = [self._whole(t) if (c := self._soft(t)) and c.over[0] in hard else
                   self.pieces.get(id(t)) or self._cut(t) for t in node.outputs]  # fmt: skip
        results = tuple(piece.local for piece in outputs)
        op = node.op.local(pieces, outputs)
        return replace(node, op=op, inputs=tuple(read), outputs=results), outputs, hard, bool(summed)

    def _gathered(
        self, t: Tensor, whole: Piece, piece: Piece, node: Node, i: int, after: dict[int, list[Node]]
    ) -> Tensor:
        """A softly split tensor on every rank: gathered once a block, before the ``node`` at place ``i``; for gradients
        anew, as what was gathered is not saved."""
        key = (self.narrowed.get(id(t.storage), id(t.storage)), t.shape, any(o.role == GRADIENT for o in node.outputs))
        if key not in self.gathered:
            cut = self._soft(t)
            assert cut is not None
            out = Tensor(t.name, t.axes, whole.local.shape, t.dtype, t.role, t.segments)
            op = self.mesh.collective("all_gather", cut.over[0], t.dtype, round(out.nbytes))
            first = node.name.split(" ", 1)[0]
            name = f"{_CALLED.get(first, first)} all_gather"
            made = Node(op, name, (piece.local,), (out,), 1, node.phase, scope=f"{node.name} all_gather")
            after.setdefault(i - 1, []).append(made)
            self.gathered[key] = out
        return self.gathered[key]

    def _among_ranks(
        self, mixed: tuple[Node, list[Piece], tuple[str, ...], bool], i: int, after: dict[int, list[Node]],
        made: list[_Made],
    ) -> None:  # fmt: skip
        """Notes the results of a mixed node that are partial sums: what reads them has them made whole, each on the
        rank that has its tokens where they are softly split, else on all."""
        node, outputs, hard, sums = mixed
        results = list(node.outputs)
        for j, piece in enumerate(outputs):
            of = node.op.made_of(j)
            lacking = tuple(axis for axis in hard if axis not in piece.over)
            if not lacking or not (sums or of is None or any(node.inputs[p].role == WEIGHT for p in of)):
                continue
            results[j] = piece.local.copied()
            entry = self.partial[id(piece.whole)] = _Made(after, i, node, piece, lacking, results[j])
            made.append(entry)
        node.outputs = tuple(results)

    def _whole(self, t: Tensor) -> Piece:
        """A softly split tensor where it is gathered, or not yet summed."""
        piece = self.wholes.get(id(t))
        if piece is None:
            cut = self._soft(t)
            present = self.pieces.get(id(t)) or self._cut(t)
            assert cut is not None
            shape = (*present.local.shape[: cut.place], t.shape[cut.place], *present.local.shape[cut.place + 1 :])
            split = {name: sizes for name, sizes in present.split.items() if name != cut.name}
            over = tuple(axis for axis in present.over if axis != cut.over[0])
            local = t if shape == t.shape and not over else Tensor(t.name, t.axes, shape, t.dtype, t.role, t.segments)
            piece = self.wholes[id(t)] = Piece(t, local, split, over)
        return piece

    def _summed(self, node: Node) -> list[tuple[int, _Made]]:
        """The inputs of a node that are partial sums and stay so in its result; others are made whole before it."""
        sums = [
            (j, made)
            for j, t in enumerate(node.inputs)
            if (made := self.partial.get(id(t) if t.base is None else id(t.storage))) is not None
        ]
        if not sums:
            return sums
        partial = [False] * len(node.inputs)
        for j, made in sums:
            partial[j] = made.over == sums[0][1].over and node.inputs[j].depth <= 1
        if all(partial[j] for j, _ in sums) and node.op.stays_partial(partial):
            for _, made in sums:
                made.kept = True
            return sums
        for _, made in sums:
            if self.partial.pop(id(made.piece.whole), None) is not None:
                self._reduce(made)
        return []

    def _reduce(self, made: _Made) -> None:
        """The all_reduce of a partial sum, an axis of the mesh after the other."""
        x, t = made.partial, made.piece.whole
        cut = self._soft(t) if self.layout.soft else None
        whole = (self.pieces.get(id(t)) or self._cut(t)).local if cut is not None else made.piece.local
        for axis in made.over:
            scattered = cut is not None and axis == cut.over[0]
            out = whole if axis == made.over[-1] else whole.copied()
            self._join(made, "reduce_scatter" if scattered else "all_reduce", axis, x, out)
            x = out

    def _gather(self, made: _Made) -> None:
        """The all_gather of a result, an axis after the other; padding stays."""
        x = made.partial
        for place, name, _, _, (axis,), _ in reversed(self.cuts[x.axes]):
            if name in made.piece.split and name not in SAMPLES:
                shape = (*x.shape[:place], x.shape[place] * self.mesh.degree(axis), *x.shape[place + 1 :])
                out = Tensor(x.name, x.axes, shape, x.dtype)
                self._join(made, "all_gather", axis, x, out)
                x = out

    def _join(self, made: _Made, kind: str, axis: str, x: Tensor, out: Tensor) -> None:
        node = made.node
        op = self.mesh.collective(kind, axis, out.dtype, round(max(x.nbytes, out.nbytes)))
        first = node.name.split(" ", 1)[0]
        name = f"{_CALLED.get(first, first)} {kind}"
        count = max(1, node.count // len(node.outputs))
        new = Node(op, name, (x,), (out,), count, node.phase, scope=name)
        made.after.setdefault(made.index, []).append(new)

    def _pair(self, tensors: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        first, last = (self.pieces.get(id(t)) or self._cut(t) for t in tensors)
        return first.local, last.local

    def _cut(self, t: Tensor) -> Piece:
        """What this rank has of a tensor that it meets for the first time."""
        axes, base = t.axes, t.base
        cuts = self.cuts.get(axes)
        if cuts is None:
            cuts = self.layout.cuts(axes)
        under = None
        if base is not None:
            under = (self.pieces.get(id(base)) or self._cut(base)).local
            if under is base:
                under = None
        shape, segments, split = t.shape, t.segments, _UNSPLIT
        over: tuple[str, ...] = ()
        for place, name, degrees, degree, axis, _ in cuts:
            size = shape[place]
            if segments and name in segments:
                parts = tuple((-(-n // d), width) for (n, width), d in zip(segments[name], degrees, strict=True))
                part = sum(n * width for n, width in parts)
                segments = {**segments, name: parts}
            elif degree:
                part = -(-size // degree)
            else:
                raise RequestError(f"{t!r}: expected segments of {name!r}, of which rules split some")
            if part != size:
                shape = (*shape[:place], part, *shape[place + 1 :])
                split = {**split, name: (part, size)} if over else {name: (part, size)}
                over = (*over, *axis) if over else axis
        if not over and under is None:
            piece = self.pieces[id(t)] = Piece(t, t, _UNSPLIT, over)
            return piece
        if base is None:
            local = Tensor(t.name, axes, shape, t.dtype, t.role, segments)
        else:
            local = View(under or base, axes, shape, t.role, t.gradient, t.part, t.at, segments)
        piece = self.pieces[id(t)] = Piece(t, local, split, over)
        return piece


def _for_backward(node: Node, output: int) -> bool:
    """Whether an output is what the node keeps for its backward pass alone, which nobody else reads."""
    kept = node.op.kept()
    if not kept or node.outputs[-1].name != f"{node.name} {kept[-1].name}":
        return False
    return output >= len(node.outputs) - len(kept)


def _union(axes: tuple[str, ...], *others: tuple[str, ...]) -> tuple[str, ...]:
    for more in others:
        axes = (*axes, *(axis for axis in more if axis not in axes)) if axes else more
    return axes
