"""FasterTransformer, which became TensorRT-LLM: kernels launched from C++, no CUDA graphs.

Decode attention is one kernel that adds the bias and writes the cache (`masked_multihead_attention`), always; a kernel
of its own adds the bias before a fused prefill. GPT decoders end a layer with a sum (`invokeAddBiasResidual`). All as
we understand its sources.
"""

from predictor.engines.base import DECODE, LAUNCHES, Engine
from predictor.engines.tensorrt_llm import NATIVE_LAUNCH_OVERHEAD_S, NATIVE_LAUNCH_RANGE_S

ENGINES = (
    Engine(
        "fastertransformer", "trtllm", LAUNCHES, LAUNCHES, NATIVE_LAUNCH_OVERHEAD_S, NATIVE_LAUNCH_RANGE_S, serves=True,
        appends=(DECODE,), decodes_in_one_kernel=True, adds_qkv_bias=True, ends_in_sum=True, unpacks=False,
    ),
)  # fmt: skip
