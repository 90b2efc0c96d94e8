"""Why an interval is as wide as it is, and what would narrow it, in one line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from predictor.kernels.interval import DISTANCES, HasIntervals
from predictor.request.run import Run
from predictor.simulate.error_model import HOST, KERNELS, RELEASE, UNSEEN, WORDS, Facts, error_model
from predictor.simulate.interval import MOST_BELOW, RunSpread

#: What remains of a width for which a line says what to do. Chosen by hand, not from data: a tenth is worth a flag.
WORTH = 0.9


def why(run: Run, spread: RunSpread, facts: Facts) -> str:
    """The line: the ends in percent of the forecast, the part that most of it is from, and what narrows it most."""
    part = error_model().largest(facts)
    words = f"kernels on {run.gpu.id}, which nobody measured" if part == KERNELS and _far(spread) else WORDS[part]
    return _line("The interval", facts, words, _narrower(run, spread, facts))


def why_of_services(facts: Mapping[str, Facts]) -> tuple[str, ...]:
    """The lines of a service's mean times to first token and per output token."""
    model = error_model()
    return tuple(
        _line(f"The interval of {name.upper()}", known, WORDS[model.largest(known)], _released(known))
        for name, known in facts.items()
        if name == known.kind
    )


def _line(subject: str, facts: Facts, words: str, narrower: Sequence[tuple[Facts, str]]) -> str:
    model = error_model()
    low, middle, high = model.ends_and_median(facts)
    ends = low, high
    line = f"{subject} is {_percent(ends)} (the median {math.expm1(middle) * 100.0:+.0f} %): most of it is {words}."
    if not narrower:
        return line
    best, advice = min(
        ((model.ends(known), advice) for known, advice in narrower), key=lambda choice: choice[0][1] - choice[0][0]
    )
    if best[1] - best[0] > WORTH * (ends[1] - ends[0]):
        return line
    return f"{line} {advice} would make it {_percent(best)}."


def _percent(ends: tuple[float, float]) -> str:
    """Logarithms as shares of the forecast: "-12 % to +15 %"."""
    low, high = (f"{math.expm1(end) * 100.0:+.0f} %" for end in ends)
    return f"{low} to {high}"


def _far(spread: RunSpread) -> bool:
    """Whether most of a run's kernels have no row of their board."""
    return bool(spread.by_distance[1:].sum() > spread.by_distance[0])


def _narrower(run: Run, spread: RunSpread, facts: Facts) -> list[tuple[Facts, str]]:
    """What a person can do, and what is known then."""
    choices = _released(facts)
    if run.work.launch_overhead_assumed and any(facts.sizes[HOST]):
        choices.append((facts.without(HOST), "--launch-overhead, as `tilecast microbench` measures it,"))
    if _far(spread):
        seen = _as_measured(run, spread)
        if seen is not None:
            known = {KERNELS: tuple(map(min, zip(seen, facts.sizes[KERNELS], strict=True)))}
            choices.append(
                (facts.without(UNSEEN, **known), f"Rows of {run.gpu.id} (`tilecast microbench`, `calibrate`)")
            )
    return choices


def _released(facts: Facts) -> list[tuple[Facts, str]]:
    """The release, where it is open."""
    return [(facts.without(RELEASE), "--software, with the release that runs,")] if RELEASE in facts.sizes else []


def _as_measured(run: Run, spread: RunSpread) -> tuple[float, float] | None:
    """Log half-widths of the kernels if the board had rows of every class; None where no class says."""
    selector = run.selector
    if not isinstance(selector, HasIntervals):
        return None
    seconds = np.asarray(spread.by_class)
    halves = np.zeros((len(spread.classes), 2))
    for code, (estimator, name) in enumerate(spread.classes):
        known = selector.intervals(estimator) if estimator else None
        entry = known.classes.get(name) if known is not None else None
        if entry is not None:
            low, high = entry.by_distance[DISTANCES[0]]
            halves[code] = -math.expm1(low), math.expm1(high)
    if not halves.any():
        return None
    below, above = np.sqrt(((seconds[: len(halves), None] * halves) ** 2).sum(axis=0)) / spread.total_s
    return -math.log1p(-min(float(below), MOST_BELOW)), math.log1p(float(above))
