"""Megatron-LM and Megatron Core: fused element-wise kernels, tensor, sequence and pipeline parallelism, launched from
Python ahead of the GPU."""

from __future__ import annotations

from predictor.engines.base import CALLS, Engine, later
from predictor.engines.boards import Boards
from predictor.engines.tensorrt_llm.engine import CUBLASLT

#: Source: README.md of Megatron-Core 0.12.0 ("compatible with all NVIDIA Tensor Core GPUs", Volta first).
#: As recalled, unverified: AMD's fork is ROCm/Megatron-LM.
BOARDS = (
    Boards("nvidia", "Megatron-Core 0.12.0 README.md", least="7.0"),
    Boards("amd", "github.com/ROCm/Megatron-LM"),
)

ENGINES = (
    Engine(
        "megatron", host=CALLS, decode_host=CALLS, joins_dropout=True, views_heads=True, trains=True,
        called=("megatron-lm", "megatron-deepspeed", "nemo"), vintages=later("megatron.releases", "VINTAGES"),
        given_narrow=CUBLASLT, boards=BOARDS,
    ),
)  # fmt: skip
