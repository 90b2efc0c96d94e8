#!/usr/bin/env python3
"""Regenerates docs/accuracy.md's tables from the public data.

usage: scripts/accuracy.py --data $TILECAST_DATA --work DIR [--out docs/accuracy-tables.md] [--redo fp32,shapes]

1. Imports neusight, aiconfigurator and vidur into DIR (where not there already).
2. fp32: trains on NeuSight's training tables alone; its test tables and the end-to-end suite, cell by cell, beside a
   roofline, a constant efficiency and NeuSight (accuracy_fp32.py).
3. Serving kernels: trains with a fifth of the shape groups held out and scores those.
4. Whole MoE models held out.
5. bf16 GEMM: leaves each NVIDIA GPU out in turn; the roofline, a constant efficiency and ours side by side.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from accuracy_fp32 import fp32
from accuracy_tables import HEAD, ROOT, RULE, figures, pct, tilecast

SERVING_GPUS = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "l40s", "rtx-pro-6000-server")


def import_all(data: Path, work: Path) -> dict[str, Path]:
    """The imported files by source."""
    files = {}
    for source in ("neusight", "aiconfigurator", "vidur", "llmcompass"):
        files[source] = work / f"{source}.parquet"
        if not files[source].is_file():
            tilecast("dataset", "import", source, data / source, "--out", files[source])
    return files


def serving(files: dict[str, Path], data: Path, work: Path) -> list[str]:
    """Held-out shape groups."""
    folder = work / "heldout"
    start = time.monotonic()
    result = tilecast(
        "train", "--data", files["aiconfigurator"], files["neusight"], files["vidur"],
        "--no-intervals", "--holdout", "0.2", "--seed", "0", "--out", folder,
    )  # fmt: skip
    minutes = (time.monotonic() - start) / 60
    lines = [
        "## Shapes held out (`tilecast train --holdout 0.2 --seed 0`)",
        "",
        f"Trained in {minutes:.1f} minutes.",
        "",
    ]
    lines += [f"| GPU | operator | dtype | framework {HEAD}", f"| --- | --- | --- | --- {RULE}"]
    for g in result["heldout_shapes"]:
        if g["n"]:
            lines.append(f"| {g['gpu']} | {g['operator']} | {g['dtype']} | {g['framework']} | {figures(g)} |")
    return lines


def whole_models(files: dict[str, Path], data: Path, work: Path) -> list[str]:
    """MoE models of which no row was seen."""
    lines = ["## Whole MoE models held out (`--estimators moe --holdout 0.2 --holdout-by models`)", ""]
    lines += [f"| seed | GPU | operator | dtype {HEAD}", f"| --: | --- | --- | --- {RULE}"]
    for seed in (0, 1):
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


def leave_one_out(files: dict[str, Path], data: Path, work: Path) -> list[str]:
    """bf16 GEMM on GPUs that no row was seen of."""
    lines = ["## bf16 GEMM, one GPU left out at a time: median error", ""]
    lines += ["| left out | framework | n | roofline | constant efficiency | ours | ours, mean |"]
    lines += ["| --- | --- | --: | --: | --: | --: | --: |"]
    for gpus in (*SERVING_GPUS, "h100-sxm,h200-sxm"):
        folder = work / f"without-{gpus.replace(',', '-')}"
        tilecast(
            "train",
            "--data",
            files["aiconfigurator"],
            "--exclude-gpu",
            gpus,
            "--estimators",
            "gemm",
            "--no-intervals",
            "--out",
            folder,
        )
        for by in ("gpu,op,scheme", "gpu,op,scheme,framework"):
            rows = folder / "heldout_gpus.parquet"
            result = tilecast("evaluate", "kernels", rows, "--artifacts", folder, "--baselines", "--by", by)
            for g in result["groups"]:
                if g["scheme"] == "bf16":
                    name = g["gpu"] if "," not in gpus else f"{g['gpu']} (no Hopper row at all)"
                    lines.append(
                        f"| {name} | {g.get('framework', 'all')} | {g['n']:,} | {pct(g['roofline_baseline_pct'])} |"
                        f" {pct(g['constant_baseline_pct'])} | {pct(g['median_ape_pct'])} | {pct(g['mean_ape_pct'])} |"
                    )
    return lines


SECTIONS = {"fp32": fp32, "shapes": serving, "models": whole_models, "gpus": leave_one_out}


def main() -> int:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "accuracy-tables.md")
    parser.add_argument("--redo", default=",".join(SECTIONS), help="sections to run again; the others are as in DIR")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    data, work = arguments.data.resolve(), arguments.work.resolve()
    files = import_all(data, work)
    lines = ["# Accuracy: tables", "", f"Written by `scripts/accuracy.py` on {time.strftime('%Y-%m-%d')}.", ""]
    for name, section in SECTIONS.items():
        kept = work / f"{name}.md"
        if name in arguments.redo.split(",") or not kept.is_file():
            kept.write_text("\n".join(section(files, data, work)), encoding="utf-8")
        lines += [kept.read_text(encoding="utf-8"), ""]
    arguments.out.write_text("\n".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
