"""The Triton kernel of the tile probes. Imported only where Triton is installed and a GPU is there."""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def gemm_tile(a, b, c, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TF32: tl.constexpr):
    """One program computes one BLOCK_M x BLOCK_N tile of C = A B^T; A (m, k), B (n, k), C (m, n), all row-major."""
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_at = a + rows[:, None].to(tl.int64) * k + depth[None, :]
    b_at = b + columns[None, :].to(tl.int64) * k + depth[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, k, BLOCK_K):
        total = tl.dot(tl.load(a_at), tl.load(b_at), total, input_precision="tf32" if TF32 else "ieee")
        a_at += BLOCK_K
        b_at += BLOCK_K
    tl.store(c + rows[:, None].to(tl.int64) * n + columns[None, :], total.to(c.dtype.element_ty))
