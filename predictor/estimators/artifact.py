"""Trained estimators on disk: a folder a set, a folder an estimator, manifests in JSON and weights in NumPy's npz.

<set>/manifest.json              schema_version, name, which estimator answers for which family and dtype
<set>/<estimator>/manifest.json  kind, features and their order, GPUs and shapes covered, hash of the data, metrics
<set>/<estimator>/intervals.json how far its forecasts may be off (optional; `predictor.estimators.interval`)
<set>/<estimator>/weights.npz    arrays; read with allow_pickle=False, so that no artifact can run code
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from predictor.errors import RequestError, SpecError, nearest
from predictor.estimators.base import Estimator
from predictor.estimators.interval import Intervals
from predictor.files import read_json

SCHEMA_VERSION = 1

#: kind in a manifest -> the class that loads it (imported when first needed)
KINDS: dict[str, str] = {
    "tile_gemm": "predictor.estimators.tile_gemm:TileGemm",
    "memory_bound": "predictor.estimators.memory_bound:MemoryBound",
    "efficiency": "predictor.estimators.efficiency:Efficiency",
    "serving_gemm": "predictor.estimators.serving_gemm:ServingGemm",
    "serving_attention": "predictor.estimators.serving_attention:ServingAttention",
    "serving_moe": "predictor.estimators.serving_moe:ServingMoE",
    "collective": "predictor.estimators.collective:Collectives",
}

Weights = Mapping[str, npt.NDArray[Any]]


@lru_cache(maxsize=1)
def default_artifacts() -> Path:
    """The set that ships with Tilecast: inside the package when installed, under models/ in a checkout."""
    packaged = Path(__file__).resolve().parent.parent / "_models" / "default"
    if packaged.is_dir():
        return packaged
    return Path(__file__).resolve().parent.parent.parent / "models" / "default"


class ArtifactSet:
    """The estimators of one folder, each loaded when it is first asked for.

    ``routes`` maps (family, dtype) to the estimator's folder; dtype "*" answers for every dtype not named.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self._routes: dict[tuple[str, str], str] = {}
        for member in manifest["estimators"]:
            for family in member["families"]:
                for dtype in member["dtypes"]:
                    self._routes[(family, dtype)] = member["folder"]
        self._loaded: dict[str, Estimator] = {}
        self._measured: dict[str, tuple[str, ...]] = {}
        self._intervals: dict[str, Intervals | None] = {}

    @property
    def name(self) -> str:
        """The set's name."""
        return str(self.manifest["name"])

    def select(self, family: str, dtype: str) -> Estimator | None:
        """The estimator for a family and dtype, or None where the roofline has to answer."""
        folder = self._routes.get((family, dtype)) or self._routes.get((family, "*"))
        if folder is None:
            return None
        estimator = self._loaded.get(folder)
        if estimator is None:
            estimator = self._loaded[folder] = load_estimator(self.path / folder)
        return estimator

    def member_manifest(self, folder: str) -> dict[str, Any]:
        """The manifest of one estimator of the set."""
        return read_json(self.path / folder / "manifest.json")

    def measured_on(self, name: str) -> tuple[str, ...]:
        """GPUs that the estimator ``name`` was fitted on."""
        if name not in self._measured:
            self._measured[name] = tuple(self.member_manifest(name).get("gpus", ()))
        return self._measured[name]

    def intervals(self, name: str) -> Intervals | None:
        """How far forecasts of the estimator ``name`` may be off; None in a set that was trained without intervals."""
        if name not in self._intervals:
            own = self.member_manifest(name).get("calibrated", {}) if self.manifest.get("calibrated") else {}
            self._intervals[name] = Intervals.read(self.path / name, own)
        return self._intervals[name]

    def roofline_width(self) -> tuple[float, float] | None:
        """Logarithms of measured / roofline that hold 80 % of the measurements; None in a set without intervals."""
        pair = self.manifest.get("roofline_width")
        return None if pair is None else (float(pair[0]), float(pair[1]))

    def folders(self) -> tuple[str, ...]:
        """Folders of the set's estimators."""
        return tuple(member["folder"] for member in self.manifest["estimators"])


class RooflineOnly:
    """A set without estimators: every operator is answered by its roofline."""

    name = "roofline"

    def measured_on(self, name: str) -> tuple[str, ...]:
        """No GPU was measured for the roofline."""
        return ()

    def select(self, family: str, dtype: str) -> Estimator | None:
        """Never an estimator."""
        return None


def load_estimator(folder: Path) -> Estimator:
    """One estimator from its folder; SpecError where kind or files are not what this version reads."""
    manifest = read_json(folder / "manifest.json")
    kind = manifest.get("kind")
    if kind not in KINDS:
        raise SpecError(
            f"{folder}/manifest.json: unknown kind {kind!r}; nearest: {', '.join(nearest(str(kind), KINDS))}"
        )
    module, _, cls = KINDS[kind].partition(":")
    try:
        with np.load(folder / "weights.npz", allow_pickle=False) as data:
            weights = {key: data[key] for key in data.files}
    except (OSError, ValueError, KeyError) as error:
        raise SpecError(f"{folder}/weights.npz cannot be read ({error})") from None
    return cast(Estimator, getattr(importlib.import_module(module), cls).from_artifact(manifest, weights))


@lru_cache(maxsize=8)
def _load_set(path: Path) -> ArtifactSet:
    manifest = read_json(path / "manifest.json")
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        raise SpecError(f"{path}/manifest.json: schema_version {version!r}, this version reads {SCHEMA_VERSION}")
    if "estimators" not in manifest:
        raise SpecError(f"{path}/manifest.json: key 'estimators' is missing")
    return ArtifactSet(path, manifest)


def load_artifacts(path: str | Path | None = None) -> ArtifactSet | RooflineOnly:
    """The set at ``path`` (None: the shipped one; "roofline": no estimators at all)."""
    if path == "roofline":
        return RooflineOnly()
    folder = default_artifacts() if path is None else Path(path)
    if not (folder / "manifest.json").is_file():
        raise RequestError(f"no estimators at {str(folder)!r}: expected a folder that `tilecast train --out` wrote")
    return _load_set(folder if path is None else folder.resolve())
