"""Plans of a training step on the terminal, as JSON, as a picture and as a table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rich.console import Console

from predictor.errors import RequestError
from predictor.files import outputs
from predictor.report.formats import seconds
from predictor.report.table import Column, print_table, say
from predictor.search.training.enough import FewestGpusToTrain, least
from predictor.search.training.priced import Priced
from predictor.search.training.search import PricedPlans, frontier, neighbours

#: Endings of a picture, and of a table of all plans.
PICTURES, TABLES = (".svg",), (".parquet", ".csv")
_GIB = 2.0**30  # bytes of a GiB, by definition (IEC 80000-13)


def row(found: PricedPlans, one: Priced) -> dict[str, Any]:
    """A plan and its answer, as JSON and tables have it."""
    dollars = found.tokens_per_dollar(one)
    return {
        "label": one.plan.label,
        "num_gpus": one.plan.num_gpus,
        **one.plan.words,
        "schedule": one.schedule,
        "latency_ms": one.latency_s * 1e3,
        "mfu": one.mfu,
        "memory_gib": one.memory_bytes / _GIB,
        "fits": one.fits,
        "bubble_share": one.bubble_share,
        "exposed_ms": one.exposed_s * 1e3,
        "tokens_per_s": found.batch * found.run.work.seq_len / one.latency_s,
        "tokens_per_dollar": dollars,
    }


def to_json(found: PricedPlans, most: int, more: dict[str, Any], enough: FewestGpusToTrain | None = None) -> str:
    """The JSON text: the best ``most`` plans that fit; ``more`` beside them. Where none fits, the plan that needs
    least and what would be ``enough``."""
    work = found.run.work
    document = {
        "schema_version": 1,
        "model": found.run.config.name,
        "gpu": found.run.gpu.id,
        "gpu_set": list(found.run.gpu.changed),
        "system": found.system.id,
        "num_gpus": list(found.num_gpus),
        "global_batch": found.batch,
        "seq_len": work.seq_len,
        "dtype": work.dtype,
        "execution": work.execution,
        "software": work.software or None,
        "optimizer": work.optimizer,
        "plans_legal": found.legal,
        "plans_fitting": len(found.fitting),
        "plans": [row(found, one) for one in found.fitting[:most]],
        "nearest": None if found.fitting else _nearest(found),
        "enough": None
        if enough is None
        else {
            "num_gpus": None if enough.plan is None else enough.plan.plan.num_gpus,
            "looked_at": enough.looked_at,
            "plan": None if enough.plan is None else row(found, enough.plan),
        },
        **more,
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _nearest(found: PricedPlans) -> dict[str, Any]:
    """The plan that needs least, and what it lacks."""
    near = least(found)
    return row(found, near) | {"missing_gib": (near.memory_bytes - near.usable_bytes) / _GIB}


def print_plans(found: PricedPlans, most: int, console: Console, enough: FewestGpusToTrain | None = None) -> None:
    """What was asked, and the best plans that fit."""
    work = found.run.work
    counts = " or ".join(f"{count:,}" for count in found.num_gpus)
    head = (
        f"{found.run.config.name} on {counts} x {found.run.gpu.label} ({found.system.id}): global batch"
        f" {found.batch:,}, seq-len {work.seq_len}, dtype {work.dtype}, execution {work.execution}, optimizer"
        f" {work.optimizer}"
    )
    say(console, head, clauses=True)
    console.print()
    best = found.fitting[:most]
    several, priced = len(found.num_gpus) > 1, found.price is not None
    columns = [Column("#", right=True, key=True), Column("plan", key=True), *[Column("GPUs", right=True)] * several]
    columns += [Column(name, right=True) for name in ("step", "MFU", "memory", "bubble", "exposed")]
    columns += [Column("tokens/$", right=True)] * priced
    rows = []
    for place, one in enumerate(best, start=1):
        rows.append(
            [
                str(place), one.plan.label, *[f"{one.plan.num_gpus:,}"] * several, seconds(one.latency_s),
                f"{one.mfu:.1%}", f"{one.memory_bytes / _GIB:.1f} GiB", f"{one.bubble_share:.1%}",
                seconds(one.exposed_s), *[f"{found.tokens_per_dollar(one) or 0.0:,.0f}"] * priced,
            ]
        )  # fmt: skip
    if best:
        print_table(console, columns, rows)
        console.print()
    say(console, f"{found.legal:,} plans are legal, {len(found.fitting):,} fit in {_memory(found)}")
    if not best:
        near = least(found)
        missing = (near.memory_bytes - near.usable_bytes) / _GIB
        words = f"none fits: {near.plan.label} needs the least memory, {missing:.1f} GiB more than a GPU may use"
        say(console, words if enough is None else f"{words}; {enough}")


def _memory(found: PricedPlans) -> str:
    usable = found.priced[0].usable_bytes / _GIB
    return f"{usable:.1f} GiB a GPU"


# --------------------------------------------------------------------------------------------------------- explained


def explain(found: PricedPlans, one: Priced, most: int = 8) -> dict[str, Any]:
    """What bounds a plan and what its neighbours would change, as JSON has it."""
    near = neighbours(found, one.plan)
    gains = [(what, other) for what, other in near if other.fits][:most]
    tight = [(what, other) for what, other in near if not other.fits and other.latency_s < one.latency_s][:most]
    return {
        "plan": row(found, one),
        "parts_ms": {name: value * 1e3 for name, value in one.parts_s.items()},
        "bound_by": max(one.parts_s, key=lambda name: one.parts_s[name]) if one.parts_s else None,
        "changes": [_change(one, what, other) for what, other in gains],
        "faster_but_too_large": [_change(one, what, other) for what, other in tight],
    }


def _change(one: Priced, what: str, other: Priced) -> dict[str, Any]:
    return {
        "change": what,
        "label": other.plan.label,
        "latency_ms": other.latency_s * 1e3,
        "latency_change_pct": (other.latency_s / one.latency_s - 1.0) * 100.0,
        "memory_gib": other.memory_bytes / _GIB,
        "missing_gib": max(0.0, other.memory_bytes - other.usable_bytes) / _GIB,
    }


def print_explained(found: PricedPlans, one: Priced, console: Console) -> None:
    """The same for a terminal."""
    told = explain(found, one)
    console.print()
    say(console, f"{one.plan.label}: {seconds(one.latency_s)}, bound by {told['bound_by']}")
    rows = [[name, seconds(value), f"{value / one.latency_s:.1%}"] for name, value in one.parts_s.items() if value]
    print_table(console, [Column("part", key=True), Column("time", right=True), Column("share", right=True)], rows)
    for title, key in (("one word changed", "changes"), ("faster, but too large", "faster_but_too_large")):
        if not told[key]:
            continue
        console.print()
        columns = [Column(title, key=True), Column("step", right=True), Column("", right=True)]
        columns.append(Column("memory", right=True))
        rows = [
            [
                each["change"], seconds(each["latency_ms"] / 1e3), f"{each['latency_change_pct']:+.1f} %",
                f"{each['memory_gib']:.1f} GiB" + f" ({each['missing_gib']:.1f} too many)" * bool(each["missing_gib"]),
            ]
            for each in told[key]
        ]  # fmt: skip
        print_table(console, columns, rows)


# --------------------------------------------------------------------------------------------------- picture and table


def check_out(path: Path) -> None:
    """RequestError for a file that neither a picture nor a table goes to."""
    ending = path.suffix.lower()
    if ending not in (*PICTURES, *TABLES):
        raise RequestError(f"--out {path}: expected a file that ends in {', '.join((*PICTURES, *TABLES))}")
    if path.exists() and not path.is_file():
        raise RequestError(f"--out {path}: exists and is not a plain file; expected a file to write")


def draw(found: PricedPlans, path: Path) -> None:
    """Step time over memory: a mark a plan, those that do not fit in another colour, the frontier of both as a line and
    what a GPU may use as another. Plans far slower than the fastest are left out."""
    from predictor.report.drawing import PLOTS, Point, file_of, scatter

    edge, usable = frontier(found.fitting), found.priced[0].usable_bytes
    # How far the picture reaches: chosen by looking at pictures.
    slowest = min(6.0 * edge[0].latency_s, 4.0 * edge[-1].latency_s) if edge else math.inf
    shown = [one for one in found.priced if (one.latency_s <= slowest and one.memory_bytes <= 1.5 * usable) or not edge]
    points = [
        Point(*_place(one), f"{one.plan.label}: {seconds(one.latency_s)}, {_place(one)[0]:.1f} GiB", 5 * (not one.fits))
        for one in shown
    ]
    points += [Point(*_place(one), f"the fastest: {one.plan.label}", ringed=True) for one in edge[:1]]
    counts = " or ".join(f"{count:,}" for count in found.num_gpus)
    title = f"Plans of {found.run.config.name} on {counts} {found.run.gpu.label}, global batch {found.batch:,}"
    axes = "memory of the fullest GPU, GiB (line: what a GPU may use; red: does not fit)", "step, s"
    drawn = scatter(points, [_place(one) for one in edge], axes, title, PLOTS[0], usable / _GIB)
    outputs.write("--out", path, file_of(drawn, title=title))


def _place(one: Priced) -> tuple[float, float]:
    return one.memory_bytes / _GIB, one.latency_s
