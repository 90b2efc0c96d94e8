"""Writes the nodes of a block: the few building pieces that every architecture shares, eager or fused.

Shape legend: b sequences, s query tokens a sequence, t key positions, h width, a heads, d head width, n = b s tokens.
``calls`` are dispatcher calls on the CPU that come with a node in eager PyTorch, views included; ``saved`` counts
elements that autograd keeps, each tensor once, at the node that makes it necessary.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.dtypes import bytes_of
from predictor.graph.graph import Block, Node
from predictor.networks.config import ModelConfig
from predictor.networks.step import Step
from predictor.ops.attention import Attention
from predictor.ops.base import FORWARD, Op
from predictor.ops.collective import over
from predictor.ops.elementwise import Dropout, Elementwise, Reduce
from predictor.ops.gemm import Gemm
from predictor.ops.norm import Norm, Softmax
from predictor.parts import HIGH_PARTS, plain

# FLOP per element of the activation functions, for the fused form.
_ACTIVATION_FLOPS = {"relu": 1.0, "silu": 8.0, "gelu": 10.0}
# Names that config files use for the same kernels.
_KERNEL = {
    "relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu",
    "gelu_python": "gelu", "tanh": "tanh", "sigmoid": "sigmoid",
}  # fmt: skip


class Writer:
    """Collects the nodes of one block for ``config`` under ``step``."""

    __slots__ = ("act", "config", "formats", "fused", "high", "keep", "nodes", "size", "step", "training")

    def __init__(self, config: ModelConfig, step: Step) -> None:
        self.config = config
        self.step = step
        self.nodes: list[Node] = []
        self.act = step.act_dtype
        #: of the layer that is being written
        self.formats = step.formats or plain(step.act_dtype)
        self.size = bytes_of(self.act)
        #: dtype of products that stay at 16 bit or more when the linear layers are quantized
        self.high = self.formats.high.dtype
        self.fused = step.fused
        self.training = step.training
        self.keep = self.size if step.training else 0.0

    def block(self, name: str, repeat: int = 1) -> Block:
        """The nodes so far as a block; the writer starts afresh."""
        nodes, self.nodes = tuple(self.nodes), []
        return Block(name, nodes, repeat)

    def linear(
        self, part: str, name: str, m: int, n: int, k: int, bias: bool = False, saved: float = 0.0, views: int = 0
    ) -> None:
        """(m, k) times a weight (k, n) of a ``part`` (`predictor.parts`), whose format it has; ``views`` counts the
        views of the result beyond the layer's own."""
        conv1d = self.config.conv1d and part not in HIGH_PARTS
        layout = "nn" if conv1d else "tn"
        calls = (3 if conv1d else 4) + views  # view, (transposed weight,) product, view
        dtype, quant = self.formats.of(part)
        if bytes_of(dtype) < 2 and not self.fused:  # one scale a token; engines do it in the kernel before the product
            self.each(f"{name} quantize", "quantize", m * k, dtype=dtype, in_dtype=self.act, trainable=False)
        op = Gemm(dtype, m, n, k, 1, "linear", bias, layout, quant)
        self.nodes.append(Node(op, name, 1, FORWARD, calls, saved * self.keep))

    def bmm(
        self, name: str, batch: int, m: int, n: int, k: int, layout: str, saved: float = 0.0, calls: int = 6
    ) -> None:
        """``batch`` products of activations."""
        op = Gemm(self.high, m, n, k, batch, "bmm", False, layout)
        self.nodes.append(Node(op, name, 1, FORWARD, calls, saved * self.keep))

    def attend(self, name: str, op: Attention, saved: float = 0.0) -> None:
        """Fused attention as one kernel; of a ragged batch as one node for each length, which share that kernel."""
        parts = self.step.parts(op.q_len, op.kv_len, op.causal, op.window)
        for i, (batch, q_len, kv_len, share) in enumerate(parts):
            part = replace(op, batch=batch, q_len=q_len, kv_len=kv_len) if self.step.lens else op
            calls = 4 if i == 0 else 0
            self.nodes.append(Node(part, name, 1, FORWARD, calls, saved * self.keep, share=share))

    def over_ranks(self, name: str, kind: str, elements: int) -> None:
        """A collective on ``elements`` activations over the GPUs that share a layer; nothing where one has it all."""
        step = self.step
        if step.tp > 1 and step.system is not None:
            op = over(step.system, kind, self.act, round(elements * self.size), step.tp)
            self.nodes.append(Node(op, name, trainable=False))

    def each(
        self, name: str, fn: str, elements: int, inputs: int = -1, extra: float = 0.0, *, saved: float = 0.0,
        calls: int = 1, dtype: str = "", in_dtype: str = "", trainable: bool = True, grad: bool = True,
        flops: float = 0.0, count: int = 1, again: float = 0.0, reuse: float = 0.0, stride: float = 0.0,
    ) -> None:  # fmt: skip
        """An element-wise kernel of ``elements`` outputs; ``extra``, ``again``, ``reuse`` and ``stride`` in bytes."""
        op = Elementwise(dtype or self.act, fn, elements, inputs, extra, in_dtype, flops, grad, again, reuse, stride)
        self.nodes.append(Node(op, name, count, FORWARD, calls, saved * self.keep, trainable))

    def gradient(self, *ops: Op) -> None:
        """Operators that eager autograd runs beside those of the last node (`Node.grads`); a compiler fuses them."""
        if self.training and not self.fused and self.nodes:
            last = self.nodes[-1]
            self.nodes[-1] = replace(last, grads=(*last.grads, *ops))

    def keep_more(self, elements: float) -> None:
        """Autograd keeps ``elements`` more with the last node: what is used beside the layers' own tensors."""
        if self.nodes:
            last = self.nodes[-1]
            self.nodes[-1] = replace(last, saved_bytes=last.saved_bytes + elements * self.keep)

    def fork(self, elements: int, times: int = 1, dtype: str = "") -> None:
        """The input of the last node feeds ``times`` other nodes: their gradients are added up."""
        self.gradient(*(Elementwise(dtype or self.act, "add", elements) for _ in range(times)))

    def tiny(
        self, name: str, fn: str = "fill", elements: int = 1, dtype: str = "fp32", count: int = 1, calls: int = 1
    ) -> None:
        """A small kernel on indices or masks that no gradient flows through."""
        op = Elementwise(dtype, fn, elements)
        self.nodes.append(Node(op, name, count, FORWARD, calls, 0.0, False))

    def dropout(self, name: str, elements: int, probability: float, count: int = 1) -> None:
        """Dropout where it is active: eager inference launches nothing, but still calls."""
        if not self.training or probability <= 0.0:
            return
        saved = elements if self.keep else 0.0  # a mask of one byte an element
        self.nodes.append(Node(Dropout(self.act, elements), name, count, FORWARD, 1, saved))

    def norm(
        self, name: str, rows: int, cols: int, residual: bool = False, saved: bool = True, sum_kept: bool = True
    ) -> None:
        """Layer norm is one kernel; RMS norm is one when fused, else the chain that the Hugging Face class runs.

        ``residual``: the fused kernel adds a residual first, and writes the sum, too, where it is ``sum_kept``.
        """
        kind = self.config.norm
        if kind == "layer" or self.fused:
            op = Norm(self.act, rows, cols, kind, FORWARD, residual and self.fused, sum_kept)
            keep = rows * cols * self.keep + op.statistics_bytes if saved and self.training else 0.0
            self.nodes.append(Node(op, name, 1, FORWARD, 1, keep))
            return
        n, cast = rows * cols, self.act != "fp32"
        if cast:
            self.each(f"{name} to fp32", "cast", n, dtype="fp32", in_dtype=self.act)
        self.each(f"{name} square", "pow_scalar", n, dtype="fp32", saved=n * (4 / self.size))
        self.fork(n, dtype="fp32")  # with the scaled product
        self.nodes.append(Node(Reduce("fp32", rows, cols, 1), f"{name} mean"))
        self.each(f"{name} eps", "add_scalar", rows, dtype="fp32")
        self.each(f"{name} rsqrt", "rsqrt", rows, dtype="fp32", saved=rows * (4 / self.size))
        self.each(f"{name} scale", "mul", n, 1, rows * 4.0, dtype="fp32")
        self.gradient(Elementwise("fp32", "mul", n), Reduce("fp32", rows, cols, 1))
        if cast:
            self.each(f"{name} from fp32", "cast", n, in_dtype="fp32")
        if self.config.post_norms:  # Gemma multiplies by 1 + weight
            self.tiny(f"{name} weight plus one", "add_scalar", cols)
        kept = n * 4 / self.size if self.config.post_norms else n  # Gemma casts back after its product
        self.each(f"{name} weight", "mul", n, 1, cols * self.size, saved=kept)
        self.gradient(Elementwise(self.act, "mul", n), Reduce(self.act, rows, cols))

    def softmax(self, name: str, rows: int, cols: int, upcast: bool) -> None:
        """Softmax; ``upcast`` computes in fp32 and casts back where activations are narrower: both results are kept."""
        upcast = upcast and self.size < 4 and not self.fused
        kept = rows * cols * (4 if upcast else self.size) if self.training else 0.0
        self.nodes.append(Node(Softmax(self.act, rows, cols), name, 1, FORWARD, 1, kept))
        if upcast:
            self.each(f"{name} from fp32", "cast", rows * cols, in_dtype="fp32", saved=rows * cols)

    def residual(self, name: str, elements: int) -> None:
        """The residual sum; in fused form the next norm does it."""
        if not self.fused:
            self.each(name, "add", elements)
            self.fork(elements)

    def activation(self, name: str, n: int) -> None:
        """The activation function over ``n`` elements: one kernel, or the chain that eager PyTorch runs."""
        kind = self.config.activation
        if self.fused:
            self.each(name, "fused", n, 1, flops=_ACTIVATION_FLOPS.get(_KERNEL.get(kind, "gelu"), 10.0), saved=n)
        elif kind == "gelu_new":  # 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
            self.each(f"{name} half", "mul_scalar", n, saved=2 * n)  # x for the cube, and half of x
            self.fork(n, 2)
            self.each(f"{name} cube", "pow_scalar", n)
            self.each(f"{name} cube scale", "mul_scalar", n)
            self.each(f"{name} inner sum", "add", n)
            self.each(f"{name} inner scale", "mul_scalar", n)
            self.each(f"{name} tanh", "tanh", n, saved=n)
            self.each(f"{name} plus one", "add_scalar", n, saved=n)
            self.each(f"{name} product", "mul", n)
        elif kind == "gelu_bloom":  # x 0.5 (1 + tanh(0.79788456 x (1 + 0.044715 x x))), nine kernels
            for part in ("half", "scale", "cube scale"):
                self.each(f"{name} {part}", "mul_scalar", n, trainable=False)
            self.each(f"{name} square", "mul", n, trainable=False)
            self.each(f"{name} inner sum", "add_scalar", n, trainable=False)
            self.each(f"{name} inner", "mul", n, trainable=False)
            self.each(f"{name} tanh", "tanh", n, trainable=False)
            self.each(f"{name} plus one", "add_scalar", n, trainable=False)
            self.each(f"{name} product", "mul", n, saved=n)
        else:
            self.each(name, _KERNEL.get(kind, "gelu"), n, saved=0.0 if kind == "relu" else n)

    def gated_activation(self, name: str, n: int) -> None:
        """activation(gate) times up, over ``n`` outputs."""
        if self.fused:
            fn = "swiglu" if _KERNEL.get(self.config.activation) == "silu" else "geglu"
            self.each(name, fn, n, saved=2 * n)
            return
        self.activation(f"{name} gate", n)
        self.each(f"{name} product", "mul", n, saved=2 * n)
