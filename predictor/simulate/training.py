"""What a step of training does on many GPUs: micro-batches through chunks of the model, gradients reduced, weights
updated and gathered. One of each distinct kind is built, whatever the number of GPUs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from math import gcd

from predictor.engines import CALLS, CAPTURED, Engine
from predictor.errors import RequestError
from predictor.graph import OPTIMIZER, Block, Graph, Node
from predictor.graph.saved import saved_tensors
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.mesh import Mesh
from predictor.hardware.system import SystemSpec
from predictor.networks import ModelConfig, Step, parameters
from predictor.networks.traced import sized
from predictor.ops.base import BACKWARD, FORWARD, Op
from predictor.ops.collective import Collective
from predictor.ops.elementwise import Elementwise
from predictor.ops.embedding import CrossEntropy
from predictor.parallelism import HSDP, NO_SHARD, ZERO2, ZERO3
from predictor.parts import Formats
from predictor.passes.context_parallel import check_context
from predictor.passes.freeze import is_trained
from predictor.passes.offload import check_offload, moved_bytes, offload
from predictor.passes.optimizer import update_graph
from predictor.passes.pipeline import Chunk, chunks_of, cut
from predictor.passes.unpack import spared_bytes
from predictor.precision import Precision
from predictor.simulate.gaps import gaps_of
from predictor.simulate.lower import lower, own_update
from predictor.simulate.stage import GRADIENTS, PIPELINE, WEIGHTS, Parallel, Plan, Rank, Stage, Units
from predictor.words import recomputed
from predictor.workload import Workload


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
        if sum(bool(block.layers) for block in self.graph.blocks) > 1 or chunk.opens or chunk.closes:
            return chunk
        return chunk._replace(first=1, end=1 + chunk.end - chunk.first)


def saved_bytes(graph: Graph) -> float:
    """Bytes of what autograd keeps on the GPU, with the gradient of the logits beside it, as when the backward pass
    begins."""
    kept = sum(entry.nbytes for entry in saved_tensors(graph)) - moved_bytes(graph)
    ahead = (node.op for block in graph.blocks if block.backward_of is None for node in block.nodes)
    return kept + sum(op.rows * op.vocab * op.itemsize for op in ahead if isinstance(op, CrossEntropy))


@lru_cache(maxsize=512)
def lowered(
    config: ModelConfig, step: Step, mesh: Mesh | None, formats: Formats, engine: Engine, accumulate: bool, again: str,
    some: bool, sequences: bool, cp_comm: str, in_pieces: bool, offloaded: int, host_bandwidth: float,
) -> Lowered:  # fmt: skip
    """The joint graph of one micro-batch on one rank; with ``some``, beside it the one that runs every layer again.
    ``offloaded`` layers keep their activations behind a link of ``host_bandwidth`` bytes/s."""

    def made(kind: str) -> Graph:
        graph = lower(config, step, mesh, formats, engine, accumulate, kind, sequences, cp_comm, in_pieces)
        return offload(graph, offloaded, config.layers, host_bandwidth)

    return Lowered(made("none"), made(again)) if some else Lowered(made(again), None)


def training_plan(config: ModelConfig, work: Workload, numbers: Precision, step: Step, gpu: GPUSpec) -> Plan:
    """The stages of a step of training, and how they are one where there are many GPUs.

    Gradients add up over the passes of a step; optimizer "none" never clears them, so every pass adds to the last one.
    """
    over, engine = work.parallelism, work.engine
    training = engine.training
    accumulate = (
        work.micro_batches > 1 or work.optimizer == "none" or (training is not None and bool(training.main_gradients))
    )
    kind, some, of = recomputed(work.recompute)
    if work.offload_layers:
        check_offload(config, work, gpu)
    if over.cp > 1:
        check_context(config, step.seq_len, over.cp, over.tp, over.cp_comm)
        step = replace(step, seq_len=step.seq_len // over.cp)
    inner = _layer_mesh(over.tp, over.cp, over.ep, work.system)
    whole = lowered(config, step, inner, numbers.formats, engine, accumulate, kind, bool(of), over.sp, over.cp_comm,
                    over.tp_overlap, work.offload_layers, gpu.pcie_bandwidth or 0.0)  # fmt: skip
    config = sized(config, whole.graph)
    if of and of != config.layers:
        raise RequestError(
            f"--recompute {work.recompute}: {config.name} has {config.layers} layers; expected"
            f" full:N-of-{config.layers}"
        )
    host, launch_s = CALLS if engine.host == CALLS else CAPTURED, work.launch_overhead_s
    gaps = gaps_of(host == CAPTURED, work.kernel_gap_s)

    def stage(graph: Graph, phase: str, weight: float = 1.0) -> Stage:
        ahead = sum(block.backward_of is None for block in graph.blocks) if phase == "train" else 0
        return Stage(graph, phase, weight, host, launch_s, gaps=gaps, forward=ahead)

    chunks = chunks_of(config, over.pp, over.vpp, over.stage_layers)
    if of:
        chunks = tuple(c._replace(again=-(-some * (c.end - c.first) // of)) for c in chunks)
    passes = float(work.micro_batches)
    graphs = [whole.cut(chunk) for chunk in chunks]
    distinct = {id(graph): graph for graph in graphs}
    places = {key: place for place, key in enumerate(distinct)}
    stages = [stage(graph, "train", passes) for graph in distinct.values()]
    saved = {places[id(graph)]: partial(whole.saved, chunk) for graph, chunk in zip(graphs, chunks, strict=True)}
    if over.num_gpus == 1:
        own = own_update(config, step, accumulate) if work.optimizer != "none" else None
        trained = _trained(graphs[0]) if work.lora else parameters(config)
        update = own or update_graph(trained, work.optimizer, numbers.mixed, training)
        return Plan((*stages, stage(update, OPTIMIZER)))
    exchange = _Exchange(work, numbers, engine)
    units: dict[int, Units] = {}
    if exchange.sharded:
        for key, graph in distinct.items():
            blocks, gather, reduce = exchange.of_blocks(graph)
            units[places[key]] = Units(len(stages), len(stages) + 1, blocks)
            stages += [stage(gather, WEIGHTS, passes), stage(reduce, GRADIENTS, passes)]
    kinds: dict[tuple[int, ...], int] = {}
    found: list[Rank] = []
    ranks: list[int] = []
    for s in range(over.pp):
        mine = tuple(places[id(graphs[c * over.pp + s])] for c in range(over.vpp))
        if mine not in kinds:
            kinds[mine] = len(found)
            ahead = [_ahead(stages[place].graph) for place in mine]
            count = sum(graph.parameters() for graph in ahead)
            trained = sum(_trained(graph) for graph in ahead) if work.lora else count
            copied = sum(_copied(graph, config, over.tp, work.lora > 0) for graph in ahead)
            rank = {"reduce": -1, "gather": -1, "update": -1}
            parts = (
                ("reduce", exchange.reduced(trained, copied, config, not found or s == over.pp - 1), GRADIENTS),
                ("gather", exchange.gathered(trained), WEIGHTS),
                ("update", update_graph(exchange.kept(trained), work.optimizer, numbers.mixed, training), OPTIMIZER),
            )
            for name, graph, phase in parts:
                if graph.blocks:
                    rank[name] = len(stages)
                    stages.append(stage(graph, phase))
            spared = sum(spared_bytes(graph, exchange.itemsize) for graph in ahead) if work.lora else 0.0
            found.append(Rank(mine, rank["reduce"], rank["gather"], rank["update"], count, trained, spared))
        ranks.append(kinds[mine])
    message = -1
    if over.pp > 1:
        message = len(stages)
        stages.append(stage(exchange.message(config, step), PIPELINE, passes))
    return Plan(tuple(stages), Parallel(tuple(found), tuple(ranks), message, units, saved))


def _ahead(graph: Graph) -> Graph:
    """The forward pass of a joint graph, which reads every weight once: what runs again may read one that is merged
    of several as another tensor."""
    return Graph(tuple(block for block in graph.blocks if block.backward_of is None))


def _trained(graph: Graph) -> int:
    """Elements of the weights of adapters, which alone are trained where there are any."""
    return sum(weight.elements * count for weight, count in graph.weights() if is_trained(weight))


def _copied(graph: Graph, config: ModelConfig, tp: int, adapters: bool) -> int:
    """Elements of a rank's trained weights of keys and values that other ranks have copies of: each has one head of
    fewer heads than ranks."""
    if config.is_mla or config.kv_heads >= tp:
        return 0
    found = 0
    for weight, count in graph.weights():
        for axis, size in zip(weight.axes, weight.shape, strict=True):
            names = axis.split(" | ")
            if "kv_heads" not in names or (adapters and not is_trained(weight)):
                continue
            width = size if len(names) == 1 else names.count("kv_heads") * config.head_dim
            found += weight.elements // size * width * count
    return found


@lru_cache(maxsize=256)
def _layer_mesh(tp: int, cp: int, ep: int, system: SystemSpec | None) -> Mesh | None:
    """The GPUs that share a layer, an axis a parallelism; ``ep`` of its ranks and of replicas share the experts. None
    for one GPU."""
    return None if system is None or tp * cp * ep == 1 else Mesh((("tp", tp), ("cp", cp)), system, ep)


@lru_cache(maxsize=4096)
def _collective(mesh: Mesh, kind: str, axis: str, dtype: str, size: int) -> Collective:
    """One object for each distinct size."""
    return mesh.collective(kind, axis, dtype, size)


@lru_cache(maxsize=1024)
def _step_mesh(tp: int, inner: int, outer: int, pp: int, system: SystemSpec) -> Mesh:
    """tp, then the replicas that keep a part of the training state each ("dp"), then those that have copies of it."""
    return Mesh((("tp", tp), ("dp", inner), ("copies", outer), ("pp", pp)), system)


class _Exchange:
    """What the replicas of a run, and the stages of its pipeline, send each other."""

    def __init__(self, work: Workload, numbers: Precision, engine: Engine) -> None:
        over, system, training = work.parallelism, work.system, engine.training
        assert system is not None
        self.work = work
        replicas = over.dp * over.cp
        inner = replicas
        if over.shard == HSDP:
            inner = max(1, min(replicas, system.gpus_per_node // over.tp))
            if replicas % inner:
                raise RequestError(
                    f"--shard hsdp: {inner} GPUs of a node do not divide {replicas} replicas; expected zero3"
                )
        self.mesh = _step_mesh(over.tp, inner, replicas // inner, over.pp, system)
        self.inner, self.outer = inner, replicas // inner
        self.shard = over.shard
        self.weight_dtype = numbers.activation
        own = training.main_gradients if training is not None else ""
        self.gradient_dtype = own or numbers.activation
        self.itemsize = 2.0 if numbers.mixed else 4.0
        self.gradient_bytes = 4.0 if self.gradient_dtype == "fp32" else self.itemsize
        self.overlaps = training is not None and training.gradients_overlap
        self.bucket_bytes = training.bucket_bytes if training is not None else 0.0
        self.copies_out = training is not None and training.copies_out
        self.scatters = over.sp or (training is not None and training.scatters_p2p)
        #: weights are gathered for every pass, layer by layer
        self.sharded = replicas > 1 and over.shard in (ZERO2, ZERO3, HSDP) and self._by_layer(engine)

    def _by_layer(self, engine: Engine) -> bool:
        return self.shard in (ZERO3, HSDP) or not engine.trains

    def kept(self, parameters: int) -> int:
        """Parameters that a rank updates."""
        return parameters if self.shard == NO_SHARD else -(-parameters // self.inner)

    def _node(self, kind: str, nbytes: float, what: str = GRADIENTS, axis: str = "dp", count: int = 1) -> Node:
        dtype = self.gradient_dtype if what == GRADIENTS else self.weight_dtype
        name, phase = f"{what} {kind}", BACKWARD if what == GRADIENTS else FORWARD
        op = _collective(self.mesh, kind, axis, dtype, max(1, round(nbytes)))
        return Node(op, name, count=count, phase=phase, scope=name)

    def reduced(self, parameters: int, copied: int, config: ModelConfig, first: bool) -> Graph:
        """Gradients of a rank, reduced once a step: what follows the last backward pass, or runs beside it. ``copied``
        of them are summed over the ranks of a tensor-parallel group that have copies of the same heads, too."""
        nodes: list[Node] = []
        nbytes = parameters * self.gradient_bytes
        if not self.sharded and self.inner * self.outer > 1:
            buckets = max(1, round(nbytes / self.bucket_bytes)) if self.overlaps and self.bucket_bytes else 1
            kind = "all_reduce" if self.shard == NO_SHARD else "reduce_scatter"
            nodes.append(self._node(kind, nbytes / buckets, count=buckets))
        over = self.work.parallelism
        if over.pp > 1 and config.tie_embeddings and first:
            size = config.vocab * config.hidden / over.tp * self.gradient_bytes
            nodes.append(self._ends(size))
        if copied:
            nodes.append(self._copies(copied * self.gradient_bytes, over.tp // config.kv_heads))
        return Graph((Block(GRADIENTS, tuple(nodes)),)) if nodes else Graph(())

    def _ends(self, nbytes: float) -> Node:
        """The sum of what the first and the last stage have of a shared embedding's gradient."""
        from predictor.ops.collective import over

        near = self.mesh.gpus <= self.mesh.system.gpus_per_node
        op = over(self.mesh.system, "all_reduce", self.gradient_dtype, round(nbytes), 2, 2 if near else 1)
        return Node(op, "embedding all_reduce", phase=BACKWARD, scope="embedding all_reduce")

    def _copies(self, nbytes: float, ranks: int) -> Node:
        """The sum of the gradients that neighbours in a tensor-parallel group have of heads that each has a copy of."""
        from predictor.ops.collective import over

        near = gcd(ranks, self.mesh.system.gpus_per_node)
        op = over(self.mesh.system, "all_reduce", self.gradient_dtype, round(nbytes), ranks, near)
        return Node(op, "kv_heads all_reduce", phase=BACKWARD, scope="kv_heads all_reduce")

    def gathered(self, parameters: int) -> Graph:
        """Updated weights of a rank, of which each replica has a part."""
        if self.shard == NO_SHARD or self.sharded or self.inner == 1:
            return Graph(())
        node = self._node("all_gather", parameters * self.itemsize, WEIGHTS)
        return Graph((Block(WEIGHTS, (node,)),))

    def of_blocks(self, graph: Graph) -> tuple[tuple[int, ...], Graph, Graph]:
        """The forward blocks that have weights, by place; for each what gathers them, and what scales and reduces
        their gradients."""
        places: list[int] = []
        gathers: list[Block] = []
        reduces: list[Block] = []
        for b, block in enumerate(graph.blocks):
            one = Graph((replace(block, repeat=1, layers=block.layers[:1]),))
            count = sum(weight.elements for weight, _ in one.weights())
            if block.backward_of is not None or not count:
                continue
            trained = _trained(one) if self.work.lora else count
            nbytes = trained * self.gradient_bytes
            scaled: Op = Elementwise(self.gradient_dtype, "mul_scalar", trained)
            out = (
                [
                    Node(scaled, "gradients scaling", phase=BACKWARD, scope="gradients scaling"),
                    self._node("reduce_scatter", nbytes),
                ]
                if trained
                else []
            )
            if self.outer > 1 and trained:
                out.append(self._node("all_reduce", nbytes / self.inner, axis="copies"))
            places.append(b)
            out = self._joined(trained) + out
            stored = count * self.itemsize - (spared_bytes(one, self.itemsize) if self.work.lora else 0.0)
            gather = [self._node("all_gather", stored, WEIGHTS)]
            if self.copies_out:
                gather.append(self._copy("weights copy out", self.weight_dtype, count, FORWARD))
            gathers.append(Block(block.name, tuple(gather), block.repeat))
            reduces.append(Block(block.name, tuple(out), block.repeat))
        return tuple(places), Graph(tuple(gathers)), Graph(tuple(reduces))

    def _joined(self, count: int) -> list[Node]:
        """What brings the gradients of a unit side by side: of views of a flat parameter, the gradient of its split, a
        concatenation (torch/distributed/fsdp/_flat_param.py 2.13, line 1901); of weights of their own, a copy in the
        dtype of the reduction (_fully_shard/_fsdp_collectives.py, chunk_cat)."""
        if not self.work.engine.training or not self.work.engine.training.shards or not count:
            return []
        dtype = self.gradient_dtype if self.copies_out else self.weight_dtype
        return [self._copy("gradients copy in", dtype, count, BACKWARD)]

    def _copy(self, name: str, dtype: str, count: int, phase: str) -> Node:
        op = Elementwise(dtype, "copy", count, in_dtype=self.weight_dtype, grad=False)
        return Node(op, name, phase=phase, scope=name)

    def message(self, config: ModelConfig, step: Step) -> Graph:
        """Activations that a stage sends the next, each rank of a tensor-parallel group a part where they are split."""
        over, system = self.work.parallelism, self.mesh.system
        nbytes = step.batch * (step.seq_len // over.cp) * config.hidden * self.itemsize
        if self.scatters:
            nbytes /= over.tp
        from predictor.ops.collective import over as joined

        near = self.mesh.stride("pp") * 2 <= system.gpus_per_node
        op = joined(system, "send_recv", self.weight_dtype, max(1, round(nbytes)), 2, 2 if near else 1)
        return Graph((Block(PIPELINE, (Node(op, "stage send_recv", scope="stage send_recv"),)),))
