"""A collection as a run in MLflow, where that is installed: settings, environment, counts. Nothing depends on it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from predictor.tracking import TrackedRun, flat

if TYPE_CHECKING:
    from microbench.request import Summary

_NOT_SETTINGS = ("verb", "json", "tracking_uri")


def log(run: TrackedRun, record: Mapping[str, Any], summary: Summary, words: Mapping[str, Any]) -> None:
    """Fill a run: the ``words`` of the command, ``record`` (settings, device, versions) by device, and the counts."""
    run.parameters({k: v for k, v in words.items() if k not in _NOT_SETTINGS and v not in (None, "", [], False)})
    run.parameters({device: _said(facts) for device, facts in record.items()})
    run.parameters({"gpus": summary.devices})
    counts = {key: value for key, value in asdict(summary).items() if isinstance(value, (int, float))}
    run.metrics(counts)
    run.tag("stopped_by", summary.stopped_by)
    run.note(f"{summary.new_rows:,} rows and {summary.new_failures:,} failures of {', '.join(summary.devices)};"
             f" {summary.rows:,} rows in all, {summary.left:,} cases left.")  # fmt: skip


def _said(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a device, flat; those without a value are left out."""
    return {key: value for key, value in flat(facts).items() if value not in (None, "", [])}


def say(text: str) -> None:
    """A line for a person, beside the answer."""
    print(text, file=sys.stderr, flush=True)
