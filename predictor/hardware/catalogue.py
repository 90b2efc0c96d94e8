"""A folder of YAML files, one thing each: found by name, read with units and sources. GPUs and systems are kept so.

A value is a scalar with its unit, "3.35 TB/s", or a mapping `{value: ..., source: ...}` with, where they help,
`document` (a key of the file's `documents`), `note`, and `others` (what another source says).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from predictor.errors import RequestError, SpecError, UnknownNameError, nearest, printable, unknown_name
from predictor.files.read import read_text
from predictor.files.units import parse_quantity
from predictor.files.yaml_reader import parse_yaml

Spec = TypeVar("Spec")

#: Lowest and highest value of a dimension: what is beyond is a slip of the keyboard ("3.35 B/s" for TB/s), and numbers
#: that far apart end in a division by zero.
_RANGES: Mapping[str, tuple[str, str]] = {
    "bandwidth": ("1 MB/s", "1000 PB/s"), "bytes": ("1 KiB", "1000 PB"), "rate": ("1 MFLOP/s", "1000000 PFLOP/s"),
    "frequency": ("1 MHz", "1 THz"), "power": ("0.1 W", "1 MW"), "count": ("1", "10000000"),
    "time": ("0.1 ns", "1 s"),
}  # fmt: skip
_FLOATS = ("frequency", "bandwidth", "power", "time")  # dimensions kept as float; counts and bytes become int


@cache
def _limits(dimension: str) -> tuple[float, float]:
    low, high = _RANGES.get(dimension, ("", ""))
    return (parse_quantity(low, dimension), parse_quantity(high, dimension)) if low else (0.0, math.inf)


class Names(Protocol):
    """Names beside the ids, in one table."""

    def aliases(self) -> Mapping[str, str]:
        """Alias -> id."""

    def board(self, name: str) -> str | None:
        """The id of a name as people, tools or clouds write it; None for one that is not listed. Raises
        UnknownNameError, one line, for one that is listed as no such thing."""


def is_path(text: str) -> bool:
    """Whether a text names a file: it ends in .yaml or .yml, or holds a path separator."""
    return "/" in text or "\\" in text or text.lower().endswith((".yaml", ".yml"))


class Catalogue(Generic[Spec]):
    """The files of one folder. ``kind`` ("GPU") names them in errors, ``parse`` reads one from its text and path.

    A file's stem is its id. Its first lines may hold lists such as `aliases: [h100]`, each on one line; where there
    are many files, ``table`` has their aliases and other names, which saves opening each. ``spelled`` gives the ids
    that a name which is neither may stand for.
    """

    def __init__(
        self, kind: str, folder: Path, parse: Callable[[str, Path], Spec],
        spelled: Callable[[str], tuple[str, ...]] = lambda name: (), table: Names | None = None,
    ) -> None:  # fmt: skip
        self.kind = kind
        self.folder = folder
        self.parse = parse
        self.spelled = spelled
        self.table = table
        self._named: dict[str, Spec] = {}
        self._lists: dict[str, Mapping[str, str]] = {}

    def ids(self) -> tuple[str, ...]:
        """The stems of the files, sorted."""
        return tuple(sorted(path.stem for path in self.folder.glob("*.yaml")))

    def names(self) -> tuple[str, ...]:
        """Every name that `load` knows: ids and aliases, sorted."""
        return tuple(sorted({*self.ids(), *(self.table.aliases() if self.table else self.listed("aliases"))}))

    def listed(self, field: str) -> Mapping[str, str]:
        """Name -> id, from the one-line lists ``field`` of every file; parsing whole files would slow every start."""
        if field not in self._lists:
            names_of_files: dict[str, str] = {}
            for path in sorted(self.folder.glob("*.yaml")):
                with path.open(encoding="utf-8") as file:
                    for line, _ in zip(file, range(4), strict=False):
                        if line.startswith(f"{field}:"):
                            names = line.removeprefix(f"{field}:").strip().strip("[]").split(",")
                            names_of_files.update((name.strip().lower(), path.stem) for name in names if name.strip())
            self._lists[field] = names_of_files
        return self._lists[field]

    def load(self, name_or_path: str | Path, expected: str | None = None) -> Spec:
        """What a name or a YAML file stands for; ``expected`` says in words which names are valid.

        A name is an id or an alias, in any case, with "_" or " " for "-", or as ``spelled`` reads it. What ends in
        .yaml or .yml or holds a path separator is a file. A name is read once in a process, a file at every call.
        Raises UnknownNameError (with the nearest names, or those that it may stand for), RequestError for a file that
        is not there, SpecError for one that is wrong.
        """
        text = str(name_or_path)
        key = "-".join(text.lower().replace("_", " ").split())
        if isinstance(name_or_path, Path):
            return self._read(name_or_path)
        if key not in self._named:
            stem = self._stem(text, key, expected)
            if stem is None:
                return self._read(Path(text))
            if stem not in self._named:
                self._named[stem] = self._read(self.folder / f"{stem}.yaml")
            self._named[key] = self._named[stem]
        return self._named[key]

    def _stem(self, text: str, key: str, expected: str | None) -> str | None:
        """The id that a name stands for, ``key`` as ids are written; None where it is the path of a file."""
        path = is_path(text)
        if not path and len(key) < 200 and (self.folder / f"{key}.yaml").is_file():  # longer ones are no file's name
            return key
        stem = self.listed("aliases").get(key) if self.table is None else self.table.board(text)
        if stem is not None or path:
            return stem
        return self._spelled(text, expected)

    def _spelled(self, text: str, expected: str | None) -> str:
        """The id that a name as tools print it stands for; UnknownNameError, one line, for none and for several."""
        ids = self.spelled(text)
        if len(ids) > 1:
            raise UnknownNameError(f"{self.kind} {text!r} may be {' or '.join(ids)}: expected one of them")
        if not ids:
            raise unknown_name(self.kind, text, self.names(), expected)
        return ids[0]

    def _read(self, path: Path) -> Spec:
        named = f"{self.kind} file '{path}'"
        try:
            path = path.expanduser()
        except RuntimeError as error:  # the home of nobody
            raise RequestError(f"cannot read {named}: {error}; expected a YAML file of one {self.kind}") from None
        text = read_text(path, f"a YAML file of one {self.kind}", named)
        return self.parse(text, path)


class Document:
    """One file as it is read. All that is wrong with it is collected, so that one line can say everything.

    sources      field, such as "peak_flops.matrix.bf16" -> where its value is from
    missing      fields that are needed and absent;  problems  everything else that is wrong, one text each
    """

    def __init__(self, kind: str, text: str, path: Path, such_as: str) -> None:
        """Of the YAML ``text``, a mapping with fields ``such_as``; raises SpecError for anything else."""
        self.named = f"{kind} file '{path}'"
        self.fields: dict[Any, Any] = self._mapping(text, such_as)
        self.sources: dict[str, str] = {}
        self.missing: list[str] = []
        self.problems: list[str] = []

    def _mapping(self, text: str, such_as: str) -> dict[Any, Any]:
        loaded = parse_yaml(text, self.named)
        if not isinstance(loaded, dict):
            kind = "nothing" if loaded is None else type(loaded).__name__
            raise SpecError(f"{self.named}: expected fields such as '{such_as}', found {kind}")
        return loaded

    def entry(self, field: str, raw: object) -> object:
        """The value of `{value: ..., source: ...}` or of a plain scalar; notes the source."""
        source: object = None
        if isinstance(raw, dict):
            source, document, raw = raw.get("source"), raw.get("document"), raw.get("value")
            documents = self.fields.get("documents")
            if isinstance(document, dict | list):
                self.problems.append(f"{field}: document is {document!r:.60}; expected a key of documents")
            elif document is not None:
                title = documents.get(document, document) if isinstance(documents, dict) else document
                source = f"{source}; see {title}"
        if raw is not None:
            self.sources[field] = printable(" ".join(str(source).split())) if source is not None else "not stated"
        return raw

    def number(self, field: str, raw: object, dimension: str) -> float | None:
        """The value of ``raw`` in the base unit of ``dimension``; None where it is absent or wrong."""
        value = self.entry(field, raw)
        if value is None:
            return None
        try:
            quantity = parse_quantity(str(value), dimension)
        except RequestError as error:
            self.problems.append(f"{field}: {error}")
            return None
        low, high = _limits(dimension)
        if not low <= quantity <= high:
            shown = " to ".join(_RANGES[dimension])
            self.problems.append(f"{field}: {str(value)!r} is out of range: expected {shown}")
            return None
        return quantity

    def quantity(self, field: str, dimension: str, required: bool) -> Any:
        """The number of a field of the file, an int where it counts something; None where it is absent or wrong."""
        value = self.number(field, self.fields.get(field), dimension)
        if value is None:
            if required and field not in self.sources:
                self.missing.append(field)
            return None
        return value if dimension in _FLOATS else round(value)

    def unknown_fields(self, known: Iterable[str]) -> None:
        """Takes every field that is not ``known`` for a mistake."""
        known = tuple(known)
        for field in self.fields:
            if field not in known:
                close = nearest(str(field), known, n=1)
                self.problems.append(f"unknown field {field!r}" + (f" (nearest: {close[0]})" if close else ""))

    def raise_problems(self) -> None:
        """Raises SpecError, one line, where anything was missing or wrong."""
        said = [f"missing {', '.join(self.missing)}"] if self.missing else []
        said += self.problems
        if said:
            raise SpecError(f"{self.named}: {'; '.join(said)}")
