"""Fused attention of software that is older than the measured tables, whose kernels are FlashAttention 2's and later.

Rates are one benchmark's, forward and backward together: Dao-AILab/flash-attention@0251105a2fb1 assets/
flash2_a100_fwd_bwd_benchmark.png and flash2_h100_fwd_bwd_benchmark.png, 16k tokens, sequences of 512 to 16k, in its
convention (causal: half of the products; backward 2.5 times forward), which is that of `predictor.ops.attention`. A
line in the logarithm of the length and of the head width lies between what the charts have; a board of another
generation has A100's share of its peak.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from predictor.hardware.gpu import GPUSpec
from predictor.ops.attention import Attention

FLASH_1 = "flash 1"
#: Logarithms (base 2) of the lengths of the charts. Source: flash-attention@0251105a2fb1, assets.
_LENGTHS = (9.0, 10.0, 11.0, 12.0, 13.0, 14.0)
#: Those of their head widths. Source: flash-attention@0251105a2fb1, assets.
_WIDTHS = (6.0, 7.0)
#: TFLOP/s of FlashAttention 1, read off the labels of those charts: by compute capability and causal, for each head
#: width. Source: flash-attention@0251105a2fb1, assets.
_RATES: Mapping[tuple[str, bool], tuple[tuple[float, ...], tuple[float, ...]]] = {
    ("8.0", False): ((91, 92, 104, 108, 110, 110), (76, 72, 76, 80, 82, 83)),
    ("8.0", True): ((58, 70, 77, 87, 92, 97), (55, 62, 69, 76, 80, 83)),
    ("9.0", False): ((157, 159, 161, 161, 166, 168), (127, 127, 128, 131, 137, 139)),
    ("9.0", True): ((104, 123, 136, 138, 149, 156), (98, 109, 108, 126, 135, 137)),
}  # fmt: skip
#: The charts' first board, whose peak is A100's by its data sheet, FLOP/s of 16 bit.
_FIRST, _FIRST_PEAK = "8.0", 312e12


def older_s(library: str, op: Attention, gpu: GPUSpec) -> float:
    """Seconds of a fused attention ``op`` in an older ``library``; 0 for what no chart tells of (decode, others)."""
    if library != FLASH_1 or op.is_decode or op.dtype not in ("bf16", "fp16"):
        return 0.0
    capability = gpu.compute_capability or ""
    known = (capability, op.causal) in _RATES
    lengths = _RATES[capability if known else _FIRST, op.causal]
    at = np.log2(max(op.q_len, 1))
    by_width = [float(np.interp(at, _LENGTHS, rates)) for rates in lengths]
    rate = float(np.interp(np.log2(op.head_dim), _WIDTHS, by_width)) * 1e12
    if not known:
        rate *= gpu.peak_flops(op.dtype) / _FIRST_PEAK
    return op.flops() / rate
