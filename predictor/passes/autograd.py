"""The backward pass of a graph, from its edges: what autograd runs for every operator, and for every tensor that feeds
several of them or that is a view.

Gradients are followed from the weights on; every result is taken to reach the loss. A tensor that n nodes read gets n
gradients, which n - 1 sums add up. One that repetitions or blocks share (T5's relative bias, an encoder's output) has
its gradients added to what the others gave it: n sums in each.
"""

from __future__ import annotations

from collections import Counter

from predictor.graph.graph import OPTIMIZER, Block, Graph, Node
from predictor.graph.tensor import ACTIVATION, WEIGHT, Tensor
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
    read, shared = _flow(forward)
    blocks = []
    for b in range(len(forward.blocks) - 1, -1, -1):
        block = forward.blocks[b]
        beside = {} if forward.fused else _beside(block, read[b], shared)
        nodes = []
        for i in range(len(block.nodes) - 1, -1, -1):
            node, live = block.nodes[i], read[b][i]
            if live is None:
                continue
            ops = node.op.backward() if forward.fused else _of_node(node, live)
            for op in (*ops, *beside.get(i, ()), *(_accumulated(node) if accumulate else ())):
                nodes.append(Node(op, node.name, (), (), node.count, BACKWARD, part=node.part, scope=node.scope))
        if nodes:
            blocks.append(Block(f"{block.name} backward", tuple(nodes), block.repeat))
    return Graph(tuple(blocks), forward.fused)


#: By node of a block, the activations that it reads and hands a gradient to; None where it gets none itself.
Read = list[list[Tensor] | None]


def _flow(graph: Graph) -> tuple[list[Read], set[int]]:
    """What gradients flow through: what depends on a weight. Beside it, by id, the tensors that several blocks or
    repetitions read from outside, and that no block hands on."""
    live: set[int] = set()
    times: Counter[int] = Counter()
    blocks = []
    for block in graph.blocks:
        made: set[int] = set()
        outside: set[int] = set()
        rows: Read = []
        for node in block.nodes:
            read, through = [], False
            for t in node.inputs:
                if t.role == WEIGHT:
                    through = True
                elif t.role == ACTIVATION:
                    key = id(t.storage)
                    if key in live:
                        read.append(t)
                        if key not in made:
                            outside.add(key)
            outputs = [id(t) for t in node.outputs if t.role == ACTIVATION] if through or read else ()
            made.update(outputs)
            live.update(outputs)
            rows.append(read if outputs else None)
        blocks.append(rows)
        if block.carried and block.repeat > 1:
            live.add(id(block.carried[0]))
        handed = id(block.carried[0].storage) if block.carried else 0
        times.update({key: 1 if key == handed else block.repeat for key in outside})
    return blocks, {key for key, count in times.items() if count > 1}


def _beside(block: Block, rows: Read, shared: set[int]) -> dict[int, list[Op]]:
    """By the index of a node, what autograd runs after the node's own gradients: copies of gradients into the layout
    of a base, and sums."""
    gradients: dict[int, int] = {}
    parts: set[int] = set()
    first: list[tuple[int, Tensor]] = []
    for i, read in enumerate(rows):
        for seen in read or ():
            t: Tensor | None = seen
            while t is not None:
                gradients[id(t)] = gradients.get(id(t), 0) + 1
                if gradients[id(t)] > 1:
                    break  # its own base has been told of it
                first.append((i, t))
                if t.part:  # with the other slices it gives one gradient
                    if id(t.base) in parts:
                        break
                    parts.add(id(t.base))
                t = t.base if t.gradient is not None else None
    busy = [(i, t) for i, t in first if t.gradient or gradients[id(t)] > 1 or id(t) in shared]
    found: dict[int, list[Op]] = {}
    for i, t in sorted(busy, key=lambda entry: -entry[1].depth):
        ops = found.setdefault(_site(block, i, t), [])
        ops.extend(t.gradient or ())
        sums = gradients[id(t)] - (0 if id(t) in shared else 1)
        ops.extend([Elementwise(t.dtype, "add", t.elements)] * sums)
    return found


def _site(block: Block, first: int, tensor: Tensor) -> int:
    """Index of the node after which a tensor's gradients are copied and summed: the one that it names, or the ``first``
    that reads it; the next one where that hands its gradient on as it is (what quantizes, joins or copies)."""
    for i, node in enumerate(block.nodes if tensor.at else ()):
        if node.name == tensor.at:
            return i
    op = block.nodes[first].op
    return first + 1 if isinstance(op, Elementwise) and not op.grad else first


def _of_node(node: Node, read: list[Tensor]) -> tuple[Op, ...]:
    """What autograd runs for one operator. A factor that was broadcast has the gradient's product with the other one
    summed over the axes that it lacks."""
    op = node.op
    own = op.backward()
    if not isinstance(op, Elementwise) or op.fn != "mul" or op.inputs != 1 or len(node.inputs) < 2:
        return own
    factor = node.inputs[1]
    if factor.role != WEIGHT and factor not in read:
        return own
    product = Elementwise(op.dtype, "mul", op.elements)
    size = factor.elements
    last = factor.axes[-1] == node.outputs[0].axes[-1]
    rows, cols = (op.elements // size, size) if last else (size, op.elements // size)
    return (*own, product, Reduce(op.dtype, rows, cols, 0 if last else 1))


def _accumulated(node: Node) -> tuple[Op, ...]:
    """The sum into the gradient that a node's parameters have already."""
    weights = node.op.weights()
    return (Elementwise(output_dtype(node.op.dtype), "add_", weights),) if weights else ()


def optimizer_graph(parameters: int, kind: str, mixed: bool) -> Graph:
    """One step of the optimizer over ``parameters`` fp32 parameters; an empty graph for kind "none"."""
    if kind == "none":
        return Graph(())
    step = OptimizerStep("fp32", parameters, kind, mixed)
    node = Node(step, f"{kind} step", phase=OPTIMIZER, host_calls=step.kernels())
    return Graph((Block("optimizer", (node,)),))
