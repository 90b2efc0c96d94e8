"""What the verbs of `serve` share: the words of a server, times, and the traffic."""

from __future__ import annotations

import argparse
import csv
import importlib
import io
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.cli.arguments import add_options, rows_of
from predictor.errors import RequestError
from predictor.files import outputs
from predictor.files.records import replace
from predictor.files.units import parse_quantity
from predictor.request.options import BURSTS, GAMMA, POISSON, SERVE, words_of
from predictor.request.parse import is_number

if TYPE_CHECKING:
    from predictor.request.run import Run
    from predictor.search.serving.search import Sla
    from predictor.serving.goals import Goals
    from predictor.serving.traffic import Traffic


#: Requests that are made where nobody says how many: chosen by hand, not from data.
REQUESTS = 1000


def add_server(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """The model, the GPU, and those words of `predict` that a server has, ``without`` some."""
    from predictor.engines import USUAL_SERVER, engine, names

    rows = {name: option for name, option in rows_of(SERVE).items() if name not in without}
    if "execution" in rows:
        servers = [name for name in names() if engine(name).batching]
        rows["execution"] = replace(rows["execution"].with_row(choices=servers), default=USUAL_SERVER)
    add_options(parser, rows.values())


def server_run(
    arguments: argparse.Namespace, longest_prompt: int, longest_output: int, tp: int | None = None, drafts: int = 0
) -> Run:
    """The checked run of a server; lengths are those of the longest requests. ``tp`` in place of its own; with
    ``drafts``, the run of what makes them, too."""
    from predictor.cli.tracked import resolve
    from predictor.request.request import Request

    words: dict[str, Any] = {name: getattr(arguments, name) for name in words_of(SERVE)}
    words["artifacts"] = resolve(arguments.artifacts)
    words["tp"] = arguments.tp if tp is None else tp
    if drafts:
        words |= {name: getattr(arguments, name) for name in ("drafts", "acceptance", "draft_model")}
    run = Request(
        arguments.model, arguments.gpu, mode="generate", batch=arguments.dp, seq_len=longest_prompt,
        output_len=longest_output, **words,
    ).run()  # fmt: skip
    # a server counts drafts itself: its steps are of one token each
    return replace(run, work=run.work.changed(drafts=0, acceptance=0.0, draft_model="")) if drafts else run


def goals_of(arguments: argparse.Namespace) -> Goals:
    """The goals; RequestError for what is no time above 0."""
    from predictor.serving.goals import Goals

    goals = [None if (text := getattr(arguments, name)) is None else _limit(name, text) for name in ("ttft", "tpot")]
    return Goals(*goals)


def sla_of(arguments: argparse.Namespace) -> Sla:
    """The limits of means, or of percentiles: "p99:1s"; RequestError for what is neither."""
    from predictor.search.serving.search import Sla

    words: dict[str, float] = {}
    for name in ("ttft", "tpot"):
        text = getattr(arguments, name)
        if text is None:
            continue
        percentile, colon, limit = text.partition(":")
        if colon:
            if not _PERCENTILE.fullmatch(percentile):
                raise RequestError(
                    f"--{name} {text!r:.40}: expected a percentile and a time such as p99:{limit or '1s'}"
                )
            words[f"{name}_percentile"] = float(percentile[1:])
        words[f"{name}_s"] = _limit(name, limit if colon else text)
    return Sla(**words)


#: From the 1st percentile up to, not including, the 100th.
_PERCENTILE = re.compile(r"p[1-9][0-9]?(\.[0-9]{1,3})?")


def _limit(name: str, text: str) -> float:
    """Seconds of a word."""
    if is_number(text):
        raise RequestError(f"--{name} {text}: in which unit? expected a time such as {text}ms or {text}s")
    try:
        seconds = parse_quantity(text, "time")
    except RequestError as error:
        raise RequestError(f"--{name}: {error}") from None
    if not 0.0 < seconds < 1e6:
        raise RequestError(f"--{name} {text}: expected a time above 0, such as 20ms")
    return seconds


def traffic_of(arguments: argparse.Namespace) -> Traffic:
    """The requests; RequestError, one line, for words that do not go together."""
    from predictor.serving.traffic import made

    _check_drawn(arguments)
    if arguments.trace is not None:
        for name in ("rate", "lengths", "isl", "osl", "concurrency"):
            if getattr(arguments, name) is not None:
                raise RequestError(f"--trace {arguments.trace}: says when requests come and how long they are; expected"
                                   f" no --{name}")  # fmt: skip
        requests = _read(arguments.trace)
        return requests if arguments.requests is None else requests.first(arguments.requests)
    lengths = None
    if arguments.lengths is not None:
        if arguments.isl is not None or arguments.osl is not None:
            raise RequestError(f"--lengths {arguments.lengths}: has the lengths; expected no --isl and --osl")
        lengths = _read(arguments.lengths, timed=False)
    elif arguments.isl is None or arguments.osl is None:
        raise RequestError("expected --trace FILE, or --rate R with --lengths FILE or with --isl N --osl N")
    if (arguments.rate is None) == (arguments.concurrency is None):
        raise RequestError("expected --rate R (requests a second) or --concurrency N (a closed loop), one of them")
    default = REQUESTS if lengths is None else len(lengths)
    return made(
        arguments.requests if arguments.requests is not None else default, arguments.rate, arguments.concurrency,
        lengths, arguments.isl, arguments.osl, arguments.range, arguments.arrivals, arguments.cv, arguments.seed,
    )  # fmt: skip


def _check_drawn(arguments: argparse.Namespace) -> None:
    """RequestError for a word of how requests are drawn where nothing is drawn by it."""
    if arguments.range != 1.0 and (arguments.isl is None or arguments.osl is None):
        raise RequestError(f"--range {arguments.range:g}: of --isl and --osl; expected both, and no file with lengths")
    if arguments.arrivals != POISSON and arguments.rate is None:
        raise RequestError(f"--arrivals {arguments.arrivals}: of --rate; expected --rate R, in requests a second")
    if arguments.cv != 1.0 and arguments.arrivals not in (GAMMA, BURSTS):
        raise RequestError(f"--cv {arguments.cv:g}: of --arrivals {GAMMA} or {BURSTS}; expected one of them")


def _read(path: str, *, timed: bool = True) -> Traffic:
    from predictor.serving.request_traces import read_trace

    if not path.endswith(".parquet"):
        return read_trace(path, timed=timed)
    from predictor.data.parquet import read_rows

    return read_trace(path, timed=timed, table=read_rows(Path(path)))


def check_rows_path(path: str) -> None:
    """RequestError for a name that no table is written to."""
    if Path(path).suffix not in (".csv", ".parquet"):
        raise RequestError(f"--out {path!r}: expected a .csv or .parquet file")


def write_columns(columns: Mapping[str, Sequence[Any]], path: str) -> None:
    """A table to a CSV or parquet file, whole or not at all."""
    check_rows_path(path)
    if path.endswith(".parquet"):
        from predictor.data.parquet import table_bytes

        data = table_bytes(columns)
    else:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        data = text.getvalue().encode()
    outputs.write("--out", path, data)


EXAMPLES = """examples:
  tilecast serve simulate --model llama-3.1-8b --gpu h100 --rate 8 --isl 1000 --osl 250
  tilecast serve plan --model qwen3-32b --gpu h200 --num-gpus 8 --isl 4000 --osl 1000 --ttft 1s --tpot 20ms
"""
#: verb -> (module with `EXAMPLES`, `add_arguments(parser)` and `run(arguments) -> int`, one line of help)
ACTIONS = {
    "plan": ("predictor.cli.serve_plan", "the deployments that meet an SLA, best first"),
    "simulate": ("predictor.cli.serve_simulate", "how fast servers answer requests that arrive one by one"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `serve`."""
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, (module, text) in ACTIONS.items():
        loaded = importlib.import_module(module)
        sub = actions.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", epilog=loaded.EXAMPLES, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        loaded.add_arguments(sub)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb."""
    status: int = importlib.import_module(ACTIONS[arguments.what][0]).run(arguments)
    return status
