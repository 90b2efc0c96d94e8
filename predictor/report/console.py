"""The terminal that tables are printed on: as wide as it is, or, where the output is a pipe or file, as they are."""

from __future__ import annotations

import os

from rich.console import Console

#: Columns where there is no terminal to ask and no COLUMNS: more than any line has. Chosen by hand, not from data.
_WIDE = 10_000


def wide_console() -> Console:
    """A console of the width of the terminal or of the variable COLUMNS, else of any.

    Brackets and colons of a name are the name's own.
    """
    console = Console(markup=False, emoji=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    return Console(width=_WIDE, markup=False, emoji=False)
