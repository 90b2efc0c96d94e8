"""The terminal that a command prints on: as wide as it is, or, where the output is a pipe or file, as its lines are."""

from __future__ import annotations

import contextlib
import os
import shutil

from rich.console import Console

#: Columns where there is no terminal to ask and no COLUMNS: more than any line has. Chosen by hand, not from data.
_WIDE = 10_000
#: The fewest columns that a table is set in: a terminal that says fewer wraps its lines by itself. Chosen by hand, not
#: from data.
_NARROW = 20
#: Columns and lines of a terminal, where nobody says how many it has. By definition of the VT100.
_SIZE = 80, 24


def wide_console(stderr: bool = False) -> Console:
    """A console of the width of the terminal or of the variable COLUMNS, else of any.

    COLUMNS counts where it is a whole number above 0: 0 stands for a width that nobody knows. Width and height are set
    here, because rich would read COLUMNS and LINES by itself and fail where they are no number ("²"). Brackets and
    colons of a name are the name's own.
    """
    console = Console(width=_WIDE, height=_SIZE[1], stderr=stderr, markup=False, emoji=False)
    columns = os.environ.get("COLUMNS", "")
    if console.is_terminal or (columns.isascii() and columns.isdecimal() and columns.strip("0")):
        size = _SIZE
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor, or of no terminal
            size = os.get_terminal_size(console.file.fileno())
        console.width = min(max(shutil.get_terminal_size(size).columns, _NARROW), _WIDE)
    return console
