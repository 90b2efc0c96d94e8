"""`tilecast ui`: the page to play with, on loopback."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from predictor.cli.arguments import option_of
from predictor.cli.tracked import resolve
from predictor.errors import RequestError, TilecastError
from predictor.files.arguments import Parser
from predictor.request.options import OPTIONS

if TYPE_CHECKING:
    from types import ModuleType

    from predictor.ui.fields import Field
    from predictor.ui.searches import Kind

EXAMPLES = """examples:
  tilecast ui
  tilecast ui --port 8123 --artifacts my-set
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `ui`."""
    parser.epilog = EXAMPLES
    parser.add_argument("--port", type=int, default=8765, help="port of 127.0.0.1; 0: any free one (default 8765)")
    parser.add_argument("--artifacts", metavar="DIR", help="estimators to use (default: those that ship)")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    if not 0 <= arguments.port <= 65535:
        raise RequestError(f"--port {arguments.port}: expected 0 to 65535")
    try:
        from predictor.ui.server import serve
    except ImportError as error:
        raise TilecastError(f"tilecast ui needs {error.name}; pip install 'tilecast[ui]'") from None
    from predictor.kernels.artifact import load_artifacts
    from predictor.ui.fields import fields_of

    artifacts = resolve(arguments.artifacts)
    load_artifacts(artifacts)  # a wrong --artifacts is no page's fault
    return serve(arguments.port, fields_of(OPTIONS.values()), searches(), artifacts)


def searches() -> tuple[Kind, ...]:
    """The searches of the page, with the words of their verbs."""
    from predictor.cli import plan, serve_plan
    from predictor.ui.search_results import serving_plans, training_plans
    from predictor.ui.searches import Kind

    return (
        Kind(
            "plan",
            "The fastest plan of a training step",
            ("plan",),
            _words("plan", plan),
            training_plans,
            plan.add_arguments,
            plan.run,
        ),
        Kind(
            "serve",
            "The best way to serve a load",
            ("serve", "plan"),
            _words("serve", serve_plan),
            serving_plans,
            serve_plan.add_arguments,
            serve_plan.run,
        ),
    )


#: Words of a verb that the page fills in itself, or has other ways for: a set, files, what is printed.
_OWN = frozenset(
    ("help", "model", "gpu", "artifacts", "json", "out", "emit", "explain", "html", "seed", "force", "prices")
)


def _words(name: str, verb: ModuleType) -> tuple[Field, ...]:
    """The words of a verb as fields: those of the table as it has them, the verb's own by their help and default."""
    from predictor.ui.fields import OFF, SWITCH, Field, field_of

    parser = Parser(add_help=False)
    verb.add_arguments(parser)
    fields = []
    for action in parser._actions:
        if action.dest in _OWN or not action.option_strings:
            continue
        switch = action.nargs == 0
        option = option_of(action)
        default = OFF if switch else "" if action.default in (None, []) else str(action.default)
        choices = SWITCH if switch else () if option is None else field_of(option).choices
        help_ = str(action.help or "").replace("%%", "%") + " (needed)" * action.required
        fields.append(Field(f"{name}.{action.dest}", help_, default, choices))
    return tuple(fields)
