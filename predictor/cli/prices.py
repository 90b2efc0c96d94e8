"""Dollars an hour of a GPU: the words of --price, which `compare`, `plan` and `serve plan` share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.errors import RequestError, unknown_name
from predictor.request.parse import is_number

if TYPE_CHECKING:
    from predictor.hardware.gpu import GPUSpec

#: Dollars an hour of one GPU beyond which a price is a slip of the keyboard.
LARGEST_PRICE = 1e5
_FILE = "lines 'date: 2026-11-28', 'provider: NAME' and 'gpus:' with lines such as '  h100: 2.99' below it"
_LONGEST = 60  # characters of a provider's name; guards against names that no line has room for
_EXPECTED = "h100=2.99,a100=1.29, or a YAML file with lines such as 'h100: 2.99'"


def read_prices(texts: Sequence[str], compared: Sequence[GPUSpec], file: str | None = None) -> dict[str, float]:
    """GPU id -> dollars an hour of one GPU, of the texts of every ``--price``, before those of the ``file`` of
    ``--prices``; empty where neither is given.

    A text is ``name=price,...``, a YAML file that maps names to prices, or a number where one GPU is ``compared``.

    A name is the id of a GPU that is ``compared``, or any name of the catalogue. Raises RequestError, one line, for
    what is no price, an unknown name, and a GPU that has two.
    """
    from predictor.hardware.gpu import all_names, load_gpu

    ids = {spec.id for spec in compared}
    listed = {} if file is None else _read_file(file)[0]
    if file is not None and ids.isdisjoint(listed):
        raise RequestError(f"--prices {file}: no price of a GPU that is compared ({', '.join(sorted(ids)[:5])})")
    prices: dict[str, float] = {}
    for text in texts:
        where = f"--price {text}"
        for name, raw in _pairs(text, compared):
            try:
                key = name if name in ids else load_gpu(name).id
            except RequestError:
                raise unknown_name("GPU", name, sorted({*ids, *all_names()}), f"in {where} a GPU of the comparison"
                                   " or a name of `tilecast gpus`") from None  # fmt: skip
            if key in prices:
                raise RequestError(f"{where}: {key} has two prices; expected one")
            prices[key] = _price(name, raw, where)
    if texts and ids.isdisjoint(prices):
        raise RequestError(
            f"--price {' '.join(texts)}: no price of a GPU that is compared ({', '.join(sorted(ids)[:5])})"
        )
    return listed | prices


def source_of(file: str | None) -> str:
    """The provider and the date of the prices of a file, in words; "" without a file."""
    return "" if file is None else _read_file(file)[1]


def _read_file(file: str) -> tuple[dict[str, float], str]:
    """The prices of a file by GPU id, and where they are from, in words."""
    from predictor.files.yaml_reader import read_yaml_file
    from predictor.hardware.gpu import load_gpu

    where = f"--prices {file}"
    document = read_yaml_file(Path(file).expanduser(), _FILE, where)
    known = ("date", "provider", "gpus")
    if not isinstance(document, dict) or not isinstance(document.get("gpus"), dict) or set(document) - set(known):
        raise RequestError(f"{where}: expected {_FILE}")
    try:
        day = date.fromisoformat(str(document.get("date")))
    except ValueError:
        raise RequestError(f"{where}: date {document.get('date')!r:.40}: expected a day, such as 2026-11-28") from None
    provider = str(document.get("provider") or "").strip()
    if not (provider and provider.isprintable() and len(provider) <= _LONGEST):
        raise RequestError(f"{where}: expected a provider, in a few words")
    prices: dict[str, float] = {}
    for name, raw in document["gpus"].items():
        key = load_gpu(str(name)).id
        if key in prices:
            raise RequestError(f"{where}: {key} has two prices; expected one")
        prices[key] = _price(str(name), raw, where)
    return prices, f"{provider}, {day}"


def _pairs(text: str, compared: Sequence[GPUSpec]) -> list[tuple[str, object]]:
    if "=" not in text:
        return [(_alone(text, compared), text)] if is_number(text) else _pairs_of_file(Path(text))
    pairs: list[tuple[str, object]] = []
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value):
            raise RequestError(f"--price {text}: {part!r} is no price; expected NAME=DOLLARS, such as h100=2.99")
        pairs.append((name, value))
    return pairs


def _alone(text: str, compared: Sequence[GPUSpec]) -> str:
    """The one GPU that a number without a name is the price of."""
    if len(compared) > 1:
        raise RequestError(
            f"--price {text}: of which of {len(compared)} GPUs? expected GPU=USD, such as {compared[0].id}={text}"
        )
    return compared[0].id


def _pairs_of_file(path: Path) -> list[tuple[str, object]]:
    from predictor.files.yaml_reader import read_yaml_file

    try:
        document = read_yaml_file(path.expanduser(), _EXPECTED, f"--price {path}")
    except RuntimeError as error:  # the home of nobody
        raise RequestError(f"--price {path}: cannot read it: {error}; expected {_EXPECTED}") from None
    if not isinstance(document, dict) or not document:
        raise RequestError(f"--price {path}: found no prices; expected {_EXPECTED}")
    return [(str(name), value) for name, value in document.items()]


def _price(name: str, raw: object, where: str) -> float:
    try:
        plain = isinstance(raw, (str, int, float)) and not isinstance(raw, bool) and str(raw).isascii()
        value = float(str(raw)) if plain else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not 0.0 < value <= LARGEST_PRICE:
        raise RequestError(
            f"{where}: {str(raw)!r} is no price of {name}; expected dollars an hour of one GPU above 0, such as 2.99"
        )
    return value
