"""The terminal that tables are printed on: as wide as it is, and wide enough where the output is a pipe or a file."""

from __future__ import annotations

from rich.console import Console


def wide_console(width: int = 150) -> Console:
    """A console; ``width`` columns where there is no terminal to ask."""
    console = Console(markup=False, emoji=False)  # brackets and colons of a name are the name's own
    return console if console.is_terminal else Console(width=width, markup=False, emoji=False)
