"""`tilecast train`: from measurement files to a set of estimators, with what was held out beside it.

The way: read and check -> choose GPUs -> keep flagged rows and a data set's own test split apart -> hold out whole
groups -> fit one estimator a recipe -> export -> score the held-out rows. Same data, same seed: same bytes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data import dataset
from predictor.data.frame import Frame
from predictor.data.plausible import check_gpus, keep_apart, refuse_repeats
from predictor.data.plausible_tables import keep_tables_apart
from predictor.errors import RequestError, unknown_name
from predictor.files.read import atomic_write, read_json
from predictor.files.records import dataclass
from predictor.fit.evaluate import predict_rows
from predictor.fit.fitted import CLOCKED, digests
from predictor.fit.publish import as_manifest, published, write_estimator
from predictor.fit.recipes import FEW_ROWS, GEMM_FIT, RECIPES, SERVING, TILE_ROWS, Recipe
from predictor.fit.scores import by_group, constant_efficiencies, summarise
from predictor.hardware.gpu import GPUSpec, load_gpu, parse_gpu
from predictor.kernels.artifact import ArtifactSet
from predictor.kernels.gemm.tiles import FEWEST, is_probe
from predictor.kernels.stored import SCHEMA_VERSION

#: Key of what is known of a file: estimator -> digest of its rows in the file.
_BY_ESTIMATOR = "by_estimator"
Fit = Callable[[Frame, Mapping[str, GPUSpec], int], tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]]


@dataclass(slots=True)
class TrainReport:
    """What `train` did: counts, and the errors on rows that no estimator saw."""

    out: Path
    rows: int
    fitted: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    kept_apart: dict[str, int] = field(default_factory=dict)
    kept_apart_of: dict[str, dict[str, int]] = field(default_factory=dict)  # the same of each estimator's rows
    heldout_shapes: list[dict[str, Any]] = field(default_factory=list)
    heldout_gpus: list[dict[str, Any]] = field(default_factory=list)


def train(
    files: Sequence[Path],
    out: Path,
    *,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
    holdout: float = 0.0,
    holdout_by: str = "shapes",
    seed: int = 0,
    name: str = "",
    estimators: Sequence[str] = (),
    intervals: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> TrainReport:
    """Fit every estimator that the files have rows for and write the set to ``out`` (whole or not at all).

    ``intervals`` also fits how far forecasts may be off, which takes about as long again.
    Raises RequestError where a GPU is unknown, no row is left, or ``out`` cannot be written.
    """
    _check_split(holdout, holdout_by, seed)
    recipes = _recipes(estimators)
    if not name.isprintable():
        raise RequestError(f"--name {name!r}: expected text without control characters")
    _check_out(out)
    frame, probes, gpus, report, sources, devices = chosen_rows(
        files, recipes if estimators else (), only, exclude, say
    )
    report.out, excluded = out, [_gpu(g, devices).id for g in exclude]
    held = _holdout(frame, holdout, holdout_by, seed)
    fitted = ~held & ~frame["gpu"].astype(str).isin(excluded).to_numpy()
    seen = frame if fitted.all() else frame[fitted]
    probes = probes[~probes["gpu"].astype(str).isin(excluded).to_numpy()]
    if not len(seen) and not len(probes):
        raise RequestError("no rows are left to fit on: check --only-gpu, --exclude-gpu and --holdout")
    manifest: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION, "name": name or out.name, "seed": seed, "holdout": holdout,
        "holdout_by": holdout_by, "gpus": sorted({*seen["gpu"].astype(str), *probes["gpu"].astype(str)}),
        "excluded_gpus": sorted(excluded), "data": files_of(sources), "calibrated": [],
        "estimators": [],
    }  # fmt: skip
    with published(out) as temporary:
        for recipe in recipes:
            _fit_one(recipe, seen, probes, gpus, seed, temporary, manifest, report, say, intervals)
        for entry in manifest["estimators"]:
            entry |= fitted_on(entry["folder"], sources, report)
        if len(seen):
            _baselines(seen, manifest, gpus, intervals)
        (temporary / "manifest.json").write_text(as_manifest(manifest), encoding="utf-8")
        say("scoring what was held out")
        for device, text in devices.items():
            atomic_write(temporary / "gpus" / f"{device}.yaml", text.encode())
        _score(frame, held, excluded, temporary, gpus, devices, report)
        _describe(temporary, manifest, report)
    return report


def chosen_rows(
    files: Sequence[Path],
    recipes: Sequence[Recipe],
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Frame, Frame, dict[str, GPUSpec], TrainReport, list[dict[str, Any]], dict[str, str]]:
    """What `_choose` gives of the rows of ``files``, and what `_read` says of the files and of GPUs."""
    frame, sources, devices = _read(files, recipes, say)
    keep_tables_apart(frame, {name: _gpu(name, devices) for name in frame["gpu"].astype(str).unique()}, say)
    chosen, excluded = ([_gpu(name, devices).id for name in names] for names in (only, exclude))
    frame, probes, gpus, report = _choose(frame, devices, chosen, excluded)
    report.rows = sum(source["rows"] for source in sources)
    return frame, probes, gpus, report, sources, devices


def _check_split(holdout: float, holdout_by: str, seed: int) -> None:
    if not 0.0 <= holdout < 1.0:
        raise RequestError(f"--holdout {holdout}: expected a fraction from 0 to below 1")
    if holdout_by not in ("shapes", "models"):
        raise RequestError(f"--holdout-by {holdout_by!r}: expected shapes or models")
    if not 0 <= seed < 2**31:
        raise RequestError(f"--seed {seed}: expected 0 to {2**31 - 1}")


def _recipes(names: Sequence[str]) -> tuple[Recipe, ...]:
    known = [recipe.folder for recipe in RECIPES]
    for name in names:
        if name not in known:
            raise unknown_name("estimator", name, known, option="--estimators")
    return tuple(recipe for recipe in RECIPES if not names or recipe.folder in names)


def _check_out(out: Path) -> None:
    """Refuse early what would fail after minutes of fitting."""
    if out.exists() and not (out / "manifest.json").is_file() and any(out.iterdir() if out.is_dir() else [out]):
        raise RequestError(f"--out {str(out)!r}: expected a new folder or one that `tilecast train` wrote")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent):
            pass
    except OSError as error:
        raise RequestError(f"--out {str(out)!r} cannot be written: {error.strerror}") from None


def _gpu(name: str, devices: Mapping[str, str]) -> GPUSpec:
    """A GPU that the data brings along, or one of the catalogue."""
    return parse_gpu(devices[name], Path(f"{name}.yaml")) if name in devices else load_gpu(name)


def _read(
    files: Sequence[Path], recipes: Sequence[Recipe], say: Callable[[str], None]
) -> tuple[Frame, list[dict[str, Any]], dict[str, str]]:
    """All rows, what is known of each file, and the YAML texts of GPUs that the catalogue lacks.

    With ``recipes``, of the rows only those that one of them fits. `files_of` and `fitted_on` take what is known of the
    files apart: what a manifest says of all of them, and of each estimator's rows in them.
    """
    frames, sources = [], []
    devices: dict[str, str] = {}
    paths = [(given, path) for given in files for path in dataset.data_files(given)]
    for given, path in paths:
        part = dataset.read(path)
        boards = dataset.devices(dataset.read_meta(path))
        check_gpus(part, str(path), boards)
        keep_apart(part, str(path), boards, say)
        asked = np.logical_or.reduce([recipe.rows(part) for recipe in recipes]) if recipes else slice(None)
        frames.append(part[asked])
        names = sorted(part["source"].astype(str).unique().tolist())
        file = path.relative_to(given).as_posix() if path != given else path.name
        sources.append({
            "file": file, "rows": len(part), "sha256": dataset.digest(part), "sources": names,
            _BY_ESTIMATOR: digests(part, recipes or RECIPES),
        })  # fmt: skip
        devices |= dataset.read_meta(path).get("devices", {})
    refuse_repeats(list(zip([path for _, path in paths], frames, strict=True)))
    return (frames[0] if len(frames) == 1 else dataset.concat(frames)), sources, devices


def files_of(sources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a set's manifest keeps of each file: its name, rows, digest and the data sets that it has rows of."""
    return [{key: value for key, value in source.items() if key != _BY_ESTIMATOR} for source in sources]


def fitted_on(folder: str, sources: Sequence[Mapping[str, Any]], report: TrainReport) -> dict[str, Any]:
    """What a set's manifest keeps of the rows of one estimator: how many it was fitted on, how many were kept apart and
    why, and the digest of its rows in each file, by which `predictor.fit.fitted` knows them."""
    files = [
        {"file": source["file"], "sha256": source[_BY_ESTIMATOR][folder]}
        for source in sources if folder in source[_BY_ESTIMATOR]
    ]  # fmt: skip
    return {"rows": report.fitted[folder], "kept_apart": report.kept_apart_of.get(folder, {}), "data": files}


def _choose(
    frame: Frame, devices: Mapping[str, str], only: Sequence[str], exclude: Sequence[str]
) -> tuple[Frame, Frame, dict[str, GPUSpec], TrainReport]:
    """Rows to work with: chosen GPUs (the excluded ones stay, to be scored), nothing flagged, no test split.

    Rows of tile probes come apart from the others.
    """
    report = TrainReport(Path(), len(frame))
    included, unwanted = set(only), set(exclude)
    gpu = frame["gpu"].astype(str)
    if included:
        missing = included - set(gpu.unique())
        if missing:
            raise RequestError(f"--only-gpu {','.join(sorted(missing))}: the data has no row of it")
        frame = frame[gpu.isin(included | unwanted).to_numpy()]
    probed = is_probe(frame)
    probes, frame = frame[probed].reset_index(drop=True), frame[~probed]
    why = frame["flag"].astype(str)
    if "split" in frame:
        why = why.mask((why == "") & (frame["split"].astype(str) == "test"), "the data set's own test split")
    why = why.mask((why == "") & _clocked(frame), CLOCKED)
    keep = (why == "").to_numpy()
    report.kept_apart = _counts(why[~keep])
    report.kept_apart_of = {recipe.folder: _counts(why[~keep & recipe.rows(frame)]) for recipe in RECIPES}
    frame = frame[keep].reset_index(drop=True)
    present = sorted({*frame["gpu"].astype(str), *probes["gpu"].astype(str)})
    return frame, probes, {name: _gpu(name, devices) for name in present}, report


def _counts(why: Any) -> dict[str, int]:
    """How many rows were kept apart for each reason, the most first."""
    return {str(reason): int(count) for reason, count in why.value_counts().items()}


def _clocked(frame: Frame) -> npt.NDArray[np.bool_]:
    """(n,) True for rows by a host's clock of operators that other rows time without the host: they teach nothing."""
    clocked = (frame["protocol"].astype(str) == "host_clock").to_numpy()
    ops = frame["op"].astype(str)
    return np.asarray(clocked & ops.isin(set(ops[~clocked])).to_numpy(), dtype=bool)


def _holdout(frame: Frame, fraction: float, by: str, seed: int) -> npt.NDArray[np.bool_]:
    if fraction == 0.0:
        return np.zeros(len(frame), dtype=bool)
    from predictor.fit.splits import holdout, model_holdout

    choose = holdout if by == "shapes" else model_holdout
    return np.asarray(choose(frame, fraction, seed), dtype=bool)


def _fit_one(
    recipe: Recipe,
    seen: Frame,
    probes: Frame,
    gpus: Mapping[str, GPUSpec],
    seed: int,
    folder: Path,
    manifest: dict[str, Any],
    report: TrainReport,
    say: Callable[[str], None],
    intervals: bool,
) -> None:
    import importlib

    rows = seen[recipe.rows(seen)].reset_index(drop=True)
    of_recipe = probes[recipe.rows(probes)].reset_index(drop=True)
    if not len(of_recipe) or of_recipe["gpu"].astype(str).value_counts().max() < FEWEST:
        of_recipe = of_recipe.iloc[:0]
    plain = False
    if recipe.fit.startswith(SERVING) and len(rows):
        from predictor.kernels.fitting.calibrate_serving import as_served

        served = as_served(rows, gpus)
        plain = not len(served)  # rows of PyTorch alone that tell of no engine: two numbers a family
        rows = rows if plain else served
    if not len(rows) and not len(of_recipe):
        report.skipped[recipe.folder] = "no rows that it is fitted on: the roofline answers"
        return
    simple = len(rows) > 0 and (plain or not _carries(recipe, rows))
    tiles = len(of_recipe) > 0 and (simple or not len(rows))
    how = " (few: an efficiency and an overhead)" if simple else ""
    say(
        f"fitting {recipe.folder} on {len(rows) + tiles * len(of_recipe):,} rows" + (" (tile probes)" if tiles else how)
    )
    module, _, function = (TILE_ROWS if tiles else FEW_ROWS if simple else recipe.fit).partition(":")
    fit: Fit = getattr(importlib.import_module(module), function)
    whole = dataset.concat([rows, of_recipe]) if tiles else rows
    about, weights = fit(whole, gpus, seed)
    if len(of_recipe) and recipe.fit == GEMM_FIT and not tiles:
        from predictor.kernels.gemm.fit_tiles import add_tiles

        about, weights = add_tiles((about, weights), of_recipe, gpus)
        whole = dataset.concat([rows, of_recipe])
    rows, told = whole, rows
    about = {
        **about,
        "name": recipe.folder,
        "families": list(recipe.families),
        "dtypes": list(recipe.dtypes),
        "rows": len(rows),
        "gpus": sorted(rows["gpu"].astype(str).unique().tolist()),
        "frameworks": sorted(rows["framework"].astype(str).unique().tolist()),
        "data_sha256": dataset.digest(rows),
    }
    widths = None
    if intervals and len(told) and not tiles:
        from predictor.fit.fit_intervals import IntervalTarget, fit_intervals

        say(f"fitting the intervals of {recipe.folder}")
        measured_widths = fit_intervals(IntervalTarget(recipe.families, fit), told, gpus, seed)
        widths = measured_widths if measured_widths["classes"] else None
    write_estimator(folder / recipe.folder, about, weights, widths)
    manifest["estimators"].append(
        {"folder": recipe.folder, "families": list(recipe.families), "dtypes": list(recipe.dtypes)}
    )
    report.fitted[recipe.folder] = len(rows)


def _carries(recipe: Recipe, rows: Frame) -> bool:
    """Whether the rows carry the recipe's own fit: enough on some GPU, with the columns it needs."""
    if any(column not in rows or rows[column].isna().mean() > 0.5 for column in recipe.needs):
        return False
    return bool(rows["gpu"].astype(str).value_counts().max() >= recipe.least)


def _baselines(seen: Frame, manifest: dict[str, Any], gpus: Mapping[str, GPUSpec], intervals: bool) -> None:
    """The constant efficiency by operator and dtype, and how far the roofline is off, from a sample of the rows."""
    from predictor.kernels.artifact import RooflineOnly

    sample = seen.iloc[:: max(1, len(seen) // 200_000)].reset_index(drop=True)
    rows = predict_rows(sample, RooflineOnly(), gpus)
    good = np.isfinite(rows["roofline_ms"].to_numpy())
    manifest["constant_efficiency"] = constant_efficiencies(rows[good], rows["roofline_ms"].to_numpy()[good])
    if intervals:
        from predictor.fit.fit_intervals import roofline_width

        manifest["roofline_width"] = roofline_width(rows[good])


def _score(
    frame: Frame,
    held: npt.NDArray[np.bool_],
    excluded: Sequence[str],
    folder: Path,
    gpus: Mapping[str, GPUSpec],
    devices: Mapping[str, str],
    report: TrainReport,
) -> None:
    """Errors on held-out shapes and on left-out GPUs; the held-out rows go beside the artifacts."""
    selector = ArtifactSet(folder, read_json(folder / "manifest.json"))
    out_gpu = frame["gpu"].astype(str).isin(excluded).to_numpy()
    keys = ("gpu", "operator", "dtype", "framework")
    for rows, name, target in (
        (held & ~out_gpu, "heldout.parquet", report.heldout_shapes),
        (out_gpu, "heldout_gpus.parquet", report.heldout_gpus),
    ):
        part = frame[rows].reset_index(drop=True)
        if not len(part):
            continue
        dataset.write(part, folder / name, {"source": "held out by tilecast train", "devices": dict(devices)})
        scored = predict_rows(part, selector, gpus)
        scored["dtype"] = scored["scheme"]  # errors by quantization scheme, where a row has one
        target.extend(by_group(scored, keys))
        for (operator, dtype), group in scored.groupby(["operator", "dtype"], observed=True):
            totals = summarise(group["measured_ms"].to_numpy(float), group["predicted_ms"].to_numpy(float))
            target.append({"gpu": "all", "operator": str(operator), "dtype": str(dtype), "framework": "all"} | totals)


def _describe(folder: Path, manifest: Mapping[str, Any], report: TrainReport) -> None:
    """The errors on held-out rows, for programs (metrics.json) and for people (README.md)."""
    from predictor.fit.publish import card

    metrics = {"heldout_shapes": report.heldout_shapes, "heldout_gpus": report.heldout_gpus}
    (folder / "metrics.json").write_text(as_manifest(metrics), encoding="utf-8")
    (folder / "README.md").write_text(card(manifest, metrics), encoding="utf-8")


def names(text: str | None) -> list[str]:
    """Names of a comma-separated option."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
