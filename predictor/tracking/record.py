"""What a run holds, as plain data: it can be kept in a file and sent by another process. No MLflow here."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from predictor import __version__
from predictor.files.read import read_json
from predictor.files.records import dataclass

LONGEST_VALUE = 6000  # characters of a parameter that MLflow takes (source: mlflow/utils/validation.py)
LONGEST_NOTE = 5000  # characters of a tag that every store takes (source: MLflow's REST API, run tags)
FIGURES = ("median_ape_pct", "mean_ape_pct", "p90_ape_pct", "mean_signed_pct", "n")
MOST_PLACES = 300  # rows of an error table that become metrics: chosen by hand, not from data
PACKAGES = ("numpy", "pandas", "pyarrow", "scipy", "scikit-learn", "lightgbm", "torch", "mlflow")


@dataclass(slots=True)
class Record:
    """All that a run holds. ``folder`` (estimators) is copied whole, ``files`` lie beside it, ``texts`` (name ->
    content) become files; ``datasets`` have a name, a digest, a source and a context."""

    kind: str
    uri: str
    name: str = ""
    run_id: str = ""
    experiment: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    status: str = "RUNNING"
    parameters: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    datasets: list[dict[str, str]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    files: list[str] = field(default_factory=list)
    register: str = ""
    stage: str = ""


class TrackedRun:
    """What a command fills while it works. Every method is cheap and raises nothing of MLflow's."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def parameters(self, values: Mapping[str, Any]) -> None:
        """Settings of the run; nested mappings become "a.b", lists words with commas."""
        for key, value in flat(values).items():
            shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            self.record.parameters[_name(key)] = shown[:LONGEST_VALUE]

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Numbers of the run; what is no finite number is left out."""
        for key, value in flat(values).items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                self.record.metrics[_name(key)] = float(value)

    def errors(self, group: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Error tables as metrics, GROUP_FIGURE/PLACE: MLflow charts one figure of all places together. Whole first."""
        ranked = sorted(rows, key=lambda row: not place(row).startswith("all "))
        if len(ranked) > MOST_PLACES:
            self.parameters({f"{group}_places_not_logged": len(ranked) - MOST_PLACES})
        for figure in FIGURES:
            for row in ranked[:MOST_PLACES]:
                if row.get(figure) is not None:
                    self.metrics({f"{group}_{figure}/{place(row)}": row[figure]})

    def estimators(self, folder: Path) -> None:
        """A folder of estimators that the run made, its card among them; its data sets become inputs of the run."""
        self.record.folder = str(folder.resolve())
        manifest = read_json(folder / "manifest.json")
        for number, source in enumerate(manifest.get("data", ())):
            self.parameters({f"data_{number}": source})
            self.dataset(str(source.get("file", "")), str(source.get("sha256", "")), "training")
        self.parameters({"gpus": manifest.get("gpus", ()), "set": manifest.get("name", "")})

    def used(self, folder: Path) -> None:
        """A folder of estimators that the run asked: its name and the hash of its manifest."""
        path = folder / "manifest.json"
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            self.parameters({"set": read_json(path).get("name", ""), "set_sha256": digest})

    def dataset(self, name: str, sha256: str, context: str) -> None:
        """A data set of the run, by its hash; ``context``: "training", "evaluation"."""
        self.record.datasets.append({"name": name, "digest": sha256, "source": name, "context": context})

    def file(self, path: Path) -> None:
        """One more file: a table."""
        self.record.files.append(str(path.resolve()))

    def text(self, name: str, content: str) -> None:
        """A file with this content: a figure, a table. ``name`` may have folders."""
        self.record.texts[name] = content

    def note(self, markdown: str) -> None:
        """What stands at the top of the run's page."""
        self.record.tags["mlflow.note.content"] = markdown[:LONGEST_NOTE]

    def tag(self, name: str, value: str) -> None:
        """A word to find the run by."""
        self.record.tags[name] = value

    def register(self, name: str, stage: str) -> None:
        """Enter the folder of estimators into the model registry as a new version of ``name``, in ``stage``."""
        self.record.register, self.record.stage = name, stage


def place(row: Mapping[str, Any]) -> str:
    """What a row of an error table is of: its words (GPU, operator, dtype, ...).

    >>> place({"gpu": "t4", "operator": "gemm", "framework": "all", "n": 3})
    't4 gemm'
    """
    return " ".join(value for value in row.values() if isinstance(value, str)).removesuffix(" all")


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as "a.b" keys.

    >>> flat({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    flattened: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            flattened |= flat(value, f"{prefix}{key}.")
        else:
            flattened[f"{prefix}{key}"] = value
    return flattened


def _name(text: str) -> str:
    """A key that MLflow takes: letters, digits, _ - . / and spaces, at most 250 of them."""
    return "".join(c if c.isalnum() or c in "_-./ " else "_" for c in text)[:250]


def versions() -> dict[str, str]:
    """Tilecast, Python, and the packages of a fit that are installed."""
    packages = {"tilecast": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return packages


def git_commit() -> str:
    """Commit of the checkout that runs, with "+changes" where files differ from it; "" outside a checkout."""
    root = Path(__file__).resolve().parents[2]

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "HEAD") if (root / ".git").exists() else ""
        return commit + ("+changes" if commit and git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.TimeoutExpired):
        return ""
