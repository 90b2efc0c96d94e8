"""The command line: `tilecast VERB`, `predict` (= `tilecast predict`) and `microbench`.

Exit status 0: done; 1: the work failed; 2: the request is wrong. An error is one line on stderr. Handlers import what
they need, so that `predict` starts without pandas or a terminal library that it does not use.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from predictor import __version__
from predictor.errors import RequestError, TilecastError

#: verb -> (module that has `add_arguments(parser)` and `run(arguments) -> int`, one line of help)
VERBS: dict[str, tuple[str, str]] = {
    "predict": ("predictor.commands.predict", "forecast how long a model takes on a GPU"),
    "gpus": ("predictor.commands.gpus", "the GPU catalogue; with a name, one GPU with its sources"),
    "models": ("predictor.commands.models", "the model catalogue; with a name, one model"),
    "dataset": ("predictor.commands.dataset", "import public measurements, describe a data set"),
    "train": ("predictor.commands.train", "fit every estimator from measurements"),
    "calibrate": ("predictor.commands.calibrate", "adapt the estimators to a GPU by a few measured rows"),
    "evaluate": ("predictor.commands.evaluate", "forecasts against measurements"),
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and an exception."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{self.prog}: {message} (see {self.prog} --help)")


def build_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The parser of `tilecast`; only ``verb``'s own arguments are filled in (None: every verb's)."""
    parser = Parser(
        prog="tilecast",
        description="How long will this model take on that GPU, before anyone runs it?",
        epilog="example: tilecast predict --model gpt3 --gpu h100",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tilecast {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for name, (module, summary) in VERBS.items():
        wanted = verb in (None, name)
        sub = verbs.add_parser(
            name,
            help=summary,
            description=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if wanted:
            importlib.import_module(module).add_arguments(sub)
    verbs.add_parser("microbench", help="the measuring harness, in a process of its own", add_help=False)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `tilecast`; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = next((word for word in words if not word.startswith("-")), None)
    try:
        if verb == "microbench":
            return _microbench(words[words.index(verb) + 1 :])
        parsed = build_parser(verb or "").parse_args(words)
        status: int = importlib.import_module(VERBS[parsed.verb][0]).run(parsed)
        sys.stdout.flush()
        return status
    except TilecastError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130


def main_predict() -> int:
    """Run `predict`, which is `tilecast predict`."""
    return main(["predict", *sys.argv[1:]])


def _microbench(words: list[str]) -> int:
    import subprocess

    return subprocess.run([sys.executable, "-m", "microbench", *words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
