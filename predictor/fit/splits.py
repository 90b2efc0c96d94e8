"""Holding out whole groups, so that what is scored was never seen in any form.

A group is what a new model brings along: the (n, k) of a GEMM over every m, framework, dtype and GPU; the heads of an
attention; the token count of an MoE layer; the full shape of other operators. The groups of an operator are put in an
order by a hash of their key and the seed, and the first ``fraction`` of them are held out, whatever the rows' order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data.frame import Frame

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

#: Operator -> the columns that make a group of its rows.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("n", "k"),
    "attention": ("heads", "kv_heads", "head_dim"),
    "moe": ("tokens",),
    "routing": ("tokens",),
    "quantize": ("cols",),
    "causal_conv1d": ("channels",),
    "delta_rule": ("heads", "v_heads", "head_dim", "v_head_dim"),
}
#: Columns of a group for operators that are not named above: those of them that the data has.
SHAPE = (
    "fn", "kind", "elements", "rows", "cols", "tokens", "heads", "head_dim", "width", "vocab", "parameters", "size",
)  # fmt: skip
#: What makes an MoE model.
MODEL = ("hidden", "intermediate", "experts", "top_k")


def group_key(op: str) -> tuple[str, ...]:
    """The columns whose values make a group of rows of operator ``op``."""
    return GROUPS.get(op, SHAPE)


def holdout(frame: Frame, fraction: float, seed: int) -> BoolArray:
    """(n,) True for rows held out: about ``fraction`` of the groups of every operator, at least one of several."""
    held = np.zeros(len(frame), dtype=bool)
    if fraction <= 0.0:
        return held
    ops = np.asarray(frame["op"].astype(str))
    for op in sorted(set(ops.tolist())):
        rows = np.flatnonzero(ops == op)
        held[rows] = _first(_codes(frame, rows, group_key(op)), op, fraction, seed)
    return held


def model_holdout(frame: Frame, fraction: float, seed: int) -> BoolArray:
    """(n,) True for rows of held-out MoE models: whole (hidden, intermediate, experts, top_k) over everything else."""
    held = np.zeros(len(frame), dtype=bool)
    rows = np.flatnonzero(np.asarray(frame["op"].astype(str)) == "moe")
    if len(rows):
        held[rows] = _first(_codes(frame, rows, MODEL), "moe model", fraction, seed)
    return held


def _codes(frame: Frame, rows: IntArray, columns: tuple[str, ...]) -> tuple[IntArray, list[str]]:
    """(group number of each row, key of each group as text); a number reads alike whatever its column's type."""
    import pandas as pd

    present = [name for name in columns if name in frame.columns]
    table = pd.DataFrame(index=range(len(rows)))
    for name in present:
        values = frame[name].iloc[rows].reset_index(drop=True)
        table[name] = pd.to_numeric(values) if pd.api.types.is_numeric_dtype(values) else values.astype(str)
    if not present:
        return np.zeros(len(rows), dtype=np.int64), [""]
    groups = table.groupby(present, dropna=False, sort=True)
    numbers = np.asarray(groups.ngroup(), dtype=np.int64)
    firsts = np.unique(numbers, return_index=True)[1]
    keys = ["|".join(_text(table[name].iloc[i]) for name in present) for i in firsts]
    return numbers, keys


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "-" if value != value else f"{float(value):g}"


def _first(codes: tuple[IntArray, list[str]], salt: str, fraction: float, seed: int) -> BoolArray:
    """(n,) True for rows of the groups whose hash comes first."""
    numbers, keys = codes
    if len(keys) < 2:
        return np.zeros(len(numbers), dtype=bool)
    count = min(max(1, round(fraction * len(keys))), len(keys) - 1)
    order = sorted(range(len(keys)), key=lambda i: hashlib.sha256(f"{seed}|{salt}|{keys[i]}".encode()).digest())
    chosen = np.zeros(len(keys), dtype=bool)
    chosen[order[:count]] = True
    result: BoolArray = chosen[numbers]
    return result
