"""The terminal that a command prints on: as wide as it is, or, where the output is a pipe or file, as its lines are.

rich takes as long to load as numpy. So it draws on terminals alone; into a pipe or file, lines go as they are.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console

#: Columns where there is no terminal to ask and no COLUMNS: more than any line has. Chosen by hand, not from data.
_WIDE = 10_000
#: The fewest columns that a table is set in: a terminal that says fewer wraps its lines by itself. Chosen by hand, not
#: from data.
_NARROW = 20
#: Columns and lines of a terminal, where nobody says how many it has. By definition of the VT100.
_SIZE = 80, 24
#: Variables that make rich take a stream for a terminal, or for one of some width. Source: rich 14, console.py.
_SAYS_TERMINAL = ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE")
#: Control characters that rich leaves out of a text: bell, backspace, vertical tab, form feed, carriage return. Source:
#: rich 14, control.py.
_LEFT_OUT = dict.fromkeys((7, 8, 11, 12, 13))


class Screen(Protocol):
    """What a report prints on: a `Console` of rich, or `Plain`."""

    @property
    def width(self) -> int:
        """Columns of a line."""

    def print(self, *texts: Any) -> None:
        """Prints texts as a line."""


class Plain:
    """Standard output as a pipe or a file: lines of any length, without colours."""

    width = _WIDE

    def print(self, *texts: Any) -> None:
        """Prints texts as a line."""
        print(" ".join(map(str, texts)).translate(_LEFT_OUT).expandtabs())


def screen() -> Screen:
    """Standard output: a console of rich on a terminal, in a notebook, and where a variable says so; else `Plain`."""
    says = any(os.environ.get(name) for name in _SAYS_TERMINAL)
    if says or hasattr(builtins, "get_ipython") or (sys.stdout is not None and sys.stdout.isatty()):
        return wide_console()
    return Plain()


def wide_console(stderr: bool = False) -> Console:
    """A console of the width of the terminal or of the variable COLUMNS, else of any.

    COLUMNS counts where it is a whole number above 0: 0 stands for a width that nobody knows. Width and height are set
    here, because rich would read COLUMNS and LINES by itself and fail where they are no number ("²"). Brackets and
    colons of a name are the name's own.
    """
    import shutil

    from rich.console import Console

    console = Console(width=_WIDE, height=_SIZE[1], stderr=stderr, markup=False, emoji=False)
    columns = os.environ.get("COLUMNS", "")
    if console.is_terminal or (columns.isascii() and columns.isdecimal() and columns.strip("0")):
        size = _SIZE
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor, or of no terminal
            size = os.get_terminal_size(console.file.fileno())
        console.width = min(max(shutil.get_terminal_size(size).columns, _NARROW), _WIDE)
    return console


def columns_of(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii() and text.isprintable():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def show(screen: Screen, text: str, style: str = "") -> None:
    """Prints ``text`` as it is, in a style of rich where there are any."""
    if isinstance(screen, Plain):
        screen.print(text)
        return
    from rich.text import Text

    styled: Any = screen
    styled.print(Text(text, style=style), soft_wrap=True)


def headed(screen: Screen, head: str, rest: str) -> None:
    """Prints ``head`` in bold, and ``rest`` behind it."""
    if isinstance(screen, Plain):
        screen.print(head + rest)
        return
    from rich.text import Text

    screen.print(Text.assemble((head, "bold"), rest))
