"""`tilecast serve simulate`: requests under load."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from predictor.cli.arguments import add_options, check_words
from predictor.cli.serve_words import (
    add_server,
    check_rows_path,
    goals_of,
    server_run,
    traffic_of,
    write_columns,
)
from predictor.errors import RequestError
from predictor.files.records import replace
from predictor.report.under_way import UnderWay
from predictor.request.options import GOALS, ON, SIMULATIONS, TRAFFIC
from predictor.request.speculation import check_words_together, read_acceptance

if TYPE_CHECKING:
    from predictor.serving.deployment import Options
    from predictor.serving.simulator import Served
    from predictor.serving.traffic import Traffic

EXAMPLES = """examples:
  tilecast serve simulate --model llama-3.1-8b --gpu h100 --rate 8 --isl 1000 --osl 250
  tilecast serve simulate --model llama-3.1-70b --gpu h100 --tp 8 --execution sglang --concurrency 64 --isl 400 --osl 99
  tilecast serve simulate --model llama-3.1-8b --gpu l40s --trace requests.csv --ttft 1s --tpot 50ms --html served.html
  tilecast serve simulate --model qwen3-32b --gpu h200 --rate 4 --lengths sharegpt.json --json --out requests.parquet
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `serve simulate`."""
    add_server(parser)
    add_options(parser, (*TRAFFIC.values(), *GOALS.values(), *SIMULATIONS.values()))


def _serving(arguments: argparse.Namespace, traffic: Traffic, options: Options) -> Callable[[float], Served]:
    """The simulation with every step so many times as long; its tables are filled once."""
    from predictor.serving.disaggregated import Apart, costs_apart, serve_apart
    from predictor.serving.simulator import costs_of, deployed, serve

    lengths = int(traffic.input_tokens.max()), int(traffic.output_tokens.max())
    asked = server_run(arguments, *lengths, drafts=arguments.drafts)
    if arguments.prefill_servers is None:
        if arguments.prefill_tp is not None:
            raise RequestError(f"--prefill-tp {arguments.prefill_tp}: of servers that read prompts; expected"
                               " --prefill-servers N")  # fmt: skip
        costs = costs_of(deployed(asked, traffic, options), traffic)
        return lambda factor: serve(asked, traffic, options, costs.scaled(factor))
    try:
        prompts = server_run(arguments, *lengths, tp=arguments.prefill_tp)
    except RequestError as error:
        raise RequestError(str(error).replace("--tp ", "--prefill-tp ")) from None
    apart = Apart(prompts, arguments.prefill_servers)
    reads, decodes = costs_apart(asked, apart, traffic, options)
    return lambda factor: serve_apart(asked, apart, traffic, options, (reads.scaled(factor), decodes.scaled(factor)))


def run(arguments: argparse.Namespace) -> int:
    """Simulate and print."""
    from predictor.forecast.uncertainty import why_of_services
    from predictor.report.serving import columns_of, print_served, to_dict, to_json
    from predictor.serving.deployment import Options
    from predictor.serving.goals import ranges_by, service_errors

    check_words(arguments, (*TRAFFIC.values(), *SIMULATIONS.values()))
    if arguments.out is not None:
        check_rows_path(arguments.out)
    goals, traffic = goals_of(arguments), traffic_of(arguments)
    traffic = replace(traffic, notes=(*arguments.remarks, *traffic.notes))
    check_words_together(arguments.drafts, arguments.acceptance, arguments.draft_model)
    acceptance = 0.0
    if arguments.drafts:
        acceptance, note = read_acceptance(arguments.acceptance, arguments.drafts)
        traffic = replace(traffic, notes=(*traffic.notes, note)) if note else traffic
    prefixes = None if arguments.prefix_cache is None else arguments.prefix_cache == ON
    options = Options(
        arguments.max_num_seqs, arguments.max_num_batched_tokens, prefixes, arguments.drafts,
        acceptance, arguments.replicas, receive_every=arguments.receive_every,
    )  # fmt: skip
    with UnderWay(f"simulating {len(traffic):,} requests", arguments):
        serve_at = _serving(arguments, traffic, options)
        served = serve_at(1.0)
        known = service_errors(served, serve_at)
        summary = to_dict(served, goals, ranges_by(known, served), why_of_services(known))
    if arguments.out is not None:
        write_columns(columns_of(served), arguments.out)
    if arguments.html is not None or arguments.timeline is not None:
        from predictor.report.serving_page import write_reports

        write_reports(served, summary, html=arguments.html, timeline=arguments.timeline)
    if arguments.json:
        print(to_json(summary))
        return 0
    from predictor.files.terminal import screen

    print_served(summary, screen())
    return 0
