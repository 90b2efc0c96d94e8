"""Operators: shape, dtype, FLOPs, bytes and backward pass of every kernel that a graph can hold."""

from predictor.ops.attention import Attention
from predictor.ops.base import BACKWARD, FORWARD, Op
from predictor.ops.channel_norm import ChannelNorm
from predictor.ops.collective import Collective
from predictor.ops.convolution import Convolution
from predictor.ops.elementwise import Copy, Dropout, Elementwise, Reduce, Rotary
from predictor.ops.embedding import CrossEntropy, Embedding
from predictor.ops.gemm import Gemm
from predictor.ops.linear_attention import CausalConv1d, DeltaRule, StateSpace
from predictor.ops.moe import MoE, Routing
from predictor.ops.norm import Norm, Softmax
from predictor.ops.opaque import Opaque
from predictor.ops.optimizer import OptimizerStep
from predictor.ops.ordering import Index, Scan, Sort
from predictor.ops.quantize import Quantize
from predictor.ops.registry import FAMILIES, OPERATORS, register
from predictor.ops.resample import Interpolate, Pool
from predictor.ops.sparse import Aggregate, EmbeddingBag, Indexer

__all__ = [
    "BACKWARD", "FAMILIES", "FORWARD", "OPERATORS", "Aggregate", "Attention", "CausalConv1d", "ChannelNorm",
    "Collective", "Convolution", "Copy", "CrossEntropy", "DeltaRule", "Dropout", "Elementwise", "Embedding",
    "EmbeddingBag", "Gemm", "Index", "Indexer", "Interpolate", "MoE", "Norm", "Op", "Opaque", "OptimizerStep", "Pool",
    "Quantize", "Reduce", "Rotary", "Routing", "Scan", "Softmax", "Sort", "StateSpace", "register",
]  # fmt: skip
