"""The terminal that tables are printed on: as wide as it is, or, where the output is a pipe or file, as they are."""

from __future__ import annotations

import os
import shutil

from rich.console import Console

#: Columns where there is no terminal to ask and no COLUMNS: more than any line has. Chosen by hand, not from data.
_WIDE = 10_000
#: The fewest columns that a table is set in: a terminal that says fewer wraps its lines by itself. Chosen by hand, not
#: from data.
_NARROW = 20
#: Lines of a terminal, which nothing here follows: given so that nobody reads LINES. By definition of the VT100, 24.
_LINES = 24


def wide_console() -> Console:
    """A console of the width of the terminal or of the variable COLUMNS, else of any.

    COLUMNS counts where it is a whole number above 0: 0 stands for a width that nobody knows. Brackets and colons of a
    name are the name's own.
    """
    console = Console(width=_WIDE, height=_LINES, markup=False, emoji=False)
    said = os.environ.get("COLUMNS", "")
    if console.is_terminal or (said.isascii() and said.isdecimal() and said.strip("0")):
        console.width = min(max(shutil.get_terminal_size().columns, _NARROW), _WIDE)
    return console
