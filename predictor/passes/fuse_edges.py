"""What every rule of fusion works on: which tensor stands in another one's place, and nodes that read it."""

from __future__ import annotations

from predictor.engines import Engine
from predictor.graph.graph import Node
from predictor.graph.tensor import Tensor
from predictor.ops.attention import Attention


class Fusion:
    """A graph on its way to an engine's kernels.

    ``calls``: by the module's name ("attention"), the attention of the block at hand that is one call. ``open_sums``:
    by id of a sum that the kernel does which reads it, its two terms. ``apart``: linear layers of one input stay
    products of their own.
    """

    __slots__ = ("apart", "calls", "engine", "open_sums", "stands_for", "views")

    def __init__(self, engine: Engine, apart: bool = False) -> None:
        self.engine = engine
        self.apart = apart
        self.calls: dict[str, Attention] = {}
        self.open_sums: dict[int, tuple[Tensor, Tensor]] = {}
        #: by id of a tensor that no kernel makes any more, the one in its place
        self.stands_for: dict[int, Tensor] = {}
        #: of the block at hand, by id of a view of such a tensor, that of the one in its place
        self.views: dict[int, Tensor] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor in its place: itself, where it is made as before; a view of what stands for its base."""
        stand_in = self.stands_for.get(id(tensor))
        if stand_in is not None:
            return self.of(stand_in)
        if tensor.base is None:
            return tensor
        base = self.of(tensor.base)
        if base is tensor.base:
            return tensor
        stand_in = self.views.get(id(tensor))
        if stand_in is None:
            stand_in = self.views[id(tensor)] = tensor.copied(base)
        return stand_in

    def inputs(self, node: Node) -> tuple[Tensor, ...]:
        """What a node reads; of a sum that it has to do, both terms."""
        inputs = tuple([self.of(t) for t in node.inputs])
        if self.open_sums:
            inputs += tuple(self.open_sums[id(t)][1] for t in map(_storage, node.inputs) if id(t) in self.open_sums)
        return inputs

    def kept(self, node: Node) -> Node:
        """The node as it is, reading what is there to read."""
        if not self.stands_for:
            return node
        inputs = self.inputs(node)
        if inputs == node.inputs:
            return node
        return Node(
            node.op, node.name, inputs, node.outputs, node.count, node.phase, node.host_calls, node.share,
            node.part, node.scope,
        )  # fmt: skip

    def gone(self, node: Node) -> None:
        """No kernel runs for a node of one input: who reads its result reads that."""
        self.stands_for[id(node.outputs[0])] = node.inputs[0]


def _storage(tensor: Tensor) -> Tensor:
    return tensor.storage


def outside(nodes: list[Node]) -> list[Tensor]:
    """What ``nodes`` read and do not make, each once."""
    made = {id(t) for node in nodes for t in node.outputs}
    read = {id(t): t for node in nodes for t in node.inputs if id(t.storage) not in made}
    return list(read.values())
