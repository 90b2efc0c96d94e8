"""What gradients flow through: the activations that depend on a weight."""

from __future__ import annotations

from collections import Counter

from predictor.graph.graph import Graph
from predictor.graph.tensor import ACTIVATION, WEIGHT, Tensor

#: By node of a block, the activations that it reads and hands a gradient to; None where it gets none itself.
Read = list[list[Tensor] | None]


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
