"""Shapes of fused attention calls as arrays, and what every core counts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from predictor import engines
from predictor.engines.library import AttentionCalls
from predictor.estimators.residual import FloatArray
from predictor.hardware.gpu import GPUSpec

#: Queries of a tile and keys of a step: FlashAttention-2 on A100 at head width 128 (flash_fwd_launch_template.h).
QUERIES = 128.0
KEYS = 64.0
#: Keys of a block where a decode kernel splits the cache: chosen by hand, not from data.
DECODE_CHUNK = 256.0


@dataclass(frozen=True, slots=True)
class Shapes:
    """n attention calls; every field of shape (n,). ``window`` 0 is none; ``shared`` 1 where V is a slice of K.

    The last three say how the kernels that run the calls share them out, see `run_by`.
    """

    batch: FloatArray
    heads: FloatArray
    kv_heads: FloatArray
    q_len: FloatArray
    kv_len: FloatArray
    head_dim: FloatArray
    value_dim: FloatArray
    causal: FloatArray
    window: FloatArray
    itemsize: float
    kv_itemsize: FloatArray
    shared: FloatArray
    packed: FloatArray  # query heads of a KV head that share a tile's rows in prefill
    copies: FloatArray  # times that a decode step reads the cache: once for every so many blocks of query heads
    whole: FloatArray  # 1 where a decode kernel does not split a sequence's cache over the SMs

    @classmethod
    def of(
        cls, columns: Sequence[FloatArray], itemsize: float, kv_itemsize: FloatArray, shared: FloatArray | None = None
    ) -> Shapes:
        """From the nine arrays in the order of the fields; without ``shared``, keys and values are read both."""
        batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim, causal, window = columns
        zero, one = np.zeros(batch.size), np.ones(batch.size)
        both = zero if shared is None else shared
        return cls(
            batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim, causal, window, itemsize, kv_itemsize, both,
            one, one, zero,
        )  # fmt: skip

    def run_by(self, library: str, gpu: GPUSpec) -> Shapes:
        """These calls as the kernels of a library share them out on a GPU, which its instruction set decides.

        What libraries say of it (`predictor.engines.library.Sharing`) is written in their kernels' sources, and seen in
        the tables as factors of 2 to 60.
        """
        calls = AttentionCalls(self.heads / self.kv_heads, self.window, self.kv_itemsize, self.shared)
        sharing = engines.library(library).share_attention(calls, gpu)
        return replace(self, packed=sharing.packed, copies=sharing.copies, whole=sharing.whole)


def attended_pairs(shapes: Shapes) -> FloatArray:
    """(query, key) pairs of one head, shape (n,): `predictor.ops.attention.attended_pairs` over arrays."""
    q, kv, window = shapes.q_len, shapes.kv_len, shapes.window
    limit = np.where(window > 0, np.minimum(window, kv), kv)
    first = kv - q + 1.0
    ramp = np.clip(limit - first, 0.0, q)
    causal = ramp * (2.0 * first + ramp - 1.0) / 2.0 + (q - ramp) * limit
    return np.where(shapes.causal > 0, causal, q * limit)


def visible_keys(shapes: Shapes) -> FloatArray:
    """Key positions that at least one query sees, shape (n,)."""
    inside = np.minimum(shapes.kv_len, shapes.window + shapes.q_len - 1.0)
    return np.where(shapes.window > 0, inside, shapes.kv_len)


def moved_bytes(shapes: Shapes) -> tuple[FloatArray, FloatArray]:
    """(bytes of queries and output, bytes of keys and values), each of shape (n,) and each moved once."""
    small = shapes.itemsize if shapes.itemsize >= 2 else 2.0  # the output of an fp8 kernel is in 16 bit
    rows = shapes.batch * shapes.heads * shapes.q_len
    stored = shapes.head_dim + shapes.value_dim - shapes.shared * shapes.value_dim
    cache = shapes.batch * shapes.kv_heads * visible_keys(shapes) * stored * shapes.kv_itemsize
    return rows * (shapes.head_dim * shapes.itemsize + shapes.value_dim * small), cache
