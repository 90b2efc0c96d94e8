"""Operators: shape, dtype, FLOPs, bytes and backward pass of every kernel that a graph can hold.

A forecast uses a few of them: each module loads when a name of it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_MODULES = {
    "attention": ("Attention",),
    "base": ("BACKWARD", "FORWARD", "Op"),
    "channel_norm": ("ChannelNorm",),
    "collective": ("Collective",),
    "convolution": ("Convolution",),
    "elementwise": ("Copy", "Dropout", "Elementwise", "Reduce", "Rotary"),
    "embedding": ("CrossEntropy", "Embedding"),
    "gemm": ("Gemm",),
    "linear_attention": ("CausalConv1d", "DeltaRule", "StateSpace"),
    "moe": ("MoE", "Routing"),
    "norm": ("Norm", "Softmax"),
    "opaque": ("Opaque",),
    "optimizer": ("OptimizerStep",),
    "ordering": ("Index", "Scan", "Sort"),
    "quantize": ("Quantize",),
    "registry": ("FAMILIES", "OPERATORS", "register"),
    "resample": ("Interpolate", "Pool"),
    "sparse": ("Aggregate", "EmbeddingBag", "Indexer"),
}  # fmt: skip
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
