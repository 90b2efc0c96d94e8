"""Collectives over the GPUs that this process sees, by NCCL from one process; "send_recv" is a copy between two.

``size`` is bytes of the full buffer (`predictor.ops.collective`): an all_gather's output, a reduce_scatter's input.
"""

from __future__ import annotations

import torch

from microbench.case import Case
from microbench.devices.base import TORCH_DTYPES, Device
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from predictor.ops import Collective


def prepare(case: Case, device: Device) -> Prepared:
    op = case.op
    assert isinstance(op, Collective)
    if device.kind != "cuda" or torch.cuda.device_count() < op.ranks:
        raise IllegalCase(f"{op.ranks} ranks need as many GPUs")
    from torch.cuda import nccl

    kind = TORCH_DTYPES[op.dtype]
    count = max(1, op.size // kind.itemsize)
    if op.kind in ("all_gather", "reduce_scatter"):
        count = max(1, count // op.ranks)  # the share of one rank
    ranks = range(op.ranks)
    inputs = [torch.randn(count, device=f"cuda:{rank}").to(kind) for rank in ranks]
    if op.kind == "all_reduce":
        outputs = [torch.empty_like(x) for x in inputs]

        def check() -> float:
            nccl.all_reduce(inputs, outputs)
            for rank in ranks:
                torch.cuda.synchronize(rank)
            return relative_error(outputs[0], torch.stack([x.double().cpu() for x in inputs]).sum(0))

        return Prepared(lambda: nccl.all_reduce(inputs, outputs), check, kernel_source="nccl")
    if op.kind == "all_gather":
        gathered = [torch.empty(count * op.ranks, dtype=kind, device=x.device) for x in inputs]
        return Prepared(lambda: nccl.all_gather(inputs, gathered), None, kernel_source="nccl")
    if op.kind == "reduce_scatter":
        whole = [torch.randn(count * op.ranks, device=x.device).to(kind) for x in inputs]
        return Prepared(lambda: nccl.reduce_scatter(whole, inputs), None, kernel_source="nccl")
    if op.kind == "broadcast":
        return Prepared(lambda: nccl.broadcast(inputs), None, kernel_source="nccl")
    if op.kind == "send_recv":
        return Prepared(lambda: inputs[1].copy_(inputs[0], non_blocking=True), None, kernel_source="peer_copy")
    raise IllegalCase(f"no launch for the collective {op.kind!r}")
