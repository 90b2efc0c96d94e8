"""The products of a simulated hour of a board: drawn and timed by the harness, a set calibrated by them, its errors on
rows kept aside. The board's law is `simulated_cuda.board`'s: no estimator knows it.

    PYTHONPATH=tests python3 -m simulated_hour 300 FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import simulated_cuda
from simulated_cuda.tensors import RATES

from microbench import calibration, prices, sweep
from microbench.capability import copies, gpu_target, held_bytes
from microbench.case import Case
from microbench.devices.base import TORCH_DTYPES, BenchDevice
from microbench.launchers.base import Prepared, Rotation
from microbench.measure import Measurer
from microbench.timing_settings import Settings
from predictor.data import dataset
from predictor.data.schema import BY_NAME
from predictor.hardware.gpu import load_gpu
from predictor.ops import Gemm

HOUR_S = 3600.0
#: Rows of a product are those of decode up to so many: batches that engines capture.
DECODE_ROWS = 64


def planned(gpu: str, count: int) -> list[Case]:
    """The first ``count`` products of an hour's plan that a calibration reads."""
    target = gpu_target(load_gpu(gpu))
    cases = prices.deepened(target, ("gemm",), ("bf16", "fp8"), sweep.SWEEPS, HOUR_S, Settings()).cases
    return [case for case in cases if calibration.reads(case, target)][:count]


def timed(case: Case, device: BenchDevice, runtime: Any) -> dict[str, Any]:
    """The row of a case whose product is a kernel of the board's and no more: nothing is computed."""
    op, first = case.op, id(case)
    assert isinstance(op, Gemm)
    held = int(held_bytes(op))
    rest = int(op.bytes_moved()) - held

    def launch(copy: int = 0) -> None:
        touched = ((first + copy, held), (-1, rest))
        runtime.launch(simulated_cuda.Kernel("product", op.flops(), RATES[TORCH_DTYPES[op.dtype]], touched))

    turns = copies(held, device.cache_bytes)
    calls = Rotation([lambda copy=copy: launch(copy) for copy in range(turns)])
    measurer = Measurer(device, Settings(profile=False))
    timing = measurer._timer.time(case, calls, None, turns)
    return measurer._row(case, Prepared(launch), timing)


def measured(gpu: str, cases: list[Case]) -> Any:
    """The rows of ``cases`` as a frame."""
    from microbench.devices import open_device

    done = simulated_cuda.install()
    try:
        device = open_device("cuda", 0)
        rows = [timed(case, device, done.runtime) for case in cases]
    finally:
        done.remove()
    assert {row["gpu"] for row in rows} == {gpu}
    names = [name for name in BY_NAME if any(row.get(name) is not None for row in rows)]
    return dataset.to_frame({name: [row.get(name) for row in rows] for name in names}, len(rows))


def log_errors(frame: Any, gpu: str, artifacts: str | None) -> Any:
    """(n,) log of forecast over measured."""
    from predictor.kernels.artifact import load_artifacts
    from predictor.kernels.base import predict_kernels

    said = predict_kernels(dataset.ops_of(frame), load_gpu(gpu), load_artifacts(artifacts), "vllm", cold=True)
    return np.log(said.latency_s / (frame["latency_ms"].to_numpy(dtype=float) * 1e-3))


def hour(gpu: str, count: int, folder: Path) -> dict[str, float]:
    """Of every fifth row, kept aside: median errors before and after in %, and the bias of decode products: that of
    their time together (``decode_bias``), and the median and mean of each alone."""
    from predictor.fit.calibrate import calibrate

    frame = measured(gpu, planned(gpu, count))
    aside = np.arange(len(frame)) % 5 == 4
    dataset.write(frame[~aside].reset_index(drop=True), folder / "rows.parquet")
    kept = frame[aside].reset_index(drop=True)
    calibrate(gpu, folder / "rows.parquet", folder / "set")
    before, after = (log_errors(kept, gpu, at) for at in (None, str(folder / "set")))
    decode = kept["m"].to_numpy(dtype=int) <= DECODE_ROWS
    time_s = kept["latency_ms"].to_numpy(dtype=float)[decode]
    biases = [100 * float((np.exp(errors[decode]) * time_s).sum() / time_s.sum() - 1) for errors in (before, after)]
    return {
        "rows": float(len(frame)), "kept": float(aside.sum()), "decode": float(decode.sum()),
        "before_pct": 100 * float(np.median(np.abs(np.expm1(before)))),
        "after_pct": 100 * float(np.median(np.abs(np.expm1(after)))),
        "decode_bias_before_pct": biases[0], "decode_bias_pct": biases[1],
        "decode_median_pct": 100 * float(np.expm1(np.median(after[decode]))),
        "decode_mean_pct": 100 * float(np.expm1(np.mean(after[decode]))),
    }  # fmt: skip


if __name__ == "__main__":
    for name, value in hour("h100-sxm", int(sys.argv[1]), Path(sys.argv[2])).items():
        print(f"{name:<24}{value:.4g}")
