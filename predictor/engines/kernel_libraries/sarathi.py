"""Sarathi-Serve, a fork of vLLM as it was in 2023, whose kernels Vidur measured. It is no engine here.

Its row kernels move one 16-bit element a thread. Engines of today load 16 bytes a thread (vLLM's vectorized norms and
activations, the FlashInfer kernels that SGLang and TensorRT-LLM ship), as PyTorch does: bytes over bandwidth.
"""

from predictor.engines.pytorch.engine import PYTORCH
from predictor.files.records import replace

LIBRARIES = (replace(PYTORCH, name="sarathi", scalar=True),)
