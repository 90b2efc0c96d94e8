"""What the harness measured: <gpu>/<operator>/<software stack>/measurements.parquet, already in the schema's columns.

Beside those a file holds columns of the harness alone (case id, noise, registers, ...), which stay behind. Operators
without a class (ceilings) are counted and left out; collectives get the links of their GPU's default system. A GPU that
the catalogue lacks has its spec in <gpu>/device.yaml: `device_files` lists them. Rows that no kernel can have taken are
kept apart, and latencies in another unit than milliseconds are refused, as `predictor.data.plausible` has it. Rows
still in a journal are those of a collection that was cut off: run it again, or go on without them.
"""

from __future__ import annotations

from pathlib import Path

from predictor.data.dataset import to_frame
from predictor.data.importers.base import (
    Collector,
    ImportResult,
    check_columns,
    collect,
    fill_links,
    find,
)
from predictor.data.parquet import as_frame, read_arrow
from predictor.data.plausible import HARNESS_UNIT_LIMIT, keep_apart
from predictor.data.schema import BY_NAME, REQUIRED, SCHEMA_VERSION
from predictor.errors import SpecError
from predictor.files.read import parse_json
from predictor.files.records import replace
from predictor.hardware.gpu import list_gpus, load_gpu
from predictor.ops import OPERATORS

EXPECTED = "<gpu>/<operator>/<software stack>/measurements.parquet"
DEVICE_FILE = "device.yaml"
_JOURNAL = "journal.jsonl"


def run(root: Path) -> ImportResult:
    """Imports every measurements.parquet below `root`. Raises SpecError where there is none, one is broken, or most
    rows are in another unit."""
    files = find(root, ("**/measurements.parquet",))
    into = collect("microbench", root, files, EXPECTED, _import_file)
    for path in find(root, (f"**/{_JOURNAL}",)):
        lines = path.read_bytes().count(b"\n")
        if lines:
            into.skip_file(path, lines, "still in the journal of a collection that was cut off: run collect again")
    result = into.result()
    specs = [load_gpu(path) for path in device_files(root)]
    keep_apart(result.frame, str(root), {spec.id: spec for spec in specs}, unit_limit=HARNESS_UNIT_LIMIT)
    return replace(result, devices={spec.id: spec.path.read_text(encoding="utf-8") for spec in specs})


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
