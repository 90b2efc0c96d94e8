"""What autograd keeps of a forward pass, read off the edges of a joint graph."""

from __future__ import annotations

from typing import NamedTuple

from predictor.graph.graph import Graph
from predictor.graph.tensor import ACTIVATION, GRADIENT, WEIGHT, Tensor


class SavedTensor(NamedTuple):
    """A tensor of the forward pass that the backward pass reads, how many of it are kept at once, and bytes of all.

    ``copies`` of them are of one run of its block: more than one where nodes that run several times in a row make it
    and read it.
    """

    tensor: Tensor
    times: int
    nbytes: float
    copies: int = 1


def saved_tensors(graph: Graph) -> tuple[SavedTensor, ...]:
    """What the backward blocks of a joint graph read of its forward blocks, each storage once.

    A view keeps all of its storage alive, as in PyTorch; of a graph of fused kernels, whose compiler chooses what it
    hands on, slices count alone. Weights are not counted, nor what no node makes (a mask or a table that the model has
    anyway), but for the input of a graph of layers alone.

    Of a block that repeats, its own backward passes read every run's; the first of the ``carried`` tensors is in all
    runs but one what the run before made, so that reading it keeps the second one, too. What blocks after it read is
    the last run's.
    """
    maker: dict[int, tuple[int | None, int]] = {}
    for b, block in enumerate(graph.blocks):
        if block.backward_of is None:
            for node in block.nodes:
                for t in node.outputs:
                    maker[id(t.storage)] = (b, node.count)
    kept: dict[int, _Runs] = {}
    for b, block in enumerate(graph.blocks):
        if block.backward_of is None:
            continue
        forward = graph.blocks[block.backward_of]
        first, last = (t.storage for t in forward.carried) if forward.carried else (None, None)
        made = {id(t.storage) for node in block.nodes for t in node.outputs}
        seen: set[tuple[int, int]] = set()
        for node in block.nodes:
            for t in node.inputs:
                if t.role in (GRADIENT, WEIGHT):
                    continue
                storage = t.storage
                key = id(storage)
                if key in made or (id(t), node.count) in seen:
                    continue
                seen.add((id(t), node.count))
                made_by = maker.get(key)
                if made_by is None and storage.role != ACTIVATION:
                    continue
                runs = kept.get(key)
                if runs is None:
                    runs = kept[key] = _Runs(storage, made_by[1] if made_by else 1)
                runs.read(t, node.count, graph.fused)
                if made_by is not None and made_by[0] == block.backward_of:
                    runs.every[b] = block.repeat
                    continue
                runs.last = True
                if storage is first and last is not None and forward.repeat > 1:
                    runs = kept.get(id(last)) or _Runs(last, maker[id(last)][1])
                    runs.read(t, node.count, graph.fused)
                    runs.before[b] = block.repeat
                    kept[id(last)] = runs
    return tuple(SavedTensor(runs.storage, runs.times, runs.nbytes * runs.times, runs.count) for runs in kept.values())


class _Runs:
    """Which runs of a block a storage is kept of: ``every`` one, all ``before`` the last, the last; the former two by
    place of the backward blocks that read it with their runs, as some may be run again and others not."""

    __slots__ = ("before", "count", "every", "last", "makes", "parts", "storage", "whole")

    def __init__(self, storage: Tensor, makes: int) -> None:
        self.storage = storage
        self.makes = makes
        self.count = 1
        self.every: dict[int, int] = {}
        self.before: dict[int, int] = {}
        self.last = False
        self.whole = False
        self.parts: dict[int, float] = {}

    def read(self, tensor: Tensor, count: int, fused: bool) -> None:
        """``tensor``, a view of the storage or it, is read ``count`` times by a graph that is ``fused`` or not."""
        self.count = max(self.count, min(count, self.makes))
        part: Tensor | None = tensor if fused else None
        while part is not None and not part.part:
            part = part.base
        if part is None:
            self.whole = True
        else:
            self.parts[id(part)] = part.nbytes

    @property
    def nbytes(self) -> float:
        """Bytes of what is kept of one."""
        return self.storage.nbytes if self.whole else min(sum(self.parts.values()), self.storage.nbytes)

    @property
    def times(self) -> int:
        return self.count * (sum(self.every.values()) or max(0, sum(self.before.values()) - 1) + self.last)
