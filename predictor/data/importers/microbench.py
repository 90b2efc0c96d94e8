"""What the harness measured: <gpu>/<operator>/<software stack>/measurements.parquet, already in the schema's columns.

Beside those a file holds columns of the harness alone (case id, noise, registers, ...), which stay behind. Operators
without a class (convolution, ceilings) are counted and left out; collectives get the links of their GPU's default
system. A GPU that the catalogue lacks has its
spec in <gpu>/device.yaml: `device_files` lists them. Rows still in a journal are those of a collection that was cut
off: run it again, or go on without them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from predictor.data.dataset import Frame, ops_of, to_frame
from predictor.data.importers.base import (
    FLAG,
    Collector,
    ImportResult,
    check_columns,
    collect,
    fill_links,
    find,
    flag_below_bound,
)
from predictor.data.parquet import as_frame, read_arrow
from predictor.data.plausible import add_flag
from predictor.data.schema import BY_NAME, REQUIRED, SCHEMA_VERSION
from predictor.errors import SpecError
from predictor.files.extras import require
from predictor.files.read import parse_json
from predictor.formats.dtypes import DTYPES
from predictor.hardware.gpu import list_gpus, load_gpu
from predictor.ops import OPERATORS
from predictor.ops.roofline import TOLERANCE, roofline

EXPECTED = "<gpu>/<operator>/<software stack>/measurements.parquet"
DEVICE_FILE = "device.yaml"
_JOURNAL = "journal.jsonl"


def run(root: Path) -> ImportResult:
    """Imports every measurements.parquet below `root`. Raises SpecError where there is none, or one is broken."""
    files = find(root, ("**/measurements.parquet",))
    into = collect("microbench", root, files, EXPECTED, _import_file)
    for path in find(root, (f"**/{_JOURNAL}",)):
        lines = path.read_bytes().count(b"\n")
        if lines:
            into.skip_file(path, lines, "still in the journal of a collection that was cut off: run collect again")
    result = into.result()
    flag_below_bound(result.frame)
    devices = {}
    for path in device_files(root):
        _flag_by_device_file(path, result.frame)
        devices[load_gpu(path).id] = path.read_text(encoding="utf-8")
    return replace(result, devices=devices)


def _import_file(into: Collector, path: Path) -> None:
    table = read_arrow(path)
    about = parse_json((table.schema.metadata or {}).get(b"tilecast") or b"{}", str(path))
    version = about.get("schema_version") if isinstance(about, dict) else None
    if version != SCHEMA_VERSION:
        raise SpecError(f"{path} has schema version {version!r}: expected {SCHEMA_VERSION}")
    raw = check_columns(path, as_frame(table), REQUIRED)
    for name in sorted(set(raw["op"]) - set(OPERATORS)):
        rows = (raw["op"] == name).to_numpy()
        into.skip_file(path, int(rows.sum()), f"operator {name} has no class yet")
        raw = raw[~rows]
    if not len(raw):
        return
    raw = fill_links(raw.assign(source_file=into.relative(path)).reset_index(drop=True))
    columns = {name: raw[name] for name in raw.columns if name in BY_NAME and not raw[name].isna().all()}
    into.frames.append(to_frame(columns, len(raw)))


def device_files(root: Path) -> list[Path]:
    """The device files below `root` of GPUs that the catalogue lacks: `load_gpu` reads them."""
    return [path for path in find(root, (f"**/{DEVICE_FILE}",)) if path.parent.name not in list_gpus()]


def _flag_by_device_file(path: Path, frame: Frame) -> None:
    """Rows faster than their device file allows get the flag that rows of catalogue GPUs have, in place.

    Raises SpecError for a broken device file.
    """
    np = require("numpy")
    spec = load_gpu(path)
    supported = frame["dtype"].astype(str).isin([name for name in DTYPES if spec.supports(name)]).to_numpy()
    at = np.flatnonzero((frame["gpu"].astype(str) == spec.id).to_numpy() & supported)
    if not at.size:
        return
    bound = roofline(ops_of(frame.iloc[at]), spec).lower_bound_s
    fast = np.zeros(len(frame), dtype=bool)
    fast[at] = frame["latency_ms"].to_numpy(dtype=float)[at] / 1e3 < TOLERANCE * bound
    add_flag(frame, fast, FLAG)
