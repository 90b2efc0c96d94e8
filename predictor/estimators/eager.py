"""What protocol "eager_events" reads for a kernel that is launched by itself: one rule, whatever the operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictor.roofline import FloatArray

#: (host, launch) by GPU, in seconds; "*", where there is one, for GPUs that it lacks.
Overheads = Mapping[str, Sequence[float]]


def overhead(known: Overheads, gpu_id: str, unknown: Sequence[float] = (0.0, 0.0)) -> tuple[float, float]:
    """(host, launch) of a GPU: its own, or the medians of the measured ones; ``unknown`` where there are none."""
    pair = known.get(gpu_id, known.get("*"))
    if pair is None:
        pair = np.median(np.array(list(known.values()) or [unknown]), axis=0)
    return float(pair[0]), float(pair[1])


def eager_seconds(seconds: FloatArray, host: FloatArray | float, launch: FloatArray | float = 0.0) -> FloatArray:
    """max(host, launch + kernel), of shape (n,): the host's time of a call, or the kernel behind its launch."""
    result: FloatArray = np.maximum(host, launch + seconds)
    return result
