"""PyTorch without a serving engine: eager, compiled, and a captured graph of serving kernels."""

from __future__ import annotations

from predictor.engines.base import CAPTURED, Engine, later
from predictor.engines.boards import Boards
from predictor.engines.tensorrt_llm.engine import CUBLASLT
from predictor.engines.vllm.engine import VLLM
from predictor.files.records import replace

#: Eager PyTorch runs the kernels of vLLM's unquantized path; its norms are its own, its collectives NCCL's. What no
#: file of this folder describes is taken for it.
PYTORCH = replace(VLLM, name="pytorch", code=-1, runs=VLLM.name, norms=(), all_reduces=())

LIBRARIES = (PYTORCH,)

#: Release of transformers whose classes eager PyTorch runs today. Source: huggingface/transformers v5.24.0,
#: src/transformers/models; in an older age those of v4.28.0. Unverified: releases between, whose classes changed one by
#: one.
CLASSES = "5.24"
EAGER = Engine(
    "eager", fuses=False, classes=CLASSES, called=("torch", "pytorch", "torch fsdp"), given_narrow=CUBLASLT,
    vintages=later("pytorch.releases", "EAGER_VINTAGES"),
)  # fmt: skip
#: Source: torch/_dynamo/device_interface.py of 2.13.0, is_triton_capable (compute capability 7 on, every HIP and XPU
#: device), and _inductor/scheduler.py, which raises GPUTooOldForTriton below.
COMPILES = (
    Boards("nvidia", "PyTorch torch/_inductor/scheduler.py", least="7.0"),
    Boards("amd", "PyTorch torch/_dynamo/device_interface.py"),
    Boards("intel", "PyTorch torch/_dynamo/device_interface.py"),
)
#: torch.compile with its launches captured (mode "reduce-overhead").
COMPILE = Engine(
    "compile", host=CAPTURED, decode_host=CAPTURED, called=EAGER.called, given_narrow=CUBLASLT, boards=COMPILES,
    vintages=later("pytorch.releases", "COMPILE_VINTAGES"),
)  # fmt: skip
#: The model as a serving engine fuses it, captured whole: no engine's host. Kernels are those of vLLM's tables, whose
#: unquantized layers call the libraries that PyTorch calls.
CUDA_GRAPH = Engine("cuda_graph", "vllm", CAPTURED, CAPTURED, serves=True, fp8_cache=True, given_narrow=CUBLASLT)

ENGINES = (EAGER, COMPILE, CUDA_GRAPH)
