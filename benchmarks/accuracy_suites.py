"""The end-to-end suites of serving, forecast with the estimators that ship: one line a target, and by GPU and mode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from accuracy_tables import pct, tilecast

from predictor.data.frame import Frame

SUITES = ("pipeweave_e2e", "splitwise", "fastertransformer_gpt", "fastertransformer_bert")
HEAD = "| cells | n | mean | median | p90 | signed | inside 80 % interval |"
RULE = "| --- | --: | --: | --: | --: | --: | --: |"


def suites(files: Mapping[str, Path], data: Path, work: Path) -> list[str]:
    """The section's lines."""
    import pandas as pd

    rows = {}
    for name in SUITES:
        out = work / f"{name}.csv"
        tilecast("evaluate", "workloads", data / "ground_truth" / f"{name}.csv", "--out", out)
        rows[name] = pd.read_csv(out)
    lines = [
        "## Serving, end to end: the estimators that ship",
        "",
        "`tilecast evaluate workloads SUITE.csv`; no latency is fitted on a suite. L20, L40, RTX A6000, RTX 6000 Ada,",
        "A10, V100 and T4 are in no 16-bit measurement that was fitted, A40 in Vidur's alone; the RTX 6000 Ada was",
        "probably throttled.",
        "",
    ]
    lines += [*pipeweave(rows["pipeweave_e2e"]), "", *splitwise(rows["splitwise"]), ""]
    lines += fastertransformer(rows["fastertransformer_gpt"], rows["fastertransformer_bert"])
    return lines


def pipeweave(rows: Frame) -> list[str]:
    """By mode beside the peers, then by GPU."""
    lines = ["| `pipeweave_e2e`, mean | cells | ours | PipeWeave | NeuSight |", "| --- | --: | --: | --: | --: |"]
    forecasts = ("predicted_ms", "peer_pipeweave_ms", "peer_neusight_ms")
    given = rows["peer_pipeweave_ms"].notna()
    for mode in ("generate", "prefill", "decode"):
        own = rows["mode"] == mode
        for text, part in (("all cells", rows[own]), ("that PipeWeave gives", rows[own & given])):
            errors = [_mean(part[name], part["measured_ms"]) for name in forecasts]
            lines.append(f"| {mode}, {text} | {len(part)} | " + " | ".join(errors) + " |")
    lines += ["", HEAD.replace("cells", "`pipeweave_e2e`"), RULE]
    for (gpu, mode), part in rows.groupby(["gpu", "mode"]):
        lines.append(_line(f"{gpu}, {mode}", part))
    return lines


def splitwise(rows: Frame) -> list[str]:
    """Prefill at batch 1 from 512 to 4096 tokens; the rest with the host time that would explain it."""
    single = (rows["mode"] == "prefill") & (rows["global_batch"] == 1) & rows["seq_len"].between(512, 4096)
    lines = [HEAD.replace("cells", "`splitwise` (A100, TP 2 to 8)"), RULE]
    lines.append(_line("prefill, batch 1, 512 to 4096 tokens", rows[single]))
    for mode, part in rows[~single].groupby("mode"):
        lines.append(_line(f"the other {mode} rows", part))
    step = rows[rows["mode"] == "decode"]
    lines += ["", "Host time a step that would explain decode (measured less forecast), by model and TP, median:", ""]
    for (config, tp), part in step.groupby(["config", "tp"]):
        gap = (part["measured_ms"] - part["predicted_ms"]).to_numpy(dtype=float)
        lines.append(
            f"- {config}, TP {int(tp)}: {np.median(gap):.1f} ms ({gap.min():.1f} to {gap.max():.1f}, {len(gap)} rows)"
        )
    return lines


def fastertransformer(gpt: Frame, bert: Frame) -> list[str]:
    """GPT whole; BERT by GPU and dtype, int8 reported."""
    lines = [HEAD.replace("cells", "FasterTransformer"), RULE, _line("GPT, A100, generate", gpt)]
    for config, part in gpt.groupby("config"):
        lines.append(_line(f"GPT, {config}", part))
    for gpu, part in bert[bert["dtype"] != "int8"].groupby("gpu"):
        lines.append(_line(f"BERT fp16 and fp32, {gpu}", part))
    for (gpu, dtype), part in bert.groupby(["gpu", "dtype"]):
        lines.append(_line(f"BERT {dtype}, {gpu}", part))
    return lines


def _mean(predicted: Any, measured: Any) -> str:
    error = np.abs(np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float) - 1.0)
    known = np.isfinite(error)
    if not known.any():
        return "-"
    return pct(100.0 * float(error[known].mean())) + ("" if known.all() else f" ({known.sum()})")


def _line(title: str, rows: Frame) -> str:
    measured = rows["measured_ms"].to_numpy(dtype=float)
    error = (rows["predicted_ms"].to_numpy(dtype=float) / measured - 1.0) * 100.0
    known = np.isfinite(error)
    if not known.any():
        return f"| {title} | 0 of {len(error)} | - | - | - | - | - |"
    inside = (rows["low_ms"].to_numpy(dtype=float) <= measured) & (measured <= rows["high_ms"].to_numpy(dtype=float))
    size, error = np.abs(error[known]), error[known]
    count = f"{known.sum()}" if known.all() else f"{known.sum()} of {len(known)}"
    ours = (size.mean(), np.median(size), np.percentile(size, 90), error.mean())
    return f"| {title} | {count} | " + " | ".join(map(pct, map(float, ours))) + f" | {inside[known].mean():.0%} |"
