#!/usr/bin/env python3
"""Learns how far whole forecasts are off, and judges the intervals of every suite by what the others teach.

usage: benchmarks/accuracy_intervals.py --data $TILECAST_DATA [--rows ROWS.csv] [--old] [--write] [--out PAGE.md]

It forecasts rows of $TILECAST_DATA/ground_truth and keeps, of each, the logarithm of measured / forecast beside what is
known of the request (`predictor.simulate.error_model`), in ROWS.csv. With --old it reads that file and forecasts
nothing. Then every suite is left out in turn: scales and factors come from the others, and its rows are judged. So
are probabilities (`predictor.simulate.odds`): which of two measured runs is faster, and whether a run keeps to a limit.
With --write what all suites teach goes into predictor/simulate/error_model.json. No forecast moves by it.

Suites count alike, whatever their rows. Rows that say a release stand there a second time without it (``open``), at
half the weight of a suite, and are judged apart: they teach what a release that is not given costs.

Left out: BERT of `mlperf_training` (its rows do not say how many tokens are padding), what a suite suspects, services
of 512 clients (docs/how-to/serving.md). Of large suites a sample, the same every time.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.stats import kstwo, spearmanr

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "benchmarks"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from predictor.errors import TilecastError  # noqa: E402
from predictor.files.read import atomic_write  # noqa: E402
from predictor.fit.evaluate import read_suite  # noqa: E402
from predictor.fit.suite import case_forecast  # noqa: E402
from predictor.forecast.forecast import Forecast, forecast  # noqa: E402
from predictor.kernels.interval import LEVEL  # noqa: E402
from predictor.simulate.error_model import (  # noqa: E402
    BOARD,
    ENGINE,
    FILE,
    HOST,
    KERNELS,
    KINDS,
    LATE,
    LEAST,
    MODULES,
    PARTS,
    QUEUE,
    SCHEMA_VERSION,
    TPOT,
    TTFT,
    ErrorModel,
    Facts,
)
from predictor.simulate.interval import RunSpread, facts_of  # noqa: E402
from predictor.simulate.odds import END, share_below  # noqa: E402

FloatArray = npt.NDArray[np.float64]
#: Suites of whole runs, and of services with the rows that are drawn of each (a simulation takes 0.1 to 5 s).
RUNS = (
    "neusight_e2e", "pipeweave_e2e", "splitwise", "fastertransformer_gpt", "fastertransformer_bert", "megatron",
    "korthikanti_layer", "vtrain", "mosaic", "mlperf_training", "torchtitan", "simumax", "megatron_bridge", "dgxc",
)  # fmt: skip
SERVICES = {"aic_silicon_h100": 100, "aic_silicon_2": 120, "inferencex_dsr1": 70, "mlperf_inference": 24, "blis": 23}
#: Modules of `kernelbench` and models of `timm` that are drawn, the latter for so many seconds at most.
MODULES_DRAWN, TIMM_SECONDS = 70, 60.0
#: Columns of the rows.
ABOUT = (
    "suite", "figure", "open", "case", "gpu", "board", "engine", "kind", "gpus", "seconds", "error", "old_low",
    "old_high",
)  # fmt: skip
SIZES = tuple(f"{part}_{side}" for part in PARTS if part not in KINDS for side in ("below", "above"))

#: What intervals were made with before, in `before`: seconds that a launched kernel came later, the share of a step on
#: many GPUs, and of services the logarithms beyond kernels. Source: predictor/simulate/interval.py and
#: predictor/serving/goals.py of commit 645a4b61.
OLD_LATE_S, OLD_STEP_SHARE = 10.8e-6, 0.002
OLD_SERVED = {TTFT: (-0.096, 0.548), TPOT: (-0.058, 0.124)}

#: Of the fit, all chosen by leaving suites out: how many times its score a suite counts beside the prior; the prior of
#: a scale's logarithm, and its deviation; suites for which a kind of runs trusts all kinds as much as itself; rows
#: below which it trusts them alone.
EVIDENCE = 8.0
PRIOR, DEVIATION = {KERNELS: 1.0, HOST: 0.5, LATE: 0.5, QUEUE: 0.3}, 0.3
OTHER_PRIOR = 0.1
BORROWED, FEWEST = 1.0, 20
#: Where a normal distribution has 90 % below it: ends that scales are learned with, before there are factors.
NORMAL_END = 1.2816
#: Suites for which the side of a kind's errors is believed by half.
SIDED, SIDES = 3.0, np.array([-1.0, 0.0, 1.0])
#: Weight of rows whose release was taken away, beside those of their suite.
OPEN_WEIGHT = 0.5
TAIL = (1.0 - LEVEL) / 2.0
#: Parts that two runs on one board, or of one engine, may have apart: what is tried.
APART = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15)
#: Pairs of a suite that are drawn at most, and the factor between their forecasts from which no one has to ask.
PAIRS, CLOSE = 2000, 1.5
#: Limits that rows are held against, as factors of the forecast.
LIMITS = (0.7, 0.85, 1.0, 1.2, 1.5, 2.0)


# --------------------------------------------------------------------------------------------------- what was measured


def before(spread: RunSpread, trains_on_many: bool) -> tuple[float, float]:
    """Logarithms of the ends that a run's interval had before."""
    total, share = spread.total_s, OLD_STEP_SHARE * trains_on_many
    below = math.hypot(spread.kernels[0] / total, spread.host[0] / total, share)
    above = math.hypot(
        *(spread.kernels[1] / total, spread.host[1] / total, share, spread.launched * OLD_LATE_S / total)
    )
    return math.log1p(-min(below, 1.0 - 1e-9)), math.log1p(above)


def row_of(
    suite: str, figure: str, case: str, made: Forecast, facts: Facts, seconds_s: float, measured_s: float,
    old: tuple[float, float], opened: bool,
) -> dict[str, Any]:  # fmt: skip
    """A row of the file."""
    spread, work = made.spread, made.run.work
    assert spread is not None
    seconds = np.asarray(spread.by_distance)
    board = ("measured", "sibling", "unseen")[int(np.argmax([seconds[0], seconds[1], seconds[2:4].sum()]))]
    about = (
        suite, figure, int(opened), case, made.run.gpu.id, board, work.execution, facts.kind,
        work.parallelism.num_gpus, f"{seconds_s:.5g}", f"{math.log(measured_s / seconds_s):.4f}",
        f"{old[0]:.4f}", f"{old[1]:.4f}",
    )  # fmt: skip
    sizes = {
        f"{part}_{side}": f"{float(size):.4g}"
        for part, pair in facts.sizes.items()
        if part not in KINDS
        for side, size in zip(("below", "above"), pair, strict=True)
    }
    return dict(zip(ABOUT, about, strict=True)) | dict.fromkeys(SIZES, "0") | sizes


def of_run(suite: str, case: str, made: Forecast, measured_s: float, opened: bool = False) -> Iterator[dict[str, Any]]:
    """The row of a whole run; none without an interval."""
    if made.spread is None:
        return
    work = made.run.work
    old = before(made.spread, work.training is not None and work.parallelism.num_gpus > 1)
    facts = facts_of(made.spread, made.run)
    yield row_of(suite, "latency", case, made, facts, made.latency_s, measured_s, old, opened)


def runs(data: Path, suite: str) -> Iterator[dict[str, Any]]:
    """The rows of a suite that can be forecast."""
    folder = data / "ground_truth"
    for row in read_suite(folder / f"{suite}.csv").to_dict("records"):
        if suite == "mlperf_training" and "bert" in str(row["config"]):
            continue
        measured_s = float(row["measured_ms"]) * 1e-3
        try:
            made = case_forecast(row, folder / "configs", None)
            yield from of_run(suite, row["case"], made, measured_s)
            if made.run.work.software and len(made.run.work.engine.vintages()) > 1:
                said = {**row, "software": ""}
                yield from of_run(suite, row["case"], case_forecast(said, folder / "configs", None), measured_s, True)
        except TilecastError:
            continue


def services(data: Path, suite: str, most: int) -> Iterator[dict[str, Any]]:
    """Rows of a suite of services, a row a figure."""
    from predictor.fit.served import STATISTICS, forecast_cases
    from predictor.fit.served_rows import read_cases
    from predictor.serving import goals

    cases = [each for each in read_cases(data / "ground_truth" / f"{suite}.csv") if not each.left_out and not each.note]
    cases = [each for each in cases if str(each.whole.get("concurrency")) not in ("512", "512.0")]
    draw = np.random.default_rng(0).permutation(len(cases))[:most]
    cases = [cases[place] for place in sorted(draw)]
    known: dict[str, Any] = {}

    def kept(served: Any, rerun: Callable[[float], Any], statistic: Any = goals.mean_of) -> dict[str, Any]:
        known["facts"] = goals.service_errors(served, rerun, statistic)
        known["step"] = goals.step_of(served)
        return {}

    original, goals.ranges_of = goals.ranges_of, kept
    import predictor.fit.served as module

    module.ranges_of = kept  # type: ignore[attr-defined]
    try:
        for place, served, _, _ in forecast_cases(cases):
            if served is None or not known.get("facts"):
                continue
            case = cases[place]
            for figure in (TTFT, TPOT):
                facts = known["facts"][figure]
                values = getattr(served, f"{figure}_s")
                values = values[~np.isnan(values)]
                measured_s = case.measured[f"{figure}_ms"] * 1e-3
                if not values.size or not math.isfinite(measured_s):
                    continue
                seconds_s = STATISTICS[case.statistic](values)
                down, up = (math.hypot(*(facts.sizes[part][side] for part in (KERNELS, HOST, LATE))) for side in (0, 1))
                low, high = OLD_SERVED[figure]
                old = -math.hypot(down, low), math.hypot(up, high)
                yield row_of(suite, figure, case.name, known["step"], facts, seconds_s, measured_s, old, False)
    finally:
        goals.ranges_of = module.ranges_of = original  # type: ignore[attr-defined]


def modules(data: Path) -> Iterator[dict[str, Any]]:
    """Modules of `kernelbench`: those that a seed draws."""
    import accuracy_modules as suite

    from predictor.files.extras import require
    from predictor.models.traced.module_files import model_of_file, with_tf32_convolutions
    from predictor.request.request import Request

    frame = require("pandas").read_csv(data / suite.SUITE, keep_default_na=False)
    names = np.random.default_rng(0).permutation(sorted(frame["module"].unique()))[:MODULES_DRAWN]
    for name in names:
        model, made = None, dict[tuple[str, str], Forecast | None]()
        for row in frame[frame["module"] == name].to_dict("records"):
            if row["suspect"] or row["mode"] not in suite.EXECUTIONS:
                continue
            key = row["gpu"], suite.EXECUTIONS[row["mode"]]
            if key not in made:
                made[key] = None
                try:
                    model = model or with_tf32_convolutions(model_of_file(data / str(name)))
                    made[key] = forecast(Request(model, key[0], mode="forward", dtype="fp32", execution=key[1]).run())
                except TilecastError:
                    pass
            answer = made[key]
            if answer is not None:
                yield from of_run("kernelbench", row["case"], answer, float(row["measured_ms"]) * 1e-3)


def images(data: Path) -> Iterator[dict[str, Any]]:
    """Models of `timm`, in an order that a seed draws, for so long as there is time."""
    import accuracy_vision as suite

    from predictor.files.extras import require
    from predictor.request.request import Request

    frame = require("pandas").read_csv(data / suite.SUITE, dtype={"case": str})
    frame = frame[["case", "measured_ms"]].join(frame["case"].str.extract(suite._CASE))
    models = frame[["name", "size"]].drop_duplicates().sample(frac=1.0, random_state=0)
    begun = time.monotonic()
    for name, size in models.itertuples(index=False):
        if time.monotonic() - begun > TIMM_SECONDS:
            return
        for row in frame[(frame["name"] == name) & (frame["size"] == size)].to_dict("records"):
            words = {
                "mode": "train" if row["kind"] == "train" else "forward",
                "attention": "flash" if int(row["torch"]) >= suite._SINCE else "math",
            }
            try:
                model = suite.model_of(row)
                made = forecast(Request(model, row["gpu"], dtype="fp32", execution="eager", **words).run())
            except TilecastError:
                continue
            yield from of_run("timm", row["case"], made, float(row["measured_ms"]) * 1e-3)


def collect(data: Path, path: Path) -> None:
    """Writes the rows of all suites."""
    parts: list[tuple[str, Iterator[dict[str, Any]]]] = [(name, runs(data, name)) for name in RUNS]
    parts += [("kernelbench", modules(data)), ("timm", images(data))]
    parts += [(name, services(data, name, most)) for name, most in SERVICES.items()]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*ABOUT, *SIZES), lineterminator="\n")
        writer.writeheader()
        for name, rows in parts:
            begun, count = time.monotonic(), 0
            for row in rows:
                writer.writerow(row)
                count += 1
            print(f"{name}: {count} rows, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------------------ the fit


@dataclass
class Rows:
    """Rows as arrays: ``y`` (n,) log errors; ``below``, ``above`` (n, parts): the squares of the parts' sizes; ``old``
    (n, 2) the ends of the intervals before; words by column, (n,) each."""

    y: FloatArray
    below: FloatArray
    above: FloatArray
    old: FloatArray
    words: Mapping[str, npt.NDArray[Any]]

    @classmethod
    def read(cls, path: Path) -> Rows:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        words = {name: np.array([row[name] for row in rows]) for name in ABOUT}
        squares = []
        for side in ("below", "above"):
            table = np.zeros((len(rows), len(PARTS)))
            for place, part in enumerate(PARTS):
                of_part = words["kind"] == part if part in KINDS else [float(row[f"{part}_{side}"]) for row in rows]
                table[:, place] = np.square(np.asarray(of_part, dtype=np.float64))
            squares.append(table)
        old = np.array([[float(row["old_low"]), float(row["old_high"])] for row in rows])
        return cls(words["error"].astype(np.float64), squares[0], squares[1], old, words)

    def of(self, mask: npt.NDArray[np.bool_]) -> Rows:
        """Some of the rows."""
        words = {name: values[mask] for name, values in self.words.items()}
        return Rows(self.y[mask], self.below[mask], self.above[mask], self.old[mask], words)

    @property
    def series(self) -> npt.NDArray[Any]:
        """(n,) a name for the rows that count alike: of one suite and figure, with a release or without."""
        w = self.words
        return np.array([" ".join(each) for each in zip(w["suite"], w["figure"], w["open"], strict=True)])

    def weights(self) -> FloatArray:
        """(n,) that make each of the series count alike, those without a release by `OPEN_WEIGHT`."""
        _, place, counts = np.unique(self.series, return_inverse=True, return_counts=True)
        result: FloatArray = np.where(self.words["open"] == "1", OPEN_WEIGHT, 1.0) / counts[place]
        return result


def scales_of(rows: Rows) -> FloatArray:
    """Scales by part: the least geometric mean over suites of their interval scores, with a prior on their logarithms.

    Suites whose errors are large count no more than others so. Left out in turn, suites have better intervals by it
    than by the likelihood of Student's t, by quantile regression, by boosted trees, and by one width a kind.
    """
    prior = np.log([PRIOR.get(part, OTHER_PRIOR) for part in PARTS])
    weights, y = rows.weights(), rows.y
    _, place = np.unique(rows.series, return_inverse=True)
    whole = np.bincount(place, weights)  # of each of the series

    def loss(logs: FloatArray) -> tuple[float, FloatArray]:
        squares = np.exp(2.0 * logs)
        below, above = (np.sqrt(sizes @ squares + LEAST**2) for sizes in (rows.below, rows.above))
        ends = NORMAL_END * np.stack([-below, above], axis=1)
        means = np.bincount(place, weights * winkler(y, ends)) / whole
        each = EVIDENCE * weights / means[place] * NORMAL_END / 2.0
        outside = 2.0 / (1.0 - LEVEL)
        by_below = each * (1.0 - outside * (y < ends[:, 0])) / below
        by_above = each * (1.0 - outside * (y > ends[:, 1])) / above
        gradient = (by_below @ rows.below + by_above @ rows.above) * 2.0 * squares
        away = (logs - prior) / DEVIATION
        return float(EVIDENCE * (whole @ np.log(means)) + 0.5 * away @ away), gradient + away / DEVIATION

    fitted = minimize(loss, prior.copy(), jac=True, method="L-BFGS-B", bounds=[(-6.0, 3.0)] * len(PARTS))
    scales: FloatArray = np.exp(fitted.x)
    return scales


def half_widths(rows: Rows, scales: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(n,) below and above, as `ErrorModel.half_widths`."""
    return np.sqrt(rows.below @ scales**2 + LEAST**2), np.sqrt(rows.above @ scales**2 + LEAST**2)


def quantiles(values: FloatArray, weights: FloatArray, levels: Sequence[float]) -> FloatArray:
    """Weighted quantiles, between rows on a line."""
    order = np.argsort(values, kind="stable")
    shares = (np.cumsum(weights[order]) - weights[order] / 2.0) / weights.sum()
    result: FloatArray = np.interp(levels, shares, values[order])
    return result


def factors_of(rows: Rows, scales: FloatArray) -> dict[str, tuple[float, float, float]]:
    """(below, of the median, above) by kind: quantiles of error / half-width, suites alike.

    Suites are the draws of split conformal prediction: of K of them the levels are those for one more (times (K + 1) /
    K). A kind with few suites borrows from all, and has no quantiles of its own below `FEWEST` rows. Nor do few suites
    tell on which side a kind errs: its own quantiles lean to those of the error's size, alike on both sides.
    """
    below, above = half_widths(rows, scales)
    z = np.where(rows.y > 0.0, rows.y / above, rows.y / below)
    weights, names = rows.weights(), rows.words["suite"]
    count = len(set(names))
    least = max(1.0 - (1.0 - TAIL) * (count + 1.0) / count, 0.01)
    pooled = quantiles(z, weights, (least, 0.5, 1.0 - least))
    factors = {}
    for kind in KINDS:
        mine = rows.words["kind"] == kind
        suites = len(set(names[mine]))
        three = pooled
        if mine.sum() >= FEWEST:
            (size,) = quantiles(np.abs(z[mine]), weights[mine], (LEVEL,))
            sided, share = suites / (suites + SIDED), suites / (suites + BORROWED)
            of_kind = sided * quantiles(z[mine], weights[mine], (TAIL, 0.5, 1.0 - TAIL)) + (1.0 - sided) * size * SIDES
            three = share * of_kind + (1.0 - share) * pooled
        low, high = min(float(three[0]), -LEAST), max(float(three[2]), LEAST)
        factors[kind] = low, min(max(float(three[1]), 0.9 * low), 0.9 * high), high
    return factors


def model_of(rows: Rows, apart: Mapping[str, float] | None = None) -> ErrorModel:
    """What all rows teach."""
    scales = scales_of(rows)
    pairs = {BOARD: 1.0, ENGINE: 1.0} if apart is None else apart
    return ErrorModel(dict(zip(PARTS, scales.tolist(), strict=True)), factors_of(rows, scales), pairs)


def ends_of(rows: Rows, model: ErrorModel) -> FloatArray:
    """(n, 3) logarithms of the intervals' ends, with that of the median between them."""
    below, above = half_widths(rows, np.array([model.scales[part] for part in PARTS]))
    factors = np.array([model.factors[kind] for kind in rows.words["kind"]])
    middle = factors[:, 1] * np.where(factors[:, 1] > 0.0, above, below)
    return np.stack([factors[:, 0] * below, middle, factors[:, 2] * above], axis=1)


# ---------------------------------------------------------------------------------------------------------- the judge


def left_out(rows: Rows) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Ends and medians (n, 3) of every suite by what the others teach; ends of one width for all (n, 2); and where each
    error lies in the errors of the others, measured by their intervals (n,), from 0 to 1."""
    ends, single = np.zeros((len(rows.y), 3)), np.zeros((len(rows.y), 2))
    places = np.zeros(len(rows.y))
    for suite in sorted(set(rows.words["suite"])):
        out = rows.words["suite"] == suite
        others, mine = rows.of(~out), rows.of(out)
        model = model_of(others)
        ends[out] = ends_of(mine, model)
        said = others.of(others.words["open"] == "0")
        single[out] = quantiles(said.y, said.weights(), (TAIL, 1.0 - TAIL))
        inner = _relative(said.y, ends_of(said, model))
        order = np.argsort(inner)
        shares = np.cumsum(said.weights()[order]) / said.weights().sum()
        places[out] = np.interp(_relative(mine.y, ends[out]), inner[order], shares, left=0.0, right=1.0)
    return ends, single, places


@dataclass
class Pairs:
    """Pairs of measured rows of a suite, the one with the shorter forecast first: (pairs,) each. ``gap``: log ratio of
    their medians; ``square``: of the ends' distances from the medians, on the side of the other; whether they share a
    board, an engine; whether the first was faster; the suite, the weight, and whether forecasts are close."""

    gap: FloatArray
    square: FloatArray
    board: npt.NDArray[np.bool_]
    engine: npt.NDArray[np.bool_]
    won: npt.NDArray[np.bool_]
    suite: npt.NDArray[Any]
    weight: FloatArray
    close: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Rows, ends: FloatArray) -> Pairs:
        """Of each of the series all pairs, or `PAIRS` that a seed draws."""
        draw, parts = np.random.default_rng(0), []
        for name in np.unique(rows.series):
            mine = np.flatnonzero(rows.series == name)
            first, other = np.triu_indices(len(mine), 1)
            if len(first) > PAIRS:
                some = draw.choice(len(first), PAIRS, replace=False)
                first, other = first[some], other[some]
            parts.append((mine[first], mine[other], np.full(len(first), 1.0 / max(len(first), 1))))
        first, other, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
        logs = np.log(rows.words["seconds"].astype(np.float64))
        medians = logs + ends[:, 1]
        swapped = medians[first] > medians[other]
        first, other = np.where(swapped, other, first), np.where(swapped, first, other)
        square = (ends[first, 2] - ends[first, 1]) ** 2 + (ends[other, 1] - ends[other, 0]) ** 2
        w = rows.words
        return cls(
            medians[other] - medians[first], square, w["gpu"][first] == w["gpu"][other],
            w["engine"][first] == w["engine"][other], logs[other] + rows.y[other] > logs[first] + rows.y[first],
            w["suite"][first], weight, np.abs(logs[other] - logs[first]) < math.log(CLOSE),
        )  # fmt: skip

    def chances(self, apart: Mapping[str, float]) -> FloatArray:
        """(pairs,) that the first is faster, as `predictor.simulate.odds.faster`."""
        shared = np.where(self.board, apart[BOARD], 1.0) * np.where(self.engine, apart[ENGINE], 1.0)
        result: FloatArray = share_below(END * self.gap / np.sqrt(shared * self.square))
        return result

    def apart(self, mask: npt.NDArray[np.bool_]) -> dict[str, float]:
        """The parts of `APART` under which what was seen is likeliest, of some of the pairs."""

        def surprise(parts: dict[str, float]) -> float:
            chances = self.chances(parts)
            return float(-(self.weight * mask) @ np.log(np.where(self.won, chances, 1.0 - chances)))

        return min(({BOARD: b, ENGINE: e} for b in APART for e in APART), key=surprise)

    def left_out(self) -> FloatArray:
        """(pairs,) chances of every suite by the parts that the others teach."""
        chances = np.zeros(len(self.gap))
        for suite in np.unique(self.suite):
            out = self.suite == suite
            chances[out] = self.chances(self.apart(~out))[out]
        return chances


def judged(chances: FloatArray, came: npt.NDArray[np.bool_], weights: FloatArray, least: float) -> str:
    """Brier score, and by classes of a tenth (of a fifth from 0 on) how often it came beside how often it was said."""
    brier = weights @ (chances - came) ** 2 / weights.sum()
    place = np.clip(((chances - least) * 5.0 / (1.0 - least)).astype(int), 0, 4)
    shown = []
    worst = 0.0
    for each in range(5):
        part = weights * (place == each)
        if part.sum() > 0.01 * weights.sum():
            said, seen = part @ chances / part.sum(), part @ came / part.sum()
            shown.append(f"{said:.0%}: {seen:.0%}")
            worst = max(worst, abs(said - seen))
    return f"{brier:.3f} | {worst * 100.0:.0f} points | {', '.join(shown)}"


def _chances(rows: Rows, ends: FloatArray) -> list[str]:
    """The table of probabilities: pairs, and limits."""
    lines = ["| probability that | cases | Brier score | farthest | said: came |", "| --- | --: | --: | --: | --- |"]
    pairs = Pairs.of(rows, ends)
    chances, every = pairs.left_out(), np.ones(len(pairs.gap), dtype=np.bool_)
    some = (
        ("the one of two runs is faster", every), (f"the same, forecasts within a factor of {CLOSE:g}", pairs.close),
        ("the same, on two boards", ~pairs.board), ("the same, of two engines", ~pairs.engine),
    )  # fmt: skip
    for name, mask in some:
        told = judged(chances[mask], pairs.won[mask], pairs.weight[mask], 0.5)
        lines.append(f"| {name} | {mask.sum():,} | {told} |")
    weights = rows.weights()
    for name, mask in (
        ("a run keeps to a limit", rows.words["figure"] == "latency"),
        ("TPOT keeps to a limit", rows.words["figure"] == TPOT),
        ("TTFT keeps to a limit", rows.words["figure"] == TTFT),
    ):
        of_limits = [(limit_chances(ends[mask], math.log(each)), rows.y[mask] <= math.log(each)) for each in LIMITS]
        said, came = (np.concatenate(column) for column in zip(*of_limits, strict=True))
        told = judged(said, came, np.tile(weights[mask], len(LIMITS)), 0.0)
        lines.append(f"| {name}, {LIMITS[0]:g} to {LIMITS[-1]:g} of its forecast | {len(said):,} | {told} |")
    return [*lines, "", _together(rows, ends)]


def _together(rows: Rows, ends: FloatArray) -> str:
    """How errors of TTFT and TPOT of the same row go together: `predictor.search.serving` takes them as independent."""
    about, relative = rows.words, _relative(rows.y, ends)
    of_row = {
        figure: {
            key: relative[i] for i, key in enumerate(zip(about["suite"], about["case"], about["open"], strict=True))
            if about["figure"][i] == figure
        }
        for figure in (TTFT, TPOT)
    }  # fmt: skip
    both = [key for key in of_row[TTFT] if key in of_row[TPOT]]
    rank = spearmanr([of_row[TTFT][key] for key in both], [of_row[TPOT][key] for key in both]).statistic
    return (
        f"Errors of TTFT and TPOT of one row, over their intervals: rank correlation {rank:.2f} over {len(both)} rows."
    )


def limit_chances(ends: FloatArray, limit: float) -> FloatArray:
    """(n,) that errors are at most ``limit``, as `predictor.simulate.odds.Outlook.within`."""
    away = limit - ends[:, 1]
    end = np.where(away > 0.0, ends[:, 2] - ends[:, 1], ends[:, 1] - ends[:, 0])
    result: FloatArray = share_below(END * away / end)
    return result


def _relative(y: FloatArray, ends: FloatArray) -> FloatArray:
    """Errors over the interval's end on their side: -1 and 1 at the ends."""
    result: FloatArray = y / np.where(y > 0.0, np.maximum(ends[:, -1], 1e-9), np.maximum(-ends[:, 0], 1e-9))
    return result


def inside(y: FloatArray, ends: FloatArray) -> npt.NDArray[np.bool_]:
    """(n,) whether the interval holds the measurement."""
    held: npt.NDArray[np.bool_] = (ends[:, 0] <= y) & (y <= ends[:, -1])
    return held


def winkler(y: FloatArray, ends: FloatArray) -> FloatArray:
    """(n,) interval scores of logarithms: width, and what lies outside times 2 / (1 - level) (Gneiting and Raftery,
    2007, equation 43)."""
    outside = np.maximum(ends[:, 0] - y, 0.0) + np.maximum(y - ends[:, -1], 0.0)
    result: FloatArray = ends[:, -1] - ends[:, 0] + 2.0 / (1.0 - LEVEL) * outside
    return result


def widths(ends: FloatArray) -> FloatArray:
    """(n,) high - low over the forecast."""
    result: FloatArray = np.exp(ends[:, -1]) - np.exp(ends[:, 0])
    return result


def alike(rows: Rows, values: npt.NDArray[Any]) -> float:
    """The mean over suites and figures of each one's mean."""
    names = rows.series
    return float(np.mean([values[names == name].mean() for name in np.unique(names)]))


def page(whole: Rows, source: Path) -> list[str]:
    """The lines of the page of results."""
    all_ends, all_single, all_places = left_out(whole)
    told = whole.words["open"] == "0"
    rows, ends, single, places = whole.of(told), all_ends[told], all_single[told], all_places[told]
    held = inside(rows.y, ends)
    names = rows.series
    counted = {name: (names == name) for name in np.unique(names)}
    lines = [
        f"# Intervals of whole forecasts, {time.strftime('%Y-%m-%d')}",
        "",
        "Written by `benchmarks/accuracy_intervals.py --data $TILECAST_DATA --out PAGE`. Every suite is judged by",
        "scales and factors from the others; suites (services: suites and figures) count alike. Widths are high - low",
        "over the forecast. `before`: the intervals before 2026-11-28, on the same forecasts; those of services are",
        "taken from how much slower the service is with slower steps.",
        "",
        "| what | now | before | one width for all |",
        "| --- | --: | --: | --: |",
    ]
    kinds_of_ends = (ends, rows.old, single)
    lines.append(
        "| coverage, suites alike | "
        + " | ".join(f"{alike(rows, inside(rows.y, e)):.0%}" for e in kinds_of_ends)
        + " |"
    )
    large = [name for name, mask in counted.items() if mask.sum() >= FEWEST]
    worst = []
    for each in kinds_of_ends:
        share = {name: inside(rows.y, each)[counted[name]].mean() for name in large}
        name = min(share, key=lambda key: share[key])
        worst.append(f"{share[name]:.0%} ({name.removesuffix(' 0').replace(' latency', '')})")
    lines.append(f"| worst suite of {FEWEST} rows or more | " + " | ".join(worst) + " |")
    scores = [alike(rows, winkler(rows.y, each)) for each in kinds_of_ends]
    lines.append("| interval score of logarithms | " + " | ".join(f"{score:.3f}" for score in scores) + " |")
    lines += [
        f"| this model against it | | {scores[0] / scores[1] - 1.0:+.0%} | {scores[0] / scores[2] - 1.0:+.0%} |",
        "",
    ]
    shares = np.linspace(0.0, 1.0, 101)
    mean = np.mean([[np.mean(places[mask] <= share) for share in shares] for mask in counted.values()], axis=0)
    far = float(np.abs(mean - shares).max())
    lines += [
        f"Where errors lie among those of the others (PIT): the mean over {len(counted)} suites is at most {far:.3f}"
        f" from even; Kolmogorov-Smirnov with one draw a suite: p = {kstwo.sf(far, len(counted)):.2f}.",
        "",
    ]
    lines += [*_chances(rows, ends), ""]
    lines += ["| group | rows | suites | inside | median width | before |", "| --- | --: | --: | --: | --: | --: |"]
    w, gpus = rows.words, rows.words["gpus"].astype(int)
    latency = w["figure"] == "latency"
    plain = latency & (w["kind"] != MODULES)
    groups: list[tuple[str, npt.NDArray[np.bool_]]] = [
        *((f"board {name}", w["board"] == name) for name in ("measured", "sibling", "unseen")),
        *((f"kind {name}", w["kind"] == name) for name in KINDS),
        *((f"engine {name}", w["engine"] == name) for name in np.unique(w["engine"])),
        ("one GPU, board measured, no module", plain & (gpus == 1) & (w["board"] == "measured")),
        ("one GPU, board or sibling measured, no module", plain & (gpus == 1) & (w["board"] != "unseen")),
        ("many GPUs, no service", (gpus > 1) & latency),
        ("generation unseen, no module", plain & (w["board"] == "unseen")),
    ]  # fmt: skip
    for name, mask in groups:
        if mask.any():
            lines.append(_group(name, rows.of(mask), ends[mask]))
    opened = whole.of(~told)
    if len(opened.y):
        lines.append(_group("release not said", opened, all_ends[~told]))
    lines += ["", "| suite left out | rows | inside | median width | before: inside | width |"]
    lines.append("| --- | --: | --: | --: | --: | --: |")
    for name, mask in counted.items():
        title = name.removesuffix(" 0").replace(" latency", "")
        lines.append(
            f"| {title} | {mask.sum()} | {held[mask].mean():.0%} | {np.median(widths(ends)[mask]):.0%}"
            f" | {inside(rows.y, rows.old)[mask].mean():.0%} | {np.median(widths(rows.old)[mask]):.0%} |"
        )
    model = whole_model(whole)
    lines += ["", "From all suites together (`predictor/simulate/error_model.json`):", ""]
    lines += ["| part | scale | | kind | factor below | of the median | above |"]
    lines += ["| --- | --: | --- | --- | --: | --: | --: |"]
    for place, part in enumerate(PARTS):
        kind = KINDS[place] if place < len(KINDS) else ""
        factor = " | ".join(f"{each:.2f}" for each in model.factors[kind]) if kind else "| |"
        lines.append(f"| {part} | {model.scales[part]:.3f} | | {kind} | {factor} |")
    apart = f"{model.apart[BOARD]:.2f} of a board, {model.apart[ENGINE]:.2f} of an engine"
    return [*lines, "", f"Squares that two runs do not share: {apart}. {len(whole.y):,} rows: `{source.name}`."]


def _group(name: str, rows: Rows, ends: FloatArray) -> str:
    held = alike(rows, inside(rows.y, ends))
    return (
        f"| {name} | {len(rows.y)} | {len(set(rows.series))} | {held:.0%} | {np.median(widths(ends)):.0%}"
        f" | {alike(rows, inside(rows.y, rows.old)):.0%}, {np.median(widths(rows.old)):.0%} |"
    )


def whole_model(rows: Rows) -> ErrorModel:
    """What ships: pairs are looked at with every suite left out, as they will be of suites that nobody has seen."""
    ends, _, _ = left_out(rows)
    told = rows.words["open"] == "0"
    pairs = Pairs.of(rows.of(told), ends[told])
    return model_of(rows, pairs.apart(np.ones(len(pairs.gap), dtype=np.bool_)))


def write(rows: Rows, source: Path) -> None:
    """What ships, with where it is from."""
    model = whole_model(rows)
    names, counts = np.unique(rows.words["suite"], return_counts=True)
    content = {
        "schema_version": SCHEMA_VERSION,
        "written_by": "benchmarks/accuracy_intervals.py --data $TILECAST_DATA --write",
        "date": time.strftime("%Y-%m-%d"),
        "rows": {"sha256": hashlib.sha256(source.read_bytes()).hexdigest(), "of": {
            str(name): int(count) for name, count in zip(names, counts, strict=True)
        }},
        "level": LEVEL,
        "scales": {part: round(scale, 4) for part, scale in model.scales.items()},
        "factors": {kind: [round(end, 4) for end in ends] for kind, ends in model.factors.items()},
        "apart": dict(model.apart),
    }  # fmt: skip
    atomic_write(FILE, (json.dumps(content, indent=1) + "\n").encode())


def main() -> int:
    """Collect, judge, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the public data ($TILECAST_DATA)")
    parser.add_argument("--rows", type=Path, default=Path("interval-rows.csv"), help="the file of rows")
    parser.add_argument("--old", action="store_true", help="read the rows of a run before")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.relative_to(ROOT)}")
    parser.add_argument("--out", type=Path, help="write the page of results there")
    asked = parser.parse_args()
    if not asked.old:
        collect(asked.data, asked.rows)
    rows = Rows.read(asked.rows)
    lines = page(rows, asked.rows)
    print("\n".join(lines))
    if asked.out:
        atomic_write(asked.out, ("\n".join(lines) + "\n").encode())
    if asked.write:
        write(rows, asked.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
