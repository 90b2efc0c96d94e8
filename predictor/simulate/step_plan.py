"""What a step of training does on many GPUs: micro-batches through chunks of the model, gradients reduced, weights
updated and gathered. One of each distinct kind is built, whatever the number of GPUs."""

from __future__ import annotations

from functools import lru_cache, partial

from predictor.engines import CALLS, CAPTURED, Engine
from predictor.engines.base import ITERATION, LAYER
from predictor.errors import RequestError
from predictor.files.records import replace
from predictor.formats.parts import Formats
from predictor.graph import OPTIMIZER, Graph
from predictor.graph.saved import saved_tensors
from predictor.hardware.generation import takes_any_layout
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.system import SystemSpec
from predictor.models.base import Model, Stack
from predictor.models.step import Step
from predictor.ops.embedding import CrossEntropy
from predictor.passes import narrow
from predictor.passes.context_parallel import check_context
from predictor.passes.freeze import is_trained
from predictor.passes.mesh import Mesh
from predictor.passes.offload import check_offload, moved_bytes, offload
from predictor.passes.optimizer import update_graph
from predictor.passes.pipeline import Chunk, chunks_of, cut, messages_of, tables_of
from predictor.passes.unpack import spared_bytes
from predictor.request.parse import recomputed
from predictor.request.precision import Precision
from predictor.request.workload import Workload
from predictor.simulate.exchange import ReplicaExchange
from predictor.simulate.lower import Lowering, lower
from predictor.simulate.stage import GRADIENTS, PIPELINE, WEIGHTS, Parallel, Plan, Rank, Stage, Units
from predictor.simulate.timeline import gaps_of


class Lowered:
    """The graph of a rank of one layer plan, and its cuts, kept from plan to plan."""

    def __init__(self, graph: Graph, full: Graph | None) -> None:
        self.graph = graph
        self.full = full
        self._cuts: dict[Chunk, Graph] = {}
        self._saved: dict[Chunk, float] = {}

    def cut(self, chunk: Chunk) -> Graph:
        """The blocks of a chunk; chunks that are alike are one object."""
        key = self._alike(chunk)
        if key not in self._cuts:
            self._cuts[key] = cut(self.graph, key, self.full if key.again >= 0 else None)
        return self._cuts[key]

    def saved(self, chunk: Chunk) -> float:
        """Bytes that one micro-batch leaves in a chunk for its backward pass."""
        key = self._alike(chunk)
        if key not in self._saved:
            plain = key._replace(again=-1)
            kept = saved_bytes(cut(self.graph, plain))
            if self.full is not None and key.again > 0:
                part = key.again / (key.end - key.first)
                kept += part * (saved_bytes(cut(self.full, plain)) - kept)
            self._saved[key] = kept
        return self._saved[key]

    def _alike(self, chunk: Chunk) -> Chunk:
        """The first chunk that is like this one: as many layers, of one kind, in the middle of the model."""
        several = chunk.stacks or sum(bool(block.layers) for block in self.graph.blocks) > 1
        if several or chunk.opens or chunk.closes:
            return chunk
        return chunk._replace(first=1, end=1 + chunk.end - chunk.first)


def saved_bytes(graph: Graph) -> float:
    """Bytes of what autograd keeps on the GPU, with the gradients of the logits beside it, as when the backward pass
    begins: eager PyTorch makes one of the log-softmax, then one of the logits; a fused loss, the latter alone."""
    kept = sum(entry.nbytes for entry in saved_tensors(graph)) - moved_bytes(graph)
    ahead = (node.op for block in graph.blocks if block.backward_of is None for node in block.nodes)
    each = 1 if graph.fused else 2
    return kept + each * sum(op.rows * op.vocab * op.itemsize for op in ahead if isinstance(op, CrossEntropy))


@lru_cache(maxsize=512)
def lowered(
    config: Model, step: Step, mesh: Mesh | None, formats: Formats, engine: Engine, accumulate: bool, recompute: str,
    some: bool, sequences: bool, cp_comm: str, in_pieces: bool, offloaded: int, host_bandwidth: float,
) -> Lowered:  # fmt: skip
    """The joint graph of one micro-batch on one rank; with ``some``, beside it the one that runs every layer again.
    ``offloaded`` layers keep their activations behind a link of ``host_bandwidth`` bytes/s."""

    def made(kind: str) -> Graph:
        how = Lowering(config, step, mesh, formats, engine, accumulate, kind, sequences, cp_comm, in_pieces)
        graph = lower(how)
        return offload(graph, offloaded, config.stack(graph).layers, host_bandwidth)

    return Lowered(made("none"), made(recompute)) if some else Lowered(made(recompute), None)


def training_plan(config: Model, work: Workload, numbers: Precision, step: Step, gpu: GPUSpec) -> Plan:
    """The stages of a step of training, and how they are one where there are many GPUs.

    Gradients add up over the passes of a step; optimizer "none" never clears them, so every pass adds to the last one.
    """
    over, engine, training = work.parallelism, work.engine, work.training
    assert training is not None
    framework = engine.training
    accumulate = (
        work.micro_batches > 1
        or training.optimizer == "none"
        or (framework is not None and bool(framework.main_gradients))
    )
    kind, some, of = recomputed(training.recompute)
    if training.offload_layers:
        check_offload(config.stack(), training.offload_layers, gpu)
    if over.cp > 1:
        check_context(config.stack(), step.seq_len, over.cp, over.tp, over.cp_comm, step.attention)
        exchanges = over.cp if step.attention == "math" else 1
        step = replace(step, seq_len=step.seq_len // over.cp, exchanges=exchanges)
    inner = _layer_mesh(over.tp, over.cp, over.ep, work.system, over.folds, work.all_to_all)
    if over.ep_overlap and work.micro_batches < 2:
        raise RequestError("--ep-overlap: nothing runs beside the only micro-batch; expected 2 or more (--micro-batch)")
    whole = lowered(config, step, inner, numbers.formats, engine, accumulate, kind, bool(of), over.sp, over.cp_comm,
                    over.tp_overlap, training.offload_layers, gpu.pcie_bandwidth or 0.0)  # fmt: skip
    stack = config.stack(whole.graph)
    if of and of != stack.layers:
        raise RequestError(
            f"--recompute {training.recompute}: {stack.name} has {stack.layers} layers; expected"
            f" full:N-of-{stack.layers}"
        )
    host, launch_s = CALLS if engine.host == CALLS else CAPTURED, work.launch_overhead_s
    gaps = gaps_of(host == CAPTURED or training.cuda_graphs != "none", work.kernel_gap_s)

    def stage(graph: Graph, phase: str, weight: float = 1.0) -> Stage:
        ahead = sum(block.backward_of is None for block in graph.blocks) if phase == "train" else 0
        captured = phase == "train" and training.cuda_graphs == ITERATION
        made = Stage(graph, phase, weight, CAPTURED if captured else host, launch_s, gaps=gaps, forward=ahead)
        return made._replace(layers_captured=phase == "train" and training.cuda_graphs == LAYER)

    chunks = chunks_of(stack, over.pp, over.vpp, over.stage_layers)
    if of:
        chunks = tuple(c._replace(again=-(-some * (c.end - c.first) // of)) for c in chunks)
    passes = float(work.micro_batches)
    graphs = [whole.cut(chunk) for chunk in chunks]
    distinct = {id(graph): graph for graph in graphs}
    places = {key: place for place, key in enumerate(distinct)}
    stages = [stage(graph, "train", passes) for graph in distinct.values()]
    saved = {places[id(graph)]: partial(whole.saved, chunk) for graph, chunk in zip(graphs, chunks, strict=True)}
    if over.num_gpus == 1:
        replaced = config.update(step, accumulate) if training.optimizer != "none" else None
        trained = _trained(graphs[0]) if training.lora else config.parameters()
        update = replaced or update_graph(trained, training.optimizer, numbers.mixed, framework)
        return Plan((*stages, stage(update, OPTIMIZER)))
    exchange = ReplicaExchange(work, numbers, engine)
    ends = tuple(chunk.end for chunk in chunks)
    tables = {part % over.pp for part in tables_of(stack, ends)}
    units: dict[int, Units] = {}
    if exchange.sharded:
        for key, graph in distinct.items():
            blocks, gather, reduce = exchange.of_blocks(graph)
            units[places[key]] = Units(len(stages), len(stages) + 1, blocks)
            stages += [stage(gather, WEIGHTS, passes), stage(reduce, GRADIENTS, passes)]
    kinds: dict[tuple[int, ...], int] = {}
    ranked: list[Rank] = []
    ranks: list[int] = []
    for s in range(over.pp):
        mine = tuple(places[id(graphs[c * over.pp + s])] for c in range(over.vpp))
        if mine not in kinds:
            kinds[mine] = len(ranked)
            ahead = [_ahead(stages[place].graph) for place in mine]
            count = sum(graph.parameters() for graph in ahead)
            trained = sum(_trained(graph) for graph in ahead) if training.lora else count
            weights = [weight for graph in ahead for weight in graph.weights()]
            experts = exchange.experts_of(weights)
            learn = exchange.experts_of(w for w in weights if not training.lora or is_trained(w[0]))
            copied = sum(_copied(graph, stack, over.tp, training.lora > 0) for graph in ahead)
            rank = {"reduce": -1, "gather": -1, "update": -1}
            parts = (
                (
                    "reduce",
                    exchange.reduced(trained, copied, stack, len(tables) if s in tables else 1, learn),
                    GRADIENTS,
                ),
                ("gather", exchange.gathered(trained, learn), WEIGHTS),
                (
                    "update",
                    update_graph(exchange.kept(trained, learn), training.optimizer, numbers.mixed, framework),
                    OPTIMIZER,
                ),
            )
            for name, graph, phase in parts:
                if graph.blocks:
                    rank[name] = len(stages)
                    stages.append(stage(graph, phase))
            spared = sum(spared_of_frozen(graph, engine, gpu, numbers) for graph in ahead) if training.lora else 0.0
            places_of = rank["reduce"], rank["gather"], rank["update"]
            ranked.append(Rank(mine, *places_of, count, trained, spared, experts, learn))
        ranks.append(kinds[mine])
    message = -1
    if over.pp > 1:
        message = len(stages)
        stages.append(stage(exchange.message(stack, step), PIPELINE, passes))
    return Plan(tuple(stages), Parallel(tuple(ranked), tuple(ranks), message, units, saved, messages_of(stack, ends)))


def _ahead(graph: Graph) -> Graph:
    """The forward pass of a joint graph, which reads every weight once: what runs again may read one that is merged
    of several as another tensor."""
    return Graph(tuple(block for block in graph.blocks if block.backward_of is None))


def _trained(graph: Graph) -> int:
    """Elements of the weights of adapters, which alone are trained where there are any."""
    return sum(weight.elements * count for weight, count in graph.weights() if is_trained(weight))


def spared_of_frozen(graph: Graph, engine: Engine, gpu: GPUSpec, numbers: Precision) -> float:
    """Bytes that frozen weights take less than in the numbers of the activations: packed ones, and those of products of
    8 bits and fewer where the framework keeps them in these."""
    itemsize = 2.0 if numbers.mixed else 4.0
    spared = spared_bytes(graph, itemsize)
    if engine.training is not None and engine.training.keeps_narrow:
        spared += narrow.spared_bytes(graph, itemsize, takes_any_layout(gpu))
    return spared


def _copied(graph: Graph, config: Stack, tp: int, adapters: bool) -> int:
    """Elements of a rank's trained weights of keys and values that other ranks have copies of: each has one head of
    fewer heads than ranks."""
    if config.is_mla or not 0 < config.kv_heads < tp:
        return 0
    elements = 0
    for weight, count in graph.weights():
        for axis, size in zip(weight.axes, weight.shape, strict=True):
            names = axis.split(" | ")
            if "kv_heads" not in names or (adapters and not is_trained(weight)):
                continue
            width = size if len(names) == 1 else names.count("kv_heads") * config.head_dim
            elements += weight.elements // size * width * count
    return elements


@lru_cache(maxsize=256)
def _layer_mesh(tp: int, cp: int, ep: int, system: SystemSpec | None, folds: bool, exchange: str = "") -> Mesh | None:
    """The GPUs that share a layer, an axis a parallelism; ``ep`` of its ranks and of replicas share the experts, to
    which ``exchange`` brings tokens. None for one GPU."""
    if system is None or tp * cp * ep == 1:
        return None
    return Mesh((("tp", tp), ("cp", cp)), system, ep, exchange, folds)
