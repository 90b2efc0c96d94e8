"""A model as operators on tensors: blocks that repeat, each a sequence of nodes. Layers are structure, never found by
name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from predictor.files.records import dataclass, replace
from predictor.graph.tensor import WEIGHT, Tensor
from predictor.ops.base import FORWARD, Op

OPTIMIZER = "optimizer"


@dataclass(slots=True)  # not frozen: a graph of a sweep's point makes them in a loop
class Node:
    """One operator of a block, run ``count`` times in a row.

    ``inputs`` and ``outputs``: the tensors it reads and makes. ``host_calls`` is the number of framework calls on the
    CPU that come with it in eager execution, views included. ``share`` is how much of the operator's work one run does:
    below 1 where several nodes are one kernel together (a ragged batch). ``part``: of which part of the model
    (`predictor.formats.parts`) its weight is, "" for none. ``scope``: the module of the block that it belongs to, as
    "attention norm"; unique in the block, and the same for the nodes of its backward pass.
    """

    op: Op
    name: str = ""
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    count: int = 1
    phase: str = FORWARD
    host_calls: int = 1
    share: float = 1.0
    part: str = ""
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A sequence of nodes that runs ``repeat`` times (a transformer layer, the embedding, the head).

    ``carried`` goes from one run to the next: a run's second tensor is the next one's first. None: nothing does.
    ``branch``: what goes on beside it, to be added to it by the kernel that reads both first.
    ``layers``: which layers of the model its runs are, where they have numbers.
    ``backward_of``: place in the graph of the block whose backward pass it is; its first run belongs to that block's
    last. ``running``: sums of gradients, which go from one run to the next as well. ``beside``: its collectives run
    beside compute that does not read what they bring, whatever the engine.
    """

    name: str
    nodes: tuple[Node, ...]
    repeat: int = 1
    carried: tuple[Tensor, Tensor] | None = None
    layers: tuple[int, ...] = ()
    backward_of: int | None = None
    running: tuple[tuple[Tensor, Tensor], ...] = ()
    branch: tuple[Tensor, Tensor] | None = None
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """Blocks in the order in which they run. ``fused``: chains of its operators run as one kernel. ``recorded``: a
    frontend wrote down what ran, so that scopes are paths of modules and say nothing of their kind."""

    blocks: tuple[Block, ...]
    fused: bool = False
    recorded: bool = False

    def nodes(self) -> Iterator[tuple[Node, float]]:
        """Every node with how often it runs in all (its own count and share times its block's repeats)."""
        for block in self.blocks:
            for node in block.nodes:
                yield node, node.count * block.repeat * node.share

    def flops(self) -> float:
        """FLOPs of one run."""
        return sum(node.op.flops() * times for node, times in self.nodes())

    def weights(self) -> Iterator[tuple[Tensor, int]]:
        """Every weight once, with how many of it there are: one for each run of its block."""
        seen: set[int] = set()
        for block in self.blocks:
            for node in block.nodes:
                for t in node.inputs:
                    if t.role == WEIGHT and id(t) not in seen:
                        seen.add(id(t))
                        yield t, block.repeat

    def parameters(self) -> int:
        """Elements of all weights."""
        return sum(weight.elements * count for weight, count in self.weights())

    def unrolled(self) -> Graph:
        """The same graph with every repeat written out, on tensors of its own; it must cost the same.

        The first run of a backward block reads what the last run of its forward block made, and so on back.
        """
        blocks: list[Block] = []
        stands_for: dict[int, Tensor] = {}  # by id of a tensor, the one that the run at hand has in its place
        starts: list[int] = []
        runs: list[list[dict[int, Tensor]]] = []  # of every block, what its runs had in place of what
        for block in self.blocks:
            single = [replace(n, count=1) for n in block.nodes for _ in range(n.count)]
            made = {id(t.storage) for n in single for t in n.outputs}
            pairs = (*(pair for pair in (block.carried, block.branch) if pair), *block.running)
            starts.append(len(blocks))
            runs.append([])
            for i in range(block.repeat):
                copies: dict[int, Tensor] = {}
                before, of = stands_for, block.backward_of
                if of is not None:
                    before = {**stands_for, **runs[of][block.repeat - 1 - i]}
                    of = starts[of] + block.repeat - 1 - i
                new = partial(renewed, copies, before, made)
                nodes = tuple(
                    replace(n, inputs=tuple(map(new, n.inputs)), outputs=tuple(map(new, n.outputs))) for n in single
                )
                carried, branch = ((new(pair[0]), new(pair[1])) if pair else None
                                   for pair in (block.carried, block.branch))  # fmt: skip
                running = tuple((new(start), new(end)) for start, end in block.running)
                blocks.append(
                    Block(f"{block.name}.{i}", nodes, 1, carried, block.layers[i : i + 1], of, running, branch)
                )
                made_here = {key: copies[key] for key in made if key in copies}
                runs[-1].append({**made_here, **{id(start): new(start) for start, _ in pairs}})
                stands_for.update(made_here)
                stands_for.update({id(start): new(end) for start, end in pairs})
        return Graph(tuple(blocks), self.fused, self.recorded)


def renewed(copies: dict[int, Tensor], stands_for: dict[int, Tensor], made: set[int], tensor: Tensor) -> Tensor:
    """A tensor as another copy of a block has it: what is ``made`` there is new, and so are views of it.

    ``copies`` holds what the copy has so far, ``stands_for`` what other tensors are elsewhere, both by id of a tensor.
    """
    key = id(tensor)
    if key not in copies:
        if key in made:
            copies[key] = tensor.copied()
        elif key in stands_for or tensor.base is None:
            copies[key] = stands_for.get(key, tensor)
        else:
            copies[key] = tensor.copied(renewed(copies, stands_for, made, tensor.base))
    return copies[key]
