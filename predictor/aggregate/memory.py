"""What a run keeps in device memory: weights, gradients, optimizer state, activations, KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from predictor.graph.graph import Graph
from predictor.hardware.gpu import GPUSpec
from predictor.ops.attention import Attention
from predictor.ops.base import Op
from predictor.ops.embedding import CrossEntropy
from predictor.ops.gemm import Gemm
from predictor.ops.moe import MoE
from predictor.precision import Precision

#: Bytes of optimizer state a parameter: Adam keeps two fp32 moments, plain SGD none.
_STATE = {"adam": 8.0, "adam_fused": 8.0, "sgd": 0.0, "none": 0.0}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by class on one GPU, and what that GPU has. CUDA's own context (0.3 to 0.6 GiB) and fragmentation are not
    counted. ``gpus`` share the model; ``sequences`` is the batch of a forward pass, whose activations and KV cache grow
    with it (0: training, whose sizes do not tell)."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    kv_cache: float
    capacity: float
    gpus: int = 1
    sequences: int = 0

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
        return max(1, math.ceil(self.total * self.gpus / self.capacity))

    @property
    def largest_batch(self) -> int | None:
        """Most sequences of this mix of lengths that fit: what the weights leave over what one sequence needs.

        None in training. Activations and KV cache are taken as proportional to the batch; 0 where not one fits.
        """
        if not self.sequences:
            return None
        each = (self.activations + self.kv_cache) / self.sequences
        left = self.capacity - self.weights - self.gradients - self.optimizer
        return max(0, math.floor(left / each * (1.0 + 1e-12))) if each else None

    @property
    def reason(self) -> str:
        """Why it does not fit, in one sentence; "" where it does."""
        if self.fits:
            return ""
        fixed = self.weights + self.gradients + self.optimizer
        what = "weights" if fixed == self.weights else "weights, gradients and optimizer state"
        share = f"a GPU's part of the {what}" if self.gpus > 1 else f"the {what}"
        if fixed > self.capacity:
            return f"{share} alone need more than the GPU has"
        most = self.largest_batch
        if most is None:
            return f"{share} fit, but not with the activations that the backward pass needs"
        cause = "KV cache" if self.kv_cache > self.activations else "activations"
        return f"{share} fit, but the {cause} of {self.sequences} sequences do not; {most} would fit"


def inference_memory(weights: float, kv_bytes: float, graph: Graph, gpu: GPUSpec, gpus: int, sequences: int) -> Memory:
    """A forward pass on one of ``gpus`` GPUs that share the model: its weights, KV cache, and the largest moment of
    activations (an operator's inputs and outputs)."""
    moment, capacity = _largest_moment(graph), float(gpu.memory_capacity)
    return Memory(weights, 0.0, 0.0, moment, kv_bytes, capacity, gpus, sequences)


def _largest_moment(graph: Graph) -> float:
    """Largest traffic of activations that one operator needs at once."""
    return max((_activation_bytes(node.op) * node.share for block in graph.blocks for node in block.nodes), default=0.0)


def _activation_bytes(op: Op) -> float:
    if op.family == "gemm":
        gemm = cast(Gemm, op)
        if gemm.kind == "linear":
            return gemm.m * gemm.k * gemm.itemsize + gemm.bytes_written()
    elif op.family == "moe":
        moe = cast(MoE, op)
        return moe.expert_rows * (moe.hidden + moe.intermediate / moe.tp) * 2.0
    elif op.family == "embedding":
        return op.bytes_written()
    elif op.family == "attention":
        attention = cast(Attention, op)
        if attention.is_decode:  # keys and values are the cache's
            width = attention.head_dim + attention.value_dim
            return attention.batch * attention.heads * width * attention.itemsize
    return op.bytes_moved()


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
