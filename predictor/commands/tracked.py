"""What the commands that are runs in MLflow share. Nothing heavy is imported here."""

from __future__ import annotations

import argparse
import sys
from typing import Any

_NOT_SETTINGS = ("verb", "json", "tracking_uri", "register", "stage")


def tracking_argument(parser: argparse.ArgumentParser) -> None:
    """``--tracking-uri``."""
    parser.add_argument(
        "--tracking-uri",
        metavar="URI",
        help="MLflow store to log the run to: http://..., sqlite:///..., or off (default: $MLFLOW_TRACKING_URI, else a"
        " SQLite file of yours, where MLflow is installed)",
    )


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The words of a command as parameters of its run; what was not given is left out."""
    given = {k: v for k, v in vars(arguments).items() if k not in _NOT_SETTINGS and v not in (None, "", [])}
    return {k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in given.items()}


def say(text: str) -> None:
    """A line for a person, beside the answer."""
    print(text, file=sys.stderr, flush=True)


def resolve(artifacts: str | None, uri: str | None = None) -> str | None:
    """``--artifacts`` as a folder: one in a model registry (models:/NAME/VERSION) is fetched."""
    if artifacts is None or not artifacts.startswith("models:/"):
        return artifacts
    from predictor.training.tracking import fetch

    return str(fetch(artifacts, uri))
