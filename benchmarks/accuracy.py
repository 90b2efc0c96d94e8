#!/usr/bin/env python3
"""Writes the tables of accuracy, benchmarks/results/accuracy-tables-DATE.md, from the public data.

usage: benchmarks/accuracy.py --data $TILECAST_DATA --work DIR [--out FILE] [--redo gpus] [--thin]

Fits on the rows of datasets/ and judges whole models on --data's ground_truth; writes a section each:

fp32         trains on NeuSight's training tables alone; its test tables and the end-to-end suite, cell by cell, beside
             a roofline, a constant efficiency and NeuSight (accuracy_fp32.py)
shapes       serving kernels: trains with a fifth of the shape groups held out and scores those
models       whole MoE models held out, four draws
gpus         serving kernels on GPUs left out, and bf16 GEMM there calibrated (accuracy_serving.py)
collectives  a generation of systems left out (leave_one_out_collectives.py)
suites       the end-to-end suites of serving, with the estimators that ship (accuracy_suites.py)
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from accuracy_fp32 import fp32
from accuracy_serving import gpus_left_out
from accuracy_suites import suites
from accuracy_tables import HEAD, ROOT, RULE, figures, tilecast

from predictor.data import dataset
from predictor.fit.evaluate import predict_rows
from predictor.fit.scores import by_group
from predictor.kernels.artifact import load_artifacts

#: Where the tables are kept, by the day of their run.
RESULTS = ROOT / "benchmarks" / "results"
SOURCES = ("neusight", "aiconfigurator", "vidur", "vtrain", "llmcompass")
MODEL_SEEDS = (0, 1, 2, 3)
THIN = "thin"  # a file of the folder of work: sections that can be are thinned


def shapes(files: dict[str, Path], data: Path, work: Path) -> list[str]:
    """Held-out shape groups: by scheme, by GPU with frameworks pooled, and by framework."""
    folder = work / "heldout"
    start = time.monotonic()
    tilecast(
        "train", "--data", files["aiconfigurator"], files["neusight"], files["vidur"],
        "--no-intervals", "--holdout", "0.2", "--seed", "0", "--out", folder,
    )  # fmt: skip
    lines = [
        "## Shapes held out (`tilecast train --holdout 0.2 --seed 0`)",
        "",
        "A fifth of the shape groups, whole: GEMM by (n, k), attention by head layout, MoE by token count. Trained in"
        f" {(time.monotonic() - start) / 60:.1f} minutes.",
    ]
    return lines + held_out_lines(folder)


def held_out_lines(folder: Path) -> list[str]:
    """Errors on the rows that a set held out, which stand beside it."""
    rows = predict_rows(dataset.read(folder / "heldout.parquet"), load_artifacts(folder))
    lines = []
    for keys in (("operator", "scheme"), ("operator", "scheme", "gpu"), ("operator", "scheme", "gpu", "framework")):
        lines += ["", f"| {' | '.join(keys)} {HEAD}", "| --- " * len(keys) + RULE]
        for group in by_group(rows, keys):
            if group["n"]:
                lines.append(f"| {' | '.join(group[key] for key in keys)} | {figures(group)} |")
    return lines


def models(files: dict[str, Path], data: Path, work: Path) -> list[str]:
    """MoE models of which no row was seen."""
    lines = ["## Whole MoE models held out (`--estimators moe --holdout 0.2 --holdout-by models`)", ""]
    lines += [f"| seed | GPU | operator | dtype {HEAD}", f"| --: | --- | --- | --- {RULE}"]
    for seed in MODEL_SEEDS:
        result = tilecast(
            "train", "--data", files["aiconfigurator"], "--no-intervals", "--estimators", "moe", "--holdout", "0.2",
            "--holdout-by", "models", "--seed", str(seed), "--out", work / f"models-{seed}",
        )  # fmt: skip
        lines += [
            f"| {seed} | {g['gpu']} | {g['operator']} | {g['dtype']} | {figures(g)} |"
            for g in result["heldout_shapes"]
            if g["gpu"] == "all" and g["n"]
        ]
    return lines


def gpus(files: dict[str, Path], data: Path, work: Path) -> list[str]:
    """Serving kernels of GPUs that no row was seen of."""
    return gpus_left_out(files["aiconfigurator"], thin=(work / THIN).is_file())


def collectives(files: dict[str, Path], data: Path, work: Path) -> list[str]:
    """Collectives of systems that no row was seen of."""
    words = [str(files[name]) for name in ("aiconfigurator", "vidur", "vtrain")]
    script = str(ROOT / "benchmarks" / "leave_one_out_collectives.py")
    done = subprocess.run([sys.executable, script, *words], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return [
        "## Collectives, a generation left out (`benchmarks/leave_one_out_collectives.py`)",
        "",
        "Median errors; the headline is NCCL's all_reduce in 16 bit over the most GPUs of a node from 1 MiB on, the",
        "others below / from 1 MiB on. B60 is Intel's oneCCL, in no fit of NCCL.",
        "",
        "```text",
        done.stdout.rstrip(),
        "```",
    ]


SECTIONS = {
    "fp32": fp32, "shapes": shapes, "models": models, "gpus": gpus, "collectives": collectives, "suites": suites,
}  # fmt: skip


def main() -> int:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=RESULTS / f"accuracy-tables-{time.strftime('%Y-%m-%d')}.md")
    parser.add_argument("--redo", default=",".join(SECTIONS), help="sections to run again; the others are as in DIR")
    parser.add_argument("--thin", action="store_true", help="GPUs left out on few rows, which their section says")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    (arguments.work / THIN).unlink(missing_ok=True)
    if arguments.thin:
        (arguments.work / THIN).touch()
    data, work = arguments.data.resolve(), arguments.work.resolve()
    files = {source: ROOT / "datasets" / source for source in SOURCES}
    lines = [
        "# Accuracy: tables",
        "",
        "Written by `benchmarks/accuracy.py`; every section names the day of its run.",
        "",
    ]
    for name, section in SECTIONS.items():
        kept = work / f"{name}.md"
        if name in arguments.redo.split(",") or not kept.is_file():
            head, *rest = section(files, data, work)
            kept.write_text("\n".join([head, "", f"Run on {time.strftime('%Y-%m-%d')}.", *rest]), encoding="utf-8")
        lines += [kept.read_text(encoding="utf-8"), ""]
    arguments.out.write_text("\n".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
