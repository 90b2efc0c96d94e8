"""What a run draws, in words, as JSON, and as a section of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from predictor.report.wording import significant
from predictor.simulate.answer import Prediction
from predictor.simulate.energy import Energy

if TYPE_CHECKING:
    from markupsafe import Markup


def watts(value: float) -> str:
    """A power: whole watts from 10 W on, and kilowatts from 10 kW.

    >>> watts(4.25), watts(485.3), watts(13_400)
    ('4.25 W', '485 W', '13.4 kW')
    """
    if value >= 1e4:
        return f"{value / 1e3:,.1f} kW"
    return f"{value:,.0f} W" if value >= 10.0 else f"{significant(value)} W"


def joules(value: float) -> str:
    """An energy, in the unit that leaves three digits or fewer before the point.

    >>> joules(0.0123), joules(12.5), joules(1.5e6)
    ('12.3 mJ', '12.5 J', '1.50 MJ')
    """
    for factor, unit in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ")):
        if value >= factor:
            return f"{significant(value / factor)} {unit}"
    return f"{significant(value * 1e6)} µJ"


def power_words(answer: Prediction) -> str:
    """Watts and joules of a run in a line."""
    energy = answer.energy
    assert energy is not None
    each = f" a GPU, {watts(energy.power_w)} in all" if energy.gpus > 1 else f" of {watts(energy.limit_w)}"
    per = answer.joule_per_unit
    parts = [f"{watts(energy.power_w_per_gpu)}{each}", joules(energy.energy_j)]
    if per is not None:
        parts.append(f"{joules(per)} a {answer.unit.removesuffix('s')}")
    if energy.held >= 5e-3:
        parts.append(f"at the power limit for {energy.held:.0%} of the kernels' time")
    return ", ".join(parts)


def parts_words(energy: Energy) -> str:
    """What takes the energy, in shares of it, and what is assumed of the board."""
    whole = sum(energy.parts_j.values()) or 1.0
    shares = [f"{name} {j / whole:.0%}" for name, j in energy.parts_j.items() if j / whole >= 5e-3]
    if energy.assumed:
        shares.append(f"assumed: {'; '.join(energy.assumed)}")
    return ", ".join(shares)


def to_dict(answer: Prediction) -> dict[str, Any]:
    """What `predict --power --json` adds; every name ends in its unit."""
    energy = answer.energy
    assert energy is not None
    return {
        "power_w": energy.power_w,
        "energy_j": energy.energy_j,
        "joule_per_token": answer.joule_per_token,
        "joule_per_unit": answer.joule_per_unit,
        "power": {
            "power_w_per_gpu": energy.power_w_per_gpu,
            "idle_w": energy.idle_w,
            "power_limit_w": energy.limit_w,
            "held_share": energy.held,
            "parts_j_per_gpu": dict(energy.parts_j),
            "classes": [
                {"op": row.op, "phase": row.phase, "energy_j_per_gpu": row.energy_j, "power_w": row.power_w}
                for row in energy.classes
            ],
            "assumed": list(energy.assumed),
        },
    }


def power_section(answer: Prediction) -> Markup:
    """The page's section: the answer in a line, what takes the energy, and the operator classes."""
    from predictor.report.pages import render, section, table

    energy = answer.energy
    assert energy is not None
    whole = sum(energy.parts_j.values()) or 1.0
    parts = [(name, joules(j), f"{j / whole:.1%}") for name, j in energy.parts_j.items() if j]
    classes = [(row.op, row.phase, joules(row.energy_j), watts(row.power_w)) for row in energy.classes]
    heads = (("operator", False), ("phase", False), ("energy of one GPU", True), ("power while it runs", True))
    said = render("lines.html", lead=power_words(answer), lines=[f"assumed: {each}" for each in energy.assumed])
    return section(
        "power", "Power", said,
        table("What takes the energy of one GPU", (("part", False), ("energy", True), ("share", True)), parts),
        table("Energy by operator", heads, classes),
    )  # fmt: skip
