"""`tilecast completion SHELL`: a script that completes verbs, options and the names of the catalogues.

The script is whole: no Python runs when a person presses Tab. It is written by shtab (extra `completion`).
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from typing import Any

from predictor.cli.arguments import option_of
from predictor.errors import TilecastError, unknown_name

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = """examples:
  eval "$(tilecast completion bash)"                                     # this shell; or a line of ~/.bashrc
  eval "$(tilecast completion bash predict)"                             # for the short form, too
  tilecast completion zsh > ~/.zfunc/_tilecast                           # a folder of your fpath
  tilecast completion fish > ~/.config/fish/completions/tilecast.fish

It needs shtab: pip install 'tilecast[completion]'
"""


#: Names of a catalogue, or files; in a list with commas the word after the last one is completed.
BASH_NAMES = """{function}() {{
  local head=""
  [[ $1 == *,* ]] && head="${{1%,*}},"
  compgen -P "$head" -W "{words}" -- "${{1##*,}}"
  compgen -f -- "$1"
}}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `completion`."""
    parser.epilog = EXAMPLES
    parser.add_argument("shell", metavar="SHELL", help=f"{', '.join(SHELLS)}")
    parser.add_argument(
        "program", nargs="?", default="tilecast", metavar="PROGRAM", help="tilecast (default) or predict"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the script; ``arguments.root`` is the whole parser of `tilecast`, set by the command line."""
    if arguments.shell not in SHELLS:
        raise unknown_name("shell", arguments.shell, SHELLS)
    programs = {parser.prog.split()[-1]: parser for parser in _parsers(arguments.root)}
    offered = ("tilecast", "predict")
    if arguments.program not in offered:
        raise unknown_name("program", arguments.program, offered)
    print(script(programs[arguments.program], arguments.program, arguments.shell))
    return 0


def script(parser: argparse.ArgumentParser, program: str, shell: str) -> str:
    """The completion script of ``program``; changes ``parser``. TilecastError where shtab is missing."""
    try:
        shtab: Any = importlib.import_module("shtab")
    except ImportError:
        raise TilecastError(
            "completion needs shtab, which is not installed: pip install 'tilecast[completion]'"
        ) from None
    names = _names()
    for each in _parsers(parser):
        for action in each._actions:
            _describe(action, names, shtab)
    parser.prog = program
    text: str = shtab.complete(parser, shell=shell, root_prefix=program)
    return text


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its verbs."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = None  # hidden in --help, which groups the verbs itself; the shell is to know them
            for inner in action.choices.values():
                yield from _parsers(inner)


def _names() -> dict[str, tuple[str, ...]]:
    """Destination of an argument -> the words that it may have."""
    from predictor.data.importers import SOURCES
    from predictor.hardware.gpu import all_names
    from predictor.models.built import catalogue

    return {
        "model": catalogue(), "gpu": all_names(), "source": SOURCES, "shell": SHELLS,
        "program": ("tilecast", "predict"),
    }  # fmt: skip


def _describe(action: Any, names: dict[str, tuple[str, ...]], shtab: Any) -> None:
    """Tell shtab what an argument may be: names of a catalogue, a file, a folder."""
    option = option_of(action)
    listed = names.get(action.dest, () if option is None else option.choices)
    if action.dest in ("model", "gpu", "system"):
        words = " ".join(listed)
        function = f"_tilecast_{action.dest}s"
        action.complete = {
            "bash": function,
            "zsh": f"_alternative 'names:{action.dest}:({words})' 'files:file:_files'",
            "fish": f"{words} (__fish_complete_path (commandline -ct))",
            "preamble": {
                "bash": BASH_NAMES.format(function=function, words=words),
            },
        }
    elif listed and not action.choices:
        action.choices = listed
    elif action.metavar in ("FILE", "PATH"):
        action.complete = shtab.FILE
    elif action.metavar == "DIR":
        action.complete = shtab.DIRECTORY
