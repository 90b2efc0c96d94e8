"""Quantization schemes: in what a product keeps its weights and activations, beside the dtype that it computes in.

An operator's ``dtype`` is what its arithmetic runs in, and so names its peak; ``quant`` names the scheme where the
dtype does not say it all. Weight-only schemes compute in 16 bit: weights are unpacked on the way to the tensor cores.
Bytes of an element include its share of the scale factors. Which scheme a checkpoint's `quantization_config` asks for,
`predictor.models.built.checkpoint` reads.
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

#: Bits of a weight, and weights of a column that share a scale (0: all), of integer weights. Source: the values that
#: GPTQModel 4, AutoAWQ, AutoRound and HQQ offer.
_BITS, _SHARING = (2, 3, 4, 5, 6, 8), (0, 16, 32, 64, 128, 256)


def integer_word(bits: int, group: int, zero: bool = False) -> str:
    """The scheme of weights in integers of ``bits`` with a 16-bit scale for ``group`` of a column (0: all of it), and a
    ``zero`` point of as many bits beside it; "" where there is none.

    Its plain name is that of groups of 128, of 8 bits that of whole columns. A zero point adds a part in ``group``: of
    128 and more it is not told apart.

    >>> integer_word(4, 128), integer_word(4, 32, True), integer_word(3, 0), integer_word(8, 0), integer_word(7, 128)
    ('int4_wo', 'int4_wo_g32_zp', 'int3_wo_row', 'int8_wo', '')
    """
    if bits not in _BITS or group not in _SHARING:
        return ""
    usual = 0 if bits == 8 else 128
    size = "" if group == usual else f"_g{group}" if group else "_row"
    return f"int{bits}_wo{size}" + "_zp" * (zero and 0 < group < 128)


def _integers() -> tuple[Scheme, ...]:
    """A scheme for each of those. Whose kernels come nearest: those of 4 bits up to 4, of 8 bits beyond."""
    schemes = []
    for bits in _BITS:
        alike = ("int4_wo", "w4a16_mxfp4", "int8_wo", "bf16") if bits <= 4 else ("int8_wo", "int4_wo", "bf16")
        for group in _SHARING:
            for zero in (False, True) if 0 < group < 128 else (False,):
                scales = (16 + bits * zero) / group if group else 0.0
                name = integer_word(bits, group, zero)
                schemes.append(Scheme(name, bits + scales, 0, tuple(other for other in alike if other != name)))
    return tuple(schemes)


#: Names of those schemes.
INTEGERS = tuple(scheme.name for scheme in _integers())

SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        scheme.name: scheme
        for scheme in (
            *_integers(),
            Scheme(STATIC, 8, 8, ("fp8", "bf16")),
            # recipes of training: a scale a tensor that is worked out at once; one a row and a column (torchao)
            Scheme(CURRENT, 8, 8, ("fp8", "bf16")),
            Scheme(ROWS, 8, 8, ("fp8", "bf16")),
            # fp8 with an fp32 scale for each 128 x 128 weights and each 128 activations of a row (DeepSeek-V3,
            # arXiv:2412.19437, section 3.3.2)
            Scheme("fp8_block", 8 + 32 / 128**2, 8 + 32 / 128, ("fp8", "bf16")),
            # SmoothQuant (arXiv:2211.10438): int8 by int8, one scale a row and a column
            Scheme("sq", 8, 8, ("int8", "fp8", "bf16")),
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
            Scheme("w4a8_mxfp4_fp8", 4 + 8 / 32, 8, ("w4a8_mxfp4_mxfp8", "mxfp8", "fp8", "bf16")),
            Scheme("w4a4_mxfp4", 4 + 8 / 32, 4 + 8 / 32, ("nvfp4", "w4a8_mxfp4_mxfp8", "fp8", "bf16")),
            # int4 weights that are unpacked to fp8 (QServe's idea in fp8; NVIDIA ModelOpt's W4A8_AWQ)
            Scheme("w4a8_int4_fp8", 4 + 16 / 128, 8, ("fp8", "int4_wo", "bf16")),
            # NF4 with a 32-bit scale for 64 weights, as bitsandbytes has it without double quantization
            Scheme("nf4_plain", 4 + 32 / 64, 0, ("nf4", "int4_wo_g64", "int4_wo", "w4a16_mxfp4", "int8_wo", "bf16")),
        )
    }
)

#: Weight-only schemes that no product of several rows reads: a kernel ahead of it unpacks the weight. Source:
#: bitsandbytes 0.50.2, autograd/_functions.py, matmul_4bit.
UNPACKED_FIRST = ("nf4", "nf4_plain")
#: Weight-only schemes that vLLM and SGLang run with Marlin, experts too. Of 8-bit integers (GPTQ's, W8A16) as recalled,
#: unverified: vLLM's GPTQMarlinMoEMethod and CompressedTensorsWNA16MarlinMoEMethod take 4 and 8 bits.
MARLIN = (
    *(name for name in INTEGERS if name.startswith(("int4_wo", "int8_wo"))),
    "w4a16_mxfp4", "fp8_wo", "nvfp4_wo",
)  # fmt: skip

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
