"""Megatron-LM and Megatron Core: fused element-wise kernels, tensor, sequence and pipeline parallelism, launched from
Python ahead of the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.engines.base import CALLS, Engine
from predictor.engines.tensorrt_llm import CUBLASLT

if TYPE_CHECKING:
    from predictor.engines.vintage import Vintage


def vintages() -> tuple[Vintage, ...]:
    """Its releases by age."""
    from predictor.engines.megatron_releases import VINTAGES

    return VINTAGES


ENGINES = (
    Engine(
        "megatron", host=CALLS, decode_host=CALLS, joins_dropout=True, views_heads=True, trains=True,
        called=("megatron-lm", "megatron-deepspeed", "nemo"), vintages=vintages, given_narrow=CUBLASLT,
    ),
)  # fmt: skip
