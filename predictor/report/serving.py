"""What came of requests under load: a dict for JSON, lines for a terminal, a table of every request."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from predictor.files.terminal import Screen
from predictor.kernels.interval import LEVEL
from predictor.ops.roofline import FloatArray
from predictor.report.table import Column, print_table, say
from predictor.report.wording import LEVEL_WORDS, release_of
from predictor.serving.deployment import Deployment
from predictor.serving.goals import Goals, Range
from predictor.serving.simulator import Served
from predictor.simulate.breakdown import context_notes

#: Of the JSON object; a field that is removed or changes its meaning raises it.
SCHEMA_VERSION = 1
#: Of requests, by definition of the JSON keys.
PERCENTILES = (50, 90, 99)
#: Points of a curve over time in JSON and on the page: chosen by hand, not from data.
POINTS = 200


def to_dict(
    served: Served, goals: Goals, ranges: Mapping[str, Range] | None = None, why: Sequence[str] = ()
) -> dict[str, Any]:
    """The JSON object; ``ranges``: of the means of ttft, tpot and latency, seconds; ``why``: lines that say why they
    are so wide."""
    deployment, traffic = served.deployment, served.traffic
    work, rules, serving = deployment.run.work, deployment.rules, deployment.run.work.serving
    assert serving is not None
    span, gpus = served.span_s, _gpus(served.deployment) + (_gpus(served.prompts) if served.prompts else 0)
    good = goals.met(served)
    cached = int(sum(served.found_tokens))
    return {
        "schema_version": SCHEMA_VERSION,
        "model": deployment.run.config.name,
        "gpu": deployment.run.gpu.id,
        "gpu_set": list(deployment.run.gpu.changed),
        "num_gpus": gpus,
        "tp": work.parallelism.tp,
        "pp": work.parallelism.pp,
        "replicas": deployment.options.replicas,
        "execution": work.execution,
        "release": release_of(work),
        "dtype": work.dtype,
        "dtype_recipe": work.dtype_recipe or None,
        "kv_dtype": serving.kv_dtype,
        "max_num_seqs": rules.sequences,
        "max_num_batched_tokens": rules.tokens,
        "scheduler": rules.order,
        "scheduler_source": rules.source,
        "kv_cache_tokens": deployment.pages * deployment.page_tokens * deployment.ranks,
        "prefix_cache": deployment.prefixes,
        "requests": len(traffic),
        "input_tokens": int(traffic.input_tokens.sum()),
        "output_tokens": int(traffic.output_tokens.sum()),
        "cached_tokens": cached,
        "concurrency": traffic.concurrency or None,
        "duration_s": span,
        "ttft_ms": _times(served.ttft_s, (ranges or {}).get("ttft")),
        "tpot_ms": _times(served.tpot_s, (ranges or {}).get("tpot")),
        "latency_ms": _times(served.latency_s, (ranges or {}).get("latency")),
        "interval_level": LEVEL,
        "output_tokens_per_s": float(traffic.output_tokens.sum()) / span,
        "output_tokens_per_s_per_gpu": float(traffic.output_tokens.sum()) / span / gpus,
        "requests_per_s": len(traffic) / span,
        "goodput": float(good.sum()) / span if goals.any else None,
        "good_share": float(good.mean()) if goals.any else None,
        "sla": {"ttft_ms": _ms(goals.ttft_s), "tpot_ms": _ms(goals.tpot_s)},
        "notes": [*traffic.notes, *context_notes(deployment.run.config, work), *why],
        "preemptions": served.preempted,
        "prefill": None if served.prompts is None else _prompts(served, served.prompts),
        **_load(served),
    }  # fmt: skip


def _gpus(deployment: Deployment) -> int:
    return deployment.run.work.parallelism.num_gpus * deployment.options.replicas


def _prompts(served: Served, reads: Deployment) -> dict[str, Any]:
    """Servers that read prompts alone."""
    moments = [moment for each in served.prompt_moments for moment in each]
    busy = sum(moment.end_s - moment.start_s for moment in moments)
    return {
        "servers": reads.options.replicas,
        "tp": reads.run.work.parallelism.tp,
        "pp": reads.run.work.parallelism.pp,
        "num_gpus": _gpus(reads),
        "busy_share": min(1.0, busy / (served.span_s * len(served.prompt_moments))),
        "most_waiting": max((moment.waiting for moment in moments), default=0),
        "hand_over_ms": served.moved_s * 1e3,
    }


def _ms(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value * 1e3


def _times(values: FloatArray, known: Range | None) -> dict[str, Any]:
    """Mean, percentiles and the mean's interval in milliseconds; None where no request has such a time."""
    present = values[~np.isnan(values)]
    if not present.size:
        return {"mean": None, **{f"p{p}": None for p in PERCENTILES}, "interval": None}
    points = np.percentile(present, PERCENTILES) * 1e3
    return {
        "mean": float(present.mean()) * 1e3,
        **{f"p{p}": float(value) for p, value in zip(PERCENTILES, points, strict=True)},
        "interval": None if known is None else [known[0] * 1e3, known[1] * 1e3],
    }


def _load(served: Served) -> dict[str, Any]:
    """How full the servers are, on average over the time that they run; 0, and no mean step, where none of them runs
    (of requests of one token, whose prompts others read)."""
    moments = [moment for each in served.moments for moment in each]
    seconds = np.array([moment.end_s - moment.start_s for moment in moments])
    busy = float(seconds.sum())
    total = served.deployment.pages * served.deployment.ranks
    steps = np.array([moment.steps for moment in moments])

    def mean(values: list[int]) -> float:
        return float(np.array(values) @ seconds / busy) if busy else 0.0

    return {
        "busy_share": min(1.0, busy / (served.span_s * len(served.moments))),
        "steps": int(steps.sum()),
        "mean_step_ms": busy / float(steps.sum()) * 1e3 if moments else None,
        "mean_decoding": mean([moment.decoding for moment in moments]),
        "mean_waiting": mean([moment.waiting for moment in moments]),
        "most_waiting": max((moment.waiting for moment in moments), default=0),
        "mean_cache_share": mean([moment.pages for moment in moments]) / total,
        "most_cache_share": max((moment.pages for moment in moments), default=0) / total,
        "timeline": curves(served),
    }


def curves(served: Served) -> dict[str, list[float]]:
    """Of all servers over time: decoding and waiting requests, the share of the cache that is held, prompt tokens a
    second; each at the beginning of at most `POINTS` equal spans of ``time_s``."""
    end = max(moment.end_s for each in (*served.moments, *served.prompt_moments) for moment in each)
    edges = np.linspace(0.0, end, POINTS + 1)
    totals = {name: np.zeros(POINTS) for name in ("decoding", "waiting", "cache_share", "prompt_tokens_per_s")}
    pages = served.deployment.pages * served.deployment.ranks * len(served.moments)
    for place, each in enumerate((*served.moments, *served.prompt_moments)):
        if not each:  # no request came to this server
            continue
        starts = np.array([moment.start_s for moment in each])
        ends = np.array([moment.end_s for moment in each])
        columns = {
            "decoding": [moment.decoding for moment in each],
            "waiting": [moment.waiting for moment in each],
            "cache_share": [moment.pages / pages if place < len(served.moments) else 0.0 for moment in each],
            "prompt_tokens_per_s": [moment.chunk_tokens / (moment.end_s - moment.start_s) for moment in each],
        }
        for name, values in columns.items():
            totals[name] += _averaged(starts, ends, np.array(values, dtype=np.float64), edges)
    return {"time_s": edges[:-1].tolist(), **{name: values.tolist() for name, values in totals.items()}}


def _averaged(starts: FloatArray, ends: FloatArray, values: FloatArray, edges: FloatArray) -> FloatArray:
    """Averages over the spans between ``edges`` of what is ``values`` from ``starts`` to ``ends``, else 0."""
    times = np.stack((starts, ends), axis=1).ravel()
    areas = np.stack((np.zeros(len(values)), values * (ends - starts)), axis=1).ravel().cumsum()
    means: FloatArray = np.diff(np.interp(edges, times, areas)) / np.diff(edges)
    return means


def _degrees(report: Mapping[str, Any]) -> str:
    return f"tp {report['tp']}" + (f" pp {report['pp']}" if report["pp"] > 1 else "")


_WORDS = {"ttft_ms": "time to first token", "tpot_ms": "time per output token", "latency_ms": "latency"}


def print_served(report: Mapping[str, Any], console: Screen) -> None:
    """The answer in a few lines."""
    changed = f" ({', '.join(report['gpu_set'])})" if report["gpu_set"] else ""
    release = f" {report['release']}" if report["release"] else ""
    gpus = f"{report['num_gpus']} x {report['gpu']}{changed}"
    recipe = f" ({report['dtype_recipe']})" if report["dtype_recipe"] else ""
    say(
        console,
        f"{report['model']} on {gpus}, {report['execution']}{release}, {_degrees(report)}"
        + (f", {report['replicas']} replicas" if report["replicas"] > 1 else "")
        + f", {report['dtype']}{recipe}, at most {report['max_num_seqs']:,} sequences and"
        f" {report['max_num_batched_tokens']:,} tokens a step, {report['kv_cache_tokens']:,} tokens of KV cache",
    )
    if report["prefill"]:
        reads = report["prefill"]
        say(
            console,
            f"prompts: {reads['servers']} server{'s' * (reads['servers'] > 1)} ({_degrees(reads)}), busy"
            f" {reads['busy_share']:.0%} of the time, at most {reads['most_waiting']:,} waiting; handing over a KV"
            f" cache takes {reads['hand_over_ms']:,.3g} ms",
        )
    loop = f", {report['concurrency']} at a time" if report["concurrency"] else ""
    say(
        console,
        f"{report['requests']:,} requests{loop}: {report['input_tokens']:,} tokens in"
        + (f" ({report['cached_tokens']:,} of them in the prefix cache)" if report["cached_tokens"] else "")
        + f", {report['output_tokens']:,} out, in {report['duration_s']:.4g} s",
    )
    rows = []
    for name, words in _WORDS.items():
        times = report[name]
        if times["mean"] is None:
            continue
        low_high = times["interval"]
        rows.append([
            words, *(f"{times[key]:,.4g}" for key in ("mean", "p50", "p90", "p99")),
            "" if low_high is None else f"{low_high[0]:,.4g} to {low_high[1]:,.4g}",
        ])  # fmt: skip
    heads = [Column("ms", key=True), *(Column(name, right=True) for name in ("mean", "p50", "p90", "p99"))]
    print_table(console, [*heads, Column(f"{LEVEL_WORDS} interval of the mean", right=True)], rows)
    goodput = ""
    if report["goodput"] is not None:
        goodput = f", goodput {report['goodput']:,.4g} requests/s ({report['good_share']:.1%} in the SLA)"
    say(
        console,
        f"{report['output_tokens_per_s']:,.4g} tokens/s ({report['output_tokens_per_s_per_gpu']:,.4g} a GPU),"
        f" {report['requests_per_s']:,.4g} requests/s{goodput}",
    )  # fmt: skip
    say(
        console,
        f"busy {report['busy_share']:.0%} of the time in {report['steps']:,} steps; on average"
        f" {report['mean_decoding']:,.3g} requests decode and {report['mean_waiting']:,.3g} wait; KV cache"
        f" {report['mean_cache_share']:.0%} full on average, {report['most_cache_share']:.0%} at most;"
        f" {report['preemptions']:,} preemptions",
    )
    for note in report["notes"]:
        say(console, note)


def to_json(report: Mapping[str, Any]) -> str:
    """The answer as JSON text."""
    return json.dumps(report, indent=2, allow_nan=False)


def columns_of(served: Served) -> dict[str, list[Any]]:
    """Every request: a column a list, times in milliseconds but for the arrival."""
    traffic = served.traffic
    tpot = [None if math.isnan(value) else value * 1e3 for value in served.tpot_s.tolist()]
    return {
        "request": list(range(len(traffic))),
        "arrival_s": served.arrival_s.tolist(),
        "input_tokens": traffic.input_tokens.tolist(),
        "output_tokens": traffic.output_tokens.tolist(),
        "shared_prefix_tokens": traffic.shared.tolist(),
        "cached_tokens": list(served.found_tokens),
        "queue_ms": ((served.scheduled_s - served.arrival_s) * 1e3).tolist(),
        "ttft_ms": (served.ttft_s * 1e3).tolist(),
        "tpot_ms": tpot,
        "latency_ms": (served.latency_s * 1e3).tolist(),
        "preempted": list(served.preempted_times),
    }
