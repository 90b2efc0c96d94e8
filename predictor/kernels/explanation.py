"""What an estimator says of one operator's time: named terms with their units, and what they rest on.

An estimator that can has ``explain(batch, gpu)``, of a batch of one operator. How terms look is the reports' business.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import fields
from typing import Any, Protocol

from predictor.files.records import dataclass
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.base import Batch

#: Units of a term beside "s", "bytes", "FLOP", "bytes/s" and "cycles": a count, a word, a part of a whole.
COUNT, WORD, SHARE = "", "word", "share"


@dataclass(frozen=True, slots=True)
class Term:
    """One figure of an explanation, in base units; ``note`` says what it is made of, where its name does not."""

    group: str
    name: str
    value: float | str
    unit: str = COUNT
    note: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Terms in their order, by group; ``bound`` what takes most of the time; ``rests_on`` whose rows, in words."""

    terms: tuple[Term, ...]
    bound: str = ""
    rests_on: str = ""


class Explains(Protocol):
    """An estimator that explains."""

    def explain(self, batch: Batch, gpu: GPUSpec) -> Explanation:
        """What the time of the only operator of ``batch`` is made of."""
        ...


def terms(group: str, rows: Iterable[tuple[str, float | str, str, str]]) -> list[Term]:
    """Terms of one group: (name, value, unit, note) each."""
    return [Term(group, name, value, unit, note) for name, value, unit, note in rows]


def rests_on(gpu: str, calibrated: Container[str], measured: Iterable[str], what: str, by: str) -> str:
    """Whose rows an estimator of measured boards rests on for ``gpu``, in words; ``what`` goes by ``by`` elsewhere."""
    boards = sorted(measured)
    if gpu in calibrated:
        return f"calibrated to {gpu}"
    return f"rows of {', '.join(boards)}" + ("" if gpu in boards else f"; {what} of {gpu} from {by}")


def constant_terms(constants: Any, without: str = "nothing") -> list[Term]:
    """The constants of a core by name, but those whose name starts with ``without``."""
    kept = [f for f in fields(constants) if not f.name.startswith(without)]
    says = [(f.metadata.get("unit", COUNT), f.metadata.get("meaning", "")) for f in kept]
    return terms("constants", [(f.name, getattr(constants, f.name), *s) for f, s in zip(kept, says, strict=True)])
