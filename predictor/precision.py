"""What a dtype on the command line means for each part of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from predictor.dtypes import ALIASES
from predictor.errors import UnsupportedError, nearest
from predictor.hardware.gpu import GPUSpec
from predictor.quantization import weight_bytes


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a word means for each part of a model.

    ``gemm``: dtype that the linear layers compute in; "" is the activations'. ``quant`` and ``experts``: quantization
    schemes of the linear layers and of the experts (`predictor.quantization`). ``activation``: dtype of the
    activations; "" is bf16, or fp16 on a GPU without it. ``also``: a further dtype that the GPU has to have a peak for.
    """

    gemm: str
    activation: str = ""
    quant: str = ""
    experts: str = ""
    also: str = ""


#: Units that scale blocks of 32 elements themselves are those that take 4-bit floats, too (Blackwell, CDNA 4).
_MICROSCALING = "fp4"

_MEANINGS: Mapping[str, Meaning] = {
    "fp32": Meaning("fp32", "fp32"),
    "tf32": Meaning("tf32", "fp32"),
    "fp16": Meaning("fp16", "fp16"),
    "bf16": Meaning("bf16", "bf16"),
    # One scale a tensor; experts in blocks, as the published fp8 checkpoints of DeepSeek and Qwen3 have them.
    "fp8": Meaning("fp8", "bf16", "", "fp8_block"),
    "fp8_block": Meaning("fp8", "bf16", "fp8_block", "fp8_block"),
    "int8": Meaning("int8", "", "sq", "sq"),
    "int8_wo": Meaning("", "", "int8_wo", "int8_wo"),
    "int4_wo": Meaning("", "", "int4_wo", "int4_wo"),
    "mxfp4": Meaning("", "", "w4a16_mxfp4", "w4a16_mxfp4"),
    "mxfp8": Meaning("mxfp8", "bf16", also=_MICROSCALING),
    "mxfp4_mxfp8": Meaning("mxfp8", "bf16", "w4a8_mxfp4_mxfp8", "w4a8_mxfp4_mxfp8", _MICROSCALING),
    "nvfp4": Meaning("nvfp4", "bf16", also=_MICROSCALING),
}
SUPPORTED = tuple(_MEANINGS)
#: Those that training can run in; the others quantize for inference.
TRAINABLE = ("fp32", "tf32", "fp16", "bf16", "fp8")
#: dtypes that have a peak on some GPU and no estimator or graph yet
LATER = ("int4", "fp4", "fp64")


@dataclass(frozen=True, slots=True)
class Precision:
    """Dtypes of the linear layers' products, the activations, the stored linear weights and the KV cache.

    ``quant`` and ``experts`` are the quantization schemes of the linear layers and of the experts, "" for none.
    """

    name: str
    gemm: str
    activation: str
    weight: str
    kv: str
    quant: str = ""
    experts: str = ""

    @property
    def weight_bytes(self) -> float:
        """Bytes of one stored weight of a linear layer, its scales included."""
        return weight_bytes(self.weight, self.quant)


def precision(dtype: str, gpu: GPUSpec) -> Precision:
    """The precision that ``dtype`` names, checked against what ``gpu`` can do; UnsupportedError otherwise."""
    if isinstance(dtype, str) and dtype in LATER:
        raise UnsupportedError(f"dtype {dtype!r} is not built yet: expected one of {', '.join(SUPPORTED)}")
    if not isinstance(dtype, str) or dtype not in _MEANINGS:
        close = nearest(ALIASES.get(str(dtype).lower(), str(dtype)), SUPPORTED, 1)
        tail = f"; nearest: {close[0]}" if close else ""
        raise UnsupportedError(f"unknown dtype {dtype!r}: expected one of {', '.join(SUPPORTED)}{tail}")
    lacking = _lacking(dtype, gpu)
    if lacking:
        has = [name for name in SUPPORTED if not _lacking(name, gpu)]
        raise UnsupportedError(f"dtype {dtype!r}: {gpu.id} has no {lacking} peak; it has {', '.join(has)}")
    means = _MEANINGS[dtype]
    activation = means.activation or _sixteen_bit(gpu)
    gemm = means.gemm or activation
    return Precision(dtype, gemm, activation, gemm, activation, means.quant, means.experts)


def _sixteen_bit(gpu: GPUSpec) -> str:
    return "bf16" if gpu.supports("bf16") else "fp16"


def _lacking(dtype: str, gpu: GPUSpec) -> str:
    """The dtype whose peak ``gpu`` lacks for the word ``dtype``, "" where it has all."""
    means = _MEANINGS[dtype]
    needed = (means.gemm or _sixteen_bit(gpu), means.also or "fp32")
    return next((name for name in needed if not gpu.supports(name)), "")


def default_dtype(gpu: GPUSpec) -> str:
    """bf16 where the GPU has it, else fp16 where its matrix units have it (Volta on), else fp32."""
    if gpu.supports("bf16"):
        return "bf16"
    return "fp16" if ("matrix", "fp16") in gpu.peaks else "fp32"


def default_attention(dtype: str, gpu: GPUSpec) -> str:
    """Flash in 16 bit and below where the GPU has bf16 (Ampere on), else math."""
    return "flash" if dtype not in ("fp32", "tf32") and gpu.supports("bf16") else "math"
