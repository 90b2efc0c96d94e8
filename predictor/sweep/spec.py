"""The file of a sweep: which points it stands for.

    model: [llama-3.1-8b, gpt3]          a list is an axis of the product, a single value holds for all points
    gpu: [a100, h100]
    mode: train
    batch: 512
    cases:                               words that go together: the product is taken with each of these
      - {tp: 8, dp: [4, 8]}
      - {tp: 4, pp: 2, dp: [4, 8]}
    exclude:                             points that have all of these values are left out
      - {model: gpt3, gpu: a100}
    include:                             more points, beside the single values above
      - {model: gpt2, gpu: t4, tp: 1, dp: 1}

Keys are the words of `predictor.predict`, with "-" or "_". A point that comes twice counts once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from predictor.errors import SpecError, unknown_name
from predictor.files.records import dataclass
from predictor.files.yaml_reader import read_yaml_file
from predictor.request.options import OPTIONS

Point = dict[str, Any]

EXPECTED = "a YAML file such as 'model: [gpt3]', 'gpu: [a100, h100]' (docs/how-to/sweep.md)"
#: Points of a sweep: more are a slip of the keyboard.
LARGEST = 5_000_000
_SECTIONS = ("cases", "include", "exclude")


@dataclass(frozen=True)
class Spec:
    """The points of a sweep, in the order of its file; ``words`` are those that any of them has."""

    points: tuple[Point, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """Words of the points, in the order of the table."""
        asked = {name for point in self.points for name in point}
        return tuple(name for name in OPTIONS if name in asked)

    @property
    def digest(self) -> str:
        """A hash of the points in their order."""
        return hashlib.sha256(json.dumps(self.points, sort_keys=True).encode()).hexdigest()


def read_spec(path: Path) -> Spec:
    """The points of a YAML file. Raises SpecError, one line that names the file."""
    document = read_yaml_file(path, EXPECTED)
    if not isinstance(document, dict) or not document:
        raise SpecError(f"{path}: no words of a sweep; expected {EXPECTED}")
    where = str(path)
    sections = {name: _entries(document.get(name), name, where) for name in _SECTIONS}
    axes = _axes({key: value for key, value in document.items() if key not in _SECTIONS}, where)
    cases = [_axes(case, f"{where}, cases") for case in sections["cases"]] or [{}]
    for case in cases:
        twice = next((name for name in case if name in axes), None)
        if twice is not None:
            raise SpecError(f"{where}: {twice} stands in a case and beside the cases; expected one of the two")
    single = {name: values for name, values in axes.items() if len(values) == 1}
    more = [single | _axes(entry, f"{where}, include") for entry in sections["include"]]
    # A file of includes alone is the list of its points.
    blocks = [axes | case for case in cases] if len(single) < len(axes) or sections["cases"] or not more else []
    count = sum(prod(map(len, block.values())) for block in (*blocks, *more))
    if count > LARGEST:
        raise SpecError(f"{where}: {count:,} points; expected at most {LARGEST:,}")
    left_out = [_axes(entry, f"{where}, exclude") for entry in sections["exclude"]]
    points = [*_excluding([*_products(blocks)], left_out, where), *_products(more)]
    kept = {json.dumps(point, sort_keys=True): point for point in points}
    for need in ("model", "gpu"):
        if any(need not in point for point in kept.values()):
            raise SpecError(f"{where}: a point has no {need}; expected {EXPECTED}")
    if not kept:
        raise SpecError(f"{where}: no point is left; expected fewer excludes")
    return Spec(tuple(kept.values()))


def _entries(given: Any, name: str, where: str) -> Sequence[Mapping[str, Any]]:
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(entry, dict) and entry for entry in given):
        raise SpecError(f"{where}: {name}: expected a list of words such as '- {{tp: 8, dp: 4}}'")
    return given


def _axes(words: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    """Word -> its values; a list of its values is what it says, a single value a list of one."""
    axes: dict[str, list[Any]] = {}
    known = [name for name, option in OPTIONS.items() if option.row.swept]
    for key, given in words.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise SpecError(f"{where}: {unknown_name('word', str(key), (*known, *_SECTIONS), 'a word of `predict`')}")
        numbers = OPTIONS[name].takes_numbers  # a list of them is one value, and an axis a list of lists
        if name in axes:
            raise SpecError(f"{where}: {name} appears twice; expected once")
        several = isinstance(given, list) and (not numbers or any(isinstance(each, list) for each in given))
        values = given if several else [given]
        if not values:
            raise SpecError(f"{where}: {key}: an empty list; expected values")
        for value in values:
            plain = value is None or isinstance(value, (str, int, float, bool))
            if not plain and not (numbers and isinstance(value, list)):
                raise SpecError(f"{where}: {key}: {str(value)[:60]!r}; expected plain values, or a list of them")
        axes[name] = list(values)
    return axes


def _products(blocks: Sequence[Mapping[str, list[Any]]]) -> Iterator[Point]:
    """Points of blocks; model and GPU change last, so that neighbours share most."""
    for block in blocks:
        names = [name for name in OPTIONS if name in block]
        for values in product(*(block[name] for name in names)):
            yield dict(zip(names, values, strict=True))


def _excluding(points: list[Point], left_out: Sequence[Mapping[str, list[Any]]], where: str) -> list[Point]:
    for entry in left_out:
        rest = [point for point in points if not all(point.get(name) in values for name, values in entry.items())]
        if len(rest) == len(points):
            shown = ", ".join(f"{name}: {values[0]}" for name, values in entry.items())
            raise SpecError(f"{where}: exclude {{{shown}}} matches no point; expected values of the lists above")
        points = rest
    return points
