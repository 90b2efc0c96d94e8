"""Data sets as folders: shards of one source and GPU, small enough for a repository, and what they hold.

A shard is a parquet file of the measurement schema without a sidecar. Rows keep their source's order, by which their
row numbers and shapes pack best; latencies are kept as float32, whose 24 bits are beyond what any clock resolves. The
same rows give the same bytes with the same release of pyarrow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from predictor.data import dataset
from predictor.data.frame import Frame
from predictor.data.schema import BY_NAME, COLUMNS, SCHEMA_VERSION
from predictor.files.extras import require
from predictor.ops import OPERATORS

#: Of a shard's metadata: what says where its rows are from.
KEY = b"tilecast"
#: No shard is larger (bytes); one that would be is cut into parts of at most so many. Chosen by hand, not from data,
#: for a repository's sake.
LARGEST = 5_000_000
_FULL = 4_500_000
_LEVEL = 19  # zstd's highest without --ultra (source: its manual)
_COUNTED = ("source", "gpu", "op")


def write_shards(frames: Iterable[Frame], folder: Path, about: Mapping[str, Any]) -> list[Path]:
    """Writes the rows of one source to ``folder``, by GPU; returns the files.

    ``frames``: its rows, those of a GPU in one frame. ``about``: facts for the files' metadata. Raises SpecError for
    rows outside the schema, RequestError where the folder cannot be written.
    """
    written: list[Path] = []
    for frame in frames:
        dataset.validate(frame)
        gpus = frame["gpu"].astype(str).to_numpy()
        for gpu in sorted(set(gpus)):
            written += _of_gpu(frame[gpus == gpu], folder / f"{gpu}.parquet", about)
    return written


def _of_gpu(part: Frame, path: Path, about: Mapping[str, Any]) -> list[Path]:
    _write(part, path, about)
    size = path.stat().st_size
    if size <= LARGEST:
        return [path]
    path.unlink()
    return _pieces(part, path, math.ceil(size / _FULL), about)


def _pieces(part: Frame, path: Path, pieces: int, about: Mapping[str, Any]) -> list[Path]:
    """``part`` in so many files, or in as many more as it takes for none to be too large."""
    each = math.ceil(len(part) / pieces)
    paths = [path.with_name(f"{path.stem}-{i + 1}.parquet") for i in range(pieces)]
    for i, piece in enumerate(paths):
        _write(part.iloc[i * each : (i + 1) * each], piece, about)
    if max(file.stat().st_size for file in paths) <= LARGEST:
        return paths
    for piece in paths:
        piece.unlink()
    return _pieces(part, path, pieces + 1, about)


def _write(part: Frame, path: Path, about: Mapping[str, Any]) -> None:
    pa, pq = require("pyarrow"), require("pyarrow.parquet")
    np = require("numpy")
    empty = {c.name for c in COLUMNS if c.nullable and c.name in part and part[c.name].isna().all()}
    kept = part.drop(columns=sorted(empty)).reset_index(drop=True)
    single = [name for name in kept if name.startswith("latency_")]
    for name in single:
        kept[name] = kept[name].astype(np.float32).astype(np.float64)
    for name in kept:  # the codes of the rows' own values, in the order in which they come
        if BY_NAME[name].type == "text":
            kept[name] = kept[name].cat.set_categories(kept[name].dropna().unique().astype(object))
    facts = {"schema_version": SCHEMA_VERSION, "rows": len(kept), "sha256": dataset.digest(kept), **about}
    table = dataset.to_table(kept)
    for name in single:
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.float32()))
    table = table.replace_schema_metadata({KEY: json.dumps(facts).encode()})
    encodings = dict.fromkeys(single, "BYTE_STREAM_SPLIT") | {"source_row": "DELTA_BINARY_PACKED"}
    dataset.replace_file(path, lambda name: pq.write_table(
        table, name, compression="zstd", compression_level=_LEVEL, row_group_size=max(1, len(kept)),
        use_dictionary=[name for name in kept if name not in encodings], column_encoding=encodings,
        write_statistics=False, dictionary_pagesize_limit=1 << 24,
    ))  # fmt: skip


def count_rows(path: Path) -> Frame:
    """Rows of a file or folder by source, GPU and operator: a frame with columns source, gpu, op, rows.

    Reads three columns, no more. Raises RequestError and SpecError as `dataset.read` does.
    """
    pd, pq, pa = require("pandas"), require("pyarrow.parquet"), require("pyarrow")
    parts = []
    for file in dataset.data_files(path):
        if file.suffix == ".parquet":
            dataset.read_meta(file)
            table = pq.read_table(file, columns=list(_COUNTED))
        else:
            table = pa.Table.from_pandas(dataset.read(file)[list(_COUNTED)].astype(str))
        counts = table.group_by(list(_COUNTED)).aggregate([([], "count_all")]).to_pandas()
        parts.append(counts.rename(columns={"count_all": "rows"}).astype(dict.fromkeys(_COUNTED, str)))
    return pd.concat(parts).groupby(list(_COUNTED), as_index=False)["rows"].sum()


def rows_markdown(path: Path) -> str:
    """`count_rows` as a Markdown table: a line a source and GPU, a column an operator."""
    counts = count_rows(path)
    ops = [name for name in OPERATORS if name in set(counts["op"])]
    wide = counts.pivot_table(index=["source", "gpu"], columns="op", values="rows", fill_value=0, aggfunc="sum")
    lines = [_line(["source", "GPU", *ops, "all"]), _line(["---", "---", *["--:"] * (len(ops) + 1)])]
    for (source, gpu), row in wide.iterrows():
        lines.append(_line([source, gpu, *_numbers([row[op] for op in ops])]))
    lines.append(_line(["all", "", *_numbers([wide[op].sum() for op in ops])]))
    return "\n".join(lines)


def _numbers(values: Sequence[float]) -> list[str]:
    """Counts and their sum; nothing for none."""
    return [f"{int(v):,}" if v else "" for v in [*values, sum(values)]]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
