"""What a dataset holds, in numbers: counts, ranges, noise; and rows that measure the same thing."""

from __future__ import annotations

from typing import Any

from predictor.data.frame import Frame
from predictor.data.schema import OP_COLUMNS
from predictor.files.extras import require

#: Columns by which two rows measure the same thing.
_SAME = (
    "source", "split", "gpu", "framework", "framework_version", "kernel_source", "protocol", "cache_state", "op",
    "dtype", "quant", *(c.name for c in OP_COLUMNS),
)  # fmt: skip


def same_case(frame: Frame) -> Any:
    """Integers of shape (n,): equal for rows that measure the same operator in the same way on the same software."""
    np, pd = require("numpy"), require("pandas")
    columns = [name for name in _SAME if name in frame]
    hashes = pd.util.hash_pandas_object(frame[columns], index=False).to_numpy()
    return np.unique(hashes, return_inverse=True)[1]


def merge_repeats(frame: Frame) -> Frame:
    """`frame` with one row for every case: the first of its rows, with the median of their latencies."""
    pd = require("pandas")
    case = same_case(frame)
    out = frame.copy()
    out["latency_ms"] = frame["latency_ms"].groupby(case).transform("median").to_numpy()
    return out[~pd.Series(case).duplicated().to_numpy()].reset_index(drop=True)


def describe(frame: Frame) -> dict[str, Any]:
    """What `frame` holds, as plain values: counts, ranges by operator, noise, flags.

    rows        how many
    counts      column -> value -> rows, for gpu, op, dtype, quant, framework, protocol, source and split
    ranges      op -> column -> [lowest, highest]; latency_ms: [lowest, median, highest]
    noise       spread: median of standard deviation over mean, where both are given, and their rows; repeats: median of
                half the range over the median, where a case has several rows, and those cases; None where there is none
    flags       flag -> rows
    """
    counted = ("gpu", "op", "dtype", "quant", "framework", "protocol", "source", "split")
    flags: dict[str, int] = {}
    for text, n in frame["flag"].value_counts().items():
        for part in filter(None, str(text).split(";")):
            flags[part] = flags.get(part, 0) + int(n)
    return {
        "rows": len(frame),
        "counts": {
            name: {str(value): int(n) for value, n in frame[name].value_counts().items() if n} for name in counted
        },
        "ranges": {str(op): _ranges(part) for op, part in frame.groupby("op", observed=True)},
        "noise": {"spread": _spread(frame), "repeats": _repeats(frame)},
        "flags": dict(sorted(flags.items())),
    }


def _ranges(part: Frame) -> dict[str, list[float]]:
    latency = part["latency_ms"]
    out = {"latency_ms": [float(latency.min()), float(latency.median()), float(latency.max())]}
    for column in OP_COLUMNS:
        if column.type in ("int", "float") and column.name in part and part[column.name].notna().any():
            out[column.name] = [float(part[column.name].min()), float(part[column.name].max())]
    return out


def _spread(frame: Frame) -> dict[str, float] | None:
    if "latency_std_ms" not in frame or "latency_mean_ms" not in frame:
        return None
    ratio = (frame["latency_std_ms"] / frame["latency_mean_ms"]).dropna()
    return {"median": float(ratio.median()), "rows": len(ratio)} if len(ratio) else None


def _repeats(frame: Frame) -> dict[str, float] | None:
    np, pd = require("numpy"), require("pandas")
    case = same_case(frame)
    several = np.bincount(case)[case] > 1 if len(case) else np.zeros(0, dtype=bool)
    if not several.any():
        return None
    groups = pd.Series(frame["latency_ms"].to_numpy()[several]).groupby(case[several])
    ratio = (groups.max() - groups.min()) / 2 / groups.median()
    return {"median": float(ratio.median()), "cases": len(ratio)}
