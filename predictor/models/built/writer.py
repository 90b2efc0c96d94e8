"""Writes the nodes of a block: the few building pieces that every architecture shares, as eager PyTorch runs them.

Shape legend: b sequences, s query tokens a sequence, t key positions, h width, a heads, d head width, n = b s tokens.
Methods take tensors and return those that the nodes make. ``calls`` are dispatcher calls on the CPU that come with a
node in eager PyTorch, views included.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from predictor.files.records import replace
from predictor.formats.dtypes import bytes_of
from predictor.formats.parts import HIGH_PARTS
from predictor.graph.graph import Block, Node
from predictor.graph.tensor import STATE, WEIGHT, Segments, Tensor, View
from predictor.models.step import ATTENTION_LINEAR, Step
from predictor.ops.attention import Attention
from predictor.ops.base import FORWARD, Op
from predictor.ops.elementwise import Dropout, Elementwise, HandGelu, Reduce
from predictor.ops.gemm import Gemm
from predictor.ops.norm import Norm, Softmax

if TYPE_CHECKING:
    from predictor.models.built.config import ModelConfig

# Names that config files use for the same kernels.
_KERNEL = {
    "relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu",
    "gelu_python": "gelu", "tanh": "tanh", "sigmoid": "sigmoid", "relu2": "relu",
}  # fmt: skip


#: Types whose class writes layer norm out, kernel by kernel. Source: transformers 5.24, modeling_cohere.py.
_WRITTEN_NORMS = ("cohere",)
#: Types whose RMS norm multiplies by the weight before it casts back. Source: transformers 5.24, modeling_olmo2.py and
#: modeling_gpt_oss.py.
_WIDE_WEIGHTS = ("olmo2", "gpt_oss")
#: In the names of what an adapter brings: its weights alone are trained.
ADAPTER = "adapter"


#: Functions whose gradient is worked out from their result. Source: PyTorch 2.13, tools/autograd/derivatives.yaml.
_FROM_RESULT = frozenset({"rsqrt", "tanh", "sigmoid", "exp", "relu"})


def _saved_results(op: Op) -> int:
    """Calls of the host that autograd adds to an operator in training: a result that it saves is detached (PyTorch
    2.13, torch/csrc/autograd/saved_variable.cpp)."""
    if isinstance(op, Elementwise):
        return int(op.fn in _FROM_RESULT)
    return int(isinstance(op, Softmax | Attention))


class Writer:
    """Collects the nodes of one block for ``config`` under ``step``."""

    __slots__ = (
        "act", "axes", "config", "nodes", "rotations", "scope", "shape", "size", "step", "tied", "today", "training",
    )  # fmt: skip

    def __init__(self, config: ModelConfig, step: Step) -> None:
        self.config = config
        self.step = step
        self.nodes: list[Node] = []
        #: module of the nodes that are being written; "": each is one by itself, of its own name
        self.scope = ""
        self.act = step.act_dtype
        self.size = bytes_of(self.act)
        self.training = step.training
        #: whether what runs is the class of today's release, kernel by kernel
        self.today = bool(step.classes)
        #: the table of token embeddings where the head reads it, too
        self.tied: Tensor | None = None
        #: cosines and sines of every position, where the pass makes them
        self.rotations: tuple[Tensor, Tensor] | None = None
        packed = bool(step.lens) and step.mode != "decode"
        #: axes of the tokens, and their sizes
        self.axes: tuple[str, ...] = ("tokens",) if packed else ("batch", "sequence")
        self.shape: tuple[int, ...] = (step.tokens,) if packed else (step.batch, step.seq_len)

    def block(
        self, name: str, repeat: int = 1, carried: tuple[Tensor, Tensor] | None = None, layers: tuple[int, ...] = ()
    ) -> Block:
        """The nodes so far as a block; the writer starts afresh."""
        if self.training:
            for node in self.nodes:
                node.host_calls += _saved_results(node.op)
        nodes, self.nodes = tuple(self.nodes), []
        return Block(name, nodes, repeat, carried, layers)

    def summed_at(self, name: str, x: Tensor) -> Tensor:
        """``x``, of which training sums the gradients with those of the node called ``name`` (`View.at`)."""
        return x.view(at=name) if self.training else x

    def hidden(self, name: str, width: int = 0) -> Tensor:
        """An activation of the model's width (or of ``width``) for every token."""
        return Tensor(name, (*self.axes, "hidden"), (*self.shape, width or self.config.hidden), self.act)

    def table(self, name: str, elements: int, dtype: str = "") -> Tensor:
        """A table or mask that no gradient flows into."""
        return Tensor(name, ("index",), (elements,), dtype or self.act, STATE)

    def state(self, name: str, dtype: str = "", **axes: int) -> Tensor:
        """A table or cache with axes that mean something (name=size), into which no gradient flows."""
        return Tensor(name, tuple(axes), tuple(axes.values()), dtype or self.act, STATE)

    def put(
        self, op: Op, name: str, inputs: tuple[Tensor, ...], out: Tensor, count: int = 1, calls: int = 1,
        share: float = 1.0, part: str = "", scope: str = "",
    ) -> Tensor:  # fmt: skip
        """A node that makes ``out``, which is returned. ``scope``: the module that it is a part of."""
        scope = scope or self.scope or name
        self.nodes.append(Node(op, name, inputs, (out,), count, FORWARD, calls, share, part, scope))
        return out

    def linear(
        self, part: str, name: str, x: Tensor, n: int, axis: str, bias: bool = False, views: int = 0,
        weight: Tensor | None = None, segments: tuple[tuple[int, int], ...] = (), scope: str = "",
    ) -> Tensor:  # fmt: skip
        """``x`` of shape (..., k) times a weight (n, k) of a ``part`` (`predictor.formats.parts`).

        ``axis`` names the result's last axis, ``segments`` are what it is made of (`Tensor.segments`). ``views`` counts
        the views of the result beyond the layer's own. ``weight``: one that something else reads, too. ``scope``: the
        module that it is a part of.
        """
        conv1d = self.config.conv1d and part not in HIGH_PARTS
        layout = "nn" if conv1d else "tn"
        flat = self.config.model_type == "opt" and part.startswith("mlp")  # rows of all sequences, one view around both
        calls = (3 if conv1d or flat else 4) + views  # view, (transposed weight,) product, view
        *rows, k = x.shape
        m = math.prod(rows)
        made: Segments = {axis: segments} if segments else {}
        if weight is None:
            weight = Tensor(name, (axis, x.axes[-1]), (n, k), self.act, WEIGHT, made)
        inputs = (x, weight, Tensor(name, (axis,), (n,), self.act, WEIGHT, made)) if bias else (x, weight)
        out = Tensor(name, (*x.axes[:-1], axis), (*rows, n), self.act, segments=made)
        op = Gemm(self.act, m, n, k, 1, "linear", bias, layout)
        self.put(op, name, inputs, out, 1, calls, part=part, scope=scope)
        return self._adapted(name, x, out, self.step.lora) if self.step.lora and self._trains(part, name) else out

    def _trains(self, part: str, name: str) -> bool:
        """Whether a linear layer gets an adapter."""
        targets = self.step.lora_targets
        if targets == ATTENTION_LINEAR:
            return part.startswith("attention.")
        from predictor.models.built.adapted import is_adapted  # names of classes: most runs have none

        return is_adapted(targets, part, name, self.config)

    def _adapted(self, name: str, x: Tensor, y: Tensor, rank: int) -> Tensor:
        """``y`` of a projection of ``x`` and what an adapter of low rank adds to it, scaled by alpha over the rank (Hu
        et al., arXiv:2106.09685; peft tuners/lora/layer.py: ``result + lora_B(lora_A(x)) * scaling``)."""
        m, k, n = y.elements // y.shape[-1], x.shape[-1], y.shape[-1]
        down = Tensor(f"{name} {ADAPTER} down", ("rank", x.axes[-1]), (rank, k), self.act, WEIGHT)
        up = Tensor(f"{name} {ADAPTER} up", (y.axes[-1], "rank"), (n, rank), self.act, WEIGHT, y.segments)
        inner = Tensor(down.name, (*x.axes[:-1], "rank"), (*x.shape[:-1], rank), self.act)
        added = Tensor(up.name, y.axes, y.shape, self.act, segments=y.segments)
        scaled = Tensor(f"{name} {ADAPTER} scale", y.axes, y.shape, self.act, segments=y.segments)
        total = Tensor(f"{name} {ADAPTER}", y.axes, y.shape, self.act, segments=y.segments)
        self.put(Gemm(self.act, m, rank, k), down.name, (x, down), inner, calls=4)
        self.put(Gemm(self.act, m, n, rank), up.name, (inner, up), added, calls=4)
        self.put(Elementwise(self.act, "mul_scalar", y.elements), scaled.name, (added,), scaled)
        return self.put(Elementwise(self.act, "add", y.elements), total.name, (y, scaled), total)

    def bmm(
        self, name: str, a: Tensor, b: Tensor, out: Tensor, batch: int, k: int, layout: str, calls: int = 6,
        part: str = "",
    ) -> Tensor:  # fmt: skip
        """``batch`` products over ``k``, to ``out`` of shape (..., m, n): activations, or with a ``part``'s weight."""
        n = out.shape[-1]
        op = Gemm(self.act, out.elements // (batch * n), n, k, batch, "bmm", False, layout)
        return self.put(op, name, (a, b), out, 1, calls, part=part)

    def attend(self, name: str, op: Attention, inputs: tuple[Tensor, ...], copied: bool = False) -> Tensor:
        """Fused attention as one kernel; of a ragged batch as one node for each length, which share that kernel.

        ``copied``: what goes on is a copy of its result, heads side by side, that comes with it.
        """
        out = Tensor(name, (*self.axes, "heads", "head_dim"), (*self.shape, op.heads, op.value_dim), self.act)
        parts = self.step.parts(op.q_len, op.kv_len, op.causal, op.window)
        for i, (batch, q_len, kv_len, share) in enumerate(parts):
            part = replace(op, batch=batch, q_len=q_len, kv_len=kv_len) if self.step.lens else op
            self.put(part, name, inputs, out, 1, 4 if i == 0 else 0, share)
        if copied:
            self.nodes[-1].outputs = (out, out.copied())
        return self.nodes[-1].outputs[-1]

    def each(
        self, name: str, fn: str, x: Tensor, *others: Tensor, out: Tensor | None = None, inputs: int = -1,
        extra: float = 0.0, calls: int = 1, dtype: str = "", in_dtype: str = "", grad: bool = True, flops: float = 0.0,
        count: int = 1, reread: float = 0.0, reuse: float = 0.0, stride: float = 0.0, scope: str = "",
        offsets: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """An element-wise kernel; ``extra``, ``reread``, ``reuse`` and ``stride`` in bytes.

        The result is ``out``, or shaped like ``x``. ``grad`` False: its gradient is a view, no kernel makes it.
        ``offsets`` (`Elementwise`): where nothing is said, those of copies, which change the layout, of an operand that
        is broadcast or a slice, and of casts to fp32.
        """
        dtype = dtype or self.act
        if out is None:
            out = Tensor(name, x.axes, x.shape, dtype, segments=x.segments)
        if offsets is None:
            sliced = any(isinstance(t, View) and t.part for t in (x, *others))
            cast = dtype == "fp32" and in_dtype in ("bf16", "fp16")
            offsets = sliced or cast or extra > 0.0 or fn in ("copy", "neg")
        op = Elementwise(dtype, fn, out.elements, inputs, extra, in_dtype, flops, grad, reread, reuse, stride, offsets)
        return self.put(op, name, (x, *others), out, count, calls, scope=scope)

    def tiny(
        self, name: str, fn: str = "fill", elements: int = 1, dtype: str = "fp32", count: int = 1, calls: int = 1,
        out: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """A small kernel on indices or masks that no gradient flows through."""
        out = out or self.table(name, elements, dtype)
        return self.put(Elementwise(dtype, fn, out.elements), name, (), out, count, calls)

    def dropout(self, name: str, x: Tensor, probability: float, count: int = 1) -> Tensor:
        """Dropout where it is active: eager inference launches nothing, but still calls."""
        if not self.training or probability <= 0.0:
            return x
        out = Tensor(name, x.axes, x.shape, self.act)
        return self.put(Dropout(self.act, x.elements), name, (x,), out, count)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Layer norm is one kernel, RMS norm the chain that the Hugging Face class runs."""
        cols, n = x.shape[-1], x.elements
        if self.config.norm_plus_one and self.config.norm == "layer":
            self.scope = f"{name} tables"
            self.tiny(f"{name} weight plus one", "add_scalar", cols)
            self.scope = ""
        weight = Tensor(name, x.axes[-1:], x.shape[-1:], self.act, WEIGHT)
        if self.config.norm == "rms":
            return self._rms_norm(name, x, weight)
        if self.config.model_type in _WRITTEN_NORMS:
            return self._layer_norm(name, x, weight)
        op = Norm(self.act, n // cols, cols, "layer")
        inputs: tuple[Tensor, ...] = (x, weight)
        if self.config.norm_bias:
            inputs = (x, weight, Tensor(name, x.axes[-1:], x.shape[-1:], self.act, WEIGHT))
        return self.put(op, name, inputs, Tensor(name, x.axes, x.shape, self.act))

    def _layer_norm(self, name: str, x: Tensor, weight: Tensor) -> Tensor:
        """(x - mean) / sqrt(mean((x - mean)^2) + eps) times the weight, in fp32 (transformers 5.24, CohereLayerNorm of
        modeling_cohere.py, which subtracts twice)."""
        cols, n, cast = x.shape[-1], x.elements, self.act != "fp32"
        rows, self.scope = n // cols, name
        wide = self.each(f"{name} to fp32", "cast", x, dtype="fp32", in_dtype=self.act) if cast else x.view()
        mean = Tensor(f"{name} mean", x.axes[:-1], x.shape[:-1], "fp32")
        self.put(Reduce("fp32", rows, cols, 1), f"{name} mean", (wide,), mean)
        off = self.each(f"{name} deviation", "sub", wide, mean, inputs=1, extra=rows * 4.0, dtype="fp32")
        square = self.each(f"{name} square", "pow_scalar", off, dtype="fp32")
        variance = Tensor(f"{name} variance", x.axes[:-1], x.shape[:-1], "fp32")
        self.put(Reduce("fp32", rows, cols, 1), f"{name} variance", (square,), variance)
        off = self.each(f"{name} centred", "sub", wide, mean, inputs=1, extra=rows * 4.0, dtype="fp32")
        eps = self.each(f"{name} eps", "add_scalar", variance, dtype="fp32")
        root = self.each(f"{name} rsqrt", "rsqrt", eps, dtype="fp32")
        y = self.each(f"{name} scale", "mul", off, root, inputs=1, extra=rows * 4.0, dtype="fp32")
        if cast:
            self.tiny(f"{name} weight to fp32", "cast", cols)
        y = self.each(f"{name} weight", "mul", y, weight, inputs=1, extra=cols * 4.0, dtype="fp32")
        y = self.each(f"{name} from fp32", "cast", y, in_dtype="fp32") if cast else y
        self.scope = ""
        return y

    def _rms_norm(self, name: str, x: Tensor, weight: Tensor) -> Tensor:
        """x / sqrt(mean(x^2) + eps) in fp32, times the weight."""
        cols, n, cast = x.shape[-1], x.elements, self.act != "fp32"
        rows, self.scope = n // cols, name
        wide = self.each(f"{name} to fp32", "cast", x, dtype="fp32", in_dtype=self.act) if cast else x.view()
        square = self.each(f"{name} square", "pow_scalar", wide, dtype="fp32")
        mean = Tensor(f"{name} mean", x.axes[:-1], x.shape[:-1], "fp32")
        self.put(Reduce("fp32", rows, cols, 1), f"{name} mean", (square,), mean)
        eps = self.each(f"{name} eps", "add_scalar", mean, dtype="fp32")
        root = self.each(f"{name} rsqrt", "rsqrt", eps, dtype="fp32")
        scaled, narrow = wide, ""
        if cast and self.config.is_encoder_decoder:  # T5 multiplies what it has, whose gradient is cast back
            back = (Elementwise(self.act, "cast", n, in_dtype="fp32"),) if self.training else ()
            scaled, narrow = x.view(gradient=back, at=f"{name} scale"), self.act
        y = self.each(f"{name} scale", "mul", scaled, root, inputs=1, extra=rows * 4.0, dtype="fp32", in_dtype=narrow)
        plus_one = self.config.norm_plus_one  # Gemma multiplies by 1 + weight, and casts back after that
        if plus_one and cast:
            self.tiny(f"{name} weight to fp32", "cast", cols)
        if plus_one:
            self.tiny(f"{name} weight plus one", "add_scalar", cols)
        late = plus_one or self.config.model_type in _WIDE_WEIGHTS
        if cast and not late:
            y = self.each(f"{name} from fp32", "cast", y, in_dtype="fp32")
        extra = cols * (4.0 if plus_one else self.size)
        y = self.each(f"{name} weight", "mul", y, weight, inputs=1, extra=extra, dtype="fp32" if late else "")
        if cast and late:
            y = self.each(f"{name} from fp32", "cast", y, in_dtype="fp32")
        self.scope = ""
        return y

    def softmax(self, name: str, x: Tensor, upcast: bool) -> Tensor:
        """Softmax; ``upcast`` computes in fp32 and casts back where activations are narrower."""
        cols = x.shape[-1]
        upcast = upcast and self.size < 4
        out = Tensor(name, x.axes, x.shape, "fp32" if upcast else self.act)
        self.put(Softmax(x.dtype, x.elements // cols, cols, wide=upcast), name, (x,), out)
        return self.each(f"{name} from fp32", "cast", out, in_dtype="fp32") if upcast else out

    def activation(self, name: str, x: Tensor, gate: bool = False) -> Tensor:
        """The activation function, as one kernel or a chain; of a ``gate``, whose product belongs to it, too."""
        kind = self.config.activation
        self.scope, name = name, f"{name} gate" if gate else name
        if kind == "gelu_new":
            y = self._tanh_gelu(name, x)
        elif kind == "gelu_bloom":
            y = self._bloom_gelu(name, x)
        else:
            y = self.each(name, _KERNEL.get(kind, "gelu"), x)
        if kind == "relu2":
            y = self.each(f"{name} square", "pow_scalar", y)
        self.scope = ""
        return y

    def _tanh_gelu(self, name: str, x: Tensor) -> Tensor:
        """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
        half = self.each(f"{name} half", "mul_scalar", x)
        cube = self.each(f"{name} cube", "pow_scalar", x)
        cube = self.each(f"{name} cube scale", "mul_scalar", cube)
        inner = self.each(f"{name} inner sum", "add", x, cube)
        inner = self.each(f"{name} inner scale", "mul_scalar", inner)
        tanh = self.each(f"{name} tanh", "tanh", inner)
        shifted = self.each(f"{name} plus one", "add_scalar", tanh)
        return self.each(f"{name} product", "mul", half, shifted)

    def _bloom_gelu(self, name: str, x: Tensor) -> Tensor:
        """x 0.5 (1 + tanh(0.79788456 x (1 + 0.044715 x x))), nine kernels; its class writes the gradient by hand."""
        y = x.detached()
        _, scale, cube = (self.each(f"{name} {part}", "mul_scalar", y) for part in ("half", "scale", "cube scale"))
        square = self.each(f"{name} square", "mul", cube, y)
        inner = self.each(f"{name} inner sum", "add_scalar", square)
        inner = self.each(f"{name} inner", "mul", scale, inner)
        tanh = self.each(f"{name} tanh", "tanh", inner)
        shifted = self.each(f"{name} plus one", "add_scalar", tanh)
        out = Tensor(f"{name} product", x.axes, x.shape, self.act, segments=x.segments)
        return self.put(HandGelu(self.act, "mul", out.elements), out.name, (x, y, shifted), out)

    def gated_activation(self, name: str, gate: Tensor, up: Tensor) -> Tensor:
        """activation(gate) times up."""
        y = self.activation(name, gate, gate=True)
        self.scope = name
        y = self.each(f"{name} product", "mul", y, up)
        self.scope = ""
        return y
