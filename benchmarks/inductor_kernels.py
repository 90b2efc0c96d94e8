#!/usr/bin/env python3
"""Kernels that TorchInductor generates for small models on the CPU, beside those of the fused traced graph.

    benchmarks/inductor_kernels.py [NAME ...]

Loops that it schedules are counted, calls of libraries (products, convolutions, attention) left out of both. Its code
is made and not compiled, and convolutions keep the layout that they are given, as on a GPU for so few channels (on a
CPU it turns images and weights around first). Needs the extra torch; forward alone, with gradients off.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn
from torch.nn import functional as F

import predictor
from predictor.engines import engine
from predictor.models.built import Step
from predictor.passes.fuse import fuse
from predictor.passes.fuse_loops import is_loop


class Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


class Attend(nn.Module):
    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.fused = nn.Linear(width, 3 * width), nn.Linear(width, width), fused

    def forward(self, x: Any) -> Any:
        b, s, h = x.shape
        q, k, v = (t.view(b, s, 4, h // 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v
        return self.out(y.transpose(1, 2).reshape(b, s, h))


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Rotated(nn.Module):
    def forward(self, x: Any) -> Any:
        a, b = x.chunk(2, -1)
        table = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)[None, :, None]
        cos, sin = table.cos(), table.sin()
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def layer(norm: Any, fused: bool) -> nn.Module:
    return nn.Sequential(
        Residual(nn.Sequential(norm(64), Attend(64, fused))),
        Residual(nn.Sequential(norm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))),
    )


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))  # fmt: skip


TEXT = "fp32[2,16,64]"
#: Name -> what makes the module, and its input.
MODELS: dict[str, tuple[Any, str]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)), TEXT),
    "layer norm": (lambda: Residual(nn.LayerNorm(64)), TEXT),
    "rms norm": (lambda: Residual(nn.RMSNorm(64)), TEXT),
    "gated mlp": (lambda: Residual(nn.Sequential(nn.RMSNorm(64), Gated(64))), TEXT),
    "transformer layer": (lambda: layer(nn.LayerNorm, True), TEXT),
    "two layers": (lambda: nn.Sequential(layer(nn.RMSNorm, True), layer(nn.RMSNorm, True)), TEXT),
    "unfused attention": (lambda: Residual(Attend(64, False)), TEXT),
    "rotary": (Rotated, TEXT),
    "convolutions": (convolutions, "fp32[2,3,16,16]"),
    "softmax of sums": (lambda: nn.Sequential(nn.Linear(64, 64), nn.Softmax(-1), nn.LayerNorm(64), nn.Tanh()), TEXT),
}


def generated(make: Any, words: str) -> int:
    """Loops that Inductor schedules, each a kernel of a GPU, before code is made of them."""
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode, Scheduler

    from predictor.models.traced.inputs import inputs_of

    torch._dynamo.reset()
    (one,) = inputs_of(words)
    module = make().eval()
    counts: list[int] = []
    codegen, binding = Scheduler.codegen, AsyncCompile.cpp_pybinding

    def counted(self: Any) -> Any:
        counts.append(sum(not isinstance(n, ExternKernelSchedulerNode | NopKernelSchedulerNode) for n in self.nodes))
        return codegen(self)

    Scheduler.codegen, AsyncCompile.cpp_pybinding = counted, lambda *args, **kwargs: lambda *a: None
    try:
        with torch.no_grad(), config.patch(fx_graph_cache=False, compile_threads=1, layout_optimization=False):
            torch.compile(module, fullgraph=True)(torch.randn(one.shape))
    finally:
        Scheduler.codegen, AsyncCompile.cpp_pybinding = codegen, binding
    return sum(counts)


def forecast(make: Any, words: str) -> int:
    """Loops of the fused traced graph."""
    source = predictor.trace(make, words).source
    graph = source.record(Step("forward", act_dtype="fp32", attention="flash"), None).graph
    fused = fuse(graph, engine("compile"))
    return sum(int(times) for node, times in fused.nodes() if is_loop(node))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", default=list(MODELS), metavar="NAME", help=", ".join(MODELS))
    names = parser.parse_args().names
    print("| model | Inductor | traced and fused |\n|---|---|---|")
    same = 0
    for name in names:
        real, ours = generated(*MODELS[name]), forecast(*MODELS[name])
        same += real == ours
        print(f"| {name} | {real} | {ours} |", flush=True)
    print(f"\n{same} of {len(names)} alike")
    return 0


if __name__ == "__main__":
    sys.exit(main())
