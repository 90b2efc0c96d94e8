#!/usr/bin/env python3
"""Do cases of `calibrate --suggest` tell more each than those of `plan --calibration`? bf16 GEMM on a board left out.

    benchmarks/suggested_rows.py --rows datasets/aiconfigurator --gpu l40s

The estimator is fitted without the board; then as many of its rows as a calibration would measure are picked by three
designs from the same rows, taken as if they had just been measured, and the rest is forecast: ``suggest`` (the greedy
design of `predictor.fit.suggest`, over as many stratified rows as its pool has), ``plan`` (the stratified
draw of `plan --calibration`), and ``any`` (at random). Prints a Markdown table, means over the draws.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from accuracy_serving import CASES, bounds_and_forecasts, kinds, read_rows, thinned

from predictor.data import dataset
from predictor.data.sampling import cells, one_of_each
from predictor.fit.suggest import POOL, Candidate, choose
from predictor.hardware.gpu import load_gpu
from predictor.kernels.fitting.calibrate_serving import calibrate_gemm, stratified
from predictor.kernels.fitting.serving import fit_gemm
from predictor.kernels.gemm import estimator as serving_gemm

#: Half-width of a board's interval that nobody measured: the same for all cases, so its size moves no choice. Chosen by
#: hand, not from data.
HALF_WIDTH = 0.3


def suggested(rows: Any, count: int, seed: int) -> Any:
    """Positions of ``count`` rows that the greedy design takes of a pool drawn by ``seed``."""
    ops = dataset.ops_of(rows)
    flops = np.log([op.flops() for op in ops])
    pool = np.sort(one_of_each(cells(flops, flops - np.log([op.bytes_moved() for op in ops]), POOL), seed))
    kind = ("gemm", "linear", "bf16")
    asked = [Candidate(ops[i], "cuda_graph", kind, HALF_WIDTH, (("at", str(i)),)) for i in pool]
    found = choose(asked, min(count, len(asked)), {"gemm": 1})
    return np.sort([int(dict(one.case.options)["at"]) for one in found.cases])


def anything(rows: Any, count: int, seed: int) -> Any:
    return np.sort(np.random.default_rng(seed).choice(len(rows), count, replace=False))


def judged(rows: Any, fitted: Any, gpu: Any, counts: list[int], draws: int) -> list[str]:
    """Lines of the table of one board and framework."""
    designs = {"suggest": suggested, "plan": stratified, "any": anything}
    scored = np.random.default_rng(0).choice(len(rows), min(1500, len(rows)), replace=False)
    base = serving_gemm.TensorCoreGemm.from_artifact(*fitted)
    before = np.median(np.abs(bounds_and_forecasts(base, rows.iloc[scored].reset_index(drop=True), "gemm", gpu)[1] - 1))
    lines = []
    for count in counts:
        for name, design in designs.items():
            found = []
            for seed in range(draws):
                few = design(rows, count, seed)
                made = calibrate_gemm(rows.iloc[few].reset_index(drop=True), gpu, *fitted)
                rest = rows.iloc[np.setdiff1d(scored, few)].reset_index(drop=True)
                estimator = serving_gemm.TensorCoreGemm.from_artifact(made.manifest, made.weights)
                ratio = bounds_and_forecasts(estimator, rest, "gemm", gpu)[1]
                low, high = made.manifest["calibrated"][gpu.id]["width"]["linear|bf16"]
                holds = np.mean((-np.log(ratio) >= low) & (-np.log(ratio) <= high))
                off = np.abs(ratio - 1.0)
                found.append((np.median(off), off.mean(), (high - low) / 2.0, holds))
            median, mean, half, holds = np.mean(found, axis=0)
            errors = f"{before:.1%} | {median:.1%} | {mean:.1%}"
            lines.append(f"| {gpu.id} | {count} | {name} | {errors} | {half:.0%} | {holds:.0%} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--gpu", default="l40s", help="the board left out")
    parser.add_argument("--framework", default="vllm", help="whose rows are measured and judged")
    parser.add_argument("--sample", type=int, default=300, help="rows of a GPU and framework in the fit")
    parser.add_argument("--draws", type=int, default=5)
    arguments = parser.parse_args()
    rows = read_rows(arguments.rows)
    rows = rows[((rows["op"].astype(str) == "gemm") & (rows["kind"].astype(str) == "linear")).to_numpy()]
    rows = rows[kinds(rows, "gemm") == "bf16"].reset_index(drop=True)
    gpus = {name: load_gpu(name) for name in sorted(rows["gpu"].astype(str).unique())}
    out = dict(CASES)[arguments.gpu]
    seen = thinned(rows[~rows["gpu"].astype(str).isin(out).to_numpy()].reset_index(drop=True), arguments.sample)
    fitted = fit_gemm(seen, gpus, 0)
    own = rows[(rows["gpu"].astype(str) == arguments.gpu).to_numpy()]
    own = own[(own["framework"].astype(str) == arguments.framework).to_numpy()].reset_index(drop=True)
    print("| board | rows | design | error without rows | median | mean | 80 % half-width | holds |")
    print("| --- | --: | --- | --: | --: | --: | --: | --: |")
    print("\n".join(judged(own, fitted, gpus[arguments.gpu], [16, 48], arguments.draws)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
