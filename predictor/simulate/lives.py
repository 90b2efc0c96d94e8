"""Memory over time: bytes of tensors that are alive after every node of a joint graph.

A tensor lives from the node that makes it to the last one that reads it: what autograd saved until its backward pass
has run, a gradient until it is used. Weights are left out, and gradients that nothing reads: those of weights. What no
node makes is left out, too (masks and tables that the model has anyway), but for activations, which live from the
start.

A block that repeats makes each of its tensors in every run, and those of all runs but the last live alike: until the
end of the run, into the next one, or until the backward pass of the run. So the bytes after a node are linear in the
run, and any run is looked at alone: cost is flat in depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from predictor.graph.graph import Block, Graph
from predictor.graph.saved import saved_tensors
from predictor.graph.tensor import ACTIVATION, WEIGHT, Tensor
from predictor.ops.roofline import FloatArray


class _End(NamedTuple):
    """Where the tensor of run r is read last: ``node`` of ``block``, in its run ``run`` + ``step`` r."""

    block: int
    run: int
    step: int
    node: int


class _Life(NamedTuple):
    """A tensor of ``nbytes`` that runs ``first`` to ``last`` (past the last of them) of a block make at a node."""

    nbytes: float
    block: int
    node: int
    first: int
    last: int
    end: _End

    def alive(self, block: int, run: int) -> int:
        """How many of them are alive when a run of a block begins."""
        first, last, end = self.first, self.last, self.end
        if self.block > block or end.block < block:
            return 0
        if self.block == block:
            last = min(last, run)
        if end.block == block:
            if end.step > 0:
                first = max(first, run - end.run)
            elif end.step < 0:
                last = min(last, end.run - run + 1)
            elif end.run < run:
                return 0
        return max(0, last - first)

    def ending(self, block: int, run: int) -> int:
        """How many of them are read last in a run of a block."""
        end = self.end
        if end.block != block:
            return 0
        if not end.step:
            return self.last - self.first if end.run == run else 0
        return int(self.first <= (run - end.run) * end.step < self.last)


class Lives:
    """How long every tensor of a joint graph lives."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._lives = list(_lives(graph))

    def after(self, block: int, run: int = 0) -> FloatArray:
        """Bytes alive after each of the n nodes of one run of a block of the graph, of shape (n,)."""
        change = np.zeros(len(self.graph.blocks[block].nodes))
        for life in self._lives:
            change[0] += life.nbytes * life.alive(block, run)
            if life.block == block and life.first <= run < life.last:
                change[life.node] += life.nbytes
            ending = life.ending(block, run)
            if ending:
                change[life.end.node] -= life.nbytes * ending
        result: FloatArray = np.cumsum(change)
        return result

    @property
    def peak(self) -> float:
        """The most bytes that are alive after any node. Linear between them, a block's second run and its last but one
        stand for those between."""
        return max(
            float(self.after(b, run).max())
            for b, block in enumerate(self.graph.blocks)
            for run in {0, min(1, block.repeat - 1), max(0, block.repeat - 2), block.repeat - 1}
        )


def _lives(graph: Graph) -> Iterator[_Life]:
    blocks = graph.blocks
    made: dict[int, tuple[int, int, Tensor]] = {}
    for b, block in enumerate(blocks):
        for i, node in enumerate(block.nodes):
            for t in node.outputs:
                made.setdefault(id(t.storage), (b, i, t.storage))
    usual, last = _ends(blocks, made)
    kept = {id(entry.tensor): (entry.nbytes / entry.times, entry.copies) for entry in saved_tensors(graph)}
    for key, (b, i, t) in made.items():
        runs = blocks[b].repeat if b >= 0 else 1
        here = _End(b, 0, 1, i)
        end = usual.get(key, here)
        nbytes, count = kept.get(key, (t.nbytes, 1))
        if runs > 1:
            yield _Life(nbytes * count if end.block != b else nbytes, b, i, 0, runs - 1, end)
        end = last.get(key) or _End(b, runs - 1, 0, i)
        if end.block >= 0:
            yield _Life(nbytes * count if end.block != b else nbytes, b, i, runs - 1, runs, end)


def _ends(
    blocks: tuple[Block, ...], made: dict[int, tuple[int, int, Tensor]]
) -> tuple[dict[int, _End], dict[int, _End]]:
    """Where tensors are read last, by id of the storage: those of all runs of a block but the last, and of that.

    Activations that no node makes are added to ``made``, as if a block before all others had made them.
    """
    usual: dict[int, _End] = {}
    last: dict[int, _End] = {}
    for x, block in enumerate(blocks):
        of, runs = block.backward_of, block.repeat
        own = _handed_on(block)
        before = _handed_on(blocks[of]) if of is not None else {}
        for i, node in enumerate(block.nodes):
            for t in node.inputs:
                storage = t.storage
                key = id(storage)
                if storage.role == WEIGHT:
                    continue
                if key in own and runs > 1:
                    usual[own[key]] = _later(usual.get(own[key]), _End(x, 1, 1, i))
                if key in before and runs > 1:
                    usual[before[key]] = _later(usual.get(before[key]), _End(x, runs - 2, -1, i))
                if key not in made:
                    if storage.role != ACTIVATION:
                        continue
                    made[key] = (-1, 0, storage)
                b = made[key][0]
                if b == x:
                    usual[key] = _later(usual.get(key), _End(x, 0, 1, i))
                    last[key] = _later(last.get(key), _End(x, runs - 1, 0, i))
                elif of is not None and b == of:
                    usual[key] = _later(usual.get(key), _End(x, runs - 1, -1, i))
                    last[key] = _later(last.get(key), _End(x, 0, 0, i))
                else:
                    last[key] = _later(last.get(key), _End(x, 0 if key in own else runs - 1, 0, i))
    return usual, last


def _handed_on(block: Block) -> dict[int, int]:
    """By id of a storage that a run gets from the run before, that of the one which it is there."""
    pairs = (*(pair for pair in (block.carried, block.branch) if pair), *block.running)
    return {id(start.storage): id(end.storage) for start, end in pairs}


def _later(one: _End | None, other: _End) -> _End:
    if one is None or (other.block, other.run, other.node) >= (one.block, one.run, one.node):
        return other
    return one
