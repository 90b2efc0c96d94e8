"""Collectives of torch.distributed, a process a rank: NCCL between GPUs, gloo between processes without.

``size`` is bytes of the full buffer (`predictor.ops.collective`): an all_gather's output, a reduce_scatter's input,
what an all_to_all sends. "send_recv" is a message from the first rank to the last: the others have nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from microbench.case import Case
from microbench.devices.base import TORCH_DTYPES, BenchDevice, Launch
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from microbench.ranks import control
from predictor.ops import Collective

_CHECKED = 65536  # elements held against the reference: chosen by hand, not from data


@dataclass(frozen=True, slots=True)
class Buffers:
    """This rank's part and the whole, of random values; ``count`` elements are a rank's."""

    own: torch.Tensor
    whole: torch.Tensor
    count: int


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Collective)
    agreement = control()
    if agreement is None or agreement.ranks != op.ranks:
        raise IllegalCase(f"{op.ranks} ranks need as many processes, each with a device of its own")
    make = _CALLS.get(op.kind)
    if make is None:
        raise IllegalCase(f"no launch for the collective {op.kind!r}")
    count = max(1, op.size // TORCH_DTYPES[op.dtype].itemsize // op.ranks)
    whole = device.randn(count * op.ranks, dtype=op.dtype)
    buffers = Buffers(whole[agreement.rank * count :][:count].clone(), whole, count)
    launch, reference = make(buffers, agreement.rank, op.ranks)

    def check() -> float:
        got, want = reference()
        error = relative_error(got[:_CHECKED], want[:_CHECKED]) if got.numel() else 0.0
        return agreement.most(error)

    return Prepared(launch, check, kernel_source="nccl" if device.kind == "cuda" else "gloo")


Made = tuple[Launch, Callable[[], tuple[torch.Tensor, torch.Tensor]]]


def _gathered(buffer: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    """Every rank's tensor, by a way of its own: through the host."""
    agreement = control()
    assert agreement is not None
    mine = buffer.detach().float().cpu()
    received = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(received, mine, group=agreement.group)
    return received


def _all_reduce(buffers: Buffers, rank: int, ranks: int) -> Made:
    vector = buffers.whole
    given = vector.clone()

    def reference() -> tuple[torch.Tensor, torch.Tensor]:
        vector.copy_(given)
        want = torch.stack(_gathered(given, ranks)).double().sum(0)
        dist.all_reduce(vector)
        got = vector.clone()
        vector.copy_(given)
        return got, want

    # Sums of sums would run out of the dtype's range after a few hundred launches: the mean stays where it is.
    operation = dist.ReduceOp.AVG if vector.is_cuda else dist.ReduceOp.MAX
    return lambda: dist.all_reduce(vector, operation), reference


def _all_gather(buffers: Buffers, rank: int, ranks: int) -> Made:
    out = torch.empty_like(buffers.whole)

    def reference() -> tuple[torch.Tensor, torch.Tensor]:
        dist.all_gather_into_tensor(out, buffers.own)
        return out, torch.cat(_gathered(buffers.own, ranks))

    return lambda: dist.all_gather_into_tensor(out, buffers.own), reference


def _reduce_scatter(buffers: Buffers, rank: int, ranks: int) -> Made:
    out = torch.empty_like(buffers.own)

    def reference() -> tuple[torch.Tensor, torch.Tensor]:
        dist.reduce_scatter_tensor(out, buffers.whole)
        total = torch.stack(_gathered(buffers.whole, ranks)).double().sum(0)
        return out, total[rank * buffers.count :][: buffers.count]

    return lambda: dist.reduce_scatter_tensor(out, buffers.whole), reference


def _all_to_all(buffers: Buffers, rank: int, ranks: int) -> Made:
    out = torch.empty_like(buffers.whole)

    def reference() -> tuple[torch.Tensor, torch.Tensor]:
        dist.all_to_all_single(out, buffers.whole)
        parts = [from_rank[rank * buffers.count :][: buffers.count] for from_rank in _gathered(buffers.whole, ranks)]
        return out, torch.cat(parts)

    return lambda: dist.all_to_all_single(out, buffers.whole), reference


def _broadcast(buffers: Buffers, rank: int, ranks: int) -> Made:
    vector = buffers.whole

    def reference() -> tuple[torch.Tensor, torch.Tensor]:
        want = _gathered(vector, ranks)[0]
        dist.broadcast(vector, 0)
        return vector, want

    return lambda: dist.broadcast(vector, 0), reference


def _send_recv(buffers: Buffers, rank: int, ranks: int) -> Made:
    """Ends of the line alone; a rank between them keeps its device busy with nothing that counts."""
    vector, last = buffers.whole, ranks - 1

    def launch() -> None:
        if rank == 0:
            dist.send(vector, last)
        elif rank == last:
            dist.recv(vector, 0)
        else:
            vector[:1].mul_(1.0)

    def reference() -> tuple[torch.Tensor, torch.Tensor]:
        want = _gathered(vector, ranks)[0]
        launch()
        return (vector, want) if rank == last else (vector[:0], want[:0])

    return launch, reference


_CALLS: dict[str, Callable[[Buffers, int, int], Made]] = {
    "all_reduce": _all_reduce, "all_gather": _all_gather, "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all, "broadcast": _broadcast, "send_recv": _send_recv,
}  # fmt: skip
