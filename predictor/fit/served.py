"""Measured services against the simulation: what came of every case, and how far off it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from predictor.data.frame import Frame
from predictor.engines.vintage import NO_LIMIT, Setting
from predictor.errors import TilecastError
from predictor.files.extras import require
from predictor.files.records import replace
from predictor.fit.scores import summarise
from predictor.fit.served_rows import TIMES, TOKENS_A_GPU, MeasuredService
from predictor.request.request import Request
from predictor.request.run import Run
from predictor.serving.costs import StepCosts
from predictor.serving.deployment import Options, deploy
from predictor.serving.disaggregated import Apart, costs_apart, serve_apart
from predictor.serving.goals import Statistic, mean_of, median_of, ranges_of
from predictor.serving.simulator import Served, serve, sizes_of
from predictor.serving.step_tables import Sizes


def forecast_cases(
    cases: Sequence[MeasuredService], artifacts: str | None = None, intervals: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Served | None, dict[str, tuple[float, float]], str]]:  # fmt: skip
    """(place, what came of the case, 80 % intervals of its statistic in seconds, why there is none) of every case that
    is scored.

    Cases of one model, engine and GPU share the table of their steps.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, case in enumerate(cases):
        if case.left_out:
            continue
        if case.note:
            yield place, None, {}, case.note
            continue
        alike = (*case.words.items(), *case.prompts.items(), case.prompt_servers, case.options.captured)
        groups.setdefault((*alike, case.options.drafts), []).append(place)
    done = 0
    for places in groups.values():
        group = [cases[i] for i in places]
        answers = _apart(group, artifacts, intervals) if group[0].prompts else _group(group, artifacts, intervals)
        for place, answer in zip(places, answers, strict=True):
            yield place, *answer
            done += 1
            if progress is not None:
                progress(done)


ServedForecast = tuple[Served | None, dict[str, tuple[float, float]], str]


def _run(words: Mapping[str, Any], cases: Sequence[MeasuredService], artifacts: str | None) -> Run:
    """The run of the words' server, long enough for all cases."""
    longest = max(int(case.traffic.input_tokens.max()) for case in cases)
    output = max(int(case.traffic.output_tokens.max()) for case in cases)
    return Request(
        **words, mode="generate", batch=words["dp"], seq_len=longest, output_len=output, artifacts=artifacts,
    ).run()  # fmt: skip


def _group(cases: Sequence[MeasuredService], artifacts: str | None, intervals: bool) -> Iterator[ServedForecast]:
    try:
        run = _run(cases[0].words, cases, artifacts)
        options = [_admitting(run, case) for case in cases]
        deployments = [
            deploy(run, each, int((case.traffic.input_tokens + case.traffic.output_tokens).max()))
            for each, case in zip(options, cases, strict=True)
        ]
        sizes = [sizes_of(deployment, case.traffic) for deployment, case in zip(deployments, cases, strict=True)]
        costs = StepCosts(run, Sizes.together(sizes), deployments[0].captured)
    except TilecastError as error:
        yield from ((None, {}, str(error)) for _ in cases)
        return
    for case, each in zip(cases, options, strict=True):

        def at(factor: float, case: MeasuredService = case, each: Options = each) -> Served:
            return serve(run, case.traffic, each, costs.scaled(factor))

        yield _answer(case, at, intervals)


def _apart(cases: Sequence[MeasuredService], artifacts: str | None, intervals: bool) -> Iterator[ServedForecast]:
    """Cases whose prompts are read apart."""
    for case in cases:
        try:
            run = _run(case.words, [case], artifacts)
            apart = Apart(_run(case.prompts, [case], artifacts), case.prompt_servers)
            reads, decodes = costs_apart(run, apart, case.traffic, case.options)
        except TilecastError as error:
            yield None, {}, str(error)
            continue

        def at(
            factor: float, case: MeasuredService = case, run: Run = run, apart: Apart = apart,
            costs: tuple[StepCosts, StepCosts] = (reads, decodes),
        ) -> Served:  # fmt: skip
            scaled = costs[0].scaled(factor), costs[1].scaled(factor)
            return serve_apart(run, apart, case.traffic, case.options, scaled)

        yield _answer(case, at, intervals)


def _answer(case: MeasuredService, at: Callable[[float], Served], intervals: bool) -> ServedForecast:
    """What comes of a case that is served with every step so many times as long."""
    try:
        served = at(1.0)
        return served, ranges_of(served, at, STATISTICS[case.statistic]) if intervals else {}, ""
    except TilecastError as error:
        return None, {}, str(error)


def _admitting(run: Run, case: MeasuredService) -> Options:
    """The case's options; where its engine reads prompts whole and its default step is too short for one beside
    all that may decode, the shortest step with which the run can have been made."""
    release = run.work.engine.vintage()
    longest = int(case.traffic.input_tokens.max())
    if case.options.max_num_batched_tokens is not None or release is None or release.scheduler is None:
        return case.options
    rules = release.scheduler(Setting(run.gpu, run.work.parallelism.tp))
    most = min(rules.tokens, rules.prefill_tokens or NO_LIMIT)
    beside = case.traffic.concurrency or min(rules.sequences, len(case.traffic))
    if rules.chunks or longest + beside <= most:
        return case.options
    return replace(case.options, max_num_batched_tokens=longest + beside)


#: Figures of a service: what JSON and tables call them, and the columns behind measured_ and predicted_.
FIGURES = {
    "tpot": "tpot_ms", "ttft": "ttft_ms", "p99_tpot": "p99_tpot_ms", "p99_ttft": "p99_ttft_ms",
    "output_tokens_per_s": "output_tokens_per_s", "output_tokens_per_s_per_gpu": TOKENS_A_GPU,
}  # fmt: skip
STATISTICS: Mapping[str, Statistic] = {"mean": mean_of, "median": median_of}


def errors(rows: Frame) -> dict[str, dict[str, Any]]:
    """Errors of every figure that rows have: `predictor.fit.scores.summarise`, and of intervals where there are
    any the share that holds the measurement (``interval_coverage_pct``) and their median width over the forecast
    (``interval_width_pct``). Rows that are left out count nowhere."""
    summary = {}
    if "left_out" in rows:
        rows = rows[rows["left_out"] == ""]
    for name, column in FIGURES.items():
        if f"measured_{column}" not in rows or rows[f"measured_{column}"].isna().all():
            continue
        measured, predicted = (rows[f"{which}_{column}"].to_numpy(dtype=float) for which in ("measured", "predicted"))
        known = np.isfinite(measured)
        summary[name] = summarise(measured[known], predicted[known])
        if f"low_{column}" in rows:
            low, high = (rows[f"{which}_{column}"].to_numpy(dtype=float) for which in ("low", "high"))
            inside = np.isfinite(low) & np.isfinite(high) & known
            if inside.any():
                held = (low[inside] <= measured[inside]) & (measured[inside] <= high[inside])
                summary[name]["interval_coverage_pct"] = float(held.mean() * 100.0)
                widths = (high[inside] - low[inside]) / predicted[inside]
                summary[name]["interval_width_pct"] = float(np.median(widths) * 100.0)
    return summary


#: Fewest rows of one model and traffic that are ranked. Source: the question that the ranking answers, which of many
#: ways to serve is best; chosen by hand, not from data.
RANKED = 8


def ranking(rows: Frame) -> dict[str, Any]:
    """Over groups of one model, isl and osl with `RANKED` rows or more, whatever the engine, degrees and concurrency:
    the median of Spearman's rank correlation of tokens/s a GPU, and of TPOT."""
    pd = require("pandas")
    if rows.empty or not {"isl", "osl", "model", "concurrency", "output_tps_per_gpu"} <= set(rows):
        return {}
    rows = rows[rows["concurrency"].notna() & rows["measured_tpot_ms"].notna()]
    correlations: dict[str, list[float]] = {"tokens_per_s_per_gpu": [], "tpot": []}
    for _, part in rows[rows["predicted_tpot_ms"].notna()].groupby(["model", "isl", "osl"]):
        if len(part) < RANKED:
            continue
        rate = part["concurrency"] * part["osl"] * 1e3 / part["num_gpus"]
        spans = part["predicted_ttft_ms"] + (part["osl"] - 1) * part["predicted_tpot_ms"]
        pairs = {
            "tokens_per_s_per_gpu": (part["output_tps_per_gpu"], rate / spans),
            "tpot": (part["measured_tpot_ms"], part["predicted_tpot_ms"]),
        }
        for name, (measured, predicted) in pairs.items():
            correlations[name].append(float(pd.Series(measured).corr(pd.Series(predicted), method="spearman")))
    if not correlations["tpot"]:
        return {}
    return {
        "groups": len(correlations["tpot"]),
        **{name: float(np.median(values)) for name, values in correlations.items()},
    }


def as_frame(
    cases: Sequence[MeasuredService], artifacts: str | None = None, intervals: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Frame:  # fmt: skip
    """A row a case: what it was, ``measured_``, ``predicted_``, ``low_`` and ``high_`` of ttft_ms and tpot_ms (and the
    99th percentile and tokens a second where requests are known; tokens a second a GPU of throughput rows), ``note``
    where there is no forecast, ``left_out`` where it is not scored."""
    pd = require("pandas")
    blank: ServedForecast = (None, {}, "")
    answers = [blank for _ in cases]
    for place, served, ranges, note in forecast_cases(cases, artifacts, intervals, progress):
        answers[place] = served, ranges, note
    return pd.DataFrame([_figures(case, answer) for case, answer in zip(cases, answers, strict=True)])


def _figures(case: MeasuredService, answer: ServedForecast) -> dict[str, Any]:
    """The row of a case."""
    served, ranges, note = answer
    row = dict(case.whole) | {"case": case.name, "note": note, "left_out": case.left_out}
    for name, attribute in TIMES.items():
        values = getattr(served, attribute) if served is not None else np.full(1, np.nan)
        values = values[~np.isnan(values)]
        middle = STATISTICS[case.statistic](values) * 1e3 if values.size else math.nan
        low, high = ranges.get(name.removesuffix("_ms"), (math.nan, math.nan))
        row |= {
            f"measured_{name}": case.measured[name], f"predicted_{name}": middle, f"low_{name}": low * 1e3,
            f"high_{name}": high * 1e3,
        }  # fmt: skip
        if case.requests:
            row |= {
                f"measured_p99_{name}": float(np.nanpercentile(case.requests[name], 99)),
                f"predicted_p99_{name}": float(np.percentile(values, 99)) * 1e3 if values.size else math.nan,
            }
    row[f"measured_{TOKENS_A_GPU}"] = case.measured.get(TOKENS_A_GPU, math.nan)
    if served is not None:
        tokens = float(case.traffic.output_tokens.sum()) / served.span_s
        row["predicted_output_tokens_per_s"] = tokens
        row["measured_output_tokens_per_s"] = case.measured.get("output_tokens_per_s", math.nan)
        row[f"predicted_{TOKENS_A_GPU}"] = tokens / case.gpus
    else:
        row[f"predicted_{TOKENS_A_GPU}"] = math.nan
    return row
