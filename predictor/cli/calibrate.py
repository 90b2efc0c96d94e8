"""`tilecast calibrate`: adapt a set of estimators to one GPU."""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from predictor.cli.tracked import file_sha256, resolve, say, settings, tracking_argument
from predictor.errors import RequestError
from predictor.files.outputs import CASES, SET, output_argument
from predictor.report.under_way import UnderWay

EXAMPLES = """examples:
  tilecast calibrate --gpu rtx-4090 --data my-rows.parquet --out my-set
  predict --model gpt3 --gpu rtx-4090 --dtype fp32 --artifacts my-set
  tilecast calibrate --trace trace.json.gz --out my-set
  tilecast calibrate --gpu rtx-4090 --suggest 32 --out cases.json   # what to measure: `microbench collect --cases`

Rows in the measurement schema (docs/reference/dataset-format.md), 5 or more in all. An estimator with more than 256
rows takes 256 of them, evenly spread:
  fp32 of eager PyTorch: GEMM, element-wise, softmax, norm
  bf16, fp8, int8, nvfp4, mxfp8 of vllm, trtllm or sglang, 16 rows or more each: GEMM, attention, MoE; linear layers
    and flash prefill of PyTorch count as vllm where the host is not in their time (CUDA graphs, or 50 us and more);
    not `warm` rows whose weights lay in L2 (docs/reference/microbench.md: `rotating`)
  collectives over PCIe, 8 rows of a system or more
`microbench plan --calibration` says which points to measure (docs/how-to/measuring.md). Estimators without
rows are copied unchanged.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `calibrate`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help="the GPU that was measured: a name or a YAML file (a trace names its own)",
    )
    parser.add_argument("--data", metavar="FILE", help="its rows, a file or a folder; those of other GPUs are not read")
    parser.add_argument("--trace", metavar="FILE", help="instead: a profiler's trace, whose operators are the rows")
    parser.add_argument(
        "--suggest", type=int, metavar="N", help="instead: the N cases that shrink the set's intervals most, 5 to 256"
    )
    output_argument(
        parser, "--out", lambda arguments: SET if arguments.suggest is None else CASES, required=True, metavar="DIR",
        help="folder to write the adapted set to (--suggest: FILE, the cases)",
    )  # fmt: skip
    parser.add_argument("--artifacts", metavar="DIR", help="the set to adapt (default: the one that ships)")
    tracking_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Calibrate and print what changed."""
    if sum(given is not None for given in (arguments.data, arguments.trace, arguments.suggest)) != 1:
        raise RequestError(
            "calibrate: expected --data FILE or --trace FILE, the rows, or --suggest N, what to measure; one of them"
        )
    if arguments.gpu is None and arguments.trace is None:
        raise RequestError("calibrate: expected --gpu NAME, the GPU that was measured")
    if arguments.suggest is not None:
        return _suggest(arguments)
    if arguments.trace is None:
        if not Path(arguments.data).exists():  # before a run of it is tracked
            raise RequestError(f"--data {arguments.data}: no such file or folder; expected rows that were measured")
        return _calibrate(arguments)
    with tempfile.TemporaryDirectory() as folder:
        arguments.data = str(_trace_rows(arguments, Path(folder)))
        return _calibrate(arguments)


def _trace_rows(arguments: argparse.Namespace, folder: Path) -> Path:
    """The operators of a trace as a file of rows in ``folder``; names the GPU where nobody did."""
    from predictor.data import dataset
    from predictor.hardware.gpu import load_gpu
    from predictor.profiles.linked import Linked
    from predictor.profiles.recorded import Recorded
    from predictor.profiles.rows import rows_of
    from predictor.profiles.steps import steps_of
    from predictor.profiles.summary import board_id

    linked = Linked(Recorded(arguments.trace))
    arguments.gpu = arguments.gpu or board_id(linked.trace.board)
    if arguments.gpu is None:
        raise RequestError(f"{arguments.trace}: names no board of the catalogue; expected --gpu NAME")
    frame = rows_of(linked, steps_of(linked), load_gpu(arguments.gpu))
    path = folder / "trace-rows.parquet"
    dataset.write(frame, path)
    say(f"{arguments.trace}: {len(frame):,} shapes that ran, rows of protocol profiler")
    return path


def _calibrate(arguments: argparse.Namespace) -> int:
    """Calibrate by the rows of --data."""
    from predictor import tracking
    from predictor.fit.calibrate import calibrate

    source = resolve(arguments.artifacts, arguments.tracking_uri)
    of = Path(arguments.gpu).stem if arguments.gpu.endswith((".yaml", ".yml")) else arguments.gpu
    with UnderWay("calibrating", arguments), tracking.run("calibrate", arguments.tracking_uri, say, of=of) as run:
        run.parameters(settings(arguments))
        report = calibrate(
            arguments.gpu, Path(arguments.data), Path(arguments.out), Path(source) if source else None, say
        )
        run.dataset(Path(arguments.data).name, file_sha256(arguments.data), "calibration")
        run.estimators(report.out)
        run.parameters({"gpu": report.gpu, "scalars": report.scalars})
        run.metrics({"rows": report.rows, "before_mean_ape_pct": report.before, "after_mean_ape_pct": report.after})
    result = {
        "out": str(report.out), "gpu": report.gpu, "rows": report.rows, "unused_rows": report.unused_rows,
        "drawn_from": report.drawn_from,
        "scalars": report.scalars, "before_mean_ape_pct": report.before, "after_mean_ape_pct": report.after,
        "held_out_mean_ape_pct": report.held_out, "unchanged": report.unchanged,
    }  # fmt: skip
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"{report.gpu}: estimators in {report.out}")
    of = {folder: f", drawn from {many:,}" for folder, many in report.drawn_from.items()}
    for folder, scalars in report.scalars.items():
        rows, before, after = report.rows[folder], report.before[folder], report.after[folder]
        print(
            f"  {folder}: {rows} rows{of.get(folder, '')}, mean error on them {before:.1f} % before,"
            f" {after:.1f} % after"
            f" ({report.held_out[folder]:.1f} % each by the others)"
        )
        for name, value in scalars.items():
            print(f"    {name}: {_text(value)}")
    for folder, reason in report.unchanged.items():
        print(f"  {folder}: unchanged ({reason})")
    if not report.scalars:
        print("  the rows do not surely improve any estimator: the set stays as it was")
    if report.unused_rows:
        print(
            f"  {report.unused_rows:,} rows of {report.gpu} have operators, dtypes or protocols that are not calibrated"
        )
    return 0


def _suggest(arguments: argparse.Namespace) -> int:
    """Write the cases to measure and print what each should bring."""
    from predictor.fit.suggest import suggest

    source = resolve(arguments.artifacts, arguments.tracking_uri)
    with UnderWay("choosing cases", arguments):
        suggested = suggest(arguments.gpu, arguments.suggest, Path(arguments.out), Path(source) if source else None)
    entries: list[dict[str, Any]] = []
    for suggestion in suggested.cases:
        case, (estimator, kind, dtype) = suggestion.case.to_json(), suggestion.case.kind
        entries.append(
            {
                "estimator": estimator, "class": kind, "dtype": dtype, "case": case,
                "interval_pct": _percent(suggestion.case.half_width), "class_before_pct": _percent(suggestion.before),
                "class_after_pct": _percent(suggestion.after),
            }
        )  # fmt: skip
    if arguments.json:
        print(
            json.dumps({"gpu": arguments.gpu, "out": arguments.out, "cases": entries, "left_out": suggested.left_out})
        )
        return 0
    print(f"{len(entries)} cases for {arguments.gpu}, the most informative first, in {arguments.out}")
    for entry in entries:
        cells = entry["case"]["op"]
        sizes = " ".join(f"{k}={v}" for k, v in cells.items() if (type(v) is int and v > 0) or k == "fn")
        print(
            f"  {entry['estimator']}, {entry['class']} {entry['dtype']}: {sizes}: +-{entry['interval_pct']:.0f} % now;"
            f" its class +-{entry['class_before_pct']:.1f} % becomes {entry['class_after_pct']:.1f} %"
        )
    for name, rows in suggested.left_out.items():
        print(f"  {name}: none; it would get {rows}, fewer than its calibration learns from (ask for more cases)")
    print("These widths are expected ones: `calibrate` sets them by the rows that it holds out.")
    print(f"Next: microbench collect --cases {arguments.out} --out DIR")
    return 0


def _percent(half_width: float) -> float:
    """A half-width, a logarithm, in %."""
    return float((math.exp(half_width) - 1.0) * 100.0)


def _text(value: Any) -> str:
    """A scalar, or scalars by name, to four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(entry)}" for name, entry in value.items())
    return f"[{', '.join(_text(entry) for entry in value)}]" if isinstance(value, list) else str(value)
