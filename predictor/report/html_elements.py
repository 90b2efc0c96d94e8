"""Markup of a page, escaped by construction: a `str` is text, only what `tag` made is markup."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

#: Colours of `page.css` (--c0 ...) for kinds of things; what is beyond them shares the last one. So many are defined
#: there (source: page.css).
COLOURS = 8


class Html(str):
    """Markup. Any other `str` is escaped where it is put into a page."""

    __slots__ = ()


def text(value: str) -> Html:
    """``value`` as markup: unchanged where it is markup, escaped where it is text.

    Characters that XML and HTML forbid (control characters of a hostile file) are shown as U+FFFD.
    """
    if isinstance(value, Html):
        return value
    shown = "".join(c if c >= " " or c in "\n\t" else "�" for c in value)
    return Html(html.escape(shown, quote=True))


def join(items: Iterable[str], separator: str = "") -> Html:
    """Several pieces as one."""
    return Html(text(separator).join(text(item) for item in items))


_VOID = frozenset(("meta", "link", "br", "input", "circle", "rect", "line", "path", "polygon"))


def tag(name: str, /, *inside: str, **attributes: str | float | None) -> Html:
    """One element. ``class_`` is class, ``text_anchor`` text-anchor; an attribute that is None is left out."""
    written = []
    for key, value in attributes.items():
        if value is None:
            continue
        shown = value if isinstance(value, str) else _short(value)
        written.append(f' {key.rstrip("_").replace("_", "-")}="{text(str(shown))}"')
    opened = f"<{name}{''.join(written)}"
    if name in _VOID and not inside:
        return Html(f"{opened}/>")
    return Html(f"{opened}>{join(inside)}</{name}>")


def _short(value: float) -> str:
    """A number of an attribute: two decimals of a pixel are enough."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


Cell = str


def table(
    caption: str, heads: Sequence[tuple[str, bool]], rows: Iterable[Sequence[Cell]], ids: Sequence[str] = ()
) -> Html:
    """A table that scrolls inside itself. ``heads``: name, and True where the column is numbers. The first cell of a
    row is its header."""
    head = tag("tr", *(tag("th", name, scope="col", class_="n" if number else None) for name, number in heads))
    body = []
    for i, row in enumerate(rows):
        cells = [tag("th", row[0], scope="row")]
        cells += [
            tag("td", cell, class_="n" if number else None)
            for cell, (_, number) in zip(row[1:], heads[1:], strict=True)
        ]
        body.append(tag("tr", *cells, id=ids[i] if ids else None))
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body))
    return tag("div", whole, class_="scroll", role="region", aria_label=caption, tabindex="0")


def folded(summary: str, *inside: str) -> Html:
    """What a reader opens; a printed page shows it where it is open."""
    return tag("details", tag("summary", summary), *inside)


def section(key: str, title: str, *inside: str) -> Html:
    """A part of the page with its heading."""
    return tag("section", tag("h2", title, id=key), *inside, aria_labelledby=key)


def figure(caption: str, *inside: str) -> Html:
    """A chart with what it shows in words."""
    return tag("figure", *inside, tag("figcaption", caption))


def swatch(index: int, name: str) -> Html:
    """An entry of a legend."""
    box = tag("span", class_=f"swatch k{min(index, COLOURS - 1)}", aria_hidden="true")
    return tag("li", box, name)


def legend_of(names: Sequence[str]) -> list[tuple[int, str]]:
    """Colours and what they stand for; the last colour stands for all names that have none of their own."""
    if len(names) <= COLOURS:
        return list(enumerate(names))
    return [*enumerate(names[: COLOURS - 1]), (COLOURS - 1, "other: " + ", ".join(names[COLOURS - 1 :]))]


def mark(label: str, *shapes: str, tabindex: str = "0") -> Html:
    """A mark of a chart that takes the focus and says what it is."""
    return tag("g", tag("title", label), *shapes, class_="mark", role="img", aria_label=label, tabindex=tabindex)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``, about so many: steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    if span <= 0:
        return [low]
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1.0, 2.0, 5.0, 10.0) if power * f >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]
