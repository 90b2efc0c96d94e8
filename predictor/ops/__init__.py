"""Operators: shape, dtype, FLOPs, bytes and backward pass of every kernel that a graph can hold."""

from predictor.ops.attention import Attention
from predictor.ops.base import BACKWARD, FORWARD, Op
from predictor.ops.collective import Collective
from predictor.ops.elementwise import Copy, Dropout, Elementwise, Reduce, Rotary
from predictor.ops.embedding import CrossEntropy, Embedding
from predictor.ops.gemm import Gemm
from predictor.ops.linear_attention import CausalConv1d, DeltaRule
from predictor.ops.moe import MoE, Routing
from predictor.ops.norm import Norm, Softmax
from predictor.ops.optimizer import OptimizerStep
from predictor.ops.quantize import Quantize
from predictor.ops.registry import FAMILIES, OPERATORS, register

__all__ = [
    "BACKWARD", "FAMILIES", "FORWARD", "OPERATORS", "Attention", "CausalConv1d", "Collective", "Copy", "CrossEntropy",
    "DeltaRule", "Dropout", "Elementwise", "Embedding", "Gemm", "MoE", "Norm", "Op", "OptimizerStep", "Quantize",
    "Reduce", "Rotary", "Routing", "Softmax", "register",
]  # fmt: skip
