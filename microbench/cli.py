"""`microbench VERB`.

torch is imported by the workers alone, never here: plan, status, validate and compare do without it.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from predictor.errors import unknown_name
from predictor.files import outputs
from predictor.files.arguments import Parser
from predictor.files.commands import exit_status

#: verb -> (module that has `add_arguments(parser)` and `run(arguments) -> int`, one line of help)
VERBS: dict[str, tuple[str, str]] = {
    "doctor": ("microbench.commands.doctor", "is this machine fit to be measured, and what to do where it is not"),
    "first-run": ("microbench.commands.first_run", "the first session on a machine: doctor, rehearsals, collection"),
    "collect": ("microbench.commands.collect", "measure this machine's GPUs, or its processor; resumes"),
    "collectives": ("microbench.commands.collectives", "collectives over several nodes: what torchrun starts"),
    "plan": ("microbench.commands.plan", "what collect would run and how long it should take"),
    "status": ("microbench.commands.status", "how far the collections in a folder are"),
    "merge": ("microbench.commands.merge", "data sets of many nodes as one"),
    "validate": ("microbench.commands.validate", "check a data set: schema, units, duplicates, roofline, noise"),
    "report": ("microbench.commands.report", "a collection as an HTML page"),
    "compare": ("microbench.commands.compare", "two data sets over the cases that both have"),
    "workload": ("microbench.commands.workload", "time whole models end to end (needs transformers)"),
    "launch-overhead": ("microbench.commands.launch_overhead", "CPU time of a framework call, for predict"),
}


def build_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The parser of `microbench`; only ``verb``'s own arguments are filled in (None: every verb's)."""
    parser = Parser(
        prog="microbench",
        description="Times operators and models on this machine, and loses nothing.",
        epilog="example: microbench collect --device cpu --budget 60s --out datasets",
        allow_abbrev=False,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for name, (module, summary) in VERBS.items():
        sub = verbs.add_parser(
            name, help=summary, description=summary, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        if verb in (None, name):
            importlib.import_module(module).add_arguments(sub)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `microbench`; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = next((word for word in words if not word.startswith("-")), None)
    return exit_status(lambda: _run(verb, words))


def _run(verb: str | None, words: list[str]) -> int:
    """The exit status of a verb."""
    if verb is not None and verb not in VERBS:
        raise unknown_name("verb", verb, VERBS)
    parsed = build_parser(verb or "").parse_args(words)
    outputs.check(parsed)
    status: int = importlib.import_module(VERBS[parsed.verb][0]).run(parsed)
    return status


if __name__ == "__main__":
    sys.exit(main())
