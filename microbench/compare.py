"""Two data sets over the cases that both have: by how much do repeated measurements differ?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from microbench.dataset import read
from microbench.writer import Row


@dataclass(frozen=True, slots=True)
class Difference:
    """Relative differences of `n` cases in percent: median and 90th percentile of |B/A - 1|, median of B/A - 1."""

    name: str
    n: int
    median_pct: float
    p90_pct: float
    signed_pct: float


@dataclass(slots=True)
class Comparison:
    """`total` over all common cases (None where there are none), `groups` by operator, cases of one side alone."""

    total: Difference | None
    groups: list[Difference] = field(default_factory=list)
    only_a: int = 0
    only_b: int = 0
    worst: list[dict[str, Any]] = field(default_factory=list)


def compare(a: Path, b: Path) -> Comparison:
    """`b` against `a`, case by case. Raises RequestError where one of them holds no data set.

    Cases are those of one device id and one launcher: where both sides have the same software stacks these have to
    agree, too; where they have none in common, versions are held against each other.
    """
    left, right = _by_case(a), _by_case(b)
    if not {key[1] for key in left} & {key[1] for key in right}:
        left, right = ({(key[0], "", key[2]): row for key, row in side.items()} for side in (left, right))
    common = sorted(set(left) & set(right))
    ratios: dict[str, list[float]] = defaultdict(list)
    for key in common:
        ratios[left[key]["launcher"]].append(right[key]["latency_ms"] / left[key]["latency_ms"] - 1.0)
    everything = [ratio for group in ratios.values() for ratio in group]
    pairs = sorted(common, key=lambda key: -abs(right[key]["latency_ms"] / left[key]["latency_ms"] - 1.0))
    return Comparison(
        _difference("all", everything) if everything else None,
        [_difference(name, ratios[name]) for name in sorted(ratios)], len(set(left) - set(right)),
        len(set(right) - set(left)),
        [
            {
                "case_id": key[2], "launcher": left[key]["launcher"], "a_ms": left[key]["latency_ms"],
                "b_ms": right[key]["latency_ms"],
            }
            for key in pairs[:5]
        ],
    )  # fmt: skip


def _by_case(root: Path) -> dict[tuple[str, str, str], Row]:
    """(device, software stack, case id) -> row; a folder named `ceiling` counts as any other."""
    return {
        (part.device_folder.resolve().name, part.path.name, row["case_id"]): row
        for part in read(root)
        for row in part.all_rows
    }


def _difference(name: str, ratios: list[float]) -> Difference:
    values = np.asarray(ratios) * 100.0
    size = np.abs(values)
    return Difference(
        name, len(ratios), float(np.median(size)), float(np.percentile(size, 90)), float(np.median(values))
    )
