"""Number formats: how many bytes an element takes in memory and under which name its peak stands in a GPU's file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from predictor.errors import unknown_name
from predictor.files.records import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """One number format.

    `bits` is what an element takes in memory, scale factors of a block format included: mxfp8 has one 8-bit scale for
    32 elements, nvfp4 one 8-bit scale for 16. tf32 is stored as 4 bytes, a bool as 1. `compute` is the dtype under
    which the rate of its arithmetic is looked up in a GPU's peaks.
    """

    name: str
    bits: float
    compute: str


#: Bits of an element, by definition; of the last two with their share of a block's scale (OCP Microscaling Formats 1.0:
#: 8 bits for 32 elements; NVIDIA's nvfp4: 8 bits for 16).
DTYPES: Mapping[str, DType] = MappingProxyType(
    {
        dtype.name: dtype
        for dtype in (
            DType("fp64", 64, "fp64"),
            DType("fp32", 32, "fp32"),
            DType("tf32", 32, "tf32"),
            DType("fp16", 16, "fp16"),
            DType("bf16", 16, "bf16"),
            DType("fp8", 8, "fp8"),
            DType("int8", 8, "int8"),
            DType("int4", 4, "int4"),
            DType("fp4", 4, "fp4"),
            DType("int32", 32, "int32"),
            DType("int64", 64, "int64"),
            DType("bool", 8, "int8"),
            DType("mxfp8", 8 + 8 / 32, "fp8"),
            DType("nvfp4", 4 + 8 / 16, "fp4"),
        )
    }
)

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "float64": "fp64",
        "double": "fp64",
        "float32": "fp32",
        "float": "fp32",
        "single": "fp32",
        "tfloat32": "tf32",
        "float16": "fp16",
        "half": "fp16",
        "bfloat16": "bf16",
        "float8": "fp8",
        "float8_e4m3fn": "fp8",
        "float8_e5m2": "fp8",
        "fp8_e4m3": "fp8",
        "fp8_e5m2": "fp8",
        "float4": "fp4",
        "char": "int8",
        "int": "int32",
        "long": "int64",
        "boolean": "bool",
    }
)


def canonical(name: str) -> str:
    """The name of `DTYPES` that `name` stands for: "bfloat16", "torch.bfloat16" and "BF16" are all "bf16".

    Raises UnknownNameError, one line with the nearest names.
    """
    key = name.strip().lower().removeprefix("torch.")
    key = ALIASES.get(key, key)
    if key not in DTYPES:
        raise unknown_name("dtype", name, (*DTYPES, *ALIASES), "one of " + ", ".join(DTYPES))
    return key


@lru_cache(maxsize=256)  # asked for every operand of every operator
def bytes_of(name: str) -> float:
    """Bytes of one element of dtype `name` (aliases too) in memory: 2.0 for bf16, 4.0 for tf32, 0.5 for int4.

    Raises UnknownNameError.
    """
    dtype = DTYPES.get(name) or DTYPES[canonical(name)]
    return dtype.bits / 8
