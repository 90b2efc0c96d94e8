#!/usr/bin/env python3
"""Built against traced forecasts of every model type that has both: modes, engines, degrees and number formats.

    tools/built_and_traced_all.py --out built-and-traced.csv [--layers 2] [--every 1]

One model of each type, of few layers (a law is the same of each layer), is built by its reader and traced from the
class of transformers; one line of the CSV for each point where both answer, or one of them alone refuses. ``--every
N``: each Nth point of the product, shifted from type to type. ``graph`` says whether the class answered, or the built
model in its place (`predictor.models.traced.model.not_its_class`). Needs the extra torch.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from built_and_traced import NAMES, WRITTEN_OUT, answer, models_of

from predictor.forecast.forecast import Forecast
from tests.model_types import TYPES, small

MODES = ("forward", "train", "prefill", "decode", "generate")
#: Words of --execution: what serves and what compiles, and the frameworks of training.
ENGINES = ("eager", "compile", "cuda_graph", "vllm", "sglang", "tensorrt_llm", "megatron", "torchtitan")
TRAINERS = ("megatron", "torchtitan")
DEGREES = (1, 4, 8)
FORMATS = ("bf16", "fp16", "fp32", "fp8", "int8", "int4_wo", "nvfp4_wo", "fp8_block")
#: Sizes of types of which the catalogue has no model: as wide as one of about a billion parameters.
WIDE: dict[str, Any] = {
    "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192,
    "vocab_size": 32000, "max_position_embeddings": 4096, "head_dim": 64, "num_experts": 16, "num_local_experts": 16,
    "n_routed_experts": 16, "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024,
    "moe_shared_expert_intermediate_size": 1024,
}  # fmt: skip
#: Percent of the built forecast that count as agreement.
WITHIN = 3.0
COLUMNS = (
    "type", "mode", "execution", "tp", "dtype", "graph", "built_us", "traced_us", "latency_pct", "gpu_pct",
    "memory_pct", "refused",
)  # fmt: skip


def models(layers: int, folder: Path) -> dict[str, tuple[str, str]]:
    """Built and traced model of each type, by the name of its model in the catalogue, else by its type."""
    found = {name: models_of(name, layers, False, folder) for name in NAMES}
    for name in TYPES:
        data = small(name)
        known = {key: value for key, value in WIDE.items() if key in data}
        if name not in ("deepseek_v32", "glm_moe_dsa", "nemotron_h", "mimo_v2_flash"):  # whose sizes hang together
            data |= known
        path = folder / name / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(data), encoding="utf-8")
        found[name] = (str(path), f"traced:{path}")
    return {name: (built, str(traced)) for name, (built, traced) in found.items()}


def points(every: int, shift: int) -> Iterator[tuple[str, str, int, str]]:
    """(mode, engine, degree, format) of the product; an engine of training trains alone."""
    whole = [p for p in product(MODES, ENGINES, DEGREES, FORMATS) if p[1] not in TRAINERS or p[0] == "train"]
    yield from whole[shift % every :: every]


def words_of(name: str, mode: str, engine: str, tp: int, dtype: str, batch: int, tokens: int) -> dict[str, object]:
    """What is asked of both."""
    words: dict[str, object] = {"mode": mode, "execution": engine, "tp": tp, "dtype": dtype, "batch": batch}
    words |= {"context_len": tokens} if mode == "decode" else {"seq_len": tokens}
    words |= {"output_len": 8} if mode == "generate" else {}
    words |= {"optimizer": "none"} if mode == "train" and tp > 1 else {}
    return words | ({"attention": "math"} if name.startswith(WRITTEN_OUT) else {})


def line(name: str, point: tuple[str, str, int, str], answers: list[Forecast | str]) -> dict[str, object] | None:
    """A line of the table; None where both refuse."""
    row: dict[str, object] = dict(zip(COLUMNS, (name, *point), strict=False))
    built, traced = answers
    if isinstance(built, str) or isinstance(traced, str):
        if isinstance(built, str) and isinstance(traced, str):
            return None
        side = "built" if isinstance(built, str) else "traced"
        return row | {"refused": f"{side}: {built if isinstance(built, str) else traced}"}
    one, other = built.summary(), traced.summary()
    pairs = ((one.latency_s, other.latency_s), (one.gpu_busy_s, other.gpu_busy_s),
             (built.memory.total, traced.memory.total))  # fmt: skip
    off = [f"{100.0 * (theirs / ours - 1.0):.2f}" for ours, theirs in pairs]
    note = any("is forecast from its config" in note for note in traced.prediction.notes)
    figures = (f"{one.latency_s * 1e6:.1f}", f"{other.latency_s * 1e6:.1f}", *off)
    return row | {"graph": "built" if note else "class"} | dict(zip(COLUMNS[6:11], figures, strict=True))


def summary(rows: list[dict[str, object]]) -> Iterator[str]:
    """How many lines agree, of all and of those whose class ran, and the worst of each type and mode that do not."""
    compared = [row for row in rows if "latency_pct" in row]

    def off(row: dict[str, object]) -> float:
        return max(abs(float(str(row[key]))) for key in ("latency_pct", "memory_pct"))

    for title, some in (("all", compared), ("class", [row for row in compared if row["graph"] == "class"])):
        good = sum(off(row) <= WITHIN for row in some)
        yield f"{title}: {good} of {len(some)} within {WITHIN:.0f} % in time and memory"
    yield f"refused by one alone: {len(rows) - len(compared)}"
    worst: dict[tuple[str, str], float] = {}
    for row in compared:
        key = (str(row["type"]), str(row["mode"]))
        worst[key] = max(worst.get(key, 0.0), off(row))
    for (name, mode), value in sorted(worst.items(), key=lambda item: -item[1]):
        if value > WITHIN:
            yield f"  {name} {mode}: {value:.1f} %"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", required=True, help="the CSV")
    parser.add_argument("--layers", type=int, default=2, help="of a model of the catalogue (default 2)")
    parser.add_argument("--every", type=int, default=1, help="each so many points (default 1)")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--gpu", default="h100", help="default h100")
    asked = parser.parse_args()
    os.environ.setdefault("TILECAST_CACHE", tempfile.mkdtemp())
    rows = []
    for shift, (name, pair) in enumerate(models(asked.layers, Path(tempfile.mkdtemp())).items()):
        for point in points(asked.every, shift):
            words = words_of(name, *point, asked.batch, asked.seq_len)
            row = line(name, point, [answer(model, asked.gpu, words) for model in pair])
            rows += [row] if row else []
        print(name, len(rows), flush=True)
    with Path(asked.out).open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print("\n".join(summary(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
