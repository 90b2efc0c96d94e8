"""A person's own table: a CSV file with the sizes of an operator, its dtype and its time, in few columns.

    m,n,k,dtype,time_us
    4096,4096,4096,bf16,221.4

`read_table` finds the operator by its columns where nobody names it, and the unit of the time in its column's name.
What the table does not say is taken as `ASSUMED` has it; columns of the measurement schema (`framework`, `protocol`,
`cache_state`, `latency_std_ms`, ...) say otherwise.
"""

from __future__ import annotations

import csv
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from predictor.data.dataset import Frame, to_frame
from predictor.data.importers.base import ImportResult, fill_links, flag_below_bound
from predictor.data.plausible import REPEATED, add_flag, repeats
from predictor.data.schema import BY_NAME, cell, from_op, op_class, op_fields
from predictor.errors import RequestError, SpecError, UnknownNameError, nearest
from predictor.files.read import LARGEST_TABLE, check_header, check_plain
from predictor.formats.dtypes import canonical
from predictor.formats.quantization import SCHEMES, scheme
from predictor.hardware.gpu import GPUSpec
from predictor.ops import Op

SOURCE = "csv"
#: What a table is taken to say where it does not: kernels of PyTorch, timed by events around a call that is repeated
#: with the same operands.
ASSUMED: Mapping[str, str] = {"framework": "pytorch", "protocol": "eager_events", "cache_state": "warm"}
#: Units of time -> milliseconds, by definition.
UNITS: Mapping[str, float] = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
_SPELT = {"µs": "us", "\u03bcs": "us", "usec": "us", "msec": "ms", "nsec": "ns", "sec": "s", "seconds": "s",
          "microseconds": "us", "milliseconds": "ms", "nanoseconds": "ns"}  # fmt: skip
_TIMES = ("latency", "time", "duration", "runtime", "elapsed", "measured", "mean", "median", "avg", "t", "")
_TIME = re.compile(
    r"(?:(?P<what>[a-z_]*?)_?)?\(?(?P<unit>ns|us|ms|s|µs|\u03bcs|[unm]?sec|(?:micro|milli|nano)?seconds)\)?"
)
_SPREAD = re.compile(r"(?:latency_|time_)?std(?:_(?P<unit>ns|us|ms|s))?")
#: What people call a column -> its name in the schema.
_NAMES: Mapping[str, str] = {
    "precision": "dtype", "type": "dtype", "data_type": "dtype", "b": "batch", "batch_size": "batch", "bs": "batch",
    "num_heads": "heads", "n_heads": "heads", "num_attention_heads": "heads", "num_kv_heads": "kv_heads",
    "n_kv_heads": "kv_heads", "num_key_value_heads": "kv_heads", "seq_len": "q_len", "seqlen": "q_len",
    "sequence_length": "q_len", "context_len": "kv_len", "context": "kv_len", "kv_seq_len": "kv_len",
    "num_tokens": "tokens", "hidden_size": "hidden", "inter_size": "intermediate", "intermediate_size": "intermediate",
    "num_experts": "experts", "topk": "top_k", "bytes": "size", "size_bytes": "size", "message_size": "size",
    "num_gpus": "ranks", "gpus": "ranks", "world_size": "ranks", "numel": "elements", "n_elements": "elements",
    "kernel": "kernel_name",
}  # fmt: skip
#: Operators that a table's columns may name, the one with most columns first.
_FOUND = ("moe", "attention", "gemm", "collective", "embedding", "rotary", "elementwise")
#: Words for an operator -> (operator, cells that it stands for).
_WORDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "matmul": ("gemm", {}), "linear": ("gemm", {}), "bmm": ("gemm", {"kind": "bmm"}), "prefill": ("attention", {}),
    "decode": ("attention", {"q_len": 1}), "layernorm": ("norm", {"kind": "layer"}),
    "rmsnorm": ("norm", {"kind": "rms"}),
    **{kind: ("collective", {"kind": kind}) for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")},
}  # fmt: skip
#: No kernel ends sooner, and none of a table of operators takes longer, in ms: guards against times in another unit.
_SHORTEST_MS, _LONGEST_MS = 2e-4, 1e5


def is_table(path: Path) -> bool:
    """Whether a CSV file is a person's own: it has no column of the measurement schema's times."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    check_plain(path, "a table of measurements", LARGEST_TABLE)
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        header = next(csv.reader(file), [])
    return "latency_ms" not in header or "source_row" not in header


def read_table(path: Path, gpu: GPUSpec, op: str = "", unit: str = "") -> ImportResult:
    """The rows of a person's own CSV file, as measurements of ``gpu``.

    ``op``: the operator, where no column ``op`` says it and its columns do not ("gemm", "decode", "all_reduce", ...);
    ``unit`` of the time where its column has none in its name: "ns", "us", "ms" or "s". Raises SpecError, one line
    with the row and the column, for what cannot be read, and RequestError for a wrong ``op`` or ``unit``.
    """
    rows = _rows(path)
    names = {name: _named(name) for name in rows[0]}
    twice = [name for name in names.values() if list(names.values()).count(name) > 1]
    if twice:
        raise SpecError(f"{path}: two columns are both {twice[0]}; expected one")
    times, scale = _time_column(path, list(rows[0]), unit)
    cells = [{names[name]: text.strip() for name, text in row.items() if name != times} for row in rows]
    which = _operator(path, op, cells[0])
    known = {"op", "gpu", *BY_NAME}
    fields = {name for row_op in {which[0]} - {""} for name, _, _ in op_fields(op_class(row_op))}
    for raw, name in names.items():
        if raw != times and name not in known and not _SPREAD.fullmatch(name):
            close = nearest(name, sorted(fields | {"op", "dtype", "framework", "protocol", "cache_state"}), n=1)
            raise SpecError(
                f"{path}: column {raw!r} is unknown; expected sizes of {which[0] or 'the operator'}"
                f" ({', '.join(sorted(fields))})" + (f"; nearest: {close[0]}" if close else "")
            )
    table: list[dict[str, Any]] = []
    for number, (row, raw_row) in enumerate(zip(cells, rows, strict=True), start=1):
        where = f"{path} row {number}"
        row_op = _words(row["op"], where) if row.get("op") else which
        shape = from_op(_op(where, row, row_op))
        milliseconds = _number(where, times, raw_row[times]) * scale
        if not _SHORTEST_MS <= milliseconds <= _LONGEST_MS:
            raise SpecError(
                f"{where}: {times} is {raw_row[times].strip()}, {milliseconds:g} ms; expected {_SHORTEST_MS * 1e3:g} us"
                f" to {_LONGEST_MS / 1e3:g} s (--unit says the unit)"
            )
        table.append({**shape, **_facts(where, row, scale), "latency_ms": milliseconds, "source_row": number})
    used = sorted({name for row in table for name in row})
    columns = {name: [row.get(name) for row in table] for name in used}
    frame = to_frame({**columns, "source": SOURCE, "source_file": path.name, "gpu": gpu.id}, len(table))
    frame = fill_links(frame)
    add_flag(frame, repeats(frame, but=("source_row",)), REPEATED)
    flag_below_bound(frame)
    return ImportResult(SOURCE, frame, (), 1, {})


def assumed_words(frame: Frame) -> str:
    """How the rows are taken to have been measured, in words."""
    told = [f"{name} {', '.join(sorted(set(frame[name].astype(str))))}" for name in ASSUMED]
    return f"{', '.join(told)} (columns of these names say otherwise)"


def about(path: Path) -> dict[str, Any]:
    """What a data file made of a table says of it."""
    return {"table": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "assumed": dict(ASSUMED)}


def _rows(path: Path) -> list[dict[str, str]]:
    check_plain(path, "a CSV file with a row a measurement", LARGEST_TABLE)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            lines = [line for line in reader if any(text.strip() for text in line)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path} cannot be read as CSV: {error}") from None
    if not header or not lines:
        raise SpecError(f"{path} has no rows; expected a header such as m,n,k,dtype,time_us and a row a measurement")
    check_header(header, str(path))
    for number, line in enumerate(lines, start=1):
        if len(line) != len(header):
            raise SpecError(f"{path} row {number} has {len(line)} cells; expected {len(header)}, one a column")
    return [dict(zip(header, line, strict=True)) for line in lines]


def _named(name: str) -> str:
    plain = re.sub(r"[\s\-.]+", "_", name.strip().lower())
    return _NAMES.get(plain, plain)


def _time_column(path: Path, header: Sequence[str], unit: str) -> tuple[str, float]:
    """(the column of the times, milliseconds of one of its units)."""
    given = _unit(unit) if unit else ""
    bare = [name for name in header if _named(name) in _TIMES[:-1] and _named(name) not in BY_NAME]
    with_unit: list[tuple[str, str]] = []
    for name in header:
        match = _TIME.fullmatch(re.sub(r"[\s\-.\[\]/]+", "_", name.strip().lower()).strip("_"))
        if match and (match["what"] or "").strip("_") in _TIMES:
            with_unit.append((name, _SPELT.get(match["unit"], match["unit"])))
    named = [*with_unit, *((name, given) for name in bare)]
    if not named:
        raise SpecError(
            f"{path} has no column of times ({', '.join(header)}); expected one such as time_us or latency_ms"
        )
    if len(named) > 1:
        raise SpecError(f"{path} has several columns of times ({', '.join(n for n, _ in named)}); expected one")
    ((name, its),) = named
    if its and given and its != given:
        raise RequestError(f"--unit {unit}: column {name!r} is in {its}; expected one of both")
    if not its:
        raise SpecError(
            f"{path}: column {name!r} has no unit; expected {name}_us or the like, or --unit {'|'.join(UNITS)}"
        )
    return name, UNITS[its]


def _unit(text: str) -> str:
    plain = _SPELT.get(text.strip().lower(), text.strip().lower())
    if plain not in UNITS:
        raise RequestError(f"--unit {text}: expected one of {', '.join(UNITS)}")
    return plain


def _words(text: str, where: str) -> tuple[str, Mapping[str, Any]]:
    plain = _named(text)
    if plain in _WORDS:
        return _WORDS[plain]
    try:
        op_class(plain)
    except UnknownNameError as error:
        raise RequestError(f"{where}: {error}") from None
    return plain, {}


def _operator(path: Path, op: str, first: Mapping[str, str]) -> tuple[str, Mapping[str, Any]]:
    """The operator of a table, and cells that its name stands for; ("", {}) where every row says its own."""
    if op:
        return _words(op, "--op")
    if first.get("op"):
        return "", {}
    for name in _FOUND:
        needed = {field for field, _, default in op_fields(op_class(name)) if default is MISSING} - {"dtype"}
        if needed <= first.keys() | _implied(name, first).keys():
            return name, {}
    raise SpecError(f"{path}: its columns ({', '.join(first)}) name no operator; expected --op, such as --op gemm")


def _implied(op: str, row: Mapping[str, str]) -> dict[str, str]:
    """What one size of attention says of another: as many KV heads as heads, keys as queries; one query a decode."""
    if op != "attention":
        return {}
    cells = {}
    if "heads" in row and "kv_heads" not in row:
        cells["kv_heads"] = row["heads"]
    if "q_len" in row and "kv_len" not in row:
        cells["kv_len"] = row["q_len"]
    return cells


def _op(where: str, row: Mapping[str, str], which: tuple[str, Mapping[str, Any]]) -> Op:
    name, stands_for = which
    if not name:
        raise SpecError(f"{where}: op is empty; expected an operator, such as gemm")
    cls = op_class(name)
    texts: dict[str, Any] = {**stands_for, **{key: text for key, text in row.items() if text != ""}}
    texts |= {key: value for key, value in _implied(name, texts).items() if key not in texts}
    values: dict[str, Any] = {}
    for field, kind, default in op_fields(cls):
        if field not in texts:
            if default is MISSING:
                raise SpecError(f"{where}: {name} has no {field}; expected a column {field}")
            continue
        text = texts[field]
        if field == "dtype":
            values |= _dtype(where, str(text), "quant" in {f for f, _, _ in op_fields(cls)} and "quant" not in texts)
        elif kind in ("int", "float") and isinstance(text, str):
            number = _number(where, field, text)
            values[field] = cell(f"{where}: {field}", kind, number)
        elif kind == "bool" and isinstance(text, str):
            if text.lower() not in ("true", "false", "0", "1"):
                raise SpecError(f"{where}: {field} is {text!r}; expected true or false")
            values[field] = text.lower() in ("true", "1")
        else:
            values[field] = text
    try:
        return cls(**values)
    except (RequestError, ValueError) as error:
        raise SpecError(f"{where}: {error}") from None


def _dtype(where: str, text: str, schemes: bool) -> dict[str, str]:
    """A dtype, or a quantization scheme with the dtype that its arithmetic runs in."""
    if schemes and text.strip().lower() in SCHEMES:
        name = text.strip().lower()
        how = scheme(name)  # weight-only schemes compute in 16 bit, others in their nearest dtype
        return {"dtype": how.alike[0] if how.activation_bits else "bf16", "quant": name}
    try:
        return {"dtype": canonical(text)}
    except UnknownNameError as error:
        raise SpecError(f"{where}: {error}") from None


def _number(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0) and not (
        value == 0 and name not in _TIMES and not _TIME.fullmatch(name)
    ):
        raise SpecError(f"{where}: {name} is {text.strip()!r}; expected a number above zero")
    return value


def _facts(where: str, row: Mapping[str, str], scale: float) -> dict[str, Any]:
    """Cells of the schema that are no size of the operator, as the row has them or as `ASSUMED` does."""
    facts: dict[str, Any] = dict(ASSUMED)
    for name, text in row.items():
        column = BY_NAME.get(name)
        spread = _SPREAD.fullmatch(name)
        if spread and text:
            facts["latency_std_ms"] = _number(where, name, text) * UNITS.get(spread["unit"], scale)
        elif column is not None and text and name not in _SHAPES and name not in ("gpu", "op"):
            facts[name] = text if column.type == "text" else _number(where, name, text)
    return facts


def _shape_columns() -> Iterable[str]:
    from predictor.data.schema import OP_COLUMNS

    return (column.name for column in OP_COLUMNS)


_SHAPES = frozenset(_shape_columns()) | {"dtype", "quant"}
