#!/usr/bin/env python3
"""How far whole runs may be off beyond their kernels and host: learns `predictor.simulate.interval.Composition`.

usage: scripts/composition.py --data $TILECAST_DATA [--artifacts DIR] [--out docs/accuracy-composition.md]

Every suite with at least 50 rows that can be forecast is left out in turn: the three numbers are learned from the
others, each suite counting alike, by the smallest mean interval score (Gneiting and Raftery, 2007, equation 43, of
log latencies at 80 %), and the suite that is left out is counted with them. Last come the numbers of all suites
together: those that `COMPOSITION` holds.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from predictor.errors import TilecastError  # noqa: E402
from predictor.estimators.interval import LEVEL  # noqa: E402
from predictor.files import atomic_write  # noqa: E402
from predictor.simulate.interval import COMPOSITION, Composition, RunSpread, run_spread  # noqa: E402
from predictor.training.evaluate import read_suite  # noqa: E402
from predictor.training.suite import case_forecast  # noqa: E402

SUITES = ("neusight_e2e", "pipeweave_e2e", "splitwise", "fastertransformer_gpt", "fastertransformer_bert")
LEAST_ROWS = 50
#: Where the search starts: half-widths of 5 % and a microsecond a kernel.
START = (0.05, 0.05, 1e-6)


@dataclass(frozen=True)
class Suite:
    """Forecasts of a suite's rows, and what was measured (n,), in seconds."""

    name: str
    spreads: list[RunSpread]
    measured: npt.NDArray[np.float64]

    def ends(self, composition: Composition) -> npt.NDArray[np.float64]:
        """Logarithms of the lower and upper ends, (n, 2)."""
        return np.log(np.maximum([spread.interval(composition) for spread in self.spreads], 1e-12))

    def score(self, composition: Composition) -> float:
        """Mean interval score: width, and what the measured lie outside by, 2 / (1 - level) times."""
        low, high = self.ends(composition).T
        y = np.log(self.measured)
        outside = np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0)
        return float(np.mean(high - low + 2.0 / (1.0 - LEVEL) * outside))

    def inside(self, composition: Composition) -> npt.NDArray[np.bool_]:
        """Which rows the interval holds, (n,)."""
        low, high = self.ends(composition).T
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


def learned(suites: list[Suite]) -> Composition:
    """The composition with the smallest score, suites counting alike."""

    def of(x: Any) -> Composition:
        low, high, kernel_s = np.exp(x)
        return Composition(-float(low), float(high), float(kernel_s))

    def cost(x: Any) -> float:
        return float(np.mean([suite.score(of(x)) for suite in suites]))

    found = minimize(cost, np.log(START), method="Nelder-Mead", options={"xatol": 1e-2, "fatol": 1e-5})
    return of(found.x)


def line(name: str, suite: list[Suite], chosen: list[Composition]) -> str:
    """A table's line: rows inside with their kernels' and host's ends alone, and with the composition; the width."""
    bare = Composition(0.0, 0.0, 0.0)
    before = np.concatenate([one.inside(bare) for one in suite])
    after = np.concatenate([one.inside(found) for one, found in zip(suite, chosen, strict=True)])
    wide = np.concatenate([np.diff(one.ends(c), axis=1)[:, 0] for one, c in zip(suite, chosen, strict=True)])
    width = math.expm1(float(np.median(wide)))
    numbers = "-"
    if len(suite) == 1:
        c = chosen[0]
        numbers = f"{math.expm1(c.low):+.1%}, {math.expm1(c.high):+.1%}, {c.kernel_s * 1e6:.1f} us"
    return f"| {name} | {len(after)} | {before.mean():.0%} | {after.mean():.0%} | {width:.0%} | {numbers} |"


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
        "| suite left out | rows | inside, kernels and host alone | inside | width | low, high, a kernel |",
        "| --- | --: | --: | --: | --: | --- |",
    ]
    chosen = [learned([other for other in suites if other is not suite]) for suite in suites]
    lines += [line(suite.name, [suite], [found]) for suite, found in zip(suites, chosen, strict=True)]
    lines.append(line("pooled", suites, chosen))
    whole = learned(suites)
    lines += [
        "",
        f"From all suites: `Composition({whole.low:.3f}, {whole.high:.3f}, {whole.kernel_s:.2e})`; in use:",
        f"`Composition({COMPOSITION.low:.3f}, {COMPOSITION.high:.3f}, {COMPOSITION.kernel_s:.2e})`.",
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if arguments.out:
        atomic_write(arguments.out, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
