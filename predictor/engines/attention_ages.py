"""Fused attention of software whose kernels are not those of the measured tables, which have FlashAttention 2 up to Ada
and kernels written for Hopper there (FlashAttention 3, FlashInfer, TensorRT-LLM's): of older software, and cuDNN's,
with which Hopper trains.

Rates are charts of Dao-AILab/flash-attention, 16k tokens, sequences of 512 to 16k, in their convention (causal: half of
the products; backward 2.5 times forward), which is that of `predictor.ops.attention`: both passes together of
FlashAttention 1 and 2 @0251105a2fb1 assets/flash2_a100_fwd_bwd_benchmark.png and flash2_h100_fwd_bwd_benchmark.png, the
forward pass of FlashAttention 2 @7ef24848 assets/flash3_fp16_fwd.png. A line in the logarithm of the length and of the
head width lies between what the charts have; a board of another generation has A100's share of its peak in
FlashAttention 1, and its own measured kernels in place of FlashAttention 2. cuDNN 9 (July 2024) is charted forward
there, and backward over whole squares in figures of arXiv:2407.08608 as transcribed; over half of them it is taken to
lose as much as forward. Below 512 tokens the line goes on, but no lower than in proportion to the length; fewer tiles
of queries than multiprocessors leave some of these idle.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from predictor.hardware.gpu import GPUSpec
from predictor.ops.attention import Attention

FLASH_1, FLASH_2, CUDNN_9 = "flash 1", "flash 2", "cudnn 9"
#: Those that are never faster than what was measured.
OLDER = (FLASH_1, FLASH_2)
#: Logarithms (base 2) of the lengths of the charts. Source: flash-attention@0251105a2fb1, assets.
_LENGTHS = (9.0, 10.0, 11.0, 12.0, 13.0, 14.0)
#: Those of their head widths. Source: flash-attention@0251105a2fb1, assets.
_WIDTHS = (6.0, 7.0)
Charts = Mapping[tuple[str, bool], tuple[tuple[float, ...], tuple[float, ...]]]
#: TFLOP/s forward and backward, read off the labels of those charts: library -> compute capability and causal -> for
#: each head width. Source: flash-attention@0251105a2fb1, assets.
_BOTH: Mapping[str, Charts] = {
    FLASH_1: {
        ("8.0", False): ((91, 92, 104, 108, 110, 110), (76, 72, 76, 80, 82, 83)),
        ("8.0", True): ((58, 70, 77, 87, 92, 97), (55, 62, 69, 76, 80, 83)),
        ("9.0", False): ((157, 159, 161, 161, 166, 168), (127, 127, 128, 131, 137, 139)),
        ("9.0", True): ((104, 123, 136, 138, 149, 156), (98, 109, 108, 126, 135, 137)),
    },
    FLASH_2: {
        ("9.0", False): ((215, 254, 274, 288, 294, 296), (248, 294, 320, 326, 335, 338)),
        ("9.0", True): ((141, 192, 232, 257, 273, 284), (163, 221, 265, 294, 308, 328)),
    },
}  # fmt: skip
#: The same of the forward pass alone. Source: flash-attention@7ef24848, assets/flash3_fp16_fwd.png.
_FORWARD: Mapping[str, Charts] = {
    FLASH_2: {
        ("9.0", False): ((282, 306, 318, 321, 322, 324), (309, 350, 362, 368, 370, 370)),
        ("9.0", True): ((180, 229, 262, 284, 295, 299), (191, 260, 298, 319, 333, 335)),
    },
    CUDNN_9: {
        ("9.0", False): ((335, 373, 395, 408, 412, 413), (497, 574, 617, 609, 600, 595)),
        ("9.0", True): ((225, 288, 334, 363, 379, 388), (315, 410, 484, 518, 529, 539)),
    },
}  # fmt: skip
#: The same of the backward pass over whole squares. Source: arXiv:2407.08608, figures of the backward pass, fp16.
_BACKWARD: Mapping[str, Charts] = {
    CUDNN_9: {("9.0", False): ((266, 348, 395, 417, 432, 433), (305, 408, 465, 499, 518, 516))},
}
#: Rows of queries of a tile. Source: flash-attention@0251105a2fb1, hopper/tile_size.h.
_TILE = 128
#: The charts' boards, of which others of their compute capability have a share by their peak: FLOP/s of 16 bit by the
#: data sheets of A100 and H100 SXM. The first one's answers for boards without a chart.
_FIRST = "8.0"
_PEAKS = {"8.0": 312e12, "9.0": 989e12}


def library_s(library: str, op: Attention, gpu: GPUSpec) -> float:
    """Seconds of a fused attention ``op`` in a ``library``; 0 for what no chart tells of (decode, other boards)."""
    if library not in (*_BOTH, *_FORWARD) or op.is_decode or op.dtype not in ("bf16", "fp16"):
        return 0.0
    key = (gpu.compute_capability or "", op.causal)
    width = next((built for built in _BUILT if built >= op.head_dim), op.head_dim)
    ahead = _FORWARD.get(library, {}).get(key)
    both = _BOTH.get(library, {}).get(key)
    if both is None and library == FLASH_1:
        both, key = _BOTH[library][_FIRST, op.causal], (_FIRST, op.causal)
    if both is None and ahead is None:
        return 0.0
    scale = gpu.peak_flops(op.dtype) / _PEAKS[key[0]]
    if ahead is not None and library in _BACKWARD:
        rate = _rate(ahead, op, width)
        if op.is_backward:
            full = _rate(_FORWARD[library][key[0], False], op, width)
            rate *= _rate(_BACKWARD[library][key[0], False], op, width) / full
        tiles = op.batch * op.heads * -(-op.q_len // _TILE)
        scale *= min(1.0, tiles / gpu.sm_count) if gpu.sm_count else 1.0
    else:
        assert both is not None
        rate = _rate(both, op, width)
        if ahead is not None:
            forward = _rate(ahead, op, width)
            rate = BACKWARD_FLOPS / ((1.0 + BACKWARD_FLOPS) / rate - 1.0 / forward) if op.is_backward else forward
    return op.flops() * width / op.head_dim / (rate * scale * 1e12)


#: Head widths that kernels are built for; others are padded. Source: flash-attention@0251105a2fb1, csrc/flash_attn/src
#: (flash_fwd_hdim*.cu).
_BUILT = (32, 64, 96, 128, 192, 256)
#: FLOPs of the backward pass over those of the forward pass. Source: flash-attention@0251105a2fb1,
#: benchmarks/benchmark_flash_attention.py.
BACKWARD_FLOPS = 2.5


def _rate(lengths: tuple[tuple[float, ...], tuple[float, ...]], op: Attention, width: int) -> float:
    """TFLOP/s of a chart at an operator's length of queries and a head width."""
    at = np.log2(max(op.q_len, 1))
    below = min(at - _LENGTHS[0], 0.0)
    by_width = [
        max(float(np.interp(at, _LENGTHS, rates)) + below * (rates[1] - rates[0]), rates[0] * 2.0**below)
        for rates in lengths
    ]
    return float(np.interp(np.log2(width), _WIDTHS, by_width))
