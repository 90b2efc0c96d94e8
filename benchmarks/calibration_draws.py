#!/usr/bin/env python3
"""What a few rows do to GPUs that a set was fitted on: many draws of them, class by class.

usage: benchmarks/calibration_draws.py --rows datasets/aiconfigurator [--gpus h100-sxm] [--draws 20] [--count 16]

For each GPU, class of kernels and library: `tilecast calibrate`'s fit of the set's estimator with ``--count`` rows, one
from each cell of log FLOPs and arithmetic intensity, drawn anew ``--draws`` times. Medians of absolute errors on up to
``--scored`` other rows: of the set as it is, the mean over draws of the calibrated one's, its largest rise over the
set, and how many of the draws moved a forecast at all. The rows were in the fit: this shows harm, not accuracy.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from accuracy_serving import bounds_and_forecasts, kinds, read_rows  # noqa: E402

from predictor.data import dataset  # noqa: E402
from predictor.data.sampling import cells, one_of_each  # noqa: E402
from predictor.fit.calibrate import FITS  # noqa: E402
from predictor.hardware.gpu import load_gpu  # noqa: E402
from predictor.kernels.artifact import ArtifactSet, load_artifacts  # noqa: E402
from predictor.kernels.attention import estimator as serving_attention  # noqa: E402
from predictor.kernels.fitting import (  # noqa: E402
    adapt,
    serving_rows,
)
from predictor.kernels.gemm import estimator as serving_gemm  # noqa: E402
from predictor.kernels.moe import estimator as serving_moe  # noqa: E402
from predictor.kernels.stored import read_weights  # noqa: E402
from predictor.ops.roofline import roofline  # noqa: E402

FAMILIES = {
    "gemm": (serving_gemm.TensorCoreGemm, ("bf16", "fp8")),
    "attention": (serving_attention.ServingAttention, ("prefill bf16", "decode bf16")),
    "moe": (serving_moe.ServingMoE, ("bf16", "fp8")),
}
LIBRARIES = ("vllm", "trtllm", "sglang")


def judged(
    frame: Any, names: list[str], artifacts: ArtifactSet, draws: int, count: int, scored: int
) -> list[tuple[Any, ...]]:
    """A line for each class, library and GPU: (class, library, GPU, n, before, after, largest rise, moved)."""
    lines = []
    for family, (kind, classes) in FAMILIES.items():
        manifest = artifacts.member_manifest(family)
        weights = read_weights(artifacts.path / family, manifest)
        trials = FITS[str(manifest["kind"])].trials
        base = kind.from_artifact(manifest, weights)
        own = frame[(frame["op"].astype(str) == family).to_numpy()]
        own = own[own["dtype"].astype(str).isin(serving_rows.ROW_DTYPES).to_numpy()].reset_index(drop=True)
        own = own[serving_rows.expressible(own)].reset_index(drop=True)
        by = kinds(own, family)
        for wanted in classes:
            for library in LIBRARIES:
                for name in names:
                    use = (by == wanted) & (own["framework"].astype(str) == library).to_numpy()
                    rows = own[use & (own["gpu"].astype(str) == name).to_numpy()]
                    if len(rows) < 4 * count:
                        continue
                    rows = rows.sample(min(4 * scored, len(rows)), random_state=0).reset_index(drop=True)
                    gpu = load_gpu(name)
                    times = roofline(list(dataset.ops_of(rows)), gpu)
                    groups = cells(np.log(times.compute_s), np.log(times.compute_s / times.dram_s), count)
                    test = rows.iloc[:scored].reset_index(drop=True)
                    before = median(base, test, family, gpu)
                    after, moved = [], 0
                    for seed in range(draws):
                        few = rows.iloc[one_of_each(groups, seed)].reset_index(drop=True)
                        found = adapt.calibrated(trials, few, gpu, manifest, weights)
                        moved += found.after != found.before
                        after.append(median(kind.from_artifact(found.manifest, found.weights), test, family, gpu))
                    rise = max(after) - before
                    lines.append(
                        (f"{family} {wanted}", library, name, len(test), before, float(np.mean(after)), rise, moved)
                    )
                    print(said(lines[-1], draws), flush=True)
    return lines


def median(estimator: Any, rows: Any, family: str, gpu: Any) -> float:
    """Of the absolute errors."""
    return float(np.median(np.abs(bounds_and_forecasts(estimator, rows, family, gpu)[1] - 1.0)))


def said(line: tuple[Any, ...], draws: int) -> str:
    """A row of the table."""
    what, library, name, n, before, after, rise, moved = line
    rest = f"{before:.2%} | {after:.2%} | {100 * rise:+.2f} | {moved} of {draws} |"
    return f"| {what} | {library} | {name} | {n:,} | {rest}"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--gpus", default="a100-sxm-80gb,l40s,rtx-pro-6000-server,h100-sxm,b200-sxm")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--scored", type=int, default=500)
    words = parser.parse_args()
    artifacts = load_artifacts()
    if not isinstance(artifacts, ArtifactSet):
        raise SystemExit("no set of estimators to calibrate")
    print("| kernels | library | GPU | n | the set | calibrated, mean of draws | largest rise, points | moved |")
    print("| --- | --- | --- | --: | --: | --: | --: | --: |")
    names = words.gpus.split(",")
    files = [file for file in sorted(words.rows.glob("*.parquet")) if file.name.startswith(tuple(names))]
    frame = dataset.concat([read_rows(file) for file in files])
    lines = judged(frame, names, artifacts, words.draws, words.count, words.scored)
    by_class: dict[str, list[tuple[Any, ...]]] = {}
    for line in lines:
        by_class.setdefault(line[0], []).append(line)
    for name, own in by_class.items():
        before, after = (float(np.mean([line[i] for line in own])) for i in (4, 5))
        print(
            f"{name}: mean of the medians {before:.2%}, calibrated {after:.2%}, by {100 * (after - before):+.2f} points"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
