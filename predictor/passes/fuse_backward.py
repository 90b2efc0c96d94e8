"""The backward pass of what was fused: a kernel's gradients in place of those of the nodes that it stands for.

A module's nodes carry its scope there, too. Sums of gradients and copies into the layout of what a view is of are done
within the kernels that read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from predictor.engines.vintage import TrainingFramework
from predictor.files.records import replace
from predictor.formats.dtypes import bytes_of
from predictor.graph.graph import Block, Node
from predictor.graph.tensor import ACTIVATION, GRADIENT, WEIGHT, Tensor
from predictor.ops.base import BACKWARD, COMPUTE, EVERY, Gradient, Op
from predictor.ops.elementwise import Accumulate, Elementwise
from predictor.ops.gemm import Gemm, output_dtype
from predictor.passes.recompute import instead, runs_again

#: By scope, a block's fused nodes in order.
Modules = dict[str, list[Node]]


def modules_of(nodes: Iterable[Node]) -> Modules:
    """The modules of a fused forward block."""
    modules: Modules = {}
    for node in nodes:
        modules.setdefault(node.scope, []).append(node)
    return modules


def is_live(node: Node) -> bool:
    """Whether gradients flow through a node: not if it works on tables and indices alone."""
    return any(t.role in (WEIGHT, ACTIVATION) for t in node.inputs) and any(t.role == ACTIVATION for t in node.outputs)


def accumulates(block: Block) -> bool:
    """Whether a backward block adds the gradients of its weights to those that are there."""
    return any(isinstance(n.op, Elementwise) and n.op.fn == "add_" and not runs_again(n) for n in block.nodes)


def gradient_of(t: Tensor) -> Tensor:
    """A gradient with the name, axes and shape of ``t``."""
    return Tensor(t.name, t.axes, t.shape, output_dtype(t.dtype), GRADIENT)


def is_sum(node: Node) -> bool:
    """A sum of two tensors."""
    return isinstance(node.op, Elementwise) and node.op.fn == "add"


class Terms:
    """By id of a gradient that no kernel makes any more, what its readers read in its place."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[int, tuple[Tensor, ...]] = {}

    def put(self, gone: Tensor, terms: tuple[Tensor, ...]) -> None:
        """``terms`` are read where ``gone`` was, and where the tensor was that it is another look at, or a part of."""
        self._found[id(gone)] = terms
        if gone.base is not None:
            storage = gone.storage
            rest = self._found.get(id(storage), (storage,) if gone.part else ())
            self._found[id(storage)] = (*rest, *terms)

    def of(self, t: Tensor) -> tuple[Tensor, ...]:
        """What is there of ``t``: itself, where a kernel makes it."""
        terms = self._found.get(id(t))
        if terms is None and t.base is not None:
            terms = self._found.get(id(t.storage))
        if terms is None:
            return (t,)
        return tuple({id(s): s for term in terms for s in ((t,) if term is t else self.of(term))}.values())


def reading(nodes: tuple[Node, ...], recomputed: tuple[Node, ...]) -> tuple[Node, ...]:
    """Forward ``nodes`` on the tensors of those that are ``recomputed``, in place of their own."""
    if not recomputed:
        return nodes
    made = {(node.scope, node.name): node.outputs for node in recomputed}
    stand_ins = {
        id(t): new for n in nodes for t, new in zip(n.outputs, made.get((n.scope, n.name), n.outputs), strict=True)
    }
    return tuple(
        replace(
            n, inputs=tuple(instead(stand_ins, t) for t in n.inputs), outputs=tuple(stand_ins[id(t)] for t in n.outputs)
        )
        for n in nodes
    )


class Sums(NamedTuple):
    """Gradients of weights added to those that are there, where that is asked for; by a framework of ``training`` in
    its main gradients' dtype, by the product itself where it does that."""

    asked: bool
    training: TrainingFramework | None

    def of(self, op: Op) -> Accumulate | None:
        """The kernel that adds the gradients of an operator's weights; None where there is none."""
        weights = op.weights() if self.asked else 0
        if not weights or (isinstance(op, Gemm) and self.training is not None and self.training.adds_in_product):
            return None
        dtype = output_dtype(op.dtype)
        main = self.training.main_gradients if self.training is not None else ""
        if not main or main == dtype:
            return Accumulate(dtype, "add_", weights)
        return Accumulate(main, "add_", weights, 1, weights * bytes_of(dtype))


def backward_block(
    block: Block, modules: Modules, terms: Terms, adds: Sums, recomputed: tuple[Node, ...] = ()
) -> Block:
    """The backward pass of a block, of whose forward pass these are the fused ``modules``; before the first gradient
    that reads them, it runs the ``recomputed`` nodes.

    A module's stands where the last of its gradients is worked out: before that, those of its results are not all
    there. Collectives stay.
    """
    groups: dict[str, list[Node]] = {}
    place: dict[str, int] = {}
    readers: dict[int, set[str]] = {}
    for zeros, _ in block.running:
        terms.put(zeros, ())
    nodes = [node for node in block.nodes if not runs_again(node)]
    start = next((i for i, node in enumerate(block.nodes) if runs_again(node)), 0)
    made: dict[int, str] = {}
    for i, node in enumerate(nodes):
        scope, summed = node.scope, is_sum(node)
        if summed:
            origins = {made.get(id(t.storage), "") for t in node.inputs}
            within = origins.pop() if len(origins) == 1 else ""
            place.setdefault(scope, i)
            scope, summed = (within, False) if within else (scope, True)
        elif node.op.stream == COMPUTE:
            place[scope] = i
        for t in node.inputs:
            if t.role == GRADIENT:
                readers.setdefault(id(t.storage), set()).add("" if summed else scope)
        if summed:
            terms.put(node.outputs[0], node.inputs)
        elif node.op.stream == COMPUTE:
            groups.setdefault(scope, []).append(node)
            made.update({id(t.storage): scope for t in node.outputs})
    out: list[Node] = []
    waiting: dict[str, list[Node]] = {}  # by module that makes what they read, collectives
    for i, node in enumerate(nodes):
        if i == start:
            out += recomputed
        if node.op.stream != COMPUTE:
            maker = made.get(id(node.inputs[0].storage), "")
            if place.get(maker, -1) > i:
                waiting.setdefault(maker, []).append(node)
            else:
                out.append(replace(node, inputs=tuple(s for t in node.inputs for s in terms.of(t))))
        elif place[node.scope] == i:
            eager = groups.get(node.scope, [])
            run = _Module(node.scope, eager, readers, terms).run(modules.get(node.scope, []), adds)
            out += _with_collectives(run, waiting.pop(node.scope, []), terms)
    carried = block.carried and (terms.of(block.carried[0])[0], terms.of(block.carried[1])[0])
    return replace(block, nodes=tuple(out), carried=carried, running=())


def _with_collectives(nodes: list[Node], collectives: list[Node], terms: Terms) -> list[Node]:
    """The nodes of a module, with each collective behind the node that makes what it reads."""
    for each in collectives:
        read = tuple(s for t in each.inputs for s in terms.of(t))
        of = {id(t.storage) for t in read}
        at = next((i for i, node in enumerate(nodes) if any(id(t.storage) in of for t in node.outputs)), len(nodes) - 1)
        nodes.insert(at + 1, replace(each, inputs=read))
    return nodes


class _Module:
    """One module's backward pass.

    ``incoming``: the gradients of its results. ``leaving``: those that it made for others, and still has to make.
    """

    __slots__ = ("arrived", "incoming", "leaving", "terms")

    def __init__(self, scope: str, eager: list[Node], readers: dict[int, set[str]], terms: Terms) -> None:
        made = {id(t.storage) for node in eager for t in node.outputs}
        self.terms = terms
        gradients = [s for n in eager for t in n.inputs if t.role == GRADIENT and id(t.storage) not in made
                 for s in terms.of(t)]  # fmt: skip
        self.incoming = tuple({id(t): t for t in gradients}.values())
        left = [t for n in eager for t in n.outputs if readers.get(id(t.storage), set()) != {scope}]
        self.leaving = list({id(t): t for t in left}.values())
        #: by id of a tensor of the module, the gradients that it has got
        self.arrived: dict[int, tuple[Tensor, ...]] = {}

    def run(self, forward: list[Node], adds: Sums) -> list[Node]:
        """The gradients of the module's ``forward`` kernels."""
        inside = {id(t) for node in forward for t in node.outputs}
        kernels: list[Node] = []
        for node in reversed(forward):
            if is_live(node):
                kernels += self._of_node(node, inside, adds)
        weights = {(t.axes, t.shape) for node in forward for t in node.inputs if t.role == WEIGHT}
        left = [t for t in self.leaving if (t.axes, t.shape) not in weights]
        if kernels and left:
            kernels[-1].outputs += tuple(left)
        for t in () if kernels else left:
            self.terms.put(t, self.incoming)
        return kernels

    def _of_node(self, node: Node, inside: set[int], adds: Sums) -> list[Node]:
        op, written = node.op, len(node.outputs) - len(node.op.kept())
        incoming: tuple[Tensor, ...] = ()
        for t in node.outputs[:written]:
            incoming += self.arrived.get(id(t), ())
        incoming = incoming or self.incoming
        ops, rules = op.backward_in_one()
        kernels: list[Node] = []
        before: tuple[Tensor, ...] = ()
        for each, rule in zip(ops, rules if ops else (), strict=True):
            read = self._read(node, written, rule, incoming, before)
            made = self._made(node, rule, inside)
            if not made:
                made = before = (gradient_of(node.outputs[written + rule.like if rule.like >= 0 else 0]),)
            kernels.append(_backward(each, node, read, made))
        if not ops:
            for t in node.inputs:
                if t.role == ACTIVATION and id(t.storage) in inside:
                    self.arrived[id(t.storage)] = self.arrived.get(id(t.storage), ()) + incoming
        add = adds.of(op)
        if add is not None:
            sizes = {(t.axes, t.shape) for t in node.inputs if t.role == WEIGHT}
            made = tuple(t for each in kernels for t in each.outputs if (t.axes, t.shape) in sizes)
            kernels.append(_backward(add, node, made, tuple(t.copied() for t in made)))
        return kernels

    def _read(
        self, node: Node, written: int, rule: Gradient, incoming: tuple[Tensor, ...], before: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        inputs, read = node.inputs, incoming if rule.incoming else ()
        if rule.before:
            read += before
        read += inputs if rule.inputs is EVERY else tuple(inputs[p] for p in rule.inputs if p < len(inputs))
        return (*read, *(node.outputs[p] for p in rule.outputs), *(node.outputs[written + p] for p in rule.kept))

    def _made(self, node: Node, rule: Gradient, inside: set[int]) -> tuple[Tensor, ...]:
        inputs = node.inputs
        made: list[Tensor] = []
        for t in inputs if rule.makes is EVERY else [inputs[p] for p in rule.makes if p < len(inputs)]:
            key = id(t.storage)
            if t.role == ACTIVATION and key in inside:
                made.append(gradient_of(t))
                self.arrived[key] = (*self.arrived.get(key, ()), made[-1])
                continue
            if t.role not in (WEIGHT, ACTIVATION):
                continue
            at = next((g for g in self.leaving if (g.axes, g.shape) == (t.axes, t.shape)), None)
            if at is not None:
                self.leaving = [g for g in self.leaving if g is not at]
                made.append(at)
            elif t.role == WEIGHT or not made:
                made.append(gradient_of(t))
        return tuple(made)


def _backward(op: Op, node: Node, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Node:
    return Node(op, node.name, inputs, outputs, node.count, BACKWARD, 1, 1.0, node.part, node.scope)
