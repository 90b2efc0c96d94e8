"""Plans of serving: a table, JSON, rows of a file, and a page with the frontier."""

from __future__ import annotations

import json
import math
from typing import Any

from predictor.files.terminal import Screen
from predictor.kernels.interval import LEVEL
from predictor.report.table import Column, print_table, say
from predictor.report.wording import LEVEL_WORDS, dtype_words, gib_of, per_second, share, significant
from predictor.request.run import Run
from predictor.search.serving.answer import (
    RankedPlan,
    ServingAnswer,
    ServingQuestion,
    best_of_each,
    chances,
    cost_per_million,
    first_better,
    margins,
)
from predictor.search.serving.enough import Missed, NothingMeets, shown
from predictor.search.serving.search import ServingPlan, Sla
from predictor.simulate.answer import SCHEMA_VERSION
from predictor.simulate.odds import percent

_KIND = {True: "together", False: "disaggregated"}


def print_answer(answer: ServingAnswer, console: Screen, price: float | None = None) -> None:
    """The best plan in words, then the table of those that come next."""
    asked, entry = answer.asked, answer.entries[0]
    for line in _headline(answer, price):
        say(console, line)
    both, apart = best_of_each(answer.found.best)
    other = apart if entry.plan.prefill is None else both
    if other is not None:
        kind = "disaggregated plan" if other.prefill is not None else "plan without disaggregation"
        say(console, f"{kind}: {other}: {_speeds(other)}", label="The best ")
    console.print()
    columns = [
        Column("plan", key=True, wrap=True), Column("GPUs", right=True), Column("tokens/s/GPU", right=True),
        Column("tokens/s/user", right=True), Column("TTFT", right=True), Column("TPOT", right=True),
        Column("KV cache", right=True), *([Column("$/M tokens", right=True)] if price is not None else []),
        *([Column("kW", right=True), Column("J/token", right=True)] if _drawn(answer) else []),
        Column("simulated TTFT", right=True), Column("simulated TPOT", right=True),
    ]  # fmt: skip
    rows = [_cells(each, price, asked.sla) for each in answer.entries]
    if all(each.simulated is None for each in answer.entries):
        columns, rows = columns[:-2], [row[:-2] for row in rows]
    print_table(console, columns, rows)
    best = len(answer.found.best)
    say(
        console,
        f"The model fits on {answer.held} of {answer.candidates} groups of GPUs. {answer.found.points:,} plans tried;"
        f" {best} layout{'s meet' if best > 1 else ' meets'} the SLA. TTFT and TPOT are means over requests; KV cache"
        " is at the end of all outputs. --out FILE.svg, .html or .parquet writes the frontier.",
    )
    told = [percent(chance) for chance in first_better(answer.entries) if chance is not None]
    if told:
        say(console, f"How likely the first plan makes more tokens/s/GPU than those below it: {', '.join(told)}.")
    if asked.rate:
        say(console, f"Every plan serves {per_second(asked.rate, 'requests')}.")
    for note in answer.notes:
        say(console, note)


def _headline(answer: ServingAnswer, price: float | None) -> list[str]:
    asked, entry = answer.asked, answer.entries[0]
    plan = entry.plan
    run = plan.times.run
    among = f"{plan.gpus}" if asked.min_gpus else f"{plan.gpus} of {asked.num_gpus}"
    lines = [
        f"{run.config.name} on {among} {run.gpu.label}, {dtype_words(run.work)}, {asked.isl} +"
        f" {asked.osl} tokens, TTFT {_at(asked.sla, 'ttft')}{shown(asked.sla.ttft_s)}, TPOT"
        f" {_at(asked.sla, 'tpot')}{shown(asked.sla.tpot_s)}:",
        f"{plan}",
        f"{_speeds(plan)}; {per_second(plan.rate, 'requests')}",
    ]
    if price is not None:
        lines.append(f"${cost_per_million(plan, price):.3g} for a million output tokens at ${price:g} an hour of a GPU")
    chance_of = chances(asked, entry)
    for name, left in margins(asked, entry).items():
        if left is not None:
            ends = ""
            if entry.interval is not None:
                ends = f" ({LEVEL_WORDS} interval {share_signed(left[1])} to {share_signed(left[2])})"
            likely = chance_of[name]
            if likely is not None:
                ends += f", kept with a probability of {percent(likely)}"
            lines.append(f"{name.upper()}: {share_signed(left[0])} below its limit{ends}")
    return lines


def share_signed(value: float) -> str:
    """A share that may be below 0, in percent."""
    return f"-{share(-value)}" if value < 0 else share(value)


def _speeds(plan: ServingPlan) -> str:
    return (
        f"{significant(plan.tokens_per_s_per_gpu)} tokens/s/GPU, {significant(plan.tokens_per_s_per_user)}"
        f" tokens/s/user, TTFT {shown(plan.ttft_s)}, TPOT {shown(plan.tpot_s)}"
    )


def _drawn(answer: ServingAnswer) -> bool:
    """Whether the plans say what they draw."""
    return any(entry.power is not None for entry in answer.entries)


def _cells(entry: RankedPlan, price: float | None, sla: Sla) -> list[str]:
    plan, simulated = entry.plan, entry.simulated
    cells = [
        str(plan), str(plan.gpus), significant(plan.tokens_per_s_per_gpu), significant(plan.tokens_per_s_per_user),
        shown(plan.ttft_s), shown(plan.tpot_s), gib_of(plan.kv_bytes, plan.times.memory.kv_cache_capacity),
    ]  # fmt: skip
    if price is not None:
        cells.append(f"{cost_per_million(plan, price):.3g}")
    if entry.power is not None:
        cells += [f"{entry.power.power_w / 1e3:,.2f}", significant(entry.power.joule_per_token)]
    if simulated is None:
        return [*cells, "-", "-"]
    missed = sla.missed(*simulated.held_s)
    held = zip(("ttft", "tpot"), simulated.held_s, strict=True)
    return [*cells, *(_at(sla, name) + shown(seconds) + " (missed)" * (name in missed) for name, seconds in held)]


def _at(sla: Sla, name: str) -> str:
    """The percentile of the requests that a limit is for, in front of its time; "" for the mean."""
    percent = getattr(sla, f"{name}_percentile")
    return f"p{percent:g} " if percent else ""


# ------------------------------------------------------------------------------------------------------ JSON and rows


def to_json(
    answer: ServingAnswer, price: float | None = None, command: str = "", price_source: str = ""
) -> str:  # fmt: skip
    """The answer as JSON (docs/reference/json-schema.md)."""
    document = {
        **_asked(answer.asked, answer.entries[0].plan.times.run, price),
        "points": answer.found.points, "groups": answer.held, "groups_looked_at": answer.candidates,
        "plans": [
            _row(entry, price) | _margins(answer, entry) | {"p_first_better": better}
            for entry, better in zip(answer.entries, first_better(answer.entries), strict=True)
        ],
        "frontier": [_row(RankedPlan(plan), price) for plan in answer.found.frontier],
        "refused": [{"group": group, "reason": why} for group, why in answer.refused.items()],
        "notes": list(answer.notes), "price_source": price_source or None,
        "command": command or None, "nearest": None, "enough": None,
    }  # fmt: skip
    return json.dumps(document, indent=2)


def nothing_json(asked: ServingQuestion, error: NothingMeets, price: float | None = None) -> str:
    """The answer where there is no plan, as JSON: the nearest plan with what it misses, and how many GPUs would do."""
    enough, plan = error.enough, error.nearest or (error.enough and error.enough.plan)
    document = {
        **_asked(asked, plan.times.run if plan else None, price),
        "plans": [], "frontier": [], "command": None, "reason": str(error),
        "nearest": None if error.nearest is None else {
            **_row(RankedPlan(error.nearest), price), "missed": {each.name: _missed(each) for each in error.missed},
        },
        "enough": None if enough is None else {
            "num_gpus": enough.gpus, "looked_at": enough.looked_at, "reason": enough.reason or None,
            "plan": None if enough.plan is None else _row(RankedPlan(enough.plan), price),
            **{f"least_{name}_ms": _ms(seconds) for name, seconds in enough.least.items()},
        },
    }  # fmt: skip
    return json.dumps(document, indent=2)


def _missed(missed: Missed) -> dict[str, float]:
    """A limit that a plan misses: times in milliseconds, rates in requests/s; ``over``: the share it is missed by."""
    unit, factor = ("per_s", 1.0) if missed.name == "rate" else ("ms", 1e3)
    return {f"limit_{unit}": missed.limit * factor, f"value_{unit}": missed.value * factor, "over": missed.by}


def _asked(asked: ServingQuestion, run: Run | None, price: float | None) -> dict[str, Any]:
    """What was asked, as it was understood; ``run`` of a plan, where there is one."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": run.config.name if run else str(asked.request.model),
        "gpu": run.gpu.id if run else asked.request.board().id,
        "gpu_set": list(run.gpu.changed) if run else list(asked.request.gpu_set or ()),
        "num_gpus": asked.num_gpus, "dtype": run.work.dtype if run else asked.request.dtype,
        "isl": asked.isl, "osl": asked.osl, "ttft_limit_ms": _ms(asked.sla.ttft_s),
        "tpot_limit_ms": _ms(asked.sla.tpot_s),
        "ttft_percentile": asked.sla.ttft_percentile or None, "tpot_percentile": asked.sla.tpot_percentile or None,
        "rate_per_s": asked.rate or None,
        "price_usd_per_gpu_hour": price, "interval_level": LEVEL,
    }  # fmt: skip


def rows_of(answer: ServingAnswer, price: float | None = None) -> list[dict[str, Any]]:
    """The frontier and the plans as rows of a file; ``set`` says of which of the two a row is."""
    rows = []
    for name, entries in (("plans", answer.entries), ("frontier", tuple(map(RankedPlan, answer.found.frontier)))):
        for entry in entries:
            row = _row(entry, price)
            nested = {key: row.pop(key) for key in ("prefill", "simulated", "ttft_interval_ms", "tpot_interval_ms")}
            for goal in ("ttft", "tpot"):
                ends = nested[f"{goal}_interval_ms"] or (None, None)
                row |= {f"{goal}_low_ms": ends[0], f"{goal}_high_ms": ends[1]}
            row |= {f"prefill_{key}": (nested["prefill"] or {}).get(key) for key in _OF_PREFILL}
            row |= {f"simulated_{key}": (nested["simulated"] or {}).get(key) for key in _OF_SIMULATION}
            rows.append({"set": name, **row})
    return rows


_OF_PREFILL = ("tp", "pp", "dp", "ep", "replicas", "load")
_OF_SIMULATION = ("ttft_ms", "tpot_ms", "output_tokens_per_s", "requests")


def _row(entry: RankedPlan, price: float | None) -> dict[str, Any]:
    plan, ends, simulated = entry.plan, entry.interval, entry.simulated
    prefill = None
    if plan.prefill is not None:
        prefill = {**plan.prefill.group.degrees, "replicas": plan.prefill_replicas, "load": plan.load}
    return {
        "execution": plan.group.execution, "kind": _KIND[plan.prefill is None], **plan.group.degrees,
        "replicas": plan.replicas, "batch": plan.concurrency, "prefill": prefill, "gpus": plan.gpus,
        "requests_per_s": plan.rate, "output_tokens_per_s": plan.tokens_per_s,
        "tokens_per_s_per_gpu": plan.tokens_per_s_per_gpu,
        "tokens_per_s_per_user": _finite(plan.tokens_per_s_per_user),
        "ttft_ms": _ms(plan.ttft_s), "tpot_ms": _ms(plan.tpot_s),
        "ttft_interval_ms": None if ends is None else [_ms(t) for t in ends.ttft_s],
        "tpot_interval_ms": None if ends is None else [_ms(t) for t in ends.tpot_s],
        "hand_over_ms": _ms(plan.hand_over_s) if plan.prefill is not None else None,
        "kv_cache_gib": plan.kv_bytes / 2**30, "kv_cache_capacity_gib": plan.times.memory.kv_cache_capacity / 2**30,
        "cost_usd_per_million_tokens": None if price is None else cost_per_million(plan, price),
        "power_w": None if entry.power is None else entry.power.power_w,
        "joule_per_token": None if entry.power is None else entry.power.joule_per_token,
        "simulated": None if simulated is None else {
            "ttft_ms": _ms(simulated.ttft_s), "tpot_ms": _ms(simulated.tpot_s),
            "output_tokens_per_s": simulated.tokens_per_s, "requests": simulated.requests,
            "ttft_held_ms": _ms(simulated.held_s[0]), "tpot_held_ms": _ms(simulated.held_s[1]),
        },
    }  # fmt: skip


def _margins(answer: ServingAnswer, entry: RankedPlan) -> dict[str, Any]:
    """What is left of each limit as a share of it, and at the ends of the interval; the limits that its simulation
    misses."""
    simulated, sla = entry.simulated, answer.asked.sla
    missed = None if simulated is None else sla.missed(*simulated.held_s)
    values: dict[str, Any] = {"simulated_missed": missed}
    for name, left in margins(answer.asked, entry).items():
        values[f"{name}_margin"] = None if left is None else left[0]
        values[f"{name}_margin_interval"] = None if left is None or entry.interval is None else list(left[1:])
    return values | {f"p_{name}": chance for name, chance in chances(answer.asked, entry).items()}


def _ms(seconds: float) -> float | None:
    return None if seconds == math.inf else seconds * 1e3


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ------------------------------------------------------------------------------------------------------------ the page


def to_html(answer: ServingAnswer, price: float | None = None) -> str:
    """A page with the best plans and the frontier."""
    from predictor.report.html_frontier import frontier_figure
    from predictor.report.pages import document, section, table

    run = answer.entries[0].plan.times.run
    title = f"Serving {run.config.name} on {answer.asked.num_gpus} {run.gpu.label}"
    heads = [
        ("plan", False), ("GPUs", True), ("tokens/s/GPU", True), ("tokens/s/user", True), ("TTFT", True),
        ("TPOT", True), ("KV cache", True), *([("$/M tokens", True)] if price is not None else []),
        *([("kW", True), ("J/token", True)] if _drawn(answer) else []),
        ("simulated TTFT", True), ("simulated TPOT", True),
    ]  # fmt: skip
    points = [head for head in heads[:-2] if head[0] not in ("kW", "J/token")]
    front = [_cells(RankedPlan(plan), price, answer.asked.sla)[:-2] for plan in answer.found.frontier]
    plans = [_cells(entry, price, answer.asked.sla) for entry in answer.entries]
    parts = [
        section("answer", "Plans", table("Plans within the SLA", heads, plans)),
        section("frontier", "Frontier", frontier_figure(answer)),
        section("points", "Points of the frontier", table("Points of the frontier", points, front)),
    ]
    return document(title, title, parts, [("run", line) for line in _headline(answer, price)])
