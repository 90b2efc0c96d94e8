"""Where the learned part of a forecast has steps along one parameter of a GPU.

Trees are constant between their thresholds and jump at them. Such a jump says where their training rows were, not what
the hardware does there; waves and whole tiles jump, too, but those stand in the formulas. So the forecast is set
against that of the formulas alone (`CoresAlone`): where the ratio of the two jumps, the learned part has a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from predictor.estimators.artifact import ArtifactSet, CoresAlone
from predictor.forecast import forecast
from predictor.hardware.what_if import vary
from predictor.run import Run

#: A step is at least so large, as a share of the forecast, ... These three were chosen by hand, not from data.
LEAST = 0.01
_WITHIN = 1.002  # ... over a change of the parameter by this factor: what changes more slowly is a slope
_A_DOUBLING = 4  # intervals a factor of two that are looked into; a step and its reverse within one are not seen


@dataclass(frozen=True, slots=True)
class LearnedStep:
    """The learned part multiplies the forecast by ``change`` where the parameter passes ``factor`` times its value."""

    factor: float
    change: float


def learned_steps(run: Run, parameter: str, least: float = 0.25, most: float = 4.0) -> tuple[LearnedStep, ...]:
    """The steps of 1 % or more of the learned part of ``run`` while ``parameter`` grows from ``least`` to ``most``
    times its value, in order. Raises RequestError as `predictor.hardware.what_if.vary`, and as the forecast.
    """
    if not isinstance(run.selector, ArtifactSet):
        return ()  # the roofline alone learned nothing
    cores = CoresAlone(run.selector)

    @cache
    def learned(log_factor: float) -> float:
        """Logarithm of forecast over the formulas' forecast."""
        varied = replace(run, gpu=vary(run.gpu, parameter, math.exp(log_factor)))
        taken = [forecast(one, intervals=False).latency_s for one in (varied, replace(varied, selector=cores))]
        return math.log(taken[0] / taken[1])

    count = max(1, math.ceil(_A_DOUBLING * math.log2(most / least)))
    edges = [math.log(least) + i / count * math.log(most / least) for i in range(count + 1)]
    found: list[LearnedStep] = []
    for low, high in pairwise(edges):
        found += _steps(learned, low, high)
    return tuple(found)


def _steps(learned: Callable[[float], float], low: float, high: float) -> list[LearnedStep]:
    """The steps between two logarithms of the factor, by halving what changes."""
    change = learned(high) - learned(low)
    if abs(change) < math.log1p(LEAST):
        return []
    middle = (low + high) / 2.0
    if high - low < math.log(_WITHIN):
        return [LearnedStep(math.exp(middle), math.exp(change))]
    return _steps(learned, low, middle) + _steps(learned, middle, high)
