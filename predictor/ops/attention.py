"""Fused ("flash") attention: scores, mask, softmax and weighted sum in one kernel, the scores never in memory.

Unfused attention is no operator of its own: a graph holds its bmm, mask, softmax, dropout and bmm.
Shapes: q (batch, heads, q_len, head_dim), k (batch, kv_heads, kv_len, head_dim), v (..., v_head_dim).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from predictor.files.records import dataclass
from predictor.formats.dtypes import bytes_of
from predictor.ops.base import BACKWARD, FORWARD, Gradient, Kept, Op, Piece


def attended_pairs(q_len: int, kv_len: int, causal: bool, window: int) -> float:
    """(query, key) pairs of one head: the queries are the last ``q_len`` of ``kv_len`` positions.

    ``window`` > 0 lets a query see at most that many positions up to its own; 0 means no window.
    """
    if not causal:
        return float(q_len) * (min(kv_len, window) if window > 0 else kv_len)
    limit = min(window, kv_len) if window > 0 else kv_len
    first = kv_len - q_len + 1  # positions that the first query sees
    if first >= limit:
        return float(q_len) * limit
    ramp = limit - first  # queries that see fewer than `limit` positions
    ramp = min(ramp, q_len)
    return ramp * (first + first + ramp - 1) / 2.0 + float(q_len - ramp) * limit


@dataclass(frozen=True, slots=True)
class Attention(Op):
    """Fused attention. ``q_len`` 1 with a long ``kv_len`` is a decode step; MQA and GQA by ``kv_heads``.

    ``kv_dtype`` is the KV cache's ("" = the operator's). ``shared_kv`` marks the absorbed form of multi-head latent
    attention: the values are a slice of the one latent vector per token, so they are not read twice.
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int = 0
    causal: bool = True
    window: int = 0
    kv_dtype: str = ""
    phase: str = FORWARD
    shared_kv: bool = False
    dropout: bool = False

    family: ClassVar[str] = "attention"
    columns: ClassVar[tuple[str, ...]] = (
        "batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "value_dim", "causal", "window", "is_backward",
    )  # fmt: skip
    unit: ClassVar[str] = "matrix"

    @property
    def label(self) -> str:
        return "attention decode" if self.is_decode else "attention"

    @property
    def value_dim(self) -> int:
        """Head width of the values (``head_dim`` unless MLA says otherwise)."""
        return self.v_head_dim or self.head_dim

    @property
    def is_decode(self) -> bool:
        """True where one query a sequence reads a KV cache."""
        return self.q_len == 1 and self.phase == FORWARD

    @property
    def is_backward(self) -> bool:
        return self.phase == BACKWARD

    @property
    def pairs(self) -> float:
        """(query, key) pairs over the batch and all query heads."""
        return self.batch * self.heads * attended_pairs(self.q_len, self.kv_len, self.causal, self.window)

    def flops(self) -> float:
        """Forward: two products per pair. Backward: five (S again, dV, dP, dQ, dK), FlashAttention section 3."""
        if not self.is_backward:
            return self.model_flops()
        return self.model_flops() + 2.0 * self.pairs * self.head_dim

    def model_flops(self) -> float:
        """Without the scores that a fused backward pass makes again."""
        passes = 2.0 if self.is_backward else 1.0
        return passes * 2.0 * self.pairs * (self.head_dim + self.value_dim)

    def _visible_kv(self) -> int:
        """KV positions that at least one query sees."""
        if self.window > 0:
            return min(self.kv_len, self.window + self.q_len - 1)
        return self.kv_len

    def _query_bytes(self) -> float:
        return self.batch * self.heads * self.q_len * self.head_dim * self.itemsize

    def _output_bytes(self) -> float:
        return self.batch * self.heads * self.q_len * self.value_dim * self.itemsize

    def _kv_bytes(self) -> float:
        width = self.head_dim if self.shared_kv else self.head_dim + self.value_dim
        itemsize = bytes_of(self.kv_dtype) if self.kv_dtype else self.itemsize
        return self.batch * self.kv_heads * self._visible_kv() * width * itemsize

    def bytes_read(self) -> float:
        forward = self._query_bytes() + self._kv_bytes()
        if not self.is_backward:
            return forward
        return forward + 2 * self._output_bytes()  # the output and its gradient

    def bytes_written(self) -> float:
        if not self.is_backward:
            return self._output_bytes()
        return self._query_bytes() + self._kv_bytes()  # dQ, dK, dV

    def activation_bytes(self) -> float:
        if self.is_decode:  # keys and values are the cache's
            return self.batch * self.heads * (self.head_dim + self.value_dim) * self.itemsize
        return self.bytes_moved()

    def cold_bytes(self) -> float:
        return self.bytes_read() if self.is_decode else 0.0

    def backward(self) -> tuple[Op, ...]:
        if self.is_backward:
            return ()
        return (
            Attention(
                self.dtype, self.batch, self.heads, self.kv_heads, self.q_len, self.kv_len, self.head_dim,
                self.v_head_dim, self.causal, self.window, self.kv_dtype, BACKWARD, self.shared_kv, self.dropout,
            ),
        )  # fmt: skip

    def gradients(self) -> tuple[Gradient, ...]:
        return () if self.is_backward else _GRADIENTS

    def kept(self) -> tuple[Kept, ...]:
        """The log-sum-exp of every row of scores, by which they are made again."""
        return () if self.is_backward else _KEPT

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Attention:
        """Its heads and sequences; keys and values that other heads share are split by their own heads, or not."""
        heads, kv_heads, batch = self.heads, self.kv_heads, self.batch
        query = next((piece for piece in inputs if "heads" in piece.split or "batch" in piece.split), inputs[0])
        heads, batch = query.share(heads, "heads"), query.share(batch, "batch")
        if kv_heads == self.heads:
            kv_heads = heads
        else:
            for piece in inputs:
                if "kv_heads" in piece.split:
                    kv_heads = piece.share(kv_heads, "kv_heads")
                    break
        return Attention(
            self.dtype, batch, heads, kv_heads, self.q_len, self.kv_len, self.head_dim, self.v_head_dim, self.causal,
            self.window, self.kv_dtype, self.phase, self.shared_kv, self.dropout,
        )  # fmt: skip

    def kernels(self) -> int:
        return 3 if self.is_backward else 1


_GRADIENTS = (Gradient((0, 1, 2), (0, 1, 2), (0,), (0,)),)
_KEPT = (Kept("log-sum-exp", "fp32", drop=1),)
