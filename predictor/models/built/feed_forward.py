"""Feed-forward layers: dense, gated, with experts, and the Switch Transformer's expert loop.

Shape legend: n tokens, h width, f width of the feed-forward, e experts.
"""

from __future__ import annotations

from predictor.graph.tensor import WEIGHT, Tensor
from predictor.models.built.writer import Writer
from predictor.ops.elementwise import Elementwise, Reduce
from predictor.ops.gemm import Gemm
from predictor.ops.moe import MoE, Routing
from predictor.ops.norm import Softmax
from predictor.ops.ordering import Index, Scan, Sort

#: Framework calls of the experts as transformers 5 runs them by default (sort, index, two grouped products, scatter and
#: their views). Measured by counting with a dispatch mode.
EXPERT_CALLS = 26
#: Calls of a router's product with its views, and of what follows it: softmax, top-k, sum, division, cast. Source:
#: transformers 5.24, the forward of TopKRouter in models/mixtral/modeling_mixtral.py.
_ROUTER_CALLS = (4, 5)
#: The same of routers that take the best groups of experts first, and cast both operands. Source: transformers 5.24,
#: DeepseekV3TopkRouter.forward in models/deepseek_v3/modeling_deepseek_v3.py.
_GROUPED = (5, 20)
#: The same of types with another router: a top-k and a softmax of what it picks; a softmax and a top-k alone; a sigmoid
#: and a bias. Source: transformers 5.24, the router's forward in models/TYPE/modeling_TYPE.py.
_ROUTERS_CALLS = {
    "gpt_oss": (3, 2), "qwen2_moe": (4, 3), "minimax_m2": (4, 7), "llama4": (3, 6), "llama4_text": (3, 6),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2", "mimo_v2_flash", "nemotron_h"), _GROUPED),
}  # fmt: skip
#: Launches of a `nonzero`: a sum, its copy to the host, a scan, the places. Source: PyTorch 2.13,
#: aten/src/ATen/native/cuda/Nonzero.cu.
NONZERO_CALLS = 4


def feed_forward(w: Writer, x: Tensor, f: int, name: str = "mlp", flat: bool = False) -> Tensor:
    """The dense feed-forward of width ``f``; ``flat``: its tokens are in one row already, so that no product views
    them."""
    c, h = w.config, w.config.hidden
    views = -2 if flat else 0
    up, down = ("mlp.up", "mlp.down") if name == "mlp" else ("shared_experts", "shared_experts")
    if c.gated:
        scope = f"{name} gate_up"
        if c.merged_gate_up:
            halves = (f, 1), (f, 1)
            both = w.linear(up, scope, x, 2 * f, "mlp | mlp", c.mlp_bias, segments=halves)
            if w.training:  # autograd joins the halves' gradients
                joined = (Elementwise(w.act, "copy", both.elements),)
                both = both.view(at=f"{name} activation product", gradient=joined)
            axes, shape = (*x.axes[:-1], "mlp"), (*x.shape[:-1], f)
            first, second = both.view(axes, shape, part=True), both.view(axes, shape, part=True)
        else:
            first = w.linear(up, f"{name} gate", x, f, "mlp", c.mlp_bias, views, scope=scope)
            second = w.linear(up, f"{name} up", x, f, "mlp", c.mlp_bias, views, scope=scope)
        place = len(w.nodes)
        y = w.gated_activation(f"{name} activation", first, second)
        if c.merged_gate_up:
            w.nodes[place].host_calls += 1  # the product is split in two first
    else:
        y = w.linear(up, f"{name} up", x, f, "mlp", c.mlp_bias)
        y = w.activation(f"{name} activation", y)
    y = w.dropout(f"{name} activation dropout", y, c.activation_dropout)
    return w.linear(down, f"{name} down", y, h, "hidden", c.mlp_bias, views)


def experts(w: Writer, x: Tensor) -> Tensor:
    """Router, routing, the routed experts as one operator, and the shared experts beside them."""
    c, n = w.config, w.step.tokens
    h, e = c.hidden, c.experts
    x = w.summed_at("router", x)
    wide, w.scope = x, "router"
    if c.model_type.startswith("deepseek") and w.size < 4:
        wide = w.each("router to fp32", "cast", x, dtype="fp32", in_dtype=w.act)
    product, after = _ROUTERS_CALLS.get(c.model_type, _ROUTER_CALLS)
    grouped = w.today and (product, after) == _GROUPED
    if wide is not x:  # the cast is one of them
        product -= 1
    scores = w.linear("router", "router", wide, e, "expert", c.router_bias, product - 4)
    every = c.every_expert and w.step.experts == "loop"
    chosen = Tensor("routing", (*w.axes, "expert"), (*w.shape, e if every else c.top_k), "fp32")
    if grouped:
        chosen = _best_of_groups(w, scores, chosen)
    else:
        w.put(Routing("fp32", n, e, c.top_k), "routing", (scores,), chosen, 1, after)
    w.scope = ""
    if every:
        y = _every_expert(w, x, chosen)
        shared = feed_forward(w, x, c.shared_intermediate, "shared experts", flat=True)
        return w.each("shared experts sum", "add", y, shared)
    narrow = w.linear("mlp.up", "experts latent in", x, c.moe_latent, "hidden") if c.moe_latent else x
    op = MoE(w.act, n, c.moe_latent or h, c.moe_intermediate, e, c.top_k, c.gated, distribution=w.step.routing)
    op = op.within(w.step.capacity)
    inputs = (narrow, chosen, *_expert_weights(w))
    y = w.put(op, "experts", inputs, w.hidden("experts", c.moe_latent), 1, EXPERT_CALLS + 1, part="experts")
    if c.moe_latent:
        y = w.linear("mlp.down", "experts latent out", y, h, "hidden")
    if c.shared_intermediate:
        # Types with a gate view the tokens as one row before router and experts (models/qwen2_moe).
        shared = feed_forward(w, x, c.shared_intermediate, "shared experts", c.shared_gate)
        if c.shared_gate:
            gate = w.linear("router", "shared experts gate", x, 1, "expert_gate", views=-2)
            w.scope = "shared experts gating"
            gate = w.each("shared experts gate activation", "sigmoid", gate)
            shared = w.each("shared experts gated", "mul", shared, gate, inputs=1, extra=n * w.size)
            w.scope = ""
        y = w.each("shared experts sum", "add", y, shared)
    return y


def _best_of_groups(w: Writer, scores: Tensor, out: Tensor) -> Tensor:
    """Shares of the experts that each token picks, ``out``, of the groups whose two best experts are the best
    (transformers 5.24, DeepseekV3TopkRouter.forward in modeling_deepseek_v3.py): a sigmoid and a bias, what a group's
    two best score, the best groups, a mask of their experts, and of these the best, whose shares add up to a number."""
    c, n, e = w.config, w.step.tokens, w.config.experts
    groups, k = max(c.expert_groups, 1), c.top_k
    chances = w.each("router chances", "sigmoid", scores, dtype="fp32")
    w.tiny("router bias", "add_scalar", n * e)

    def best(name: str, rows: int, cols: int, most: int, calls: int) -> None:
        w.put(Sort("fp32", rows, cols, most), name, (), w.table(name, rows * most), 1, calls)

    best("router best of a group", n * groups, e // groups, min(2, e // groups), 2)
    w.put(Reduce("fp32", n * groups, 2, 1), "router groups", (), w.table("router groups", n * groups))
    best("router best groups", n, groups, max(c.top_groups, 1), 1)
    w.tiny("router groups kept", "fill", n * groups)
    w.put(Index("fp32", n * max(c.top_groups, 1), 1, n * groups, "scatter"), "router groups picked", (),
          w.table("router groups picked", n * groups))  # fmt: skip
    w.tiny("router experts kept", "cast", n * e, "bool", calls=4)
    w.tiny("router experts left out", "neg", n * e, "bool")
    w.tiny("router experts masked", "masked_fill", n * e)
    best("routing", n, e, k, 1)
    picked = Tensor("router shares", out.axes, out.shape, "fp32")
    places = w.table("router places", n * k, "int64")
    chances = w.put(Index("fp32", n * k, 1, n * e), picked.name, (chances, places), picked)
    whole = Tensor("router sum", out.axes[:-1], out.shape[:-1], "fp32")
    w.put(Reduce("fp32", n, k, 1), whole.name, (chances,), whole)
    whole = w.each("router sum eps", "add_scalar", whole, dtype="fp32")
    chances = w.each("router shares of one", "div", chances, whole, inputs=1, extra=n * 4.0, dtype="fp32")
    return w.each("router shares scaled", "mul_scalar", chances, out=out, dtype="fp32")


def _expert_weights(w: Writer) -> tuple[Tensor, Tensor]:
    """The matrices of all experts, into their width and out of it."""
    c = w.config
    f, into, h = c.moe_intermediate, 2 if c.gated else 1, c.moe_latent or c.hidden
    axis = "mlp | mlp" if c.gated else "mlp"
    segments = {axis: ((f, 1), (f, 1))} if c.gated else {}
    return (
        Tensor("experts up", ("expert", axis, "hidden"), (c.experts, into * f, h), w.act, WEIGHT, segments),
        Tensor("experts down", ("expert", "hidden", "mlp"), (c.experts, h, f), w.act, WEIGHT),
    )


def _every_expert(w: Writer, x: Tensor, shares: Tensor) -> Tensor:
    """All experts on all tokens, whose inputs are weighted by ``shares`` (..., e) of 0 for those that are not picked:
    two batched products over copies of the tokens (transformers 5.24, Llama4TextMoe of modeling_llama4.py, which says
    that it should not be run on a single machine)."""
    n, h, e, f = w.step.tokens, w.config.hidden, w.config.experts, w.config.moe_intermediate
    w.scope = "experts"
    axes, shape = ("expert", *w.axes), (e, *w.shape)
    wide = "mlp | mlp"
    if w.training:
        x = x.view(gradient=(Reduce(w.act, e, n * h),), at="experts copies")
    y = Tensor("experts copies", (*axes, "hidden"), (*shape, h), w.act)
    y = w.each(y.name, "copy", x, out=y, inputs=0, extra=n * h * w.size, grad=False)
    w.tiny("experts shares", "copy", n * e, w.act, calls=2)
    y = w.each("experts weighting", "mul", y, shares, inputs=1, extra=n * e * w.size, calls=2)
    up = Tensor("experts up", ("expert", "hidden", wide), (e, h, 2 * f), w.act, WEIGHT, {wide: ((f, 1), (f, 1))})
    both = Tensor("experts up", (*axes, wide), (*shape, 2 * f), w.act, segments={wide: ((f, 1), (f, 1))})
    both = w.bmm(both.name, y, up, both, e, h, "nn", calls=2, part="experts")
    if w.training:  # autograd joins the halves' gradients
        joined = (Elementwise(w.act, "copy", both.elements),)
        both = both.view(at="experts activation product", gradient=joined)
    gate, other = (both.view((*axes, "mlp"), (*shape, f), part=True) for _ in range(2))
    y = w.gated_activation("experts activation", gate, other)
    w.nodes[-2].host_calls += 1  # the product is split in two first
    w.scope = "experts"
    down = Tensor("experts down", ("expert", "mlp", "hidden"), (e, f, h), w.act, WEIGHT)
    out = Tensor("experts down", (*axes, "hidden"), (*shape, h), w.act)
    y = w.bmm(out.name, y, down, out, e, f, "nn", calls=1, part="experts")
    y = w.put(Reduce(w.act, e, n * h), "experts sum", (y,), w.hidden("experts sum"), 1, 3)
    w.scope = ""
    return y


def switch_experts(w: Writer, x: Tensor) -> Tensor:
    """The sparse feed-forward of SwitchTransformers in eager PyTorch: one expert after the other, a gather before it.

    An expert takes at most ``expert_capacity`` tokens of each sequence. As transformers 5.24 runs it; with
    ``padded_experts`` as in the run that NeuSight traced: every expert on a zero-padded block of batch times capacity
    rows.
    """
    c, step = w.config, w.step
    n, h, e = step.tokens, c.hidden, c.experts
    x = w.summed_at("router", x)
    w.scope = "experts"
    wide = w.each("router to fp32", "cast", x, dtype="fp32", in_dtype=w.act) if w.size < 4 else x
    axes, shape = (*w.axes, "expert"), (*w.shape, e)
    weight = Tensor("router", ("expert", "hidden"), (e, h), "fp32", WEIGHT)  # whatever the rest computes in
    scores = w.put(
        Gemm("fp32", n, e, h), "router", (wide, weight), Tensor("router", axes, shape, "fp32"), 1, 3, part="router"
    )
    scores = w.put(Softmax("fp32", n, e), "router softmax", (scores,), Tensor("router softmax", axes, shape, "fp32"))
    dtype = "fp32" if c.padded_experts else w.act
    if dtype != "fp32" and w.size < 4:
        scores = w.each("router from fp32", "cast", scores, dtype=dtype, in_dtype="fp32")
    for part in ("argmax", "argmax again") if c.padded_experts else ("argmax",):
        w.put(Reduce(dtype, n, e, 1), f"router {part}", (scores,), w.table(part, n, "int64"))
    w.tiny("router one hot", "scatter", n * e, "int64", calls=4)
    kept_tokens = w.tiny("router priority", "cumsum", n * e, "int64")
    within = w.table("router within capacity", n * e, "bool")
    w.each("router within capacity", "max_scalar", kept_tokens, out=within, dtype="bool", in_dtype="int64")
    mask = w.tiny("router kept", "mul", n * e, "int64")
    chance = Tensor("router probability", w.axes, w.shape, dtype)
    w.put(Reduce(dtype, n, e, 1), "router probability", (scores,), chance, 1, 2)
    if c.padded_experts:
        y = w.each("experts output", "copy", x.view(part=True))  # rows that no expert takes keep it
        y = _padded_loop(w, x.view(part=True), y, mask)
        y = w.each("experts weighting", "mul", y, chance, inputs=1, extra=n * w.size)
    else:
        y = _expert_loop(w, x, mask, chance)
    w.scope = ""
    return y


def _expert_loop(w: Writer, x: Tensor, mask: Tensor, chance: Tensor) -> Tensor:
    """Every expert on the rows that are found for it, which are weighted and added to the result. Each gives the whole
    input a gradient, of zeros but for its rows."""
    c, n, e, h = w.config, w.step.tokens, w.config.experts, w.config.hidden
    rows = max(1, w.step.batch * min(c.expert_capacity, -(-w.step.seq_len // e)))
    out = w.hidden("experts output")
    w.put(Elementwise(w.act, "fill", n * h), out.name, (), out, 1, 5)
    w.put(Reduce("int64", n, e, 0), "experts hit", (mask,), w.table("experts hit", e, "int64"), 1, 3 + NONZERO_CALLS)
    choice, chosen_rows = w.table("expert choice", n, "int64"), w.table("expert rows", rows, "int64")
    w.put(Index("int64", 1, n, e), choice.name, (mask,), choice, e)
    w.put(Scan("int64", 1, n), chosen_rows.name, (choice,), chosen_rows, e, 1 + NONZERO_CALLS)
    if w.training:
        x = x.view(gradient=(Elementwise(w.act, "add", n * h),), at="expert gather")
        chance = chance.view(gradient=(Elementwise(w.act, "add", n),), at="expert share")
    y = Tensor("expert gather", ("tokens", "hidden"), (rows, h), w.act)
    y = _expert_products(w, w.put(Index(w.act, rows, h, n), y.name, (x, chosen_rows), y, e, 4), rows)
    share = Tensor("expert share", ("tokens",), (rows,), w.act)
    w.put(Index(w.act, rows, 1, n), share.name, (chance, chosen_rows), share, e, 2)
    y = w.each("expert weighting", "mul", y, share, inputs=1, extra=rows * w.size, count=e)
    made = w.hidden("expert sum")
    return w.put(Index(w.act, rows, h, n, "scatter_add"), made.name, (y, chosen_rows, out), made, e)


def _expert_products(w: Writer, y: Tensor, rows: int) -> Tensor:
    """Both products of every expert on ``rows`` rows, with the activation between them."""
    c, e, h, f = w.config, w.config.experts, w.config.hidden, w.config.intermediate
    for name, k, width, axis in (("experts up", h, f, "mlp"), ("experts down", f, h, "hidden")):
        weight = Tensor(name, ("expert", axis, y.axes[-1]), (e, width, k), w.act, WEIGHT)
        made = Tensor(name, ("tokens", axis), (rows, width), w.act)
        y = w.put(Gemm(w.act, rows, width, k), name, (y, weight), made, e, 3, part="experts")
        if axis == "mlp":
            y = w.each("experts activation", "relu" if c.activation == "relu" else "gelu", y, count=e)
            y = w.dropout("experts dropout", y, c.activation_dropout, e)
    return y


def _padded_loop(w: Writer, x: Tensor, out: Tensor, mask: Tensor) -> Tensor:
    """Every expert on a block of batch times capacity rows: choice, gather, two products, scatter. A boolean index
    costs a nonzero first."""
    c, n, e, h = w.config, w.step.tokens, w.config.experts, w.config.hidden
    rows = w.step.batch * c.expert_capacity
    chosen = w.table("expert choice", n, "bool")
    w.each("expert choice", "cast", mask, out=chosen, dtype="bool", in_dtype="int64", count=e, calls=3)
    w.tiny("expert block", "fill", rows * h, w.act, count=e, calls=2)
    w.tiny("expert rows", "cumsum", n, "int64", count=e, calls=NONZERO_CALLS)
    axes = ("tokens", "hidden")
    y = w.each(
        "expert gather", "gather", x, chosen, out=Tensor("expert gather", axes, (rows, h), w.act), count=e, calls=2
    )
    y = w.each("expert block fill", "copy", y, count=e, calls=2)
    y = _expert_products(w, y, rows)
    made = Tensor("expert scatter", out.axes, out.shape, w.act)
    op = Elementwise(w.act, "scatter", rows * h)
    return w.put(op, "expert scatter", (y, out, chosen), made, e, 4)
