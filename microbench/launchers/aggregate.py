"""Message passing over a graph: rows of the sources summed by the targets of edges, as a sparse product (SpMM, CSR)."""

from __future__ import annotations

import warnings

import torch

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from microbench.launchers.embedding_bag import picks
from predictor.ops import Aggregate

_CHECKED = 16  # targets held against the reference: chosen by hand, not from data


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Aggregate)
    if op.heads != 1 or op.phase != "forward":
        raise IllegalCase("the sparse product of one head, forward: no other has a launch")
    column = picks(device, op.edges, op.sources, op.skew)
    row = (torch.arange(op.edges, device=column.device) * op.nodes) // op.edges  # as many edges a target, in order
    counts = torch.bincount(row, minlength=op.nodes)
    start = torch.cat([torch.zeros_like(counts[:1]), counts.cumsum(0)])
    kind = device.randn(1, dtype=op.dtype)
    weight = device.randn(op.edges, dtype=op.dtype) if op.weighted else torch.ones_like(kind).expand(op.edges).clone()
    with warnings.catch_warnings():  # that the layout is in beta
        warnings.simplefilter("ignore", UserWarning)
        matrix = torch.sparse_csr_tensor(start, column, weight, (op.nodes, op.sources))
    table = device.randn(op.sources, op.width, dtype=op.dtype)

    def check() -> float:
        last = min(_CHECKED, op.nodes)
        edges = int(start[last])
        want = torch.zeros(last, op.width, dtype=torch.float64, device=table.device)
        want.index_add_(0, row[:edges], table[column[:edges]].double() * weight[:edges, None].double())
        return relative_error((matrix @ table)[:last], want)

    return Prepared(lambda: matrix @ table, check, kernel_source="csr")
