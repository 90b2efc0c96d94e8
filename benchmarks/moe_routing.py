#!/usr/bin/env python3
"""What a decode step of a MoE model costs as the batch grows, under balanced, random and skewed routing.

usage: benchmarks/moe_routing.py [--gpu h100] [--execution vllm] [--context-len 1024] [--models A,B] [--svg FILE]
           [--served $TILECAST_DATA/ground_truth/ml_energy_llm.csv]

A table of milliseconds a step (Markdown) for each model, with the experts that a layer's tokens touch; --svg draws the
costs. --served adds a table of measured servers of qwen3-30b-a3b on one H100 (the ML.ENERGY benchmark, vLLM, bf16):
median time between tokens at their mean batch, against a step whose caches hold half of the mean output and a prompt of
300 tokens (assumed: the table has no prompt lengths). docs/explanation/routing.md shows all of it.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from pathlib import Path

from predictor import TilecastError, load_config, predict_many
from predictor.files.read import atomic_write
from predictor.ops import MoE

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SERVED = "Qwen/Qwen3-30B-A3B-"
PROMPT = 300
ROUTINGS = ("balanced", "random", "zipf:1")
COLOURS = {"balanced": "#3b6fb6", "random": "#e08b2c", "zipf:1": "#3f9a52"}
WIDTH, HEIGHT, MARGIN = 420, 300, 50


def costs(model: str, gpu: str, execution: str, context_len: int) -> dict[str, list[float]]:
    """Milliseconds of a step by routing, one a batch."""
    about = {"model": model, "gpu": gpu, "mode": "decode", "execution": execution, "context_len": context_len}
    runs = [{**about, "batch": batch, "routing": routing} for routing in ROUTINGS for batch in BATCHES]
    times = iter([answer.latency_ms for answer in predict_many(runs)])
    return {routing: [next(times) for _ in BATCHES] for routing in ROUTINGS}


def touched(model: str, routing: str, batch: int) -> float:
    """Experts of a layer that see a token, on average."""
    config = load_config(model)
    sizes = config.hidden, config.moe_intermediate, config.experts, config.top_k
    return MoE("bf16", batch, *sizes, distribution=routing).active_experts


def table(model: str, found: dict[str, list[float]]) -> list[str]:
    """The Markdown rows of one model: milliseconds (experts touched)."""
    lines = [f"| {model}: batch | " + " | ".join(ROUTINGS) + " |", "| --: |" + " --: |" * len(ROUTINGS)]
    for i, batch in enumerate(BATCHES):
        cells = [f"{found[name][i]:.2f} ms ({touched(model, name, batch):.1f})" for name in ROUTINGS]
        lines.append(f"| {batch} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def served(path: Path) -> list[str]:
    """The Markdown rows of measured servers beside the forecasts, and the mean absolute error of each routing."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if _is_served(row)]
    lines = ["| batch | measured | " + " | ".join(ROUTINGS) + " |", "| --: | --: |" + " --: |" * len(ROUTINGS)]
    errors: dict[str, list[float]] = {name: [] for name in ROUTINGS}
    for row in sorted(rows, key=lambda row: float(row["mean_batch"])):
        batch, context = round(float(row["mean_batch"])), PROMPT + round(float(row["mean_output_len"]) / 2)
        about = {"model": "qwen3-30b-a3b", "gpu": "h100", "mode": "decode", "execution": "vllm", "dtype": "bf16"}
        runs = [{**about, "batch": batch, "context_len": context, "routing": name} for name in ROUTINGS]
        times = [answer.latency_ms for answer in predict_many(runs)]
        measured = float(row["median_itl_ms"])
        for name, time in zip(ROUTINGS, times, strict=True):
            errors[name].append(abs(time / measured - 1.0))
        lines.append(f"| {batch} | {measured:.2f} ms | " + " | ".join(f"{time:.2f} ms" for time in times) + " |")
    means = [f"{100 * sum(values) / len(values):.1f} %" for values in errors.values() if values]
    return [*lines, "| mean error | | " + " | ".join(means) + " |", ""]


def _is_served(row: dict[str, str]) -> bool:
    one = all(row[name] == "1" for name in ("num_gpus", "tp", "dp", "ep"))
    text = row["task"] in ("gpqa", "lm-arena-chat")
    return one and text and row["dtype"] == "bf16" and row["gpu"] == "h100-sxm" and row["model"].startswith(SERVED)


def picture(results: dict[str, dict[str, list[float]]]) -> str:
    """An SVG, a panel a model: batch across, milliseconds up, both logarithmic."""
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * len(results)} {HEIGHT}" '
             'font-family="sans-serif" font-size="11">',
             f'<rect width="{WIDTH * len(results)}" height="{HEIGHT}" fill="white"/>']  # fmt: skip
    for panel, (model, found) in enumerate(results.items()):
        parts += _panel(panel * WIDTH, model, found)
    return "\n".join([*parts, "</svg>", ""])


def _panel(left: int, model: str, found: dict[str, list[float]]) -> list[str]:
    low = math.log2(min(min(times) for times in found.values())) - 0.1
    high = math.log2(max(max(times) for times in found.values())) + 0.1

    def x(batch: float) -> float:
        return left + MARGIN + math.log2(batch) / math.log2(BATCHES[-1]) * (WIDTH - MARGIN - 20)

    def y(ms: float) -> float:
        return HEIGHT - 40 - (math.log2(ms) - low) / (high - low) * (HEIGHT - 70)

    parts = [f'<text x="{left + WIDTH / 2}" y="16" text-anchor="middle" font-size="13">{model}</text>']
    for batch in BATCHES:
        parts.append(f'<text x="{x(batch):.1f}" y="{HEIGHT - 24}" text-anchor="middle">{batch}</text>')
    parts.append(f'<text x="{left + WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">sequences in the batch</text>')
    for power in range(math.ceil(low), math.floor(high) + 1):
        up = y(2.0**power)
        parts.append(f'<line x1="{x(1):.1f}" x2="{x(256):.1f}" y1="{up:.1f}" y2="{up:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x(1) - 6:.1f}" y="{up + 4:.1f}" text-anchor="end">{2.0**power:g} ms</text>')
    for i, (name, times) in enumerate(found.items()):
        line = " ".join(f"{x(batch):.1f},{y(ms):.1f}" for batch, ms in zip(BATCHES, times, strict=True))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
        parts.append(f'<text x="{x(64):.1f}" y="{HEIGHT - 92 + 15 * i}" fill="{COLOURS[name]}">{name}</text>')
    return parts


def main() -> int:
    """Print the tables; draw the picture where it is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--execution", default="vllm")
    parser.add_argument("--context-len", type=int, default=1024)
    parser.add_argument("--models", default="mixtral-8x7b,qwen3-30b-a3b", metavar="A,B")
    parser.add_argument("--served", type=Path, metavar="CSV")
    parser.add_argument("--svg", type=Path, metavar="FILE")
    asked = parser.parse_args()
    try:
        models = asked.models.split(",")
        results = {name: costs(name, asked.gpu, asked.execution, asked.context_len) for name in models}
        for model, found in results.items():
            print("\n".join(table(model, found)))
        if asked.served:
            print("\n".join(served(asked.served)))
    except TilecastError as error:
        print(f"moe_routing: {error}", file=sys.stderr)
        return error.exit_status
    if asked.svg:
        atomic_write(asked.svg, picture(results).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
