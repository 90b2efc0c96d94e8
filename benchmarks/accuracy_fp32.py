"""The fp32 section of benchmarks/accuracy.py: ours, a roofline, a constant efficiency and NeuSight, on the same cells.

Fitted are the five GPUs of NeuSight's training tables alone. The other three forecasts are of the same graphs: the
roofline is `--artifacts roofline`; the constant is one efficiency by operator family, a GPU's own or the five's median
(`constant_set.py` beside it), fitted on the same rows; NeuSight's is the suite's column `peer_neusight_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from accuracy_tables import HEAD, RULE, figures, pct, tilecast
from constant_set import RESAMPLES, paired_difference, write_constant_set

from predictor.data import dataset
from predictor.data.frame import Frame

FloatArray = npt.NDArray[np.float64]

GPUS = ("p4", "p100-pcie-16gb", "t4", "v100-pcie-32gb", "a100-pcie-40gb")
SEED = 0
#: Forecasts of ours, by the name of their columns.
OURS = ("ours", "roofline", "constant")
WORDS = {"ours": "ours", "roofline": "roofline", "constant": "constant efficiency", "neusight": "NeuSight"}


def fp32(files: dict[str, Path], data: Path, work: Path) -> list[str]:
    """The section's lines. Files that it leaves in ``work``: the sets, and every row with its forecasts."""
    sets = train(files["neusight"], work)
    suite = data / "ground_truth" / "neusight_e2e.csv"
    rows, groups = forecast_suite(suite, sets, work)
    kernels = forecast_kernels(files["neusight"], sets, work)
    lines = ["## fp32, eager PyTorch: fitted on NeuSight's training tables alone", ""]
    lines += [f"`tilecast train --data datasets/neusight --only-gpu {','.join(GPUS)} --out fp32`, then", ""]
    lines += ["`tilecast evaluate workloads neusight_e2e.csv --artifacts fp32`. Errors are means of absolute errors."]
    lines += ["", *summary(rows, kernels), "", *cell_table(rows), ""]
    lines += ["Forward and backward apart, train cells (signed errors):", "", *backward_table(rows), ""]
    lines += ["By GPU, mode and execution, ours:", ""]
    lines += [f"| GPU | mode | execution {HEAD}", f"| --- | --- | --- {RULE}"]
    lines += [f"| {g['gpu']} | {g['mode']} | {g['execution']} | {figures(g)} |" for g in groups]
    lines += ["", "Kernels of NeuSight's test tables, ours (A100-80GB-PCIe was in no training table):", ""]
    result = tilecast(
        "evaluate", "kernels", files["neusight"], "--artifacts", sets["ours"], "--split", "test", "--by", "op,kind,gpu"
    )
    lines += [f"| operator | kind | GPU {HEAD}", f"| --- | --- | --- {RULE}"]
    lines += [f"| {g['op']} | {g['kind']} | {g['gpu']} | {figures(g)} |" for g in result["groups"]]
    return lines


def train(file: Path, work: Path) -> dict[str, Path | str]:
    """What `--artifacts` takes for each of `OURS`."""
    tilecast("train", "--data", file, "--only-gpu", ",".join(GPUS), "--out", work / "fp32")
    frame = dataset.read(file)
    keep = (frame["split"].astype(str) == "train") & (frame["flag"].astype(str) == "")
    keep &= frame["gpu"].astype(str).isin(GPUS)
    write_constant_set(frame[keep.to_numpy()], work / "fp32-constant")
    return {"ours": work / "fp32", "roofline": "roofline", "constant": work / "fp32-constant"}


def forecast_suite(suite: Path, sets: Mapping[str, Path | str], work: Path) -> tuple[Frame, list[dict[str, Any]]]:
    """The suite's rows with signed errors in percent by forecaster (NaN without one), and our errors by group.

    Columns "ours", ...: of the whole; "ours forward", "ours backward", ...: of the parts, where they were measured.
    """
    import pandas as pd

    groups: list[dict[str, Any]] = []
    rows: Frame = None
    for name in OURS:
        out = work / ("neusight_e2e.csv" if name == "ours" else f"neusight_e2e-{name}.csv")
        result = tilecast("evaluate", "workloads", suite, "--artifacts", sets[name], "--out", out)
        found = pd.read_csv(out)
        if rows is None:
            rows, groups = found.copy(), result["groups"]
            rows["neusight"] = signed(found["peer_neusight_ms"], found["measured_ms"])
        rows[name] = signed(found["predicted_ms"], found["measured_ms"])
        rows[f"{name} forward"] = signed(found["predicted_forward_ms"], found["measured_forward_ms"])
        rows[f"{name} backward"] = signed(
            found["predicted_ms"] - found["predicted_forward_ms"], found["measured_ms"] - found["measured_forward_ms"]
        )
    return rows, groups


def forecast_kernels(file: Path, sets: Mapping[str, Path | str], work: Path) -> Frame:
    """Rows of NeuSight's test tables of the A100-80GB with signed errors in percent, and the name of their table."""
    import pandas as pd

    rows: Frame = None
    for name in OURS:
        out = work / f"a100-80gb-{name}.parquet"
        words = ("--split", "test", "--only-gpu", "a100-pcie-80gb", "--out", out)
        tilecast("evaluate", "kernels", file, "--artifacts", sets[name], *words)
        found = pd.read_parquet(out)
        rows = found[["source_file"]].copy() if rows is None else rows
        rows[name] = signed(found["predicted_ms"], found["measured_ms"])
    rows["table"] = [Path(str(name)).stem for name in rows["source_file"]]
    rows["neusight"] = np.nan
    return rows


def signed(predicted: Any, measured: Any) -> FloatArray:
    """Signed error in percent, shape (n,)."""
    result: FloatArray = (np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float) - 1.0) * 100.0
    return result


def _on(*gpus: str, mode: str = "", execution: str = "eager", paired: bool = False) -> Callable[[Frame], Any]:
    """Which rows of the suite a line counts."""

    def chosen(rows: Frame) -> Any:
        keep = rows["execution"] == execution
        if gpus:
            keep &= rows["gpu"].isin(gpus)
        if mode:
            keep &= rows["mode"] == mode
        return keep & rows["neusight"].notna() if paired else keep

    return chosen


#: Title -> (rows, part of the run).
LINES: dict[str, tuple[Callable[[Frame], Any], str]] = {
    "V100 and A100-40GB, eager, cells that NeuSight forecast": (
        _on("v100-pcie-32gb", "a100-pcie-40gb", paired=True), ""
    ),
    "V100 and A100-40GB, eager, all cells": (_on("v100-pcie-32gb", "a100-pcie-40gb"), ""),
    "L4 (in no fit), eager": (_on("l4"), ""),
    "P100 and T4, eager": (_on("p100-pcie-16gb", "t4"), ""),
    "P4, eager": (_on("p4"), ""),
    "compiled (L4, A100-40GB)": (_on(execution="compile"), ""),
    "V100, backward alone": (_on("v100-pcie-32gb", mode="train"), " backward"),
    "L4, backward alone": (_on("l4", mode="train"), " backward"),
}  # fmt: skip
TABLES = ("linear", "bmm", "elem", "softmax", "ln")


def summary(rows: Frame, kernels: Frame) -> list[str]:
    """One line a target: n, mean absolute errors, and the bootstrapped difference from NeuSight."""
    lines = [
        "| cells | n | " + " | ".join(WORDS.values()) + " | ours - NeuSight, 95 % interval | ours - constant |",
        "| --- " + "| --: " * (len(WORDS) + 3) + "|",
    ]
    for title, (chosen, part) in LINES.items():
        cells = rows[chosen(rows)]
        lines.append(summary_line(title, {name: cells.get(f"{name}{part}") for name in WORDS}))
    for table in TABLES:
        cells = kernels[kernels["table"] == table]
        lines.append(summary_line(f"A100-80GB (in no fit), `{table}.csv`", {name: cells[name] for name in WORDS}))
    return [
        *lines,
        "",
        "The interval is of the difference of the two means of absolute errors, in points, over the cells that both",
        f"forecast: a paired bootstrap over cells ({RESAMPLES:,} draws, seed {SEED}). Cells of one GPU and model are",
        "not independent, so it is rather too narrow. The suite has no forecasts by NeuSight of the parts of a train",
        "cell, nor of the A100-80GB's rows. The constant is an efficiency by operator family: of the GPU itself where",
        "it was fitted, else the median of the five. Roofline and constant know nothing of the host time that small",
        "rows of a kernel table hold; ours does.",
    ]


def summary_line(title: str, errors: Mapping[str, Any]) -> str:
    """One line from signed errors in percent by forecaster, each of shape (n,), None or NaN where there is none."""
    ours = np.asarray(errors["ours"], dtype=float)
    known = {name: np.full(len(ours), np.nan) if e is None else np.asarray(e, float) for name, e in errors.items()}
    cells = [mean_of(known[name], len(ours)) for name in WORDS]
    ends = [difference(ours, known[name]) for name in ("neusight", "constant")]
    return f"| {title} | {len(ours):,} | " + " | ".join([*cells, *ends]) + " |"


def mean_of(errors: FloatArray, asked: int) -> str:
    """Mean absolute error, with the number of cells where some are missing."""
    found = np.abs(errors[np.isfinite(errors)])
    if not len(found):
        return "-"
    return pct(float(found.mean())) + (f" ({len(found)})" if len(found) < asked else "")


def difference(ours: FloatArray, other: FloatArray) -> str:
    """Mean of |ours| - |other| and its interval over the cells that both have."""
    both = np.isfinite(ours) & np.isfinite(other)
    if not both.any():
        return "-"
    found = paired_difference(ours[both], other[both], SEED)
    return f"{found.mean:+.1f} ({found.low:+.1f} to {found.high:+.1f})"


def cell_table(rows: Frame) -> list[str]:
    """Every cell with the signed error of each forecaster."""
    lines = ["Cell by cell (signed errors):", ""]
    lines += ["| case | measured | " + " | ".join(WORDS.values()) + " |", "| --- " + "| --: " * (len(WORDS) + 1) + "|"]
    for row in rows.to_dict("records"):
        cells = " | ".join(percent(row[name]) for name in WORDS)
        lines.append(f"| {row['case']} | {row['measured_ms']:.1f} ms | {cells} |")
    return lines


def backward_table(rows: Frame) -> list[str]:
    """The train cells by part."""
    lines = ["| case | part | " + " | ".join(WORDS[name] for name in OURS) + " |", "| --- | --- " + "| --: " * 3 + "|"]
    for row in rows[rows["mode"] == "train"].to_dict("records"):
        for part in ("forward", "backward"):
            cells = " | ".join(percent(row[f"{name} {part}"]) for name in OURS)
            lines.append(f"| {row['case']} | {part} | {cells} |")
    return lines


def percent(value: float) -> str:
    """A signed percentage, or a dash for NaN."""
    return "-" if value != value else f"{value:+.1f} %"
