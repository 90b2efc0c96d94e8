"""What a run keeps in device memory: weights, gradients, optimizer state, activations, KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

from predictor.graph.graph import Graph
from predictor.hardware.gpu import GPUSpec
from predictor.ops.embedding import CrossEntropy
from predictor.precision import Precision

#: Bytes of optimizer state a parameter: Adam keeps two fp32 moments, plain SGD none.
_STATE = {"adam": 8.0, "adam_fused": 8.0, "sgd": 0.0, "none": 0.0}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by class, and what the GPU has. CUDA's own context (0.3 to 0.6 GiB) and fragmentation are not counted."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    kv_cache: float
    capacity: float

    @property
    def total(self) -> float:
        """Bytes of all classes."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.kv_cache

    @property
    def fits(self) -> bool:
        """Whether the total is within the capacity."""
        return self.total <= self.capacity

    @property
    def missing(self) -> float:
        """Bytes by which the total exceeds the capacity; 0 where it fits."""
        return max(0.0, self.total - self.capacity)

    @property
    def smallest_gpu_count(self) -> int:
        """GPUs of this kind that would hold it if every class were spread evenly over them."""
        return max(1, math.ceil(self.total / self.capacity))


def inference_memory(
    linear_parameters: float, other_parameters: float, kv_bytes: float, graph: Graph, precision: Precision, gpu: GPUSpec
) -> Memory:
    """A forward pass: weights, KV cache, and the largest moment of activations (an operator's inputs and outputs)."""
    from predictor.dtypes import bytes_of

    weights = linear_parameters * bytes_of(precision.weight) + other_parameters * bytes_of(precision.activation)
    return Memory(weights, 0.0, 0.0, _largest_moment(graph), kv_bytes, float(gpu.memory_capacity))


def _largest_moment(graph: Graph) -> float:
    """Largest traffic of activations that one operator needs at once."""
    return max((_activation_bytes(node.op) for node, _ in graph.nodes()), default=0.0)


def _activation_bytes(op: object) -> float:
    from predictor.ops.embedding import Embedding
    from predictor.ops.gemm import Gemm
    from predictor.ops.moe import MoE

    if isinstance(op, Gemm) and op.kind == "linear":
        return op.m * op.k * op.itemsize + op.bytes_written()
    if isinstance(op, MoE):
        return op.expert_rows * (op.hidden + op.intermediate / op.tp) * 2.0
    if isinstance(op, Embedding):
        return op.bytes_written()
    return op.bytes_moved() if hasattr(op, "bytes_moved") else 0.0


def training_memory(
    parameters: float, graph: Graph, precision: Precision, optimizer: str, micro_batches: int, gpu: GPUSpec
) -> Memory:
    """Training: weights (with an fp32 master copy in 16-bit training), gradients, state, and what autograd keeps.

    Mixed precision as in Micikevicius et al. (2018): 16-bit weights and gradients, fp32 master weights and moments.
    ``graph`` is the forward graph of one micro-batch.
    """
    mixed = precision.activation in ("bf16", "fp16")
    weights = parameters * (2.0 + 4.0 if mixed and optimizer != "none" else (2.0 if mixed else 4.0))
    gradients = parameters * (2.0 if mixed else 4.0)
    if mixed and micro_batches > 1:
        gradients = parameters * 4.0  # accumulated in fp32
    saved = sum(node.saved_bytes * times for node, times in graph.nodes())
    saved += sum(node.op.bytes_written() for node, _ in graph.nodes() if isinstance(node.op, CrossEntropy))
    return Memory(weights, gradients, parameters * _STATE[optimizer], saved, 0.0, float(gpu.memory_capacity))
