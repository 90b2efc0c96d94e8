"""`tilecast serve plan`: the deployments that meet an SLA, best first, with the frontier."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.cli.arguments import add_options, check_words
from predictor.cli.prices import read_prices, source_of
from predictor.cli.serve_words import add_server, sla_of
from predictor.errors import RequestError
from predictor.report.under_way import UnderWay
from predictor.request.options import COST, GOALS, MOST_GPUS, SERVE, SERVE_PLANS, SERVE_PLANS_IN, words_of

if TYPE_CHECKING:
    from predictor.search.serving.answer import ServingAnswer, ServingQuestion

EXAMPLES = """examples:
  tilecast serve plan --model qwen3-32b --gpu h200 --num-gpus 8 --isl 4000 --osl 1000 --ttft 1s --tpot 20ms
  tilecast serve plan --model llama-3.1-70b --gpu h100 --num-gpus 8 --isl 2000 --osl 500 --tpot 30ms --price h100=2.99
  tilecast serve plan --model llama-3.1-8b --gpu l40s --isl 1000 --osl 250 --ttft 2s --tpot 50ms --rate 20 --min-gpus
  tilecast serve plan --model qwen3-32b --gpu h200 --num-gpus 8 --isl 4000 --osl 1000 --tpot 20ms --emit vllm
"""
#: Words of a server that a plan chooses, or has for several engines.
_CHOSEN = ("tp", "pp", "dp", "ep", "cp", "execution")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `serve plan`."""
    add_server(parser, without=_CHOSEN)
    add_options(parser, (*GOALS.values(), *SERVE_PLANS.values()))


def run(arguments: argparse.Namespace) -> int:
    """Search and print."""
    from predictor.report.serving_plan import nothing_json, print_answer, to_json
    from predictor.search.serving.answer import plan_serving
    from predictor.search.serving.enough import NothingMeets

    check_words(arguments, SERVE_PLANS.values())
    for path in arguments.out or ():
        _check(Path(path))
    asked = _asked(arguments)
    price = _price(arguments, asked)
    try:
        with UnderWay(f"planning for {asked.num_gpus:,} GPUs", arguments):
            answer = plan_serving(asked)
    except NothingMeets as error:
        if arguments.json:
            print(nothing_json(asked, error, price))
        raise
    commands = _commands(arguments, answer)
    for path in arguments.out or ():
        _write(Path(path), answer, price)
    if arguments.json:
        print(to_json(answer, price, commands, source_of(arguments.prices)))
        return 0
    from predictor.files.terminal import screen

    print_answer(answer, screen(), price)
    if source := source_of(arguments.prices):
        print(f"Prices: {source}, and --price.")
    if commands:
        print(f"\n{commands}")
    for path in arguments.out or ():
        print(f"written: {path}")
    return 0


def _asked(arguments: argparse.Namespace) -> ServingQuestion:
    from predictor.cli.tracked import resolve
    from predictor.hardware.gpu import gpus_of
    from predictor.request.request import Request
    from predictor.search.serving.answer import ServingQuestion

    words = {name: getattr(arguments, name) for name in words_of(SERVE) if name not in _CHOSEN}
    words["artifacts"] = resolve(arguments.artifacts)
    of_instance = gpus_of(arguments.gpu)
    if arguments.num_gpus is None and not arguments.min_gpus and of_instance == 1:
        raise RequestError("--num-gpus: expected how many GPUs to plan for, or --rate R with --min-gpus")
    usual = MOST_GPUS if arguments.min_gpus else of_instance
    gpus = usual if arguments.num_gpus is None else arguments.num_gpus
    return ServingQuestion(
        Request(arguments.model, arguments.gpu, **words), gpus,
        arguments.isl, arguments.osl, sla_of(arguments), arguments.rate, arguments.min_gpus, _executions(arguments),
        arguments.max_batch, arguments.disaggregated, arguments.top, arguments.simulate, arguments.objective or "",
        arguments.power,
    )  # fmt: skip


def _executions(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The engines of --execution, else that of --emit, else that of --software, else () for all."""
    from predictor import engines
    from predictor.search.serving.space import serving_engines

    if arguments.execution is not None:
        return tuple(dict.fromkeys(name.strip() for name in arguments.execution.split(",")))
    if arguments.emit is not None:
        return (_emitted(arguments.emit),)
    if arguments.software:
        named = engines.running(engines.EAGER.name, arguments.software).name
        if named == engines.EAGER.name:
            raise RequestError(
                f"--software {arguments.software!r}: names no engine; expected one of"
                f" {', '.join(serving_engines())} and its version or a year"
            )
        return (named,)
    return ()


def _emitted(word: str) -> str:
    """The engine that a word of --emit names."""
    from predictor import engines
    from predictor.engines.serve_options import listed

    engine_name = next((name for name in listed() if word in (name, *engines.engine(name).called)), None)
    if engine_name is None:
        raise RequestError(f"--emit {word}: expected one of {', '.join(listed())}")
    return engine_name


def _commands(arguments: argparse.Namespace, answer: ServingAnswer) -> str:
    if arguments.emit is None:
        return ""
    from predictor.search.serving.emit import commands

    name = _emitted(arguments.emit)
    every = (*(entry.plan for entry in answer.entries), *answer.found.best)
    plan = next((layout for layout in every if layout.group.execution == name), None)
    if plan is None:
        raise RequestError(
            f"--emit {arguments.emit}: no plan of {name} meets the SLA; expected --execution with {name}"
        )
    return commands(plan, _repository(arguments.model))


def _repository(model: str) -> str:
    """What an engine loads: the name on Hugging Face of a model of the catalogue, else the words that were typed."""
    from predictor.models.built.load import aliases

    return next((name for name, known in aliases().items() if known == model and "/" in name), model)


def _price(arguments: argparse.Namespace, asked: ServingQuestion) -> float | None:
    if not (arguments.price or arguments.prices):
        if arguments.objective == COST:
            raise RequestError(f"--objective {COST}: expected --price, dollars an hour of one GPU")
        return None
    spec = asked.request.board()
    return read_prices(arguments.price or (), [spec], arguments.prices)[spec.id]


def _check(path: Path) -> None:
    """RequestError for a file that --out does not write."""
    if path.suffix.lower() not in SERVE_PLANS_IN:
        raise RequestError(f"--out {str(path)!r}: expected a file that ends in {', '.join(SERVE_PLANS_IN)}")
    if path.is_dir():
        raise RequestError(f"--out {str(path)!r}: is a folder; expected a file")


def _write(path: Path, answer: ServingAnswer, price: float | None) -> None:
    from predictor.files import outputs
    from predictor.report.html_frontier import frontier_svg
    from predictor.report.serving_plan import rows_of, to_html

    ending = path.suffix.lower()
    if ending in (".parquet", ".csv"):
        from predictor.files.extras import require
        from predictor.fit.evaluate import write_rows

        write_rows(require("pandas").DataFrame(rows_of(answer, price)), path)
        return
    content = frontier_svg(answer) if ending == ".svg" else to_html(answer, price).encode()
    outputs.write("--out", path, content)
