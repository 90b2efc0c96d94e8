#!/usr/bin/env python3
"""Steps of training on many GPUs against the suites, with what a step is made of switched on part by part.

    python benchmarks/training_effects.py --data $TILECAST_DATA           # both tables of accuracy-training-DATE.md
    python benchmarks/training_effects.py --data $TILECAST_DATA --final   # errors as they are, and the worst rows
    python benchmarks/training_effects.py --data $TILECAST_DATA --final --set seq_len=256 mlperf_training
                                     # of one suite, had its rows said something else than they do
    python benchmarks/training_effects.py --data $TILECAST_DATA --final --board-spread 0.01
                                     # had kernels waited for the slowest of boards whose speeds spread by 1 %

No step time is fitted: kernels, collectives and hosts are. Rows that cannot be forecast are counted and said.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import NormalDist, mean, median

import numpy as np

from predictor.errors import TilecastError
from predictor.fit.suite import COLUMNS, case_forecast
from predictor.forecast.forecast import Forecast

Row = Mapping[str, str]
#: Runs of `vtrain` that no neighbour explains, as the suite's own README names them (source: ground_truth/README.md).
OUTLIERS = ("mb2-t4d16", "mb2-t8d8", "mb64-t8d8")


#: What the suite's README and sources say of the BERT rows and no column does: padding is removed, about half of 512
#: tokens (of its paths, config_DGXH100_1x8x48x1_pack.sh has 48 packs of 512 tokens on a GPU with 96 sequences: 256
#: each); the head works on the masked tokens alone, 15 % of a sequence's and at most 76 (source: the benchmark's
#: create_pretraining_data.py, --masked_lm_prob=0.15 --max_predictions_per_seq=76; from memory).
UNPADDED = {"mean_len": "256", "masked_tokens": "38"}
#: The BERT rows with these cells; those of 8B, had nothing that replicas exchange run beside computation, which the
#: rows do not say (Megatron Core's flags are off by default).
README, IN_TURN = "mlperf_training unpadded", "mlperf_training in turn"
#: Name -> (suite, cells, which of its rows).
VARIANTS: dict[str, tuple[str, dict[str, str], str]] = {
    README: ("mlperf_training", UNPADDED, "bert"),
    IN_TURN: ("mlperf_training", {"dp_overlap": "off"}, "llama-3.1-8b"),
}


def _of(config: str, gpu: str = "h100") -> Callable[[Row], bool]:
    return lambda row: config in row["config"] and row["gpu"].startswith(gpu)


def _waits(row: Row) -> bool:
    """Runs of `mosaic` that probably waited for the allocator, as those who collected the suite say of them."""
    return row["gpu"].endswith("-40gb") and row["config"].startswith(("mpt-13b", "mpt-70b"))


#: Group -> (suite, which of its rows).
GROUPS: dict[str, tuple[str, Callable[[Row], bool]]] = {
    "korthikanti_layer": ("korthikanti_layer", lambda row: True),
    "megatron": ("megatron", lambda row: True),
    "vtrain": ("vtrain", lambda row: True),
    "vtrain without three": ("vtrain", lambda row: not any(name in row["case"] for name in OUTLIERS)),
    "mosaic": ("mosaic", lambda row: True),
    "mosaic, 32 GPUs and more": ("mosaic", lambda row: int(row["num_gpus"]) >= 32),
    "mosaic, without 13B and 70B on 40 GB": ("mosaic", lambda row: not _waits(row)),
    "mosaic, 32 GPUs and more, without them": ("mosaic", lambda row: int(row["num_gpus"]) >= 32 and not _waits(row)),
    "MLPerf H100 LoRA": ("mlperf_training", _of("llama-2-70b")),
    "MLPerf H100 8B": ("mlperf_training", _of("llama-3.1-8b")),
    "MLPerf H100 8B, --dp-overlap off": (IN_TURN, _of("llama-3.1-8b")),
    "MLPerf H100 405B": ("mlperf_training", _of("405b")),
    "MLPerf H100 GPT-3": ("mlperf_training", _of("gpt3")),
    "MLPerf H100 BERT": ("mlperf_training", _of("bert")),
    "MLPerf H100 BERT, as its README says": (README, _of("bert")),
    "MLPerf MI300X": ("mlperf_training", _of("", "mi300x")),
}


def parts(found: Forecast) -> list[float]:
    """Seconds of a step with its parts added one after the other: kernels, the layers' collectives, the pipeline, what
    replicas exchange, the optimizer."""
    if found.step is None:
        return [found.latency_s] * 5
    phases, exposed = found.step.phases_s, found.step.exposed_s
    layers = sum(exposed.get(name, 0.0) for name in ("tensor", "context", "expert"))
    passes = phases["forward"] + phases["backward"]
    sharded = sum(exposed.get(name, 0.0) - phases.get(name, 0.0) for name in ("gradients", "weights"))
    totals = [passes - layers - sharded]
    for more in (layers, phases.get("pipeline", 0.0),
                 sharded + phases.get("gradients", 0.0) + phases.get("weights", 0.0), phases["optimizer"]):  # fmt: skip
        totals.append(totals[-1] + more)
    return totals


def slowest(row: Row, found: Forecast, spread: float) -> float:
    """Seconds of a step whose kernels take as long as on the slowest of its boards. ``spread``: standard deviation of
    the boards' times, as a part of them. Expected largest of N normal values by Blom's formula (Statistical Estimates
    and Transformed Beta-Variables, 1958)."""
    boards = int(row["num_gpus"])
    above = NormalDist(0.0, spread).inv_cdf((boards - 0.375) / (boards + 0.25)) if spread and boards > 1 else 0.0
    return found.latency_s + above * parts(found)[0]


def forecasts(
    rows: Iterable[Row], configs: Path, changes: Mapping[str, str]
) -> tuple[list[tuple[Row, Forecast]], Counter[str]]:
    """Rows with their forecasts, and why others have none. ``changes``: cells in place of the rows' own."""
    found: list[tuple[Row, Forecast]] = []
    left: Counter[str] = Counter()
    for row in rows:
        try:
            found.append((row, case_forecast({**row, **changes}, configs, None)))
        except TilecastError as error:
            left[str(error)] += 1
    return found, left


def errors_pct(rows: Iterable[Row], seconds: Iterable[float]) -> list[float]:
    """Signed errors in percent."""
    return [(s * 1e3 / float(row["measured_ms"]) - 1) * 100 for row, s in zip(rows, seconds, strict=True)]


def shown(errors: list[float]) -> str:
    """Mean absolute and signed error."""
    return f"{mean(map(abs, errors)):.1f} ({mean(errors):+.1f})"


def given(parser: argparse.ArgumentParser, text: str) -> tuple[str, str]:
    """A column and its cell, of "COLUMN=CELL"; ends the program with one line where that is no such thing."""
    column, equals, cell = text.partition("=")
    if not equals or column not in COLUMNS:
        parser.error(f"--set {text!r}: expected COLUMN=CELL, of the columns {', '.join(COLUMNS)}")
    return column, cell


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder with ground_truth/ in it")
    parser.add_argument("--final", action="store_true", help="the errors alone, and the worst rows")
    parser.add_argument(
        "--set", action="append", default=[], metavar="COLUMN=CELL", help="in place of what rows say; once a column"
    )
    parser.add_argument(
        "--board-spread",
        type=float,
        default=0.0,
        metavar="PART",
        help="of boards' times: the slowest sets the pace (0)",
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="of these alone (all)")
    arguments = parser.parse_args()
    changes = dict(given(parser, text) for text in arguments.set)
    spread = arguments.board_spread
    if not 0 <= spread < 0.5:
        parser.error(f"--board-spread {spread}: expected a part from 0 to 0.5, such as 0.01")
    if spread and not arguments.final:
        parser.error("--board-spread is for the errors alone: expected --final with it")
    known = [suite for suite in dict.fromkeys(suite for suite, _ in GROUPS.values()) if suite not in VARIANTS]
    wrong = [name for name in arguments.suites if name not in known]
    if wrong:
        parser.error(f"suite {wrong[0]!r}: expected one of {', '.join(known)}")
    folder = Path(arguments.data) / "ground_truth"
    suites: dict[str, tuple[list[tuple[Row, Forecast]], list[tuple[Row, Forecast]]]] = {}
    asked = arguments.suites or known
    for suite in [*asked, *(name for name, (of, _, _) in VARIANTS.items() if of in asked)]:
        of, cells, config = VARIANTS.get(suite, (suite, {}, ""))
        said = cells | changes
        with (folder / f"{of}.csv").open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if config in row["config"]]
        own, left = forecasts(rows, folder / "configs", said)
        today = own if arguments.final else forecasts(rows, folder / "configs", said | {"software": ""})[0]
        suites[suite] = own, today
        for note, count in left.items():
            print(f"{suite}: {count} of {len(rows)} rows not forecast: {note}")
    if not arguments.final:
        steps_of = ("kernels", "+ layers' collectives", "+ pipeline", "+ replicas", "+ optimizer", "newest software")
        print(f"\n| suite | rows | {' | '.join(steps_of)} |")
        print("| --- | --: | --: | --: | --: | --: | --: | --: |")
    final = []
    for name, (suite, chosen) in GROUPS.items():
        own = [(row, found) for row, found in suites[suite][0] if chosen(row)] if suite in suites else []
        if not own:
            continue
        group = [row for row, _ in own]
        if not arguments.final:
            steps = np.array([parts(found) for _, found in own]).T
            cells = [shown(errors_pct(group, column)) for column in steps.tolist()]
            newest = [(row, found) for row, found in suites[suite][1] if chosen(row)]
            cells.append(shown(errors_pct([row for row, _ in newest], [found.latency_s for _, found in newest])))
            print(f"| {name} | {len(own)} | {' | '.join(cells)} |")
        errors = errors_pct(group, [slowest(row, found, spread) for row, found in own])
        worst = max(range(len(own)), key=lambda i: abs(errors[i]))
        final.append((name, errors, f"{group[worst]['case']} {errors[worst]:+.1f}"))
    print("\n| suite | rows | mean | signed | median | p90 | worst |\n| --- | --: | --: | --: | --: | --: | --- |")
    for name, errors, worst_row in final:
        size = [abs(e) for e in errors]
        print(
            f"| {name} | {len(errors)} | {mean(size):.1f} | {mean(errors):+.1f} | {median(size):.1f}"
            f" | {np.percentile(size, 90):.1f} | {worst_row} |"
        )


if __name__ == "__main__":
    main()
