"""Estimators of one set put into another, and a set's manifest told what its estimators were fitted on.

A set need not be fitted whole: `tilecast train --estimators attention` fits one family, and `join` puts it in place.
The manifest keeps of each estimator the digests of the rows that it was fitted on, so that after a join it is still
true of all of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from predictor.data import dataset
from predictor.errors import RequestError
from predictor.files.read import atomic_write, read_json
from predictor.fit.fit import chosen_rows, files_of, fitted_on
from predictor.fit.publish import as_manifest, card, published
from predictor.fit.recipes import RECIPES
from predictor.kernels.stored import MANIFEST

_SAME = ("schema_version", "seed", "holdout", "excluded_gpus", "calibrated")
_METRICS: Mapping[str, list[Any]] = {"heldout_shapes": [], "heldout_gpus": []}


def join(into: Path, other: Path) -> list[str]:
    """Puts the estimators of the set ``other`` in place of those of ``into`` (whole or not at all); their names.

    Raises RequestError where one of the sets held rows out or was calibrated, or does not say what it was fitted on.
    """
    ours, theirs = (_read(folder) for folder in (into, other))
    for key in _SAME:
        if ours[key] != theirs[key]:
            raise RequestError(f"{other}: {key} is {theirs[key]!r}, expected {ours[key]!r} as {into} has it")
    entries = {entry["folder"]: entry for entry in ours["estimators"]}
    files = {entry["file"]: entry for entry in ours["data"]}
    taken = [entry["folder"] for entry in theirs["estimators"]]
    entries |= {entry["folder"]: entry for entry in theirs["estimators"]}
    files |= {entry["file"]: entry for entry in theirs["data"]}
    order = [recipe.folder for recipe in RECIPES if recipe.folder in entries]
    used = {file["file"] for entry in entries.values() for file in entry["data"]}
    manifest = {
        **ours, "estimators": [entries[name] for name in order], "gpus": sorted({*ours["gpus"], *theirs["gpus"]}),
        "data": [files[name] for name in sorted(used)],
        "constant_efficiency": dict(sorted((ours["constant_efficiency"] | theirs["constant_efficiency"]).items())),
    }  # fmt: skip
    with published(into) as temporary:
        shutil.copytree(into, temporary, dirs_exist_ok=True)
        for name in taken:
            shutil.rmtree(temporary / name, ignore_errors=True)
            shutil.copytree(other / name, temporary / name)
        _write(temporary, manifest)
    return taken


def tell(folder: Path, files: Sequence[Path]) -> dict[str, bool]:
    """Writes into the manifest of the set in ``folder`` what its estimators were fitted on, of those that ``files`` are
    the rows of: estimator -> whether the rows that it would be fitted on have the digest that it keeps."""
    manifest = _read(folder, told=False)
    frame, probes, _, report, sources, _ = chosen_rows(files, ())
    known = {}
    for entry in manifest["estimators"]:
        name = entry["folder"]
        recipe = next(recipe for recipe in RECIPES if recipe.folder == name)
        about = read_json(folder / name / MANIFEST)
        rows = frame[recipe.rows(frame)].reset_index(drop=True)
        of_recipe = probes[recipe.rows(probes)].reset_index(drop=True)
        choices = [rows, dataset.concat([rows, of_recipe])] if len(of_recipe) else [rows]
        known[name] = about["data_sha256"] in [dataset.digest(choice) for choice in choices]
        if known[name]:
            report.fitted[name] = about["rows"]
            entry |= fitted_on(name, sources, report)
    if all(known.values()):
        manifest["data"] = files_of(sources)
        _write(folder, manifest)
    return known


def _read(folder: Path, told: bool = True) -> dict[str, Any]:
    """A set's manifest; ``told``: with what its estimators were fitted on."""
    manifest: dict[str, Any] = read_json(folder / MANIFEST)
    if manifest["holdout"] or manifest["excluded_gpus"] or manifest["calibrated"]:
        raise RequestError(f"{folder}: held rows out, or was calibrated; expected a set that was fitted on all rows")
    silent = [entry["folder"] for entry in manifest["estimators"] if "data" not in entry]
    if told and silent:
        raise RequestError(
            f"{folder}: does not say what {', '.join(silent)} was fitted on; expected what `tilecast train` writes, or"
            " run `tools/join_set SET --data DATA` on it"
        )
    return manifest


def _write(folder: Path, manifest: Mapping[str, Any]) -> None:
    atomic_write(folder / MANIFEST, as_manifest(manifest).encode())
    atomic_write(folder / "README.md", card(manifest, _METRICS).encode())
