#!/usr/bin/env python3
"""How far whole runs may be off beyond their kernels and host: learns `predictor.simulate.interval.LATE_S`, with
--training `STEP_SHARE` there.

usage: benchmarks/composition.py --data $TILECAST_DATA [--training] [--artifacts DIR] [--out PAGE.md]

Every suite with at least 50 rows that can be forecast (7 of training) is left out in turn: the number is learned from
the others, each suite counting alike, by the smallest mean interval score (Gneiting and Raftery, 2007, equation 43, of
log latencies at 80 %), and the suite that is left out is counted with it. Last comes the number from all suites
together.

Rows of BERT in `mlperf_training` are no part of it: they do not say how many tokens a sequence has.

--out puts the table into a page, between its lines `<!-- intervals -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from predictor.errors import TilecastError  # noqa: E402
from predictor.files.read import atomic_write  # noqa: E402
from predictor.fit.evaluate import read_suite  # noqa: E402
from predictor.fit.suite import case_forecast  # noqa: E402
from predictor.kernels.interval import LEVEL  # noqa: E402
from predictor.simulate.interval import LATE_S, STEP_SHARE, RunSpread, run_spread  # noqa: E402

#: Where a page has the table.
MARKED = re.compile(r"(?<=<!-- intervals -->\n).*?(?=<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Term:
    """A number that intervals are made with: ``word`` of `RunSpread.interval`, the suites that teach it with ``least``
    rows each, among which values it is looked for, its unit, and the one in use."""

    word: str
    suites: tuple[str, ...]
    least: int
    range: tuple[float, float]
    title: str
    scale: float
    unit: str
    used: float


LATE = Term(
    "late_s", ("neusight_e2e", "pipeweave_e2e", "splitwise", "fastertransformer_gpt", "fastertransformer_bert"), 50,
    (1e-7, 1e-3), "a launched kernel", 1e6, "us", LATE_S,
)  # fmt: skip
STEP = Term(
    "step_share", ("korthikanti_layer", "megatron", "vtrain", "mosaic", "mlperf_training"), 7, (1e-3, 1.0),
    "of a step", 1e2, "%", STEP_SHARE,
)  # fmt: skip


@dataclass(frozen=True)
class Suite:
    """Forecasts of a suite's rows, and what was measured (n,), in seconds."""

    name: str
    spreads: list[RunSpread]
    measured: npt.NDArray[np.float64]
    term: Term = field(default=LATE)

    def ends(self, value: float) -> npt.NDArray[np.float64]:
        """Logarithms of the lower and upper ends, (n, 2), with so much of the term."""
        words = {self.term.word: value}
        return np.log(np.maximum([spread.interval(**words) for spread in self.spreads], 1e-12))

    def score(self, value: float) -> float:
        """Mean interval score: width, and what the measured lie outside by, 2 / (1 - level) times."""
        low, high = self.ends(value).T
        y = np.log(self.measured)
        outside = np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0)
        return float(np.mean(high - low + 2.0 / (1.0 - LEVEL) * outside))

    def inside(self, value: float) -> npt.NDArray[np.bool_]:
        """Which rows the interval holds, (n,)."""
        low, high = self.ends(value).T
        y = np.log(self.measured)
        return (low <= y) & (y <= high)


def read(path: Path, artifacts: Path | None, term: Term) -> Suite:
    """The rows of a suite that can be forecast."""
    spreads, measured = [], []
    for row in read_suite(path).to_dict("records"):
        if term is STEP and "bert" in str(row["config"]):
            continue
        try:
            found = case_forecast(row, path.parent / "configs", artifacts)
        except TilecastError:
            continue
        spread = run_spread(found.latency_s, found.stages, found.run.work)
        if spread is not None:
            spreads.append(spread)
            measured.append(float(row["measured_ms"]) * 1e-3)
    return Suite(path.stem, spreads, np.array(measured), term)


def learned(suites: list[Suite]) -> float:
    """The number with the smallest score, suites counting alike."""

    def cost(log: float) -> float:
        return float(np.mean([suite.score(math.exp(log)) for suite in suites]))

    bounds = np.log(suites[0].term.range)
    found = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return math.exp(found.x)


def line(name: str, suite: list[Suite], chosen: list[float]) -> str:
    """A table's line: rows inside with kernels' and host's ends alone, and with the term; width."""
    before = np.concatenate([one.inside(0.0) for one in suite])
    after = np.concatenate([one.inside(found) for one, found in zip(suite, chosen, strict=True)])
    wide = np.concatenate([np.diff(one.ends(c), axis=1)[:, 0] for one, c in zip(suite, chosen, strict=True)])
    width = math.expm1(float(np.median(wide)))
    term = suite[0].term
    number = f"{chosen[0] * term.scale:.1f} {term.unit}" if len(suite) == 1 else "-"
    return f"| {name} | {len(after)} | {before.mean():.0%} | {after.mean():.0%} | {width:.0%} | {number} |"


def main() -> int:
    """Print, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--training", action="store_true", help="steps of training on many GPUs")
    parser.add_argument("--artifacts", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    page = arguments.out.read_text(encoding="utf-8") if arguments.out else ""
    if arguments.out and not MARKED.search(page):
        parser.error(f"{arguments.out} has no lines <!-- intervals --> and <!-- end -->, between which the table goes")
    term, folder = STEP if arguments.training else LATE, arguments.data / "ground_truth"
    word = " --training" if term is STEP else ""
    suites = [read(folder / f"{name}.csv", arguments.artifacts, term) for name in term.suites]
    suites = [suite for suite in suites if len(suite.measured) >= term.least]
    lines = [
        f"Written by `benchmarks/composition.py --data $TILECAST_DATA{word}` on {time.strftime('%Y-%m-%d')}.",
        "Each suite was left out of what its intervals are learned from; width: upper over lower end, less one, the",
        "median.",
        "",
        f"| suite left out | rows | inside, kernels, host alone | inside | width | {term.title}, from the others |",
        "| --- | --: | --: | --: | --: | --- |",
    ]
    chosen = [learned([other for other in suites if other is not suite]) for suite in suites]
    lines += [line(suite.name, [suite], [found]) for suite, found in zip(suites, chosen, strict=True)]
    lines.append(line("pooled", suites, chosen))
    whole = learned(suites)
    lines += [
        "",
        f"From all suites: {whole * term.scale:.1f} {term.unit}; in use: {term.used * term.scale:.1f} {term.unit}.",
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if arguments.out:
        atomic_write(arguments.out, MARKED.sub(lambda _: text, page).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
