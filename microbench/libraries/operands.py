"""Operands of serving kernels, and what they have to give: paged caches, ragged batches, quantized products.

Shapes: tokens of all sequences lie one behind the other, (tokens, heads, width); a cache is (pages, page, heads,
width), and a sequence's pages lie anywhere in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from predictor.ops import Attention, Gemm, MoE

PAGE = 16  # tokens of a page. Source: vLLM's default on CUDA, config/cache.py of 0.14 to 0.24
FP8_LARGEST, FP4_LARGEST = 448.0, 6.0  # of E4M3 and E2M1, by definition
BLOCK = 128  # sides of what shares a scale, by definition of fp8_block in predictor.formats.quantization


def bf16(device: Any, *shape: int, scale: float = 1.0) -> torch.Tensor:
    made: torch.Tensor = device.randn(*shape, dtype="bf16", scale=scale)
    return made


def ints(device: Any, values: torch.Tensor | list[int], kind: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.as_tensor(values).to(kind).to(device.torch_device)


def starts(device: Any, batch: int, length: int) -> torch.Tensor:
    """Where each of ``batch`` sequences begins, and the end: (batch + 1,)."""
    return ints(device, torch.arange(batch + 1) * length)


@dataclass(slots=True)
class Ragged:
    """Queries, keys and values of sequences of one length."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_starts: torch.Tensor
    k_starts: torch.Tensor

    @staticmethod
    def of(op: Attention, device: Any) -> Ragged:
        dtype = op.dtype
        q = device.randn(op.batch * op.q_len, op.heads, op.head_dim, dtype=dtype)
        k = device.randn(op.batch * op.kv_len, op.kv_heads, op.head_dim, dtype=dtype)
        v = device.randn(op.batch * op.kv_len, op.kv_heads, op.value_dim, dtype=dtype)
        return Ragged(q, k, v, starts(device, op.batch, op.q_len), starts(device, op.batch, op.kv_len))

    def reference(self, op: Attention) -> torch.Tensor:
        return attention(op, self.q, self.k, self.v)


@dataclass(slots=True)
class Paged:
    """Queries, and a cache whose pages are mixed up; latent attention's has one vector for keys and values."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_starts: torch.Tensor
    table: torch.Tensor  # (batch, pages of a sequence)
    lengths: torch.Tensor  # (batch,)
    page: int

    @staticmethod
    def of(op: Attention, device: Any, page: int = PAGE) -> Paged:
        each = -(-op.kv_len // page)
        q = device.randn(op.batch * op.q_len, op.heads, op.head_dim, dtype=op.dtype)
        k = device.randn(op.batch * each, page, op.kv_heads, op.head_dim, dtype=op.dtype)
        v = k[..., : op.value_dim] if op.shared_kv else device.randn(*k.shape[:3], op.value_dim, dtype=op.dtype)
        order = torch.randperm(op.batch * each, generator=torch.Generator().manual_seed(op.kv_len))
        table = ints(device, order.view(op.batch, each))
        lengths = ints(device, torch.full((op.batch,), op.kv_len))
        return Paged(q, k, v, starts(device, op.batch, op.q_len), table, lengths, page)

    @property
    def page_starts(self) -> torch.Tensor:
        """Of `table` laid flat: (batch + 1,)."""
        batch, each = self.table.shape
        return torch.arange(batch + 1, dtype=torch.int32, device=self.table.device) * each

    def last_page(self, op: Attention) -> torch.Tensor:
        """Tokens of every sequence's last page."""
        return torch.full_like(self.lengths, (op.kv_len - 1) % self.page + 1)

    def reference(self, op: Attention) -> torch.Tensor:
        def laid_out(cache: torch.Tensor) -> torch.Tensor:
            rows = cache[self.table.long()].flatten(1, 2)[:, : op.kv_len]  # (batch, kv_len, heads, width)
            return rows.flatten(0, 1)

        return attention(op, self.q, laid_out(self.k), laid_out(self.v))


def attention(op: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)) v of every sequence in float64; the last query sees all, or the last ``window`` keys."""
    group = op.heads // op.kv_heads
    q = q.double().view(op.batch, op.q_len, op.heads, -1).transpose(1, 2)
    k, v = (x.double().view(op.batch, op.kv_len, op.kv_heads, -1).transpose(1, 2) for x in (k, v))
    scores = q @ k.repeat_interleave(group, 1).mT * op.head_dim**-0.5
    at = torch.arange(op.q_len, device=q.device).view(-1, 1) + op.kv_len - op.q_len
    keys = torch.arange(op.kv_len, device=q.device).view(1, -1)
    hidden = (keys > at) if op.causal else torch.zeros_like(at > keys)
    if op.window:
        hidden = hidden | (keys <= at - op.window)
    out = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v.repeat_interleave(group, 1)
    return out.transpose(1, 2).reshape(op.batch * op.q_len, op.heads, -1)


def window(op: Attention) -> tuple[int, int]:
    """(left, right) as FlashAttention counts: neighbours beside a query's own position, -1 for all."""
    return (op.window - 1, 0) if op.window else (-1, -1)


# ------------------------------------------------------------------------------------------------------------ products


def product(op: Gemm, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations (m, k) and weights (n, k), bf16."""
    return bf16(device, op.m, op.k), bf16(device, op.n, op.k, scale=op.k**-0.5)


def fp8_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in E4M3, and their scales (rows, 1)."""
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-6) / FP8_LARGEST
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


def fp8_blocks(x: torch.Tensor, whole: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(..., n, k) in E4M3, and the scales of its blocks of 128 by 128; ``whole``: powers of two, as UE8M0 has."""
    n, k = x.shape[-2:]
    blocks = x.float().unflatten(-1, (k // BLOCK, BLOCK)).unflatten(-3, (n // BLOCK, BLOCK))
    scale = blocks.abs().amax((-3, -1), keepdim=True).clamp(min=1e-6) / FP8_LARGEST
    scale = scale.log2().ceil().exp2() if whole else scale
    small = (blocks / scale).to(torch.float8_e4m3fn).flatten(-2, -1).flatten(-3, -2)
    return small.contiguous(), scale.squeeze(-1).squeeze(-2)


def fp4_scale(x: torch.Tensor) -> torch.Tensor:
    """nvfp4's scale of a whole tensor: what brings its largest value to the end of both formats."""
    return FP8_LARGEST * FP4_LARGEST / x.float().abs().amax()


# ------------------------------------------------------------------------------------------------------------- experts


def picked(op: MoE, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts of every token in turn, int32 (tokens, top_k), and their weights, fp32."""
    ids = ints(device, torch.arange(op.tokens * op.top_k).view(op.tokens, op.top_k) % op.experts)
    return ids, torch.full(ids.shape, 1.0 / op.top_k, dtype=torch.float32, device=ids.device)


def experts(
    x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Gated experts in float64: ``up`` (experts, 2 * width, hidden) has the gate's rows first."""
    x, up, down = x.double(), up.double(), down.double()
    out = torch.zeros_like(x)
    for choice in range(ids.shape[1]):
        chosen = ids[:, choice].long()
        gate, value = torch.einsum("th,tgh->tg", x, up[chosen]).chunk(2, -1)
        hidden = torch.nn.functional.silu(gate) * value
        out += weights[:, choice, None].double() * torch.einsum("tg,thg->th", hidden, down[chosen])
    return out
