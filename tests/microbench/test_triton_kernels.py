"""The harness's own Triton kernel, where Triton is installed: interpreted beside torch, and compiled for GPUs.

The CPU build of torch brings no Triton (pip install triton; 1 GB unpacked), and no GPU is needed for either.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install triton"
)
ROOT = Path(__file__).resolve().parents[2]
INTERPRETED = """
import torch
from microbench.launchers.tile_kernel import gemm_tile
torch.manual_seed(0)
for m, n, k, dtype, blocks in ((64, 64, 96, torch.float32, (32, 32, 32)), (32, 128, 64, torch.float16, (16, 64, 16))):
    a, b, c = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype), torch.empty(m, n, dtype=dtype)
    gemm_tile[(n // blocks[1], m // blocks[0])](
        a, b, c, n, k, BLOCK_M=blocks[0], BLOCK_N=blocks[1], BLOCK_K=blocks[2], TF32=False, num_warps=4, num_stages=2
    )
    error = (c.double() - a.double() @ b.double().t()).abs().max().item()
    assert error < 1e-2 * k**0.5, error
print("same")
"""
COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from microbench.launchers.tile_kernel import gemm_tile
names = gemm_tile.arg_names
for capability in (80, 90, 100):
    for kind in ("bf16", "fp32"):
        signature = {name: f"*{kind}" for name in names[:3]} | {name: "i32" for name in names[3:5]}
        blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "TF32": kind == "fp32"}
        constants = {(names.index(name),): value for name, value in blocks.items()}
        source = ASTSource(gemm_tile, signature | dict.fromkeys(blocks, "constexpr"), constants)
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
        text = made.asm["ptx"]
        assert f".target sm_{capability}" in text and made.asm["cubin"]
        products = {80: "mma.sync", 90: "wgmma", 100: "tcgen05"}[capability]
        assert products in text, (capability, kind)
        print(capability, kind, products)
"""


def run(program: str, tmp_path: Path, **variables: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
           "TRITON_CACHE_DIR": str(tmp_path), **variables}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@needs_triton
def test_the_interpreter_computes_what_torch_does(tmp_path: Path) -> None:
    assert run(INTERPRETED, tmp_path, TRITON_INTERPRET="1") == "same\n"


@needs_triton
def test_it_compiles_for_every_generation(tmp_path: Path) -> None:
    assert len(run(COMPILED, tmp_path).splitlines()) == 6
