"""What a kernel is by its name alone: the class of a GPU's work, and the dtype where the name tells it.

Names are those of libraries and compilers, mangled or not. A class groups kernels that scale alike from one board to
another; it is what is known of a kernel whose call was not recorded, or has no operator here.
"""

from __future__ import annotations

import re
from functools import lru_cache

GEMM, ATTENTION, CONVOLUTION = "gemm", "attention", "convolution"
NORM, SOFTMAX, ELEMENTWISE, REDUCTION = "norm", "softmax", "element-wise", "reduction"
COPY, INDEXING, OPTIMIZER, COLLECTIVE = "copy", "indexing", "optimizer", "collective"
HOST_COPY, MOE, OTHER = "host copy", "moe", "other"

#: Class -> what is in its kernels' names, in lower case; the first that fits. Sources: the kernels of the traces that
#: `docs/how-to/traces.md` names, and of PyTorch, Triton's Inductor (triton_poi, _red, _per, _tem), CUTLASS and BLAS.
_CLASSES: tuple[tuple[str, str], ...] = (
    (COLLECTIVE, r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|one_shot|two_shot|dispatch_.*deepep"),
    (OPTIMIZER, r"adam|sgd|lamb_|optimizer"),
    (ATTENTION, r"flash|fmha|attn|attention|\bmla_"),
    (CONVOLUTION, r"conv|fprop|dgrad|wgrad|winograd|im2col|implicit_gemm|igemm|miopen|nchwtonhwc|nhwctonchw|"
                  r"subtensorop|batched_transpose"),
    (MOE, r"moe|topk_?gating|expert"),
    (GEMM, r"gemm|gemv|cijk_|matmul|cutlass|xmma|splitk|s16816|triton_tem|\bmm_|dot_kernel|wvsplitk|cublas"),
    (NORM, r"norm"),
    (SOFTMAX, r"softmax|cross_entropy|nll_loss"),
    (INDEXING, r"gather|scatter|index|embedding|topk|sort|radix|scan|bitonic|cumsum|kvcache|kv_cache|cache_kernel"),
    (REDUCTION, r"reduce|triton_(?:red|per)|argmax|sum_kernel"),
    (COPY, r"copy|memcpy|memset|catarray|transpose|fill"),
    (ELEMENTWISE, r"element|pointwise|triton_poi|multi_tensor|rotary|rope|silu|gelu|swiglu|act_and_mul|dropout|relu|"
                  r"vectorized|unrolled|distribution|triton_"),
)  # fmt: skip
_COMPILED = tuple((name, re.compile(pattern)) for name, pattern in _CLASSES)
#: Characters of a name that are looked at: template arguments behind them say no more. Chosen by hand, not from data.
_LOOKED_AT = 2000
_DTYPES = (
    ("bf16", re.compile(r"bf16|bfloat16")), ("fp16", re.compile(r"half|fp16|f16|__half")),
    ("fp32", re.compile(r"float|f32|fp32|sgemm")),
)  # fmt: skip
_OPAQUE = re.compile(r"OpaqueType<(\d)u")
#: By definition of OpaqueType: bytes of an element. What they hold does not matter to a copy.
_BY_SIZE = {"1": "int8", "2": "bf16", "4": "fp32", "8": "int64"}


@lru_cache(maxsize=65536)
def class_of(name: str) -> str:
    """The class of a kernel, or of a copy's event, by its name.

    >>> class_of("void flash_fwd_kernel<...>"), class_of("Memcpy HtoD (Pageable -> Device)")
    ('attention', 'host copy')
    """
    if name.startswith(("Memcpy", "Memset")):
        return HOST_COPY if "HtoD" in name or "DtoH" in name else COPY
    text = name[:_LOOKED_AT].lower()
    return next((kind for kind, pattern in _COMPILED if pattern.search(text)), OTHER)


@lru_cache(maxsize=65536)
def dtype_of(name: str) -> str:
    """The dtype that a kernel's name tells; "" where it tells none.

    >>> dtype_of("CatArrayBatchedCopy<OpaqueType<2u>, 4>"), dtype_of("vectorized_elementwise_kernel<4, add<float>>")
    ('bf16', 'fp32')
    """
    if opaque := _OPAQUE.search(name):
        return _BY_SIZE.get(opaque[1], "")
    text = name[:_LOOKED_AT].lower()
    return next((dtype for dtype, pattern in _DTYPES if pattern.search(text)), "")


def is_matrix(kind: str) -> bool:
    """Whether matrix units do a class's work."""
    return kind in (GEMM, ATTENTION, CONVOLUTION, MOE)
