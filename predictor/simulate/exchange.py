"""What the replicas of a step of training, and the stages of its pipeline, send each other."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import gcd

from predictor.engines import Engine
from predictor.errors import RequestError
from predictor.graph import Block, Graph, Node
from predictor.hardware.mesh import Mesh
from predictor.hardware.system import SystemSpec
from predictor.networks import ModelConfig, Step
from predictor.ops.base import BACKWARD, FORWARD, Op
from predictor.ops.collective import Collective
from predictor.ops.collective import over as joined
from predictor.ops.elementwise import Elementwise
from predictor.parallelism import HSDP, NO_SHARD, ZERO2, ZERO3
from predictor.passes.freeze import is_trained
from predictor.passes.unpack import spared_bytes
from predictor.precision import Precision
from predictor.simulate.stage import GRADIENTS, PIPELINE, WEIGHTS
from predictor.workload import Workload


@lru_cache(maxsize=4096)
def _collective(mesh: Mesh, kind: str, axis: str, dtype: str, size: int) -> Collective:
    """One object for each distinct size."""
    return mesh.collective(kind, axis, dtype, size)


@lru_cache(maxsize=1024)
def _step_mesh(tp: int, inner: int, outer: int, pp: int, system: SystemSpec) -> Mesh:
    """tp, then the replicas that keep a part of the training state each ("dp"), then those that have copies of it."""
    return Mesh((("tp", tp), ("dp", inner), ("copies", outer), ("pp", pp)), system)


class Exchange:
    """What the replicas of a run, and the stages of its pipeline, send each other."""

    def __init__(self, work: Workload, numbers: Precision, engine: Engine) -> None:
        over, system, training = work.parallelism, work.system, engine.training
        assert system is not None
        self.work = work
        replicas = over.dp * over.cp
        inner = replicas
        if over.shard == HSDP:
            inner = max(1, min(replicas, system.gpus_per_node // over.tp))
            if inner == 1 < replicas:
                fits = f", or --tp {system.gpus_per_node // 2}" if system.gpus_per_node > 1 else ""
                raise RequestError(
                    f"--shard hsdp: --tp {over.tp} leaves one replica in a node of {system.id} ({system.gpus_per_node}"
                    f" GPUs); expected zero3{fits}"
                )
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
        self.overlaps = over.beside(training is not None and training.gradients_overlap)
        self.bucket_bytes = training.bucket_bytes if training is not None else 0.0
        self.copies_out = training is not None and training.copies_out
        self.scatters = over.sp or (training is not None and training.scatters_p2p)
        #: gradients are reduced after every pass, layer by layer; weights are gathered for it, or lie on every rank
        self.sharded = replicas > 1 and over.shard in (ZERO2, ZERO3, HSDP)
        self.gathers = self.sharded and not (over.shard == ZERO2 and engine.trains)
        self.hooks = training.hooks if training is not None else ()

    def kept(self, parameters: int) -> int:
        """Parameters that a rank updates."""
        return parameters if self.shard == NO_SHARD else -(-parameters // self.inner)

    def _node(self, kind: str, nbytes: float, what: str = GRADIENTS, axis: str = "dp", count: int = 1) -> Node:
        dtype = self.gradient_dtype if what == GRADIENTS else self.weight_dtype
        name, phase = f"{what} {kind}", BACKWARD if what == GRADIENTS else FORWARD
        op = _collective(self.mesh, kind, axis, dtype, max(1, round(nbytes)))
        return Node(op, name, count=count, phase=phase, scope=name)

    def reduced(self, parameters: int, copied: int, config: ModelConfig, tables: int) -> Graph:
        """Gradients of a rank, reduced once a step: what follows the last backward pass, or runs beside it. ``copied``
        of them are summed over the ranks of a tensor-parallel group that have copies of the same heads, too."""
        nodes: list[Node] = []
        nbytes = parameters * self.gradient_bytes
        if not self.sharded and self.inner * self.outer > 1:
            buckets = max(1, round(nbytes / self.bucket_bytes)) if self.overlaps and self.bucket_bytes else 1
            kind = "all_reduce" if self.shard == NO_SHARD else "reduce_scatter"
            nodes.append(self._node(kind, nbytes / buckets, count=buckets))
        over = self.work.parallelism
        if tables > 1:
            size = config.vocab * config.hidden / over.tp * self.gradient_bytes
            nodes.append(self._tables(size, tables))
        if copied:
            nodes.append(self._copies(copied * self.gradient_bytes, over.tp // config.kv_heads))
        return Graph((Block(GRADIENTS, tuple(nodes)),)) if nodes else Graph(())

    def _tables(self, nbytes: float, ranks: int) -> Node:
        """The sum of what the stages that have a copy of the embedding have of its gradient: the first and the last."""
        near = self.mesh.gpus <= self.mesh.system.gpus_per_node
        op = joined(self.mesh.system, "all_reduce", self.gradient_dtype, round(nbytes), ranks, ranks if near else 1)
        return Node(op, "embedding all_reduce", phase=BACKWARD, scope="embedding all_reduce")

    def _copies(self, nbytes: float, ranks: int) -> Node:
        """The sum of the gradients that neighbours in a tensor-parallel group have of heads that each has a copy of."""
        near = gcd(ranks, self.mesh.system.gpus_per_node)
        op = joined(self.mesh.system, "all_reduce", self.gradient_dtype, round(nbytes), ranks, near)
        return Node(op, "kv_heads all_reduce", phase=BACKWARD, scope="kv_heads all_reduce")

    def gathered(self, parameters: int) -> Graph:
        """Updated weights of a rank, of which each replica has a part."""
        if self.shard == NO_SHARD or self.gathers or self.inner == 1:
            return Graph(())
        node = self._node("all_gather", parameters * self.itemsize, WEIGHTS)
        return Graph((Block(WEIGHTS, (node,)),))

    def of_blocks(self, graph: Graph) -> tuple[tuple[int, ...], Graph, Graph]:
        """The forward blocks that have weights, by place; for each what gathers them, and what scales and reduces
        their gradients. A weight that a block before it has, too (a tied embedding's), is that one's. The first node of
        each has the framework's calls of a unit's hooks."""
        places: list[int] = []
        known: set[int] = set()
        gathers: list[Block] = []
        reduces: list[Block] = []
        for b, block in enumerate(graph.blocks):
            one = Graph((replace(block, repeat=1, layers=block.layers[:1]),))
            held = [weight for weight, _ in one.weights() if id(weight) not in known]
            known |= {id(weight) for weight in held}
            count = sum(weight.elements for weight in held)
            if block.backward_of is not None or not count:
                continue
            trained = sum(w.elements for w in held if is_trained(w)) if self.work.lora else count
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
            gather = [self._node("all_gather", stored, WEIGHTS)] if self.gathers else []
            if self.gathers and self.copies_out:
                gather.append(self._copy("weights copy out", self.weight_dtype, count, FORWARD))
            for nodes, (fixed, each) in zip((gather, out), self.hooks, strict=False):
                if nodes:
                    nodes[0] = replace(nodes[0], host_calls=round(fixed + each * len(held)))
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
        near = self.mesh.stride("pp") * 2 <= system.gpus_per_node
        op = joined(system, "send_recv", self.weight_dtype, max(1, round(nbytes)), 2, 2 if near else 1)
        return Graph((Block(PIPELINE, (Node(op, "stage send_recv", scope="stage send_recv"),)),))
