"""TensorRT-LLM: C++ launches the kernels of a prompt, decode steps are captured.

Its attention operator rotates queries and keys and writes the cache while it takes the heads apart.
"""

from predictor.engines.base import CAPTURED, LAUNCHES, Engine

#: CPU time of one launch from C++: NVIDIA's "Getting Started with CUDA Graphs" (2019) shows 2 to 4 microseconds a
#: kernel (unverified here).
NATIVE_LAUNCH_OVERHEAD_S, NATIVE_LAUNCH_RANGE_S = 3e-6, (2e-6, 4e-6)

ENGINES = (
    Engine(
        "tensorrt_llm",
        "trtllm",
        LAUNCHES,
        CAPTURED,
        NATIVE_LAUNCH_OVERHEAD_S,
        NATIVE_LAUNCH_RANGE_S,
        serves=True,
        rotates=True,
    ),
)
