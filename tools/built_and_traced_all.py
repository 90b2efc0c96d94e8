#!/usr/bin/env python3
"""Built against traced forecasts of every model type that has both: modes, engines, degrees and number formats.

    tools/built_and_traced_all.py --out built-and-traced.csv [--layers 2] [--every 500]

One model of each type, of few layers (a law is the same of each layer), is built by its reader and traced from the
class of transformers. Every point of the product becomes a run (`predictor.request.run.Run`) of both. Where the built
model answers for the traced one (`predictor.models.traced.model.not_its_class`), both runs have to be equal but for the
note that says so; a forecast follows from its run alone, and each ``--every``-th such point is forecast to show it.
Where the class answers, both are forecast. The CSV has a line for each point that is forecast or that one side alone
refuses, and a line for the rest of each type, mode and engine, with the number of its ``points``. Needs the extra
torch.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from built_and_traced import NAMES, WRITTEN_OUT, models_of

from predictor.engines.registry import names as engines
from predictor.errors import TilecastError
from predictor.forecast.forecast import Forecast, forecast
from predictor.request.request import Request
from predictor.request.run import Run
from tests.model_types import TYPES, small

MODES = ("forward", "train", "prefill", "decode", "generate")
DEGREES = (1, 4, 8)
FORMATS = ("bf16", "fp16", "fp32", "fp8", "int8", "int4_wo", "nvfp4_wo", "fp8_block")
#: Frameworks that train alone.
TRAINERS = ("megatron",)
#: Sizes of types of which the catalogue has no model: as wide as one of about a billion parameters.
WIDE: dict[str, Any] = {
    "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192,
    "vocab_size": 32000, "max_position_embeddings": 4096, "head_dim": 64, "num_experts": 16, "num_local_experts": 16,
    "n_routed_experts": 16, "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024,
    "moe_shared_expert_intermediate_size": 1024,
}  # fmt: skip
#: In the note that the built model answers for the class (`predictor.models.traced.model.not_its_class`).
AS_BUILT = "is forecast from its config"
#: Percent of the built forecast that count as agreement.
WITHIN = 3.0
COLUMNS = (
    "type", "mode", "execution", "tp", "dtype", "graph", "built_us", "traced_us", "latency_pct", "gpu_pct",
    "memory_pct", "refused", "points",
)  # fmt: skip
#: Of a line's ``graph``: the class answers; the built model does, and the point was forecast; both runs are equal;
#: both sides refuse.
CLASS, BUILT, EQUAL, REFUSED = "class", "built", "equal", "refused"


def models(layers: int, folder: Path) -> dict[str, tuple[str, str]]:
    """Built and traced model of each type, by the name of its model in the catalogue, else by its type."""
    pairs = {name: models_of(name, layers, False, folder) for name in NAMES}
    for name in TYPES:
        data = small(name)
        if name not in ("deepseek_v32", "glm_moe_dsa", "nemotron_h", "mimo_v2_flash"):  # whose sizes hang together
            data |= {key: value for key, value in WIDE.items() if key in data}
        path = folder / name / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(data), encoding="utf-8")
        pairs[name] = (str(path), f"traced:{path}")
    return {name: (built, str(traced)) for name, (built, traced) in pairs.items()}


def points() -> Iterator[tuple[str, str, int, str]]:
    """(mode, engine, degree, format) of the product; a framework of training trains alone."""
    yield from (p for p in product(MODES, engines(), DEGREES, FORMATS) if p[1] not in TRAINERS or p[0] == "train")


def words_of(name: str, mode: str, engine: str, tp: int, dtype: str, batch: int, tokens: int) -> dict[str, object]:
    """What is asked of both."""
    words: dict[str, object] = {"mode": mode, "execution": engine, "tp": tp, "dtype": dtype, "batch": batch}
    words |= {"context_len": tokens} if mode == "decode" else {"seq_len": tokens}
    words |= {"output_len": 8} if mode == "generate" else {}
    words |= {"optimizer": "none"} if mode == "train" and tp > 1 else {}
    return words | ({"attention": "math"} if name.startswith(WRITTEN_OUT) else {})


def run_of(model: str, gpu: str, words: dict[str, object]) -> Run | str:
    """The run of a request, or the line of its refusal."""
    try:
        return Request(model, gpu, **words).run()  # type: ignore[arg-type]
    except TilecastError as error:
        return str(error)


def equal(built: Run, traced: Run) -> bool:
    """Whether both runs are one but for the note that the built model answers, and so their forecasts."""
    notes = tuple(note for note in traced.numbers.notes if AS_BUILT not in note)
    return notes != traced.numbers.notes and built == replace(traced, numbers=replace(traced.numbers, notes=notes))


def forecast_of(run: Run | str) -> Forecast | str:
    """The forecast of a run, or the line of its refusal."""
    if isinstance(run, str):
        return run
    try:
        answer = forecast(run)
        answer.memory  # noqa: B018 - worked out when it is asked for, and may be refused
        return answer
    except TilecastError as error:
        return str(error)


def line(runs: list[Run | str], forecast_equal: bool) -> dict[str, object]:
    """What a line of the table says of a point: how it is answered, and where it is forecast, the figures."""
    built, traced = runs
    same = isinstance(built, Run) and isinstance(traced, Run) and equal(built, traced)
    if same and not forecast_equal:
        return {"graph": EQUAL}
    one, other = forecast_of(built), forecast_of(traced)
    if isinstance(one, str) or isinstance(other, str):
        if isinstance(one, str) and isinstance(other, str):
            return {"graph": REFUSED}
        return {"refused": f"built: {one}" if isinstance(one, str) else f"traced: {other}"}
    ours, theirs = one.summary(), other.summary()
    pairs = ((ours.latency_s, theirs.latency_s), (ours.gpu_busy_s, theirs.gpu_busy_s),
             (one.memory.total, other.memory.total))  # fmt: skip
    off = [f"{100.0 * (after / before - 1.0):.2f}" for before, after in pairs]
    figures = (f"{ours.latency_s * 1e6:.1f}", f"{theirs.latency_s * 1e6:.1f}", *off)
    answered = BUILT if isinstance(traced, Run) and any(AS_BUILT in note for note in traced.numbers.notes) else CLASS
    return {"graph": answered} | dict(zip(COLUMNS[6:11], figures, strict=True))


def summary(rows: list[dict[str, object]]) -> Iterator[str]:
    """How many points agree, by how they are answered, and the worst of each type and mode that do not."""
    compared = [row for row in rows if "latency_pct" in row]

    def off(row: dict[str, object]) -> float:
        return max(abs(float(str(row[key]))) for key in ("latency_pct", "memory_pct"))

    count = Counter[str]()
    for row in rows:
        count[str(row.get("graph", "one side"))] += int(str(row["points"]))
    yield f"{sum(count.values())} points: {count[EQUAL]} are one run, {count[REFUSED]} refused by both sides"
    for title in (CLASS, BUILT):
        some = [row for row in compared if row["graph"] == title]
        good = sum(off(row) <= WITHIN for row in some)
        yield f"{title}: {good} of {len(some)} forecasts within {WITHIN:.0f} % in time and memory"
    yield f"refused by one side alone: {count['one side']}"
    worst: dict[tuple[str, str], float] = {}
    for row in compared:
        key = (str(row["type"]), str(row["mode"]))
        worst[key] = max(worst.get(key, 0.0), off(row))
    for (name, mode), value in sorted(worst.items(), key=lambda item: -item[1]):
        if value > WITHIN:
            yield f"  {name} {mode}: {value:.1f} %"


def rows_of(name: str, pair: tuple[str, str], asked: argparse.Namespace, shift: int) -> list[dict[str, object]]:
    """The lines of a type; ``shift`` moves the sample of equal runs from type to type."""
    rows: list[dict[str, object]] = []
    alike = Counter[tuple[str, str, str]]()
    for place, point in enumerate(points()):
        words = words_of(name, *point, asked.batch, asked.seq_len)
        said = line([run_of(model, asked.gpu, words) for model in pair], (place + shift) % asked.every == 0)
        if said.get("graph") in (EQUAL, REFUSED):
            alike[(*point[:2], str(said["graph"]))] += 1
        else:
            rows.append(dict(zip(COLUMNS, (name, *point), strict=False)) | said | {"points": 1})
    for (mode, engine, graph), count in alike.items():
        rows.append({"type": name, "mode": mode, "execution": engine, "graph": graph, "points": count})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", required=True, help="the CSV")
    parser.add_argument("--layers", type=int, default=2, help="of a model of the catalogue (default 2)")
    parser.add_argument("--every", type=int, default=500, help="each so many equal runs is forecast (default 500)")
    parser.add_argument("--only", nargs="+", help="these types alone")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--gpu", default="h100", help="default h100")
    asked = parser.parse_args()
    os.environ.setdefault("TILECAST_CACHE", tempfile.mkdtemp())
    rows = []
    for shift, (name, pair) in enumerate(models(asked.layers, Path(tempfile.mkdtemp())).items()):
        if not asked.only or name in asked.only:
            rows += rows_of(name, pair, asked, shift)
            print(name, len(rows), flush=True)
    with Path(asked.out).open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print("\n".join(summary(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
