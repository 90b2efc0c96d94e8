"""Rows faster than their GPU can be: a wrong peak, a wrong mapping or a wrong measurement, never a training example."""

from __future__ import annotations

from typing import Any

from predictor.roofline import TOLERANCE
from predictor.training.dataset import Frame
from predictor.training.extras import require
from predictor.training.plausible import TOO_FAST, add_flag, bounds

FLAG = TOO_FAST


def below_bound(frame: Frame) -> Any:
    """Boolean array of shape (n,): the rows that beat their roofline bound by more than 2 %.

    Rows whose bound is not known are false: GPUs or dtypes without a peak in the catalogue.
    """
    return frame["latency_ms"].to_numpy(dtype=float) / 1e3 < TOLERANCE * bounds(frame).lower_s


def flag_below_bound(frame: Frame) -> int:
    """Adds the flag "beats_roofline" to the rows of `frame` (changed in place) that do; returns how many."""
    fast = below_bound(frame)
    add_flag(frame, fast, FLAG)
    return int(require("numpy").count_nonzero(fast))
