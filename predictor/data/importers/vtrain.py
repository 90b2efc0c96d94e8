"""vTrain's look-up tables of all_reduce (VIA-Research/vTrain, MIT): nccl-tests over 2, 4 and 8 GPUs of one node.

Layout trace/<a100|v100>/AR_GPU<ranks>_1M_1024M_LUT: comma-separated, fp32, 1 MiB to 1 GiB in steps of 1 MiB, the time
out of place and in place in nanoseconds. The headline is the time out of place; launches stand inside it. On V100 two
GPUs share one NVLink of 25 GB/s and eight reach six of them: the hybrid cube mesh of a DGX-1.
"""

from __future__ import annotations

import re
from pathlib import Path

from predictor.data.importers.base import (
    Collector,
    ImportResult,
    collect,
    collective_cells,
    drop_bad_latency,
    find,
    flag_below_bound,
    read_csv,
)
from predictor.files.extras import require
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import default_system

EXPECTED = "trace/<a100|v100>/AR_GPU<ranks>_*_LUT"
GPUS = {"a100": "a100-sxm-80gb", "v100": "v100-sxm-32gb"}

_NAME = re.compile(r"AR_GPU(\d+)_.*_LUT")
_TIME = "time(ns)"
#: Header of a table: nccl-tests' times with a buffer of their own for what comes out, which are read, then in place.
_LAYOUT = ("size(B)", "count", "type", _TIME, "busbw(GB/s)", _TIME, "busbw(GB/s)")


def run(root: Path) -> ImportResult:
    """Imports every look-up table below `root`. Raises SpecError where there is none in this layout."""
    files = [path for path in find(root, ("**/AR_GPU*_LUT",)) if _NAME.fullmatch(path.name)]
    result = collect("vtrain", root, files, EXPECTED, _import_file).result()
    flag_below_bound(result.frame)
    return result


def _import_file(into: Collector, path: Path) -> None:
    pd = require("pandas")
    raw = read_csv(path, ("size(B)", "type", _TIME), _LAYOUT)
    gpu = GPUS.get(path.parent.name)
    if gpu is None:
        into.skip_file(path, len(raw), f"device {path.parent.name!r} has no catalogue id here")
        return
    raw = drop_bad_latency(into, path, raw, _TIME)
    raw = into.without(path, raw, (raw["type"] != "float").to_numpy(), "type is not float")
    match = _NAME.fullmatch(path.name)
    assert match is not None  # `run` chose by it
    ranks = pd.Series([int(match[1])] * len(raw))
    kinds = pd.Series(["all_reduce"] * len(raw))
    into.add(path, raw, {
        "gpu": gpu, "framework": "pytorch", "kernel_source": "nccl", "protocol": "eager_events",
        "cache_state": "unknown", "dtype": "fp32", "latency_ms": raw[_TIME].to_numpy(dtype=float) / 1e6,
        **collective_cells(
            default_system(load_gpu(gpu)), kinds, raw["size(B)"].reset_index(drop=True), ranks, ranks
        ),
    })  # fmt: skip
