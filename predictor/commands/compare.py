"""`tilecast compare`: one model on many GPUs, or many models on one."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.commands.predict import add_words, asked_words
from predictor.errors import RequestError, TilecastError, unknown_name
from predictor.outputs import PICTURE, output_argument

if TYPE_CHECKING:
    from predictor.hardware.gpu import GPUSpec
    from predictor.report.compare import Entry

EXAMPLES = """examples:
  tilecast compare --model llama-3.1-8b --gpu a100,h100,h200
  tilecast compare --model llama-3.1-8b,qwen3-8b --gpu h100 --mode decode --batch 32 --execution vllm
  tilecast compare --model llama-3.1-8b --gpu l4,a100,h100 --mode generate --output-len 256 --price l4=0.80,h100=2.99
  tilecast compare --model gpt2-large --gpu all --dtype fp32 --out gpus.svg
"""

#: Dollars an hour of one GPU beyond which a price is a slip of the keyboard.
LARGEST_PRICE = 1e5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `compare`: those of `predict`, with lists of models or GPUs."""
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("--model", required=True, metavar="M,...", help="names of `tilecast models` or config.json files, with commas")
    add("--gpu", required=True, metavar="G,...", help="names of `tilecast gpus` or YAML files; all: the catalogue")
    add_words(parser)
    add(
        "--price",
        metavar="G=PRICE,...",
        help="dollars an hour of one GPU: h100=2.99,a100=1.29, or a YAML file of such lines; adds the cost",
    )
    output_argument(parser, "--out", PICTURE, metavar="FILE", help="a picture: .svg, .png or .pdf (needs matplotlib)")
    add("--json", action="store_true", help="print the answer as JSON (docs/json-schema.md)")


def run(arguments: argparse.Namespace) -> int:
    """Forecast every pair, print the table, draw the picture."""
    from predictor.report.compare import check_picture, draw, print_comparison, to_json

    models, gpus = _names(arguments.model, "model"), _names(arguments.gpu, "gpu")
    if len(models) > 1 and len(gpus) > 1:
        raise RequestError(
            f"--model {arguments.model} --gpu {arguments.gpu}: expected many of one and one of the other, not"
            f" {len(models)} models on {len(gpus)} GPUs"
        )
    if arguments.out is not None:
        check_picture(Path(arguments.out))
    entries = compare(models, gpus, asked_words(arguments), arguments.price)
    if all(entry.answer is None for entry in entries):
        raise _nothing_to_show(entries)
    if arguments.out is not None:
        draw(entries, Path(arguments.out))
    if arguments.json:
        print(to_json(entries))
        return 0
    from predictor.report.console import wide_console

    print_comparison(entries, wide_console())
    if arguments.out is not None:
        print(f"written: {arguments.out}")
    return 0


def compare(models: list[str], gpus: list[str], words: Mapping[str, Any], price: str | None) -> list[Entry]:
    """One entry a model and GPU, the fastest first; one that cannot be forecast keeps the reason.

    ``words`` are keyword arguments of `predictor.predict`. Raises RequestError for a name that does not exist and for
    bad prices; what goes wrong with one pair is that entry's reason.
    """
    from predictor.api import predict
    from predictor.hardware.gpu import load_gpu
    from predictor.networks import load_config
    from predictor.report.compare import Entry, ranked

    specs, configs = [load_gpu(name) for name in gpus], [load_config(name) for name in models]
    _check_once("gpu", gpus, specs)
    _check_once("model", models, configs)
    prices = read_prices(price, specs) if price else {}
    entries = []
    for config in configs:
        for spec in specs:
            answer, reason = None, ""
            try:
                answer = predict(config, spec, **words)
            except TilecastError as error:
                reason = " ".join(str(error).split())
            entries.append(Entry(config.name, spec.id, answer, reason, prices.get(spec.id)))
    return ranked(entries)


def _names(text: str, flag: str) -> list[str]:
    """The names of a list with commas; "all" GPUs are the catalogue. Raises RequestError for a list that is none."""
    from predictor.hardware.gpu import list_gpus

    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise RequestError(f"--{flag} {text!r}: expected names with one comma between them")
    if flag == "gpu" and [name.lower() for name in names] == ["all"]:
        return list(list_gpus())
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError(f"--{flag} {text}: {twice} is named twice; expected each once")
    return names


def _check_once(flag: str, names: list[str], found: Sequence[object]) -> None:
    """RequestError where two names are of one thing, such as h100 and h100-sxm."""
    for i, thing in enumerate(found):
        first = found.index(thing)
        if first < i:
            raise RequestError(f"--{flag} {','.join(names)}: {names[first]} and {names[i]} are one; expected each once")


def _nothing_to_show(entries: list[Entry]) -> RequestError:
    """The error where no entry has a forecast: each reason once, with those that it is of."""
    of: dict[str, list[str]] = {}
    many_models = len({entry.model for entry in entries}) > 1
    for entry in entries:
        of.setdefault(entry.reason, []).append(entry.model if many_models else entry.gpu)
    if len(of) == 1:
        return RequestError(next(iter(of)))
    shown = "; ".join(
        f"{names[0]}{f' and {len(names) - 1} more' * (len(names) > 1)}: {why}" for why, names in of.items()
    )
    return RequestError(f"none of {len(entries)} can be forecast: {shown}")


# --------------------------------------------------------------------------------------------------------- prices


def read_prices(text: str, compared: list[GPUSpec]) -> dict[str, float]:
    """GPU id -> dollars an hour of one GPU, of ``name=price,...`` or a YAML file that maps names to prices.

    A name is the id of a GPU that is ``compared``, or any name of the catalogue. Raises RequestError, one line, for
    what is no price, an unknown name, and a GPU that has two.
    """
    from predictor.hardware.gpu import all_names, load_gpu

    where, pairs = f"--price {text}", _pairs(text)
    ids = {spec.id for spec in compared}
    found: dict[str, float] = {}
    for name, raw in pairs:
        try:
            key = name if name in ids else load_gpu(name).id
        except RequestError:
            raise unknown_name("GPU", name, sorted({*ids, *all_names()}), f"in {where} a GPU of the comparison"
                               " or a name of `tilecast gpus`") from None  # fmt: skip
        if key in found:
            raise RequestError(f"{where}: {key} has two prices; expected one")
        found[key] = _price(name, raw, where)
    if ids.isdisjoint(found):
        raise RequestError(f"{where}: no price of a GPU that is compared ({', '.join(sorted(ids)[:5])})")
    return found


def _pairs(text: str) -> list[tuple[str, object]]:
    if "=" not in text:
        return _pairs_of_file(Path(text))
    pairs: list[tuple[str, object]] = []
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value):
            raise RequestError(f"--price {text}: {part!r} is no price; expected NAME=DOLLARS, such as h100=2.99")
        pairs.append((name, value))
    return pairs


def _pairs_of_file(path: Path) -> list[tuple[str, object]]:
    from predictor.yaml_reader import read_yaml_file

    expected = "h100=2.99,a100=1.29, or a YAML file with lines such as 'h100: 2.99'"
    try:
        document = read_yaml_file(path.expanduser(), expected, f"--price {path}")
    except RuntimeError as error:  # the home of nobody
        raise RequestError(f"--price {path}: cannot read it: {error}; expected {expected}") from None
    if not isinstance(document, dict) or not document:
        raise RequestError(f"--price {path}: found no prices; expected {expected}")
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
