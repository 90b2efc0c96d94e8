"""Collectives of a system that nobody measured: each GPU generation left out, and from eight rows of its own.

    python benchmarks/leave_one_out_collectives.py FILE.parquet...

FILEs are imports of aiconfigurator, vidur and vtrain. Printed are errors in percent: the median of NCCL's all_reduce in
16 bit over the most GPUs of a node from 1 MiB on ("headline"), then, below and from 1 MiB on, median, mean and signed
median of NCCL's collectives, of the libraries' own all_reduce, of both, and the medians by kind.
The eight rows are drawn over the node's all_reduce rows, stratified over GPUs and sizes, mean of ten draws; they are no
part of the rows they are tested on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data import dataset
from predictor.data.plausible_tables import keep_tables_apart
from predictor.hardware.gpu import load_gpu
from predictor.kernels.collective import fit as fit_collective
from predictor.kernels.collective.core import OWN, Constants
from predictor.ops.roofline import FloatArray

MIB = 2**20
LEFT_OUT = {
    "A100": ("a100-sxm-80gb", "a100-pcie-80gb"),
    "Hopper": ("h100-sxm", "h200-sxm", "h100-nvl"),
    "B200, GB200": ("b200-sxm", "gb200"),
    "V100": ("v100-sxm-32gb",),
    "L40S": ("l40s",),
    "RTX PRO 6000": ("rtx-pro-6000-server",),
    "PCIe boards": ("l40s", "rtx-pro-6000-server"),
    "B60": ("b60",),
}
SEEDS = 10
IntArray = npt.NDArray[np.int64]


def main() -> int:
    """Print the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    frame = dataset.concat([_collectives(dataset.read(path)) for path in parser.parse_args().files])
    keep_tables_apart(frame, {name: load_gpu(name) for name in frame["gpu"].astype(str).unique()})
    frame = fit_collective.usable(frame[(frame["flag"].astype(str) == "").to_numpy()].reset_index(drop=True))
    gpus = {name: load_gpu(name) for name in sorted(frame["gpu"].astype(str).unique())}
    rows = fit_collective.rows_of(frame, gpus)
    gpu = frame["gpu"].astype(str).to_numpy()
    nvidia = np.array([gpus[name].vendor == "nvidia" for name in gpu])
    headline = _headline(frame)
    for name, ids in LEFT_OUT.items():
        out = np.isin(gpu, ids)
        law = fit_collective.SharedLaw(rows.take(np.flatnonzero(nvidia & ~out)))
        constants = law.constants(law.find())
        zero = np.zeros((rows.size, len(OWN)))
        signed = 100.0 * np.expm1(rows.errors(constants, zero))
        error = np.abs(signed)
        target = out & headline
        said = "no headline"
        if target.any():
            said = f"headline {np.median(error[target]):.1f} % ({int(target.sum())} rows)"
        print(f"{name} left out: {said}", *_by_library(frame, signed, out), sep="\n    ", flush=True)
        print("    " + "; ".join(_by_kind(frame, error, out)))
        for system in sorted(set(rows.system[out].tolist())):
            _from_eight(frame, rows, constants, out & (rows.system == system), headline, system)
    return 0


def _collectives(frame: Any) -> Any:
    return frame[(frame["op"].astype(str) == "collective").to_numpy()].reset_index(drop=True)


def _headline(frame: Any) -> npt.NDArray[np.bool_]:
    """NCCL's (or oneCCL's) all_reduce in 16 bit over the most GPUs that aiconfigurator has of the node, from 1 MiB."""
    base = (
        (frame["source"].astype(str) == "aiconfigurator") & (frame["framework"].astype(str) == "pytorch")
        & (frame["kind"].astype(str) == "all_reduce") & (frame["dtype"].astype(str) == "fp16")
    )  # fmt: skip
    most = frame["ranks"].where(base).groupby(frame["gpu"].astype(str)).transform("max")
    return np.asarray(base & (frame["ranks"] == most) & (frame["size"] >= MIB), dtype=bool)


def _by_library(frame: Any, signed: FloatArray, out: npt.NDArray[np.bool_]) -> list[str]:
    """A line a side of 1 MiB: median, mean and signed median of the errors, and how many."""
    nccl = (frame["framework"].astype(str) == "pytorch").to_numpy()
    big = (frame["size"] >= MIB).to_numpy()
    said = []
    for side, rows in (("below 1 MiB", out & ~big), ("from 1 MiB", out & big)):
        parts = []
        for name, part in (("all", rows), ("NCCL", rows & nccl), ("own kernels", rows & ~nccl)):
            if part.any():
                error = np.abs(signed[part])
                median, mean, middle = np.median(error), error.mean(), np.median(signed[part])
                parts.append(f"{name} {median:.1f} (mean {mean:.1f}, signed {middle:+.1f}, n {int(part.sum())})")
        if parts:
            said.append(f"{side}: " + "; ".join(parts))
    return said


def _by_kind(frame: Any, error: FloatArray, out: npt.NDArray[np.bool_]) -> list[str]:
    said = []
    big = (frame["size"] >= MIB).to_numpy()
    library = np.where(frame["framework"].astype(str) == "pytorch", "", "own ")
    kinds = np.char.add(library.astype(str), frame["kind"].astype(str).to_numpy(dtype=str))
    for kind in sorted(set(kinds[out].tolist())):
        here = out & (kinds == kind)
        parts = [f"{np.median(error[here & side]):.1f}" if (here & side).any() else "-" for side in (~big, big)]
        said.append(f"{kind} {parts[0]} / {parts[1]}")
    return said


def _from_eight(
    frame: Any,
    rows: fit_collective.CollectiveRows,
    constants: Constants,
    here: npt.NDArray[np.bool_],
    headline: npt.NDArray[np.bool_],
    system: str,
) -> None:
    ours = here & np.isin(frame["source"].astype(str), ["aiconfigurator"])
    pool = np.flatnonzero(
        ours & (frame["kind"].astype(str) == "all_reduce") & (frame["dtype"].astype(str) == "fp16")
        & (frame["framework"].astype(str) == "pytorch")
    )  # fmt: skip
    if len(pool) < 16:
        return
    nccl = np.flatnonzero(ours & (frame["framework"].astype(str) == "pytorch"))
    found = []
    for seed in range(SEEDS):
        drawn = _stratified(frame, pool, 8, seed)
        own = fit_collective.SystemLaw(rows.take(drawn), constants).find()
        scores = []
        for part in (np.flatnonzero(here & headline), nccl):
            rest = rows.take(np.setdiff1d(part, drawn))
            error = np.abs(np.expm1(rest.errors(constants, np.tile(own, (rest.size, 1)))))
            scores.append(100.0 * float(np.median(error)))
        found.append(scores)
    first, rest_of_it = np.array(found).T
    print(
        f"    {system} from 8 rows: headline {first.mean():.1f} % ({first.min():.1f} to {first.max():.1f}), "
        f"all NCCL rows {rest_of_it.mean():.1f} %"
    )


def _stratified(frame: Any, pool: IntArray, count: int, seed: int) -> IntArray:
    """``count`` rows of ``pool``: one from each of as many slices of its rows in the order of GPUs and size."""
    order = np.lexsort((frame["size"].to_numpy()[pool], frame["ranks"].to_numpy()[pool]))
    draw = np.random.default_rng(seed)
    return np.array([draw.choice(part) for part in np.array_split(pool[order], count)])


if __name__ == "__main__":
    sys.exit(main())
