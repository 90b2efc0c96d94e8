"""From a model and a pass to the graph that one GPU runs: the builder's, and the passes over it in their order."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from predictor.engines import EAGER, Engine
from predictor.errors import RequestError, UnsupportedError
from predictor.formats.dtypes import bytes_of
from predictor.formats.parts import Formats, plain
from predictor.formats.quantization import CURRENT
from predictor.graph import Graph
from predictor.models.built import ModelConfig, Step, build
from predictor.models.built.traced import recorded
from predictor.ops.gemm import Gemm
from predictor.passes.autograd import joint
from predictor.passes.freeze import freeze
from predictor.passes.name_parts import with_parts
from predictor.passes.quantize import quantize
from predictor.passes.recompute import recompute
from predictor.request.options import CACHED
from predictor.request.parallelism import Parallelism
from predictor.request.workload import Workload

if TYPE_CHECKING:
    from predictor.hardware.system import SystemSpec
    from predictor.passes.mesh import Mesh


def mesh_of(work: Workload) -> Mesh | None:
    """The GPUs of a run, an axis a parallelism; None for one GPU."""
    degrees = work.parallelism
    if degrees.num_gpus == 1 or work.system is None:
        return None
    return placed(degrees, work.system, work.all_to_all)


@lru_cache(maxsize=256)
def placed(degrees: Parallelism, system: SystemSpec, exchange: str = "") -> Mesh:
    """The GPUs of degrees, tp within, on as many GPUs of each node; ``exchange``: what brings tokens to experts in
    serving. RequestError where its groups do not lie in nodes in one way."""
    from predictor.passes.mesh import Mesh  # a forecast of one GPU starts without it

    axes = ("tp", degrees.tp), ("cp", degrees.cp), ("dp", degrees.dp), ("pp", degrees.pp)
    return Mesh(axes, system.shared_by(degrees.groups, (degrees.sharers,)), degrees.ep, exchange)


def own_update(config: ModelConfig, step: Step, accumulate: bool) -> Graph | None:
    """The step of the optimizer that a traced model brought along; None where the house's runs."""
    source = recorded(config)
    update = source.record(step, accumulate).update if source is not None else None
    return update if update is not None and update.blocks else None


def _eager(
    config: ModelConfig, step: Step, formats: Formats | None, among: Mesh | None, accumulate: bool | None
) -> Graph:
    """The builder's graph, in its number formats, its experts shared out ``among`` the GPUs of a mesh, and with the
    backward pass where gradients are asked for."""
    graph = quantize(build(config, step), formats or plain(step.act_dtype))
    if among is not None and step.exchanges > 1:
        from predictor.passes.context_parallel import linked

        graph = linked(graph, among)
    if among is not None:
        from predictor.passes.expert_parallel import check_shared_experts, share_experts

        check_shared_experts(config, among.ep)
        graph = share_experts(graph, among)
    return graph if accumulate is None else joint(graph, accumulate)


#: What holds a step of training is looked for among steps that run other parts of one graph again. Chosen by hand, not
#: from data: the micro-batches of a search.
_joint = lru_cache(maxsize=16)(_eager)


def lower(
    config: ModelConfig, step: Step, mesh: Mesh | None = None, formats: Formats | None = None, engine: Engine = EAGER,
    accumulate: bool | None = None, again: str = "none", sequences: bool = False,
    cp_comm: str = "ring", in_pieces: bool = False, ulysses: int = 0,
) -> Graph:  # fmt: skip
    """The graph of one GPU, or of one rank of ``mesh``, in ``formats`` (None: all in the dtype of its activations) and
    the kernels of ``engine``.

    With ``accumulate`` its backward pass follows, which adds to the gradients that are there, or (False) makes them;
    ``again`` says what of the forward pass runs again in it (`predictor.passes.recompute`). ``sequences``: outside of
    what tensor parallelism splits, they are split over its ranks. In training, ``step`` is a rank's part of the
    sequences where the mesh has an axis "cp" (``cp_comm``: how attention sees the rest), and its ``ep`` ranks share the
    experts; ``ulysses`` of a traced model's ranks along "cp" exchange heads (0: as ``cp_comm`` says); ``in_pieces``:
    products run in pieces beside the collectives of tensor parallelism.

    Raises RequestError, one line with the nearest degree that works, where a degree does not divide the model.
    """
    source, degree = recorded(config), 1 if mesh is None else mesh.degree("tp")
    if source is not None:
        graph = _recorded(config, step, accumulate, mesh, ulysses or (1 if cp_comm == "ring" else 0))
        graph = recompute(_in_formats(with_parts(graph), config, formats or plain(step.act_dtype)), again)
        if mesh is not None and degree > 1:
            from predictor.passes.tensor_parallel import joined

            graph = joined(graph, mesh)
    else:
        among = (
            mesh
            if mesh is not None and (mesh.ep > 1 or mesh.folds or step.exchanges > 1) and step.mode == "train"
            else None
        )
        graph = (_eager if accumulate is None else _joint)(config, step, formats, among, accumulate)
        if accumulate is not None:
            graph = recompute(graph, again)
            if step.lora:
                graph = freeze(graph)
    if mesh is not None and source is None:
        from predictor.passes.shard import shard  # a forecast of one GPU starts without it
        from predictor.passes.tensor_parallel import TENSOR, check_tensor

        serves = step.mode in CACHED
        check_tensor(config, degree, spread=serves and mesh.ep * mesh.degree("dp") > 1)
        soft: dict[str, str] = {}
        if sequences:
            from predictor.passes.sequence_parallel import SEQUENCE, check_sequence

            check_sequence(step.seq_len, degree)
            soft = SEQUENCE
        graph = shard(graph, mesh, TENSOR, soft)
        if in_pieces:
            from predictor.passes.sequence_parallel import beside_products

            graph = beside_products(graph)
        if serves and mesh.ep * mesh.degree("dp") > 1:
            from predictor.passes.expert_parallel import check_experts, spread_experts

            check_experts(config, mesh, looped=step.experts == "loop" and bool(config.expert_capacity))
            graph = spread_experts(graph, mesh, step.mode != "decode")
    based = step.lora > 0 and accumulate is not None and formats is not None and bool(formats.linear.quant)
    based = based and formats is not None and bytes_of(formats.linear.dtype) >= 2
    if not engine.fuses:
        return _unpacked(_in_context(_trained(config, graph, accumulate), mesh, cp_comm), based)
    from predictor.passes.fuse import fuse  # a forecast of eager PyTorch starts without it

    graph = _in_context(fuse(graph, engine, step.attention), mesh, cp_comm)
    if accumulate is not None:
        graph = _trained(config, graph, accumulate)
        if step.lora:
            graph = freeze(graph)
        training = engine.training
        if formats is not None and bytes_of(formats.linear.dtype) < 2:
            from predictor.passes.narrow import with_casts  # nor does eager PyTorch cast in one kernel

            now = training is not None and training.scales_now and formats.linear.dtype == "fp8"
            graph = with_casts(graph, step.lora > 0, formats.linear.quant or (CURRENT if now else ""))
        whole_adapters = training is not None and training.whole_adapters
        if step.lora and sequences and mesh is not None and degree > 1 and whole_adapters:
            from predictor.passes.adapters import on_whole_sequences

            graph = on_whole_sequences(graph, mesh, step.batch * step.seq_len // degree, in_pieces)
        if in_pieces:
            from predictor.passes.sequence_parallel import products_in_pieces

            graph = products_in_pieces(graph)
    graph = _unpacked(graph, based)
    vocab = (config.vocab if config.head == "lm" else 0) if source is None else _logits_of(graph, step)
    if not step.sampling or not vocab:
        return graph
    from predictor.passes.sample import sample  # nor does it choose tokens

    return sample(graph, engine, step.batch, vocab, step.sampling)


def _in_formats(graph: Graph, config: ModelConfig, formats: Formats) -> Graph:
    """A recorded graph in ``formats``. UnsupportedError, one line, where no operator of it takes the narrow one."""
    found = quantize(graph, formats)
    narrow = formats.linear != formats.high or formats.own or formats.layers
    if narrow and found is graph:
        raise UnsupportedError(
            f"--dtype: {config.name} has no linear layer that can be in {formats.linear.quant or formats.linear.dtype};"
            f" expected {formats.high.dtype}"
        )
    return found


def _logits_of(graph: Graph, step: Step) -> int:
    """Width of what a recorded pass ends with, where that is a row of logits a sequence; else 0."""
    nodes = graph.blocks[-1].nodes if graph.blocks else ()
    heads = [node.op for node in nodes if isinstance(node.op, Gemm) and node.part == "head"]
    if step.mode not in CACHED or not heads or heads[-1].m != step.batch:
        return 0
    return nodes[-1].outputs[0].elements // step.batch if nodes[-1].outputs else 0


def _trained(config: ModelConfig, graph: Graph, accumulate: bool | None) -> Graph:
    """``graph`` with the experts of a step of training in kernels that have a backward pass."""
    if accumulate is None or not (config.experts or graph.recorded):
        return graph
    from predictor.passes.expert_parallel import experts_apart  # who trains no experts starts without it

    return experts_apart(graph)


def _unpacked(graph: Graph, based: bool) -> Graph:
    """``graph`` with the kernels that unpack a base in few bits."""
    if not based:
        return graph
    from predictor.passes.unpack import unpack  # who trains no adapters starts without it

    return unpack(graph)


def _recorded(config: ModelConfig, step: Step, accumulate: bool | None, mesh: Mesh | None, ulysses: int) -> Graph:
    """What a traced model runs; a forward pass on one rank's part of its input where the mesh has an axis "cp" and the
    input says what of it is split."""
    source = recorded(config)
    assert source is not None
    tp, cp = (1, 1) if mesh is None else (mesh.degree("tp"), mesh.degree("cp"))
    graph = source.record(step, accumulate, tp).graph
    if not any(block.nodes for block in graph.blocks):
        raise RequestError(f"{config.name}: runs no operator; expected a model that computes something")
    part = source.part(cp) if cp > 1 and step.mode == "forward" else None
    if mesh is None or part is None:
        return graph
    from predictor.passes.split_tokens import split_tokens  # a forecast of one GPU starts without it

    return split_tokens(graph, part.record(step, accumulate, tp).graph, mesh, ulysses or cp)


def _in_context(graph: Graph, mesh: Mesh | None, comm: str) -> Graph:
    """``graph`` with attention over the sequences' parts of all ranks along "cp"; of a recorded one that is done."""
    if mesh is None or mesh.degree("cp") == 1 or graph.recorded:
        return graph
    from predictor.passes.context_parallel import context  # a forecast of one GPU starts without it

    return context(graph, mesh, comm)
