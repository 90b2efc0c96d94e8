"""Boards of the page: a name of the catalogue, one with parameters multiplied, or a pasted YAML file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from predictor.errors import RequestError, unknown_name
from predictor.files.records import dataclass
from predictor.hardware import written
from predictor.hardware.gpu import QUANTITIES, GPUSpec, all_names, gpus_of, load_gpu, parse_gpu
from predictor.hardware.what_if import PARAMETERS, vary, with_values

#: What stands for a pasted text in a command line, and for a board that sliders made.
PASTED = "board.yaml"
#: Boards side by side: as many as a table has room for. Chosen by looking at pages.
MOST = 6
#: Characters of a pasted file: ten times the longest of the catalogue. Chosen by hand, not from data.
LONGEST = 60_000


@dataclass(frozen=True, slots=True)
class Board:
    """One board. ``asked`` is how the state says it; ``text`` the YAML file that stands for it, "" for a name."""

    asked: str
    spec: GPUSpec
    text: str = ""

    @property
    def label(self) -> str:
        """Its id, and what was multiplied."""
        _, _, changes = self.asked.partition(" ") if "\n" not in self.asked else ("", "", "")
        return f"{self.spec.id} {changes}".strip()


@lru_cache(maxsize=256)
def board_of(asked: str) -> Board:
    """The board of "h100", of "h100 memory_bandwidth=1.5 sm_count=2" (factors), of "h100 power_limit=500W" (values, as
    --set takes them) or of the text of a YAML file (more lines).

    Raises RequestError, one line, for anything else; a path is not read.
    """
    if len(asked) > LONGEST:
        raise RequestError(f"GPU: {len(asked):,} characters; expected at most {LONGEST:,}")
    if "\n" in asked or ": " in asked or asked.endswith(":"):
        return Board(asked, parse_gpu(asked, Path(PASTED), files=False), asked)
    words = asked.split()
    changes = [word for word in words if "=" in word]
    name = " ".join(word for word in words if "=" not in word)
    if "/" in name or "\\" in name or name.lower().endswith((".yaml", ".yml")):
        raise RequestError(f"GPU {name!r}: the page reads no file; expected a name, or the text of the file pasted")
    if not name:
        raise unknown_name("GPU", asked, all_names(), "a name of `tilecast gpus`")
    spec = load_gpu(name)
    if changes and gpus_of(name) > 1:
        raise RequestError(f"GPU {asked!r}: {name} is {gpus_of(name)} x {spec.id}; expected {spec.id} beside values")
    for change in changes:
        parameter, _, factor = change.partition("=")
        valued = factor[:1].isdigit() and factor[-1:].isalpha()  # a value with its unit, else a factor
        spec = with_values(spec, change) if valued else vary(spec, parameter, _factor(change, factor))
    return Board(asked, spec, as_yaml(spec) if changes else "")


def _factor(change: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0.01 <= value <= 100.0:
        raise RequestError(f"GPU: {change!r}: expected a factor of 0.01 to 100, such as {next(iter(PARAMETERS))}=1.5")
    return value


def as_yaml(spec: GPUSpec) -> str:
    """A YAML file that reads as ``spec``, to the bit; what its compute capability says is left to that.

    >>> from predictor.hardware.gpu import load_gpu
    >>> same = parse_gpu(as_yaml(load_gpu("l4")), Path("l4.yaml"))
    >>> same.peaks == load_gpu("l4").peaks
    True
    """
    given = {field: (target, dimension) for field, (target, dimension, _) in QUANTITIES.items()}
    return written.as_yaml(spec, given, "multiplied by hand")
