#!/usr/bin/env python
"""Long runs of products: the best rates that were published against forecasts, and rows of long products.

usage: benchmarks/sustained_rates.py [--ceilings $TILECAST_DATA/ceilings/matmul_ceilings.csv] [--rows datasets/simumax
...] [--tables datasets/aiconfigurator]

For every board of ``--ceilings`` that the catalogue has: TFLOP/s published, and of a forecast in a burst and in a long
run, of the published shape and of the fastest in a hundred of the searched ones (PyTorch's kernels), and the need, W
per SM and GHz, that holds these to what was published.
For ``--rows``: the errors of the products, alone and with each taken for a part of a long run.
For ``--tables``: the need of every board that has products of the same columns and depth short enough to run at the
boost clock and so long that their repeats were held, by what ran them; the last line of a board is the median.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from predictor.data import dataset
from predictor.engines import EAGER
from predictor.files.extras import require
from predictor.fit.evaluate import predict_rows
from predictor.formats.dtypes import bytes_of
from predictor.hardware.gpu import GPUSpec, list_gpus, load_gpu
from predictor.kernels import power
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.kernels.device import STATIC, sustained_share, tensor_rate
from predictor.ops.base import Op
from predictor.ops.gemm import Gemm

#: Boards of the file's names: those that the catalogue has.
BOARDS = {
    "NVIDIA A100 SXM": "a100-sxm-80gb", "NVIDIA A100 PCIe": "a100-pcie-80gb", "NVIDIA H100 SXM": "h100-sxm",
    "NVIDIA H200 SXM": "h200-sxm", "NVIDIA B200 SXM": "b200-sxm", "NVIDIA GB200": "gb200", "AMD MI300X": "mi300x",
}  # fmt: skip
#: Rows, columns and depths that stand for the search's (multiples of 256 up to 20,480 each), chosen by hand, not from
#: data; and the share of them that may be forecast faster than the best that was found, as forecasts scatter.
SIZES = (1024, 2048, 4096, 6144, 8192, 10240, 12288, 14336, 16384, 20480)
FASTER = 0.01


def need_at(ops: Sequence[Op], gpu: GPUSpec, burst_s: np.ndarray, published: float) -> float:
    """W per SM and GHz with which `FASTER` of the searched products, which take ``burst_s`` (n,) at the boost clock,
    run faster than the ``published`` FLOP/s in a long run; NaN where no more do in a burst."""
    flops = np.array([op.flops() for op in ops])
    if np.quantile(flops / burst_s, 1.0 - FASTER) <= published:
        return float("nan")
    bytes_s = np.minimum(np.array([op.bytes_moved() for op in ops]) / gpu.memory_bandwidth, burst_s)
    busy = flops / gpu.peak_flops(ops[0].dtype) / power.EFFICIENCY
    least, most = 1.0, 100.0  # of the limit over the need: bisected
    low, high = 1.0 / most, least
    for _ in range(50):
        share = (low + high) / 2
        held_s = np.maximum(power.seconds_at(share, busy, bytes_s, burst_s - bytes_s), burst_s)
        low, high = (low, share) if np.quantile(flops / held_s, 1.0 - FASTER) > published else (share, high)
    cores = tensor_rate(gpu, "bf16") * gpu.sm_count * gpu.boost_clock_hz * 1e-9
    return float(gpu.power_limit_w / (low * cores))


def _product(dtype: str, m: int, n: int, k: int) -> Op:
    """A product whose operands come in their dtype."""
    return Gemm(dtype, m, n, k, quantized=bytes_of(dtype) < 2)


def searched(dtype: str) -> list[Op]:
    """The shapes that stand for those of the search."""
    return [_product(dtype, *shape) for shape in product(SIZES, repeat=3)]


def rates(ops: Sequence[Op], gpu: GPUSpec) -> tuple[np.ndarray, np.ndarray]:
    """FLOP/s of a burst and of a long run, (n,) each, with the kernels that PyTorch runs."""
    found = predict_kernels(ops, gpu, load_artifacts(), EAGER.kernels, EAGER.library_of(gpu))
    flops, alone = np.array([op.flops() for op in ops]), found.latency_s
    return flops / alone, flops / np.maximum(alone, power.held_s(ops, gpu, alone))


def published(path: Path) -> None:
    """The table of boards."""
    print("| board | dtype | published | shape: burst, long run | of 100 shapes, the fastest: burst, long run | W |")
    print("| --- | --- | --: | --: | --: | --: |")
    for row in require("pandas").read_csv(path).itertuples():
        if row.accelerator not in BOARDS:
            continue
        gpu, shape = load_gpu(BOARDS[row.accelerator]), [int(size) for size in row.best_shape_mnk.split("x")]
        told = [f"{flops[0] * 1e-12:,.0f}" for flops in rates([_product(row.dtype, *shape)], gpu)]
        ops = searched(row.dtype)
        both = rates(ops, gpu)
        best = [f"{np.quantile(flops, 1.0 - FASTER) * 1e-12:,.0f}" for flops in both]
        need = need_at(ops, gpu, np.array([op.flops() for op in ops]) / both[0], row.achieved_tflops * 1e12)
        print(
            f"| {gpu.id} | {row.dtype} | {row.achieved_tflops:,.1f} | {', '.join(told)} | {', '.join(best)}"
            f" | {need:.2f} |"
        )


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


#: ms of a product that its repeats in a table leave at the boost clock, and from which on they are held; columns and
#: depth from which on it can keep the tensor cores busy; columns and depths that say enough. Chosen by hand, not from
#: data: tables repeat a product some ten times, and B200's clock falls after 5 ms of load.
_SHORT_MS, _LONG_MS = (0.25, 1.0), 4.0
_WIDE, _MANY = 3072, 20


def long_tables(folder: Path) -> None:
    """The need of boards whose tables have products of both kinds."""
    pd = require("pandas")
    boards: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.parquet")):
        name = path.stem.rstrip("0123456789").rstrip("-")
        boards.setdefault(path.stem if path.stem in list_gpus() else name, []).append(path)
    for board, paths in boards.items():
        if board not in list_gpus():
            continue
        gpu = load_gpu(board)
        frame = pd.concat([dataset.read(path) for path in paths])
        frame = frame[(frame["op"].astype(str) == "gemm") & (frame["flag"].astype(str) == "")]
        frame = frame[(frame["n"] >= _WIDE) & (frame["k"] >= _WIDE) & (frame["kind"].astype(str) == "linear")]
        frame["rate"] = 2e3 * frame["m"] * frame["n"] * frame["k"] / frame["latency_ms"]
        for dtype in [dtype for dtype in ("bf16", "fp8") if ("matrix", dtype) in gpu.peaks]:
            needs = []
            for source, rows in frame[frame["dtype"].astype(str) == dtype].groupby("kernel_source", observed=True):
                each = [_need_of(gpu, dtype, group) for _, group in rows.groupby(["n", "k"], observed=True)]
                known = [need for need in each if need is not None]
                if len(known) >= _MANY:
                    needs.append(float(np.median(known)))
                    print(f"{board} {dtype} {source}: {len(known)} x, W {needs[-1]:.2f}")
            if needs:
                print(f"{board} {dtype}: W {np.median(needs):.2f}")


def _need_of(gpu: GPUSpec, dtype: str, rows: Any) -> float | None:
    """W per SM and GHz of products of the same columns and depth; None without short and long ones."""
    short = rows[(rows["latency_ms"] > _SHORT_MS[0]) & (rows["latency_ms"] < _SHORT_MS[1]) & (rows["m"] >= 1024)]
    long = rows[rows["latency_ms"] > _LONG_MS]
    if short.empty or long.empty:
        return None
    burst = float(short["rate"].max())
    left = sustained_share(gpu)  # of the clock, as `power.held_s` has it
    use = burst / gpu.peak_flops(dtype) / power.EFFICIENCY / left
    clock = left * float(long["rate"].median()) / burst
    share = STATIC + (1.0 - STATIC) * use * clock**3
    cores = tensor_rate(gpu, "bf16") * gpu.sm_count * gpu.boost_clock_hz * 1e-9
    return gpu.power_limit_w / share / cores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("TILECAST_DATA", "."))
    parser.add_argument("--ceilings", type=Path, default=data / "ceilings" / "matmul_ceilings.csv")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="data sets or shards")
    parser.add_argument("--tables", type=Path, help="a folder of shards, a board each")
    arguments = parser.parse_args()
    if arguments.tables is not None:
        long_tables(arguments.tables)
        return
    published(arguments.ceilings)
    for path in arguments.rows:
        long_rows(path)


if __name__ == "__main__":
    main()
