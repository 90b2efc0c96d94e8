"""The backward pass of a graph, from its edges: what autograd runs for every operator, and for every tensor that feeds
several of them or that is a view.

Gradients are followed from the weights on; every result is taken to reach the loss. A tensor that n nodes read gets n
gradients, which n - 1 sums add up. One that repetitions or blocks share (T5's relative bias, an encoder's output) has
its gradients added to what the others gave it: n sums in each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from predictor.graph.graph import OPTIMIZER, Block, Graph, Node
from predictor.graph.tensor import ACTIVATION, STATE, WEIGHT, Tensor
from predictor.ops.base import BACKWARD, Op
from predictor.ops.elementwise import Elementwise, Reduce
from predictor.ops.gemm import output_dtype
from predictor.ops.optimizer import OptimizerStep


def backward_graph(forward: Graph, accumulate: bool = False) -> Graph:
    """Blocks and nodes in reverse order; nodes that no gradient flows through are left out.

    Autograd's engine calls one function a node from C++, so a backward kernel costs the CPU one framework call.
    With ``accumulate`` the parameters have a gradient already, and the new one is added to it (AccumulateGrad): in
    every pass but the first after the gradients were cleared. Fused graphs sum and copy gradients within other kernels.
    """
    live = _live(forward)
    shared = _shared(forward, live)
    blocks = []
    for block in reversed(forward.blocks):
        beside = {} if forward.fused else _beside(block, live, shared)
        nodes = [
            Node(op, node.name, count=node.count, phase=BACKWARD)
            for i, node in reversed(list(enumerate(block.nodes)))
            if _gets_gradient(node, live)
            for op in (*_of_node(node, live, forward.fused), *beside.get(i, ()), *_accumulated(node, accumulate))
        ]
        if nodes:
            blocks.append(Block(f"{block.name} backward", tuple(nodes), block.repeat))
    return Graph(tuple(blocks), forward.fused)


class _Live:
    """The tensors that gradients flow into."""

    def __init__(self) -> None:
        self._made: set[int] = set()

    def add(self, tensors: Iterable[Tensor]) -> None:
        self._made.update(id(t) for t in tensors if t.role == ACTIVATION)

    def __contains__(self, tensor: Tensor) -> bool:
        if tensor.base is not None:
            return tensor.role != STATE and tensor.base in self
        return tensor.role == WEIGHT or id(tensor) in self._made


def _live(graph: Graph) -> _Live:
    """What depends on a weight."""
    live = _Live()
    for block in graph.blocks:
        for node in block.nodes:
            if any(t in live for t in node.inputs):
                live.add(node.outputs)
        if block.repeat > 1 and block.carried:
            live.add(block.carried[:1])
    return live


def _gets_gradient(node: Node, live: _Live) -> bool:
    return any(t in live for t in node.outputs)


def _chain(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor, what it is a view of, and so on, as far as gradients go back."""
    found: Tensor | None = tensor
    while found is not None:
        yield found
        found = found.base if found.gradient is not None else None


def _read(block: Block, live: _Live) -> Iterator[tuple[int, Tensor]]:
    """The activations that get gradients from nodes of a block, once for each time of reading, with the node's index:
    that of the next one where the node itself hands its gradient on as it is (what quantizes, joins or copies)."""
    for i, node in enumerate(block.nodes):
        if _gets_gradient(node, live):
            site = i + 1 if isinstance(node.op, Elementwise) and not node.op.grad else i
            yield from ((site, t) for t in node.inputs if t.role != WEIGHT and t in live)


def _shared(graph: Graph, live: _Live) -> set[int]:
    """Tensors (by id) that several blocks or repetitions read from outside, and that no block hands on."""
    times: Counter[int] = Counter()
    for block in graph.blocks:
        made = {id(t) for node in block.nodes for t in node.outputs}
        read = {id(t.storage) for _, t in _read(block, live)} - made
        handed = id(block.carried[0].storage) if block.carried else 0
        times.update({key: 1 if key == handed else block.repeat for key in read})
    return {key for key, count in times.items() if count > 1}


def _beside(block: Block, live: _Live, shared: set[int]) -> dict[int, list[Op]]:
    """By the index of a node, what autograd runs after the node's own gradients: copies of gradients into the layout
    of a base, and sums."""
    gradients: Counter[int] = Counter()
    parts: set[int] = set()
    first: dict[int, tuple[int, int, Tensor]] = {}
    for i, read in _read(block, live):
        chain = list(_chain(read))
        for depth, t in zip(range(len(chain), 0, -1), chain, strict=True):
            gradients[id(t)] += 1
            if id(t) in first:
                break  # its own base has been told of it
            first[id(t)] = (i, depth, t)
            if t.part:  # with the other slices it gives one gradient
                assert t.base is not None
                if id(t.base) in parts:
                    break
                parts.add(id(t.base))
    names = {node.name: i for i, node in reversed(list(enumerate(block.nodes)))}
    found: dict[int, list[Op]] = {}
    for i, _, t in sorted(first.values(), key=lambda entry: -entry[1]):
        ops = found.setdefault(names.get(t.at, i), [])
        ops.extend(t.gradient or ())
        sums = gradients[id(t)] - (0 if id(t) in shared else 1)
        ops.extend([Elementwise(t.dtype, "add", t.elements)] * sums)
    return found


def _of_node(node: Node, live: _Live, fused: bool) -> tuple[Op, ...]:
    """What autograd runs for one operator. A factor that was broadcast has the gradient's product with the other one
    summed over the axes that it lacks."""
    op = node.op
    own = op.backward()
    if fused or not isinstance(op, Elementwise) or op.fn != "mul" or op.inputs != 1 or len(node.inputs) < 2:
        return own
    factor = node.inputs[1]
    if factor not in live:
        return own
    product = Elementwise(op.dtype, "mul", op.elements)
    size = factor.elements
    last = factor.axes[-1] == node.outputs[0].axes[-1]
    rows, cols = (op.elements // size, size) if last else (size, op.elements // size)
    return (*own, product, Reduce(op.dtype, rows, cols, 0 if last else 1))


def _accumulated(node: Node, accumulate: bool) -> tuple[Op, ...]:
    """The sum into the gradient that a node's parameters have already."""
    weights = node.op.weights() if accumulate else 0
    return (Elementwise(output_dtype(node.op.dtype), "add_", weights),) if weights else ()


def optimizer_graph(parameters: int, kind: str, mixed: bool) -> Graph:
    """One step of the optimizer over ``parameters`` fp32 parameters; an empty graph for kind "none"."""
    if kind == "none":
        return Graph(())
    step = OptimizerStep("fp32", parameters, kind, mixed)
    node = Node(step, f"{kind} step", phase=OPTIMIZER, host_calls=step.kernels())
    return Graph((Block("optimizer", (node,)),))
