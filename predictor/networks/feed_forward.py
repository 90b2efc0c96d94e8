"""Feed-forward layers: dense, gated, with experts, and the Switch Transformer's expert loop.

Shape legend: n tokens, h width, f width of the feed-forward, e experts.
"""

from __future__ import annotations

from predictor.graph.graph import Node
from predictor.networks.writer import Writer
from predictor.ops.elementwise import Elementwise, Reduce
from predictor.ops.gemm import Gemm
from predictor.ops.moe import MoE, Routing
from predictor.ops.norm import Softmax

#: Framework calls of the experts as transformers 5 runs them by default (sort, index, two grouped products, scatter and
#: their views) and of the router's softmax, top-k and normalisation, counted with a dispatch mode.
EXPERT_CALLS = 26
ROUTING_CALLS = 7


def feed_forward(w: Writer, f: int, name: str = "mlp") -> None:
    """The dense feed-forward of width ``f``."""
    c, n = w.config, w.step.tokens
    h = c.hidden
    up, down = ("mlp.up", "mlp.down") if name == "mlp" else ("shared_experts", "shared_experts")
    if c.gated:
        if w.fused or c.merged_gate_up:
            w.linear(up, f"{name} gate_up", n, 2 * f, h, c.mlp_bias, saved=n * h)
        else:
            w.linear(up, f"{name} gate", n, f, h, c.mlp_bias, saved=n * h)
            w.fork(n * h)
            w.linear(up, f"{name} up", n, f, h, c.mlp_bias)
        w.gated_activation(f"{name} activation", n * f)
    else:
        w.linear(up, f"{name} up", n, f, h, c.mlp_bias, saved=n * h)
        w.activation(f"{name} activation", n * f)
    w.dropout(f"{name} activation dropout", n * f, c.activation_dropout)
    w.linear(down, f"{name} down", n, h, f, c.mlp_bias, saved=n * f)


def experts(w: Writer) -> None:
    """Router, routing, the routed experts as one operator, and the shared experts beside them."""
    c, n = w.config, w.step.tokens
    h, e = c.hidden, c.experts
    if c.model_type.startswith("deepseek") and not w.fused and w.size < 4:
        w.each("router to fp32", "cast", n * h, dtype="fp32", in_dtype=w.act)
    w.linear("router", "router", n, e, h, saved=n * h)
    w.fork(n * h)
    routing = Routing(w.act if w.fused else "fp32", n, e, c.top_k)
    w.nodes.append(Node(routing, "routing", 1, "forward", ROUTING_CALLS, n * e * w.keep))
    calls = 4 if w.fused else EXPERT_CALLS
    saved = n * c.top_k * (2 * h + (4 if c.gated else 2) * c.moe_intermediate) * w.keep
    tp = w.step.tp  # the config holds one GPU's part of an expert's width, the operator names the whole
    dtype, quant = w.formats.of("experts")
    op = MoE(
        dtype, n, h, c.moe_intermediate * tp, e, c.top_k, c.gated, tp, distribution=w.step.routing, quant=quant
    )  # fmt: skip
    w.nodes.append(Node(op, "experts", 1, "forward", calls, saved))
    if c.shared_experts:
        feed_forward(w, c.shared_intermediate, "shared experts")
        w.each("shared experts sum", "add", n * h)


def switch_experts(w: Writer) -> None:
    """The sparse feed-forward of SwitchTransformers in eager PyTorch: one expert after the other, a gather before it.

    An expert takes at most ``expert_capacity`` tokens of each sequence. With ``padded_experts`` every expert runs on a
    zero-padded block of batch times capacity rows instead.
    """
    c, step = w.config, w.step
    n, h, e = step.tokens, c.hidden, c.experts
    if w.size < 4:
        w.each("router to fp32", "cast", n * h, dtype="fp32", in_dtype=w.act)
    w.nodes.append(Node(Gemm("fp32" if w.high in ("bf16", "fp16") else w.high, n, e, h), "router", 1, "forward", 3))
    w.fork(n * h)
    w.nodes.append(Node(Softmax("fp32", n, e), "router softmax", 1, "forward", 1, 4.0 * n * e if w.training else 0.0))
    for part in ("argmax", "argmax again"):
        w.nodes.append(Node(Reduce("fp32", n, e, 1), f"router {part}", 1, "forward", 1, 0.0, False))
    w.tiny("router one hot", "scatter", n * e, "int64", calls=4)
    w.tiny("router priority", "cumsum", n * e, "int64")
    w.each("router within capacity", "max_scalar", n * e, dtype="bool", in_dtype="int64", trainable=False)
    w.tiny("router kept", "mul", n * e, "int64")
    w.nodes.append(Node(Reduce("fp32", n, e, 1), "router probability", 1, "forward", 2))
    w.each("experts output", "copy", n * h)
    _expert_loop(w, _expert_rows(w))
    w.each("experts weighting", "mul", n * h, 1, n * w.size, saved=n * h)
    w.gradient(Elementwise(w.act, "mul", n * h), Reduce(w.act, n, h, 1))


def _expert_loop(w: Writer, rows: int) -> None:
    """Every expert on ``rows`` rows: choice, gather, two products, scatter. A boolean index costs a nonzero first."""
    c, n, e = w.config, w.step.tokens, w.config.experts
    h, f = c.hidden, c.intermediate
    w.each("expert choice", "cast", n, dtype="bool", in_dtype="int64", trainable=False, count=e, calls=3)
    if c.padded_experts:
        w.tiny("expert block", "fill", rows * h, w.act, count=e, calls=2)
    w.tiny("expert rows", "cumsum", n, "int64", count=e, calls=4)
    w.each("expert gather", "gather", rows * h, count=e, calls=2)
    if c.padded_experts:
        w.each("expert block fill", "copy", rows * h, count=e, calls=2)
    dtype, quant = w.formats.of("experts")
    w.nodes.append(Node(Gemm(dtype, rows, f, h, quant=quant), "experts up", e, "forward", 3, rows * h * w.keep))
    w.each("experts activation", "relu" if c.activation == "relu" else "gelu", rows * f, count=e)
    w.dropout("experts dropout", rows * f, c.activation_dropout, e)
    w.nodes.append(Node(Gemm(dtype, rows, h, f, quant=quant), "experts down", e, "forward", 3, rows * f * w.keep))
    w.each("expert scatter", "scatter", rows * h, count=e, calls=4)


def _expert_rows(w: Writer) -> int:
    """Rows of one expert's products."""
    c, step = w.config, w.step
    if c.padded_experts:
        return step.batch * c.expert_capacity
    return max(1, step.batch * min(c.expert_capacity, -(-step.seq_len // c.experts)))
