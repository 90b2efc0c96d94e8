"""Quantization schemes: in what a product keeps its weights and activations, beside the dtype that it computes in.

An operator's ``dtype`` is what its arithmetic runs in, and so names its peak; ``quant`` names the scheme where the
dtype does not say it all. Weight-only schemes compute in 16 bit: weights are unpacked on the way to the tensor cores.
Bytes of an element include its share of the scale factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from predictor.errors import unknown_name
from predictor.files.records import dataclass
from predictor.formats.dtypes import bytes_of


@dataclass(frozen=True, slots=True)
class Scheme:
    """One scheme: bits of a weight and of an activation with their scales; 0 bits are those of the operator's dtype.

    ``alike`` are the variants (schemes, or dtypes without one) whose kernels come nearest, the nearest first.
    """

    name: str
    weight_bits: float
    activation_bits: float
    alike: tuple[str, ...]


#: fp8 with one scale a tensor that the checkpoint gives for activations, too: no kernel looks for the largest
#: magnitude. The product is that of "fp8", and measurements of that answer for it.
STATIC = "fp8_static"
#: Recipes of training beside delayed scaling (`predictor.passes.narrow`), whose products are those of "fp8".
CURRENT, ROWS = "fp8_current", "fp8_row"

SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        scheme.name: scheme
        for scheme in (
            Scheme(STATIC, 8, 8, ("fp8", "bf16")),
            # recipes of training: a scale a tensor that is worked out at once; one a row and a column (torchao)
            Scheme(CURRENT, 8, 8, ("fp8", "bf16")),
            Scheme(ROWS, 8, 8, ("fp8", "bf16")),
            # fp8 with an fp32 scale for each 128 x 128 weights and each 128 activations of a row (DeepSeek-V3,
            # arXiv:2412.19437, section 3.3.2)
            Scheme("fp8_block", 8 + 32 / 128**2, 8 + 32 / 128, ("fp8", "bf16")),
            # SmoothQuant (arXiv:2211.10438): int8 by int8, one scale a row and a column
            Scheme("sq", 8, 8, ("int8", "fp8", "bf16")),
            Scheme("int8_wo", 8, 0, ("int4_wo", "bf16")),  # one scale a column
            # one 16-bit scale for 128 weights of a column, as GPTQ and AWQ checkpoints have it
            Scheme("int4_wo", 4 + 16 / 128, 0, ("w4a16_mxfp4", "int8_wo", "bf16")),
            Scheme("int4_wo_g64", 4 + 16 / 64, 0, ("int4_wo", "w4a16_mxfp4", "int8_wo", "bf16")),
            Scheme("int4_wo_g32", 4 + 16 / 32, 0, ("int4_wo", "w4a16_mxfp4", "int8_wo", "bf16")),
            # fp8 and nvfp4 weights on units without them: Marlin unpacks them to 16 bit (vLLM, SGLang)
            Scheme("fp8_wo", 8 + 32 / 128**2, 0, ("int8_wo", "int4_wo", "bf16")),
            Scheme("nvfp4_wo", 4 + 8 / 16, 0, ("w4a16_mxfp4", "int4_wo", "bf16")),
            # NF4 with double quantization (QLoRA, arXiv:2305.14314, section 3): 8 bits for 64, 32 bits for 256 of those
            Scheme(
                "nf4", 4 + 8 / 64 + 32 / (64 * 256), 0, ("int4_wo_g64", "int4_wo", "w4a16_mxfp4", "int8_wo", "bf16")
            ),
            # OCP Microscaling Formats 1.0: one 8-bit scale for 32 elements
            Scheme("w4a16_mxfp4", 4 + 8 / 32, 0, ("int4_wo", "bf16")),
            Scheme("w4a8_mxfp4_mxfp8", 4 + 8 / 32, 8 + 8 / 32, ("mxfp8", "nvfp4", "fp8", "bf16")),
        )
    }
)

#: Weight-only schemes that vLLM and SGLang run with Marlin, experts too. Of 8-bit integers (GPTQ's, W8A16) as recalled,
#: unverified: vLLM's GPTQMarlinMoEMethod and CompressedTensorsWNA16MarlinMoEMethod take 4 and 8 bits.
MARLIN = ("int8_wo", "int4_wo", "int4_wo_g64", "int4_wo_g32", "w4a16_mxfp4", "fp8_wo", "nvfp4_wo")

#: Variants without a scheme whose kernels stand in for a dtype that nobody measured, the nearest first.
_PLAIN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fp8": ("fp8_block", "bf16"),
        "int8": ("sq", "fp8_block", "fp8", "bf16"),
        "mxfp8": ("fp8_block", "fp8", "bf16"),
        "nvfp4": ("w4a8_mxfp4_mxfp8", "fp8", "bf16"),
        "fp4": ("nvfp4", "fp8", "bf16"),
        "int4": ("sq", "fp8", "bf16"),
    }
)


def scheme(name: str) -> Scheme:
    """The scheme of ``name``; UnknownNameError, one line with the nearest names."""
    known = SCHEMES.get(name)
    if known is None:
        raise unknown_name("quantization scheme", name, SCHEMES, "one of " + ", ".join(SCHEMES))
    return known


@lru_cache(maxsize=256)
def weight_bytes(dtype: str, quant: str = "") -> float:
    """Bytes of one stored weight, its share of the scales included.

    >>> weight_bytes("bf16"), weight_bytes("bf16", "int4_wo"), weight_bytes("nvfp4")
    (2.0, 0.515625, 0.5625)
    """
    bits = scheme(quant).weight_bits if quant else 0.0
    return bits / 8 if bits else bytes_of(dtype)


@lru_cache(maxsize=256)
def activation_bytes(dtype: str, quant: str = "") -> float:
    """Bytes of one activation as the product reads it.

    >>> activation_bytes("bf16", "int4_wo"), activation_bytes("fp8", "fp8_block")
    (2.0, 1.03125)
    """
    bits = scheme(quant).activation_bits if quant else 0.0
    return bits / 8 if bits else bytes_of(dtype)


def variant(dtype: str, quant: str = "") -> str:
    """Whose measurements answer for a product: the scheme's, else the dtype's (16 bit and wider as bf16)."""
    if quant and quant not in (STATIC, CURRENT, ROWS):
        return quant
    return dtype if bytes_of(dtype) < 2 else "bf16"


def stand_ins(name: str) -> tuple[str, ...]:
    """The variants that answer for ``name``, itself first, then those whose kernels come nearest."""
    known = SCHEMES.get(name)
    return (name, *(known.alike if known is not None else _PLAIN.get(name, ("bf16",) if name != "bf16" else ())))
