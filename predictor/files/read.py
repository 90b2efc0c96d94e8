"""Reading text and JSON, and writing files whole or not at all.

What is read is a plain file of a limited size: a device, a pipe or a folder is refused before it is opened, so that
nothing hangs. Text is UTF-8; the byte order mark that editors on Windows put before it is dropped.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from predictor.errors import RequestError, SpecError

#: Bytes that a text (a config.json, a YAML file) may have: guards against files of another kind, a thousand times what
#: any has.
LARGEST_TEXT = 16 * 2**20
#: Bytes that a table (a suite, a CSV file of measurements) may have: guards against one that memory cannot hold.
LARGEST_TABLE = 4 * 2**30
#: Bytes that an archive, or the weights of an estimator, may have: guards against one that memory cannot hold.
LARGEST_ARCHIVE = 4 * 2**30
_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"), (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)  # fmt: skip
_NEW_MODE = 0o644  # of a file that was not there: readable by all, by POSIX's custom
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
#: Files that were read since `forget_read`: inode -> path.
_MOST_READ = 10_000  # entries: more than any command reads, chosen by hand, not from data
_READ: dict[tuple[int, int], str] = {}
_OTHER_UNICODE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


def user_folder(variable: str, *below_home: str) -> Path:
    """A folder of this user: what an XDG ``variable`` says, else ``below_home``. RequestError, one line, where there is
    neither, as in a container whose user has no name. A relative path counts for nothing, as that specification has it.
    """
    said = os.environ.get(variable, "")
    if Path(said).is_absolute():
        return Path(said)
    try:
        return Path.home().joinpath(*below_home)
    except RuntimeError:
        raise RequestError(f"this user has no home folder; expected HOME or {variable}, an absolute path") from None


def forget_read() -> None:
    """A command begins: nothing was read."""
    _READ.clear()


def note_read(path: Path, about: os.stat_result | None = None) -> None:
    """``path`` is read, so that the command does not write there."""
    about = about or path.stat()
    if len(_READ) < _MOST_READ:
        _READ[about.st_dev, about.st_ino] = str(path)


def was_read(about: os.stat_result) -> str | None:
    """The name under which a file was read since the last `forget_read`; None where it was not."""
    return _READ.get((about.st_dev, about.st_ino))


def check_plain(path: Path, expected: str, most: int = LARGEST_TEXT, named: str = "") -> None:
    """Raises SpecError, one line, unless ``path`` is a plain file of at most ``most`` bytes; nothing is opened.

    ``expected`` says in words what should be there, ``named`` what the line calls it (default: the path).
    """
    try:
        about = path.stat()
    except (OSError, ValueError) as error:  # a zero byte in the name is a ValueError
        raise _refused(path, expected, named, getattr(error, "strerror", None) or str(error)) from None
    kind = next((name for is_kind, name in _KINDS if is_kind(about.st_mode)), None)
    if kind is not None:
        raise _refused(path, expected, named, f"is {kind}, not a plain file")
    if about.st_size > most:
        raise _refused(path, expected, named, f"{about.st_size:,} bytes, at most {most:,} are read")
    note_read(path, about)


def inside(folder: Path, name: str) -> Path:
    """The path of a file that a table names in ``folder``. RequestError, one line, for a name that leads elsewhere."""
    if Path(name).is_absolute() or os.pardir in Path(os.path.normpath(name)).parts:
        raise RequestError(f"{name!r} leads out of {str(folder)!r}; expected the name of a file there")
    return folder / name


def read_text(path: Path, expected: str, named: str = "") -> str:
    """The UTF-8 text of a plain file, without a byte order mark. Raises SpecError, one line, as `check_plain` does."""
    check_plain(path, expected, LARGEST_TEXT, named)
    try:
        # A file of /proc tells no size, and one such as /proc/kmsg would wait for its next line.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAIT)) as file:
            data: bytes | None = file.read(LARGEST_TEXT + 1)  # None: it would wait
    except OSError as error:
        raise _refused(path, expected, named, error.strerror or str(error)) from None
    if data is None:
        raise _refused(path, expected, named, "has nothing to read yet")
    if len(data) > LARGEST_TEXT:
        raise _refused(path, expected, named, f"more than {LARGEST_TEXT:,} bytes")
    if data.startswith(_OTHER_UNICODE):
        raise _refused(path, expected, named, "UTF-16 or UTF-32, not UTF-8 text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _refused(path, expected, named, "not UTF-8 text") from None


def _refused(path: Path, expected: str, named: str, reason: str) -> SpecError:
    return SpecError(f"cannot read {named or path}: {reason}; expected {expected}")


def keyed(pairs: Sequence[tuple[str, Any]], where: str) -> dict[str, Any]:
    """The pairs as a dict. SpecError, one line, for a key that appears twice: a dict would keep the last in silence."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise SpecError(f"{where}: key {twice!r} appears twice; expected once")
    return mapping


def parse_json(text: str | bytes, where: str) -> Any:
    """What a JSON text holds; ``where`` names it in errors. Raises SpecError, one line, for a key that appears twice,
    too."""

    try:
        return json.loads(text, object_pairs_hook=lambda pairs: keyed(pairs, where))
    except json.JSONDecodeError as error:
        raise SpecError(f"{where}: line {error.lineno}: not valid JSON ({error.msg})") from None
    except RecursionError:
        raise SpecError(f"{where}: not valid JSON (nested too deep)") from None
    except ValueError as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "a number of too many digits"
        raise SpecError(f"{where}: cannot be read as JSON ({reason})") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises SpecError, one line, with the line of a syntax error."""
    value = parse_json(read_text(path, "a JSON file"), str(path))
    if not isinstance(value, dict):
        raise SpecError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def check_header(header: Sequence[str], where: str) -> None:
    """SpecError, one line, for a column that appears twice: readers would keep one of both in silence."""
    twice = next((name for name in header if name and header.count(name) > 1), None)
    if twice is not None:
        raise SpecError(f"{where}: column {twice!r} appears twice; expected once")


def csv_header(path: Path, layout: Sequence[str] = ()) -> list[str]:
    """The first line's cells of a CSV file, [] where it has none. SpecError for a column that appears twice, but for
    the very header ``layout``; OSError and ValueError where it cannot be read."""
    import csv  # a forecast reads no table

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = [name.strip() for name in next(csv.reader(file), [])]
    except csv.Error as error:
        raise ValueError(str(error)) from None
    if header != list(layout):
        check_header(header, str(path))
    return header


def read_table_text(path: Path, expected: str, known: Sequence[str]) -> str:
    """The text of a CSV file that names each column once and has a cell for every column in every row.

    ``known`` are the columns that are read; others may stand beside them, but not one that is a slip of the keyboard
    away from a column that is absent. Raises SpecError, one line.
    """
    import csv
    import io
    from difflib import get_close_matches

    text = read_text(path, expected)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except csv.Error as error:
        raise SpecError(f"cannot read {path}: {error}; expected {expected}") from None
    header = [name.strip() for name in rows[0]] if rows else []
    check_header(header, str(path))
    for name in header:
        close = get_close_matches(name, [n for n in known if n not in header], n=1, cutoff=0.85)
        if name not in known and close:
            raise SpecError(f"{path}: unknown column {name!r}; nearest: {close[0]}")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise SpecError(f"{path}, row {number}: {len(row)} cells; expected {len(header)}, one for every column")
    return text


def atomic_write(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` whole or not at all; its folder is made, a file that is replaced keeps its mode, and
    of a link the target is written. Raises OSError, for what is there and no plain file, too."""
    import tempfile  # a command that prints its answer starts without it

    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = _NEW_MODE
    if path.exists():
        if not path.is_file():
            raise OSError(errno.EEXIST, "exists and is not a plain file", str(path))
        mode = stat.S_IMODE(path.stat().st_mode)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
