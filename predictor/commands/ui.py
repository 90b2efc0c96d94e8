"""`tilecast ui`: the page to play with, on loopback."""

from __future__ import annotations

import argparse

from predictor.commands.predict import add_words
from predictor.commands.tracked import resolve
from predictor.errors import RequestError, TilecastError

EXAMPLES = """examples:
  tilecast ui
  tilecast ui --port 8123 --artifacts my-set
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `ui`."""
    parser.epilog = EXAMPLES
    parser.add_argument("--port", type=int, default=8765, help="of 127.0.0.1; 0: any that is free (default 8765)")
    parser.add_argument("--artifacts", metavar="DIR", help="estimators to use (default: those that ship)")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    if not 0 <= arguments.port <= 65535:
        raise RequestError(f"--port {arguments.port}: expected 0 to 65535")
    try:
        from predictor.ui.server import serve
    except ImportError as error:
        raise TilecastError(f"tilecast ui needs {error.name}; pip install 'tilecast[ui]'") from None
    from predictor.ui.fields import fields_of

    return serve(arguments.port, fields_of(words_help()), resolve(arguments.artifacts))


def words_help() -> dict[str, str]:
    """Word of a request -> what `predict --help` says of it, in its order."""
    parser = argparse.ArgumentParser(add_help=False)
    add_words(parser)
    return {action.dest: str(action.help or "").replace("%%", "%") for action in parser._actions}
