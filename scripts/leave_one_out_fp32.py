#!/usr/bin/env python3
"""fp32 on a GPU that was left out, without a row of it and with 5, 20 and 64: prints Markdown tables.

usage: scripts/leave_one_out_fp32.py --data $TILECAST_DATA --work DIR [--seeds 10] > docs/accuracy-fp32.md

For each of NeuSight's five training GPUs: trains on the other four (`tilecast train --only-gpu`; a set that is already
in DIR is used again), then

1. end to end: the mean error over the eager cells of that GPU in neusight_e2e.csv; its linear and bmm rows of
   NeuSight's test tables;
2. calibration: n rows of its training tables (linear and bmm, half each, one from every cell of a grid of equally full
   cells over log FLOPs and arithmetic intensity), as `tilecast calibrate` fits them; all other rows of those tables
   are the test.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "scripts"))

from accuracy import pct, tilecast  # noqa: E402

from predictor.estimators.artifact import load_artifacts  # noqa: E402
from predictor.estimators.tile_gemm import TileGemm  # noqa: E402
from predictor.hardware.gpu import load_gpu  # noqa: E402
from predictor.training import dataset  # noqa: E402
from predictor.training.calibrate import calibrate_gemm, read_weights  # noqa: E402
from predictor.training.evaluate import predict_rows  # noqa: E402

GPUS = ("p4", "p100-pcie-16gb", "t4", "v100-pcie-32gb", "a100-pcie-40gb")
ROWS = (5, 20, 64)
Frame = Any


class OnlyGemm:
    """A selector with one estimator, of fp32 GEMM."""

    def __init__(self, estimator: TileGemm) -> None:
        self.estimator = estimator

    def select(self, family: str, dtype: str) -> TileGemm | None:
        """The estimator, for what it answers."""
        return self.estimator if (family, dtype) == ("gemm", "fp32") else None


def draw(rows: Frame, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Indices of ``count`` rows: linear and bmm by half, one row from each cell over log FLOPs and intensity."""
    random = np.random.default_rng(seed)
    b, m, n, k = (rows[c].to_numpy(dtype=np.float64) for c in ("batch", "m", "n", "k"))
    flops = np.log(2 * b * m * n * k)
    intensity = flops - np.log(4 * b * (m * k + k * n + m * n))
    kinds = rows["kind"].astype(str).to_numpy()
    chosen = []
    for kind, wanted in (("linear", (count + 1) // 2), ("bmm", count // 2)):
        own = np.flatnonzero(kinds == kind)
        own = own[np.argsort(flops[own], kind="stable")]
        cells = np.array_split(np.arange(wanted), max(1, round((1.5 * wanted) ** 0.5)))
        ends = np.round(np.cumsum([0, *(len(c) for c in cells)]) / wanted * len(own)).astype(int)
        for cell, start, end in zip(cells, ends[:-1], ends[1:], strict=True):
            part = own[start:end]
            part = part[np.argsort(intensity[part], kind="stable")]
            chosen += [random.choice(piece) for piece in np.array_split(part, len(cell))]
    return np.sort(np.array(chosen))


def errors(rows: Frame, estimator: TileGemm, test: npt.NDArray[np.bool_]) -> list[float]:
    """Mean absolute error in % of linear, bmm, both."""
    ape = predict_rows(rows, OnlyGemm(estimator))["ape_pct"].to_numpy(dtype=np.float64)  # type: ignore[arg-type]
    kinds = rows["kind"].astype(str).to_numpy()
    return [float(ape[test & part].mean()) for part in (kinds == "linear", kinds == "bmm", kinds != "")]


def calibrated(rows: Frame, gpu: str, folder: Path, seeds: int) -> list[str]:
    """Lines of the second table for one GPU."""
    base = load_artifacts(folder)
    manifest, weights = base.member_manifest("fp32-gemm"), read_weights(folder / "fp32-gemm")  # type: ignore[union-attr]
    everything = np.ones(len(rows), dtype=bool)
    none = errors(rows, TileGemm.from_artifact(manifest, weights), everything)
    lines = [f"| {gpu} | 0 | {pct(none[0])} | {pct(none[1])} | {pct(none[2])} | - |"]
    for count in ROWS:
        found = []
        for seed in range(seeds):
            chosen = draw(rows, count, seed)
            test = everything.copy()
            test[chosen] = False
            fit = calibrate_gemm(rows.iloc[chosen].reset_index(drop=True), load_gpu(gpu), manifest, weights)
            found.append(errors(rows, TileGemm.from_artifact(fit.manifest, fit.weights), test))
        mean, worst = np.mean(found, axis=0), max(both for _, _, both in found)
        lines.append(f"| {gpu} | {count} | {pct(mean[0])} | {pct(mean[1])} | {pct(mean[2])} | {pct(worst)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def left_out(gpu: str, file: Path, suite: Path, work: Path) -> tuple[Path, str]:
    """The set without ``gpu``, and its line of the first table."""
    folder = work / f"without-{gpu}"
    if not (folder / "manifest.json").is_file():
        tilecast("train", "--data", file, "--only-gpu", ",".join(g for g in GPUS if g != gpu), "--out", folder)
    cells = tilecast("evaluate", "workloads", suite, "--artifacts", folder, "--by", "gpu,execution")["groups"]
    eager = next(g for g in cells if g["gpu"] == gpu and g["execution"] == "eager")
    kernels = tilecast(
        "evaluate", "kernels", file, "--artifacts", folder, "--split", "test", "--only-gpu", gpu, "--by", "op,kind"
    )["groups"]
    kinds = {g["kind"]: g for g in kernels if g["op"] == "gemm"}
    figures = [f"{pct(kinds[k]['mean_ape_pct'])} ({kinds[k]['n']:,})" for k in ("linear", "bmm")]
    ends = f"{pct(eager['mean_ape_pct'])} | {pct(eager['mean_signed_pct'])} | {eager['n']}"
    return folder, f"| {gpu} | {ends} | {figures[0]} | {figures[1]} |"


NOTES = """## What these figures are worth

- No row of the left-out GPU, and no cell of the end-to-end suite, is in any fit of the first table.
- P100 and P4, left out, run kernels (Maxwell's) that only the other of the two teaches, and P4's tables hold two
  sessions up to four times apart. A floor from the newer boards under those kernels' efficiencies was tried: P100
  left out fell to 6 % end to end, P4 with all five rose from 6 to 15 %. It was tried because of this very table, so
  it is not kept.
- The second table scores rows of the tables that the calibration rows come from: the same session of the same board.
  NeuSight's other session of that board can differ by 5 to 20 % (docs/accuracy.md).
- The design of the calibration was chosen while looking at the second table, for these five GPUs: six designs (u,
  bandwidth and host times; those with the tiles that ran; with one u a layout; with the library's traffic terms;
  the tiles tried both ways; with a smooth correction over sizes) and about a dozen widths of the priors. None was
  chosen by the suite or by the test tables. So the second table is somewhat optimistic for a sixth GPU.
- The target was 6 % with 20 rows on P100, V100 and A100-40GB. It is not met on any. More rows meet the form's own
  floor: the constants fitted on all rows of these tables leave 5 to 10 % (V100, A100) and 9 to 20 % (P100) on them.
- Five rows are too few for T4, which they make worse on the mean; compare the worst seeds elsewhere.
- P4: its linear kernels ran up to four times slower in one of the two tables than in the other.
"""


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--skip-models", action="store_true", help="the second table alone, from sets in DIR")
    arguments = parser.parse_args()
    work, data = arguments.work.resolve(), arguments.data.resolve()
    work.mkdir(parents=True, exist_ok=True)
    file = work / "neusight.parquet"
    if not file.is_file():
        tilecast("dataset", "import", "neusight", data / "neusight", "--out", file)
    frame = dataset.read(file)
    keep = (frame["op"].astype(str) == "gemm") & (frame["split"].astype(str) == "train")
    frame = frame[(keep & (frame["flag"].astype(str) == "")).to_numpy()]
    first, second = [], []
    for gpu in GPUS:
        folder = work / f"without-{gpu}"
        if not arguments.skip_models:
            folder, line = left_out(gpu, file, data / "ground_truth" / "neusight_e2e.csv", work)
            first.append(line)
        rows = frame[(frame["gpu"].astype(str) == gpu).to_numpy()].reset_index(drop=True)
        second += calibrated(rows, gpu, folder, arguments.seeds)
    date = time.strftime("%Y-%m-%d")
    print("# fp32 on a GPU that nobody measured, and with a few rows of it\n")
    command = f"scripts/leave_one_out_fp32.py --data $TILECAST_DATA --work DIR --seeds {arguments.seeds}"
    print(f"Written by `{command}` on {date}. Errors are mean absolute errors.\n")
    print("## Left out: no row of the GPU\n")
    print("| left out | end to end, eager | signed | cells | linear, test table (rows) | bmm, test table (rows) |")
    print("| --- | --: | --: | --: | --: | --: |", *first, "", sep="\n")
    print(f"## Calibrated with rows of its training tables, mean of {arguments.seeds} seeds\n")
    print("| left out | rows | linear | bmm | both | both, worst seed |")
    print("| --- | --: | --: | --: | --: | --: |", *second, "", sep="\n")
    print(NOTES, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
