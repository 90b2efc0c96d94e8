"""From a model and a pass to the graph that one GPU runs: the model's own, and a list of passes over it (`PASSES`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from predictor.engines import EAGER, Engine
from predictor.errors import UnsupportedError
from predictor.formats.dtypes import bytes_of
from predictor.formats.parts import Formats, plain
from predictor.formats.quantization import CURRENT, UNPACKED_FIRST
from predictor.graph import Graph
from predictor.models.base import CACHED, Feature, Model
from predictor.models.step import Step
from predictor.passes.freeze import freeze
from predictor.passes.name_parts import with_parts
from predictor.passes.quantize import quantize
from predictor.passes.recompute import FULL, SELECTIVE, attend_again, recompute
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


class Lowering(NamedTuple):
    """What a graph is lowered for: a pass of a model, and what of a run decides which kernels one GPU runs in it.

    ``formats`` None: all in the dtype of the step's activations. ``accumulate`` not None: training, whose gradients are
    added to those that are there, or (False) made. ``recompute``: what of the forward pass runs again in the backward
    pass (`predictor.passes.recompute`). ``sequences``: outside of what tensor parallelism splits, they are split over
    its ranks. ``in_pieces``: products run in pieces beside the collectives of tensor parallelism.

    In training, ``step`` is a rank's part of the sequences where the mesh has an axis "cp" (``cp_comm``: how attention
    sees the rest), and its ``ep`` ranks share the experts. ``ulysses`` of the ranks along "cp" that share an input
    exchange heads (0: as ``cp_comm`` says).
    """

    model: Model
    step: Step
    mesh: Mesh | None = None
    formats: Formats | None = None
    engine: Engine = EAGER
    accumulate: bool | None = None
    recompute: str = "none"
    sequences: bool = False
    cp_comm: str = "ring"
    in_pieces: bool = False
    ulysses: int = 0

    @property
    def tp(self) -> int:
        return 1 if self.mesh is None else self.mesh.degree("tp")

    @property
    def cp(self) -> int:
        return 1 if self.mesh is None else self.mesh.degree("cp")

    @property
    def keeps_products(self) -> bool:
        """Whether selective recomputation is of whole layers, less the products that their framework saves."""
        framework = self.engine.training
        return self.recompute == SELECTIVE and framework is not None and framework.keeps_products

    @property
    def attends_again(self) -> bool:
        """Whether selective recomputation in training is of fused attention, too."""
        framework = self.engine.training if self.accumulate is not None else None
        return self.recompute == SELECTIVE and framework is not None and framework.attends_again

    @property
    def serves(self) -> bool:
        """Whether the pass keeps a KV cache."""
        return self.step.mode in CACHED

    @property
    def spread(self) -> bool:
        """Whether GPUs that have requests of their own share the experts."""
        return self.serves and self.mesh is not None and self.mesh.ep * self.mesh.degree("dp") > 1

    @property
    def among(self) -> Mesh | None:
        """The GPUs that share experts, or exchange heads, in training; None where each has its own."""
        mesh, step = self.mesh, self.step
        shares = mesh is not None and (mesh.ep > 1 or mesh.folds or step.exchanges > 1) and step.mode == "train"
        return mesh if shares else None


def lower(how: Lowering) -> Graph:
    """The graph of one GPU, or of one rank of a mesh: the model's, and `PASSES` over it in their order.

    Raises RequestError, one line with the nearest degree that works, where a degree does not divide the model.
    """
    graph = _ahead_of_ranks(how) if how.accumulate is None else _trained_by_all(how)
    for each in OF_A_RANK:
        graph = each(graph, how)
    return graph


def _ahead_of_ranks(how: Lowering) -> Graph:
    """The model's graph in its number formats, with the backward pass where there is one."""
    graph = how.model.graph(how.step, how.accumulate, how.tp)
    for each in OF_ALL:
        graph = each(graph, how)
    return graph


#: What holds a step of training is looked for among steps that run other parts of one graph again. Chosen by hand, not
#: from data: the micro-batches of a search.
_kept = lru_cache(maxsize=16)(_ahead_of_ranks)


def _trained_by_all(how: Lowering) -> Graph:
    """The same, kept from step to step by what `OF_ALL` reads alone."""
    mesh = how.among if how.model.supports(Feature.NAMES) else how.mesh
    return _kept(Lowering(how.model, how.step, mesh, how.formats, accumulate=how.accumulate))


# -- passes: each gives the very same graph where it has nothing to do. What some runs alone need is imported there, so
# -- that others start without it.


def split_inputs(graph: Graph, how: Lowering) -> Graph:
    """A forward pass on one rank's part of its input, where an input says what of it is split over "cp"."""
    if how.mesh is None or how.cp == 1 or how.step.mode != "forward":
        return graph
    part = how.model.graph_of_part(how.step, how.accumulate, how.tp, how.cp)
    if part is None:
        return graph
    from predictor.passes.split_tokens import split_tokens

    return split_tokens(graph, part, how.mesh, how.ulysses or (1 if how.cp_comm == "ring" else how.cp))


def name_parts(graph: Graph, how: Lowering) -> Graph:
    """Products say of which part of the model they are, read off the paths of modules where the model says none."""
    return graph if how.model.supports(Feature.NAMES) else with_parts(graph)


def set_formats(graph: Graph, how: Lowering) -> Graph:
    """Products in their number formats. UnsupportedError, one line, where no operator takes the narrow one."""
    formats = how.formats or plain(how.step.act_dtype)
    quantized = quantize(graph, formats)
    narrow = formats.linear != formats.high or formats.own or formats.layers
    if narrow and quantized is graph and not how.model.supports(Feature.NAMES):
        raise UnsupportedError(
            f"--dtype: {how.model.name} has no linear layer that can be in"
            f" {formats.linear.quant or formats.linear.dtype}; expected {formats.high.dtype}"
        )
    return quantized


def exchange_heads(graph: Graph, how: Lowering) -> Graph:
    """Unfused attention's exchanges of heads for positions, over the links along "cp"."""
    if how.among is None or how.step.exchanges <= 1:
        return graph
    from predictor.passes.context_parallel import linked

    return linked(graph, how.among)


def share_experts(graph: Graph, how: Lowering) -> Graph:
    """Experts shared out among the GPUs of a mesh, in training."""
    if how.among is None or not how.model.supports(Feature.EXPERTS):
        return graph
    from predictor.passes import expert_parallel

    expert_parallel.check_shared_experts(how.model, how.among.ep, looped=_run_by_the_class(how))
    return expert_parallel.share_experts(graph, expert_parallel.reaching(how.among, how.model))


def _run_by_the_class(how: Lowering) -> bool:
    """Whether the experts run as the model's class writes them, not as one operator."""
    return how.step.experts == "loop" and (bool(how.model.expert_capacity) or how.model.every_expert)


def differentiate(graph: Graph, how: Lowering) -> Graph:
    """The backward pass behind the forward one."""
    if how.accumulate is None:
        return graph
    from predictor.passes.autograd import with_backward

    return with_backward(graph, how.accumulate)


def run_again(graph: Graph, how: Lowering) -> Graph:
    """What of the forward pass runs again in the backward pass."""
    if how.accumulate is None:
        return graph
    return recompute(graph, FULL if how.keeps_products else how.recompute)


def train_adapters(graph: Graph, how: Lowering) -> Graph:
    """No gradients of weights that are not trained."""
    return freeze(graph) if how.accumulate is not None and how.step.lora else graph


def shard(graph: Graph, how: Lowering) -> Graph:
    """What one rank of tensor (and sequence) parallelism has, with the collectives that join it. A model without names
    gave what one rank runs, whose collectives take their links here."""
    mesh = how.mesh
    if mesh is None:
        return graph
    from predictor.passes import shard as by_rules
    from predictor.passes.tensor_parallel import TENSOR, joined

    if not how.model.supports(Feature.NAMES):
        return joined(graph, mesh) if how.tp > 1 else graph
    how.model.check_tensor(how.tp, how.spread)
    soft: dict[str, str] = {}
    if how.sequences:
        from predictor.passes.sequence_parallel import SEQUENCE, check_sequence

        check_sequence(how.step.seq_len, how.tp)
        soft = SEQUENCE
    return by_rules.shard(graph, mesh, TENSOR, soft)


def overlap_eagerly(graph: Graph, how: Lowering) -> Graph:
    """Collectives of tensor parallelism beside the products that they feed."""
    if how.mesh is None or not how.in_pieces:
        return graph
    from predictor.passes.sequence_parallel import beside_products

    return beside_products(graph)


def spread_experts(graph: Graph, how: Lowering) -> Graph:
    """Experts over GPUs that have requests of their own, in serving."""
    if how.mesh is None or not how.spread or not how.model.supports(Feature.EXPERTS):
        return graph
    from predictor.passes import expert_parallel

    expert_parallel.check_experts(how.model, how.mesh, looped=_run_by_the_class(how))
    mesh = expert_parallel.reaching(how.mesh, how.model)
    return expert_parallel.spread_experts(graph, mesh, how.step.mode != "decode")


def fuse_kernels(graph: Graph, how: Lowering) -> Graph:
    """What the engine runs as one kernel."""
    if not how.engine.fuses:
        return graph
    from predictor.passes.fuse import fuse

    framework = how.engine.training
    apart = how.accumulate is not None and framework is not None and framework.products_apart
    return fuse(graph, how.engine, how.step.attention, apart)


def gather_again(graph: Graph, how: Lowering) -> Graph:
    """Fused products that read what split sequences are gathered to again in the backward pass."""
    if how.accumulate is None or not how.sequences or how.tp == 1 or not how.engine.fuses:
        return graph
    from predictor.passes.sequence_parallel import read_again

    return read_again(graph)


def save_products(graph: Graph, how: Lowering) -> Graph:
    """Layers that run again, without the products and the attention that their framework saves; or fused attention
    alone, where that runs again."""
    if how.accumulate is None or not how.keeps_products:
        return attend_again(graph) if how.attends_again else graph
    from predictor.passes.keep_products import keep_products

    return keep_products(graph)


def attend_over_ranks(graph: Graph, how: Lowering) -> Graph:
    """Attention over the parts that all ranks along "cp" have of the sequences."""
    if how.mesh is None or how.cp == 1 or not how.model.supports(Feature.CONTEXT):
        return graph
    from predictor.passes.context_parallel import context

    return context(graph, how.mesh, how.cp_comm)


def train_experts(graph: Graph, how: Lowering) -> Graph:
    """Experts of a step of training in kernels that have a backward pass."""
    if how.accumulate is None:
        return graph
    from predictor.passes.expert_parallel import experts_apart

    return experts_apart(graph)


def train_fused_adapters(graph: Graph, how: Lowering) -> Graph:
    """As `train_adapters`, of the kernels that fusing made."""
    return train_adapters(graph, how) if how.engine.fuses else graph


def cast_operands(graph: Graph, how: Lowering) -> Graph:
    """Kernels that bring operands of products into a narrow format, in a step of training."""
    formats = how.formats
    if not how.engine.fuses or how.accumulate is None or formats is None or bytes_of(formats.linear.dtype) >= 2:
        return graph
    from predictor.passes.narrow import keep_narrow, with_casts

    training = how.engine.training
    now = training is not None and training.scales_now and formats.linear.dtype == "fp8"
    graph = with_casts(graph, how.step.lora > 0, formats.linear.quant or (CURRENT if now else ""))
    return keep_narrow(graph) if training is not None and training.keeps_narrow else graph


def gather_for_adapters(graph: Graph, how: Lowering) -> Graph:
    """Adapters on whole sequences, where their framework does not split these."""
    step, mesh = how.step, how.mesh
    trains = how.engine.fuses and how.accumulate is not None and step.lora and how.sequences
    if not trains or mesh is None or how.tp == 1:
        return graph
    training = how.engine.training
    if training is None or not training.whole_adapters:
        return graph
    from predictor.passes.adapters import on_whole_sequences

    return on_whole_sequences(graph, mesh, step.batch * step.seq_len // how.tp, how.in_pieces)


def cut_products(graph: Graph, how: Lowering) -> Graph:
    """Fused products in pieces, each beside the collective of another."""
    if not how.engine.fuses or how.accumulate is None or not how.in_pieces:
        return graph
    from predictor.passes.sequence_parallel import products_in_pieces

    return products_in_pieces(graph)


def unpack_base(graph: Graph, how: Lowering) -> Graph:
    """Kernels that unpack a base in few bits: under adapters that are trained, and in every pass of bitsandbytes."""
    formats = how.formats
    if formats is None or not formats.linear.quant or bytes_of(formats.linear.dtype) < 2:
        return graph
    trains = bool(how.step.lora) and how.accumulate is not None
    if not trains and formats.linear.quant not in UNPACKED_FIRST:
        return graph
    from predictor.passes.unpack import unpack

    return unpack(graph, alone=trains)


def choose_tokens(graph: Graph, how: Lowering) -> Graph:
    """The sampler of an engine behind the logits."""
    if not how.engine.fuses or not how.step.sampling or not (vocab := how.model.logits(graph, how.step)):
        return graph
    from predictor.passes.sample import sample

    return sample(graph, how.engine, how.step.batch, vocab, how.step.sampling)


Pass = Callable[[Graph, Lowering], Graph]
#: Over the graph of the whole model, or of what it gives of a rank.
OF_ALL: tuple[Pass, ...] = (
    split_inputs, name_parts, set_formats, exchange_heads, share_experts, differentiate,
)  # fmt: skip
#: What follows: one rank of a mesh, its kernels in its engine, and what serving or training puts around them.
OF_A_RANK: tuple[Pass, ...] = (
    run_again, train_adapters, shard, overlap_eagerly, spread_experts, fuse_kernels, gather_again, save_products,
    attend_over_ranks, train_experts, train_fused_adapters, cast_operands, gather_for_adapters, cut_products,
    unpack_base, choose_tokens,
)  # fmt: skip
#: Every pass in its order.
PASSES = OF_ALL + OF_A_RANK
