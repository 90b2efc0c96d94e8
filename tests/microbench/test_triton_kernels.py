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
import sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from microbench import rocm, sweep
from microbench.capability import gpu_target
from microbench.launchers.tile import WRITTEN, options, parse_tile
from microbench.launchers.tile_kernel import gemm_tile
from predictor.hardware.gpu import load_gpu
board = load_gpu(sys.argv[1])
target = gpu_target(board)
gfx = target.gfx
named = {"tf32": "fp32", "fp8": "fp8e4b8" if gfx == "gfx942" else "fp8e4nv"}
room = rocm.INSTRUCTION_SETS[gfx].lds_bytes if gfx else board.shared_memory_per_block_bytes
major, minor = target.capability
asked = GPUTarget("hip", gfx, 64) if gfx else GPUTarget("cuda", 10 * major + minor, 32)
names = gemm_tile.arg_names
cases = sweep.build(target, ("tile",), sys.argv[2].split(",")).cases
variants = {(case.op.dtype, str(case.option("tile"))): case for case in cases}
for (dtype, tile), case in variants.items():
    written = WRITTEN.get(dtype, dtype)
    kinds = [named.get(dtype, dtype), named.get(dtype, dtype), named.get(written, written)]
    sides = parse_tile(tile)
    constants = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), sides)) | {"TF32": dtype == "tf32"}
    signature = {name: f"*{kind}" for name, kind in zip(names, kinds)} | {name: "i32" for name in names[3:5]}
    whole = {(place,): [["tt.divisibility", 16]] for place in range(5)}  # as the launcher's operands are
    source = ASTSource(
        gemm_tile, signature | dict.fromkeys(constants, "constexpr"),
        {(names.index(name),): value for name, value in constants.items()}, whole,
    )
    made = compile(source, target=asked, options=options(sides, int(case.op.itemsize), gfx))
    assert made.metadata.shared <= room, (dtype, tile, made.metadata.shared)
    text = made.asm["amdgcn" if gfx else "ptx"]
    products = "mfma" if gfx else {9: "wgmma", 10: "tcgen05"}.get(major, "mma.sync")
    # mma.sync in their place: of tiles with fewer rows than a warp group's product (64), and where Triton takes it on
    # compute capability 10
    mma = "mma.sync" in text and (products == "tcgen05" or sides[0] < 64)
    assert products in text or mma, (dtype, tile)
    print(dtype, tile, made.metadata.shared)
"""
#: A board of every instruction set: sm_80, sm_89, sm_90, sm_100, sm_120, gfx942 and gfx950.
BOARDS = ("a100-sxm-80gb", "rtx-4090", "h100-sxm", "b200-sxm", "rtx-5090", "mi300x", "mi355x")


def run(program: str, tmp_path: Path, *arguments: str, **variables: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
           "TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1", **variables}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@needs_triton
def test_the_interpreter_computes_what_torch_does(tmp_path: Path) -> None:
    assert run(INTERPRETED, tmp_path, TRITON_INTERPRET="1") == "same\n"


@needs_triton
@pytest.mark.parametrize("board", BOARDS)
def test_every_tile_probe_compiles_and_fits_without_a_gpu(board: str, tmp_path: Path) -> None:
    """All variants of the sweep, with what the launcher asks of the compiler, in bf16, tf32 and fp8 (fp16 is the same
    code as bf16)."""
    lines = run(COMPILED, tmp_path, board, "bf16,tf32,fp8").splitlines()
    kinds = [line.split()[0] for line in lines]
    bf16, tf32, fp8 = (kinds.count(name) for name in ("bf16", "tf32", "fp8"))
    assert bf16 == 12 and fp8 == (0 if board == "a100-sxm-80gb" else 12)
    assert tf32 == {"mi300x": 9, "mi355x": 0}.get(board, 12)  # three exceed 64 KiB; gfx950 has none
