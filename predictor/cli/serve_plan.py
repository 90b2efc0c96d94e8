"""`tilecast serve plan`: the deployments that meet an SLA, best first, with the frontier."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.cli.prices import add_price, read_prices
from predictor.cli.serve_words import add_goals, add_server, goals_of
from predictor.errors import RequestError
from predictor.files.outputs import PAGE, PICTURE, by_ending, output_argument, table
from predictor.report.under_way import UnderWay
from predictor.request.options import SERVE, words_of

if TYPE_CHECKING:
    from predictor.search.serving.answer import ServingAnswer, ServingQuestion

EXAMPLES = """examples:
  tilecast serve plan --model qwen3-32b --gpu h200 --num-gpus 8 --isl 4000 --osl 1000 --ttft 1s --tpot 20ms
  tilecast serve plan --model llama-3.1-70b --gpu h100 --num-gpus 8 --isl 2000 --osl 500 --tpot 30ms --price h100=2.99
  tilecast serve plan --model llama-3.1-8b --gpu l40s --isl 1000 --osl 250 --ttft 2s --tpot 50ms --rate 20 --min-gpus
  tilecast serve plan --model qwen3-32b --gpu h200 --num-gpus 8 --isl 4000 --osl 1000 --tpot 20ms --emit vllm
"""
#: Endings of files that --out takes.
_OUT = (".parquet", ".csv", ".svg", ".html")
#: Words of a server that a plan chooses, or has for several engines.
_CHOSEN = ("tp", "pp", "dp", "ep", "cp", "execution")

_TABLE = table("a table of plans", ("set", "ttft_low_ms", "tpot_low_ms"))
_KIND = by_ending(svg=PICTURE, html=PAGE, csv=_TABLE, parquet=_TABLE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `serve plan`."""
    from predictor.search.serving.answer import ALSO, MOST_BATCH, MOST_GPUS, SPLITS

    add_server(parser, without=_CHOSEN)
    add_goals(parser)
    add = parser.add_argument
    add("--num-gpus", type=int, metavar="N", help=f"GPUs to plan for (with --min-gpus: at most; default {MOST_GPUS})")
    add("--isl", type=int, required=True, metavar="N", help="tokens of a prompt")
    add("--osl", type=int, required=True, metavar="N", help="tokens of an answer")
    add("--execution", metavar="NAME,...", help="engines to look at (default: all whose scheduler is known)")
    add("--rate", type=float, default=0.0, metavar="R", help="requests a second that have to be served")
    add("--min-gpus", action="store_true", help="the fewest GPUs that serve --rate")
    add("--max-batch", type=int, default=MOST_BATCH, metavar="N", help="requests at a time of one rank at most")
    add(
        "--disaggregated", default=ALSO, metavar="WHICH",
        help=f"GPUs of their own for prompts: {', '.join(SPLITS)} (default {ALSO})",
    )  # fmt: skip
    add_price(parser, "adds the cost")
    add("--emit", metavar="ENGINE", help="print the commands that start the best plan of vllm, sglang or trtllm")
    add("--top", type=int, default=5, metavar="N", help="plans to list (default 5)")
    add("--simulate", type=int, default=3, metavar="N", help="plans to simulate, of the best (default 3; 0: none)")
    output_argument(
        parser, "--out", _KIND, action="append", metavar="FILE",
        help=f"also write plans and frontier: {', '.join(_OUT)}; may repeat",
    )  # fmt: skip
    add("--json", action="store_true", help="print JSON (docs/reference/json-schema.md)")


def run(arguments: argparse.Namespace) -> int:
    """Search and print."""
    from predictor.report.serving_plan import nothing_json, print_answer, to_json
    from predictor.search.serving.answer import plan_serving
    from predictor.search.serving.enough import NothingMeets

    for path in arguments.out or ():
        _check(Path(path))
    asked = _asked(arguments)
    price = _price(arguments.price, asked)
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
        print(to_json(answer, price, commands))
        return 0
    from predictor.files.terminal import screen

    print_answer(answer, screen(), price)
    if commands:
        print(f"\n{commands}")
    for path in arguments.out or ():
        print(f"written: {path}")
    return 0


def _asked(arguments: argparse.Namespace) -> ServingQuestion:
    from predictor.cli.tracked import resolve
    from predictor.hardware.gpu import gpus_of
    from predictor.request.request import Request
    from predictor.search.serving.answer import MOST_GPUS, ServingQuestion
    from predictor.search.serving.search import Sla

    words = {name: getattr(arguments, name) for name in words_of(SERVE) if name not in _CHOSEN}
    words["artifacts"] = resolve(arguments.artifacts)
    goals = goals_of(arguments)
    limits = {name: value for name in ("ttft_s", "tpot_s") if (value := getattr(goals, name)) is not None}
    of_instance = gpus_of(arguments.gpu)
    if arguments.num_gpus is None and not arguments.min_gpus and of_instance == 1:
        raise RequestError("--num-gpus: expected how many GPUs to plan for, or --rate R with --min-gpus")
    usual = MOST_GPUS if arguments.min_gpus else of_instance
    gpus = usual if arguments.num_gpus is None else arguments.num_gpus
    return ServingQuestion(
        Request(arguments.model, arguments.gpu, **words), gpus,
        arguments.isl, arguments.osl, Sla(**limits), arguments.rate, arguments.min_gpus, _executions(arguments),
        arguments.max_batch, arguments.disaggregated, arguments.top, arguments.simulate,
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


def _price(texts: Sequence[str] | None, asked: ServingQuestion) -> float | None:
    if not texts:
        return None
    spec = asked.request.board()
    return read_prices(texts, [spec])[spec.id]


def _check(path: Path) -> None:
    """RequestError for a file that --out does not write."""
    if path.suffix.lower() not in _OUT:
        raise RequestError(f"--out {str(path)!r}: expected a file that ends in {', '.join(_OUT)}")
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
