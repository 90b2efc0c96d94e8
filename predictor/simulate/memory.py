"""What a run keeps in device memory: weights, gradients, optimizer state, activations, KV cache."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from predictor.engines import Engine
from predictor.engines.memory import rule_of
from predictor.files.records import dataclass
from predictor.formats.parts import Formats
from predictor.graph.graph import Block, Graph
from predictor.hardware.gpu import GPUSpec
from predictor.models.base import Feature, Local, Model, Stack, whole
from predictor.ops.base import COMPUTE
from predictor.passes.quantize import saved_bytes
from predictor.request.options import HSDP, SHARDS, ZERO2, ZERO3
from predictor.request.precision import Precision
from predictor.request.run import Run
from predictor.request.workload import Workload
from predictor.simulate.lower import mesh_of
from predictor.simulate.stage import Plan, Stage

if TYPE_CHECKING:
    from predictor.passes.mesh import Mesh

#: Bytes of optimizer state a parameter: by definition Adam keeps two fp32 moments (of 8 bits, with their scales, in the
#: form of Dettmers et al., arXiv:2110.02861), plain SGD none.
_STATE = {"adam": 8.0, "adam_fused": 8.0, "adam_8bit": 2.0 * (1.0 + 4.0 / 2048.0), "sgd": 0.0, "none": 0.0}


#: What spreads optimizer state (and master weights), gradients, and weights (Rajbhandari et al., arXiv:1910.02054).
_SPREAD = (SHARDS[1:], (ZERO2, ZERO3, HSDP), (ZERO3, HSDP))
#: MiB of the CUDA context and the modules loaded with it, a process: what AIConfigurator observed beside tensors before
#: its authors' margin (ai-dynamo/aiconfigurator@095f58a systems/h100_sxm.yaml, `other_mem`: "from 551MB").
CONTEXT_MIB = 551.0
#: MiB of NCCL's buffers on each of so many GPUs (systems/h100_sxm.yaml there, `nccl_mem`: observed).
NCCL_MIB = {1: 0.0, 2: 342.0, 4: 392.0}
#: MiB that PyTorch gives cuBLAS to work in: `:4096:8` from Hopper on, `:4096:2:16:8` before (source: PyTorch notes on
#: CUDA semantics, cuBLAS workspaces; cuBLAS documentation of cublasSetWorkspace: 32 MiB on Hopper).
CUBLAS_MIB = {"hopper": 32.0, "blackwell": 32.0, "": 8.125}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by class on one GPU, what that GPU has, and what of it the run may use.

    ``gpus`` share the model; ``sequences`` is the batch of a forward pass, whose activations and KV cache grow with it
    (0: training, whose sizes do not tell), that of one of ``ranks`` that have sequences of their own. ``fraction`` and
    ``base`` (`predictor.engines.memory.BASES`) say what the run may use, ``setting`` whose default that is ("" where it
    was asked for, or the run may use all).

    Of a pipeline of ``stages`` it is the ``stage`` that needs most, counted from 0.

    Fragmentation and the memory of CUDA graphs are not counted. ``smallest_gpu_count``: the fewest GPUs that hold the
    run by a degree that is built, None where none does; ``advice`` says it in words where the run does not fit. Neither
    is known of a forecast of `predict_many`.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    kv_cache: float
    capacity: float
    gpus: int = 1
    sequences: int = 0
    ranks: int = 1
    context: float = 0.0
    workspaces: float = 0.0
    fraction: float = 1.0
    base: str = "total"
    setting: str = ""
    stage: int = 0
    stages: int = 1
    smallest_gpu_count: int | None = field(default=None, compare=False)
    advice: str = field(default="", compare=False)

    @property
    def own(self) -> float:
        """Bytes that do not depend on the batch: weights, gradients, optimizer state."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """Bytes that the run needs, of all classes."""
        return self._rest + self.kv_cache

    @property
    def _rest(self) -> float:
        return self.own + self.activations + self.context + self.workspaces

    @property
    def usable(self) -> float:
        """Bytes that this run may use on the GPU: what the fraction allows, by its base."""
        share = self.fraction * self.capacity
        if self.base == "static":
            return min(self.capacity, share + self._rest - self.own)
        if self.base == "free":
            return min(self.capacity, self._rest + self.fraction * max(0.0, self.capacity - self._rest))
        return share

    @property
    def kv_cache_capacity(self) -> float:
        """Bytes that are left for the KV cache: the pool that an engine makes of them."""
        return max(0.0, self.usable - self._rest)

    @property
    def fits(self) -> bool:
        """Whether the total is within what the run may use."""
        return self.total <= self.usable

    @property
    def missing(self) -> float:
        """Bytes by which the total exceeds what the run may use; 0 where it fits."""
        return max(0.0, self.total - self.usable)

    @property
    def even_gpu_count(self) -> int:
        """GPUs of this kind that would hold it if every class but context and workspaces were spread evenly."""
        each = self.usable - self.context - self.workspaces
        return max(1, math.ceil((self.total - self.context - self.workspaces) * self.gpus / max(each, 1.0)))

    @property
    def largest_batch(self) -> int | None:
        """Most sequences of this mix of lengths that fit on these GPUs.

        None in training. Activations and KV cache are taken as proportional to the batch; 0 where not one fits.
        """
        if not self.sequences:
            return None
        each, cache = self.activations / self.sequences, self.kv_cache / self.sequences
        fixed = self.own + self.context + self.workspaces
        share = self.fraction * self.capacity
        if self.base == "static":
            limits = [(cache, share - self.own), (each + cache, self.capacity - fixed)]
        elif self.base == "free":
            limits = [(cache + self.fraction * each, self.fraction * (self.capacity - fixed))]
        else:
            limits = [(each + cache, share - fixed)]
        counts = [math.floor(left / need * (1.0 + 1e-12)) for need, left in limits if need]
        return max(0, min(counts)) * self.ranks if counts else None

    @property
    def reason(self) -> str:
        """Why it does not fit, in one sentence; "" where it does."""
        if self.fits:
            return ""
        what = "weights" if self.own == self.weights else "weights, gradients and optimizer state"
        share = f"a GPU's {what}" if self.gpus > 1 else f"the {what}"
        if self.own > self.capacity:
            return f"{share} alone exceed the GPU's memory"
        most = self.largest_batch
        if most is None:
            return f"{share} fit, but the activations for the backward pass do not"
        if most == 0 and self.own + self.context + self.workspaces > self.usable:
            return f"{share}, CUDA context and workspaces exceed what the run may use"
        cause, does = ("KV cache", "does") if self.kv_cache > self.activations else ("activations", "do")
        batch = self.sequences * self.ranks
        if batch == 1:
            return f"{share} fit, but the {cause} of 1 sequence {does} not"
        return f"{share} fit, but the {cause} of {batch} sequences {does} not; {most or 'not even 1'} would fit"


def _allowed(gpu: GPUSpec, engine: Engine, asked: float | None, gpus: int) -> dict[str, Any]:
    """Fields of `Memory` that do not depend on the model: capacity, context, workspaces, and what the run may use."""
    rule, capacity = rule_of(engine.memory), float(gpu.memory_capacity)
    joined = max(n for n in NCCL_MIB if n <= gpus)
    workspaces = CUBLAS_MIB.get(gpu.architecture, CUBLAS_MIB[""]) + NCCL_MIB[joined]
    return {
        "capacity": capacity,
        "gpus": gpus,
        "context": CONTEXT_MIB * 2**20,
        "workspaces": workspaces * 2**20,
        "fraction": rule.default(capacity, gpus) if asked is None else asked,
        "base": rule.base,
        "setting": rule.words if asked is None else "",
    }


#: Asked for every point of a sweep; the limit guards against memory without end, chosen by hand, not from data.
@lru_cache(maxsize=1024)
def parameters(config: Model) -> int:
    """Elements of all weights of a model."""
    return config.parameters()


@lru_cache(maxsize=1024)
def _weight_bytes(config: Model, formats: Formats, mesh: Mesh | None) -> float:
    """Bytes of the weights of one GPU, of a pipeline's stage with the most, as the model knows them."""
    if mesh is None or mesh.degree("pp") == 1 or not config.supports(Feature.NAMES):
        return config.weight_bytes(formats, _local(mesh), _ranks(mesh))
    return config.weight_bytes_of_stage(formats, _local(mesh), _stage_share(config.stack(), mesh))


def _read_off(plan: Plan, run: Run) -> float:
    """Bytes of the weights of one GPU, of a model whose parts have no names: products in a narrow format are seen in
    the graphs of its passes alone."""
    formats, first = run.numbers.formats, plan.stages[0]
    if first.ends:
        return _heaviest(first, formats)
    # parts of a pipeline have weights of their own
    apart = plan.stages if run.work.serving is None else plan.stages[:1]
    return _weight_bytes(run.config, formats, mesh_of(run.work)) - sum(
        saved_bytes(stage.graph, formats) for stage in apart
    )


def _heaviest(stage: Stage, formats: Formats) -> float:
    """Bytes of the weights of the part of a pipeline that has most."""
    starts = (0, *stage.ends[:-1])
    parts = [Graph(stage.graph.blocks[a:b]) for a, b in zip(starts, stage.ends, strict=True)]
    return max(part.parameters() * formats.high.weight_bytes - saved_bytes(part, formats) for part in parts)


def _stage_share(config: Stack, mesh: Mesh | None) -> float:
    """The share of the layers that the largest stage of a pipeline has."""
    pp = 1 if mesh is None else mesh.degree("pp")
    return -(-config.layers // pp) / config.layers


def _ranks(mesh: Mesh | None) -> int:
    """GPUs that share a layer."""
    return 1 if mesh is None else mesh.degree("tp")


def _local(mesh: Mesh | None) -> Local:
    """What one GPU has of an axis of the model."""
    if mesh is None:
        return whole
    from predictor.passes.shard import local_size  # a forecast of one GPU starts without it
    from predictor.passes.tensor_parallel import TENSOR

    shared = local_size(mesh, TENSOR)
    if mesh.ep * mesh.degree("dp") == 1:
        return shared
    experts = {"expert": mesh.ep, "expert_mlp": mesh.degree("tp") * mesh.degree("dp") // mesh.ep}
    return lambda axis, size: -(-size // experts[axis]) if axis in experts else shared(axis, size)


def memory_of(run: Run, plan: Plan, most: Any = None) -> Memory:
    """What one GPU keeps during a run; how many GPUs hold it is `predictor.simulate.capacity`'s to say. ``most``: the
    largest traffic of activations at once, where it is known, as it has to be of a column of runs."""
    work = run.work
    allowed = _allowed(run.gpu, work.engine, work.memory_fraction, work.parallelism.num_gpus)
    if work.training is not None:
        held, stage = _of_training(run, plan)
        return Memory(*held, 0.0, stage=stage, stages=work.parallelism.pp, **allowed)
    parts = run.config.supports(Feature.NAMES)
    weights = _weight_bytes(run.config, run.numbers.formats, mesh_of(work)) if parts else _read_off(plan, run)
    tower = run.config.tower if work.serving is not None and work.serving.images is not None else None
    if tower is not None:  # layers are split, what is before and after them is whole on each GPU
        of_layers = parameters(run.config.tower_model()) / tower.ranks(work.parallelism.tp)
        weights = weights + (of_layers + tower.end_parameters) * run.numbers.formats.high.weight_bytes
    cache = cache_bytes(run.config, work, run.numbers, run.config.stack(plan.first))
    if work.serving is not None and work.serving.drafts:
        more = bytes_of_drafts(run)
        weights, cache = weights + more[0], cache + more[1]
    ranks = work.parallelism.dp
    passes = 1 if tower is None else 2  # prompts', and images'; decode steps need less
    ran = plan.stages if work.serving is None else plan.stages[:passes]  # parts of a pipeline
    most = max(_largest_moment(stage.graph) for stage in ran) if most is None else most
    return Memory(weights, 0.0, 0.0, most, cache, sequences=work.batch // ranks, ranks=ranks, **allowed)


def bytes_of_drafts(run: Run, longest: int = 0) -> tuple[float, float]:
    """Bytes of weights and of the KV cache that drafts add: those of the model that makes them, else of a layer; the
    cache of the run, or of a sequence of ``longest``."""
    maker = run.draft or run
    work, mesh = maker.work, mesh_of(maker.work)
    if longest:
        work = work.changed(mode="prefill", batch=work.parallelism.dp, seq_len=longest, output_len=0, prompt_lens=())
    cache = cache_bytes(maker.config, work, maker.numbers)
    if run.draft is not None:
        return _weight_bytes(maker.config, maker.numbers.formats, mesh), cache
    layers, formats, local = run.config.stack().layers, run.numbers.formats, _local(mesh)
    two, single = (run.config.weight_bytes_of_stage(formats, local, n / layers) for n in (2, 1))
    return two - single, cache / layers


def cache_bytes(config: Model, work: Workload, numbers: Precision, stack: Stack | None = None) -> Any:
    """Bytes of one GPU's KV cache at the end of a run, of the data-parallel rank with the longest sequences; 0 in mode
    forward, which keeps none. ``stack``: the model's layers where a graph of it is at hand."""
    if work.serving is None:
        return 0.0
    longest: Any = work.longest_sequence
    mesh, ranks = mesh_of(work), work.parallelism.dp
    local, share, tp = _local(mesh), _stage_share(stack or config.stack(), mesh), _ranks(mesh)
    lens = work.prompt_lens if ranks == 1 else tuple(sorted(work.prompt_lens, reverse=True)[::ranks])
    if not lens:
        batch: Any = work.batch // ranks
        if isinstance(batch, np.ndarray):
            known = zip(batch.tolist(), longest.tolist(), strict=True)
            return np.array([config.kv_bytes(n, held, numbers.kv, local, tp) for n, held in known]) * share
        return config.kv_bytes(batch, longest, numbers.kv, local, tp) * share
    makes = longest - work.given_len
    each = (config.kv_bytes(times, n + makes, numbers.kv, local, tp) for n, times in Counter(lens).items())
    return sum(each) * share


def _largest_moment(graph: Graph) -> float:
    """Largest traffic of activations that one operator needs at once."""
    return max((node.op.activation_bytes() * node.share for block in graph.blocks for node in block.nodes), default=0.0)


class Held(NamedTuple):
    """Bytes that a GPU keeps in training, by class."""

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.weights + self.gradients + self.optimizer + self.activations


def _of_training(run: Run, plan: Plan) -> tuple[Held, int]:
    """What the GPU that needs most keeps, and the stage of the pipeline that it is in (0 where there is none).

    Mixed precision as in Micikevicius et al. (2018): 16-bit weights and gradients, fp32 master weights and moments.
    Activations are what autograd keeps, with the gradient of the logits beside it, as when the backward pass begins.
    """
    if plan.parallel is None:
        from predictor.simulate.step_plan import saved_bytes  # a forward pass starts without it

        saved = saved_bytes(plan.stages[0].graph)
        count = parameters(run.config)
        training = run.work.training
        if training is not None and training.lora:
            from predictor.passes.freeze import is_trained  # who trains all weights starts without them
            from predictor.simulate.step_plan import spared_of_frozen

            graph, itemsize = plan.stages[0].graph, 2.0 if run.numbers.mixed else 4.0
            trained = sum(w.elements * n for w, n in graph.weights() if is_trained(w))
            frozen = count * itemsize - spared_of_frozen(graph, run.work.engine, run.gpu, run.numbers)
            return _state(run, trained, 1, frozen)._replace(activations=saved), 0
        return _state(run, count, 1)._replace(activations=saved), 0
    work, over, parallel = run.work, run.work.parallelism, plan.parallel
    held = {place: saved() for place, saved in parallel.saved.items()}
    kinds = [parallel.kinds[kind] for kind in parallel.ranks]
    each = np.array([[[held[place] for place in rank.chunks] for rank in kinds]])
    if over.pp > 1:
        from predictor.simulate.pipeline_orders import order_of  # nothing else of memory needs an order

        most = order_of(over.order, over.pp, work.micro_batches, over.vpp).most(each)[0]
    else:
        most = each.sum(axis=2)[0]
    states = _states(run, plan)
    kept = [
        states[kind]._replace(activations=activations)
        for kind, activations in zip(parallel.ranks, most.tolist(), strict=True)
    ]
    worst = max(range(len(kept)), key=lambda s: kept[s].total)
    return kept[worst], worst


def _states(run: Run, plan: Plan) -> list[Held]:
    """What stages of a pipeline keep beside activations, of every distinct one."""
    work, over, parallel = run.work, run.work.parallelism, plan.parallel
    assert work.system is not None and parallel is not None
    per_node, itemsize = work.system.gpus_per_node, 2.0 if run.numbers.mixed else 4.0
    kept = []
    for rank in parallel.kinds:
        learn = rank.trained - rank.experts_trained
        frozen = (rank.parameters - rank.experts - learn) * itemsize - rank.spared
        state = _state(run, learn, over.replicas(per_node)[0], frozen)
        if rank.experts:
            frozen = (rank.experts - rank.experts_trained) * itemsize
            more = _state(run, rank.experts_trained, over.replicas(per_node, experts=True)[0], frozen)
            state = Held(*(dense + other for dense, other in zip(state, more, strict=True)))
        units = [parallel.units[place] for place in rank.chunks if place in parallel.units]
        gathered = max((_largest_unit(plan, unit.gather) for unit in units), default=0.0)
        kept.append(state._replace(weights=state.weights + 2.0 * gathered))
    return kept


def state_of(run: Run, plan: Plan) -> Memory:
    """`memory_of` training on many GPUs without activations, of the stage whose state is the largest: what a search
    asks thousands of plans for."""
    assert plan.parallel is not None
    states = _states(run, plan)
    kind = max(range(len(states)), key=lambda k: states[k].total)
    allowed = _allowed(run.gpu, run.work.engine, run.work.memory_fraction, run.work.parallelism.num_gpus)
    return Memory(*states[kind], 0.0, stage=plan.parallel.ranks.index(kind), **allowed)


def _largest_unit(plan: Plan, place: int) -> float:
    """Bytes of the largest layer that is gathered; the one in use and the next one are there at once."""

    def layer(block: Block) -> float:
        sent = sum(node.op.bytes_written() for node in block.nodes if node.op.stream != COMPUTE)
        return max((sent, *(node.op.bytes_written() for node in block.nodes)))

    return max((layer(block) for block in plan.stages[place].graph.blocks), default=0.0)


def least_of_training(run: Run) -> float:
    """Bytes that training keeps at least, which no plan is needed for: the state of a model that is not cut; 0 of one
    that is."""
    over, training = run.work.parallelism, run.work.training
    assert training is not None
    if over.num_gpus != over.dp or over.shard == HSDP or over.ep > 1 or training.lora:
        return 0.0
    return _state(run, parameters(run.config), over.dp).total


def _state(run: Run, count: int, shards: int, frozen: float = 0.0) -> Held:
    """Weights (with an fp32 master copy in 16-bit training), gradients and optimizer state of ``count`` parameters,
    spread over so many ``shards`` as far as the run spreads them; ``frozen``: bytes of other weights."""
    mixed, work = run.numbers.mixed, run.work
    assert work.training is not None
    optimizer, shard, training = work.training.optimizer, work.parallelism.shard, work.engine.training
    state, gradients_in, weights_in = (shards if shard in among else 1 for among in _SPREAD)
    master = 4.0 if mixed and optimizer != "none" else 0.0
    weights = count * ((2.0 if mixed else 4.0) / weights_in + master / state)
    weights += frozen / weights_in
    wide = work.micro_batches > 1 or (training is not None and training.main_gradients == "fp32")
    gradients = count * (4.0 if not mixed or wide else 2.0) / gradients_in
    return Held(weights, gradients, count * _STATE[optimizer] / state, 0.0)
