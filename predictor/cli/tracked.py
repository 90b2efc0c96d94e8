"""What the commands that are runs in MLflow share. Nothing heavy is imported here."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictor.tracking import TrackedRun

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


def file_sha256(path: str) -> str:
    """The hash of a file's bytes; of a folder, that of the hashes of its shards."""
    if Path(path).is_dir():
        from predictor.data.dataset import data_files

        return hashlib.sha256(" ".join(file_sha256(str(file)) for file in data_files(path)).encode()).hexdigest()
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def log_errors(
    run: TrackedRun, title: str, group: str, rows: Sequence[Mapping[str, Any]], lines: Sequence[str], *figures: str
) -> None:
    """An error table on a run: metrics, bars, the table (``lines`` of Markdown) at the top of its page, and other
    ``figures`` (SVG of forecasts against measurements)."""
    from predictor.tracking.figures import error_bars

    if not rows:
        return
    run.errors(group, rows)
    run.text(f"figures/{group}_errors.svg", error_bars(title, rows))
    for figure in figures:
        run.text(f"figures/{group}_forecasts.svg", figure)
    if lines:
        whole = [*lines[:2], *(line for line in lines[2:] if line.startswith("| all "))]
        before = run.record.tags.get("mlflow.note.content", "")
        run.note(f"{before}\n\n**{title}**\n\n" + "\n".join(whole))
        run.text(f"{group}_errors.md", "\n".join(lines) + "\n")


def scatter_of(rows: Any) -> str:
    """Forecasts against measurements of evaluated rows (a frame), as SVG."""
    from predictor.tracking.figures import scatter

    known = rows[rows["predicted_ms"].notna()]
    measured, predicted = (known[name].to_numpy(dtype=float).tolist() for name in ("measured_ms", "predicted_ms"))
    return scatter(f"{len(known):,} forecasts against measurements", measured, predicted)


def say(text: str) -> None:
    """A line for a person, beside the answer."""
    print(text, file=sys.stderr, flush=True)


def resolve(artifacts: str | None, uri: str | None = None) -> str | None:
    """``--artifacts`` as a folder: one in a model registry (models:/NAME/VERSION) is fetched."""
    if artifacts is None or not artifacts.startswith("models:/"):
        return artifacts
    from predictor.tracking import fetch

    return str(fetch(artifacts, uri))
