"""Trained estimators on disk: a folder a set, a folder an estimator, manifests in JSON and weights in NumPy's npz.

<set>/manifest.json              schema_version, name, which estimator answers for which family and dtype
<set>/<estimator>/manifest.json  schema_version, kind, constants by name, features and their order, GPUs and shapes
                                 covered, hash of the data; sizes and hashes of the files beside it, and of
                                 each array (`predictor.kernels.stored`)
<set>/<estimator>/intervals.json how far its forecasts may be off (optional; `predictor.kernels.interval`)
<set>/<estimator>/weights.npz    arrays; read with allow_pickle=False, so that no artifact can run code
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy.typing as npt

from predictor.errors import RequestError, SpecError, nearest
from predictor.files.read import read_json
from predictor.kernels import ranges
from predictor.kernels.base import Estimator
from predictor.kernels.interval import Intervals
from predictor.kernels.stored import (
    FILES,
    MANIFEST,
    WEIGHTS,
    check_version,
    read_manifest,
    read_verified,
    read_weights,
)

#: kind in a manifest -> the class that loads it (imported when first needed)
KINDS: dict[str, str] = {
    "tile_gemm": "predictor.kernels.gemm_fp32.estimator:Fp32Gemm",
    "memory_bound": "predictor.kernels.memory_bound.estimator:MemoryBound",
    "efficiency": "predictor.kernels.efficiency.estimator:Efficiency",
    "serving_gemm": "predictor.kernels.gemm.estimator:TensorCoreGemm",
    "serving_attention": "predictor.kernels.attention.estimator:ServingAttention",
    "serving_moe": "predictor.kernels.moe.estimator:ServingMoE",
    "serving_blocks": "predictor.kernels.blocks.estimator:ServingBlocks",
    "collective": "predictor.kernels.collective.estimator:Collectives",
}

#: Families that no folder answers for: products whose operands are gathered on the way.
GATHERED = ("convolution", "indexer", "recurrence")

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
        pair = manifest.get("roofline_width")
        if pair is not None and not (isinstance(pair, list) and len(pair) == 2 and pair[0] <= pair[1]):
            raise SpecError(
                f"{path / MANIFEST}: roofline_width is {pair!r:.60}; expected two numbers, the lower one first"
            )
        self._roofline_width = None if pair is None else (float(pair[0]), float(pair[1]))
        self._routes: dict[tuple[str, str], str] = {}
        for member in manifest["estimators"]:
            folder = member["folder"]
            if not isinstance(folder, str) or Path(folder).name != folder or folder in ("", ".."):
                raise TypeError(f"folder {member['folder']!r:.60}: expected a name")
            if not isinstance(member["families"], list) or not isinstance(member["dtypes"], list):
                raise TypeError("families and dtypes: expected lists")
            for family in member["families"]:
                for dtype in member["dtypes"]:
                    self._routes[(family, dtype)] = member["folder"]
        self._manifests: dict[str, dict[str, Any]] = {}
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
            return self._gathered(dtype) if family in GATHERED else None
        estimator = self._loaded.get(folder)
        if estimator is None:
            estimator = self._loaded[folder] = load_estimator(self.path / folder, self.member_manifest(folder))
        return estimator

    def _gathered(self, dtype: str) -> Estimator | None:
        """What answers from the estimators of products and of streams; None where the set lacks one of them."""
        products, streams = self.select("gemm", dtype), self.select("elementwise", dtype)
        if products is None or streams is None or not hasattr(products, "core_seconds"):
            return None
        key = f"{products.name} gathered"
        if key not in self._loaded:
            from predictor.kernels.convolution.estimator import Gathered, Products  # most forecasts do without

            self._loaded[key] = Gathered(cast(Products, products), streams)
        return self._loaded[key]

    def member_manifest(self, folder: str) -> dict[str, Any]:
        """The manifest of one estimator of the set, as it was when it was first asked for."""
        if folder not in self._manifests:
            self._manifests[folder] = read_manifest(self.path / folder)
        return self._manifests[folder]

    def verify(self) -> None:
        """Check every file of the set against its manifest; SpecError, one line, for the first that is another."""
        for folder in self.folders():
            manifest = read_manifest(self.path / folder)
            ranges.check(self.path / folder / MANIFEST, manifest, ranges.MANIFEST)
            read_verified(self.path / folder / WEIGHTS, manifest)
            for name in manifest[FILES]:
                read_verified(self.path / folder / name, manifest)

    def measured_on(self, name: str) -> tuple[str, ...]:
        """GPUs that the estimator ``name`` was fitted on, or calibrated to."""
        if name not in self._measured:
            about = self.member_manifest(name)
            fitted = tuple(about["gpus"])
            self._measured[name] = (*fitted, *(gpu for gpu in sorted(about["calibrated"]) if gpu not in fitted))
        return self._measured[name]

    def intervals(self, name: str) -> Intervals | None:
        """How far forecasts of the estimator ``name`` may be off; None in a set that was trained without intervals."""
        if name not in self._intervals:
            manifest = self.member_manifest(name)
            self._intervals[name] = Intervals.read(self.path / name, manifest)
        return self._intervals[name]

    def roofline_width(self) -> tuple[float, float] | None:
        """Logarithms of measured / roofline that hold 80 % of the measurements; None in a set without intervals."""
        return self._roofline_width

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


def load_estimator(folder: Path, manifest: Mapping[str, Any] | None = None) -> Estimator:
    """One estimator from its folder, with its ``manifest`` where that was read; SpecError where its files are not those
    that its manifest names, or are not what this version reads."""
    manifest = read_manifest(folder) if manifest is None else manifest
    kind = str(manifest.get("kind"))
    if kind not in KINDS:
        raise SpecError(f"{folder}/manifest.json: unknown kind {kind!r}; nearest: {', '.join(nearest(kind, KINDS))}")
    ranges.check(folder / MANIFEST, manifest, ranges.MANIFEST)
    module, _, cls = KINDS[kind].partition(":")
    weights = read_weights(folder, manifest)
    try:
        return cast(Estimator, getattr(importlib.import_module(module), cls).from_artifact(manifest, weights))
    except SpecError as error:
        said = str(error)  # an array that is read here names its file
        raise SpecError(said if said.startswith(str(folder)) else f"{folder}: {said}") from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        said = " ".join(str(error).split())
        raise SpecError(f"{folder}: {WEIGHTS} and {MANIFEST} make no {kind} estimator here ({said})") from None


#: Of a manifest: whether it is the one that it was.
Stamp = tuple[int, int, int, int] | None

#: Sets that were loaded, by folder, each with the stamps of its manifests then; the one asked for last stands last.
_LOADED: dict[Path, tuple[tuple[Stamp, ...], ArtifactSet]] = {}
_MOST_LOADED = 8  # sets in memory at a time: chosen by hand, not from data


def _stamps(folder: Path, members: tuple[str, ...]) -> tuple[Stamp, ...]:
    """What tells a set that was written again: inode, size and times of manifests; None for one that is not there."""
    stamps: list[Stamp] = []
    for file in _files(folder, members):
        try:
            of = file.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns))
    return tuple(stamps)


@lru_cache(maxsize=2 * _MOST_LOADED)
def _files(folder: Path, members: tuple[str, ...]) -> tuple[Path, ...]:
    """The manifests of a set: they hold the hashes of its other files, and are written with them."""
    names = (MANIFEST, *(f"{member}/{MANIFEST}" for member in members))
    return tuple(folder / name for name in names)


def _load_set(path: Path) -> ArtifactSet:
    """The set at ``path``, the one of before where no manifest of it is another since."""
    known = _LOADED.pop(path, None)
    if known is None or known[0] != _stamps(path, known[1].folders()):
        read = _read_set(path)
        known = _stamps(path, read.folders()), read
    _LOADED[path] = known
    if len(_LOADED) > _MOST_LOADED:
        del _LOADED[next(iter(_LOADED))]
    return known[1]


def _read_set(path: Path) -> ArtifactSet:
    manifest = read_json(path / MANIFEST)
    check_version(path / MANIFEST, manifest)
    for key, form in (("estimators", list), ("name", str), ("calibrated", list)):
        if not isinstance(manifest.get(key), form):
            raise SpecError(f"{path}/manifest.json: key {key!r} is missing, or no {form.__name__}")
    ranges.check(path / MANIFEST, manifest, ranges.SET)
    try:
        return ArtifactSet(path, manifest)
    except (KeyError, TypeError) as error:
        raise SpecError(
            f"{path}/manifest.json: key 'estimators' is incomplete ({error}); expected folder, families and dtypes of"
            " each"
        ) from None


def load_artifacts(path: str | Path | None = None) -> ArtifactSet | RooflineOnly:
    """The set at ``path`` (None: the shipped one; "roofline": no estimators at all)."""
    if path == "roofline":
        return RooflineOnly()
    if not isinstance(path, str | Path | None):
        raise RequestError(f"no estimators at {path!r:.40}: expected a folder that `tilecast train --out` wrote")
    folder = default_artifacts() if path is None else Path(path)
    if not (folder / "manifest.json").is_file():
        raise RequestError(
            f"no estimators at {str(folder)!r} (--artifacts): expected a folder that `tilecast train --out` wrote"
        )
    return _load_set(folder if path is None else folder.resolve())
