#!/usr/bin/env python3
"""How well fp32 convolutions are forecast, by board and by shape left out: NeuSight's rows of op conv.

usage: benchmarks/convolutions.py --data $TILECAST_DATA [--rows 600] [--fit]

The rows (3 x 3, stride 1, cuDNN 8.9, TF32 off) are no part of `datasets/`. Without --fit the shipped constants answer
(`predictor.kernels.convolution.estimator`); they were fitted on these rows. With --fit they are fitted again: on all
boards (what the module has), then with each board left out, then with a fifth of the shapes left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from predictor.data.importers.neusight import GPUS  # noqa: E402
from predictor.errors import RequestError, TilecastError  # noqa: E402
from predictor.files.extras import require  # noqa: E402
from predictor.hardware.gpu import GPUSpec, load_gpu  # noqa: E402
from predictor.kernels.artifact import load_artifacts  # noqa: E402
from predictor.kernels.base import make_batch  # noqa: E402
from predictor.kernels.convolution.core import Constants  # noqa: E402
from predictor.kernels.convolution.estimator import Gathered  # noqa: E402
from predictor.kernels.fitting.solve import solve  # noqa: E402
from predictor.ops.convolution import Convolution  # noqa: E402
from predictor.ops.roofline import FloatArray  # noqa: E402

BoolArray = npt.NDArray[np.bool_]

#: What an eager call of these rows takes beside its kernels: the fixed part that fits them best, of 60, 120 and 220 us.
#: Chosen by looking at all five boards; their smallest rows take 80 to 140 us.
HOST_S, LAUNCH_S = 60e-6, 220e-6
FREE = ("implicit", "prologue", "winograd", "transform", "fused", "fused_step")
PULL, SCALE = 0.3, 0.2  # toward the start, and of the loss: chosen by hand, not from data


@dataclass(frozen=True)
class Rows:
    """One board's rows."""

    gpu: GPUSpec
    ops: tuple[Convolution, ...]
    seconds: FloatArray

    def taken(self, keep: BoolArray) -> Rows:
        """Those that ``keep`` marks."""
        chosen = np.flatnonzero(keep)
        return Rows(self.gpu, tuple(self.ops[i] for i in chosen), self.seconds[chosen])


def read(folder: Path, most: int) -> list[Rows]:
    """At most so many rows of each board, drawn with a fixed seed."""
    pandas = require("pandas")
    files = sorted(folder.glob("neusight/**/collect/conv/*/*.csv"))
    if not files:
        raise RequestError(f"{folder}: expected neusight/**/collect/conv/<version>/<GPU>.csv below it")
    found = []
    for path in files:
        frame = pandas.read_csv(path)
        frame = frame[(frame["Latency"] > 0) & frame["Device"].isin(list(GPUS))]
        frame = frame.sample(min(most, len(frame)), random_state=0)
        ops = tuple(
            Convolution.of("fp32", (b, into, size, size), (out, into, side, side), (stride,), (padding,))
            for b, into, out, size, side, stride, padding in frame[
                ["B", "Input_Channel", "Output_Channel", "Input_Size", "Kernel_Szie", "Stride", "Padding"]
            ].to_numpy().tolist()
        )  # fmt: skip
        gpu = load_gpu(GPUS[str(frame["Device"].iloc[0])])
        found.append(Rows(gpu, ops, frame["Latency"].to_numpy(dtype=np.float64) * 1e-3))
    return found


def answer(rows: Rows, estimator: Gathered, constants: Constants) -> FloatArray:
    """What protocol "eager_events" reads, in seconds."""
    batch = make_batch(Convolution.family, rows.ops)
    result: FloatArray = np.maximum(HOST_S, LAUNCH_S + estimator.with_constants(constants).seconds(batch, rows.gpu))
    return result


def fit(rows: list[Rows], estimator: Gathered) -> Constants:
    """Constants for such rows, each board alike."""
    free = np.array([name in FREE for name in Constants.names()])

    def errors(logs: FloatArray) -> FloatArray:
        constants = Constants.from_logs(logs)
        return np.concatenate([np.log(answer(part, estimator, constants) / part.seconds) for part in rows])

    return Constants.from_logs(solve(errors, estimator.constants.logs(), PULL, free=free, scale=SCALE).x)


def splits(boards: list[Rows]) -> Iterator[tuple[str, list[BoolArray]]]:
    """(what is left out, marks (n,) of each board's rows that are): each board, then a fifth of the shapes, which no
    board keeps."""
    selection = require("sklearn.model_selection")
    ops = [op for rows in boards for op in rows.ops]
    sizes = [len(rows.ops) for rows in boards]
    number_of_shape = {op: number for number, op in enumerate(dict.fromkeys(ops))}
    each_board = selection.LeaveOneGroupOut().split(ops, groups=np.repeat(np.arange(len(boards)), sizes))
    shapes = selection.GroupShuffleSplit(1, test_size=0.2, random_state=0)
    fifth = shapes.split(ops, groups=[number_of_shape[op] for op in ops])
    for title, split in (("this board", each_board), ("a fifth of the shapes", fifth)):
        for _, out in split:
            yield title, np.split(np.isin(np.arange(len(ops)), out), np.cumsum(sizes)[:-1])


def line(title: str, rows: Rows, seconds: FloatArray) -> str:
    """One line of the table."""
    off = seconds / rows.seconds - 1.0
    of = np.abs(off) * 100
    return (
        f"{title:28}{rows.gpu.id:18}{len(off):6}{of.mean():8.1f}{np.median(of):8.1f}{np.quantile(of, 0.9):8.1f}"
        f"{off.mean() * 100:+8.1f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the public data ($TILECAST_DATA)")
    parser.add_argument("--rows", type=int, default=600, help="of each board, drawn with a fixed seed (default 600)")
    parser.add_argument("--fit", action="store_true", help="fit again, with boards and shapes left out in turn")
    args = parser.parse_args()
    estimator = load_artifacts().select("convolution", "fp32")
    if not isinstance(estimator, Gathered):
        raise RequestError("the shipped set does not answer for convolutions in fp32")
    boards = read(args.data, args.rows)
    print(f"{'left out':28}{'GPU':18}{'n':>6}{'mean':>8}{'median':>8}{'p90':>8}{'signed':>8}   % of the measured time")
    if not args.fit:
        for rows in boards:
            print(line("nothing", rows, answer(rows, estimator, estimator.constants)))
        return 0
    for title, held_out in splits(boards):
        parts = list(zip(boards, held_out, strict=True))
        known = fit([rows.taken(~out) for rows, out in parts if not out.all()], estimator)
        for rows in (rows.taken(out) for rows, out in parts if out.any()):
            print(line(title, rows, answer(rows, estimator, known)))
    whole = fit(boards, estimator)
    print("all:", ", ".join(f"{name} {value:.3g}" for name, value in whole.to_manifest().items()))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TilecastError as error:
        sys.exit(f"error: {error}")
