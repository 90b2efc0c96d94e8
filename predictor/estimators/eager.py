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


class Launched:
    """What estimators of calls that a host launches one by one share: the overheads of each kind of call, and those of
    calibrated GPUs, (host, launch) by kind."""

    _calls: Mapping[str, Overheads]
    _own_calls: Mapping[str, Mapping[str, Sequence[float]]]

    def eager_seconds(self, seconds: FloatArray, gpu_id: str, call: str) -> FloatArray:
        """What protocol "eager_events" reads for kernels of ``seconds``, (n,): the GPU's own overhead of such a
        ``call``, or the medians of the measured ones."""
        own = self._own_calls.get(gpu_id, {}).get(call)
        return eager_seconds(seconds, *(own or overhead(self._calls.get(call, {}), gpu_id)))
