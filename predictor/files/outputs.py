"""Files that a command writes: never over what the same command reads, and over nothing that is not of Tilecast.

A flag whose file or folder is written is declared by `output_argument`, which adds --force. Before a command does
anything, `check` looks at every one of them:

- a file that the command reads, by any name of it (a link, a hard link), is refused, whatever --force says;
- so are two outputs of one name, a device, a pipe, a folder where a file is meant;
- a file that is there is replaced where it is what the same flag wrote before (a page of Tilecast, a table with the
  columns that it has); anything else takes --force;
- a folder that is there is replaced where it is empty or holds what the same flag wrote; --force changes nothing there.

A symbolic link stays, and its target is written. `write` looks again, with the files that were read meanwhile: those
that a sweep, a pipeline or a suite names.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from predictor.errors import RequestError
from predictor.files import read as files

#: What a page says in its head, what a picture's metadata and JSON hold: by these Tilecast knows its files again.
GENERATOR = "Tilecast"
PAGE_MARK = f'<meta name="generator" content="{GENERATOR}">'
#: Bytes at the beginning of a file that are looked at for its mark; of a picture, whose mark may stand at its end, all
#: up to so many. Chosen by hand, not from data.
_HEAD, _PICTURE = 65_536, 64 * 2**20
#: Words of a command that name no file, though a file or folder may have that name.
_NO_FILES = ("verb", "name", "register", "stage", "estimators", "by", "what", "action", "mode", "dtype", "execution")
#: Words whose folders are read, and not only files.
_FOLDERS = ("artifacts", "data", "dir", "dirs", "path", "file", "origin", "configs", "suite")
_DECLARED = "_outputs"


class OutputKind(NamedTuple):
    """What a flag writes: its name in errors, and whether a file that is there is one."""

    what: str
    is_one: Callable[[Path], bool]
    folder: bool = False


class _Output(NamedTuple):
    flag: str
    kind: OutputKind | Callable[[argparse.Namespace], OutputKind]
    beside: Callable[[Path], Sequence[tuple[Path, OutputKind]]]


class _Command:
    """The command that runs: what it reads by its words, and whether it may replace files."""

    def __init__(self) -> None:
        self.inputs: dict[tuple[int, int], str] = {}
        self.force = False


_command = _Command()


# -------------------------------------------------------------------------------------------------------------- kinds


def _head(path: Path, most: int = _HEAD) -> bytes:
    with path.open("rb") as file:
        return file.read(most)


def marked(what: str, *marks: str) -> OutputKind:
    """Files of text whose beginning has every one of ``marks``."""
    return OutputKind(what, lambda path: all(mark.encode() in _head(path) for mark in marks))


def table(what: str, columns: Iterable[str]) -> OutputKind:
    """Tables, .csv or .parquet, that have ``columns``, and maybe more."""
    needed = frozenset(columns)

    def is_one(path: Path) -> bool:
        if path.suffix.lower() == ".parquet":
            import importlib

            try:
                names = importlib.import_module("pyarrow.parquet").read_schema(path).names
            except Exception:
                return False
            return needed <= set(names)
        first = _head(path).decode("utf-8", errors="replace").lstrip("\ufeff").split("\n", 1)[0]
        return needed <= {name.strip().strip('"') for name in first.split(",")}

    return OutputKind(what, is_one)


def by_ending(**kinds: OutputKind) -> OutputKind:
    """What a file is by its ending ("svg"); a file of another ending is of none."""

    def is_one(path: Path) -> bool:
        kind = kinds.get(path.suffix[1:].lower())
        return kind is not None and kind.is_one(path)

    return OutputKind(" or ".join(dict.fromkeys(kind.what for kind in kinds.values())), is_one)


PAGE = marked("a page of Tilecast", PAGE_MARK)
TRACE = marked("a trace of Tilecast", f'"generator":"{GENERATOR}')
PICTURE = OutputKind("a picture of Tilecast", lambda path: GENERATOR.encode() in _head(path, _PICTURE))


SAVED_GRAPH = marked("a saved graph", '"schema":"tilecast graph"')
CASES = marked("cases to measure", '"format"', '"target"', '"cases"')
SIDECAR = marked("the facts beside a table", '"schema_version"', '"sha256"')


def _is_set(path: Path) -> bool:
    manifest = path / "manifest.json"
    return manifest.is_file() and b'"estimators"' in _head(manifest) and b'"schema_version"' in _head(manifest)


SET = OutputKind("a set of estimators", _is_set, folder=True)


# ---------------------------------------------------------------------------------------------------------- declaring


def output_argument(
    parser: Any, flag: str, kind: OutputKind | Callable[[argparse.Namespace], OutputKind],
    beside: Callable[[Path], Sequence[tuple[Path, OutputKind]]] = lambda path: (), **words: Any,
) -> None:  # fmt: skip
    """Add ``flag``, whose file is written, and --force. ``beside``: other files that are written with it."""
    action = parser.add_argument(flag, **words)
    declared = {**(parser.get_default(_DECLARED) or {}), action.dest: _Output(flag, kind, beside)}
    parser.set_defaults(**{_DECLARED: declared})
    force_argument(parser)


def force_argument(parser: Any) -> None:
    """Add --force, once."""
    if "--force" not in parser._option_string_actions:
        parser.add_argument(
            "--force", action="store_true",
            help="replace a file of another kind that has the name of an output; believe implausible values of a GPU"
            " or system file",
        )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- checking


def check(arguments: argparse.Namespace) -> None:
    """RequestError, one line, where an output of a command would destroy something; nothing is written."""
    global _command
    _command = _Command()
    files.forget_read()
    words = vars(arguments)
    declared: dict[str, _Output] = words.pop(_DECLARED, None) or {}
    _command.force = bool(words.pop("force", False))
    for dest, value in words.items():
        if dest not in declared and dest not in _NO_FILES:
            for text in _texts(value):
                _command_reads(dest, text)
    taken: dict[str, str] = {}
    for dest, output in declared.items():
        for text in _texts(words.get(dest)):
            kind = output.kind if isinstance(output.kind, OutputKind) else output.kind(arguments)
            place(output.flag, text, kind, taken)
            for path, other in output.beside(Path(text)):
                place(output.flag, str(path), other, taken)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _command_reads(dest: str, text: str) -> None:
    """Keep what a word of the command names: a file, one of a list, one behind "hf:" or before ":function"."""
    parts = re.split(r"[,;=\s]+", text)
    for each in dict.fromkeys((text, *parts, *(end for part in parts for end in part.split(":")))):
        if not each or "\0" in each:
            continue
        try:
            path = Path(each).expanduser()
            about = path.stat()
        except (OSError, RuntimeError, ValueError):
            continue
        if stat.S_ISDIR(about.st_mode) and dest not in _FOLDERS and not text.startswith("hf:"):
            continue
        _command.inputs[about.st_dev, about.st_ino] = each


def place(flag: str, text: str, kind: OutputKind | None, taken: dict[str, str]) -> None:
    """RequestError where ``flag`` must not write to ``text``; None: whatever file stands there may be replaced.
    ``taken``: files that other flags write, to which this one is added."""
    folder = kind is not None and kind.folder
    shown = f"{flag} {text!r}"
    if not text.strip() or "\0" in text or (text.endswith(("/", "\\")) and not folder):
        raise RequestError(f"{shown}: expected the name of a {'folder' if folder else 'file'}")
    if not folder and _special(Path(text)) and os.path.lexists(text):
        raise RequestError(f"{shown}: exists and is not a plain file; expected a file to write")
    try:
        path = Path(os.path.realpath(text))
        about = path.stat() if path.exists() else None
    except OSError as error:
        raise unwritable(flag, text, error) from None
    if str(path) in taken:
        raise RequestError(f"{shown}: is the file of {taken[str(path)]}, too; expected another one")
    taken[str(path)] = flag
    if about is not None:
        _check_there(shown, path, about, kind)


def _check_there(shown: str, path: Path, about: os.stat_result, kind: OutputKind | None) -> None:
    """RequestError for what is there and must stay."""
    _check_no_input(shown, path, about)
    if kind is not None and kind.folder:
        if not stat.S_ISDIR(about.st_mode):
            raise RequestError(f"{shown}: exists and is not a folder; expected a new folder")
        if any(path.iterdir()) and not kind.is_one(path):
            raise RequestError(f"{shown}: is a folder of something else; expected a new one, or {kind.what} to replace")
        return
    check_plain_place(shown, path, about)
    if kind is None or _command.force or about.st_size == 0:
        return
    try:
        known = kind.is_one(path)
    except OSError:
        known = False
    if not known:
        raise RequestError(f"{shown}: exists and is not {kind.what}; expected another name, or --force to replace it")


def check_plain_place(shown: str, path: Path, about: os.stat_result) -> None:
    """RequestError for a folder or a device; /dev/stdout reads as a plain file where that is one."""
    if _special(path) or not stat.S_ISREG(about.st_mode):
        raise RequestError(f"{shown}: exists and is not a plain file; expected a file to write")


def _special(path: Path) -> bool:
    parts = path.absolute().parts
    return parts[1:2] in (("dev",), ("proc",), ("sys",)) and parts[2:3] != ("shm",)


def _check_no_input(shown: str, path: Path, about: os.stat_result) -> None:
    """RequestError where the command reads ``path``, or something in it."""
    named = _command.inputs.get((about.st_dev, about.st_ino)) or files.was_read(about)
    if named is None and stat.S_ISDIR(about.st_mode):
        named = next((text for text in _command.inputs.values() if _inside(text, path)), None)
    if named is not None:
        raise RequestError(f"{shown}: this command reads it ({named}); expected another name")


def _inside(text: str, folder: Path) -> bool:
    return Path(os.path.realpath(Path(text).expanduser())).is_relative_to(folder)


# ------------------------------------------------------------------------------------------------------------ writing


def guarded(flag: str, path: Path) -> Path:
    """Where a file that ``flag`` writes to ``path`` stands: the target of a link. RequestError where it was read since
    the command began, or is no plain file now."""
    target = Path(os.path.realpath(path))
    try:
        about = target.stat()
    except OSError:
        return target
    shown = f"{flag} {str(path)!r}"
    _check_no_input(shown, target, about)
    check_plain_place(shown, target, about)
    return target


def write(flag: str, path: str | Path, data: bytes) -> None:
    """Write what ``flag`` asks for, whole or not at all. RequestError, one line."""
    try:
        files.atomic_write(guarded(flag, Path(path)), data)
    except OSError as error:
        raise unwritable(flag, path, error) from None


def unwritable(flag: str, path: str | Path, error: OSError) -> RequestError:
    """The error, returned, for a path that the system refuses."""
    reason = error.strerror or type(error).__name__
    return RequestError(f"{flag} {str(path)!r}: cannot be written ({reason}); expected a file in a folder that can be")
