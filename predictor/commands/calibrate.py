"""`tilecast calibrate`: adapt a set of estimators to one GPU."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from predictor.commands.tracked import file_sha256, resolve, say, settings, tracking_argument

EXAMPLES = """examples:
  tilecast calibrate --gpu rtx-4090 --data my-rows.parquet --out my-set
  predict --model gpt3 --gpu rtx-4090 --dtype fp32 --artifacts my-set

Rows in the measurement schema (docs/dataset-format.md), at most 256 for an estimator and 5 in all:
  fp32 of eager PyTorch: GEMM, element-wise, softmax, norm
  bf16, fp8, int8, nvfp4, mxfp8 of vllm, trtllm or sglang, 16 rows or more each: GEMM, attention, MoE; linear layers
    and flash prefill of PyTorch count as vllm where the host is not in their time (CUDA graphs, or 50 us and more)
  collectives over PCIe, 8 rows of a system or more
`microbench plan --calibration` says which points to measure (docs/measuring.md). Estimators that the rows do not speak
of are copied unchanged.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `calibrate`."""
    parser.epilog = EXAMPLES
    parser.add_argument("--gpu", required=True, metavar="NAME", help="the GPU that was measured: a name or a YAML file")
    parser.add_argument(
        "--data", required=True, metavar="FILE", help="its rows, a file or a folder; those of other GPUs are not read"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write the adapted set to")
    parser.add_argument("--artifacts", metavar="DIR", help="the set to adapt (default: the one that ships)")
    tracking_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Calibrate and print what changed."""
    from predictor import tracking
    from predictor.training.calibrate import calibrate

    source = resolve(arguments.artifacts, arguments.tracking_uri)
    of = Path(arguments.gpu).stem if arguments.gpu.endswith((".yaml", ".yml")) else arguments.gpu
    with tracking.run("calibrate", arguments.tracking_uri, say, of=of) as run:
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
        "scalars": report.scalars, "before_mean_ape_pct": report.before, "after_mean_ape_pct": report.after,
        "unchanged": report.unchanged,
    }  # fmt: skip
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"{report.gpu}: estimators in {report.out}")
    for folder, scalars in report.scalars.items():
        rows, before, after = report.rows[folder], report.before[folder], report.after[folder]
        print(f"  {folder}: {rows} rows, mean error on them {before:.1f} % before, {after:.1f} % after")
        for name, value in scalars.items():
            print(f"    {name}: {_text(value)}")
    for folder, reason in report.unchanged.items():
        print(f"  {folder}: unchanged ({reason})")
    if report.unused_rows:
        print(f"  {report.unused_rows:,} rows of {report.gpu} are of operators, dtypes or protocols not calibrated")
    return 0


def _text(value: Any) -> str:
    """A scalar, or scalars by name, to four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(entry)}" for name, entry in value.items())
    return f"[{', '.join(_text(entry) for entry in value)}]" if isinstance(value, list) else str(value)
