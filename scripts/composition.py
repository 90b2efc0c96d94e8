#!/usr/bin/env python3
"""How far whole runs may be off beyond their kernels and host: learns `predictor.simulate.interval.LATE_S`.

usage: scripts/composition.py --data $TILECAST_DATA [--artifacts DIR] [--out docs/accuracy-composition.md]

Every suite with at least 50 rows that can be forecast is left out in turn: the number is learned from the others, each
suite counting alike, by the smallest mean interval score (Gneiting and Raftery, 2007, equation 43, of log latencies at
80 %), and the suite that is left out is counted with it. Last comes the number from all suites together: `LATE_S`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from predictor.errors import TilecastError  # noqa: E402
from predictor.estimators.interval import LEVEL  # noqa: E402
from predictor.files import atomic_write  # noqa: E402
from predictor.simulate.interval import LATE_S, RunSpread, run_spread  # noqa: E402
from predictor.training.evaluate import read_suite  # noqa: E402
from predictor.training.suite import case_forecast  # noqa: E402

SUITES = ("neusight_e2e", "pipeweave_e2e", "splitwise", "fastertransformer_gpt", "fastertransformer_bert")
LEAST_ROWS = 50
#: Seconds a kernel among which the search looks.
RANGE = (1e-7, 1e-3)


@dataclass(frozen=True)
class Suite:
    """Forecasts of a suite's rows, and what was measured (n,), in seconds."""

    name: str
    spreads: list[RunSpread]
    measured: npt.NDArray[np.float64]

    def ends(self, late_s: float) -> npt.NDArray[np.float64]:
        """Logarithms of the lower and upper ends, (n, 2)."""
        return np.log(np.maximum([spread.interval(late_s) for spread in self.spreads], 1e-12))

    def score(self, late_s: float) -> float:
        """Mean interval score: width, and what the measured lie outside by, 2 / (1 - level) times."""
        low, high = self.ends(late_s).T
        y = np.log(self.measured)
        outside = np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0)
        return float(np.mean(high - low + 2.0 / (1.0 - LEVEL) * outside))

    def inside(self, late_s: float) -> npt.NDArray[np.bool_]:
        """Which rows the interval holds, (n,)."""
        low, high = self.ends(late_s).T
        y = np.log(self.measured)
        return (low <= y) & (y <= high)


def read(path: Path, artifacts: Path | None) -> Suite:
    """The rows of a suite that can be forecast."""
    spreads, measured = [], []
    for row in read_suite(path).to_dict("records"):
        try:
            found = case_forecast(row, path.parent / "configs", artifacts)
        except TilecastError:
            continue
        spread = run_spread(found.latency_s, found.stages, found.run.work)
        if spread is not None:
            spreads.append(spread)
            measured.append(float(row["measured_ms"]) * 1e-3)
    return Suite(path.stem, spreads, np.array(measured))


def learned(suites: list[Suite]) -> float:
    """The seconds a kernel with the smallest score, suites counting alike."""

    def cost(log_s: float) -> float:
        return float(np.mean([suite.score(math.exp(log_s)) for suite in suites]))

    found = minimize_scalar(cost, bounds=np.log(RANGE), method="bounded", options={"xatol": 1e-3})
    return math.exp(found.x)


def line(name: str, suite: list[Suite], chosen: list[float]) -> str:
    """A table's line: rows inside with kernels' and host's ends alone, and with what a kernel may be late; width."""
    before = np.concatenate([one.inside(0.0) for one in suite])
    after = np.concatenate([one.inside(found) for one, found in zip(suite, chosen, strict=True)])
    wide = np.concatenate([np.diff(one.ends(c), axis=1)[:, 0] for one, c in zip(suite, chosen, strict=True)])
    width = math.expm1(float(np.median(wide)))
    number = f"{chosen[0] * 1e6:.1f} us" if len(suite) == 1 else "-"
    return f"| {name} | {len(after)} | {before.mean():.0%} | {after.mean():.0%} | {width:.0%} | {number} |"


def main() -> int:
    """Print, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--artifacts", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    suites = [read(arguments.data / "ground_truth" / f"{name}.csv", arguments.artifacts) for name in SUITES]
    suites = [suite for suite in suites if len(suite.measured) >= LEAST_ROWS]
    lines = [
        "# Intervals of whole runs",
        "",
        f"Written by `scripts/composition.py --data $TILECAST_DATA` on {time.strftime('%Y-%m-%d')}. Each suite was",
        "left out of what its intervals are learned from; width: upper over lower end, less one, the median.",
        "",
        "| suite left out | rows | inside, kernels, host alone | inside | width | a launched kernel, from the others |",
        "| --- | --: | --: | --: | --: | --- |",
    ]
    chosen = [learned([other for other in suites if other is not suite]) for suite in suites]
    lines += [line(suite.name, [suite], [found]) for suite, found in zip(suites, chosen, strict=True)]
    lines.append(line("pooled", suites, chosen))
    whole = learned(suites)
    lines += [
        "",
        f"From all suites: {whole * 1e6:.1f} us; in use (`LATE_S`): {LATE_S * 1e6:.1f} us.",
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if arguments.out:
        atomic_write(arguments.out, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
