"""Linear attention: the short causal convolution in front of it, and the gated delta rule's recurrence.

Gated delta nets (Yang et al., arXiv:2412.06464) keep one matrix of (head_dim, v_head_dim) a value head and sequence
instead of a KV cache; Mamba2 (Dao and Gu, arXiv:2405.21060) has the same convolution in front of its scan, whose state
decays but is not corrected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from predictor.files.records import dataclass, replace
from predictor.formats.dtypes import bytes_of
from predictor.ops.base import Op, Piece, StreamingOp

STATE_BYTES = 4  # by definition of fp32, in which the recurrence keeps its state


@dataclass(frozen=True, slots=True)
class CausalConv1d(StreamingOp):
    """A depthwise convolution of ``taps`` positions over ``batch`` sequences of ``q_len`` tokens, ``channels`` wide.

    ``cached``: it goes on from the last taps - 1 inputs of every sequence, which it reads and writes back (decode).
    """

    batch: int
    q_len: int
    channels: int
    taps: int = 4  # chosen by hand, not from data: a width that models have
    cached: bool = False

    family: ClassVar[str] = "causal_conv1d"
    columns: ClassVar[tuple[str, ...]] = ("batch", "q_len", "channels", "read_bytes", "write_bytes")

    @property
    def label(self) -> str:
        return "causal convolution"

    @property
    def _tokens(self) -> float:
        return self.batch * self.q_len * self.channels * self.itemsize

    @property
    def _state(self) -> float:
        return self.batch * (self.taps - 1) * self.channels * self.itemsize if self.cached else 0.0

    @property
    def read_bytes(self) -> float:
        return self._tokens + self._state + self.taps * self.channels * self.itemsize

    @property
    def write_bytes(self) -> float:
        return self._tokens + self._state

    def weights(self) -> int:
        """The taps of every channel."""
        return self.taps * self.channels

    def flops(self) -> float:
        return 2.0 * self.taps * self.batch * self.q_len * self.channels

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> CausalConv1d:
        """Its sequences, and its channels."""
        out = outputs[0]
        channels = out.share(self.channels, out.whole.axes[-1])
        return replace(self, batch=out.share(self.batch, "batch"), channels=channels)

    def backward(self) -> tuple[Op, ...]:
        """The input's gradient is a convolution of the result's, the taps' a sum as long."""
        return () if self.cached else (self, self)


@dataclass(frozen=True, slots=True)
class DeltaRule(Op):
    """The gated delta rule over ``batch`` sequences of ``q_len`` tokens: S <- g S (I - b k k^T) + b v k^T, o = S q.

    ``heads`` query and key heads of width ``head_dim`` serve ``v_heads`` value heads of width ``v_head_dim``, each of
    which has a state S and, a token, a decay g and a step b. ``cached``: it goes on from the states of earlier tokens.
    ``channel_decays``: g is a vector of ``head_dim`` a value head, in fp32 (Kimi delta attention, arXiv:2510.26692).
    """

    batch: int
    q_len: int
    heads: int
    v_heads: int
    head_dim: int
    v_head_dim: int
    cached: bool = False
    channel_decays: bool = False

    family: ClassVar[str] = "delta_rule"
    columns: ClassVar[tuple[str, ...]] = ("batch", "q_len", "heads", "v_heads", "head_dim", "v_head_dim")
    unit: ClassVar[str] = "matrix"

    @property
    def label(self) -> str:
        return "gated delta rule"

    @property
    def tokens(self) -> int:
        return self.batch * self.q_len

    @property
    def state_bytes(self) -> float:
        """Bytes of all states."""
        return float(self.batch * self.v_heads * self.head_dim * self.v_head_dim * STATE_BYTES)

    def flops(self) -> float:
        """S k, the rank-one update and S q, an FMA an entry of the state each: the recurrence, the least there is.

        Chunked kernels spend more, to have large products.
        """
        return 6.0 * self.tokens * self.v_heads * self.head_dim * self.v_head_dim

    def bytes_read(self) -> float:
        rates = self.head_dim * bytes_of("fp32") / self.itemsize + 1 if self.channel_decays else 2
        widths = 2 * self.heads * self.head_dim + self.v_heads * (self.v_head_dim + rates)
        return self.tokens * widths * self.itemsize + (self.state_bytes if self.cached else 0.0)

    def bytes_written(self) -> float:
        return self.tokens * self.v_heads * self.v_head_dim * self.itemsize + self.state_bytes

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Self:
        """Its sequences, and its heads of both kinds."""
        out = outputs[0]
        heads, v_heads = (out.share(n, out.whole.axes[-1]) for n in (self.heads, self.v_heads))
        return replace(self, batch=out.share(self.batch, "batch"), heads=max(1, heads), v_heads=v_heads)

    def backward(self) -> tuple[Op, ...]:
        """The states are made again, then a recurrence as long runs from the end, as in
        flash-linear-attention."""
        return () if self.cached else (self, self)


@dataclass(frozen=True, slots=True)
class StateSpace(DeltaRule):
    """Mamba2's scan (state space duality): S <- a S + dt B x^T, y = C S + D x.

    ``heads`` groups of B and C of width ``head_dim`` (the state's) serve ``v_heads`` heads of x, ``v_head_dim`` wide.
    """

    @property
    def label(self) -> str:
        return "state space scan"

    def flops(self) -> float:
        """a S, dt B x^T added and C S: a product and two FMAs an entry of the state, the recurrence."""
        return 5.0 * self.tokens * self.v_heads * self.head_dim * self.v_head_dim

    def bytes_read(self) -> float:
        """B, C, x and a step a head of every token."""
        widths = 2 * self.heads * self.head_dim + self.v_heads * (self.v_head_dim + 1)
        return self.tokens * widths * self.itemsize + (self.state_bytes if self.cached else 0.0)
