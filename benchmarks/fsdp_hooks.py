#!/usr/bin/env python3
"""What FSDP's hooks cost the host, in framework calls, measured on this machine's CPU.

usage: benchmarks/fsdp_hooks.py [--repeats 60]

Units of a few tiny weights run with and without `fully_shard`, on a process group that sends nothing; what the hooks
take longer, a unit, is given in calls of a module that autograd records, measured in turn with them. CPU time of the
fastest repeat of each. Two sizes of a unit give the part that each weight adds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

UNITS, CALLS, WIDTH = 16, 100, 8


class Products(nn.Module):
    """Weights of a unit, one product each."""

    def __init__(self, weights: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(weights))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x @ weight
        return x


def both_ways(model: nn.Module, x: torch.Tensor) -> tuple[float, float]:
    """CPU seconds of a forward and of a backward pass."""
    began = time.process_time()
    out = model(x).sum()
    between = time.process_time()
    out.backward()
    ended = time.process_time()
    for weight in model.parameters():
        weight.grad = None
    return between - began, ended - between


def least(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The fastest of each way."""
    return min(row[0] for row in rows), min(row[1] for row in rows)


def measured(weights: int, repeats: int) -> tuple[float, float]:
    """Calls that the hooks of a unit of so many weights take as long as, forward and backward."""
    mesh = init_device_mesh("cpu", (8,))
    plain, sharded = (nn.Sequential(*(Products(weights) for _ in range(UNITS))) for _ in range(2))
    for unit in sharded:
        fully_shard(unit, mesh=mesh)
    calls = nn.Sequential(*(nn.Tanh() for _ in range(CALLS)))
    x = torch.randn(4, WIDTH, requires_grad=True)
    rows = [(both_ways(plain, x), both_ways(sharded, x), both_ways(calls, x)) for _ in range(repeats)]
    bare, hooked, called = (least([row[i] for row in rows]) for i in range(3))
    found = [(hooked[way] - bare[way]) / UNITS / (called[way] / CALLS) for way in (0, 1)]
    print(f"{weights} weights: {found[0]:.0f} calls forward, {found[1]:.0f} backward; a call {called[0] / CALLS:.2e} s")
    return found[0], found[1]


def main() -> None:
    """Prints the two sizes, and the line through them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    few, many = 2, 12
    small, large = measured(few, arguments.repeats), measured(many, arguments.repeats)
    for name, a, b in zip(("forward", "backward"), small, large, strict=True):
        each = (b - a) / (many - few)
        print(f"{name}: {a - few * each:.0f} calls a unit, {each:.1f} a weight (PyTorch {torch.__version__})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
