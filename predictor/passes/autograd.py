"""The joint graph of a training pass, from the edges: the forward blocks, and what autograd runs after them for every
operator and for every tensor that feeds several of them or that is a view.

Gradients are followed from the weights on; every result is taken to reach the loss. A tensor that n nodes read gets n
gradients, which n - 1 sums add up. One that repetitions or blocks share (T5's relative bias, an encoder's output) has
its gradients added to what the others gave it: n sums in each, the first of them to zeros. The gradients of a weight
that several nodes have (a tied embedding's) are summed, unless each is added to one that is there already.
"""

from __future__ import annotations

from collections import Counter

from predictor.files.records import replace
from predictor.graph.graph import OPTIMIZER, Block, Graph, Node
from predictor.graph.tensor import ACTIVATION, GRADIENT, WEIGHT, Tensor
from predictor.ops.base import BACKWARD, EVERY, Gradient, Op
from predictor.ops.elementwise import Accumulate, Elementwise, Reduce
from predictor.ops.gemm import output_dtype
from predictor.ops.optimizer import OptimizerStep

#: By node of a block, the activations that it reads and hands a gradient to; None where it gets none itself.
Read = list[list[Tensor] | None]


def joint(forward: Graph, accumulate: bool = False) -> Graph:
    """The forward blocks, then their backward passes: blocks and nodes in reverse order, nodes that no gradient flows
    through left out.

    A backward node reads gradients and what autograd saved of the forward pass, and makes gradients (role "gradient").
    Forward nodes that write something for the backward pass alone (`Op.kept`) have it as outputs after their own.

    Autograd's engine calls one function a node from C++, so a backward kernel costs the CPU one framework call.
    With ``accumulate`` the parameters have a gradient already, and the new one is added to it (AccumulateGrad): in
    every pass but the first after the gradients were cleared. Fused graphs sum and copy gradients within other kernels.
    """
    read, shared = gradient_flow(forward)
    ahead = [with_kept(block, rows) for block, rows in zip(forward.blocks, read, strict=True)]
    outer: dict[int, Gradients] = {}
    back = []
    for b in range(len(ahead) - 1, -1, -1):
        if any(rows is not None for rows in read[b]):
            walk = _Reverse(ahead[b], forward.blocks[b], read[b], shared, outer, forward.fused, accumulate)
            back.append(walk.block(b))
    return Graph((*ahead, *back), forward.fused)


def with_backward(graph: Graph, accumulate: bool | None) -> Graph:
    """``graph`` with its backward pass (`joint`); itself where ``accumulate`` is None, and where the model brought its
    own along."""
    if accumulate is None or any(node.phase == BACKWARD for block in graph.blocks for node in block.nodes):
        return graph
    return joint(graph, accumulate)


#: The axis of what an embedding and a head can have in common.
_SHARED = "vocab"
#: The gradient of a tensor: one tensor, or several that a fused kernel sums or that are its slices.
Gradients = tuple[Tensor, ...]


def with_kept(block: Block, rows: Read) -> Block:
    """The block with what its operators write for the backward pass as outputs of the nodes."""
    nodes = list(block.nodes)
    for i, node in enumerate(nodes):
        kept = node.op.kept() if rows[i] is not None else ()
        if kept:
            made = list(node.outputs)
            for k in kept:
                like = node.inputs[0] if k.of_input else node.outputs[0]
                rank = len(like.axes) - k.drop if k.drop >= 0 else 0
                axes, shape = (*like.axes[:rank], *k.axes), (*like.shape[:rank], *k.shape)
                made.append(Tensor(f"{node.name} {k.name}", axes, shape, k.dtype or like.dtype))
            nodes[i] = Node(
                node.op, node.name, node.inputs, tuple(made), node.count, node.phase, node.host_calls,
                node.share, node.part, node.scope,
            )  # fmt: skip
    return replace(block, nodes=tuple(nodes))


#: Dtypes whose gradients have the same; looked up for every node.
_WIDE = frozenset({"fp32", "bf16", "fp16", "tf32"})


def _gradient_of(t: Tensor) -> Tensor:
    dtype = t.dtype if t.dtype in _WIDE else output_dtype(t.dtype)
    return Tensor(t.name, t.axes, t.shape, dtype, GRADIENT, t.segments)


class _Reverse:
    """One block walked from its last node to its first.

    ``outer``: by id of a tensor, the gradients that blocks after this one gave it. ``reads``: by id of a tensor, how
    many gradients it gets here. ``ends``: by the index of a node, the tensors whose gradients have all arrived when the
    node's own backward pass is done, and the first node that reads each; those alone with whose gradients something
    happens then.
    """

    def __init__(
        self, block: Block, plain: Block, rows: Read, shared: set[int], outer: dict[int, Gradients], fused: bool,
        accumulate: bool,
    ) -> None:  # fmt: skip
        self.forward = block
        self.plain = plain
        self.rows = rows
        self.shared = shared
        self.outer = outer
        self.fused = fused
        self.accumulate = accumulate
        self.nodes: list[Node] = []
        self.arrived: dict[int, list[Gradients]] = {}
        self.slices: dict[int, list[Tensor]] = {}
        self.wholes: dict[int, Tensor] = {}
        self.running: list[tuple[Tensor, Tensor]] = []
        self.reads: dict[int, int] = {}
        self.ends = self._ends()

    def block(self, place: int) -> Block:
        """The backward pass of the block, which is at ``place`` of the graph."""
        forward, carried = self.forward, None
        last = forward.carried[1].storage if forward.carried else None
        if last is not None and id(last) not in self.outer:
            self.outer[id(last)] = (_gradient_of(last),)
        entry = self.outer[id(last)] if last is not None else ()
        ends = self.ends
        for i in range(len(forward.nodes) - 1, -1, -1):
            if self.rows[i] is not None:
                self._node(i)
            if i in ends:
                for t, first in ends[i]:
                    self._end(t, first)
        made = {id(t) for node in self.plain.nodes for t in node.outputs}
        for key, groups in self.arrived.items():
            if key not in made:
                self.outer[key] = sum(groups, self.outer.get(key, ()))
        if forward.carried:
            start = self.arrived.get(id(forward.carried[0].storage))
            carried = (entry[0], start[0][0]) if start and entry else None
        return Block(
            f"{forward.name} backward", tuple(self.nodes), forward.repeat, carried, (), place, tuple(self.running)
        )

    def _ends(self) -> dict[int, list[tuple[Tensor, int]]]:
        reads, parts, order = self.reads, set(), []
        end: dict[int, int] = {}
        for i, read in enumerate(self.rows):
            for seen in read or ():
                t: Tensor | None = seen
                while t is not None:
                    key = id(t)
                    reads[key] = reads.get(key, 0) + 1
                    if reads[key] > 1:
                        break  # its own base has been told of it
                    order.append((i, t))
                    if t.part:  # with the other slices it gives one gradient
                        if id(t.base) in parts:
                            break
                        parts.add(id(t.base))
                    t = t.base if t.gradient is not None else None
        ends: dict[int, list[tuple[Tensor, int]]] = {}
        views = [entry for entry in order if entry[1].base is not None]
        views.sort(key=lambda entry: -entry[1].depth)
        shared = self.shared
        whole = [(first, t) for first, t in order if t.base is None
                 and (reads[id(t)] > 1 or id(t) in parts or id(t) in shared)]  # fmt: skip
        for first, t in (*views, *whole):
            base, key = t.base, id(t)
            at = min(end.get(key, first), first)
            ends.setdefault(at, []).append((t, first))
            if base is not None and t.gradient is not None:
                end[id(base)] = min(end.get(id(base), at), at)
        return ends

    def _named(self, t: Tensor, first: int) -> Node:
        """The node that a tensor's copies and sums are named after: the one that it names, or the ``first`` that reads
        it; the next one where that hands its gradient on as it is (what quantizes, joins or copies)."""
        nodes = self.forward.nodes
        if t.at:
            for node in nodes:
                if node.name == t.at:
                    return node
        op = nodes[first].op
        return nodes[first + 1] if isinstance(op, Elementwise) and not op.grad else nodes[first]

    def _node(self, i: int) -> None:
        """What autograd runs for one node."""
        node, written = self.forward.nodes[i], len(self.plain.nodes[i].outputs)
        live, inputs = self.rows[i] or (), node.inputs
        arrived, whole = self.arrived, node.outputs
        if self.fused:
            ops, rules = node.op.backward_in_one()
        else:
            ops = node.op.backward()
            rules = node.op.gradients() if ops else ()
        incoming = self._incoming(whole if len(whole) == written else whole[:written])
        if not ops:
            for t in live:
                arrived.setdefault(id(t), []).append(self._passed_on(node, incoming, t))
        rules = rules if ops else ()
        if not self.fused and isinstance(node.op, Elementwise) and node.op.fn == "mul":
            more, said = _of_factor(node, node.op, live)
            ops, rules = (*ops, *more), (*rules, *said)
        before: Gradients = ()
        weights: list[Tensor] = []
        tied: tuple[tuple[Tensor, Tensor], ...] = ()
        put = self.nodes.append
        for op, rule in zip(ops, rules, strict=True):
            makes, reads, outputs, kept, from_result, from_before, like = rule
            read = incoming if from_result else ()
            if from_before:
                read += before
            if reads:
                read += inputs if reads is EVERY else tuple([inputs[p] for p in reads if p < len(inputs)])
            for p in outputs:
                read += (whole[p],)
            for p in kept:
                read += (whole[written + p],)
            made: Gradients = ()
            for t in inputs if makes is EVERY else [inputs[p] for p in makes if p < len(inputs)]:
                role = t.role
                if role == ACTIVATION:
                    gradient = (_gradient_of(t) if t.base is None else self._target(t),)
                    made += gradient
                    if id(t) in arrived:
                        arrived[id(t)].append(gradient)
                    else:
                        arrived[id(t)] = [gradient]
                elif role == WEIGHT:
                    made += (_gradient_of(t),)
                    weights.append(made[-1])
                    if _SHARED in t.axes:
                        tied += ((t, made[-1]),)
            if not made:
                made = before = (_gradient_of(whole[written + like if like >= 0 else 0]),)
            put(Node(op, node.name, read, made, node.count, BACKWARD, 1, 1.0, node.part, node.scope))
        if self.accumulate:
            for op in _accumulated(node):
                self._put(op, node, tuple(weights), tuple(map(_gradient_of, weights)))
        elif not self.fused:
            for weight, gradients in tied:
                self._of_tied(weight, gradients, node)

    def _of_tied(self, weight: Tensor, gradient: Tensor, node: Node) -> None:
        """A gradient of a weight that other nodes have, too: added to what they gave it."""
        key = id(weight.storage)
        before = self.outer.get(key)
        if before:
            total = _gradient_of(weight)
            self._put(Elementwise(gradient.dtype, "add", gradient.elements), node, (*before, gradient), (total,))
            gradient = total
        self.outer[key] = (gradient,)

    def _passed_on(self, node: Node, incoming: Gradients, t: Tensor) -> Gradients:
        """The result's gradient as that of ``t``, with no kernel, but for a term of a sum that was broadcast over the
        first axis: its gradient is summed over that."""
        op, size = node.op, t.elements
        if self.fused or not isinstance(op, Elementwise) or op.fn not in ("add", "sub") or op.elements == size:
            return _reshaped(incoming, t)
        made = self._target(t)
        self._put(Reduce(op.dtype, op.elements // size, size), node, incoming, (made,))
        return (made,)

    def _put(self, op: Op, node: Node, inputs: Gradients, outputs: Gradients) -> None:
        self.nodes.append(Node(op, node.name, inputs, outputs, node.count, BACKWARD, 1, 1.0, node.part, node.scope))

    def _incoming(self, outputs: tuple[Tensor, ...]) -> Gradients:
        """The gradients of a node's results; of one that nothing reads, from outside."""
        incoming: Gradients = ()
        for t in outputs:
            key = id(t)
            if key in self.arrived:
                for group in self.arrived[key]:
                    incoming += group
            if key in self.outer:
                incoming += self.outer[key]
        return incoming or (_gradient_of(outputs[0]),)

    def _target(self, t: Tensor, whole: bool = False) -> Tensor:
        """The tensor that a node makes as the gradient of ``t``: a part or another shape of its base's, where that is
        all of the base's. ``whole``: it is all of that of ``t``, whatever reads ``t``."""
        base, reads = t.base, self.reads
        if base is None or t.gradient is None or (t.gradient and not self.fused) or reads.get(id(base)) != 1:
            return _gradient_of(t)
        if not whole and reads.get(id(t)) != 1:
            return _gradient_of(t)
        if not t.part:
            return self._target(base).view(t.axes, t.shape)
        if base.gradient and not self.fused:
            return _gradient_of(t)
        if id(base) not in self.wholes:
            self.wholes[id(base)] = self._target(base)
        return self.wholes[id(base)].view(t.axes, t.shape, part=True)

    def _end(self, t: Tensor, first: int) -> None:
        """Copies and sums of the gradients of a tensor that has got them all, and how its base gets them."""
        key, base = id(t), t.base
        groups = self.arrived.pop(key, [])
        if key in self.slices:
            groups.insert(0, _joined(self.slices.pop(key), self.wholes.get(key)))
        if self.fused:
            result: Gradients = sum(groups, ())
        elif self.reads[key] == 1 and not t.gradient and key not in self.shared:
            result = groups[0] if groups else ()
        else:
            node = self._named(t, first)
            groups = self._copied(t, groups, node) if t.gradient else groups
            if key in self.shared:
                self._add_up(t, groups, node)
                return
            result = self._summed(t, groups, node)
        if base is None or t.gradient is None:
            self.arrived[key] = [result]
        elif t.part:
            self.slices.setdefault(id(base), []).extend(result)
        else:
            self.arrived.setdefault(id(base), []).append(_reshaped(result, base))

    def _copied(self, t: Tensor, groups: list[Gradients], node: Node) -> list[Gradients]:
        """The operators of a view, each on one gradient: those that are then in the layout of its base."""
        base = t.base
        groups_made: list[Gradients] = []
        assert base is not None
        filled: Gradients = ()
        for op in t.gradient or ():
            fills = isinstance(op, Elementwise) and op.fn == "fill"
            alone = not fills and self.reads[id(t)] == 1 and len(t.gradient or ()) == 1
            made = self._target(base) if alone and self.reads.get(id(base)) == 1 else _gradient_of(base)
            read = () if fills else (*filled, *(groups.pop(0) if groups else groups_made.pop()))
            self._put(op, node, read, (made,))
            filled = (made,) if fills else ()
            if not fills:
                groups_made.append((made,))
        return groups_made + groups

    def _summed(self, t: Tensor, groups: list[Gradients], node: Node) -> Gradients:
        like = t.base if t.gradient and t.base is not None else t
        result = groups[0] if groups else ()
        for i, group in enumerate(groups[1:]):
            last = i == len(groups) - 2
            made = self._target(like, whole=like is t) if last else _gradient_of(like)
            self._put(Elementwise(t.dtype, "add", t.elements), node, (*result, *group), (made,))
            result = (made,)
        return result

    def _add_up(self, t: Tensor, groups: list[Gradients], node: Node) -> None:
        """Sums with what other blocks and repetitions gave."""
        start = result = self.outer.get(id(t)) or (_gradient_of(t),)
        for group in groups:
            made = _gradient_of(t)
            self._put(Elementwise(t.dtype, "add", t.elements), node, (*result, *group), (made,))
            result = (made,)
        self.outer[id(t)] = result
        self.running.append((start[0], result[0]))


def _reshaped(gradients: Gradients, t: Tensor) -> Gradients:
    """Gradients with the axes of ``t``, as views where they have others."""
    if len(gradients) != 1:
        return gradients
    (gradient,) = gradients
    if gradient.axes == t.axes and gradient.shape == t.shape:
        return gradients
    base = gradient.base
    if base is not None and base.axes == t.axes and base.shape == t.shape:
        return (base,)
    return (gradient.view(t.axes, t.shape),)


def _joined(slices: list[Tensor], whole: Tensor | None) -> Gradients:
    """The tensor whose parts all ``slices`` are, or they themselves."""
    if whole is not None and all(t.base is whole for t in slices):
        return (whole,)
    return tuple(slices)


def _of_factor(
    node: Node, op: Elementwise, read: list[Tensor] | tuple[Tensor, ...]
) -> tuple[tuple[Op, ...], tuple[Gradient, ...]]:
    """What is run for a factor that was broadcast: the gradient's product with the other factor, summed over the axes
    that it lacks."""
    if op.inputs != 1 or len(node.inputs) < 2:
        return (), ()
    factor = node.inputs[1]
    if factor.role != WEIGHT and factor not in read:
        return (), ()
    product = Elementwise(op.dtype, "mul", op.elements)
    size = factor.elements
    last = factor.axes[-1] == node.outputs[0].axes[-1]
    rows, cols = (op.elements // size, size) if last else (size, op.elements // size)
    return (product, Reduce(op.dtype, rows, cols, 0 if last else 1)), _OF_FACTOR


_OF_FACTOR = (Gradient(inputs=(0,)), Gradient((1,), incoming=False, before=True))


def _accumulated(node: Node) -> tuple[Op, ...]:
    """The sum into the gradient that a node's parameters have already."""
    weights = node.op.weights()
    return (Accumulate(output_dtype(node.op.dtype), "add_", weights),) if weights else ()


def optimizer_graph(parameters: int, kind: str, mixed: bool) -> Graph:
    """One step of the optimizer over ``parameters`` fp32 parameters; an empty graph for kind "none"."""
    if kind == "none":
        return Graph(())
    step = OptimizerStep("fp32", parameters, kind, mixed)
    node = Node(step, f"{kind} step", phase=OPTIMIZER, host_calls=step.kernels())
    return Graph((Block("optimizer", (node,)),))


def gradient_flow(graph: Graph) -> tuple[list[Read], set[int]]:
    """What gradients flow through: what depends on a weight. Beside it, by id, the tensors that several blocks or
    repetitions read from outside, and that no block hands on."""
    live: set[int] = set()
    times: Counter[int] = Counter()
    blocks = []
    for block in graph.blocks:
        made: set[int] = set()
        outside: set[int] = set()
        rows: Read = []
        if block.carried and block.repeat > 1:  # all runs but the first get it from the run before
            live.add(id(block.carried[0].storage))
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
        handed = id(block.carried[0].storage) if block.carried else 0
        times.update({key: 1 if key == handed else block.repeat for key in outside})
    return blocks, {key for key, count in times.items() if count > 1}
