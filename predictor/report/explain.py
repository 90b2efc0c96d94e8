"""Why an operator takes as long as it does, for the terminal, JSON and the page: one place says how a term reads."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from predictor.kernels.explanation import Term
from predictor.report.wording import quantity, seconds, share, significant
from predictor.simulate.answer import Explained

if TYPE_CHECKING:
    from markupsafe import Markup

    from predictor.files.terminal import Screen


def value_text(term: Term) -> str:
    """A term's value with its unit."""
    if isinstance(term.value, str):
        return term.value
    if term.unit == "s":
        return seconds(term.value)
    if term.unit == "share":
        return share(term.value)
    if term.unit == "bytes":
        return quantity(term.value, "B")
    if term.unit == "bytes/s":
        return quantity(term.value, "B/s")
    if term.unit == "FLOP":
        return quantity(term.value, "FLOP")
    number = f"{term.value:,.0f}" if float(term.value).is_integer() else significant(term.value)
    return f"{number} {term.unit}".rstrip()


def headline(of: Explained) -> str:
    """The operator, its shape and time in a line."""
    calls = f"{of.count:,.0f} call{'s' * (of.count != 1)}"
    each = f"{seconds(of.latency_s)} a call, {calls}, {share(of.share)} of the GPU's time"
    return f"{of.name} ({of.op}, {of.shape}, {of.phase}): {each}"


def closing(of: Explained) -> list[tuple[str, str]]:
    """What bounds it, and whose measurements it rests on: label and text."""
    rows = [("bound by", of.bound), ("source", f"{of.source}: {of.estimator}" if of.estimator else of.source)]
    rows += [("rests on", of.rests_on)] if of.rests_on else []
    return rows + ([("other shapes", "; ".join(of.others))] if of.others else [])


def print_explained(of: Explained, console: Screen) -> None:
    """The terms in a table, and what they rest on."""
    from predictor.report.table import Column, print_table, say  # a program that asks for JSON loads no terminal

    say(console, headline(of), clauses=True)
    columns = [
        Column("part", key=True),
        Column("term", key=True),
        Column("value", right=True),
        Column("what", wrap=True),
    ]
    rows = [
        (name if i == 0 else "", term.name, value_text(term), term.note)
        for name, group in groupby(of.terms, key=lambda term: term.group)
        for i, term in enumerate(group)
    ]
    print_table(console, columns, rows)
    for label, text in closing(of):
        say(console, text, f"  {label:<13}", clauses=True)


def to_dict(of: Explained) -> dict[str, Any]:
    """The JSON object; a term's value stands in the base unit that it names."""
    return {
        "name": of.name,
        "op": of.op,
        "shape": of.shape,
        "phase": of.phase,
        "count": of.count,
        "latency_ms": of.latency_s * 1e3,
        "share": of.share,
        "bound": of.bound,
        "source": of.source,
        "estimator": of.estimator or None,
        "rests_on": of.rests_on or None,
        "other_shapes": list(of.others),
        "terms": [
            {"group": term.group, "name": term.name, "value": term.value, "unit": term.unit, "note": term.note}
            for term in of.terms
        ],
    }


def explain_section(of: Explained) -> Markup:
    """The part of the page."""
    from predictor.report.pages import render, section, table

    heads = (("term", False), ("value", True), ("what", False))
    tables = [
        table(name, heads, [(term.name, value_text(term), term.note) for term in group])
        for name, group in groupby(of.terms, key=lambda term: term.group)
    ]
    said = render("lines.html", lead=headline(of), lines=[f"{label}: {text}" for label, text in closing(of)])
    return section("explain", f"Why {of.name} takes that long", said, *tables)
