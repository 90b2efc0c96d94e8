"""Which rows of a data set a set of estimators was fitted on, by the digests that its manifest keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from predictor.data import dataset
from predictor.data.dataset import Frame
from predictor.data.plausible_tables import TABLE_FLAGS
from predictor.files.extras import require
from predictor.fit.recipes import RECIPES, Recipe
from predictor.kernels.gemm.tiles import is_probe

#: Why rows by a host's clock are kept apart where other rows time their operator without the host.
CLOCKED = "timed by the host's clock, its launch and wait within"


def digests(part: Frame, recipes: Sequence[Recipe]) -> dict[str, str]:
    """Estimator -> digest of its rows in one file, of those that have any there."""
    rows = {recipe.folder: recipe.rows(part) for recipe in recipes}
    return {name: dataset.digest(part[chosen].reset_index(drop=True)) for name, chosen in rows.items() if chosen.any()}


def fitted_rows(frame: Frame, files: Sequence[int], manifest: Mapping[str, Any]) -> Any:
    """(n,) True for rows that `tilecast train` or `calibrate` made the set with ``manifest`` of.

    ``frame`` (n rows) holds whole files one after the other, ``files`` their numbers of rows, and flags as
    `predictor.data.plausible.keep_apart` sets them. Of a file the rows of an estimator count where their digest is
    one that the manifest has of it, or, in a set whose manifest has none, where the whole file's is. Of the files of a
    set that held a share of its shapes out, all rows count: which they were is not kept. A set without a manifest ({})
    was fitted on none.
    """
    np = require("numpy")
    whole = {str(entry["sha256"]) for entry in manifest.get("data", ())}
    known = {
        str(entry["folder"]): {str(file["sha256"]) for file in entry["data"]}
        for entry in manifest.get("estimators", ()) if "data" in entry
    }  # fmt: skip
    gpus = sorted(str(gpu) for gpu in manifest.get("gpus", ()))
    adapted = {str(entry["gpu"]): str(entry["sha256"]) for entry in manifest.get("calibrated", ())}
    marked, end = np.zeros(len(frame), dtype=bool), 0
    free = (frame["flag"].astype(str) == "").to_numpy() | is_probe(frame)
    learned = free & (frame["split"].astype(str) != "test").to_numpy() if "split" in frame else free
    gpu = frame["gpu"].astype(str).to_numpy()
    for rows in files:
        part = np.arange(end, end + rows)
        end += rows
        content = frame.iloc[part].reset_index(drop=True)
        if known:
            same = [name for name, digest in digests(content, RECIPES).items() if digest in known.get(name, ())]
            told = [recipe.rows(content) for recipe in RECIPES if recipe.folder in same]
        else:
            told = [np.ones(rows, dtype=bool)] if whole and dataset.digest(content) in whole else []
        if told:
            marked[part] = np.logical_or.reduce(told) & learned[part] & np.isin(gpu[part], gpus)
    for name, digest in adapted.items():  # a calibration keeps the digest of one GPU's rows, those that it read
        of_gpu = np.flatnonzero(free & (gpu == name))
        if len(of_gpu) and dataset.digest(frame.iloc[of_gpu].reset_index(drop=True)) == digest:
            marked[of_gpu] = True
    return marked


def kept_apart_rows(frame: Frame, manifest: Mapping[str, Any]) -> tuple[Any, int]:
    """((n,) True for rows that the set with ``manifest`` was not fitted on though its files have them, how many more of
    its rows were).

    These are rows that other tables show to be at fault; ``frame`` has the flags of
    `predictor.data.plausible_tables.keep_tables_apart`. A rule counts where the manifest says that an estimator's
    rows were kept apart by it. Rules look at several boards and files: what only tables that are not in ``frame`` show
    cannot be known here, but for the number.
    """
    np = require("numpy")
    flags = frame["flag"].astype(str).to_numpy()
    clocked = (frame["protocol"].astype(str) == "host_clock").to_numpy()
    recipes = {recipe.folder: recipe for recipe in RECIPES}
    apart, more = np.zeros(len(frame), dtype=bool), 0
    for entry in manifest.get("estimators", ()):
        recipe, counts = recipes.get(str(entry["folder"])), entry.get("kept_apart", {})
        if recipe is None or not counts:
            continue
        rows = recipe.rows(frame)
        for reason in (*TABLE_FLAGS, CLOCKED):
            if reason in counts and rows.any():
                here = rows & (clocked & (flags == "") if reason == CLOCKED else flags == reason)
                apart |= here
                more += max(0, int(counts[reason]) - int(here.sum()))
    gpu = frame["gpu"].astype(str).to_numpy()
    for entry in manifest.get("calibrated", ()):
        apart |= (gpu == str(entry["gpu"])) & np.isin(flags, list(entry.get("kept_apart", ())))
    return apart, more
