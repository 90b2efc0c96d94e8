"""Matrix products through PyTorch: F.linear, torch.bmm, torch._scaled_mm (fp8) and grouped products.

Shapes: A (batch, m, k), B (batch, k, n), C (batch, m, n). Layout, in BLAS words: "tn" B is stored as (n, k), as the
weight of a linear layer; "nn" both row-major; "nt" A is stored as (k, m), as in a weight gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as functional

from microbench.case import Case
from microbench.devices.base import TORCH_DTYPES, BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error, some_rows
from predictor.ops import Gemm


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Gemm)
    if op.dtype == "fp8":
        return _fp8(op, device)
    if op.kind == "grouped":
        return _grouped(op, device, str(case.option("impl", "loop")))
    if op.kind == "bmm" or op.batch > 1:
        return _bmm(op, device)
    return _linear(op, device)


def _operands(op: Gemm, device: BenchDevice, batch: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B as (..., m, k) and (..., k, n) views of memory that lies as the layout says."""
    a_shape = (op.k, op.m) if op.layout == "nt" else (op.m, op.k)
    b_shape = (op.n, op.k) if op.layout == "tn" else (op.k, op.n)
    a = device.randn(*batch, *a_shape, dtype=op.dtype)
    b = device.randn(*batch, *b_shape, dtype=op.dtype, scale=op.k**-0.5)
    return (a.mT if op.layout == "nt" else a), (b.mT if op.layout == "tn" else b)


def _row_check(
    launch: Callable[[], torch.Tensor], a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None
) -> Callable[[], float]:
    """Compares up to 32 rows of every 64th product at most with the float64 product of the same operands."""

    def check() -> float:
        result = launch()
        got, left, right = (t if t.dim() == 3 else t.unsqueeze(0) for t in (result, a, b))
        products = some_rows(got.shape[0], 4)
        rows = some_rows(got.shape[1]).to(a.device)
        worst = 0.0
        for product in products.tolist():
            want = left[product].index_select(0, rows).double() @ right[product].double()
            if bias is not None:
                want = want + bias.double()
            worst = max(worst, relative_error(got[product].index_select(0, rows), want))
        return worst

    return check


def _linear(op: Gemm, device: BenchDevice) -> Prepared:
    a, b = _operands(op, device, ())
    bias = device.randn(op.n, dtype=op.dtype) if op.bias else None

    second = b.mT if op.layout == "tn" else b
    if op.layout == "tn":

        def launch(second: torch.Tensor = second) -> torch.Tensor:
            return functional.linear(a, second, bias)

    else:

        def launch(second: torch.Tensor = second) -> torch.Tensor:
            return torch.mm(a, second) if bias is None else torch.addmm(bias, a, second)

    return Prepared(launch, _row_check(launch, a, b, bias), held=(second,))


def _bmm(op: Gemm, device: BenchDevice) -> Prepared:
    if op.bias:
        raise IllegalCase("a batched product has no bias")
    a, b = _operands(op, device, (op.batch,))
    return Prepared(lambda: torch.bmm(a, b), _row_check(lambda: torch.bmm(a, b), a, b))


def _fp8(op: Gemm, device: BenchDevice) -> Prepared:
    """A row-major, B column-major, a scale for each tensor; bf16 out of fast accumulation, as inference has it."""
    if op.layout != "tn" or op.batch != 1 or op.kind != "linear":
        raise IllegalCase("torch._scaled_mm takes one product in layout tn")
    if op.k % 16 or op.n % 16:
        raise IllegalCase("torch._scaled_mm needs k and n in multiples of 16")
    a = device.randn(op.m, op.k, dtype="fp8")
    b = device.randn(op.n, op.k, dtype="fp8").t()
    unit_scale = torch.ones((), dtype=torch.float32, device=device.torch_device)
    bias = device.randn(op.n, dtype="bf16") if op.bias else None

    def launch(b: torch.Tensor = b) -> torch.Tensor:
        return torch._scaled_mm(
            a, b, scale_a=unit_scale, scale_b=unit_scale, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=True
        )  # fmt: skip

    def check() -> float:
        rows = some_rows(op.m).to(a.device)
        want = a.to(torch.float32).index_select(0, rows).double() @ b.to(torch.float32).double()
        result = launch()
        got: torch.Tensor = result[0] if isinstance(result, tuple) else result  # PyTorch 2.4 returns amax beside it
        return relative_error(got.index_select(0, rows), want + (0.0 if bias is None else bias.double()))

    return Prepared(launch, check, kernel_source="scaled_mm", held=(b,))


def _grouped(op: Gemm, device: BenchDevice, implementation: str) -> Prepared:
    """``batch`` groups of m rows each, one B a group: the expert GEMMs of one GPU."""
    if op.bias:
        raise IllegalCase("a grouped product has no bias here")
    a = device.randn(op.batch * op.m, op.k, dtype=op.dtype)
    weights = device.randn(op.batch, op.n, op.k, dtype=op.dtype, scale=op.k**-0.5)
    b = weights.mT  # (batch, k, n)
    if implementation == "grouped_mm":
        grouped = getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
        if grouped is None:
            raise IllegalCase("this PyTorch has no grouped_mm")
        ends = torch.arange(1, op.batch + 1, device=a.device, dtype=torch.int32) * op.m

        def launch(b: torch.Tensor = b) -> torch.Tensor:
            return grouped(a, b, offs=ends)

    else:
        out = torch.empty(op.batch * op.m, op.n, dtype=TORCH_DTYPES[op.dtype], device=a.device)
        rows = list(zip(a.split(op.m), out.split(op.m), strict=True))

        def launch(b: torch.Tensor = b) -> torch.Tensor:
            for (left, into), right in zip(rows, b, strict=True):
                torch.mm(left, right, out=into)
            return out

    def shaped() -> torch.Tensor:
        return launch().view(op.batch, op.m, op.n)

    return Prepared(launch, _row_check(shaped, a.view(op.batch, op.m, op.k), b), kernel_source=implementation,
                    held=(b,))  # fmt: skip
