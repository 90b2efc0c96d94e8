"""What a cell of a row of measurements can hold at all: sizes above zero, known words, text without control characters.

A value outside is a slip of whoever wrote the file; the line names the file, the row, the value and what was expected.
What only the GPU can tell (a latency below its roofline) is `predictor.data.plausible`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from predictor.data.frame import Frame
from predictor.data.schema import BY_NAME, CACHE_STATES, COLUMNS, PROTOCOLS, REQUIRED, op_class, op_fields
from predictor.errors import SpecError, UnknownNameError, nearest, printable
from predictor.files.extras import require
from predictor.formats.dtypes import DTYPES
from predictor.ops import OPERATORS
from predictor.ops.base import BACKWARD, FORWARD
from predictor.ops.collective import KINDS as COLLECTIVES
from predictor.ops.elementwise import FUNCTIONS
from predictor.ops.optimizer import KINDS as OPTIMIZERS

#: Guards against sizes that no operator on one GPU has: 100 times the bytes of its memory.
_LARGEST = 1e13
#: Longest call in ms, a day: guards against times in another unit.
_LONGEST_MS = 8.64e7
_WORDS: Mapping[str, tuple[str, ...]] = {
    "protocol": PROTOCOLS, "cache_state": CACHE_STATES, "dtype": tuple(DTYPES), "split": ("", "train", "test"),
}  # fmt: skip
#: (operator, column) -> the words that its rows may hold.
_OF_OP: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("gemm", "kind"): ("linear", "bmm", "grouped"), ("gemm", "layout"): ("tn", "nn", "nt", "tt"),
    ("elementwise", "fn"): tuple(FUNCTIONS), ("norm", "kind"): ("layer", "rms"),
    ("collective", "kind"): COLLECTIVES, ("optimizer", "kind"): OPTIMIZERS,
    **{(op, "phase"): (FORWARD, BACKWARD) for op in ("attention", "norm", "softmax", "embedding", "cross_entropy")},
}  # fmt: skip


def _lowest() -> dict[str, tuple[str, float]]:
    """Column of an operator's number -> (type, lowest value): 1 for a size that has no default, else the default."""
    lowest: dict[str, tuple[str, float]] = {}
    for cls in OPERATORS.values():
        for name, kind, default in op_fields(cls):
            if kind in ("int", "float"):
                least = 0.0 if kind == "float" else 1.0 if default is MISSING else min(1.0, float(default))
                lowest[name] = (kind, min(least, lowest.get(name, (kind, math.inf))[1]))
    return lowest


#: Numeric column -> (type, lowest, highest value). The ends guard against numbers that no measurement has: CUDA's grids
#: and blocks are below 2^31.
RANGES: Mapping[str, tuple[str, float, float]] = {
    **{name: (kind, low, math.inf if kind == "float" else _LARGEST) for name, (kind, low) in _lowest().items()},
    **{c.name: ("float", 0.0, _LONGEST_MS) for c in COLUMNS if c.name.startswith("latency_")},
    **{c.name: ("int", 0.0, 2.0**31) for c in COLUMNS if c.name.startswith(("grid_", "block_", "kernel_count"))},
    "samples": ("int", 1.0, 1e12),
    **dict.fromkeys(("tile_m", "tile_n", "tile_k"), ("int", 1.0, 2.0**31)),
}


def check_values(frame: Frame, where: str) -> None:
    """Raises SpecError, one line that names ``where``, the row (1 = the first), the value and what was expected."""
    np = require("numpy")
    for name in REQUIRED:
        empty = frame[name].isna().to_numpy()
        if empty.any():
            raise SpecError(f"{row_name(frame, int(empty.argmax()), where)}: no {name}; expected a value in every row")
    latency = frame["latency_ms"].to_numpy(dtype=float)
    _refuse(~(np.isfinite(latency) & (latency > 0)), latency, frame, where, "latency_ms", "a finite number above zero")
    _check_ops(frame, where)
    for name in frame.columns:
        if BY_NAME[name].type == "text":
            _check_text(frame, name, where)
        elif name in RANGES:
            kind, low, high = RANGES[name]
            values = frame[name].to_numpy(dtype=float, na_value=math.nan)
            with np.errstate(invalid="ignore"):
                bad = (values < low) | (values > high) | np.isinf(values)
                if kind == "int":
                    bad |= values != np.where(np.isnan(values), values, np.trunc(values))
            bad &= ~np.isnan(values)
            expected = f"{'a whole number' if kind == 'int' else 'a number'} from {low:g}"
            _refuse(bad, values, frame, where, name, expected + (f" to {high:g}" if high < math.inf else ""))


def _check_ops(frame: Frame, where: str) -> None:
    """Every operator is known, and its rows have every field of its shape that has no default, in words that it has."""
    np = require("numpy")
    ops = frame["op"].astype(object).to_numpy()
    for op in dict.fromkeys(ops.tolist()):
        at = np.flatnonzero(ops == op)
        try:
            known = op_fields(op_class(str(op)))
        except UnknownNameError as error:
            raise SpecError(f"{row_name(frame, int(at[0]), where)}: {error}") from None
        for name, _, default in known:
            empty = frame[name].isna().to_numpy()[at] if name in frame else np.ones(len(at), dtype=bool)
            if default is MISSING and name != "dtype" and empty.any():
                row = row_name(frame, int(at[empty.argmax()]), where)
                raise SpecError(f"{row}: {op} has no {name}; expected every field of its shape")
            words = _OF_OP.get((str(op), name))
            if words is not None and name in frame:
                _check_words(frame, at, name, words, where)


def _check_words(frame: Frame, at: Any, name: str, words: Sequence[str], where: str) -> None:
    """Rows ``at`` hold one of ``words`` in column ``name``, or nothing."""
    column = frame[name].iloc[at]
    for text in map(str, column.dropna().unique()):
        if text not in words:
            close = nearest(text, words, n=1)
            row = row_name(frame, int(at[(column == text).to_numpy().argmax()]), where)
            raise SpecError(
                f"{row}: {name} is {text!r}: expected one of {', '.join(filter(None, words))}"
                + (f"; nearest: {close[0]}" if close else "")
            )


def _check_text(frame: Frame, name: str, where: str) -> None:
    """Every distinct text of a column once: control characters, and words that are none of the column's."""
    np = require("numpy")
    for text in map(str, frame[name].dropna().unique()):
        if not text.isprintable():
            row = row_name(frame, int((frame[name] == text).to_numpy().argmax()), where)
            raise SpecError(f"{row}: {name} is {text!r}: expected text without control characters")
    if name in _WORDS:
        _check_words(frame, np.arange(len(frame)), name, _WORDS[name], where)


def row_name(frame: Frame, row: int, where: str) -> str:
    """Row ``row`` (0 = the first) in words, 1 being the first: of the file ``where``, and of the source it is from."""
    source, number = str(frame["source_file"].iloc[row]), frame["source_row"].iloc[row]
    origin = f" ({printable(source)} row {number:.0f})" if source else ""
    return f"{where}, row {row + 1}{origin}"


def _refuse(bad: Any, values: Any, frame: Frame, where: str, name: str, expected: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        value = float(values[row])
        shown = f"{value:.0f}" if value.is_integer() and abs(value) < 1e16 else f"{value:g}"
        raise SpecError(f"{row_name(frame, row, where)}: {name} is {shown}: expected {expected}")
