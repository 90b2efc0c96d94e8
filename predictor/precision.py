"""What a dtype on the command line means for each part of a model."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.dtypes import bytes_of
from predictor.errors import UnsupportedError
from predictor.hardware.gpu import GPUSpec

#: dtype -> (matrix products, activations, weights kept, KV cache)
_PRECISIONS = {
    "fp32": ("fp32", "fp32", "fp32", "fp32"),
    "tf32": ("tf32", "fp32", "fp32", "fp32"),
    "fp16": ("fp16", "fp16", "fp16", "fp16"),
    "bf16": ("bf16", "bf16", "bf16", "bf16"),
    "fp8": ("fp8", "bf16", "fp8", "bf16"),
}
SUPPORTED = tuple(_PRECISIONS)
#: dtypes that have a peak on some GPU and no estimator or graph yet
LATER = ("int8", "int4", "fp4", "mxfp8", "nvfp4", "fp64")


@dataclass(frozen=True, slots=True)
class Precision:
    """Dtypes of the linear layers' products, the activations, the stored linear weights and the KV cache."""

    name: str
    gemm: str
    activation: str
    weight: str
    kv: str

    @property
    def weight_bytes(self) -> float:
        """Bytes of one stored weight of a linear layer."""
        return bytes_of(self.weight)


def precision(dtype: str, gpu: GPUSpec) -> Precision:
    """The precision that ``dtype`` names, checked against what ``gpu`` can do; UnsupportedError otherwise."""
    if dtype in LATER:
        raise UnsupportedError(f"dtype {dtype!r} is not built yet: expected one of {', '.join(SUPPORTED)}")
    if dtype not in _PRECISIONS:
        raise UnsupportedError(f"unknown dtype {dtype!r}: expected one of {', '.join(SUPPORTED)}")
    gemm, activation, weight, kv = _PRECISIONS[dtype]
    if not gpu.supports(gemm):
        has = [name for name in SUPPORTED if gpu.supports(_PRECISIONS[name][0])]
        raise UnsupportedError(f"dtype {dtype!r}: {gpu.id} has no {dtype} peak; it has {', '.join(has)}")
    return Precision(dtype, gemm, activation, weight, kv)


def default_dtype(gpu: GPUSpec) -> str:
    """bf16 where the GPU has it, else fp16 where its matrix units have it (Volta on), else fp32."""
    if gpu.supports("bf16"):
        return "bf16"
    return "fp16" if ("matrix", "fp16") in gpu.peaks else "fp32"


def default_attention(dtype: str, gpu: GPUSpec) -> str:
    """Flash in 16 bit and below where the GPU has bf16 (Ampere on), else math."""
    return "flash" if dtype in ("bf16", "fp16", "fp8") and gpu.supports("bf16") else "math"
