"""The GEMM estimator where boards have rows of tile probes: alone, or beside the libraries' rows of other boards.

A board that has a variant's rows of a library is fitted on them; there, its probes say how fast their kernel is beside
the library's. One that has probes alone gets the core's constants from them (`predictor.kernels.gemm.tiles`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.data.frame import Frame, texts
from predictor.engines import EAGER
from predictor.files.records import replace
from predictor.formats.quantization import variant
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.device import describe_device
from predictor.kernels.fitting.calibrate_serving import plain_products, told_by_tiles, with_entries
from predictor.kernels.fitting.family import NO_CALIBRATION, Fitted
from predictor.kernels.fitting.serving import GEMM
from predictor.kernels.fitting.serving_rows import VariantRows
from predictor.kernels.gemm.core import FEATURES, Constants
from predictor.kernels.gemm.tiles import FEWEST, gaps, is_probe, teach, tile_parts
from predictor.kernels.residual import ANY_GPU

_START = cast(Constants, GEMM.start(""))


def fit_tiles(frame: Frame, gpus: Mapping[str, GPUSpec], seed: int) -> Fitted:
    """(manifest, weights) of a `ServingGemm` from rows of tile probes, and a few of PyTorch's or a library's.

    There are no trees, for which the other rows are too few; ``seed`` is not needed. Another GPU is answered by the
    medians of the constants found.
    """
    del seed
    probes = is_probe(frame)
    runner = engines.answering(EAGER.kernels).name
    cores: dict[str, Constants] = {}
    told: dict[str, Any] = {}
    by_kind: dict[str, list[Constants]] = {}
    dtypes: dict[str, set[str]] = {}
    for part in tile_parts(frame[probes], gpus):
        if part.size < FEWEST:
            continue
        other = _library_part(frame[~probes], part, gpus[part.gpu])
        taught = teach(part, _START, other)
        cores[f"{part.gpu}|{runner}|{part.kind}"] = taught.constants
        told[f"{part.gpu}|{part.kind}"] = taught.to_manifest(part, other.size if other else 0)
        by_kind.setdefault(part.kind, []).append(taught.constants)
        dtypes.setdefault(part.gpu, set()).add(part.dtype)
    for kind, constants in by_kind.items():
        middle = np.median([taught.logs() for taught in constants], axis=0)
        cores[f"{ANY_GPU}|{runner}|{kind}"] = Constants.from_logs(middle)
    manifest = {
        "kind": GEMM.kind, "name": GEMM.kind, "features": list(FEATURES), "boosters": {}, "core_rows": {},
        "cores": {key: constants.to_manifest() for key, constants in cores.items()}, **NO_CALIBRATION,
        "devices": {gpu: describe_device(gpus[gpu], sorted(names)) for gpu, names in sorted(dtypes.items())},
        "probes": told, "fitted_rows": len(frame),
    }  # fmt: skip
    return manifest, {}


def _library_part(frame: Frame, part: VariantRows, gpu: GPUSpec) -> VariantRows | None:
    """A library's rows of a board in the dtype of its probes, PyTorch's linear layers among them; None without any."""
    of_gpu = frame["gpu"].astype(str).to_numpy() == part.gpu
    rows = frame[of_gpu & (frame["dtype"].astype(str).to_numpy() == part.dtype)]
    rows = rows[plain_products(rows, gpu)] if len(rows) else rows
    if not len(rows):
        return None
    batch, m, n, k, milliseconds = (
        np.asarray(rows[name].astype(float), dtype=np.float64) for name in ("batch", "m", "n", "k", "latency_ms")
    )
    shapes = replace(part.shapes, batch=np.nan_to_num(batch, nan=1.0), m=m, n=n, k=k, tiles=None)
    return replace(part, shapes=shapes, log_latency=np.log(milliseconds * 1e-3))


def add_tiles(fitted: Fitted, probes: Frame, gpus: Mapping[str, GPUSpec]) -> Fitted:
    """A `ServingGemm` that was fitted on libraries' rows, with what rows of tile probes tell beside them."""
    manifest, weights = fitted
    manifest = {**manifest, "probes": dict(manifest["probes"])}
    alone: list[VariantRows] = []
    for part in tile_parts(probes, gpus):
        known = manifest["cores"].get(f"{part.gpu}|{part.path}")
        if known is None:
            alone += [part] if part.size >= FEWEST else []
            continue
        rate = _rate(part, Constants.from_manifest(known, part.path))
        manifest["probes"][f"{part.gpu}|{part.kind}"] = {
            "rows": part.size, "library_rows": manifest["fitted_rows"], "dtype": part.dtype, "rate": round(rate, 6),
            "call_cycles": part.shapes.tiles.call_cycles,
        }  # fmt: skip
    arrays: dict[str, npt.NDArray[Any]] = dict(weights)
    known_kinds = {key.split("|")[2] for key in manifest["cores"]}
    if new := [part.kind for part in alone if part.kind not in known_kinds]:  # no library's rows: probes alone
        kinds = np.array([variant(name) in new for name in texts(probes, "dtype").tolist()], dtype=bool)
        taught, _ = fit_tiles(probes[kinds], gpus, 0)
        manifest = with_entries(manifest, {name: taught[name] for name in ("cores", "probes")})
    for part in (part for part in alone if part.kind in known_kinds):
        manifest = with_entries(manifest, told_by_tiles(manifest, arrays, part, gpus[part.gpu])[0])
    return manifest, arrays


def _rate(part: VariantRows, constants: Constants) -> float:
    """How fast a probe's kernel is beside the library's, whose constants these are: what explains its rows best."""
    tried = np.exp(np.linspace(np.log(0.3), np.log(2.0), 60))
    lost = [float(np.abs(gaps(part, constants, rate, part.shapes.tiles.call_cycles)).mean()) for rate in tried.tolist()]
    return float(tried[int(np.argmin(lost))])
