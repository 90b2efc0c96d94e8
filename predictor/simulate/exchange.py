"""What the replicas of a step of training, and the stages of its pipeline, send each other."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from predictor.engines import Engine
from predictor.errors import RequestError
from predictor.files.records import replace
from predictor.graph import Block, Graph, Node
from predictor.graph.tensor import Tensor
from predictor.hardware.system import SystemSpec
from predictor.models.base import Stack
from predictor.models.step import Step
from predictor.ops.base import BACKWARD, FORWARD, Op
from predictor.ops.collective import Collective
from predictor.ops.collective import over as joined
from predictor.ops.elementwise import Elementwise
from predictor.passes.expert_parallel import is_expert
from predictor.passes.freeze import is_trained
from predictor.passes.mesh import Mesh
from predictor.passes.unpack import spared_bytes
from predictor.request.options import HSDP, NO_SHARD, ZERO2, ZERO3
from predictor.request.parallelism import Parallelism
from predictor.request.precision import Precision
from predictor.request.workload import Workload
from predictor.simulate.stage import GRADIENTS, PIPELINE, WEIGHTS


@lru_cache(maxsize=4096)
def _collective(mesh: Mesh, kind: str, axis: str, dtype: str, size: int) -> Collective:
    """One object for each distinct size."""
    return mesh.collective(kind, axis, dtype, size)


class _Replicas(NamedTuple):
    """Ranks that have the same weights: ``inner`` of them keep a part of the training state each, ``outer`` groups of
    these have copies of it; along "dp" and "copies" of ``mesh``."""

    mesh: Mesh
    inner: int
    outer: int


@lru_cache(maxsize=1024)
def _step_mesh(within: tuple[tuple[str, int], ...], inner: int, outer: int, pp: int, system: SystemSpec) -> Mesh:
    """The axes that share a layer ``within``, then the replicas that keep a part of the training state each ("dp"),
    then those that have copies of it."""
    return Mesh((*within, ("dp", inner), ("copies", outer), ("pp", pp)), system)


def _replicas(over: Parallelism, system: SystemSpec, experts: bool = False) -> _Replicas:
    """Of the weights of all layers, or of those of experts."""
    inner, outer = over.replicas(system.gpus_per_node, experts)
    within = (("tp", 1 if over.folds else over.tp), ("ep", over.ep)) if experts else (("tp", over.tp),)
    return _Replicas(_step_mesh(within, inner, outer, over.pp, system), inner, outer)


class ReplicaExchange:
    """What the replicas of a run, and the stages of its pipeline, send each other."""

    def __init__(self, work: Workload, numbers: Precision, engine: Engine) -> None:
        over, system, training = work.parallelism, work.system, engine.training
        assert system is not None
        self.work = work
        self.adapters = work.training is not None and work.training.lora > 0
        replicas = over.dp * over.cp
        if over.shard == HSDP:
            inner, _ = over.replicas(system.gpus_per_node)
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
        self.dense = _replicas(over, system)
        #: of experts, where other ranks have the same ones than have the same layers
        self.experts = _replicas(over, system, experts=True) if over.ep > 1 or over.folds else None
        self.mesh = self.dense.mesh
        self.shard = over.shard
        self.weight_dtype = numbers.activation
        main_dtype = training.main_gradients if training is not None else ""
        self.gradient_dtype = main_dtype or numbers.activation
        self.itemsize = 2.0 if numbers.mixed else 4.0
        self.gradient_bytes = 4.0 if self.gradient_dtype == "fp32" else self.itemsize
        self.overlaps = over.beside(training is not None and training.gradients_overlap)
        self.bucket_bytes = training.bucket_bytes if training is not None else 0.0
        self.copies_out = training is not None and training.copies_out
        self.scatters = over.sp or (training is not None and training.scatters_p2p)
        #: gradients are reduced after every pass, layer by layer; weights are gathered for it, or lie on every rank
        self.sharded = any(g.inner * g.outer > 1 for g in self._groups) and over.shard in (ZERO2, ZERO3, HSDP)
        self.gathers = self.sharded and not (over.shard == ZERO2 and engine.trains)
        self.hooks = training.hooks if training is not None else ()

    @property
    def _groups(self) -> tuple[_Replicas, ...]:
        return (self.dense,) if self.experts is None else (self.dense, self.experts)

    def experts_of(self, weights: Iterable[tuple[Tensor, int]]) -> int:
        """Elements of weights, of how many each, that replicas of their own have; 0 where all have the same ones."""
        return 0 if self.experts is None else sum(w.elements * n for w, n in weights if is_expert(w))

    def _parts(self, elements: int, experts: int) -> list[tuple[_Replicas, int]]:
        """``elements``, ``experts`` of them of experts, by the replicas that have them."""
        if self.experts is None:
            return [(self.dense, elements)]
        return [(self.dense, elements - experts), (self.experts, experts)]

    def kept(self, parameters: int, experts: int = 0) -> int:
        """Parameters that a rank updates, of which ``experts`` are of experts."""
        if self.shard == NO_SHARD:
            return parameters
        return sum(-(-count // group.inner) for group, count in self._parts(parameters, experts))

    def _node(
        self, group: _Replicas, kind: str, nbytes: float, what: str = GRADIENTS, axis: str = "dp", count: int = 1
    ) -> Node:
        dtype = self.gradient_dtype if what == GRADIENTS else self.weight_dtype
        name, phase = f"{what} {kind}", BACKWARD if what == GRADIENTS else FORWARD
        name = f"experts {name}" if group is self.experts else name
        op = _collective(group.mesh, kind, axis, dtype, max(1, round(nbytes)))
        return Node(op, name, count=count, phase=phase, scope=name)

    def reduced(self, parameters: int, copied: int, config: Stack, tables: int, experts: int = 0) -> Graph:
        """Gradients of a rank, ``experts`` of them of experts, reduced once a step: what follows the last backward
        pass, or runs beside it. ``copied`` of them are summed over the ranks of a tensor-parallel group that have
        copies of the same heads, too."""
        nodes: list[Node] = []
        for group, elements in self._parts(parameters, experts):
            if self.sharded or not elements or group.inner * group.outer == 1:
                continue
            nbytes = elements * self.gradient_bytes
            buckets = max(1, round(nbytes / self.bucket_bytes)) if self.overlaps and self.bucket_bytes else 1
            kind = "all_reduce" if self.shard == NO_SHARD else "reduce_scatter"
            nodes.append(self._node(group, kind, nbytes / buckets, count=buckets))
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

    def gathered(self, parameters: int, experts: int = 0) -> Graph:
        """Updated weights of a rank, of which each replica has a part; ``experts`` of them are of experts."""
        if self.shard == NO_SHARD or self.gathers:
            return Graph(())
        nodes = tuple(
            self._node(group, "all_gather", count * self.itemsize, WEIGHTS)
            for group, count in self._parts(parameters, experts) if count and group.inner > 1
        )  # fmt: skip
        return Graph((Block(WEIGHTS, nodes),)) if nodes else Graph(())

    def of_blocks(self, graph: Graph) -> tuple[tuple[int, ...], Graph, Graph]:
        """The forward blocks that have weights, by place; for each what gathers them, and what scales and reduces
        their gradients. A weight that a block before it has, too (a tied embedding's), is that one's. The first node of
        each has the framework's calls of a unit's hooks."""
        places: list[int] = []
        known: set[int] = set()
        gathers: list[Block] = []
        reduces: list[Block] = []
        for b, block in enumerate(graph.blocks):
            unit = Graph((replace(block, repeat=1, layers=block.layers[:1]),))
            held = [weight for weight, _ in unit.weights() if id(weight) not in known]
            known |= {id(weight) for weight in held}
            count = sum(weight.elements for weight in held)
            if block.backward_of is not None or not count:
                continue
            learns = [w for w in held if not self.adapters or is_trained(w)]
            trained = sum(w.elements for w in learns)
            out = self._joined(trained)
            if trained:
                scaled: Op = Elementwise(self.gradient_dtype, "mul_scalar", trained)
                out.append(Node(scaled, "gradients scaling", phase=BACKWARD, scope="gradients scaling"))
            for group, elements in self._parts(trained, self.experts_of((w, 1) for w in learns)):
                nbytes = elements * self.gradient_bytes
                if elements and (group.inner > 1 or group is self.dense):
                    out.append(self._node(group, "reduce_scatter", nbytes))
                if elements and group.outer > 1:
                    out.append(self._node(group, "all_reduce", nbytes / group.inner, axis="copies"))
            places.append(b)
            spared = spared_bytes(unit, self.itemsize) if self.adapters else 0.0  # of none of the experts'
            gather = [
                self._node(group, "all_gather", elements * self.itemsize - spared * (group is self.dense), WEIGHTS)
                for group, elements in self._parts(count, self.experts_of((w, 1) for w in held))
                if self.gathers and elements and (group.inner > 1 or group is self.dense)
            ]  # fmt: skip
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

    def message(self, config: Stack, step: Step) -> Graph:
        """Activations that a stage sends the next, each rank of a tensor-parallel group a part where they are split."""
        over, system = self.work.parallelism, self.mesh.system
        nbytes = step.batch * (step.seq_len // over.cp) * config.hidden * self.itemsize
        if self.scatters:
            nbytes /= over.tp
        near = self.mesh.stride("pp") * 2 <= system.gpus_per_node
        op = joined(system, "send_recv", self.weight_dtype, max(1, round(nbytes)), 2, 2 if near else 1)
        return Graph((Block(PIPELINE, (Node(op, "stage send_recv", scope="stage send_recv"),)),))
