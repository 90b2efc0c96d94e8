"""A collection in MLflow, where it is installed: settings, environment, counts. Nothing depends on it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from predictor.errors import RequestError, TilecastError

if TYPE_CHECKING:
    from microbench.collect import Summary

EXPERIMENT = "microbench"


class Tracker:
    """Logs to `uri`; does nothing where that is None.

    Raises at once, before anything is measured: TilecastError where mlflow is not installed or nothing answers at
    ``uri``, RequestError where it is no address that mlflow knows.
    """

    def __init__(self, uri: str | None) -> None:
        self._uri = uri
        self._mlflow: Any = None
        if uri is None:
            return
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # seven by default: minutes
        try:
            self._mlflow = importlib.import_module("mlflow")
        except ImportError:
            raise TilecastError("--tracking-uri needs mlflow, which is not installed: pip install mlflow") from None
        self._open()

    def _open(self) -> None:
        """Chooses the experiment, which makes mlflow open the store."""
        try:
            self._mlflow.set_tracking_uri(self._uri)
            self._mlflow.set_experiment(EXPERIMENT)
        except Exception as error:  # mlflow raises many kinds
            first = _first_line(error)
            if "URI" in type(error).__name__ or "scheme" in first.lower():
                raise RequestError(f"--tracking-uri {self._uri}: mlflow knows no such address: {first}") from None
            raise TilecastError(f"--tracking-uri {self._uri} cannot be logged to: {first}") from None

    def log(self, record: Mapping[str, Any], summary: Summary) -> None:
        """One run with parameters (settings, devices, versions) and metrics (counts, seconds)."""
        if self._mlflow is None:
            return
        mlflow = self._mlflow
        try:
            mlflow.set_tracking_uri(self._uri)
            mlflow.set_experiment(EXPERIMENT)
            with mlflow.start_run(run_name=",".join(summary.devices)):
                mlflow.log_params({key: str(value)[:250] for key, value in _flat(record).items()})
                counts = {k: v for k, v in asdict(summary).items() if isinstance(v, (int, float))}
                mlflow.log_metrics({key: float(value) for key, value in counts.items()})
                mlflow.set_tag("stopped_by", summary.stopped_by)
        except Exception as error:  # mlflow raises many kinds; the rows are safe whatever it says
            raise TilecastError(
                f"the rows are written, but MLflow at {self._uri} cannot be logged to: {_first_line(error)}"
            ) from None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as "a.b" keys."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
