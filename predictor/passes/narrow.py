"""What training with products of 8 bits and fewer runs beside them: operands are cast, as Transformer Engine does
(transformer_engine/pytorch/module/layernorm_linear.py and linear.py, common/recipe/__init__.py at d0067d0d).

fp8      a scale for every tensor that is known from steps before (delayed scaling); operands are copied transposed
current  the same with the scale of the tensor itself, whose largest magnitude is read first; no norm writes it
block    a scale for 128 elements, of weights for 128 x 128, found and used in one kernel; no norm writes it
rows     a scale for a row where products read rows, for a column where they read columns, a kernel each (torchao)
mxfp8    a scale for 32 elements: a cast writes both directions at once, a norm too, and nothing is transposed
nvfp4    a scale for 16 elements below one of the tensor, whose largest magnitude is read first; both directions

A product reads its operands along the axis that it contracts, the two of the backward pass along others, and 8-bit
tensor cores of Hopper take one layout alone: every operand is there twice. A norm writes its result in 8 bits itself
where the scale is known; its transposed copy is a kernel. Other activations, and gradients, are read once and written
twice, by a kernel that sums a bias's gradient, too; gradients that tensor-parallel ranks gather are cast before that
where a tensor has one scale (module/base.py, grad_output_preprocess). Weights are cast for every micro-batch, but for
frozen ones, which are stored so. AMD's kernels and boards of other generations are taken to run the same; what compiled
PyTorch runs (torchao) is counted alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from predictor.files.records import replace
from predictor.formats.dtypes import bytes_of
from predictor.formats.quantization import CURRENT, ROWS, activation_bytes, weight_bytes
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import ACTIVATION, GRADIENT, WEIGHT, Tensor
from predictor.ops.base import BACKWARD, FORWARD
from predictor.ops.collective import Collective
from predictor.ops.elementwise import Elementwise, Reduce
from predictor.ops.gemm import Gemm
from predictor.ops.norm import Norm
from predictor.passes.freeze import is_trained
from predictor.passes.sequence_parallel import gathers


class CastRecipe(NamedTuple):
    """How operands come into few bits. ``amax``: how often a tensor is read before its cast, for its scale;
    ``norm_writes``: of both directions, those that a norm writes itself; ``together``: one kernel writes both, else
    each has one; ``quant``: the scheme of the products (`predictor.formats.quantization`)."""

    amax: int = 0
    norm_writes: int = 0
    together: bool = True
    quant: str = ""


#: By the dtype of the products and the scheme of the word. Source: Transformer Engine's
#: docs/features/low_precision_training at d0067d0d (reads of a tensor, what is transposed), and of rows torchao's
#: float8 recipe "rowwise", whose two directions have scales of their own.
RECIPES: Mapping[tuple[str, str], CastRecipe] = {
    ("fp8", ""): CastRecipe(norm_writes=1),
    ("fp8", CURRENT): CastRecipe(amax=1),
    ("fp8", "fp8_block"): CastRecipe(quant="fp8_block"),
    ("fp8", ROWS): CastRecipe(norm_writes=1, together=False),
    ("mxfp8", ""): CastRecipe(norm_writes=2),
    ("nvfp4", ""): CastRecipe(amax=1),
}


def with_casts(graph: Graph, frozen: bool, scheme: str = "") -> Graph:
    """A fused joint ``graph`` with the casts of its linear layers in 8 bits and fewer, scaled by ``scheme``; itself
    where it has none. ``frozen``: no weight but the adapters' is trained, so that no product wants a transposed
    operand."""
    blocks = []
    for block in graph.blocks:
        normed = {id(t.storage) for node in block.nodes if isinstance(node.op, Norm) for t in node.outputs}
        moved = {id(t.storage): id(node.inputs[0].storage) for node in block.nodes
                 if node.op.family == "collective" for t in node.outputs}  # fmt: skip
        done: set[int] = set()
        nodes: list[Node] = []
        gathered: dict[int, int] = {}  # by storage, places of gradients that are gathered
        sums = {id(node.inputs[0].storage): node for node in block.nodes
                if node.phase == BACKWARD and isinstance(node.op, Reduce) and node.op.axis == 0}  # fmt: skip
        cast_with: dict[int, Node] = {}
        for node in block.nodes:
            op = node.op
            if isinstance(op, Collective) and op.kind == "all_gather" and node.phase == BACKWARD:
                gathered |= {id(t.storage): len(nodes) for t in node.outputs if t.role == GRADIENT}
            if isinstance(op, Gemm) and op.kind == "linear" and bytes_of(op.dtype) < 2:
                recipe = RECIPES[op.dtype, scheme]
                key = id(node.inputs[0].storage)
                op = replace(op, quantized=True, quant=recipe.quant)
                if op.layout in ("tn", "nn") and key not in done:
                    done.add(key)
                    if node.phase == BACKWARD and key in gathered and op.dtype == "fp8" and not recipe.quant:
                        _narrowed_before(nodes, gathered[key], node, op, recipe, frozen)
                        gathered = {k: p + (p >= gathered[key]) for k, p in gathered.items()}
                    else:
                        from_norm = moved.get(key, key) in normed
                        casts = _casts(node, op, recipe, frozen, from_norm and node.phase == FORWARD)
                        if casts and key in sums and node.phase == BACKWARD and not recipe.amax:
                            casts[0] = replace(casts[0], outputs=sums[key].outputs)
                            cast_with[id(sums[key])] = casts[0]
                        nodes += casts
                node = replace(node, op=op)
            nodes.append(node)
        if cast_with:
            nodes = [node for node in nodes if id(node) not in cast_with]
        blocks.append(block if nodes == list(block.nodes) else replace(block, nodes=tuple(nodes)))
    return replace(graph, blocks=tuple(blocks))


def _narrowed_before(nodes: list[Node], place: int, product: Node, op: Gemm, recipe: CastRecipe, frozen: bool) -> None:
    """Casts a rank's part of a gradient before the collective at ``place`` that gathers it, which then moves 8 bits;
    what was gathered is transposed for the weight's product (module/base.py, grad_output_preprocess: "FP8 case with
    gather")."""
    node = nodes[place]
    gather = node.op
    assert isinstance(gather, Collective)
    narrow, wide = bytes_of(op.dtype), bytes_of(gather.dtype)
    nodes[place] = replace(node, op=replace(gather, dtype=op.dtype, size=round(gather.size * narrow / wide)))
    name = f"{product.name} cast"
    elements = op.m * op.k // gather.ranks
    beside = elements * recipe.amax * bytes_of("bf16")
    cast = Elementwise(op.dtype, "quantize", elements, -1, beside, "bf16")
    nodes.insert(place, Node(cast, name, phase=BACKWARD, scope=name))
    if not frozen:
        name = f"{product.name} transpose"
        copy = Elementwise(op.dtype, "quantize", op.m * op.k, -1, 0.0, op.dtype)
        nodes.append(Node(copy, name, phase=BACKWARD, scope=name))


def _casts(node: Node, op: Gemm, recipe: CastRecipe, frozen: bool, from_norm: bool) -> list[Node]:
    """Of what a product reads: its activation or gradient, and forward its weight."""
    ways = 1 if frozen else 2
    written = min(recipe.norm_writes, ways) if from_norm else 0
    kernels = _kernels(node, op, recipe, "cast", op.m * op.k, ways - written, written)
    if node.phase != BACKWARD and not frozen and not any(is_trained(t) for t in node.inputs):
        kernels += _kernels(node, op, recipe, "weight cast", op.n * op.k, ways, 0)
    return kernels


def _kernels(node: Node, op: Gemm, recipe: CastRecipe, name: str, elements: int, ways: int, written: int) -> list[Node]:
    """The kernels that write a tensor in ``ways`` directions; with one ``written`` by a norm and scaled as this one,
    the other is a copy of it."""
    if not ways:
        return []
    narrow = activation_bytes(op.dtype, recipe.quant)
    is_copy = bool(written) and recipe.together
    at_once = ways if recipe.together else 1
    more = elements * ((at_once - 1) * narrow + narrow - bytes_of(op.dtype) + recipe.amax * bytes_of("bf16"))
    kernel = Elementwise(op.dtype, "quantize", elements, -1, 0.0 if is_copy else more, op.dtype if is_copy else "bf16")
    scope = f"{node.name} {name}"
    called = [scope] if ways == at_once else [scope, f"{scope} of columns"]
    return [Node(kernel, each, phase=node.phase, scope=each) for each in called]


def keep_narrow(graph: Graph) -> Graph:
    """A joint ``graph`` whose weights' products read what the forward pass brought into few bits, so that autograd
    keeps that; itself where it has none.

    What ranks gather is kept before it is gathered, and gathered again. What another operator's backward pass reads
    (attention its result) is kept in full beside it. Source: transformer_engine/pytorch/module/linear.py and
    layernorm_linear.py at d0067d0d, `saved_inputmat` and `ln_out`.
    """
    blocks = list(graph.blocks)
    for b, block in enumerate(graph.blocks):
        if block.backward_of is not None and any(map(_of_narrow_weight, block.nodes)):
            forward, backward = _kept_narrow(blocks[block.backward_of], block)
            blocks[block.backward_of], blocks[b] = forward, backward
    return replace(graph, blocks=tuple(blocks))


def _of_narrow_weight(node: Node) -> bool:
    op = node.op
    return isinstance(op, Gemm) and op.kind == "linear" and op.layout == "nt" and bytes_of(op.dtype) < 2


def _kept_narrow(forward: Block, backward: Block) -> tuple[Block, Block]:
    """The two blocks of a layer with the narrow tensors that the one makes for the other."""
    makers = {id(t.storage): i for i, node in enumerate(forward.nodes) for t in node.outputs}
    gathered = {id(t.storage): node for node in backward.nodes if gathers(node) for t in node.outputs}
    casts = {node.name: i for i, node in enumerate(forward.nodes)}
    made: dict[int, Tensor] = {}
    more: dict[int, list[Tensor]] = {}
    instead: dict[int, Tensor] = {}  # by id of a node, what it reads in place of an activation
    for node in filter(_of_narrow_weight, backward.nodes):
        read = next((t.storage for t in node.inputs[::-1] if t.role == ACTIVATION), None)
        if read is None:
            continue
        gather = gathered.get(id(read))
        source = read if gather is None else gather.inputs[0].storage
        if id(source) not in makers:  # made again
            continue
        if id(source) not in made:
            made[id(source)] = Tensor(f"{node.name} input", source.axes, source.shape, node.op.dtype)
            writer = casts.get(f"{node.name} cast", makers[id(source)])
            more.setdefault(writer, []).append(made[id(source)])
        instead[id(node if gather is None else gather)] = made[id(source)]
    written = [replace(n, outputs=(*n.outputs, *more[i])) if i in more else n for i, n in enumerate(forward.nodes)]
    behind = []
    for node in backward.nodes:
        if id(node) in instead:
            at = max(i for i, t in enumerate(node.inputs) if t.role == ACTIVATION)
            node = replace(node, inputs=(*node.inputs[:at], instead[id(node)], *node.inputs[at + 1 :]))
        behind.append(node)
    return replace(forward, nodes=tuple(written)), replace(backward, nodes=tuple(behind))


def spared_bytes(graph: Graph, itemsize: float, any_layout: bool) -> float:
    """Bytes by which the frozen weights of narrow products, stored as these read them, are fewer than with ``itemsize``
    bytes an element.

    A product reads a weight along one axis forward and along the other backward. One copy serves both where tensor
    cores take ``any_layout`` and the weight has one scale; else there are two (`RECIPES`). Source:
    docs/features/low_precision_training at d0067d0d: Blackwell makes no physical transposes.
    """
    spared: dict[int, float] = {}
    for block in graph.blocks:
        for node in block.nodes if block.backward_of is None else ():
            op = node.op
            if not isinstance(op, Gemm) or op.kind != "linear" or bytes_of(op.dtype) >= 2:
                continue
            copies = 1 if any_layout and op.dtype == "fp8" and not op.quant else 2
            left = itemsize - copies * weight_bytes(op.dtype, op.quant)
            spared |= {
                id(t): t.elements * left * block.repeat
                for t in node.inputs if t.role == WEIGHT and len(t.axes) > 1 and not is_trained(t)
            }  # fmt: skip
    return sum(spared.values())
