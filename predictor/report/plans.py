"""Plans of a training step on the terminal, as JSON, as a picture and as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from predictor.errors import RequestError
from predictor.files import outputs
from predictor.files.terminal import Screen
from predictor.report.table import Column, print_table, say
from predictor.report.wording import seconds, significant
from predictor.search.training.enough import FewestGpusToTrain, least
from predictor.search.training.priced import Priced
from predictor.search.training.search import PricedPlans, frontier, neighbours
from predictor.simulate.odds import Outlook, chances, faster

#: Endings of a picture, and of a table of all plans.
PICTURES, TABLES = (".svg",), (".parquet", ".csv")
_GIB = 2.0**30  # bytes of a GiB, by definition (IEC 80000-13)


def row(plans: PricedPlans, entry: Priced) -> dict[str, Any]:
    """A plan and its answer, as JSON and tables have it."""
    dollars = plans.tokens_per_dollar(entry)
    return {
        "label": entry.plan.label,
        "num_gpus": entry.plan.num_gpus,
        **entry.plan.words,
        "schedule": entry.schedule,
        "latency_ms": entry.latency_s * 1e3,
        "mfu": entry.mfu,
        "memory_gib": entry.memory_bytes / _GIB,
        "fits": entry.fits,
        "bubble_share": entry.bubble_share,
        "exposed_ms": entry.exposed_s * 1e3,
        "tokens_per_s": plans.batch * plans.run.work.seq_len / entry.latency_s,
        "tokens_per_dollar": dollars,
        "cost_usd_per_million_tokens": plans.cost_per_million_tokens(entry),
        "power_w": None if entry.energy_j is None else entry.energy_j / entry.latency_s,
        "energy_j": entry.energy_j,
        "joule_per_token": plans.joule_per_token(entry),
    }


def to_json(plans: PricedPlans, most: int, more: dict[str, Any], enough: FewestGpusToTrain | None = None) -> str:
    """The JSON text: the best ``most`` plans that fit; ``more`` beside them. Where none fits, the plan that needs
    least and what would be ``enough``."""
    work, training = plans.run.work, plans.run.work.training
    assert training is not None
    document = {
        "schema_version": 1,
        "model": plans.run.config.name,
        "gpu": plans.run.gpu.id,
        "gpu_set": list(plans.run.gpu.changed),
        "system": plans.system.id,
        "num_gpus": list(plans.num_gpus),
        "global_batch": plans.batch,
        "seq_len": work.seq_len,
        "dtype": work.dtype,
        "execution": work.execution,
        "software": work.software or None,
        "optimizer": training.optimizer,
        "plans_legal": plans.legal,
        "plans_fitting": plans.fits,
        "plans": [
            row(plans, entry) | likely
            for entry, likely in zip(plans.best(most), _likely(plans.outlooks(most)), strict=True)
        ],
        "nearest": None if plans.fits else _nearest(plans),
        "enough": None
        if enough is None
        else {
            "num_gpus": None if enough.plan is None else enough.plan.plan.num_gpus,
            "looked_at": enough.looked_at,
            "plan": None if enough.plan is None else row(plans, enough.plan),
        },
        **more,
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _likely(outlooks: Sequence[Outlook | None]) -> list[dict[str, Any]]:
    """The interval of each plan's step, its median, and how likely the first plan's step is shorter."""
    rows: list[dict[str, Any]] = []
    for outlook, chance in zip(outlooks, _first_faster(outlooks), strict=True):
        ends = (
            (None, None) if outlook is None else ([outlook.low_s * 1e3, outlook.high_s * 1e3], outlook.median_s * 1e3)
        )
        rows.append({"interval_ms": ends[0], "median_ms": ends[1], "p_first_faster": chance})
    return rows


def _first_faster(outlooks: Sequence[Outlook | None]) -> list[float | None]:
    first = next(iter(outlooks), None)
    if first is None:
        return [None] * len(outlooks)
    return [None, *(None if outlook is None else faster(first, outlook) for outlook in outlooks[1:])]


def _nearest(plans: PricedPlans) -> dict[str, Any]:
    """The plan that needs least, and what it lacks."""
    near = least(plans)
    return row(plans, near) | {"missing_gib": (near.memory_bytes - near.usable_bytes) / _GIB}


def print_plans(plans: PricedPlans, most: int, console: Screen, enough: FewestGpusToTrain | None = None) -> None:
    """What was asked, and the best plans that fit."""
    work, training = plans.run.work, plans.run.work.training
    assert training is not None
    counts = " or ".join(f"{count:,}" for count in plans.num_gpus)
    head = (
        f"{plans.run.config.name} on {counts} x {plans.run.gpu.label} ({plans.system.id}): global batch"
        f" {plans.batch:,}, seq-len {work.seq_len}, dtype {work.dtype}, execution {work.execution}, optimizer"
        f" {training.optimizer}"
    )
    say(console, head, clauses=True)
    console.print()
    best = plans.best(most)
    several, priced = len(plans.num_gpus) > 1, plans.price is not None
    columns = [Column("#", right=True, key=True), Column("plan", key=True), *[Column("GPUs", right=True)] * several]
    columns += [Column(name, right=True) for name in ("step", "MFU", "memory", "bubble", "exposed")]
    drawn = any(entry.energy_j is not None for entry in best)
    columns += [Column("tokens/$", right=True)] * priced
    columns += [Column("kW", right=True), Column("J/token", right=True)] if drawn else []
    rows = []
    for place, entry in enumerate(best, start=1):
        rows.append(
            [
                str(place), entry.plan.label, *[f"{entry.plan.num_gpus:,}"] * several, seconds(entry.latency_s),
                f"{entry.mfu:.1%}", f"{entry.memory_bytes / _GIB:.1f} GiB", f"{entry.bubble_share:.1%}",
                seconds(entry.exposed_s), *[f"{plans.tokens_per_dollar(entry) or 0.0:,.0f}"] * priced,
                *(_drawn(plans, entry) if drawn else ()),
            ]
        )  # fmt: skip
    if best:
        print_table(console, columns, rows)
        chance_of = enumerate(_first_faster(plans.outlooks(most)), start=1)
        told = [(str(place), chance) for place, chance in chance_of if chance is not None]
        if told:
            say(console, f"How likely the step of plan 1 is shorter: than that of plan {chances(told)}.")
        console.print()
    usable = (best or plans.priced)[0].usable_bytes / _GIB
    say(console, f"{plans.legal:,} plans are legal, {plans.fits:,} fit in {usable:.1f} GiB a GPU")
    if not best:
        near = least(plans)
        missing = (near.memory_bytes - near.usable_bytes) / _GIB
        words = f"none fits: {near.plan.label} needs the least memory, {missing:.1f} GiB more than a GPU may use"
        say(console, words if enough is None else f"{words}; {enough}")


def _drawn(plans: PricedPlans, entry: Priced) -> tuple[str, str]:
    """Kilowatts of all GPUs, and joules of a token."""
    each = plans.joule_per_token(entry)
    if entry.energy_j is None or each is None:
        return "-", "-"
    return f"{entry.energy_j / entry.latency_s / 1e3:,.1f}", significant(each)


# --------------------------------------------------------------------------------------------------------- explained


def explain(plans: PricedPlans, entry: Priced, most: int = 8) -> dict[str, Any]:
    """What bounds a plan and what its neighbours would change, as JSON has it."""
    near = neighbours(plans, entry.plan)
    gains = [(what, other) for what, other in near if other.fits][:most]
    tight = [(what, other) for what, other in near if not other.fits and other.latency_s < entry.latency_s][:most]
    return {
        "plan": row(plans, entry),
        "parts_ms": {name: value * 1e3 for name, value in entry.parts_s.items()},
        "bound_by": max(entry.parts_s, key=lambda name: entry.parts_s[name]) if entry.parts_s else None,
        "changes": [_change(entry, what, other) for what, other in gains],
        "faster_but_too_large": [_change(entry, what, other) for what, other in tight],
    }


def _change(entry: Priced, what: str, other: Priced) -> dict[str, Any]:
    return {
        "change": what,
        "label": other.plan.label,
        "latency_ms": other.latency_s * 1e3,
        "latency_change_pct": (other.latency_s / entry.latency_s - 1.0) * 100.0,
        "memory_gib": other.memory_bytes / _GIB,
        "missing_gib": max(0.0, other.memory_bytes - other.usable_bytes) / _GIB,
    }


def print_explained(plans: PricedPlans, entry: Priced, console: Screen) -> None:
    """The same for a terminal."""
    told = explain(plans, entry)
    console.print()
    say(console, f"{entry.plan.label}: {seconds(entry.latency_s)}, bound by {told['bound_by']}")
    rows = [[name, seconds(value), f"{value / entry.latency_s:.1%}"] for name, value in entry.parts_s.items() if value]
    print_table(console, [Column("part", key=True), Column("time", right=True), Column("share", right=True)], rows)
    for title, key in (("one setting changed", "changes"), ("faster, but too large", "faster_but_too_large")):
        if not told[key]:
            continue
        console.print()
        columns = [Column(title, key=True), Column("step", right=True), Column("", right=True)]
        columns.append(Column("memory", right=True))
        rows = [
            [
                each["change"], seconds(each["latency_ms"] / 1e3), f"{each['latency_change_pct']:+.1f} %",
                f"{each['memory_gib']:.1f} GiB" + _too_large(each["missing_gib"]),
            ]
            for each in told[key]
        ]  # fmt: skip
        print_table(console, columns, rows)


def _too_large(missing_gib: float) -> str:
    return f" ({missing_gib:.1f} GiB too large)" if missing_gib else ""


# --------------------------------------------------------------------------------------------------- picture and table


def check_out(path: Path) -> None:
    """RequestError for a file that neither a picture nor a table goes to."""
    ending = path.suffix.lower()
    if ending not in (*PICTURES, *TABLES):
        raise RequestError(f"--out {path}: expected a file that ends in {', '.join((*PICTURES, *TABLES))}")
    if path.exists() and not path.is_file():
        raise RequestError(f"--out {path}: exists and is not a plain file; expected a file to write")


def draw(plans: PricedPlans, path: Path) -> None:
    """Step time over memory: a mark a plan, those that do not fit in another colour, the frontier of both as a line and
    what a GPU may use as another. Plans far slower than the fastest are left out."""
    from predictor.report.drawing import PLOTS, Point, file_of, scatter

    edge, usable = frontier(plans.fitting), plans.priced[0].usable_bytes
    # How far the picture reaches: chosen by looking at pictures.
    slowest = min(6.0 * edge[0].latency_s, 4.0 * edge[-1].latency_s) if edge else math.inf
    shown = [p for p in plans.priced if (p.latency_s <= slowest and p.memory_bytes <= 1.5 * usable) or not edge]
    points = [
        Point(*_place(p), f"{p.plan.label}: {seconds(p.latency_s)}, {_place(p)[0]:.1f} GiB", 5 * (not p.fits))
        for p in shown
    ]
    points += [Point(*_place(entry), f"the fastest: {entry.plan.label}", ringed=True) for entry in edge[:1]]
    counts = " or ".join(f"{count:,}" for count in plans.num_gpus)
    title = f"Plans of {plans.run.config.name} on {counts} {plans.run.gpu.label}, global batch {plans.batch:,}"
    axes = "memory of the fullest GPU, GiB (line: what a GPU may use; red: does not fit)", "step, s"
    drawn = scatter(points, [_place(entry) for entry in edge], axes, title, PLOTS[0], usable / _GIB)
    outputs.write("--out", path, file_of(drawn, title=title))


def _place(entry: Priced) -> tuple[float, float]:
    return entry.memory_bytes / _GIB, entry.latency_s
