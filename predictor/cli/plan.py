"""`tilecast plan`: the fastest parallel plans of a training step that fit in memory."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor import engines
from predictor.cli.arguments import add_options, check_words, rows_of
from predictor.cli.prices import read_prices, source_of
from predictor.cli.tracked import resolve
from predictor.errors import RequestError
from predictor.files.records import replace
from predictor.report.under_way import UnderWay
from predictor.request.options import COST, DOLLARS, ENERGY, PLAN, PLANS, words_of

if TYPE_CHECKING:
    from predictor.search.training.enough import FewestGpusToTrain
    from predictor.search.training.search import PricedPlans

EXAMPLES = """examples:
  tilecast plan --model gpt3 --gpu h100 --num-gpus 64 --global-batch 64
  tilecast plan --model llama-3.1-8b --gpu h100 --num-gpus 16 --global-batch 64 --seq-len 8192 --only tp=1,2 --json
  tilecast plan --model gpt3 --gpu h100 --num-gpus 64 --global-batch 64 --only tp=8 --explain 1 --emit megatron
  tilecast plan --model gpt3 --gpu h100 --num-gpus 64 --global-batch 64 --only tp=8 --out plans.svg
"""
#: GPUs of a plan: more are a slip of the keyboard.
LARGEST = 200_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `plan`."""
    from predictor.search.training.space import WORDS

    parser.epilog = EXAMPLES
    rows = rows_of(PLAN)
    text = "the framework: {choices}; eager and compile are PyTorch FSDP"
    frameworks = [name for name in engines.names() if not engines.engine(name).samples]
    framework = rows["execution"].with_row(help=text, usual="megatron", choices=frameworks)
    rows["execution"] = replace(framework, default=None)
    part = "part of the GPU's memory that a plan may use"
    rows["memory_fraction"] = rows["memory_fraction"].with_row(help=part, usual="1")
    held = PLANS["only"].with_row(help=f"{PLANS['only'].row.help}: {', '.join(WORDS)}")
    add_options(parser, (*rows.values(), *(PLANS | {"only": held}).values()))


def run(arguments: argparse.Namespace) -> int:
    """Price every legal plan, print the best."""
    from predictor.report import plans as report

    check_words(arguments, PLANS.values())
    out = None if arguments.out is None else Path(arguments.out)
    if out is not None:
        report.check_out(out)
    arguments.num_gpus = _asked_gpus(arguments)
    with UnderWay(f"planning for {arguments.num_gpus} GPUs", arguments):
        searched, enough = _search(arguments)
    chosen = next(iter(searched.best(1)), None)
    more: dict[str, Any] = {"price_source": source_of(arguments.prices) or None, "objective": arguments.objective}
    if arguments.explain is not None:
        from predictor.search.training.space import named

        plan = named(arguments.explain, [priced.plan for priced in searched.fitting])
        chosen = next(priced for priced in searched.fitting if priced.plan == plan)
        more["explain"] = report.explain(searched, chosen)
    text = None
    if arguments.emit is not None:
        if chosen is None:
            raise RequestError(f"--emit {arguments.emit}: no plan fits; {enough or 'expected more GPUs'}")
        from predictor.search.training.emit import Emitted, emit

        work, training = searched.run.work, searched.run.work.training
        assert training is not None
        part = searched.system.shared_by(chosen.plan.groups)
        about = Emitted(searched.run.config, searched.batch, work.seq_len, work.dtype, part.gpus_per_node,
                        work.execution, training.optimizer, work.attention)  # fmt: skip
        text = more["emit"] = emit(arguments.emit, chosen.plan, about)
    if out is not None:
        _write(searched, out)
    if arguments.json:
        print(report.to_json(searched, arguments.top, more, enough))
        return 0
    from predictor.files.terminal import screen

    console = screen()
    report.print_plans(searched, arguments.top, console, enough)
    if more["price_source"]:
        print(f"Prices: {more['price_source']}, and --price.")
    if arguments.explain is not None and chosen is not None:
        report.print_explained(searched, chosen, console)
    if text is not None:
        print(f"\n{text}")
    if out is not None:
        print(f"written: {out}")
    return 0


def _search(arguments: argparse.Namespace) -> tuple[PricedPlans, FewestGpusToTrain | None]:
    """What the search gives, and how many GPUs would do where no plan fits."""
    from predictor.hardware.gpu import GPUSpec, load_gpu
    from predictor.hardware.what_if import with_values
    from predictor.request.request import Request
    from predictor.search.training.search import search
    from predictor.search.training.space import read_only

    if arguments.objective in (COST, DOLLARS) and not (arguments.price or arguments.prices):
        raise RequestError(f"--objective {arguments.objective}: expected --price, dollars an hour of one GPU")
    board = arguments.gpu if isinstance(arguments.gpu, GPUSpec) else load_gpu(arguments.gpu)
    gpu = with_values(board, arguments.gpu_set or ())
    words = {name: getattr(arguments, name) for name in words_of(PLAN) if name != "gpu_set"}
    words["execution"] = arguments.execution or next(name for name in engines.names() if engines.engine(name).trains)
    words["artifacts"] = resolve(arguments.artifacts)
    words["power"] = arguments.power or arguments.objective == ENERGY
    asked = Request(arguments.model, gpu, mode="train", **words)
    dollars = read_prices(arguments.price or (), [gpu], arguments.prices).get(gpu.id)
    only = read_only(arguments.only or ())
    searched = search(
        asked, _counts(arguments.num_gpus), arguments.global_batch, only, objective=arguments.objective,
        dollars=dollars,
    )  # fmt: skip
    if searched.fits:
        return searched, None
    from predictor.search.training.enough import enough_gpus

    return searched, enough_gpus(asked, searched, only)


def _asked_gpus(arguments: argparse.Namespace) -> str:
    """--num-gpus as given, else the number of GPUs of an instance; RequestError where neither says one."""
    from predictor.hardware.gpu import gpus_of

    of_instance = gpus_of(arguments.gpu)
    if arguments.num_gpus is None and of_instance == 1:
        raise RequestError("--num-gpus: expected how many GPUs to plan for, or an instance such as --gpu p5.48xlarge")
    return str(of_instance) if arguments.num_gpus is None else str(arguments.num_gpus)


def _counts(text: str) -> tuple[int, ...]:
    """The numbers of GPUs of a text, "64" or "64,128". RequestError for what is none."""
    counts = []
    for word in text.split(","):
        word = word.strip()
        if not (word.isascii() and word.isdigit() and 0 < int(word) <= LARGEST):
            raise RequestError(f"--num-gpus {text!r}: expected whole numbers from 1 to {LARGEST:,}, such as 64,128")
        counts.append(int(word))
    return tuple(dict.fromkeys(counts))


def _write(searched: PricedPlans, path: Path) -> None:
    from predictor.report import plans as report

    if path.suffix.lower() in report.PICTURES:
        report.draw(searched, path)
        return
    from predictor.files import outputs
    from predictor.sweep.parts import table_bytes

    rows = [report.row(searched, priced) for priced in searched.priced]
    outputs.write("--out", path, table_bytes(path, rows, list(rows[0])))
