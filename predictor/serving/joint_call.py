"""Decodes of a step whose prompts are there, too, in one attention call with them, and decodes of unequal lengths.

A call of FlashAttention-2 over a paged cache has a grid of (tiles of the longest query, sequences, query heads), each
tile of 64 rows, and splits no cache (`predictor.engines.library.JointCall`). So a decode has for each query head

    one tile, whose one row is as much work as 64: steps over the keys at the rate of a long prompt,
    empty tiles, as many as the longest prompt beside it has beyond one, which start and end,
    its cache from memory, once for all query heads of a KV head that run at a time, unless the L2 cache holds that of
    a KV head of all decodes.

Tiles come head by head, so that h heads run at a time, the GPU's tiles over the decodes: they are of
1 + (h - 1) / group KV heads on average, and a cache is read 1 + (group - 1) / h times in all.

A call of decodes alone has a tile for each decode and KV head. From `JointCall.unsplit` tiles an SM on it splits no
cache, and SMs take tiles in their order until none is left. If lengths are unequal, tiles end one by one, the longest
at last. So many tiles share the memory's rate that one by itself is ``faster`` than its share: memory is busy until
1 / faster of the tiles run. What is lost from then on is

    (H - 1 - ln(faster)) x standard deviation of the lengths x what a token takes in a tile by itself

where what is left of n tiles is exponential, so that the longest is H = 1 + 1/2 + .. + 1/n times the mean. In a call
with prompts tiles share nothing (faster is 1), and the longest is as long by itself where all run at a time. By hand,
128 decodes of ShareGPT's lengths on 188 SMs, 8 KV heads, faster 3.6: 3.1 deviations; a list of such tiles in random
order gives 3.2. Calls whose caches are split are even: the longest has more parts.

Source: vllm-project/flash-attention csrc/flash_attn, flash_api.cpp (mha_varlen_fwd takes the split kernel for paged
caches) and flash_fwd_launch_template.h (run_mha_fwd_splitkv_dispatch), as recalled, unverified; vllm pull 58013 on the
grid. `tests/serving/test_joint_call.py` holds it against measured calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from predictor.engines.library import AttentionCalls, JointCall, Library
from predictor.files.records import dataclass, replace
from predictor.formats.dtypes import bytes_of
from predictor.hardware.gpu import GPUSpec
from predictor.ops.attention import Attention
from predictor.ops.roofline import FloatArray

#: The prompt, in tokens, and the tokens before it in prompts, whose tiles are all full: chosen by hand, not from data.
_LONG_PROMPT, _LONG_CACHE = 2048, 7
#: The decode step, in sequences and tokens of each, that reads the cache as fast as memory gives it: chosen by hand,
#: not from data.
_MANY, _LONG = 64, 4096

#: Euler's constant, H of n without ln(n) and 1 / (2 n). Source: mathematics.
_EULER = 0.5772156649

#: Seconds of attention calls, each with how often it runs: (n lists of calls) -> (n,).
Seconds = Callable[[Sequence[Sequence[tuple[Attention, float]]]], FloatArray]


@dataclass(frozen=True, slots=True)
class _Layers:
    """Layers whose attention is alike: seconds of a step over the keys of one decode's tiles of all heads on a full
    GPU (``step_s``), of as many empty tiles (``empty_s``), and of a token of a decode's cache from memory (``read_s``);
    ``group``: query heads a KV head; ``head_bytes`` of a token in a KV head's cache; ``heads`` in all layers' calls."""

    step_s: float
    empty_s: float
    read_s: float
    keys: float
    window: int
    group: float
    heads: int
    tiles: int
    head_bytes: float

    @property
    def token_s(self) -> float:
        """Of a token of a tile by itself, in all layers."""
        return self.step_s / self.keys * self.tiles / self.heads

    def uneven_s(self, sequences: int, unsplit: float, lone: float) -> float:
        """Seconds for each token of the standard deviation of the lengths; 0 with a window, which most reach, and below
        ``unsplit`` tiles; ``lone`` as in `JointCall`."""
        if self.window or sequences * self.heads < unsplit * self.group:
            return 0.0
        faster = max(1.0, self.read_s * self.group * self.keys / self.step_s * lone)
        return max(0.0, deviations(sequences) - math.log(faster)) * self.token_s / lone

    def beside(
        self, sequences: int, context: float, spread: float, tiles: int, start: float, l2_bytes: int
    ) -> tuple[float, float]:
        """Seconds that ``sequences`` decodes of a mean ``context`` and a standard deviation ``spread`` add to a call
        whose longest prompt has so many ``tiles``, and seconds of the longest decode's tile, before which no call
        ends."""
        seen = min(context + 1.0, float(self.window)) if self.window else context + 1.0
        steps = math.ceil(seen / self.keys) + start
        heads = max(1.0, self.tiles / sequences)  # that run at a time: neighbours, of one group or two
        reads = 1.0 + (self.group - 1.0) / heads if sequences * seen * self.head_bytes > l2_bytes else 1.0
        work_s = sequences * max(steps * self.step_s, seen * self.read_s * reads)
        work_s += sequences * (tiles - 1) * self.empty_s
        tail_s = 0.0 if self.window else deviations(sequences) * spread * self.token_s
        waits = sequences * self.heads >= self.tiles
        return work_s + (tail_s if waits else 0.0), steps * self.keys * self.token_s + tail_s


class JointDecodes:
    """What decodes add to the attention of a step's prompts, on one GPU."""

    def __init__(
        self, calls: Sequence[tuple[Attention, float]], call: JointCall, library: Library, gpu: GPUSpec,
        seconds: Seconds,
    ) -> None:  # fmt: skip
        self._call, self._l2_bytes, self._sms = call, gpu.l2_bytes, gpu.sm_count
        full = [[(replace(op, window=0), times)] for op, times in calls]
        before = _LONG_CACHE * _LONG_PROMPT
        long = _changed(full, 1, _LONG_PROMPT, before + _LONG_PROMPT)
        prompt_s, read_s = seconds(long), seconds(_changed(full, _MANY, 1, _LONG))
        pairs = _LONG_PROMPT * (before + (_LONG_PROMPT + 1) / 2.0)
        self._layers = []
        for (op, times), pairs_s, cache_s in zip(calls, prompt_s / pairs, read_s / (_MANY * _LONG), strict=True):
            keys, tiles = call.keys_of(op.head_dim), gpu.sm_count * call.tiles_an_sm(op.head_dim, op.itemsize, gpu)
            asked = AttentionCalls(*(np.array([x]) for x in (op.heads / op.kv_heads, float(op.window), 2.0, 0.0)))
            rows = call.rows / float(library.share_attention(asked, gpu).packed[0])
            self._layers.append(
                _Layers(
                    pairs_s * rows * keys, times * op.heads * call.empty_cycles / gpu.boost_clock_hz / tiles, cache_s,
                    keys, op.window, op.heads / op.kv_heads, op.heads, tiles,
                    (op.head_dim + op.value_dim) * (bytes_of(op.kv_dtype) if op.kv_dtype else op.itemsize),
                )
            )  # fmt: skip

    def beside(self, sequences: int, context: float, longest: int, chunks_s: float, spread: float = 0.0) -> float:
        """Seconds that ``sequences`` decodes of a mean ``context`` and a standard deviation ``spread`` add to
        ``chunks_s`` of prompts, the longest of which has ``longest`` tokens in the step."""
        added_s = alone_s = 0.0
        tiles = -(-longest // self._call.rows)
        for layers in self._layers:
            more_s, least_s = layers.beside(sequences, context, spread, tiles, self._call.start_steps, self._l2_bytes)
            added_s, alone_s = added_s + more_s, alone_s + least_s
        return max(added_s, alone_s - chunks_s)

    def uneven_s(self, sequences: int) -> float:
        """Seconds that a call of so many decodes alone takes longer for each token of the standard deviation of their
        lengths."""
        tiles, lone = self._call.unsplit * self._sms, self._call.lone
        return float(sum(layers.uneven_s(sequences, tiles, lone) for layers in self._layers))


def deviations(sequences: int) -> float:
    """How far the longest of so many lengths is above the mean, in standard deviations, if they are exponential."""
    return math.log(sequences) + _EULER + 0.5 / sequences - 1.0


def _changed(
    calls: Sequence[Sequence[tuple[Attention, float]]], batch: int, queries: int, keys: int
) -> list[list[tuple[Attention, float]]]:
    return [[(replace(op, batch=batch, q_len=queries, kv_len=keys), n) for op, n in each] for each in calls]
