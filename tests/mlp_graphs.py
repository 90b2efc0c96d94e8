"""A feed-forward written out by hand, forward and backward, for tests of passes over graphs with gradients.

x (b, h) -> norm -> W1 (f, h) -> gelu -> W2 (h, f) -> + x; with `joint`, the gradients of all of it from dz on.
"""

from __future__ import annotations

from predictor.graph import Block, Graph, Node, Tensor
from predictor.graph.tensor import WEIGHT
from predictor.ops import BACKWARD, Elementwise, Gemm, Norm

B, H, F = 32, 64, 256


def tensor(name: str, **axes: int) -> Tensor:
    return Tensor(name, tuple(axes), tuple(axes.values()), "bf16")


def weight(name: str, **axes: int) -> Tensor:
    return Tensor(name, tuple(axes), tuple(axes.values()), "bf16", WEIGHT)


def node(op: Gemm | Elementwise | Norm, name: str, *inputs: Tensor, out: Tensor | tuple[Tensor, ...]) -> Node:
    return Node(op, name, inputs, out if isinstance(out, tuple) else (out,))


def feed_forward(joint: bool = False, repeat: int = 1, batch: int = B) -> Graph:
    """The graph; `joint` adds the block of the gradients."""
    x, normed, z, y = (tensor(name, batch=batch, hidden=H) for name in ("x", "normed", "z", "y"))
    h, a = (tensor(name, batch=batch, mlp=F) for name in ("h", "a"))
    scale, up, down = weight("norm", hidden=H), weight("up", mlp=F, hidden=H), weight("down", hidden=H, mlp=F)
    forward = (
        node(Norm("bf16", batch, H, "rms"), "norm", x, scale, out=normed),
        node(Gemm("bf16", batch, F, H), "up", normed, up, out=h),
        node(Elementwise("bf16", "gelu", batch * F), "gelu", h, out=a),
        node(Gemm("bf16", batch, H, F), "down", a, down, out=y),
        node(Elementwise("bf16", "add", batch * H), "residual", x, y, out=z),
    )
    blocks = [Block("layer", forward, repeat, (x, z))]
    if joint:
        dz, dn, dx, dxs = (tensor(name, batch=batch, hidden=H) for name in ("dz", "dn", "dx of norm", "dx"))
        da, dh = (tensor(name, batch=batch, mlp=F) for name in ("da", "dh"))
        d_scale, d_up, d_down = tensor("dnorm", hidden=H), tensor("dup", mlp=F, hidden=H), tensor("dd", hidden=H, mlp=F)
        backward = (
            node(Gemm("bf16", batch, F, H, layout="nn"), "down", dz, down, out=da),
            node(Gemm("bf16", H, F, batch, layout="nt"), "down", dz, a, out=d_down),
            node(Elementwise("bf16", "gelu_backward", batch * F), "gelu", da, h, out=dh),
            node(Gemm("bf16", batch, H, F, layout="nn"), "up", dh, up, out=dn),
            node(Gemm("bf16", F, H, batch, layout="nt"), "up", dh, normed, out=d_up),
            node(Norm("bf16", batch, H, "rms", BACKWARD), "norm", dn, x, scale, out=(dx, d_scale)),
            node(Elementwise("bf16", "add", batch * H), "residual", dx, dz, out=dxs),
        )
        for gradient in backward:
            gradient.phase = BACKWARD
        blocks.append(Block("layer backward", backward, repeat, (dz, dxs)))
    return Graph(tuple(blocks))
