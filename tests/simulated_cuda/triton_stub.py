"""A stub of Triton for the harness's own kernel: arguments are held to what the compiler asks, the result computed."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import torch

from simulated_cuda.board import Kernel
from simulated_cuda.tensors import RATES, on_board

KERNELS = "microbench.launchers.tile_kernel"


class OutOfResources(Exception):
    """Triton's own name for a tile that is too large."""


class Jit:
    """A kernel: `kernel[grid](*arguments, **constants)`."""

    def __init__(self, function: Any, installed: Any) -> None:
        self.function, self.installed = function, installed

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **constants: self.run(grid, *arguments, **constants)

    def run(
        self, grid: tuple[int, ...], a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, n: int, k: int, *, BLOCK_M: int,
        BLOCK_N: int, BLOCK_K: int, TF32: bool, num_warps: int, num_stages: int,
    ) -> None:  # fmt: skip
        assert self.function.__name__ == "gemm_tile" and all(on_board(x) for x in (a, b, c))
        assert all(side >= 16 and side & (side - 1) == 0 for side in (BLOCK_M, BLOCK_N, BLOCK_K)), "powers of two"
        assert num_warps in (1, 2, 4, 8, 16) and a.is_contiguous() and b.is_contiguous() and c.is_contiguous()
        assert k % BLOCK_K == 0 and grid == (n // BLOCK_N, c.shape[0] // BLOCK_M) and b.shape == (n, k)
        board = self.installed.board
        kept = num_stages - 1 if board.gfx else num_stages  # AMD's compiler holds the last stage in registers
        if kept * (BLOCK_M + BLOCK_N) * BLOCK_K * a.element_size() > board.shared_bytes:
            raise OutOfResources("out of resource: shared memory")
        with self.installed.kernels.off():
            c.copy_((a.float() @ b.float().t()).to(c.dtype))
        touched = tuple((x.untyped_storage()._cdata, x.numel() * x.element_size()) for x in (a, b, c))
        rate = board.rate * (494.7e12 if TF32 else RATES[a.dtype])
        self.installed.runtime.launch(Kernel("gemm_tile", 2.0 * c.numel() * k, rate, touched))


def install(installed: Any) -> None:
    """The harness's kernel as the stub compiles it. PyTorch, which looks for more, never sees the stub."""
    triton, language = types.ModuleType("triton"), types.ModuleType("triton.language")
    triton.__dict__.update(jit=lambda function: Jit(function, installed), language=language)
    language.__dict__.update(constexpr=int)
    known = {name: sys.modules.get(name) for name in ("triton", "triton.language")}
    sys.modules.update({"triton": triton, "triton.language": language})
    sys.modules.pop(KERNELS, None)
    try:
        kernels = importlib.import_module(KERNELS)
    finally:
        for name, module in known.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module
    from microbench.devices import cuda
    from microbench.launchers import tile

    installed.put(tile, "_kernel", kernels.gemm_tile)
    installed.put(cuda, "has_triton", lambda: True)
    sys.modules.pop(KERNELS)
