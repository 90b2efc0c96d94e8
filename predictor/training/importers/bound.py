"""Rows faster than their GPU can be: a wrong peak, a wrong mapping or a wrong measurement, never a training example."""

from __future__ import annotations

from functools import cache
from typing import Any

from predictor.errors import TilecastError
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.measurement import OP_COLUMNS
from predictor.roofline import roofline
from predictor.training.dataset import Frame, ops_of
from predictor.training.extras import require

#: A row counts as faster than the bound from this ratio of measured time to bound downwards.
TOLERANCE = 0.98

FLAG = "beats_roofline"


def below_bound(frame: Frame) -> Any:
    """Boolean array of shape (n,): the rows that beat their roofline bound by more than 2 %.

    Rows whose bound is not known are false: GPUs or dtypes without a peak in the catalogue.
    """
    np, pd = require("numpy"), require("pandas")
    out = np.zeros(len(frame), dtype=bool)
    keys = ["op", "dtype", "quant", *(c.name for c in OP_COLUMNS if c.name in frame)]
    if not len(frame):
        return out
    shapes = frame[keys]
    number = shapes.groupby(keys, observed=True, dropna=False, sort=False).ngroup().to_numpy()
    _, first = np.unique(number, return_index=True)
    ops = np.array([None, *ops_of(shapes.iloc[first])], dtype=object)[1:]
    gpus = frame["gpu"].astype(object).to_numpy()
    latency = frame["latency_ms"].to_numpy(dtype=float) / 1e3
    dtypes = shapes["dtype"].astype(object).to_numpy()
    for (name, dtype), at in pd.Series(range(len(frame))).groupby([gpus, dtypes]).indices.items():
        gpu = _gpu(name)
        if gpu is None or not gpu.supports(dtype):
            continue
        distinct, back = np.unique(number[at], return_inverse=True)
        bound = roofline(list(ops[distinct]), gpu).lower_bound_s[back]
        out[at] = latency[at] < TOLERANCE * bound
    return out


def flag_below_bound(frame: Frame) -> int:
    """Adds the flag "beats_roofline" to the rows of `frame` (changed in place) that do; returns how many."""
    np, pd = require("numpy"), require("pandas")
    fast = below_bound(frame)
    flags = frame["flag"].astype(object).to_numpy(dtype=object).copy()
    flags[fast] = [f"{flag};{FLAG}" if flag else FLAG for flag in flags[fast]]
    frame["flag"] = pd.Categorical(flags)
    return int(np.count_nonzero(fast))


@cache
def _gpu(name: str) -> GPUSpec | None:
    try:
        return load_gpu(name)
    except TilecastError:
        return None
