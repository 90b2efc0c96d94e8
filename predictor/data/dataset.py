"""Files of measurements: parquet or CSV with a schema version, checked on the way out and on the way in.

A parquet file carries its version and the facts of its making in its metadata; both kinds have them in a sidecar,
`FILE.meta.json`, too. In memory a dataset is a pandas DataFrame whose columns are those of `predictor.data.schema`:
text as category, nullable integers as float64 with NaN, nullable booleans as pandas' boolean. A nullable column that
would be empty throughout is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from predictor.data.frame import Frame
from predictor.data.parquet import as_frame, read_arrow
from predictor.data.row_values import check_values
from predictor.data.schema import BY_NAME, COLUMNS, INT64, REQUIRED, SCHEMA_VERSION, cell, op_class, op_fields
from predictor.data.summary import describe, merge_repeats, same_case
from predictor.errors import RequestError, SpecError
from predictor.files.extras import require
from predictor.files.outputs import guarded
from predictor.files.read import LARGEST_TABLE, check_plain, csv_header, parse_json, read_text
from predictor.hardware.gpu import GPUSpec, parse_gpu
from predictor.ops import Op

__all__ = [
    "Frame", "concat", "data_files", "describe", "digest", "merge_repeats", "ops_of", "read", "read_meta",
    "replace_file", "same_case", "sidecar", "to_frame", "to_table", "validate", "write",
]  # fmt: skip

_KEY = b"tilecast"
_SUFFIXES = (".parquet", ".csv")
_HARNESS = "measurements.parquet"  # the harness' own rows, which `tilecast dataset import microbench` reads


# -------------------------------------------------------------------------------------------------- frames in memory


def to_frame(columns: Mapping[str, Any], rows: int) -> Frame:
    """A frame of `rows` rows in the schema's types and order from arrays or single values by column name.

    Required text columns that are not given are empty; other columns that are not given are left out.
    """
    pd = require("pandas")
    given = dict(columns)
    for name in REQUIRED:
        if BY_NAME[name].type == "text":
            given.setdefault(name, "")
    return pd.DataFrame({c.name: _typed(given[c.name], c.type, rows) for c in COLUMNS if c.name in given})


def _typed(values: Any, kind: str, rows: int) -> Any:
    """`values` (an array of length `rows`, or one value for all rows) as the in-memory type of column type `kind`."""
    np, pd = require("numpy"), require("pandas")
    if kind == "text":
        if isinstance(values, str):
            return pd.Categorical.from_codes(np.zeros(rows, dtype=np.int8), categories=pd.Index([values], dtype=object))
        series = values if isinstance(values, pd.Series) else pd.Series(values)
        if isinstance(series.dtype, pd.CategoricalDtype):
            return pd.Categorical(series)
        codes, categories = pd.factorize(series)
        return pd.Categorical.from_codes(codes, categories=pd.Index(categories, dtype=object))
    if kind == "bool":
        if isinstance(values, bool):
            return pd.array(np.full(rows, values), dtype="boolean")
        return pd.array(values, dtype="boolean")
    dtype = np.int64 if kind == "int" else np.float64
    if isinstance(values, (int, float)):
        return np.full(rows, values, dtype=dtype)
    array = pd.to_numeric(pd.Series(values)).to_numpy(dtype=np.float64, na_value=np.nan)
    if kind == "int" and (np.isfinite(array) & (np.abs(array) < 2.0**63) & (array == np.trunc(array))).all():
        return array.astype(np.int64)
    return array  # with nulls, or with what `validate` refuses


def concat(frames: Sequence[Frame]) -> Frame:
    """The rows of `frames` one below the other; categories are united and absent columns filled with nulls."""
    np, pd = require("numpy"), require("pandas")
    from pandas.api.types import union_categoricals

    if not frames:
        return to_frame({c.name: [] for c in COLUMNS if not c.nullable}, 0)
    out: dict[str, Any] = {}
    for column in COLUMNS:
        if not any(column.name in frame for frame in frames):
            continue
        null = {"text": None, "bool": None}.get(column.type, math.nan)
        parts = [
            frame[column.name] if column.name in frame else _null_part(column.type, len(frame), null)
            for frame in frames
        ]
        if column.type == "text":
            out[column.name] = union_categoricals([_categories(p) for p in parts], ignore_order=True)
        elif column.type == "bool":
            out[column.name] = pd.concat([pd.Series(p, dtype="boolean") for p in parts], ignore_index=True).array
        else:
            arrays = [np.asarray(p) for p in parts if len(p)] or [np.empty(0)]
            out[column.name] = np.concatenate(arrays)
    return pd.DataFrame(out)


def _categories(values: Any) -> Any:
    """`values` as a categorical whose categories have dtype object: a file may give them as another string dtype."""
    pd = require("pandas")
    categorical = pd.Categorical(values)
    return pd.Categorical.from_codes(categorical.codes, categories=categorical.categories.astype(object))


def _null_part(kind: str, rows: int, null: Any) -> Any:
    np, pd = require("numpy"), require("pandas")
    if kind == "text":
        return pd.Categorical.from_codes(np.full(rows, -1, dtype=np.int8), categories=pd.Index([], dtype=object))
    if kind == "bool":
        return pd.array([pd.NA] * rows, dtype="boolean")
    return np.full(rows, null)


def ops_of(frame: Frame) -> list[Op]:
    """The operator of every row of `frame`, in its order: what `measurement.to_op` gives, for a million rows at once.

    Raises UnknownNameError for an unknown operator and SpecError where a field of its shape is missing.
    """
    np = require("numpy")
    names = frame["op"].astype(object).to_numpy()
    out = np.empty(len(frame), dtype=object)
    for name in dict.fromkeys(names.tolist()):
        cls = op_class(name)
        at = np.flatnonzero(names == name)
        part = frame.iloc[at]
        fields = [_field_list(part, name, *field) for field in op_fields(cls)]
        ops = list(map(cls, *fields))
        out[at] = np.fromiter(ops, dtype=object, count=len(ops))
    return list(out)


def _field_list(part: Frame, op: str, name: str, kind: str, default: Any) -> list[Any]:
    """The Python values of one field for all rows of `part`, defaults where the cell is null."""
    np = require("numpy")
    n = len(part)
    null = part[name].isna().to_numpy() if name in part else np.ones(n, dtype=bool)
    if null.any() and default is MISSING:
        row = int(np.flatnonzero(null)[0])
        raise SpecError(f"row {row} of op {op!r} has no {name}: expected every field of its shape")
    if null.all():
        return [default] * n
    series = part[name]
    if kind == "text":
        values = series.astype(object).to_numpy()
    else:
        fill = default if default is not MISSING else 0
        floats = series.to_numpy(dtype=np.float64, na_value=fill) if kind == "bool" else series.fillna(fill).to_numpy()
        if kind == "int" and floats.dtype.kind == "f":
            fits = (floats >= -INT64) & (floats < INT64)  # a cast of others is any number
            whole = np.where(fits, floats, 0.0).astype(np.int64)
            if (wrong := ~fits | (whole != floats)).any():
                cell(name, kind, float(floats[np.flatnonzero(wrong)[0]]))
            floats = whole
        values = floats.astype({"int": np.int64, "bool": bool, "float": np.float64}[kind])
    listed: list[Any] = values.tolist()
    if kind == "text" and null.any():
        listed = [default if empty else value for value, empty in zip(listed, null.tolist(), strict=True)]
    return listed


# ---------------------------------------------------------------------------------------------------------- checking


def validate(frame: Frame, where: str = "the data") -> None:
    """Raises SpecError, one line that names `where`, for a frame that does not hold the schema."""
    unknown = [str(name) for name in frame.columns if name not in BY_NAME]
    if unknown:
        raise SpecError(
            f"{where} has columns outside the schema: {', '.join(unknown[:5])}; see docs/reference/dataset-columns.md"
        )
    missing = [name for name in REQUIRED if name not in frame]
    if missing:
        raise SpecError(f"{where} lacks the columns {', '.join(missing)}; see docs/reference/dataset-columns.md")
    check_values(frame, where)


def digest(frame: Frame) -> str:
    """SHA-256 (hex) of what the rows say, in their order: equal for a frame and for the same frame read back."""
    np, pd = require("numpy"), require("pandas")
    sha = hashlib.sha256(f"schema {SCHEMA_VERSION}, {len(frame)} rows".encode())
    for column in COLUMNS:
        if column.name not in frame or frame[column.name].isna().all():
            continue
        values = frame[column.name]
        if column.type == "text":
            text = pd.Categorical(values)
            by_code = pd.util.hash_array(np.array([*text.categories, ""], dtype=object), categorize=False)
            hashed = by_code[text.codes]  # a null has code -1 and counts as empty
        else:
            hashed = values.to_numpy(dtype=np.float64, na_value=np.nan)
        sha.update(column.name.encode())
        sha.update(np.ascontiguousarray(hashed).tobytes())
    return sha.hexdigest()


# ------------------------------------------------------------------------------------------------- files on the disk


def sidecar(path: str | Path) -> Path:
    """Where the facts about the data file `path` stand: beside it, with .meta.json added to its name."""
    path = Path(path)
    return path.with_name(path.name + ".meta.json")


def write(frame: Frame, path: str | Path, about: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Writes `frame` to `path` (.parquet or .csv) and its sidecar, each atomically; returns the sidecar's content.

    `about` holds further facts (source, rows skipped, ...). Raises SpecError for a frame outside the schema and
    RequestError, one line, where the file cannot be written.
    """
    path = Path(path)
    _check_suffix(path)
    validate(frame)
    kept = frame[[c.name for c in COLUMNS if c.name in frame and not (c.nullable and frame[c.name].isna().all())]]
    meta = {
        "schema_version": SCHEMA_VERSION, "rows": len(frame), "sha256": digest(kept), "columns": list(kept.columns),
        **(about or {}),
    }  # fmt: skip
    if path.suffix == ".csv":
        replace_file(path, lambda name: kept.to_csv(name, index=False))
    else:
        pq = require("pyarrow.parquet")
        table = to_table(kept).replace_schema_metadata({_KEY: json.dumps(meta).encode()})
        replace_file(path, lambda name: pq.write_table(table, name, compression="zstd"))
    replace_file(sidecar(path), lambda name: name.write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8"))
    return meta


def _check_suffix(path: Path) -> None:
    if path.suffix not in _SUFFIXES:
        raise RequestError(f"{path} has the suffix {path.suffix!r}: expected {' or '.join(_SUFFIXES)}")


def replace_file(path: Path, write_to: Any) -> None:
    """Writes beside `path` under another name, then renames, so that no reader ever sees half a file."""
    path = guarded("--out", path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        write_to(temporary)
        temporary.replace(path)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def to_table(frame: Frame) -> Any:
    """`frame` as a pyarrow table in the types that a file has."""
    pa = require("pyarrow")
    types = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    arrays, names = [], []
    for name in frame.columns:
        kind = BY_NAME[name].type
        values = frame[name]
        if kind == "text":
            array = pa.array(values.astype("category"), from_pandas=True)
            array = array.cast(pa.dictionary(pa.int32(), pa.string()))
        else:
            array = pa.array(values.array if kind == "bool" else values.to_numpy(), from_pandas=True).cast(types[kind])
        arrays.append(array)
        names.append(name)
    return pa.table(arrays, names=names)


def data_files(path: str | Path) -> list[Path]:
    """The files of measurements that `path` stands for: itself, or every shard (.parquet) below a folder, sorted.

    What the harness wrote there (measurements.parquet) is none: it has to be imported. Raises RequestError where a
    folder holds no shard.
    """
    path = Path(path)
    if not path.is_dir():
        return [path]
    files = [file for file in path.rglob("*.parquet") if file.name != _HARNESS and not file.name.startswith(".")]
    if not files:
        raise RequestError(f"{path} holds no .parquet file: expected a file of measurements, or a folder of them")
    return sorted(files, key=lambda file: file.relative_to(path).as_posix())


def read(path: str | Path) -> Frame:
    """The measurements in `path` (.parquet, .csv, or a folder with shards), checked.

    Raises RequestError where there is no such file and SpecError, one line, where it is no dataset of this schema.
    """
    path = Path(path)
    if path.is_dir():
        return concat([read(file) for file in data_files(path)])
    _check_suffix(path)
    check_plain(path, "a file of measurements", LARGEST_TABLE)
    frame = _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)
    validate(frame, str(path))
    return frame


def read_meta(path: str | Path) -> dict[str, Any]:
    """The facts that stand in the metadata of a parquet file or in the sidecar of a CSV file. Raises SpecError.

    Of a folder: the GPUs ("devices") that its files bring along.
    """
    path = Path(path)
    if path.is_dir():
        parts = [read_meta(file).get("devices") or {} for file in data_files(path)]
        devices = {name: text for part in parts for name, text in part.items()}
        return {"schema_version": SCHEMA_VERSION, "devices": devices}
    try:
        if path.suffix == ".parquet":
            raw = (require("pyarrow.parquet").read_schema(path).metadata or {}).get(_KEY)
        else:
            raw = read_text(sidecar(path), "a sidecar") if sidecar(path).is_file() else None
        meta = None if raw is None else parse_json(raw, str(sidecar(path)))
    except (OSError, ValueError) as error:
        raise SpecError(f"{path} cannot be read: {_line(error)}") from None
    if not isinstance(meta, dict):
        place = "metadata" if path.suffix == ".parquet" else f"sidecar {sidecar(path).name}"
        raise SpecError(f"{path} has no schema version in its {place}: expected a file of `tilecast dataset import`")
    if meta.get("schema_version") != SCHEMA_VERSION:
        raise SpecError(
            f"{path} has schema version {meta.get('schema_version')!r}: expected {SCHEMA_VERSION}; import it again"
        )
    return meta


def devices(meta: Mapping[str, Any]) -> dict[str, GPUSpec]:
    """The GPUs (or processors) that a data file brings along because the catalogue lacks them, by id."""
    texts = meta.get("devices") or {}
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise SpecError("'devices' of the metadata: expected YAML texts by GPU; import the data again")
    return {name: parse_gpu(text, Path(f"{name}.yaml")) for name, text in texts.items()}


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _read_parquet(path: Path) -> Frame:
    read_meta(path)
    table = read_arrow(path, "a file of measurements")
    unknown = [name for name in table.column_names if name not in BY_NAME]
    if unknown:
        raise SpecError(f"{path} has columns outside the schema: {', '.join(unknown[:5])}")
    frame = as_frame(table)
    return to_frame({name: frame[name] for name in frame.columns}, len(frame))


def _read_csv(path: Path) -> Frame:
    pd = require("pandas")
    read_meta(path)
    try:
        csv_header(path)
        raw = pd.read_csv(path, dtype=str, keep_default_na=False)
        uneven = raw.isna().any(axis=1).to_numpy()
        if not isinstance(raw.index, pd.RangeIndex) or uneven.any():  # cells would slip into their neighbours' columns
            row = int(uneven.argmax()) + 1 if uneven.any() else 1
            raise ValueError(f"row {row} has not as many cells as the header; expected one a column")
        columns: dict[str, Any] = {}
        for name in raw.columns:
            kind = BY_NAME[name].type if name in BY_NAME else "text"
            values = raw[name]
            if kind == "bool":
                strange = ~values.isin(["True", "False", ""])
                if strange.any():
                    said = f"{name} is {values[strange].iloc[0]!r}, expected True, False or nothing"
                    raise ValueError(f"row {strange.argmax() + 1}: {said}")
                values = values.map({"True": True, "False": False})
            elif kind != "text":
                values = values.where(values != "", None)
                number = pd.to_numeric(values, errors="coerce")
                strange = number.isna() & values.notna()
                if strange.any():
                    raise ValueError(f"row {strange.argmax() + 1}: {name} is {values[strange].iloc[0]!r}, not a number")
                values = number
            elif BY_NAME[name].nullable if name in BY_NAME else False:
                values = values.where(values != "", None)
            columns[name] = values
    except (OSError, ValueError) as error:
        raise SpecError(f"{path} cannot be read: {_line(error)}") from None
    unknown = [name for name in columns if name not in BY_NAME]
    if unknown:
        raise SpecError(f"{path} has columns outside the schema: {', '.join(unknown[:5])}")
    return to_frame(columns, len(raw))
