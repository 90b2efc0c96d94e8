"""From logits to tokens: what an engine's sampler runs on every rank behind the head, as a block of the graph.

Logits are widened to fp32, and greedy requests take the largest. Others scale them by the temperature, make
probabilities of them, and draw: noise in the shape of the vocabulary, a division, the largest. Top-k and top-p find
their tokens before that, by a sort or by reading the probabilities again and again
(`predictor.engines.vintage.SamplingSteps`). Penalties come first of all: kernels over the vocabulary for each rule.
"""

from __future__ import annotations

from predictor.engines import GREEDY, PENALTIES, Engine
from predictor.engines.vintage import PENALTY_BYTES, SORTED_BYTES
from predictor.files.records import replace
from predictor.formats.dtypes import bytes_of
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import Tensor
from predictor.ops.base import Op
from predictor.ops.elementwise import Elementwise, Reduce
from predictor.ops.norm import Softmax

NAME = "sampler"
_DTYPE = "fp32"
_WRITTEN = bytes_of(_DTYPE)  # an operator counts what it writes by itself


def sample(graph: Graph, engine: Engine, rows: int, vocab: int, sampling: str = GREEDY) -> Graph:
    """``graph`` with the sampler of ``engine`` behind it, for ``rows`` sequences; itself where none runs."""
    if not engine.samples or not vocab:
        return graph
    last = graph.blocks[-1].nodes[-1].outputs[0]
    elements = rows * vocab
    nodes: list[Node] = []

    def put(op: Op, name: str, source: Tensor) -> Tensor:
        out = Tensor(f"{NAME} {name}", ("batch", "vocab"), (rows, vocab), _DTYPE)
        nodes.append(Node(op, out.name, (source,), (out,), scope=out.name))
        return out

    x = put(Elementwise(_DTYPE, "cast", elements, in_dtype=last.dtype), "cast", last)
    choice = sampling.removesuffix(PENALTIES)
    if choice != sampling:
        for name, each in PENALTY_BYTES.items():
            x = put(Elementwise(_DTYPE, "fused", elements, 0, (each - _WRITTEN) * elements), name, x)
    if choice != GREEDY:
        x = put(Elementwise(_DTYPE, "div_scalar", elements), "temperature", x)
        release = engine.vintage()
        known = None if release is None else release.sampler
        extra_bytes = SORTED_BYTES if known is None else known.truncation_bytes
        if choice in extra_bytes:
            x = put(Elementwise(_DTYPE, "topk", elements, 0, extra_bytes=extra_bytes[choice] * elements), choice, x)
        x = put(Softmax(_DTYPE, rows, vocab), "softmax", x)
        x = put(Elementwise(_DTYPE, "fill", elements), "noise", x)
        x = put(Elementwise(_DTYPE, "div", elements), "draw", x)
    put(Reduce(_DTYPE, rows, vocab, 1), "argmax", x)
    return replace(graph, blocks=(*graph.blocks, Block(NAME, tuple(nodes))))
