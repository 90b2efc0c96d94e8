"""FasterTransformer, which became TensorRT-LLM: kernels launched from C++, no CUDA graphs.

Decode attention is one kernel that adds the bias and writes the cache (`masked_multihead_attention`), always; a kernel
of its own adds the bias before a fused prefill. GPT decoders end a layer with a sum (`invokeAddBiasResidual`). All as
we understand its sources. Without padding linear layers work on the tokens alone, and attention on padded sequences
(PyPI fastertransformer 5.0.0.116, libtf_bert.so: `UnfusedAttentionLayer::forward` calls
`invokeAddQKVBiasRebuildPadding` and `invokeTransposeAttentionOutRemovePadding` around products of max_seq_len).
"""

from __future__ import annotations

from predictor.engines.base import DECODE, LAUNCHES, Engine, FusedEncoders, later
from predictor.engines.boards import Boards
from predictor.engines.tensorrt_llm.engine import NATIVE_LAUNCH_OVERHEAD_S, NATIVE_LAUNCH_RANGE_S

#: Source: read in a build of 5.0 of June 2022, whose condition on compute capability, head and length it is.
_FUSED = FusedEncoders(
    {"fp16": ("7.0", "7.2", "7.5", "8.0", "8.6"), "int8": ("7.2", "7.5", "8.0", "8.6")}, (64,), 384,
    "PyPI fastertransformer 5.0.0.116, libtf_bert.so: BertOp<half>::Compute; names of its fused_multihead_attention_v2",
)  # fmt: skip

#: Source: CMakeLists.txt of 5.3, its last release (SM_SETS from 52 to 90), as recalled, unverified.
BOARDS = (Boards("nvidia", "FasterTransformer 5.3 CMakeLists.txt", least="5.2", most="9.0"),)

ENGINES = (
    Engine(
        "fastertransformer", "trtllm", LAUNCHES, LAUNCHES, NATIVE_LAUNCH_OVERHEAD_S, NATIVE_LAUNCH_RANGE_S, serves=True,
        appends=(DECODE,), decodes_in_one_kernel=True, adds_qkv_bias=True, ends_in_sum=True, unpacks=False,
        samples=True, pads_attention=True,
        fused_encoders=_FUSED, vintages=later("fastertransformer.releases", "VINTAGES"), boards=BOARDS,
    ),
)  # fmt: skip
