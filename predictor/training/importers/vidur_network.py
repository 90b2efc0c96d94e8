"""Vidur's collectives: network/<system>/{all_reduce,send_recv}.csv, fp16, 2 KiB to 64 MiB (512 MiB on A100 pairs).

`size` is bytes. The headline is the median of a few samples of a profiler, in whole microseconds. What the numbers say,
and the importer therefore flags (such rows are kept apart, and nothing is fitted on them):

* "rank_skew": an all_reduce below 4 MiB mostly shows how late the last rank came (40 microseconds where the fastest
  sample takes 7).
* "network_unknown": GPUs of several A100 or A40 nodes talk at 2 to 25 GB/s over a network that the source leaves
  unnamed.
* "link_not_used": two boards of the A40 "NVLink pair" exchange 4 GB/s, a fourteenth of what the bridge carries.
* "copy_of_a100": send_recv of the H100 pairs repeats the file of the A100 pairs, number by number.
"""

from __future__ import annotations

from pathlib import Path

from predictor.hardware.system import load_system
from predictor.training.dataset import Frame, to_frame
from predictor.training.extras import require
from predictor.training.importers.base import Collector, read_csv
from predictor.training.importers.links import collective_cells

FILES = ("**/all_reduce.csv", "**/send_recv.csv")

#: Folder -> (GPU, system, whether the network between its nodes is the system's).
SYSTEMS = {
    "a100_dgx": ("a100-sxm-80gb", "dgx-a100", False),
    "h100_dgx": ("h100-sxm", "dgx-h100", True),
    "a100_pairwise_nvlink": ("a100-pcie-80gb", "a100-nvlink-pairs", False),
    "h100_pairwise_nvlink": ("h100-nvl", "h100-nvlink-pairs", False),
    "a40_pairwise_nvlink": ("a40", "a40-nvlink-pairs", False),
}
SKEW_BELOW = 4 * 2**20  # bytes; chosen by looking at Vidur's all_reduce tables (see rank_skew above)

_NEEDED = ("num_workers", "size", "collective", "devices_per_node")
_STATISTICS = ("min", "max", "mean", "median", "std")


def import_file(into: Collector, path: Path) -> None:
    """Adds the rows of one file, or notes why they are left out."""
    np = require("numpy")
    name = path.stem
    raw = read_csv(path, (*_NEEDED, f"time_stats.{name}.median"))
    known = SYSTEMS.get(path.parent.name)
    if known is None:
        into.skip_file(path, len(raw), f"system {path.parent.name!r} is in no catalogue here")
        return
    gpu, system, networked = known
    median = raw[f"time_stats.{name}.median"].to_numpy(dtype=float)
    bad = ~(np.isfinite(median) & (median > 0)) | (raw["collective"] != name).to_numpy()
    if bad.any():
        into.skip_where(path, raw, bad, f"latency of {name} is no number above zero")
    raw = raw[~bad]
    index = raw.index.to_numpy() + 1
    raw = raw.reset_index(drop=True)
    times = {s: raw[f"time_stats.{name}.{s}"] for s in _STATISTICS if f"time_stats.{name}.{s}" in raw}
    cells = {
        "source": "vidur", "source_file": into.relative(path), "source_row": index, "gpu": gpu,
        "framework": "pytorch", "kernel_source": "nccl", "protocol": "profiler", "cache_state": "unknown",
        "dtype": "fp16", "latency_ms": times["median"], **{f"latency_{s}_ms": v for s, v in times.items()},
        "flag": _flags(path, raw, networked),
        **collective_cells(
            load_system(system), raw["collective"], raw["size"], raw["num_workers"], raw["devices_per_node"]
        ),
    }  # fmt: skip
    into.frames.append(to_frame(cells, len(raw)))


def _flags(path: Path, raw: Frame, networked: bool) -> Frame:
    pd = require("pandas")
    reasons = pd.Series([""] * len(raw))
    if path.parent.name == "h100_pairwise_nvlink" and path.stem == "send_recv":
        return pd.Series(["copy_of_a100"] * len(raw))
    if path.parent.name == "a40_pairwise_nvlink" and path.stem == "send_recv":
        reasons = reasons.mask(raw["num_workers"] <= raw["devices_per_node"], "link_not_used")
    if path.stem == "all_reduce":
        reasons = reasons.mask(raw["size"] < SKEW_BELOW, "rank_skew")
    if not networked:
        reasons = reasons.mask(raw["num_workers"] > raw["devices_per_node"], "network_unknown")
    return reasons
