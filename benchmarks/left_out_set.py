#!/usr/bin/env python3
"""Writes a set of estimators that saw no row of a GPU: serving kernels and collectives fitted anew on thinned rows.

usage: benchmarks/left_out_set.py --gpu rtx-pro-6000-server --data datasets --out DIR [--sample 1500]

``--data``: folders of shards. Of every shard at most ``--sample`` rows of a GPU, framework, dtype and scheme are read;
what GPUs share is fitted, no constants of one GPU. Families of the shipped set that saw no row of the GPU are copied,
intervals are not fitted. Takes two to five minutes where `tilecast train --exclude-gpu` takes hours.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # a checkout that was not installed
    sys.path.insert(0, str(ROOT))

from accuracy_serving import thinned  # noqa: E402

from predictor.data import dataset  # noqa: E402
from predictor.errors import RequestError, TilecastError  # noqa: E402
from predictor.files.read import atomic_write, read_json  # noqa: E402
from predictor.fit.publish import as_manifest, write_estimator  # noqa: E402
from predictor.fit.recipes import RECIPES, Recipe  # noqa: E402
from predictor.hardware.gpu import load_gpu  # noqa: E402
from predictor.kernels.gemm.tiles import is_probe  # noqa: E402

SHIPPED = ROOT / "models" / "default"
#: Families that are fitted anew, and of them those whose fit can leave out the constants of single GPUs.
FITTED = ("gemm", "attention", "moe", "quantize", "collective")
SHARING = ("gemm", "attention", "moe")


def parts_of(shards: list[Path], gpu: str, sample: int, recipes: list[Recipe]) -> dict[str, list[Any]]:
    """Rows by the folder of their estimator, thinned shard by shard, none of ``gpu``."""
    found: dict[str, list[Any]] = {recipe.folder: [] for recipe in recipes}
    for shard in shards:
        frame = dataset.read(shard)
        keep = (frame["flag"].astype(str) == "") & (frame["gpu"].astype(str) != gpu)
        frame = frame[keep.to_numpy()]
        for recipe in recipes:
            rows = frame[recipe.rows(frame)].reset_index(drop=True)
            if len(rows) and not is_probe(rows).any():
                found[recipe.folder].append(thinned(rows, sample))
        print(f"read {shard.parent.name}/{shard.name}", file=sys.stderr, flush=True)
    return found


def fit(recipe: Recipe, rows: Any, folder: Path) -> None:
    """The estimator of a family into its folder."""
    gpus = {name: load_gpu(name) for name in sorted(rows["gpu"].astype(str).unique())}
    module, _, function = recipe.fit.partition(":")
    fitted = getattr(importlib.import_module(f"predictor.fit.{module}"), function)
    about, weights = fitted(rows, gpus, 0, fitted_gpus=()) if recipe.folder in SHARING else fitted(rows, gpus, 0)
    about = {
        **about, "name": recipe.folder, "families": list(recipe.families), "dtypes": list(recipe.dtypes),
        "rows": len(rows), "gpus": sorted(gpus), "frameworks": sorted(rows["framework"].astype(str).unique().tolist()),
        "data_sha256": dataset.digest(rows),
    }  # fmt: skip
    write_estimator(folder, about, weights)
    print(f"fitted {recipe.folder} on {len(rows):,} rows", file=sys.stderr, flush=True)


def write_set(data: list[Path], gpu: str, sample: int, out: Path) -> None:
    """The set, its manifest last."""
    shards = [shard for given in data for shard in dataset.data_files(given)]
    recipes = [recipe for recipe in RECIPES if recipe.folder in FITTED]
    manifest = read_json(SHIPPED / "manifest.json")
    kept = []
    for entry in manifest["estimators"]:
        name = entry["folder"]
        if name in FITTED:
            kept.append(entry)
        elif gpu not in read_json(SHIPPED / name / "manifest.json").get("gpus", ()):
            shutil.copytree(SHIPPED / name, out / name, dirs_exist_ok=True)
            kept.append(entry)
    for folder, rows in parts_of(shards, gpu, sample, recipes).items():
        if not rows:
            raise RequestError(f"--data: no row of {folder} on another GPU than {gpu}")
        fit(next(recipe for recipe in recipes if recipe.folder == folder), dataset.concat(rows), out / folder)
    manifest |= {"name": f"without {gpu}", "estimators": kept, "excluded_gpus": [gpu]}
    atomic_write(out / "manifest.json", as_manifest(manifest).encode())


def main() -> int:
    """Fit and write; status 2 for a wrong request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", required=True, help="the GPU that is left out")
    parser.add_argument("--data", required=True, nargs="+", metavar="FOLDER", help="shards of measured rows")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write the set to")
    parser.add_argument("--sample", type=int, default=1500, metavar="N", help="most rows of a kind (default 1500)")
    asked = parser.parse_args()
    try:
        write_set([Path(folder) for folder in asked.data], load_gpu(asked.gpu).id, asked.sample, Path(asked.out))
    except TilecastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
