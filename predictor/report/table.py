"""Tables and lines for a terminal of any width: a column stands whole, or whole in a block below; no number is cut.

What does not fit is laid out in this order: columns that say the same in every row become one line; columns of words
wrap between words; the rest continues in a second block under the same first columns; and where even that is too
wide, every row is a list of its fields.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from predictor.files.records import dataclass
from predictor.files.terminal import Screen, columns_of, show

_GAP = 2
#: Where fewer columns are left beside a label, its text begins below it. Chosen by looking at narrow terminals.
_NARROW = 24


@dataclass(frozen=True, slots=True)
class Column:
    """A column: numbers stand ``right``, a ``key`` says what a row is of, the words of ``wrap`` may take some lines."""

    name: str
    right: bool = False
    key: bool = False
    wrap: bool = False


def print_table(
    console: Screen, columns: Sequence[Column], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()
) -> None:
    """Prints ``rows`` (a text a column) within the console's width; ``styles``: of rich, one a row."""
    styles = [*styles, *[""] * (len(rows) - len(styles))]
    everywhere: list[str] = []
    shown = list(range(len(columns)))
    widths = [max(columns_of(text) for text in (c.name, *(row[i] for row in rows))) for i, c in enumerate(columns)]
    if _total(widths) > console.width and len(rows) > 1:
        same = [i for i, c in enumerate(columns) if not c.key and len({row[i] for row in rows}) == 1]
        everywhere = [f"{columns[i].name} {rows[0][i]}" for i in same]
        shown = [i for i in shown if i not in same]
    keys = [i for i in shown if columns[i].key]
    least = {i: _longest_word(columns[i], [row[i] for row in rows]) if columns[i].wrap else widths[i] for i in shown}
    blocks = _blocks(shown, keys, least, console.width)
    for number, block in enumerate(blocks or []):
        if number:
            console.print()
        _print_block(console, columns, rows, styles, block, _spread(block, widths, least, columns, console.width))
    if blocks is None:
        _print_records(console, columns, rows, styles, shown, keys)
    if everywhere:
        say(console, f"every row: {', '.join(everywhere)}", clauses=True)


def say(console: Screen, text: str, label: str = "", style: str = "", clauses: bool = False) -> None:
    """Prints ``text`` after ``label``, its further lines below its first, broken between words; ``clauses``: a list
    with commas, broken after them where that is enough."""
    indent = columns_of(label)
    if indent > 2 and console.width - indent < _NARROW:
        show(console, label.rstrip(), style)
        label, indent = " " * 4, 4
    lines = (_clauses if clauses else _fold)(text, max(1, console.width - indent)) or [""]
    if indent > 2 and columns_of(lines[0]) > console.width - indent:  # a word that has no room beside the label
        show(console, label.rstrip(), style)
        label, indent = " " * 4, 4
    for number, line in enumerate(lines):
        show(console, (" " * indent if number else label) + line, style)


def _clauses(text: str, room: int) -> list[str]:
    """``text`` in lines of ``room`` columns, cut after commas where its clauses fit and between words where not."""
    lines = [""]
    for clause in text.split(", "):
        joined = f"{lines[-1]}, {clause}" if lines[-1] else clause
        if columns_of(joined) < room:  # with the comma after it
            lines[-1] = joined
            continue
        if lines[-1]:
            lines[-1] += ","
            lines.append("")
        parts = textwrap.wrap(clause, max(1, room - 1), break_long_words=False, break_on_hyphens=False) or [""]
        lines = [*lines[:-1], *parts]
    return lines


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _longest_word(column: Column, texts: Sequence[str]) -> int:
    """The least width of a column that wraps; numbers stay whole, only their heading wraps."""
    parts = [*column.name.split(), *(texts if column.right else [word for text in texts for word in text.split()])]
    return max(map(columns_of, parts), default=0)


def _blocks(shown: list[int], keys: list[int], least: dict[int, int], width: int) -> list[list[int]] | None:
    """The columns of each block, the keys in all of them; None where one column beside them is too wide."""
    blocks = [list(keys)]
    for i in shown:
        if i in keys:
            continue
        if _total([least[j] for j in (*blocks[-1], i)]) > width and len(blocks[-1]) > len(keys):
            blocks.append(list(keys))
        blocks[-1].append(i)
        if _total([least[j] for j in blocks[-1]]) > width:
            return None
    return blocks


def _spread(
    block: list[int], widths: list[int], least: dict[int, int], columns: Sequence[Column], width: int
) -> dict[int, int]:
    """Widths of a block's columns: what is left over goes to those that wrap, in equal parts at most."""
    widest = {i: least[i] for i in block}
    left = width - _total(list(widest.values()))
    wrapping = [i for i in block if columns[i].wrap]
    for number, i in enumerate(wrapping):
        more = min(widths[i] - widest[i], left // (len(wrapping) - number))
        widest[i] += more
        left -= more
    return widest


def _print_block(
    console: Screen, columns: Sequence[Column], rows: Sequence[Sequence[str]], styles: Sequence[str],
    block: list[int], widths: dict[int, int],
) -> None:  # fmt: skip
    for row, style in zip([[column.name for column in columns], *rows], ["bold", *styles], strict=True):
        cells = {i: _fold(row[i], widths[i]) for i in block}
        for number in range(max(len(lines) for lines in cells.values())):
            line = (" " * _GAP).join(
                _pad(cells[i][number] if number < len(cells[i]) else "", widths[i], columns[i].right) for i in block
            )
            show(console, line.rstrip(), style)


def _fold(text: str, width: int) -> list[str]:
    if columns_of(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - columns_of(text))
    return space + text if right else text + space


def _print_records(
    console: Screen, columns: Sequence[Column], rows: Sequence[Sequence[str]], styles: Sequence[str],
    shown: list[int], keys: list[int],
) -> None:  # fmt: skip
    names = [i for i in shown if i not in keys]
    label = 2 + max(columns_of(columns[i].name) for i in names) + _GAP
    for row, style in zip(rows, styles, strict=True):
        say(console, ", ".join(row[i] for i in keys if row[i]), style=f"bold {style}".strip())
        for i in names:
            say(console, row[i], "  " + _pad(columns[i].name, label - 2, right=False), style)
