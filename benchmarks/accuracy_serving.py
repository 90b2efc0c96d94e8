#!/usr/bin/env python3
"""Serving kernels on GPUs left out: median errors of bf16 and fp8 GEMM, prefill, decode and MoE.

usage: benchmarks/accuracy_serving.py --rows aiconfigurator.parquet [--only h100-sxm,h200-sxm] [--families gemm,moe]
                                   [--sample 40000] [--scored 30000] [--calibrate] [--known mi300x,mi308x]
                                   [--out FILE.md]

``--rows`` is what `tilecast dataset import aiconfigurator` wrote, or a folder of shards. Each of A100, L40S and RTX PRO
6000 is left out alone; H200, H100 and GB200 once alone (their sibling is known), H100 also with no Hopper row, B200 and
GB200 with no row of compute capability 10, AMD's boards with rows of NVIDIA's alone. ``--known`` leaves a fifth of the
shapes of these GPUs out instead, which are fitted on their own rows alone. ``--sample`` fits on at most so many rows of
a GPU, framework and dtype (0: all). ``--calibrate`` gives each GPU that has no sibling 16, 64 and 256 rows of one
framework's bf16 GEMM (mean of ``--draws`` draws) and scores a third of up to 9,000 other rows of that framework; with
``--none-out`` nothing is left out: few rows are to do measured GPUs no harm. The rows are stratified as for fp32: one
from each cell of log FLOPs and arithmetic intensity; of a dozen drawn in a cell the one that tells most by its distance
from the others (no latency is read), or with ``--random`` any.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from predictor.data import dataset  # noqa: E402
from predictor.data.plausible_tables import keep_tables_apart  # noqa: E402
from predictor.fit import splits  # noqa: E402
from predictor.hardware.generation import generation  # noqa: E402
from predictor.hardware.gpu import load_gpu  # noqa: E402
from predictor.kernels.attention import estimator as serving_attention  # noqa: E402
from predictor.kernels.base import make_batch  # noqa: E402
from predictor.kernels.fitting import serving as fit_serving  # noqa: E402
from predictor.kernels.fitting import serving_rows  # noqa: E402
from predictor.kernels.gemm import estimator as serving_gemm  # noqa: E402
from predictor.kernels.moe import estimator as serving_moe  # noqa: E402
from predictor.ops.roofline import roofline  # noqa: E402

HOPPER = ("h100-sxm", "h200-sxm")
BLACKWELL = ("b200-sxm", "gb200")  # of compute capability 10
AMD = ("mi300x", "mi308x")
#: (what is scored, what is left out)
CASES = (
    ("h200-sxm", ("h200-sxm",)),
    ("h100-sxm", ("h100-sxm",)),
    ("h100-sxm", HOPPER),
    ("a100-sxm-80gb", ("a100-sxm-80gb",)),
    ("l40s", ("l40s",)),
    ("rtx-pro-6000-server", ("rtx-pro-6000-server",)),
    ("gb200", ("gb200",)),
    ("b200-sxm", BLACKWELL),
    ("gb200", BLACKWELL),
    ("mi300x", AMD),
    ("mi308x", AMD),
)
FAMILIES = {
    "gemm": (fit_serving.fit_gemm, serving_gemm.TensorCoreGemm),
    "attention": (fit_serving.fit_attention, serving_attention.ServingAttention),
    "moe": (fit_serving.fit_moe, serving_moe.ServingMoE),
}
SCORED = 30_000  # rows of the left-out GPU and family, drawn


def thinned(frame: Any, count: int) -> Any:
    """At most ``count`` rows of each (GPU, framework, dtype, scheme), phases of attention apart; 0 keeps all."""
    if not count:
        return frame
    rng = np.random.default_rng(0)
    keys = [frame[name].astype(str).to_numpy() for name in ("gpu", "framework", "dtype", "quant")]
    if "q_len" in frame:
        keys.append((frame["q_len"] == 1).to_numpy())
    groups = frame.groupby(keys, sort=True).indices
    chosen = [rng.choice(rows, min(count, len(rows)), replace=False) for rows in groups.values()]
    return frame.iloc[np.sort(np.concatenate(chosen))].reset_index(drop=True)


def bounds_and_forecasts(estimator: Any, rows: Any, family: str, gpu: Any) -> tuple[Any, Any]:
    """(roofline, forecast) of every row over its measured time, (n,) each."""
    bound, result = np.empty(len(rows)), np.full(len(rows), np.nan)
    ops = np.array(dataset.ops_of(rows), dtype=object)
    for framework, indices in rows.groupby(rows["framework"].astype(str)).indices.items():
        some = list(ops[indices])
        bound[indices] = roofline(some, gpu).lower_bound_s
        if estimator is not None:
            seconds = estimator.seconds(make_batch(family, some, framework), gpu)
            result[indices] = np.maximum(bound[indices], seconds)
    measured = rows["latency_ms"].to_numpy(dtype=float) * 1e-3
    return bound / measured, result / measured


def kinds(rows: Any, family: str) -> Any:
    """What a row counts under: GEMM and MoE by dtype or quantization scheme, attention by phase and dtype."""
    if family == "attention":
        phase = np.where(rows["q_len"].to_numpy() == 1, "decode ", "prefill ").astype(object)
        return phase + rows["dtype"].astype(str).to_numpy(dtype=object)
    quant = rows["quant"].astype(str).to_numpy()
    return np.where(quant == "", rows["dtype"].astype(str).to_numpy(), quant)


def constants(seen: Any, family: str, gpus: Any) -> dict[str, float]:
    """Median of roofline over latency by kind, of a sample of NVIDIA's rows that were seen."""
    seen = seen[[gpus[name].vendor == "nvidia" for name in seen["gpu"].astype(str)]]
    part = seen.sample(min(SCORED, len(seen)), random_state=0).reset_index(drop=True)
    ratio = np.empty(len(part))
    for gpu, indices in part.groupby(part["gpu"].astype(str)).indices.items():
        rows = part.iloc[indices].reset_index(drop=True)
        ratio[indices] = bounds_and_forecasts(None, rows, family, gpus[gpu])[0]
    by = kinds(part, family)
    return {str(kind): float(np.median(ratio[by == kind])) for kind in np.unique(by)}


def left_out(
    frame: Any, families: list[str], sample: int, chosen: list[str], draws: int, random: bool, none_out: bool = False,
    most: int = SCORED,
) -> list[str]:  # fmt: skip
    """A table's lines; ``most`` rows of a GPU and family are scored."""
    lines = ["| scored | known sibling | kernels | framework | n | constant | median | mean | p90 | signed median |"]
    lines += ["| --- | --- | --- | --- | --: | --: | --: | --: | --: | --: |"]
    head = ("calibrated", "known sibling", "framework", "rows", "median, mean of the draws", "without rows")
    more = ["", f"| {' | '.join(head)} | largest rise of a draw | 80 % interval holds | its half width |"]
    more += ["| --- | --- | --- | --: | --: | --: | --: | --: | --: |"]
    gpus = {name: load_gpu(name) for name in sorted(frame["gpu"].astype(str).unique())}
    for target, out in CASES:
        if (chosen and target not in chosen) or target not in gpus:
            continue
        out = () if none_out else out
        for family in families:
            start = time.monotonic()
            own = frame[(frame["op"].astype(str) == family).to_numpy()]
            own = own[own["dtype"].astype(str).isin(serving_rows.ROW_DTYPES).to_numpy()].reset_index(drop=True)
            own = own[serving_rows.expressible(own)]
            name = own["gpu"].astype(str)
            seen = thinned(own[~name.isin(out)].reset_index(drop=True), sample)
            fit, kind = FAMILIES[family]
            siblings = {n for n, gpu in gpus.items() if generation(gpu) == generation(gpus[target])} - set(out)
            mixes = draws and family == "gemm" and not siblings  # a calibration mixes the trees of all measured GPUs
            fitted = fit(seen, gpus, 0, fitted_gpus=None if mixes else siblings)
            rows = own[(name == target).to_numpy()]
            if rows.empty:
                continue
            rows = rows.sample(min(most, len(rows)), random_state=0).reset_index(drop=True)
            sibling = "yes" if siblings else "no"
            scores = bounds_and_forecasts(kind.from_artifact(*fitted), rows, family, gpus[target])
            found = scored(rows, family, scores, constants(seen, family, gpus))
            lines += [f"| {target} | {sibling} | {line}" for line in found]
            found.append(f"{target} {family}: {time.monotonic() - start:.0f} s")
            print("\n".join(found), file=sys.stderr, flush=True)
            if draws and family == "gemm" and (none_out or sibling == "no"):
                more += calibrated(own[(name == target).to_numpy()], fitted, gpus[target], sibling, draws, random)
    return lines + (more if draws else [])


def shapes_left_out(frame: Any, families: list[str], known: list[str]) -> list[str]:
    """The table of ``known`` GPUs with a fifth of their shapes held out."""
    lines = ["| scored | kernels | framework | n | constant | median | mean | p90 | signed median |"]
    lines += ["| --- | --- | --- | --: | --: | --: | --: | --: | --: |"]
    gpus = {name: load_gpu(name) for name in known}
    for family in families:
        own = frame[(frame["op"].astype(str) == family).to_numpy()]
        own = own[own["gpu"].astype(str).isin(known).to_numpy()].reset_index(drop=True)
        own = own[serving_rows.expressible(own)].reset_index(drop=True)
        held = splits.holdout(own, 0.2, 0)
        fit, kind = FAMILIES[family]
        estimator = kind.from_artifact(*fit(own[~held].reset_index(drop=True), gpus, 0, fitted_gpus=known))
        for name in known:
            rows = own[held & (own["gpu"].astype(str) == name).to_numpy()].reset_index(drop=True)
            if len(rows):
                scores = bounds_and_forecasts(estimator, rows, family, gpus[name])
                lines += [f"| {name} | {line}" for line in scored(rows, family, scores, {})]
    return lines


def scored(rows: Any, family: str, scores: tuple[Any, Any], constant: dict[str, float]) -> list[str]:
    """A line for each kind, frameworks pooled and apart."""
    bound, ratio = scores
    by, framework = kinds(rows, family), rows["framework"].astype(str).to_numpy()
    lines = []
    for kind in np.unique(by):
        used = list(np.unique(framework[by == kind]))
        for name in ["all", *(used if len(used) > 1 else [])]:
            mask = (by == kind) & ((framework == name) | (name == "all"))
            error = ratio[mask] - 1.0
            base = constant.get(str(kind))
            text = f"{np.median(np.abs(bound[mask] / base - 1.0)):.2%}" if base else "-"
            lines.append(
                f"{family} {kind} | {name} | {mask.sum():,} | {text} | {np.median(np.abs(error)):.2%} |"
                f" {np.abs(error).mean():.2%} | {np.percentile(np.abs(error), 90):.2%} | {np.median(error):+.2%} |"
            )
    return lines


def calibrated(rows: Any, fitted: Any, gpu: Any, sibling: str, draws: int, random: bool = False) -> list[str]:
    """bf16 GEMM of one framework after 16, 64 and 256 rows of it: mean over the draws of the median error."""
    from predictor.kernels.fitting.calibrate_serving import calibrate_gemm, stratified

    lines = []
    rows = rows[kinds(rows, "gemm") == "bf16"]
    for framework in ("vllm", "trtllm", "sglang"):
        own = rows[(rows["framework"].astype(str) == framework).to_numpy()]
        own = own.sample(min(9000, len(own)), random_state=1).reset_index(drop=True)
        for count in (16, 64, 256):
            found_by_draw = []
            base = serving_gemm.TensorCoreGemm.from_artifact(*fitted)
            for seed in range(draws):
                few = stratified(own, count, seed, random)
                found = calibrate_gemm(own.iloc[few].reset_index(drop=True), gpu, *fitted)
                rest = np.setdiff1d(np.arange(len(own)), few)[seed % 3 :: 3]
                estimator = serving_gemm.TensorCoreGemm.from_artifact(found.manifest, found.weights)
                part = own.iloc[rest].reset_index(drop=True)
                old, ratio = (bounds_and_forecasts(e, part, "gemm", gpu)[1] for e in (base, estimator))
                low, high = found.manifest["calibrated"][gpu.id]["width"]["linear|bf16"]
                holds = np.mean((-np.log(ratio) >= low) & (-np.log(ratio) <= high))
                before, after = (np.median(np.abs(r - 1.0)) for r in (old, ratio))
                found_by_draw.append((after, before, after - before, holds, (high - low) / 2.0))
            table = np.array(found_by_draw)
            after, before, _, holds, half = table.mean(axis=0)
            line = f"| {gpu.id} | {sibling} | {framework} | {count} | {after:.2%} | {before:.2%} |"
            lines.append(f"{line} {table[:, 2].max():+.2%} | {holds:.0%} | {half:.0%} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def read_rows(path: Path) -> Any:
    """The rows that are not flagged, of tables that physics allows."""
    frame = dataset.read(path)
    keep_tables_apart(frame, {name: load_gpu(name) for name in frame["gpu"].astype(str).unique()})
    return frame[(frame["flag"].astype(str) == "").to_numpy()].reset_index(drop=True)


#: Of a thinned run: rows that fits are given of a GPU, framework and dtype, and rows that are scored.
THIN_SAMPLE, THIN_SCORED = 1000, 6000


def gpus_left_out(path: Path, sample: int = 3000, draws: int = 10, thin: bool = False) -> list[str]:
    """The section of accuracy-tables.md; a thinned one takes a tenth of the time and calibrates nothing."""
    rows, families = read_rows(path), list(FAMILIES)
    if thin:
        return [
            f"## Serving kernels on GPUs left out, thinned (`--sample {THIN_SAMPLE} --scored {THIN_SCORED}`)",
            "",
            f"Fitted on at most {THIN_SAMPLE:,} rows of a GPU, framework and dtype without the GPU (`h100-sxm` with no",
            "known sibling: without any Hopper row; `b200-sxm` and `gb200`: without compute capability 10).",
            "",
            *left_out(rows, families, THIN_SAMPLE, [], 0, False, most=THIN_SCORED),
        ]
    return [
        f"## Serving kernels on GPUs left out (`benchmarks/accuracy_serving.py --calibrate --sample {sample}`)",
        "",
        "The estimator of the family fitted without the GPU (for `h100-sxm` with no known sibling: without any Hopper",
        f"row), on at most {sample:,} rows of a GPU, framework and dtype. The constant is the median efficiency of the",
        "rows that were seen, by kind.",
        "",
        *left_out(rows, families, sample, [], draws, False),
        "",
        f"Hopper, fitted on every row of the others (`--only {','.join(HOPPER)} --sample 0`):",
        "",
        *left_out(rows, families, 0, list(HOPPER), 0, False),
    ]


def main() -> int:
    """Print, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--only", default="", help="GPUs to leave out")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--scored", type=int, default=SCORED, help="rows of a GPU and family that are scored")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--none-out", action="store_true", help="leave none out: what few rows do to measured GPUs")
    parser.add_argument("--random", action="store_true", help="with --calibrate: any row of a cell")
    parser.add_argument("--known", default="", help="GPUs of which shapes are left out")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    draws = arguments.draws if arguments.calibrate else 0
    chosen = [name for name in arguments.only.split(",") if name]
    frame = read_rows(arguments.rows)
    known = [name for name in arguments.known.split(",") if name]
    families = arguments.families.split(",")
    if known:
        lines = shapes_left_out(frame, families, known)
    else:
        lines = left_out(frame, families, arguments.sample, chosen, draws, arguments.random, arguments.none_out,
                         arguments.scored)  # fmt: skip
    print("\n".join(lines))
    if arguments.out:
        head = "# Serving kernels on GPUs left out\n\nWritten by `benchmarks/accuracy_serving.py`.\n\n"
        arguments.out.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
