"""The command line: `tilecast VERB`, `predict` (= `tilecast predict`) and `microbench`.

Handlers import what they need, so that `predict` starts without pandas or a terminal library that it does not use.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from predictor.errors import unknown_name
from predictor.files import outputs
from predictor.files.arguments import Parser
from predictor.files.commands import Terminated, exit_status, whole_process
from predictor.hardware.plausible import believing

#: group -> verb -> (module that has `add_arguments(parser)` and `run(arguments) -> int`, one line of help)
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Forecast": {
        "predict": ("predictor.cli.predict", "how long a model takes on a GPU, and why"),
        "serve": ("predictor.cli.serve_words", "requests under load: simulate, plan"),
        "compare": ("predictor.cli.compare", "one model on many GPUs, or many models on one"),
        "plan": ("predictor.cli.plan", "the fastest parallel plans of a training step on so many GPUs"),
        "bench-suite": ("predictor.cli.bench_suite", "every module in a folder of Python files, by board"),
        "sweep": ("predictor.cli.sweep", "many forecasts from one file, to a table"),
        "trace": ("predictor.cli.trace", "a profiler's trace of a job: what ran, and how long on other boards"),
        "ui": ("predictor.cli.ui", "a page to play with, on loopback (extra ui)"),
    },
    "Look up": {
        "gpus": ("predictor.cli.gpus", "the GPU catalogue; with a name, one GPU with its sources"),
        "models": ("predictor.cli.models", "the model catalogue; with a name, one model"),
    },
    "Measure": {
        "microbench": ("", "time the operators of this machine (a process of its own; needs torch)"),
        "dataset": ("predictor.cli.dataset", "import measurements, describe a data set"),
    },
    "Learn": {
        "train": ("predictor.cli.train", "fit every estimator from measurements"),
        "calibrate": ("predictor.cli.calibrate", "adapt the estimators to a GPU by a few measured rows"),
        "evaluate": ("predictor.cli.evaluate", "forecasts against measurements"),
        "ledger": ("predictor.cli.ledger", "forecasts dated before their measurement: record, score"),
        "runs": ("predictor.cli.runs", "runs that MLflow did not take: list them, send them"),
    },
    "Shell": {
        "completion": ("predictor.cli.completion", "print a script that completes these words in your shell"),
    },
}
NAMES = {verb: entry for group in GROUPS.values() for verb, entry in group.items()}
#: the verbs that run in this process
VERBS = {verb: entry for verb, entry in NAMES.items() if entry[0]}

EXAMPLES = """Examples:
  tilecast predict --model gpt3 --gpu h100
  tilecast predict --model gpt2-large --gpu v100 --mode train --batch 4 --dtype fp32
  tilecast predict --model llama-3.1-8b --gpu h200 --mode generate --output-len 256 --execution vllm
  tilecast compare --model llama-3.1-8b --gpu l4,a100,h100 --mode decode --batch 32
  tilecast gpus h100

`tilecast VERB --help` has the options of a verb, with examples. `predict` is short for `tilecast predict`.
A GPU may be a YAML file and a model a Hugging Face config.json. Exit status: 0 done, 1 the work failed,
2 the request is wrong."""


def page() -> str:
    """What `tilecast --help` says of the verbs, by group."""
    lines = ["How long will this model take on that GPU, before anyone runs it?"]
    for group, verbs in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {verb:<12}{summary}" for verb, (_, summary) in verbs.items())]
    return "\n".join(lines)


def build_parser(verb: str | None = None, explains: bool = True) -> argparse.ArgumentParser:
    """The parser of `tilecast`: of ``verb`` alone where it is one; None, "completion": of all, with their arguments.

    ``explains``: its help is read."""
    parser = Parser(
        prog="tilecast",
        usage="tilecast VERB [OPTION ...]",
        description=page(),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser._optionals.title = "Options"
    verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, parser_class=Parser, prog="tilecast", help=argparse.SUPPRESS
    )
    every = verb in (None, "completion")
    for name, (module, summary) in NAMES.items():
        if not every and verb in NAMES and name != verb:
            continue
        sub = verbs.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=bool(module),
        )
        sub.explains = explains
        if module and (every or name == verb):
            importlib.import_module(module).add_arguments(sub)
    if every:
        verbs.choices["completion"].set_defaults(root=parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `tilecast`; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = next((word for word in words if not word.startswith("-")), None)
    return exit_status(lambda: _run(verb, words))


def _run(verb: str | None, words: list[str]) -> int:
    """The exit status of a verb."""
    if verb == "microbench":
        return _microbench(words[words.index(verb) + 1 :])
    if verb is not None and verb not in NAMES:
        raise unknown_name("verb", verb, NAMES)
    explains = any(word.startswith(("-h", "--help")) for word in words)
    remarks: tuple[str, ...] = ()
    if any(word.partition("=")[0] == "--from" for word in words):
        words, remarks = _launched(verb, words)
    parsed = build_parser(verb or "", explains).parse_args(words)
    parsed.remarks = remarks
    with believing(bool(getattr(parsed, "force", False))):
        outputs.check(parsed)
        status: int = importlib.import_module(VERBS[parsed.verb][0]).run(parsed)
    return status


def _launched(verb: str | None, words: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """The words of a line whose verb takes a launch command, which has become options, and what to say of it."""
    simulates = verb == "serve" and "simulate" in words
    records = verb == "ledger" and "record" in words
    if verb != "predict" and not simulates and not records:
        return words, ()
    from predictor.cli.launched import with_launched

    return with_launched(words, simulates)


def main_tilecast() -> NoReturn:
    """The command `tilecast`, a process."""
    whole_process(main)


def main_predict() -> NoReturn:
    """The command `predict`, which is `tilecast predict`."""
    whole_process(lambda: main(["predict", *sys.argv[1:]]))


def _microbench(words: list[str]) -> int:
    """The harness in a process of its own, which ends by itself where it is interrupted: it keeps what it measured."""
    import subprocess

    with subprocess.Popen([sys.executable, "-m", "microbench", *words]) as harness:
        while True:
            try:
                return harness.wait()
            except Terminated:
                harness.terminate()
            except KeyboardInterrupt:
                pass  # the terminal told the harness, too


if __name__ == "__main__":
    sys.exit(main())
