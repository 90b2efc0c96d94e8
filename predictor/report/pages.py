"""Pages from templates (Jinja2, which escapes what is put into them). Only what writes a page imports this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from predictor.files.outputs import PAGE_MARK
from predictor.report.drawing import clean, legend_of

TEMPLATES = Path(__file__).parent / "templates"
#: What a browser may load for the page: its own style and script, and nothing from anywhere.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
Heads = Sequence[tuple[str, bool]]


@cache
def environment(*folders: Path) -> Environment:
    """Templates of ``folders`` and of this module, each read once, with characters that HTML forbids replaced."""
    return Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]), autoescape=True, undefined=StrictUndefined, finalize=_finalize,
        trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip


def _finalize(value: Any) -> Any:
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def render(template: str, /, **values: Any) -> Markup:
    """A template of this folder with its values."""
    return Markup(environment().get_template(template).render(**values))


def _part(name: str, /, *values: Any, **named: Any) -> Markup:
    """A macro of parts.html."""
    return Markup(getattr(environment().get_template("parts.html").module, name)(*values, **named))


def table(caption: str, heads: Heads, rows: Iterable[Sequence[str]]) -> Markup:
    """A table that scrolls inside itself. ``heads``: name, and True where the column is numbers. The first cell of a
    row is its header."""
    return _part("table", caption, heads, list(rows))


def folded(summary: str, *inside: str) -> Markup:
    """What a reader opens; a printed page shows it where it is open."""
    return _part("folded", summary, *inside)


def section(key: str, title: str, *inside: str) -> Markup:
    """A part of the page with its heading."""
    return _part("section", key, title, *inside)


def figure(
    caption: str, charts: Iterable[str], names: Sequence[str] = (), keys: Sequence[tuple[str, str]] = ()
) -> Markup:
    """Charts with what they show in words. ``names``: what the colours stand for, in their order; ``keys``: colour (a
    class) or drawing of an entry, and its words."""
    legend = [*((f"k{i}", name) for i, name in legend_of(names)), *keys]
    drawn = list(charts)
    return _part("figure", caption, drawn, legend, any('class="mark"' in chart for chart in drawn))


def bars(rows: Iterable[tuple[str, str, Sequence[tuple[str, str]]]], kind: str = "") -> Markup:
    """Horizontal bars: name, value in words, and pieces (class, style)."""
    return _part("bars", list(rows), kind)


def document(
    title: str, description: str, parts: Iterable[str], lines: Sequence[tuple[str, str]] = (),
    contents: Sequence[tuple[str, str]] = (),
) -> str:  # fmt: skip
    """A whole page: ``lines`` (class, text) below its heading, links to ``contents`` (id, name), then ``parts``."""
    style, script = (Markup((TEMPLATES / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    return render(
        "page.html", title=title, description=description, parts=list(parts), lines=lines, contents=contents,
        style=style, script=script, policy=POLICY, mark=Markup(PAGE_MARK),
    )  # fmt: skip
