#!/usr/bin/env python3
"""How well watts and joules are forecast: language models that serve, and makers of images and videos, on H100.

usage: benchmarks/accuracy_energy.py --data $TILECAST_DATA [--suite NAME] [--out FILE.csv]

Two suites of the ML.ENERGY benchmark, with NVML's power of all GPUs of a row; no constant is fitted to these.
`ml_energy_llm`: a decode step of vLLM at the row's mean batch, whose caches hold half of the mean output and a prompt
of 300 tokens, and its share of reading those prompts (assumed: the suite has no prompt lengths).
`ml_energy_diffusion`: a batch of images or videos, by the pipelines of `accuracy_diffusion.py` (extra diffusion).
--gpus 1 takes the rows of one GPU alone. "power at the measured time" spreads the forecast's joules of work over the
measured time, so that it judges the law of power alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "benchmarks"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from accuracy_diffusion import CHECKPOINTS, SOFTWARE  # noqa: E402

from predictor.errors import RequestError, TilecastError, UnsupportedError, one_line  # noqa: E402
from predictor.files.extras import require  # noqa: E402
from predictor.forecast.forecast import Forecast, forecast  # noqa: E402
from predictor.request.request import Request  # noqa: E402
from predictor.simulate.energy import CLOCKS, WAITING, energy_of  # noqa: E402

SUITES = ("ml_energy_llm", "ml_energy_diffusion")
#: Tokens of a prompt, as in moe_routing.py, and prompts that are read together: chosen by hand, not from data.
PROMPT, PROMPTS = 300, 8
#: Checkpoints with the layers of one of the catalogue.
SAME = {
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "qwen3-235b-a22b",
    "Qwen/Qwen3-235B-A22B-Thinking-2507": "qwen3-235b-a22b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen/Qwen3-235B-A22B-Thinking-2507-FP8": "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen/Qwen3-30B-A3B-Thinking-2507": "qwen3-30b-a3b",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3-30b-a3b",
}
JUDGED = ("power", "energy", "time", "at_time")
HEADS = ("power", "joules", "time", "power at the measured time")


#: Forecasts and how often each runs, the seconds that all was measured to take, and the joules.
Judged = tuple[list[tuple[Forecast, float]], float, float]


def llm(row: Any) -> Judged:
    """A decode step, and of the prompts what falls on it."""
    ranks = {name: int(row[name]) for name in ("tp", "dp", "ep")}
    if ranks["ep"] > 1 and ranks["tp"] * ranks["dp"] == 1:  # experts over all GPUs, attention in replicas
        ranks["dp"] = int(row["num_gpus"])
    batch = max(1, round(float(row["mean_batch"]) / ranks["dp"])) * ranks["dp"]
    model, output = SAME.get(row["model"], str(row["model"])), float(row["mean_output_len"])
    words: dict[str, Any] = {"execution": "vllm", "software": "vllm 0.11", **ranks}
    step = Request(model, row["gpu"], mode="decode", batch=batch, context_len=PROMPT + round(output / 2), **words)
    read = Request(model, row["gpu"], mode="prefill", batch=PROMPTS, seq_len=PROMPT, **words)
    seconds = float(row["mean_batch"]) / float(row["output_tokens_per_s"])
    parts = [(forecast(step.run()), 1.0), (forecast(read.run()), batch / output / PROMPTS)]
    return parts, seconds, float(row["power_w"]) * seconds


def diffusion(row: Any) -> Judged:
    """A batch of images."""
    name = CHECKPOINTS.get(row["model"])
    if name is None:
        raise UnsupportedError(f"{row['model']}: no pipeline of it in predictor/models/traced/pipelines")
    sizes = {size: int(row[size]) for size in ("height", "width", "frames") if row["frames"] > 1 or size != "frames"}
    asked = Request(
        name, str(row["gpu"]), batch=int(row["batch_size"]), steps=int(row["steps"]), dtype=row["dtype"],
        software=SOFTWARE, input=[f"{size}={value}" for size, value in sizes.items()], cp=int(row["num_gpus"]),
        ulysses=int(row["ulysses_degree"]) if row["num_gpus"] > 1 else 0,
    )  # fmt: skip
    seconds = float(row["batch_latency_s"])
    return [(forecast(asked.run()), 1.0)], seconds, float(row["joule_per_item"]) * float(row["batch_size"])


def judged(row: Any, find: Callable[[Any], Judged]) -> dict[str, float]:
    """Forecast over measured, less 1, of `JUDGED`."""
    made, seconds, joules = find(row)
    work = clocks = latency = 0.0
    for part, weight in made:
        energy = energy_of(part)
        still = energy.parts_j[CLOCKS] + energy.parts_j[WAITING]
        clocks += weight * still
        work += weight * (sum(energy.parts_j.values()) - still)
        latency += weight * part.latency_s
    at_time = min(clocks / latency + work / seconds, energy.limit_w) * energy.gpus
    drawn, power = (clocks + work) * energy.gpus, float(row["power_w"])
    return {
        "power": drawn / latency / power - 1.0, "energy": drawn / joules - 1.0,
        "time": latency / seconds - 1.0, "at_time": at_time / power - 1.0,
    }  # fmt: skip


def line(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """A row of the table: how many, then the median size of each error and the median with its sign."""
    cells = []
    for key in JUDGED:
        errors = [100.0 * row[key] for row in rows]
        cells.append(f"{statistics.median(map(abs, errors)):.1f} ({statistics.median(errors):+.1f})")
    return f"| {name} | {len(rows)} | " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the public data ($TILECAST_DATA)")
    parser.add_argument("--suite", choices=SUITES, help="this suite alone (default: both)")
    parser.add_argument("--gpus", type=int, help="rows of so many GPUs alone")
    parser.add_argument("--out", type=Path, help="every row with its errors or note, as CSV, a file a suite")
    args = parser.parse_args()
    pandas = require("pandas")
    for suite in (args.suite,) if args.suite else SUITES:
        path = args.data / "ground_truth" / f"{suite}.csv"
        if not path.is_file():
            raise RequestError(f"no ground_truth/{suite}.csv in {args.data}; expected the public data")
        rows, find = [], llm if suite == SUITES[0] else diffusion
        for _, row in pandas.read_csv(path).iterrows():
            if args.gpus and row["num_gpus"] != args.gpus:
                continue
            batch = row["max_num_seqs"] if find is llm else row["batch_size"]
            about = {"model": row["nickname"], "task": row["task"], "num_gpus": row["num_gpus"], "batch": batch}
            try:
                rows.append({**about, **judged(row, find), "measured_w": row["power_w"], "note": ""})
            except TilecastError as error:
                rows.append({**about, "note": one_line(str(error))[:200]})
        good = [row for row in rows if not row["note"]]
        print(f"\n{suite}: {len(good)} of {len(rows)} rows. Median error in %, with its sign in brackets.\n")
        print("| rows | n | " + " | ".join(HEADS) + " |\n| --- | --: | " + " | ".join(["--:"] * len(HEADS)) + " |")
        print(line("all", good))
        for key in ("num_gpus", "task", "batch"):
            for value in sorted({row[key] for row in good}):
                print(line(f"{key} {value}", [row for row in good if row[key] == value]))
        for note in sorted({row["note"] for row in rows if row["note"]}):
            print(f"- {sum(row['note'] == note for row in rows)} rows: {note}")
        if args.out:
            pandas.DataFrame(rows).to_csv(args.out.with_name(f"{args.out.stem}-{suite}.csv"), index=False)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TilecastError as error:
        sys.exit(f"error: {error}")
