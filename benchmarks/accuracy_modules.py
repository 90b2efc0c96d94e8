#!/usr/bin/env python3
"""How well traced PyTorch modules are forecast: KernelBench's 250 on RTX 3090 Ti, A10 and L4, eager and compiled.

usage: benchmarks/accuracy_modules.py --data $TILECAST_DATA [--gpu l4] [--out FILE.csv] [--minutes 10]

It runs the code of the modules that the suite names ($TILECAST_DATA/kernelbench_src) on PyTorch's meta device. Modules
stay in training mode, without gradients (batch norms take the batch's statistics); numbers are fp32, convolutions TF32,
which is PyTorch's default from Ampere on. Rows of the launch floor and of boards that are A10 or A10G by row stand
apart; rows that the suite suspects of anything else are left out. Compiled code in a CUDA graph has no forecast. With
--out every row is kept as it comes, and another run with that file goes on behind it. A second table has the eager rows
by board, length and class of module.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "benchmarks"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from accuracy_rows import Rows, line  # noqa: E402

import predictor  # noqa: E402
from predictor.errors import RequestError, TilecastError, one_line  # noqa: E402
from predictor.files.extras import require  # noqa: E402
from predictor.models.traced.model import TracedModel  # noqa: E402
from predictor.models.traced.module_files import model_of_file, with_tf32_convolutions  # noqa: E402

SUITE = "ground_truth/kernelbench.csv"
#: How a mode of the suite runs; the others put compiled code into a CUDA graph.
EXECUTIONS = {
    "eager": "eager", "compile_inductor_default": "compile", "compile_inductor_max-autotune-no-cudagraphs": "compile",
}  # fmt: skip
#: Words of ``suspect`` whose rows are scored, in a line of their own; any other word leaves a row out.
APART = ("launch_floor", "a10_or_a10g_by_row")


def kind_of(row: dict[str, Any]) -> str:
    """The line of the table that a row belongs to; "" where it is left out."""
    words = str(row["suspect"] or "").split()
    if any(word not in APART for word in words):
        return ""
    return " ".join([row["gpu"], EXECUTIONS.get(row["mode"], row["mode"]), f"level {row['level']}", *words])


#: Classes of modules in the order of their table, each with what names or sources of its modules hold, and their level.
CLASSES = (
    ("transposed convolutions", r"level1/.*conv_transposed|level2/.*ConvTranspose"),
    ("convolutions", r"level1/.*conv_|level2/.*Conv[23]d"),
    ("products", r"level1/.*[Mm]at(mul|rix)|level2"),
    ("norms, pooling", r"level1/.*(Norm|Pooling)"),
    ("element-wise, reductions", r"level1"),
    ("recurrent networks", r"level3/.*(RNN|LTSM|GRU)"),
    ("transformers, MLPs", r"level3/.*(MLP|GPT|Attention|Vision|Swin|Mamba|NetVlad)"),
    ("image models", r"level3"),
)
#: Milliseconds that part the rows: below the first they are the host, as the suite's goals have it; from the second on
#: RTX 3090 Ti slows down within the 100 calls of a row (median of means over minima 1.26; 1.00 below, 1.02 on L4), to a
#: third of what its shorter rows say, whatever the module. None of its rows lies between 2.2 and 5 ms.
LENGTHS_MS = (0.0, 0.5, 5.0, float("inf"))


def print_classes(frame: Any, rows: Rows) -> None:
    """Errors of eager rows by board, length and class."""
    for gpu, of_gpu in frame[frame["mode"] == "eager"].groupby("gpu"):
        for least, most in itertools.pairwise(LENGTHS_MS):
            part = of_gpu[(of_gpu["measured_ms"] >= least) & (of_gpu["measured_ms"] < most)]
            known = [(row, rows.found[row["case"]]["predicted_ms"]) for row in part.to_dict("records")
                     if row["case"] in rows.found]  # fmt: skip
            known = [(row, float(predicted)) for row, predicted in known if predicted not in (None, "")]
            print(f"\n{gpu}, {least:g} to {most:g} ms{'':6}n    mean  median     p90  signed")
            off: dict[str, list[float]] = {name: [] for name, _ in CLASSES}
            for row, predicted in known:
                name = next(name for name, pattern in CLASSES if re.search(pattern, row["module"]))
                off[name].append(predicted / float(row["measured_ms"]) - 1.0)
            for name, values in off.items():
                if values:
                    print(line(name, np.array(values)))
            print(line("all", np.array([value for values in off.values() for value in values])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the public data ($TILECAST_DATA)")
    parser.add_argument("--gpu", help="rows of this GPU alone")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no module after so many minutes")
    parser.add_argument("--out", type=Path, help="every row with its forecast or note, as CSV; one that is there grows")
    args = parser.parse_args()
    if not (args.data / SUITE).is_file():
        raise RequestError(f"no {SUITE} in {args.data}; expected the public data")
    frame = require("pandas").read_csv(args.data / SUITE, keep_default_na=False)
    if args.gpu is not None:
        frame = frame[frame["gpu"] == args.gpu]
    rows, begun, left_out = Rows(args.out), time.monotonic(), 0
    for module, part in frame.groupby("module"):
        if time.monotonic() - begun > 60.0 * args.minutes:
            break
        model: TracedModel | None = None
        answers: dict[tuple[str, str], tuple[float | None, str]] = {}
        for row in part.to_dict("records"):
            kind = kind_of(row)
            left_out += not kind
            if not kind or row["case"] in rows.found:
                continue
            if row["mode"] not in EXECUTIONS:
                rows.add(kind, row["case"], row["measured_ms"], None, "compiled code in a CUDA graph is not built")
                continue
            key = row["gpu"], EXECUTIONS[row["mode"]]
            if key not in answers:
                try:
                    model = model or with_tf32_convolutions(model_of_file(args.data / str(module)))
                    words = {"mode": "forward", "dtype": "fp32", "execution": key[1]}
                    answers[key] = predictor.predict(model, key[0], **words).latency_ms, ""
                except TilecastError as error:
                    answers[key] = None, one_line(str(error)).replace(str(args.data), "$TILECAST_DATA")[:200]
            rows.add(kind, row["case"], row["measured_ms"], *answers[key])
    rows.print_table("kernelbench", r"-(eager|compile_[a-z_-]+?)-level")
    print_classes(frame, rows)
    print(f"{len(rows.found)} of {len(frame)} rows of the suite; {left_out} that it suspects are left out")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TilecastError as error:
        sys.exit(f"error: {error}")
