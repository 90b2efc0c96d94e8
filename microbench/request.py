"""What is asked of a collection, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from microbench import sweep
from microbench.case import Case


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be collected. `budget_s` None: until every case is done. `settings`: fields of measure.Settings.
    `begin`: when the budget began, of time.monotonic (None: when the collection is made).

    Of the sweeps' cases, `calibration_rows` keeps those that `calibration.choose` takes; `cases` go in their place.
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


@dataclass(slots=True)
class Summary:
    """What a collection did. `without_rows`: operators of the plan that have no row yet, of this run or another."""

    rows: int = 0
    new_rows: int = 0
    new_failures: int = 0
    cases: int = 0
    left: int = 0
    ceilings_left: int = 0
    without_rows: list[str] = field(default_factory=list)
    seconds: float = 0.0
    devices: list[str] = field(default_factory=list)
    stopped_by: str = "done"
