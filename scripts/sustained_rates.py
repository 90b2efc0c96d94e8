#!/usr/bin/env python
"""Long runs of products: the best rates that were published against forecasts, and rows of long products.

usage: scripts/sustained_rates.py [--ceilings $TILECAST_DATA/ceilings/matmul_ceilings.csv] [--rows datasets/simumax ...]

For every board of ``--ceilings`` that the catalogue has: TFLOP/s published, and of a forecast in a burst and in a long
run, of the published shape and of 8192^3 (PyTorch's kernels), and the need that holds the board to what was published.
For ``--rows``: the errors of the products, alone and with each taken for a part of a long run.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from predictor.estimators import power
from predictor.estimators.artifact import load_artifacts
from predictor.estimators.base import predict_kernels
from predictor.estimators.device import STATIC
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.ops.base import Op
from predictor.ops.gemm import Gemm
from predictor.training import dataset
from predictor.training.evaluate import predict_rows
from predictor.training.extras import require

#: Boards of the file's names: those that the catalogue has.
BOARDS = {
    "NVIDIA A100 SXM": "a100-sxm-80gb", "NVIDIA A100 PCIe": "a100-pcie-80gb", "NVIDIA H100 SXM": "h100-sxm",
    "NVIDIA H200 SXM": "h200-sxm", "NVIDIA B200 SXM": "b200-sxm", "NVIDIA GB200": "gb200", "AMD MI300X": "mi300x",
}  # fmt: skip
LARGE = 8192


def need_at(gpu: GPUSpec, op: Op, burst: float, published: float) -> float:
    """W per SM and GHz with which a product that takes ``burst`` seconds at the boost clock takes ``published``."""
    bytes_s = min(op.bytes_moved() / gpu.memory_bandwidth, burst)
    clock = min((burst - bytes_s) / (published - bytes_s), 1.0)
    use = op.flops() / gpu.peak_flops(op.dtype) / power.EFFICIENCY / (published * clock)
    need = gpu.power_limit_w / (STATIC + (1 - STATIC) * use * clock**3)
    return need / (gpu.sm_count * gpu.boost_clock_hz * 1e-9)


def rates(ops: Sequence[Op], gpu: GPUSpec) -> tuple[np.ndarray, np.ndarray]:
    """TFLOP/s of a burst and of a long run."""
    flops, alone = np.array([op.flops() for op in ops]), predict_kernels(ops, gpu, load_artifacts()).latency_s
    return flops / alone / 1e12, flops / np.maximum(alone, power.held_s(ops, gpu, alone)) / 1e12


def published(path: Path) -> None:
    """The table of boards."""
    print("| board | dtype | published | shape: burst, long run | 8192^3: burst, long run | W per SM and GHz |")
    print("| --- | --- | --: | --: | --: | --: |")
    for row in require("pandas").read_csv(path).itertuples():
        if row.accelerator not in BOARDS:
            continue
        gpu, shape = load_gpu(BOARDS[row.accelerator]), [int(size) for size in row.best_shape_mnk.split("x")]
        ops = [Gemm(row.dtype, *shape), Gemm(row.dtype, LARGE, LARGE, LARGE)]
        burst, held = rates(ops, gpu)
        told = " | ".join(f"{a:,.0f}, {b:,.0f}" for a, b in zip(burst, held, strict=True))
        flops = ops[0].flops() * 1e-12
        need = need_at(gpu, ops[0], flops / burst[0], flops / row.achieved_tflops)
        print(f"| {gpu.id} | {row.dtype} | {row.achieved_tflops:,.1f} | {told} | {need:.2f} |")


def long_rows(path: Path) -> None:
    """Errors of a data set's products, alone and in a long run."""
    frame = dataset.read(path)
    frame = frame[(frame["op"].astype(str) == "gemm").to_numpy() & (frame["flag"].astype(str) == "").to_numpy()]
    found = predict_rows(frame, load_artifacts())
    ops = dataset.ops_of(frame)
    measured, alone = found["measured_ms"].to_numpy(), found["predicted_ms"].to_numpy()
    held = np.array([
        power.held_s([op], load_gpu(gpu), np.array([ms * 1e-3]))[0]
        for op, gpu, ms in zip(ops, frame["gpu"].astype(str), alone, strict=True)
    ])  # fmt: skip
    for name, times in (("bursts", alone), ("a long run", np.maximum(alone, held * 1e3))):
        for rows, which in ((measured > 0.0, "all"), (measured >= 1.0, "1 ms and more")):
            error = (times / measured - 1.0)[rows & np.isfinite(times)] * 100
            size = np.abs(error)
            print(
                f"{path} as {name}, {which}: n {len(error)}, mean {size.mean():.1f} %, median {np.median(size):.1f} %,"
                f" p90 {np.quantile(size, 0.9):.1f} %, signed {error.mean():+.1f} %"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("TILECAST_DATA", "."))
    parser.add_argument("--ceilings", type=Path, default=data / "ceilings" / "matmul_ceilings.csv")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="data sets or shards")
    arguments = parser.parse_args()
    published(arguments.ceilings)
    for path in arguments.rows:
        long_rows(path)


if __name__ == "__main__":
    main()
