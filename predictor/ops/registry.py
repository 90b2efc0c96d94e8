"""Operator names of data sets and the classes behind them. A new operator is one file and one entry here.

`register` adds one from outside the package. A forecast needs no more than the class: an estimator answers for its
``family`` where the set has one, else the roofline. The name is what rows of it are read and written by.
"""

from __future__ import annotations

from predictor.ops.attention import Attention
from predictor.ops.base import Op
from predictor.ops.channel_norm import ChannelNorm
from predictor.ops.collective import Collective
from predictor.ops.convolution import Convolution
from predictor.ops.elementwise import Copy, Dropout, Elementwise, Reduce, Rotary
from predictor.ops.embedding import CrossEntropy, Embedding
from predictor.ops.gemm import Gemm
from predictor.ops.linear_attention import CausalConv1d, DeltaRule, StateSpace
from predictor.ops.moe import MoE, Routing
from predictor.ops.norm import Norm, Softmax
from predictor.ops.optimizer import OptimizerStep
from predictor.ops.ordering import Index, Scan, Sort
from predictor.ops.quantize import Quantize
from predictor.ops.resample import Interpolate, Pool
from predictor.ops.sparse import Aggregate, EmbeddingBag, Indexer

#: Operator name in a measurement -> class. The names are those of the measurement schema's ``op`` column.
OPERATORS: dict[str, type[Op]] = {
    "gemm": Gemm,
    "attention": Attention,
    "elementwise": Elementwise,
    "dropout": Dropout,
    "reduce": Reduce,
    "rotary": Rotary,
    "copy": Copy,
    "norm": Norm,
    "softmax": Softmax,
    "embedding": Embedding,
    "cross_entropy": CrossEntropy,
    "optimizer": OptimizerStep,
    "moe": MoE,
    "routing": Routing,
    "collective": Collective,
    "quantize": Quantize,
    "causal_conv1d": CausalConv1d,
    "delta_rule": DeltaRule,
    "state_space": StateSpace,
    "convolution": Convolution,
    "channel_norm": ChannelNorm,
    "pool": Pool,
    "interpolate": Interpolate,
    "index": Index,
    "scan": Scan,
    "sort": Sort,
    "embedding_bag": EmbeddingBag,
    "aggregate": Aggregate,
    "indexer": Indexer,
}


def register(name: str, cls: type[Op]) -> None:
    """Adds an operator from outside the package, under the name of it in the measurement schema's ``op`` column.

    Rows hold the fields that are columns of the schema (`predictor.data.schema.COLUMNS`), no others. ValueError where
    the name or the class is taken.
    """
    if name in OPERATORS or cls in OPERATORS.values():
        raise ValueError(f"an operator called {name!r}, or one of class {cls.__name__}, exists")
    OPERATORS[name] = cls


FAMILIES: tuple[str, ...] = tuple(sorted({cls.family for cls in OPERATORS.values()}))
