"""What every importer shares: the result, the rows that could not be read, and reading files with one-line errors."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from predictor.data.dataset import Frame, concat, to_frame
from predictor.data.plausible import TOO_FAST, add_flag, bounds
from predictor.errors import SpecError, TilecastError
from predictor.files.extras import require
from predictor.files.read import LARGEST_TABLE, check_plain, csv_header
from predictor.files.records import dataclass
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import SystemSpec, default_system
from predictor.ops.collective import over
from predictor.ops.roofline import TOLERANCE


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows of one file that were not imported: the one at `row` (1 = first below the header), or `count` with None."""

    file: str
    row: int | None
    reason: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class ImportResult:
    """`frame`: the imported rows in the schema's columns. `skipped`: every row that is not among them, with its reason.

    `files`: how many data files were read. imported + skipped = the rows of the files. `devices`: id -> YAML text of
    every GPU (or processor) of the rows that the catalogue lacks.
    """

    source: str
    frame: Frame
    skipped: tuple[Skipped, ...] = ()
    files: int = 0
    devices: Mapping[str, str] = field(default_factory=dict)

    @property
    def imported(self) -> int:
        return len(self.frame)

    @property
    def skipped_rows(self) -> int:
        return sum(entry.count for entry in self.skipped)

    def skipped_by_reason(self) -> dict[str, int]:
        """Rows not imported, by reason, the most frequent first."""
        counts: Counter[str] = Counter()
        for entry in self.skipped:
            counts[entry.reason] += entry.count
        return dict(counts.most_common())

    def about(self) -> dict[str, Any]:
        """The facts of the import that belong in a data file's sidecar."""
        return {
            "source": self.source, "files": self.files, "imported": self.imported, "skipped": self.skipped_by_reason(),
            **({"devices": dict(self.devices)} if self.devices else {}),
        }  # fmt: skip


def joined(parts: Sequence[ImportResult]) -> ImportResult:
    """One result of the parts of a data set."""
    return ImportResult(
        parts[0].source,
        concat([part.frame for part in parts]),
        tuple(entry for part in parts for entry in part.skipped),
        sum(part.files for part in parts),
        {name: text for part in parts for name, text in part.devices.items()},
    )


@dataclass(slots=True)
class Collector:
    """Gathers frames and skipped rows file by file; `result` joins them."""

    source: str
    root: Path
    frames: list[Frame] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    files: int = 0

    def read(self, files: Iterable[Path], import_file: Callable[[Collector, Path], None]) -> None:
        """Has ``import_file`` add the rows of every file, or note why it does not."""
        for path in files:
            self.files += 1
            import_file(self, path)

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def without(self, path: Path, raw: Frame, bad: Any, reason: str) -> Frame:
        """`raw` (indexed from 0 in file order) without the rows where the boolean array `bad` is true; those are noted
        as skipped."""
        name = self.relative(path)
        self.skipped.extend(Skipped(name, int(row) + 1, reason) for row in raw.index[bad])
        return raw[~bad] if bad.any() else raw

    def add(self, path: Path, raw: Frame, cells: Mapping[str, Any]) -> None:
        """The rows of `raw` (indexed from 0 in file order) by columns of the schema, but for where they are from."""
        where = {
            "source": self.source, "source_file": self.relative(path), "source_row": raw.index.to_numpy() + 1,
        }  # fmt: skip
        if len(raw):
            self.frames.append(to_frame({**where, **cells}, len(raw)))

    def skip_file(self, path: Path, rows: int, reason: str) -> None:
        if rows:
            self.skipped.append(Skipped(self.relative(path), None, reason, rows))

    def result(self) -> ImportResult:
        frame = concat(self.frames)
        return ImportResult(self.source, frame, tuple(self.skipped), self.files)


def find(root: Path, patterns: Iterable[str]) -> list[Path]:
    """The files below `root` that match one of the glob `patterns`, sorted."""
    return sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()})


def not_this_layout(source: str, path: Path, expected: str) -> SpecError:
    return SpecError(f"{path} holds no {source} data: expected {expected}")


def collect(
    source: str, root: Path, files: Sequence[Path], expected: str, import_file: Callable[[Collector, Path], None]
) -> Collector:
    """What ``import_file`` makes of the files. Raises SpecError, which names what is ``expected``, without any."""
    if not files:
        raise not_this_layout(source, root, expected)
    into = Collector(source, root)
    into.read(files, import_file)
    return into


def read_csv(path: Path, needed: Sequence[str] = (), layout: Sequence[str] = (), **options: Any) -> Frame:
    """The CSV file as a frame. Raises SpecError, one line, where it is none, has a column twice or lacks one of the
    columns `needed`. ``layout`` is the header of a source that repeats names; the first column of a name keeps it."""
    pd = require("pandas")
    check_plain(path, "a CSV file", LARGEST_TABLE)
    try:
        if options.get("header", 0) is not None:
            csv_header(path, layout)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows that are longer than the header
            raw = pd.read_csv(path, index_col=False, **options)  # else their first cells are names of rows
    except (OSError, ValueError, pd.errors.ParserWarning) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SpecError(f"{path} cannot be read as CSV: {first}") from None
    return check_columns(path, raw, needed)


def check_columns(path: Path, raw: Frame, needed: Sequence[str]) -> Frame:
    missing = [name for name in needed if name not in raw]
    if missing:
        raise SpecError(f"{path} lacks the columns {', '.join(missing)}")
    return raw


def drop_bad_latency(into: Collector, path: Path, raw: Frame, column: str) -> Frame:
    """`raw` without the rows whose latency is no finite number above zero; those are noted as skipped."""
    latency = require("pandas").to_numeric(raw[column], errors="coerce").to_numpy(dtype=float)
    return into.without(path, raw, ~is_time(latency), "latency is no number above zero")


def is_time(values: Any) -> Any:
    """(n, ...) True for finite numbers above zero."""
    return require("numpy").isfinite(values) & (values > 0)


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


_LINK = ("link", "link_bandwidth", "link_latency_s", "in_switch", "net_bandwidth", "net_latency_s")


def collective_cells(system: SystemSpec, kinds: Frame, sizes: Frame, ranks: Frame, per_node: Frame) -> dict[str, Any]:
    """Columns of n collectives over ``system``: kind, full buffer in bytes, GPUs, GPUs in a node (series of length n).

    Where GPUs of several nodes take part and the system has no network, the network's columns are 0: not known.
    """
    pd = require("pandas")
    table = pd.DataFrame({"ranks": ranks, "ranks_per_node": per_node}).astype(int)
    links: dict[tuple[int, int], dict[str, Any]] = {}
    for n, local in table.drop_duplicates().itertuples(index=False):
        inside = n == local or system.network is None
        op = over(system, "all_reduce", "bf16", 2, local if inside else n, local) if local > 1 or not inside else None
        links[n, local] = {name: getattr(op, name) for name in _LINK} if op is not None else _one_each(system)
    pairs = list(table.itertuples(index=False, name=None))
    return {
        "op": "collective", "kind": kinds, "size": sizes, "ranks": ranks, "ranks_per_node": per_node,
        "system": system.id, **{name: pd.Series([links[pair][name] for pair in pairs]) for name in _LINK},
    }  # fmt: skip


def _one_each(system: SystemSpec) -> dict[str, Any]:
    """The link of GPUs that are alone in their node, in a system without a network."""
    link = system.within(1)
    return {
        "link": link.kind, "link_bandwidth": link.bandwidth, "link_latency_s": link.latency_s, "in_switch": False,
        "net_bandwidth": 0.0, "net_latency_s": 0.0,
    }  # fmt: skip


def fill_links(frame: Frame) -> Frame:
    """`frame` (schema columns) with the links of its collectives where a row names none: its GPU's default system.

    Rows of a GPU that the catalogue lacks, of more GPUs than a node has, of several nodes, or over another kind of link
    than the system's are left as they are.
    """
    pd = require("pandas")
    bandwidth = frame["link_bandwidth"] if "link_bandwidth" in frame else pd.Series(0.0, index=frame.index)
    here = ((frame["op"].astype(str) == "collective") & (bandwidth.fillna(0.0) <= 0.0)).to_numpy()
    if not here.any():
        return frame
    frame = frame.copy()
    link = frame["link"].astype(object).fillna("") if "link" in frame else pd.Series("", index=frame.index)
    node = frame["ranks_per_node"].fillna(0) if "ranks_per_node" in frame else pd.Series(0, index=frame.index)
    here = here & ((node <= 0) | (node == frame["ranks"])).fillna(False).to_numpy(dtype=bool)
    for gpu in sorted(set(frame.loc[here, "gpu"].astype(str))):
        try:
            system = default_system(load_gpu(gpu))
        except TilecastError:
            continue
        rows = here & (frame["gpu"].astype(str) == gpu).to_numpy() & (frame["ranks"] <= system.gpus_per_node).to_numpy()
        rows &= link.isin(["", system.link]).to_numpy()
        part = frame[rows]
        cells = collective_cells(system, part["kind"], part["size"], part["ranks"], part["ranks"])
        for name in (*_LINK, "system", "ranks_per_node"):
            values = cells[name]
            if name not in frame or str(frame[name].dtype) in ("category", "boolean", "bool"):
                frame[name] = frame[name].astype(object) if name in frame else None
            frame.loc[rows, name] = values.to_numpy() if hasattr(values, "to_numpy") else values
    return frame
