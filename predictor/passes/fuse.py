"""What an engine or a compiler runs as one kernel, in place of the operators of eager PyTorch.

Two kinds of rules. A module's nodes (one `Node.scope`, whose last word says what kind of module it is) become one
operator. By the edges: a norm does the residual sum that it reads, and linear layers of one module that read the same
tensor in the same format are one product. Which of them hold is told by the fields of an engine
(`predictor.engines.base.Engine`).
"""

from __future__ import annotations

from collections.abc import Callable

from predictor.engines import Engine
from predictor.files.records import replace
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import Tensor
from predictor.ops.attention import Attention
from predictor.ops.base import BACKWARD, COMPUTE
from predictor.ops.gemm import Gemm
from predictor.passes.autograd import with_kept
from predictor.passes.fuse_attention import cache, core, qkv, rotary
from predictor.passes.fuse_backward import (
    Sums,
    Terms,
    accumulates,
    backward_block,
    is_live,
    modules_of,
    reading,
)
from predictor.passes.fuse_edges import Fusion
from predictor.passes.fuse_kinds import HOLDS, sums_two
from predictor.passes.fuse_modules import activation, dropout_sum, loss, norm, router, scaling, softcap, tables
from predictor.passes.fuse_products import one_product, quantizes, without_quantizing
from predictor.passes.recompute import runs_again

#: Kinds of modules, and what is run in place of their nodes.
RULES: dict[str, Callable[[list[Node], Fusion], list[Node]]] = {
    "activation": activation, "cache": cache, "core": core, "loss": loss, "qkv": qkv, "rotary": rotary,
    "router": router, "scaling": scaling, "softcap": softcap, "tables": tables,
}  # fmt: skip
#: Residual sums: that of a layer, and that of a sublayer with its norm in front.
_LAYERS, _SUBLAYERS = _SUMS = "residual", "sublayer"


def fuse(graph: Graph, engine: Engine, attention: str = "flash", apart: bool = False) -> Graph:
    """``graph`` in the kernels of ``engine``; itself where that fuses nothing. ``apart``: linear layers of one input
    stay products of their own.

    Backward blocks ("X backward", nodes with the scopes of X) come after the forward ones, in reverse order: a module
    that became one kernel has that kernel's gradients, and sums and copies of gradients are done within kernels.
    """
    if not engine.fuses:
        return graph
    if graph.recorded:
        from predictor.passes.fuse_loops import fuse_loops  # built graphs do without it

        return fuse_loops(graph, engine, attention)
    backward = [block for block in graph.blocks if block.backward_of is not None]
    on = Fusion(engine, apart)
    blocks: list[Block] = []
    terms, adds = Terms(), Sums(any(map(accumulates, backward)), engine.training)
    places: list[int] = []  # of every block, its place among those that are left
    for block in graph.blocks:
        places.append(len(blocks))
        if block.backward_of is None:
            fused = _keeping(_fused(_without_kept(block), on)) if backward else _fused(block, on)
        else:
            place = places[block.backward_of]
            recomputed = _again(block, graph.blocks[block.backward_of], blocks[place], on)
            modules = modules_of(reading(blocks[place].nodes, recomputed))
            fused = replace(backward_block(block, modules, terms, adds, recomputed), backward_of=place)
        if fused.nodes:
            blocks.append(fused)
    return Graph(tuple(blocks), True)


def _keeping(block: Block) -> Block:
    """A forward block with what its operators write for the backward pass of the fused graph."""
    return with_kept(block, [[] if is_live(node) else None for node in block.nodes])


def _again(block: Block, eager: Block, forward: Block, on: Fusion) -> tuple[Node, ...]:
    """What a backward block runs again of its ``eager`` forward block, fused as in the ``forward`` one."""
    nodes = tuple(node for node in block.nodes if runs_again(node))
    if not nodes:
        return ()
    carried = None
    end = len(nodes)
    if eager.carried and forward.carried and forward.branch:
        # behind the last sum, gradients may gather a part of the sequences again
        end = 1 + max((i for i, node in enumerate(nodes) if node.op.stream == COMPUTE), default=-1)
    if end and eager.carried and forward.carried and forward.branch:
        carried = (eager.carried[0], nodes[end - 1].outputs[0])
        on.open_sums[id(carried[0].storage)] = (forward.carried[0], forward.branch[0])
    recomputed: list[Node] = []
    for some, along in ((nodes[:end], carried), (nodes[end:], None)):
        if some:
            recomputed += _keeping(_fused(_without_kept(Block(block.name, some, block.repeat, along)), on)).nodes
            on.open_sums.clear()
    return tuple(replace(node, phase=BACKWARD) for node in recomputed)


def _without_kept(block: Block) -> Block:
    """A forward block without what its operators write for the eager backward pass."""
    nodes = []
    for node in block.nodes:
        kept = node.op.kept()
        if kept and node.outputs[-1].name == f"{node.name} {kept[-1].name}":
            node = replace(node, outputs=node.outputs[: -len(kept)])
        nodes.append(node)
    return replace(block, nodes=tuple(nodes))


def _fused(block: Block, on: Fusion) -> Block:
    """One forward block."""
    nodes, products = _look_through(block.nodes, on)
    stream = _Stream(block, on)
    out: list[Node] = []
    waiting: Node | None = None  # a sum that the norm after it may do
    i, end = 0, len(nodes)
    while i < end:
        scope, start = nodes[i].scope, i
        while i < end and nodes[i].scope == scope:
            i += 1
        run = list(nodes[start:i])
        kind = scope[scope.rfind(" ") + 1 :]
        if kind in HOLDS and not HOLDS[kind](run):
            kind = ""
        if kind == "norm":
            terms, kept = stream.terms(run[0]), True
            if waiting is not None and run[0].inputs[0].storage is waiting.outputs[0]:
                left, right = on.inputs(waiting)
                terms, kept = (left, right, waiting.outputs[0]), not on.engine.serves or stream.reads(nodes, i, waiting)
                waiting = None
            out.append(norm(run, on, terms, kept))
            continue
        if waiting is not None:
            out.append(on.kept(waiting))
            waiting = None
        if kind in _SUMS and on.engine.joins_dropout:
            out = dropout_sum(out, run, on)
            continue
        if kind in _SUMS:
            *before, waiting = run
            out.extend(on.kept(node) for node in before)
            continue
        if products:
            run = _with_products(run, products, on)
        rule = RULES.get(kind)
        if rule is not None:
            out += rule(run, on) if run else ()
        elif on.stands_for:
            out.extend([on.kept(node) for node in run])
        else:
            out += run
    if waiting is not None and not stream.ends(waiting):
        out.append(on.kept(waiting))
    return stream.block(out)


class _Stream:
    """What a block's runs carry on. Where a run ends in a sum, the first norm of the next run does it.

    So does the norm behind the last run, and before the first run there is nothing to add: the two balance, and the
    norm of every run is taken to do it.
    """

    __slots__ = ("after", "before", "open", "source", "taken", "what")

    def __init__(self, block: Block, on: Fusion) -> None:
        self.what = block
        self.source = on
        #: (stream, branch) before and after a run, where a sum of the two is left open
        self.before: tuple[Tensor, Tensor] | None = None
        self.after: tuple[Tensor, Tensor] | None = None
        self.taken: Tensor | None = None
        last = block.nodes[-1]
        kind = last.scope[last.scope.rfind(" ") + 1 :]
        sums = kind == _SUBLAYERS or (kind == _LAYERS and not on.engine.ends_in_sum)
        self.open = (
            not on.engine.joins_dropout
            and sums
            and sums_two([last])
            and block.carried is not None
            and last.outputs[0] is block.carried[1].storage
        )

    def terms(self, node: Node) -> tuple[Tensor, Tensor, Tensor] | None:
        """(stream, branch, sum) where a norm that begins with ``node`` reads what the run before left open."""
        if not self.open or self.taken is not None or self.what.carried is None:
            return None
        on, x = self.source, self.what.carried[0].storage
        if node.inputs[0].storage is not x:
            return None
        before = on.open_sums.pop(id(x), None)
        self.before = before or (on.of(x), Tensor("branch", x.axes, x.shape, x.dtype))
        self.taken = Tensor("sum", x.axes, x.shape, x.dtype)
        on.stands_for[id(x)] = self.taken
        return (*self.before, self.taken)

    def reads(self, nodes: tuple[Node, ...], start: int, node: Node) -> bool:
        """Whether anything from ``start`` on, or the next run, reads what ``node`` makes."""
        made = node.outputs[0]
        if self.what.carried is not None and self.what.carried[1].storage is made:
            return True
        return any(t.storage is made for later in nodes[start:] for t in later.inputs)

    def ends(self, node: Node) -> bool:
        """Whether the sum ``node`` is left to what comes next."""
        if self.taken is None or self.what.carried is None:
            return False
        on = self.source
        left, right = on.inputs(node)
        self.after = (left.storage, right)
        made = node.outputs[0]
        on.open_sums[id(made)] = self.after
        on.stands_for[id(made)] = self.after[0]
        return True

    def block(self, nodes: list[Node]) -> Block:
        """The block of the fused ``nodes``."""
        block, on = self.what, self.source
        if self.before and self.after and block.carried:
            del on.stands_for[id(block.carried[0].storage)]
            (first, left), (last, right) = self.before, self.after
            return replace(block, nodes=tuple(nodes), carried=(first, last), branch=(left, right))
        carried = block.carried and (on.of(block.carried[0]), on.of(block.carried[1]))
        return replace(block, nodes=tuple(nodes), carried=carried)


def _look_through(nodes: tuple[Node, ...], on: Fusion) -> tuple[tuple[Node, ...], dict[int, list[Node]]]:
    """The nodes without those that quantize the input of a product, which the kernel before does; and by id of a linear
    layer, those that it is one product with, itself included. Notes attention that is one call."""
    on.calls.clear()
    on.views.clear()
    if any(quantizes(node) for node in nodes):
        nodes = without_quantizing(nodes, on)
    alike: dict[tuple[str, str, str, int], list[Node]] = {}
    for node in nodes:
        op = node.op
        if op.__class__ is Gemm:
            assert isinstance(op, Gemm)
            if not on.apart and op.kind == "linear" and len(node.inputs[1].shape) == 2:  # experts' have an axis more
                key = (node.scope, op.dtype, op.quant, id(on.of(node.inputs[0]).storage))
                alike.setdefault(key, []).append(node)
        elif op.__class__ is Attention:
            assert isinstance(op, Attention)
            on.calls.setdefault(node.scope[: node.scope.rfind(" ")], op)
    return nodes, {id(node): group for group in alike.values() if len(group) > 1 for node in group}


def _with_products(run: list[Node], products: dict[int, list[Node]], on: Fusion) -> list[Node]:
    """``run`` with one product in place of the first of several, and none of the others."""
    ordered = []
    for node in run:
        group = products.get(id(node))
        if group is None:
            ordered.append(node)
        elif group[0] is node:
            ordered.append(one_product(group, on))
    return ordered
