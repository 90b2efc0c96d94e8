"""The process that times framework calls on the host: what `microbench launch-overhead` asks.

A model in eager execution is a row of framework calls: Python, dispatch, allocation, launch. Each kind of call is made
many times in a row on operands so small that the work is next to nothing, and the host's clock is read around them. On
a GPU the launches are asynchronous: nothing waits inside the time, and a batch is shorter than the driver's queue
(about 1,024 launches), so that a host which is ahead of the GPU is never held up by it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from microbench import worker
from microbench.devices.base import BenchDevice, Launch

#: Calls of one batch: many enough for the clock, and with room to spare in the queue where a call launches two kernels
#: (about 1,024 fit). These three were chosen by hand, not from data.
BATCH = 200
_MIN_BATCHES = 5
_WIDTH = 32  # of the operands: next to no work


def framework_calls(device: BenchDevice) -> dict[str, Launch]:
    """The kinds of calls that a transformer's forward pass is made of, views included, on tiny fp32 operands."""
    x, y = device.randn(1, _WIDTH), device.randn(1, _WIDTH)
    heads = device.randn(2, 4, 4)
    linear = nn.Linear(_WIDTH, _WIDTH).to(device.torch_device)
    norm = nn.LayerNorm(_WIDTH).to(device.torch_device)
    return {
        "linear": lambda: linear(x),
        "layer_norm": lambda: norm(x),
        "bmm": lambda: torch.bmm(heads, heads),
        "softmax": lambda: functional.softmax(x, -1),
        "gelu": lambda: functional.gelu(x),
        "add": lambda: x + y,
        "mul": lambda: x * 0.5,
        "transpose": lambda: heads.transpose(1, 2),
    }


def time_calls(device: BenchDevice, call: Launch, budget_s: float) -> list[float]:
    """Host seconds of one call, a number a batch of `BATCH`; the device is idle before each batch."""
    for _ in range(BATCH):
        call()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < _MIN_BATCHES or time.perf_counter() - begin < budget_s:
        device.synchronize()
        start = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        times.append((time.perf_counter_ns() - start) / BATCH / 1e9)
    device.synchronize()
    return times


def measure(device: BenchDevice, budget_s: float) -> dict[str, Any]:
    """Seconds: of every kind of call its quickest batch; the mean over kinds; on a GPU that of a null kernel.

    The mean, not the median: the CPU's time of a pass is a sum over calls, and is forecast as their count times this.

    The quickest batch is the one that other work of the machine disturbed least; ``typical_s`` is the same from the
    middle batches, so that the difference says how busy the host was.
    """
    calls = framework_calls(device)
    null = getattr(torch.cuda, "_sleep", None) if device.kind == "cuda" else None
    share = budget_s / (len(calls) + (null is not None))
    with torch.no_grad():
        times = {name: time_calls(device, call, share) for name, call in calls.items()}
    quickest = {name: min(batches) for name, batches in times.items()}
    row: dict[str, Any] = {
        "launch_overhead_s": float(np.mean(list(quickest.values()))),
        "typical_s": float(np.mean([np.median(batches) for batches in times.values()])),
        "calls_s": quickest, "batches": sum(len(batches) for batches in times.values()), "batch": BATCH,
        "null_kernel_s": None,
    }  # fmt: skip
    if null is not None:  # a kernel that spins for one clock: the launch itself, with next to nothing around it
        row["null_kernel_s"] = min(time_calls(device, lambda: null(1), share))
    return row


def open_handler(device: BenchDevice, settings: Mapping[str, Any]) -> worker.Handler:
    """What answers {"budget_s": ...}."""
    del settings
    return lambda document: measure(device, float(document["budget_s"]))


if __name__ == "__main__":
    sys.exit(worker.main(open_handler))
