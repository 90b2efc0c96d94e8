"""What is asked of a collection, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from microbench import sweep
from microbench.case import Case


@dataclass(frozen=True, slots=True)
class CollectionRequest:
    """What is to be collected. `budget_s` None: until every case is done. `settings`: fields of `timing.Settings`.
    `begin`: when the budget began, of time.monotonic (None: when the collection is made).

    Of the sweeps' cases, `calibration_rows` keeps those that `calibration.choose` takes; `cases` go in their place.
    `part` (i, n): the i-th of n disjoint parts of them, by their ids. `engine`: "local", or "ray" with so many
    `workers` (0: as many as the cluster has boards) at `address`.
    """

    out: Path
    device: str = "cuda"
    ops: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    budget_s: float | None = None
    threads: int = 0
    retry_failures: bool = False
    max_cases: int | None = None
    case_timeout_s: float = 60.0  # guards against a worker that hangs; chosen by hand, not from data
    wait_s: float = 0.0
    lock_clocks_hz: float | None = None
    sweeps: Path = sweep.SWEEPS
    calibration_rows: int | None = None
    cases: tuple[Case, ...] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    begin: float | None = None
    part: tuple[int, int] | None = None
    engine: str = "local"
    address: str | None = None
    workers: int = 0

    def takes(self, case: Case) -> bool:
        """Whether ``case`` is of the part that is asked for: whichever plan it is of, one part takes it."""
        return self.part is None or int(case.id, 16) % self.part[1] == self.part[0] - 1


@dataclass(slots=True)
class Summary:
    """What a collection did. `without_rows`: operators of the plan that have no row yet, of this run or another;
    `not_tried`: cases passed over because captures of their kind failed one after the other; `warnings`: one line each.
    """

    rows: int = 0
    new_rows: int = 0
    new_failures: int = 0
    cases: int = 0
    left: int = 0
    not_tried: int = 0
    ceilings_left: int = 0
    without_rows: list[str] = field(default_factory=list)
    seconds: float = 0.0
    devices: list[str] = field(default_factory=list)
    stopped_by: str = "done"
    warnings: list[str] = field(default_factory=list)
