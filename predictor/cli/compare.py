"""`tilecast compare`: one model on many GPUs, or many models on one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.cli.arguments import add_options, two_helps
from predictor.cli.predict import asked_words
from predictor.cli.prices import read_prices, source_of
from predictor.errors import RequestError, TilecastError
from predictor.files.outputs import PICTURE, output_argument
from predictor.report.under_way import UnderWay
from predictor.request.options import OPTIONS, OUTPUTS, PRICE, PRICES

if TYPE_CHECKING:
    from predictor.hardware.gpu import GPUSpec
    from predictor.report.compare import Entry

EXAMPLES = """examples:
  tilecast compare --model llama-3.1-8b --gpu a100,h100,h200
  tilecast compare --model llama-3.1-8b,qwen3-8b --gpu h100 --mode decode --batch 32 --execution vllm
  tilecast compare --model llama-3.1-8b --gpu l4,a100,h100 --mode generate --output-len 256 --price l4=0.80,h100=2.99
  tilecast compare --model gpt2-large --gpu all --dtype fp32 --out gpus.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `compare`: those of `predict`, with lists of models or GPUs."""
    parser.epilog = EXAMPLES
    lists = {
        "model": ("M,...", "names of `tilecast models` or config.json files, with commas"),
        "gpu": ("G,...", "names of `tilecast gpus` or YAML files, with commas; all: the catalogue"),
    }
    rows = {name: option for name, option in OPTIONS.items() if name not in ("top", "explain")}
    for name, (form, text) in lists.items():
        rows[name] = rows[name].with_row(unit=form, help=text)
    add_options(parser, (*rows.values(), OUTPUTS["json"]))
    add_options(parser, (PRICE.with_row(help=f"{PRICE.row.help}; adds the cost"), PRICES))
    output_argument(parser, "--out", PICTURE, metavar="FILE", help="a picture: .svg")
    two_helps(parser)


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
    with UnderWay("forecasting", arguments):
        entries = compare(models, gpus, asked_words(arguments), arguments.price, arguments.prices)
    if all(entry.answer is None for entry in entries):
        raise _nothing_to_show(entries)
    if arguments.out is not None:
        draw(entries, Path(arguments.out))
    if arguments.json:
        print(to_json(entries))
        return 0
    from predictor.files.terminal import screen

    print_comparison(entries, screen())
    if arguments.out is not None:
        print(f"written: {arguments.out}")
    return 0


def compare(
    models: list[str], gpus: list[str], words: Mapping[str, Any], price: Sequence[str] | None, file: str | None = None
) -> list[Entry]:  # fmt: skip
    """One entry a model and GPU, the fastest first; one that cannot be forecast keeps the reason.

    ``words`` are keyword arguments of `predictor.predict`, ``price`` and ``file`` those of --price and --prices.
    Raises RequestError for a name that does not exist and for bad prices; what goes wrong with one pair is that entry's
    reason.
    """
    from predictor.api import predict
    from predictor.hardware.gpu import gpus_of, load_gpu
    from predictor.models.built import load_config
    from predictor.report.compare import Entry, ranked

    specs, configs = [load_gpu(name) for name in gpus], [load_config(name) for name in models]
    _check_once("gpu", gpus, specs)
    _check_once("model", models, configs)
    prices, source = read_prices(price or (), specs, file), source_of(file)
    entries = []
    for config in configs:
        for name, spec in zip(gpus, specs, strict=True):
            answer, reason = None, ""
            try:
                answer = predict(config, name if gpus_of(name) > 1 else spec, **words)
            except TilecastError as error:
                reason = " ".join(str(error).split())
            entries.append(Entry(config.name, spec.id, answer, reason, prices.get(spec.id), source))
    return ranked(entries)


def boards_of(text: str) -> list[GPUSpec]:
    """The boards of a list with commas, each once. RequestError, one line, for what is none."""
    from predictor.hardware.gpu import load_gpu

    names = _names(text, "gpu")
    specs = [load_gpu(name) for name in names]
    _check_once("gpu", names, specs)
    return specs


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


def _check_once(flag: str, names: list[str], loaded: Sequence[object]) -> None:
    """RequestError where two names are of one thing, such as h100 and h100-sxm."""
    for i, thing in enumerate(loaded):
        first = loaded.index(thing)
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
