"""Which rows of a data set a set of estimators was fitted on, by the digests that its manifest keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from predictor.training import dataset
from predictor.training.dataset import Frame
from predictor.training.extras import require
from predictor.training.tile_rows import is_probe


def fitted_rows(frame: Frame, files: Sequence[int], manifest: Mapping[str, Any]) -> Any:
    """(n,) True for rows that `tilecast train` or `calibrate` made the set with ``manifest`` of.

    ``frame`` (n rows) holds whole files one after the other, ``files`` their numbers of rows, and flags as
    `predictor.training.plausible.keep_apart` sets them. A file counts where its digest is one of the manifest's. Of the
    files of a set that held a share of its shapes out, all rows count: which they were is not kept. A set without a
    manifest ({}) was fitted on none.
    """
    np = require("numpy")
    known = {str(entry["sha256"]) for entry in manifest.get("data", ())}
    gpus = sorted(str(gpu) for gpu in manifest.get("gpus", ()))
    adapted = {str(entry["gpu"]): str(entry["sha256"]) for entry in manifest.get("calibrated", ())}
    marked, end = np.zeros(len(frame), dtype=bool), 0
    free = (frame["flag"].astype(str) == "").to_numpy() | is_probe(frame)
    learned = free & (frame["split"].astype(str) != "test").to_numpy() if "split" in frame else free
    gpu = frame["gpu"].astype(str).to_numpy()
    for rows in files:
        part = np.arange(end, end + rows)
        end += rows
        if known and dataset.digest(frame.iloc[part].reset_index(drop=True)) in known:
            marked[part] = learned[part] & np.isin(gpu[part], gpus)
    for name, digest in adapted.items():  # a calibration keeps the digest of one GPU's rows, those that it read
        own = np.flatnonzero(free & (gpu == name))
        if len(own) and dataset.digest(frame.iloc[own].reset_index(drop=True)) == digest:
            marked[own] = True
    return marked
