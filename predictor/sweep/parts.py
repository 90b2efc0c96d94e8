"""What a sweep has so far: a folder of parts beside the file that it makes, each written whole or not at all.

A sweep that is killed, interrupted or out of disk goes on where it was: parts that are there are not run again, and the
file is written, whole, when all of them are there. Points are numbered, and the file has each of them once.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from predictor import __version__
from predictor.errors import RequestError, TilecastError
from predictor.files import outputs
from predictor.files.extras import require
from predictor.files.read import atomic_write
from predictor.sweep.answers import FAILED, Row, columns
from predictor.sweep.inputs import Inputs
from predictor.sweep.spec import Spec

#: Endings of the file that a sweep makes.
ENDINGS = PARQUET, CSV = ".parquet", ".csv"
#: Points of a part, most and least, and parts that a sweep is cut into between these. Chosen by hand, not from data:
#: a part takes a second or so, of which little is lost.
_MOST, _LEAST, _PARTS = 256, 8, 64
#: Files of the folder of parts.
_HEAD, _LOCK = "sweep.json", "lock"
_PART = re.compile(r"part-[0-9]{6}\.json|\.(part-[0-9]{6}|sweep)\.json\..*")


def check_out(out: Path) -> None:
    """RequestError where the file's ending is none of `ENDINGS`, or parquet cannot be written here."""
    if out.suffix.lower() not in ENDINGS:
        raise RequestError(f"--out {out}: expected a file that ends in {' or '.join(ENDINGS)}")
    if out.is_dir():
        raise RequestError(f"--out {out}: is a folder; expected a file that ends in {' or '.join(ENDINGS)}")
    if out.suffix.lower() == PARQUET:
        require("pyarrow.parquet")


class Parts:
    """The parts of ``spec`` on the way to ``out``. In a `with` block, which keeps other sweeps out of its folder.

    Raises RequestError where the folder holds parts of another sweep, unless ``restart``, which drops them.
    """

    def __init__(self, spec: Spec, out: Path, artifacts: str, restart: bool = False) -> None:
        self.spec = spec
        self.out = out
        self.folder = out.with_name(out.name + ".parts")
        self.size = min(_MOST, max(_LEAST, -(-len(spec.points) // _PARTS)))
        self._head = {
            "digest": spec.digest, "points": len(spec.points), "size": self.size, "artifacts": artifacts,
            "tilecast": __version__,
        }  # fmt: skip
        self._restart = restart
        self._inputs = Inputs(artifacts or None)
        # Before anything runs, so that no edit stands between what a worker reads and what is hashed.
        self._keys = [self._inputs.key(self.points(number)) for number in self.numbers]

    def __enter__(self) -> Parts:
        outputs.guarded("--out", self.out)
        self._check_folder()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / _LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise RequestError(f"{self.folder}: another sweep is at work on it; expected another --out") from None
        try:
            self._claim()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def _claim(self) -> None:
        """The folder is this sweep's: as it was left, or empty."""
        head = self.folder / _HEAD
        if self._restart:
            for path in self._ours():
                if path.name != _LOCK:
                    path.unlink()
        if head.is_file():
            try:
                same = json.loads(head.read_bytes()) == self._head
            except ValueError:
                same = False
            if not same:
                raise RequestError(
                    f"{self.folder}: holds parts of another spec, artifacts or release; expected --restart (they are"
                    " dropped), or another --out"
                )
            return
        atomic_write(head, json.dumps(self._head).encode())

    def _ours(self) -> list[Path]:
        """The files of the folder that a sweep wrote."""
        return [path for path in self.folder.iterdir() if path.name in (_HEAD, _LOCK) or _PART.fullmatch(path.name)]

    def _check_folder(self) -> None:
        """RequestError where the folder is there and no sweep made it."""
        if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
            raise RequestError(f"{self.folder}: exists and is not a folder; expected another --out")
        there = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        if there - {_LOCK} and _HEAD not in there:  # a lock alone: a sweep that ended as it began
            raise RequestError(f"{self.folder}: is a folder of something else; expected another --out")

    @property
    def numbers(self) -> range:
        """The numbers of all parts."""
        return range(-(-len(self.spec.points) // self.size))

    def first(self, number: int) -> int:
        """The number of a part's first point."""
        return number * self.size

    def points(self, number: int) -> tuple[dict[str, Any], ...]:
        """The points of a part."""
        return self.spec.points[number * self.size : (number + 1) * self.size]

    def missing(self) -> list[int]:
        """Parts that are still to run: absent, or not what a sweep wrote."""
        return [number for number in self.numbers if self._read(number) is None]

    def outdated(self) -> int:
        """Points of parts that are there and follow from other inputs: a board, a model, a set or code of before."""
        outdated = 0
        for number in self.numbers:
            try:
                there = json.loads(self._path(number).read_bytes())
                outdated += len(self.points(number)) * (there["key"] != self._keys[number])
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return outdated

    def write(self, number: int, rows: Sequence[Row]) -> None:
        """Keep the rows of a part. Raises OSError (a full disk), and RequestError where an input changed; then
        there is nothing of it."""
        if [row["point"] for row in rows] != [self.first(number) + i for i in range(len(self.points(number)))]:
            raise TilecastError(f"part {number} has rows of other points")
        self._inputs.check_same()
        atomic_write(self._path(number), json.dumps({"key": self._keys[number], "rows": list(rows)}).encode())

    def finish(self) -> int:
        """Write the file, whole, drop the parts, and return how many points have a note."""
        self._inputs.check_same()
        missing = self.missing()
        if missing:
            raise TilecastError(f"{len(missing)} parts are missing, the first of them {missing[0]}")
        names = columns(self.spec.words)
        data = table_bytes(self.out, self._rows(), names)
        noted = sum(1 for row in self._rows() if row["note"])
        outputs.write("--out", self.out, data)
        for path in self._ours():
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # what somebody put there stays
            self.folder.rmdir()
        return noted

    def first_note(self) -> str:
        """The note of the first point that has one; "" where none has."""
        return next((row["note"] for row in self._rows() if row["note"]), "")

    def failures(self) -> list[str]:
        """Notes of points that failed, where others were refused."""
        return [row["note"] for row in self._rows() if row["note"].startswith(FAILED)]

    def _rows(self) -> Iterator[Row]:
        for number in self.numbers:
            yield from self._read(number) or ()

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.json"

    def _read(self, number: int) -> list[Row] | None:
        try:
            there = json.loads(self._path(number).read_bytes())
            rows = there["rows"] if there["key"] == self._keys[number] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not isinstance(rows, list):
            return None
        expected = range(self.first(number), self.first(number) + len(self.points(number)))
        try:
            return rows if [row["point"] for row in rows] == list(expected) else None
        except (TypeError, KeyError):
            return None


def _plain(value: Any) -> Any:
    """A list of lengths as the text that `predict` reads."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


def table_bytes(path: Path, rows: Iterable[Row], names: Sequence[str]) -> bytes:
    """Rows as the file that ``path`` ends in, one of `ENDINGS`, with the columns ``names``."""
    return _csv(rows, names) if path.suffix.lower() == CSV else _parquet(list(rows), names)


def _csv(rows: Iterable[Row], names: Sequence[str]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(["" if (value := row.get(name)) is None else _plain(value) for name in names])
    return text.getvalue().encode()


def _parquet(rows: Sequence[Row], names: Sequence[str]) -> bytes:
    """A table with a type a column: that of its values, text where they differ."""
    pa, pq = require("pyarrow"), require("pyarrow.parquet")
    table = {}
    for name in names:
        values = [_plain(row.get(name)) for row in rows]
        types = {type(value) for value in values if value is not None}
        if types == {int, float}:
            values = [None if value is None else float(value) for value in values]
        elif len(types) > 1 or not types:
            values = [None if value is None else str(value) for value in values]
        table[name] = pa.array(values, pa.string() if not types else None)
    out = io.BytesIO()
    pq.write_table(pa.table(table), out, compression="zstd")
    return out.getvalue()
