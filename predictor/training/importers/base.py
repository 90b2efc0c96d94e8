"""What every importer shares: the result, the rows that could not be read, and reading files with one-line errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from predictor.errors import SpecError
from predictor.files import LARGEST_TABLE, check_plain
from predictor.training.dataset import Frame, concat
from predictor.training.extras import require


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

    def skip_where(self, path: Path, raw: Frame, bad: Any, reason: str) -> None:
        """Notes the rows of `raw` (indexed from 0 in file order) where the boolean array `bad` is true."""
        name = self.relative(path)
        self.skipped.extend(Skipped(name, int(row) + 1, reason) for row in raw.index[bad])

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


def read_csv(path: Path, needed: Sequence[str] = (), **options: Any) -> Frame:
    """The CSV file as a frame. Raises SpecError, one line, where it is none or lacks one of the columns `needed`."""
    pd = require("pandas")
    check_plain(path, "a CSV file", LARGEST_TABLE)
    try:
        raw = pd.read_csv(path, **options)
    except (OSError, ValueError) as error:
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
    np, pd = require("numpy"), require("pandas")
    latency = pd.to_numeric(raw[column], errors="coerce").to_numpy(dtype=float)
    bad = ~(np.isfinite(latency) & (latency > 0))
    if bad.any():
        into.skip_where(path, raw, bad, "latency is no number above zero")
        raw = raw[~bad]
    return raw
