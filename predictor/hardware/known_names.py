"""Names of boards as tools and clouds give them, with what each stands for: `known_names.csv`, read by its own lines.

A row is a name, the board, its number of GPUs, a note and the source of it all. An alias has the source "alias" and
stands in the board's own file, too. A row without a board is a name of something that is none here, a row with less
than one GPU a share of one: both are refused with what the note says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from predictor.errors import UnknownNameError
from predictor.files.read import read_text
from predictor.files.records import dataclass

TABLE = Path(__file__).parent / "known_names.csv"
COLUMNS = ("name", "board", "gpus", "note", "source")
ALIAS = "alias"
#: A slice as nvidia-smi names it: "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
_SLICE = re.compile(r"\bmig\b.*?(\d+)g\.(\d+)gb", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class KnownName:
    """One row. ``board``: an id, "" where the name is of no board here; ``gpus``: below 1 for a share of one."""

    name: str
    board: str
    gpus: float
    note: str
    source: str


class KnownNames:
    """The table, read when a name that is no id is asked for.

    Names are compared in any case, with "_" or " " for "-".
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def rows(self) -> Mapping[str, KnownName]:
        """Name, as it is compared -> its row; of one that appears twice, the first."""
        rows: dict[str, KnownName] = {}
        text = read_text(self._path, "a CSV file of names")
        for line in text.splitlines()[1:]:  # no cell holds a comma: the module csv takes five times as long
            name, board, gpus, note, source = line.split(",")
            rows.setdefault(_key(name), KnownName(name, board, float(gpus), note, source))
        return rows

    def aliases(self) -> Mapping[str, str]:
        """Alias -> id."""
        return {key: row.board for key, row in self.rows.items() if row.source == ALIAS}

    def gpus(self, name: str) -> int:
        """GPUs that a name stands for; 1 for one that is not listed."""
        row = self.rows.get(_key(name))
        return 1 if row is None else max(1, int(row.gpus))

    def board(self, name: str) -> str | None:
        """The id of a name; None for one that is not listed. Raises UnknownNameError, one line, for a share of a GPU
        and for what is listed as no board."""
        if part := _SLICE.search(name):
            whole = name[: part.start()].strip(" -_")
            raise UnknownNameError(
                f"GPU {name!r} is a slice, {part[1]} of 7 parts with {part[2]} GB: expected a whole GPU"
                + (f", such as {whole!r}" if whole else "")
            )
        row = self.rows.get(_key(name))
        if row is None:
            return None
        if not row.board:
            raise UnknownNameError(f"GPU {name!r}: {row.note}")
        if row.gpus < 1.0:
            raise UnknownNameError(f"GPU {name!r} is {row.gpus:g} of a GPU: expected a whole one, such as {row.board}")
        return row.board


def _key(name: str) -> str:
    return "-".join(name.lower().replace("_", " ").split())


KNOWN_NAMES = KnownNames(TABLE)
