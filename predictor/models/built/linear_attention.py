"""Linear attention: gated delta nets of Qwen3-Next and Qwen3.5, Kimi delta attention, Mamba2's and Lightning's layers.

All: a projection in, a short causal convolution (Lightning has none), the recurrence, a gated norm, a projection out.
Shape legend: n tokens, h width, k key heads (groups) of width d, v value heads of width e.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from predictor.graph.tensor import WEIGHT, Tensor
from predictor.models.built.writer import Writer
from predictor.ops.linear_attention import STATE_BYTES, CausalConv1d, DeltaRule, StateSpace


def delta_net(w: Writer, x: Tensor) -> Tensor:
    """Gated delta net (Yang et al., arXiv:2412.06464), from the normed input to the output projection."""
    c = w.config
    width = c.state_v_heads * c.state_v_dim
    scope = "linear attention qkv"
    mixed = w.linear("attention.qkv", "linear attention qkv", x, c.state_channels, "state_heads", scope=scope)
    gate = w.linear("attention.qkv", "linear attention z", x, width, "state_heads", scope=scope)
    rates = w.linear("router", "linear attention rates", x, 2 * c.state_v_heads, "state_heads", scope=scope)
    mixed = _convolved(w, mixed)
    decays = w.each("decay", "exp", rates, dtype="fp32", in_dtype=w.act, calls=8, scope="linear attention decay")
    op = DeltaRule(
        w.act, w.step.batch, w.step.seq_len, c.state_heads, c.state_v_heads, c.state_dim, c.state_v_dim, w.step.cached
    )
    y = _recurrence(w, op, "linear attention recurrence", (mixed, decays))
    return _gated_out(w, y, gate, c.state_v_dim)


def kimi_delta(w: Writer, x: Tensor) -> Tensor:
    """Kimi delta attention (Kimi Linear, arXiv:2510.26692, section 4): a delta net whose decay is a vector a head. That
    and the gate of the result pass a bottleneck as wide as a head; modeling_kimi_linear.py of transformers 5.24."""
    c = w.config
    width = c.state_v_heads * c.state_v_dim
    mixed = w.linear("attention.qkv", "linear attention qkv", x, c.state_channels, "state_heads")
    low = w.linear("router", "linear attention decay a", x, c.state_dim, "latent")
    decays = w.linear("router", "linear attention decay b", low, c.state_v_heads * c.state_dim, "state_heads")
    steps = w.linear("router", "linear attention rates", x, c.state_v_heads, "state_heads")
    low = w.linear("router", "linear attention z a", x, c.state_v_dim, "latent")
    gate = w.linear("router", "linear attention z b", low, width, "state_heads")
    mixed = _convolved(w, mixed)
    decays = w.each("decay", "exp", decays, dtype="fp32", in_dtype=w.act, calls=8, scope="linear attention decay")
    op = DeltaRule(
        w.act, w.step.batch, w.step.seq_len, c.state_heads, c.state_v_heads, c.state_dim, c.state_v_dim, w.step.cached,
        True,
    )  # fmt: skip
    y = _recurrence(w, op, "linear attention recurrence", (mixed, decays, steps))
    return _gated_out(w, y, gate, c.state_v_dim)


def lightning(w: Writer, x: Tensor) -> Tensor:
    """Lightning attention (MiniMax-01, arXiv:2501.08313, section 2.2.2; Ring-linear, arXiv:2510.19338): each head's
    state decays by a constant of its own, no convolution in front."""
    c = w.config
    scope = "linear attention qkv"
    mixed = w.linear("attention.qkv", "linear attention qkv", x, c.state_channels, "state_heads", scope=scope)
    gate = w.linear(
        "attention.qkv", "linear attention z", x, c.state_v_heads * c.state_v_dim, "state_heads", scope=scope
    )
    mixed = w.each("linear attention in", "silu", mixed, scope="linear attention activation in")
    op = StateSpace(
        w.act, w.step.batch, w.step.seq_len, c.state_heads, c.state_v_heads, c.state_dim, c.state_v_dim, w.step.cached
    )
    y = _recurrence(w, op, "linear attention recurrence", (mixed,))
    return _gated_out(w, y, gate, c.state_v_dim)


def state_space(w: Writer, x: Tensor) -> Tensor:
    """Mamba2 (Dao and Gu, arXiv:2405.21060, section 7), from the normed input to the output projection."""
    c = w.config
    width = c.state_v_heads * c.state_v_dim
    scope = "linear attention qkv"
    mixed = w.linear(
        "attention.qkv", "linear attention xbc", x, c.state_channels, "state_heads", c.state_bias, scope=scope
    )
    gate = w.linear("attention.qkv", "linear attention z", x, width, "state_heads", c.state_bias, scope=scope)
    rates = w.linear(
        "attention.qkv", "linear attention dt", x, c.state_v_heads, "state_heads", c.state_bias, scope=scope
    )
    mixed = _convolved(w, mixed)
    op = StateSpace(
        w.act, w.step.batch, w.step.seq_len, c.state_heads, c.state_v_heads, c.state_dim, c.state_v_dim, w.step.cached
    )
    y = _recurrence(w, op, "linear attention recurrence", (mixed, rates))
    return _gated_out(w, y, gate, width // c.state_heads, c.state_bias)


def _convolved(w: Writer, x: Tensor) -> Tensor:
    """The short convolution over every channel and its activation, one kernel."""
    c, step = w.config, w.step
    op = CausalConv1d(w.act, step.batch, step.seq_len, c.state_channels, c.taps, step.cached)
    taps = Tensor("linear attention taps", ("state_heads", "taps"), (c.state_channels, c.taps), w.act, WEIGHT)
    return w.put(op, "linear attention convolution", (x, taps), Tensor("convolved", x.axes, x.shape, w.act), 1, 3)


def _recurrence(w: Writer, op: DeltaRule, name: str, inputs: tuple[Tensor, ...]) -> Tensor:
    """The recurrence; with a cache it reads and writes the states of all sequences."""
    c, n = w.config, w.step.batch
    if w.step.cached:
        sizes = {"batch": n, "state_heads": c.state_v_heads, "head_dim": c.state_dim, "value_dim": c.state_v_dim}
        inputs = (*inputs, w.state("linear attention states", "fp32" if STATE_BYTES == 4 else w.act, **sizes))
    out = Tensor(name, (*w.axes, "state_heads"), (*w.shape, c.state_v_heads * c.state_v_dim), w.act)
    return w.put(op, name, inputs, out, 1, 4)


def _gated_out(w: Writer, y: Tensor, gate: Tensor, width: int, bias: bool = False) -> Tensor:
    """The norm of every head (or group), times the gate's activation, and the projection out."""
    rows = y.elements // width
    heads = y.view((*y.axes[:-1], "state_heads", "head_dim"), (*y.shape[:-1], rows // w.step.tokens, width))
    y = w.norm("linear attention out norm", heads).view(y.axes, y.shape)
    w.scope = "linear attention activation"
    act = w.each("linear attention gate", "silu", gate)
    y = w.each("linear attention gated", "mul", act, y)
    w.scope = ""
    return w.linear("attention.out", "linear attention out", y, w.config.hidden, "hidden", bias)


#: What a mixer's layer is made of (`predictor.models.built.config.LINEAR`).
LAYERS: Mapping[str, Callable[[Writer, Tensor], Tensor]] = {
    "delta": delta_net, "kda": kimi_delta, "scan": state_space, "lightning": lightning,
}  # fmt: skip
