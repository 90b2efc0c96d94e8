"""`tilecast serve`: requests under load."""

from __future__ import annotations

import argparse
import importlib

EXAMPLES = """examples:
  tilecast serve simulate --model llama-3.1-8b --gpu h100 --rate 8 --isl 1000 --osl 250
  tilecast serve plan --model qwen3-32b --gpu h200 --num-gpus 8 --isl 4000 --osl 1000 --ttft 1s --tpot 20ms
"""
#: verb -> (module with `EXAMPLES`, `add_arguments(parser)` and `run(arguments) -> int`, one line of help)
ACTIONS = {
    "plan": ("predictor.commands.serve_plan", "the deployments that meet an SLA, best first"),
    "simulate": ("predictor.commands.serve_simulate", "how fast requests are answered that arrive one by one"),
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
