"""Operators of a trace as rows of the measurement schema: protocol profiler, the median of the calls of one shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from predictor.data.dataset import to_frame
from predictor.data.frame import Frame
from predictor.data.schema import BY_NAME, from_op
from predictor.engines import EAGER
from predictor.errors import RequestError, TilecastError
from predictor.hardware.gpu import GPUSpec
from predictor.ops.base import Op
from predictor.ops.collective import Collective
from predictor.profiles.linked import Linked
from predictor.profiles.steps import ProfiledStep


def rows_of(linked: Linked, steps: Sequence[ProfiledStep], gpu: GPUSpec, version: str = "") -> Frame:
    """A row for each shape that ran in the steps. RequestError, one line, where no operator was mapped.

    Calls that run several operators are left out, and collectives, whose time holds that of waiting for others.
    """
    lengths: dict[Op, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in (row for step in steps for row in step.rows.tolist()):
        work = linked.work[row]
        if len(work.ops) == 1 and not isinstance(work.ops[0], Collective) and work.call >= 0:
            lengths[work.ops[0]][work.call].append(row)
    cells: list[dict[str, Any]] = []
    for number, (op, calls) in enumerate(lengths.items(), start=1):
        try:
            described = from_op(op)
        except TilecastError:
            continue
        kernels = linked.trace.kernels
        times = np.array([float(kernels.length[rows].sum()) for rows in calls.values()]) / 1e3
        first = next(iter(calls.values()))
        longest = max(first, key=lambda row: float(kernels.length[row]))
        median = float(np.median(times))
        if median <= 0.0:
            continue
        cells.append(described | {
            "source": "trace", "source_file": linked.trace.path.name, "source_row": number, "gpu": gpu.id,
            "framework": EAGER.kernels, "framework_version": version, "protocol": "profiler", "cache_state": "unknown",
            "latency_ms": median, "latency_min_ms": float(times.min()), "latency_mean_ms": float(times.mean()),
            "latency_median_ms": median, "latency_max_ms": float(times.max()),
            "latency_std_ms": float(times.std(ddof=1)) if len(times) > 1 else None, "samples": len(times),
            "kernel_name": linked.trace.names.all[int(kernels.name[longest])], "kernel_count": len(first),
        })  # fmt: skip
    if not cells:
        raise RequestError(
            f"{linked.trace.path}: no operator with a shape ran; expected a trace with record_shapes=True"
        )
    names = [name for name in BY_NAME if any(cell.get(name) is not None for cell in cells)]
    return to_frame({name: [cell.get(name) for cell in cells] for name in names}, len(cells))
