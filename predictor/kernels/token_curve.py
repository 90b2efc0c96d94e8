"""Seconds of a layer against its tokens as a curve that never falls: more tokens are never less work.

Learned corrections know the token counts that were measured, and step between them and up and down at them as noise and
changes of kernel have it. So a layer is asked at the measured counts alone (`KNOTS`), the answers become a curve that
never falls, and what lies between two counts is a line in the logarithms.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

#: Token counts of the tables that MoE layers are fitted on. Source: AIConfigurator's moe_perf tables, all that they
#: hold.
KNOTS = np.array([
    1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 20480, 32768, 65536,
], dtype=np.float64)  # fmt: skip
_LOG_KNOTS = np.log(KNOTS)


def never_falling(values: FloatArray) -> FloatArray:
    """The middle of the two tightest curves that never fall around ``values`` (m, k): none below them, none above.

    Values that never fall stay as they are.
    """
    above = np.maximum.accumulate(values, axis=1)
    below = np.minimum.accumulate(values[:, ::-1], axis=1)[:, ::-1]
    middle: FloatArray = 0.5 * (above + below)
    return middle


def between(log_seconds: FloatArray, tokens: FloatArray) -> FloatArray:
    """Seconds at ``tokens`` (n,) of the curve through ``log_seconds`` (k,); in proportion beyond the last knot."""
    logs = np.log(tokens)
    log_curve = np.interp(logs, _LOG_KNOTS, log_seconds) + np.maximum(logs - _LOG_KNOTS[-1], 0.0)
    seconds: FloatArray = np.exp(log_curve)
    return seconds
