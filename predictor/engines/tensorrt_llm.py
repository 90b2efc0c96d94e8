"""TensorRT-LLM: C++ launches the kernels of a prompt, decode steps are captured.

Its attention operator rotates queries and keys and writes the cache while it takes the heads apart.
"""

from predictor.engines.base import CAPTURED, LAUNCHES, Engine
from predictor.engines.memory import MemoryRule

#: CPU time of one launch from C++: NVIDIA's "Getting Started with CUDA Graphs" (2019) shows 2 to 4 microseconds a
#: kernel (unverified here).
NATIVE_LAUNCH_OVERHEAD_S, NATIVE_LAUNCH_RANGE_S = 3e-6, (2e-6, 4e-6)
MEMORY = (
    MemoryRule(
        "TensorRT-LLM", "1.0", "free_gpu_memory_fraction", "free", 0.90,
        "TensorRT-LLM tensorrt_llm/llmapi/llm_args.py, KvCacheConfig",
    ),
)  # fmt: skip

ENGINES = (
    Engine(
        "tensorrt_llm", "trtllm", LAUNCHES, CAPTURED, NATIVE_LAUNCH_OVERHEAD_S, NATIVE_LAUNCH_RANGE_S, serves=True,
        rotates=True, fp8_cache=True, unpacks=False, memory=MEMORY,
    ),
)  # fmt: skip
