"""Experts over GPUs that have requests of their own, as serving engines spread them.

The ``tp`` x ``dp`` GPUs of a stage share the experts: ``ep`` of them have whole ones, and tp x dp / ep share the width
of each. Attention runs on tp GPUs for the requests of each of the dp ranks (attention data parallelism).

With dp 1 every GPU has all tokens: the sum over the experts' GPUs is that which tensor parallelism has. With more, the
tokens have to come to the experts, and go back, in one of these ways:

allgather   an all_gather over the dp ranks brings all tokens to all GPUs, a reduce_scatter the sums back (vLLM's
            `allgather_reducescatter`)
a library   an all_to_all of the copies of tokens over all tp x dp GPUs, or kernels for experts
            (`predictor.ops.exchange`), behind which the experts are products grouped by expert; each of the tp GPUs
            sends its part of the tokens
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from predictor import engines
from predictor.engines.registry import ALL_GATHER, sends_rows
from predictor.errors import RequestError, UnsupportedError
from predictor.files.records import replace
from predictor.formats.dtypes import bytes_of
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import Tensor
from predictor.ops.collective import over
from predictor.ops.exchange import DIRECT, FORWARDED, exchange
from predictor.ops.gemm import Gemm
from predictor.ops.moe import MoE
from predictor.passes.mesh import Mesh

if TYPE_CHECKING:
    from predictor.models.base import Model
    from predictor.ops.collective import Collective


#: Names of what brings tokens to the experts of all ranks, and back.
DISPATCH, COMBINE = "experts dispatch", "experts combine"
#: Bytes of a routing choice that goes with a token: a weight and an index in 32 bit each, by definition.
_CHOICE_BYTES = 8
#: The scheme whose rows travel with a scale for a block.
BLOCKS_OF_FP8 = "fp8_block"
#: Numbers that share a scale in rows of fp8, and its bytes (source: README.md of deepseek-ai/DeepEP@567632d).
_SCALED, _SCALE_BYTES = 128, 4


def check_experts(config: Model, mesh: Mesh, looped: bool = False) -> None:
    """RequestError, one line, for a degree that does not divide the experts or their width, or a way that cannot be.
    ``looped``: experts run one after the other, or all on all tokens, not as one operator."""
    ep, group = mesh.ep, mesh.degree("tp") * mesh.degree("dp")
    if ep > 1 and not config.experts:
        raise RequestError(f"--ep {ep}: {config.name} has no experts; expected 1")
    if looped and config.experts:
        raise UnsupportedError(
            f"--ep {ep} --dp {mesh.degree('dp')}: {config.name} runs experts one by one, or all"
            " on all tokens, here; expected --ep 1 --dp 1"
        )
    if config.experts % ep:
        fit = max(n for n in range(1, ep + 1) if config.experts % n == 0 and group % n == 0)
        raise RequestError(
            f"--ep {ep}: does not divide {config.experts} experts of {config.name}; nearest valid: {fit}"
        )
    if config.experts and config.moe_intermediate % (group // ep):
        raise RequestError(
            f"--ep {ep}: {group // ep} GPUs cannot split an expert's width of {config.moe_intermediate}; nearest"
            f" valid: {group}"
        )
    if config.experts and mesh.exchange != ALL_GATHER and mesh.degree("dp") > 1 and ep < group:
        raise RequestError(
            f"--all-to-all {mesh.exchange}: needs whole experts, but {group // ep} GPUs split each; expected"
            f" --ep {group}"
        )


def spread_experts(graph: Graph, mesh: Mesh, prompts: bool) -> Graph:
    """``graph``, of one rank of tensor parallelism, with the experts of ``mesh`` and what brings tokens to them.

    ``prompts``: a pass over prompts, not a decode step. The very same graph where one group of tp GPUs shares every
    expert, or there are none.
    """
    if mesh.ep == 1 and mesh.degree("dp") == 1:
        return graph
    blocks = tuple(_block(block, mesh, prompts) for block in graph.blocks)
    if all(new is old for new, old in zip(blocks, graph.blocks, strict=True)):
        return graph
    return replace(graph, blocks=blocks)


def _block(block: Block, mesh: Mesh, prompts: bool) -> Block:
    if not any(isinstance(node.op, MoE) for node in block.nodes):
        return block
    return replace(block, nodes=tuple(new for node in block.nodes for new in _nodes(node, mesh, prompts)))


def _nodes(node: Node, mesh: Mesh, prompts: bool) -> Iterator[Node]:
    """A node, of experts with what brings the tokens there and back."""
    op, dp = node.op, mesh.degree("dp")
    if not isinstance(op, MoE):
        yield node
        return
    group = mesh.degree("tp") * dp
    sent = dp > 1 and mesh.exchange != ALL_GATHER
    spread = replace(op, tokens=op.tokens * dp, tp=group // mesh.ep, ep=mesh.ep, dispatched=sent, gathered=dp > 1)
    if dp == 1:
        yield replace(node, op=spread)
        return
    x, y = node.inputs[0], node.outputs[0]
    there, gathered = _exchange(op, mesh, prompts, there=True), x.copied()
    back, summed = _exchange(op, mesh, prompts, there=False), y.copied()
    yield Node(there, DISPATCH, (x,), (gathered,), phase=node.phase, scope=node.scope)
    experts = replace(node, op=spread, inputs=(gathered, *node.inputs[1:]), outputs=(summed, *node.outputs[1:]))
    laid_out = sent and sends_rows(mesh.exchange)
    yield from _products(experts, prompts) if laid_out else (experts,)
    yield Node(back, COMBINE, (summed,), (y,), phase=node.phase, scope=node.scope)


def _products(node: Node, prompts: bool) -> Iterator[Node]:
    """The kernels of experts whose tokens a library of kernels for experts brought: products grouped by expert.

    In decode steps rows arrive sorted by expert, each expert's in a place of its own, whose empty rows, and experts
    without a row, the products pass over, and the way back weighs and sums them; prompts' rows are sorted, and summed,
    here. Source: SGLang 0.5.9 layers/moe/ep_moe (masked and contiguous grouped products of DeepGEMM), DeepEP's
    README.md.
    """
    permute, *between, unpermute = (_given_narrow(kernel) for kernel in _apart(node, node.op, active=True))
    if prompts:
        yield from (permute, *between, unpermute)
        return
    first, *_, last = between
    yield replace(first, inputs=(node.inputs[0], *first.inputs[1:]), host_calls=node.host_calls)
    yield from between[1:-1]
    yield replace(last, outputs=node.outputs)


def _given_narrow(node: Node) -> Node:
    """A product whose activations the exchange, or the activation before it, wrote in its narrow format."""
    op = node.op
    return replace(node, op=replace(op, quantized=True)) if isinstance(op, Gemm) and bytes_of(op.dtype) < 2 else node


def _exchange(op: MoE, mesh: Mesh, prompts: bool, there: bool) -> Collective:
    """What brings the tokens of one rank's ``op`` to the experts of all, or back."""
    wide = bytes_of("bf16")  # whatever the experts compute in, rows are of 16 bit beside them
    tp, dp = mesh.degree("tp"), mesh.degree("dp")
    if mesh.exchange == ALL_GATHER:
        row = op.hidden * wide + (op.top_k * _CHOICE_BYTES if there else 0)
        size = round(op.tokens * dp * row)
        return mesh.collective("all_gather" if there else "reduce_scatter", "dp", "bf16", size)
    group = tp * dp
    local = min(group, mesh.system.gpus_per_node)
    tokens = -(-op.tokens // tp)
    kernels = engines.library(mesh.exchange).exchanges
    if kernels is None:
        size = round(tokens * op.top_k * op.hidden * wide * replace(op, ep=group).skew)
        return over(mesh.system, "all_to_all", "bf16", size, group, local)
    row = _row_bytes(op, narrow=there and bytes_of(op.dtype) <= 1.0)
    way = FORWARDED if prompts else DIRECT
    return exchange(
        mesh.system, mesh.exchange, way, "bf16", row, tokens, op.top_k, group, local, replace(op, ep=group).skew,
        mesh.reach,
    )  # fmt: skip


def _row_bytes(op: MoE, narrow: bool) -> float:
    """Bytes of a row on its way: in fp8 with its scales, or in 16 bit."""
    return op.hidden * 1.0 + op.hidden / _SCALED * _SCALE_BYTES if narrow else op.hidden * bytes_of("bf16")


def reaching(mesh: Mesh, config: Model) -> Mesh:
    """``mesh``, with the share of the experts that a token of ``config`` picks from."""
    groups, picked = config.expert_groups, config.top_groups
    return replace(mesh, reach=picked / groups) if 0 < picked < groups else mesh


def is_expert(weight: Tensor) -> bool:
    """Whether a weight is the stacked matrices of experts; a router's one matrix is none."""
    return weight.axes[:1] == ("expert",) and len(weight.axes) > 2  # expert, rows, columns


def check_shared_experts(config: Model, ep: int, looped: bool = False) -> None:
    """RequestError, one line, where ``ep`` ranks cannot share the experts of a model in training. ``looped``: as of
    `check_experts`."""
    if ep > 1 and looped and not config.is_encoder_decoder:
        raise UnsupportedError(f"--ep {ep}: {config.name} runs all experts on all tokens here; expected 1")
    if ep > 1 and (not config.experts or config.is_encoder_decoder):
        raise RequestError(f"--ep {ep}: {config.name} has no experts to spread; expected 1")
    if config.experts and config.experts % ep:
        fit = max(n for n in range(1, ep + 1) if config.experts % n == 0)
        raise RequestError(
            f"--ep {ep}: does not divide {config.experts} experts of {config.name}; nearest valid: {fit}"
        )


def share_experts(graph: Graph, mesh: Mesh) -> Graph:
    """A forward graph in which the ranks along "ep" have a part of the experts each: an all_to_all takes every token's
    copies to its experts, another one brings what they made back; autograd makes the conjugates of both.

    A library of kernels for experts sends a token once to every node that it picks from; where experts compute in 8
    bits with a scale for every block, rows go out, and the gradients of what comes back, in 8 bits (DeepSeek-V3,
    arXiv:2412.19437, section 3.3.3); the backward pass counts as many bytes. Each rank's experts work on as many rows
    as before, of fewer experts. Where the model's routing prefers some, it is the rank of the busiest that all wait
    for: its rows come in both exchanges, and count in its products and memory.
    """
    ep = mesh.ep
    if ep == 1 and not mesh.folds:
        return graph
    within = 1 if mesh.folds else mesh.degree("tp")
    group = Mesh(
        (("tp", within), ("ep", ep)), mesh.system, 1, mesh.exchange, reach=mesh.reach
    )  # cp's ranks are among them, and those of tp that fold
    blocks = []
    for block in graph.blocks:
        nodes: list[Node] = []
        for node in block.nodes:
            nodes += _shared(node, node.op, group, ep, mesh.folds) if isinstance(node.op, MoE) else [node]
        changed = any(isinstance(node.op, MoE) for node in block.nodes)
        blocks.append(replace(block, nodes=tuple(nodes)) if changed else block)
    return replace(graph, blocks=tuple(blocks))


def _unsplit(weight: Tensor) -> Tensor:
    """Experts' matrices whose width no rule of tensor parallelism splits."""
    axes = tuple(axis.replace("mlp", "expert_width") for axis in weight.axes)
    segments = {name.replace("mlp", "expert_width"): parts for name, parts in (weight.segments or {}).items()}
    return Tensor(weight.name, axes, weight.shape, weight.dtype, weight.role, segments)


def _shared(node: Node, op: MoE, mesh: Mesh, ep: int, folds: bool) -> list[Node]:
    x, chosen, *weights = node.inputs
    if folds:
        weights = [_unsplit(weight) for weight in weights]
    if ep == 1:
        return [replace(node, op=replace(op, folds=folds), inputs=(x, chosen, *weights))]
    y = node.outputs[0]
    arrived, made = x.copied(x.base), y.copied()
    shared = replace(op, tokens=op.tokens * ep, ep=ep, dispatched=True, folds=folds)
    nbytes = op.tokens * op.top_k * op.hidden * bytes_of(x.dtype) * shared.skew
    there = back = mesh.collective("all_to_all", "ep", x.dtype, round(nbytes))
    if sends_rows(mesh.exchange):
        there, back = (
            exchange(mesh.system, mesh.exchange, FORWARDED, x.dtype, _row_bytes(op, narrow), op.tokens, op.top_k, ep,
                     back.local_ranks, shared.skew, mesh.reach)
            for narrow in (op.quant == BLOCKS_OF_FP8, False)
        )  # fmt: skip
    local = [Tensor(w.name, w.axes, (w.shape[0] // ep, *w.shape[1:]), w.dtype, w.role, w.segments) for w in weights]
    scope = node.scope
    return [
        Node(there, "dispatch all_to_all", (x,), (arrived,), part=node.part, scope=f"{scope} dispatch"),
        replace(node, op=shared, inputs=(arrived, chosen, *local), outputs=(made, *node.outputs[1:])),
        Node(back, "combine all_to_all", (made,), (y,), part=node.part, scope=f"{scope} combine"),
    ]


#: What the kernels are called behind the name of the layer.
_NAMES = ("permute", "up", "activation", "down", "unpermute")


def experts_apart(graph: Graph) -> Graph:
    """A joint ``graph`` with the kernels of its experts; the very same one where it has none.

    The backward pass is `MoE.backward`'s already. What a node kept for it, each kernel writes as its result.
    """
    blocks = tuple(
        replace(block, nodes=tuple(new for node in block.nodes for new in _apart(node, node.op)))
        if any(isinstance(node.op, MoE) for node in block.nodes)
        else block
        for block in graph.blocks
    )
    if all(new is old for new, old in zip(blocks, graph.blocks, strict=True)):
        return graph
    return replace(graph, blocks=blocks)


def _apart(node: Node, op: object, active: bool = False) -> tuple[Node, ...]:
    if not isinstance(op, MoE):
        return (node,)
    inputs, result = node.inputs, node.outputs[0]
    x, *rest = inputs
    up, down = rest[1:2], rest[2:3]
    others = (*rest[:1], *rest[3:])
    kept = node.outputs[1:] or tuple(
        Tensor(f"{node.name} {made.name}", made.axes, made.shape, made.dtype) for made in op.kept()
    )
    gathered, widened, *activated, summed = kept
    reads = ((x, *others), (gathered, *up), (widened,), (activated[-1], *down), (summed, *others))
    makes = ((gathered,), (widened,), tuple(activated), (summed,), (result,))
    kernels = op.apart(active)
    calls = (max(1, node.host_calls - len(kernels) + 1), 1, 1, 1, 1)
    return tuple(
        replace(node, op=kernel, name=f"{node.name} {name}", inputs=read, outputs=made, host_calls=many)
        for kernel, name, read, made, many in zip(kernels, _NAMES, reads, makes, calls, strict=True)
    )
