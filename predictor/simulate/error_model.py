"""How far a whole forecast may be off, by what is known of this very request.

The logarithm of measured / forecast is taken as a sum of parts that know nothing of each other. Each part has a size
that follows from the request (`Facts`), and a scale that was learned; scale times size is the part's standard
half-width. Half-widths join as the root of the sum of squares, below and above the forecast apart:

    kernels   what the classes of operators may be off (`predictor.simulate.interval`); in a service times what queues
              make of slower steps
    host      a launch overhead that nobody gave
    late      kernels that an engine's host launches one by one
    unseen    the share of GPU time on boards whose generation nobody measured
    experts   tokens of a service that fall on experts as nobody said
    release   a release of the engine that the request leaves open
    queue     requests that wait for each other, by how much faster the time to first token grows than the steps do
    compiled  code that a compiler wrote
    short     calls of a module so short that the host's own time counts
    and one for what runs: training, a pass, decode steps, modules, time per output token and to first token of services

The interval is the forecast times exp(factor x half-width), with a factor below and one above for each kind of run
(split conformal: quantiles of error / half-width over suites, alike in weight; Lei et al., 2018), and a third one for
the median, which need not be the forecast. Scales and factors are learned from errors of whole suites by
`benchmarks/accuracy_intervals.py`, which judges every suite by those of the others. No forecast moves by them.

Two runs err together where they share a board or an engine: `ErrorModel.apart` has the parts of their squares that they
do not share then. `predictor.simulate.odds` makes probabilities of it all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from predictor.errors import SpecError
from predictor.files.read import read_json

FILE = Path(__file__).with_name("error_model.json")
#: Version of `FILE`; no other is read.
SCHEMA_VERSION = 2

KERNELS, HOST, LATE, UNSEEN, EXPERTS, RELEASE, COMPILED, SHORT, QUEUE = (
    "kernels", "host", "late", "unseen", "experts", "release", "compiled", "short", "queue",
)  # fmt: skip
#: Kinds of runs, each of which has a part and a factor of its own.
TRAIN, PASS, DECODE, MODULES, TPOT, TTFT = KINDS = ("train", "pass", "decode", "modules", "tpot", "ttft")
PARTS = (KERNELS, HOST, LATE, UNSEEN, EXPERTS, RELEASE, COMPILED, SHORT, QUEUE, *KINDS)
#: What two runs may share, so that part of their errors is the same.
BOARD, ENGINE = "board", "engine"
#: Log half-width below which no forecast is: repeats of one run differ by so much. Chosen by hand, not from data.
LEAST = 0.01

#: What a part is called in "most of it is ...".
WORDS: Mapping[str, str] = {
    KERNELS: "what kernels may be off", HOST: "the host's launch overhead, which is assumed",
    LATE: "kernels that the host launches one by one", UNSEEN: "a generation of boards that nobody measured",
    EXPERTS: "how tokens fall on experts", RELEASE: "the engine's release, which is not given",
    COMPILED: "code that a compiler wrote", SHORT: "the host's time in so short a call",
    TRAIN: "what steps of training differed by where they were measured",
    PASS: "what passes differed by where they were measured",
    DECODE: "what decode steps differed by where they were measured",
    MODULES: "what modules and image models differed by where they were measured",
    TPOT: "what services differed by where they were measured",
    TTFT: "how requests arrive and wait, of which first tokens depend", QUEUE: "a queue, which small errors make long",
}  # fmt: skip

#: Logarithms below and above the forecast: numbers, or of a column of runs arrays of shape (points,).
Pair = tuple[Any, Any]


class Facts(NamedTuple):
    """What is known of a request: the kind of run, one of `KINDS`, and by part how much of it there is, below and
    above the forecast."""

    kind: str
    sizes: Mapping[str, Pair]

    def without(self, *parts: str, **changed: Pair) -> Facts:
        """The same with some parts gone, and others of another size."""
        return Facts(self.kind, {name: pair for name, pair in self.sizes.items() if name not in parts} | changed)


class ErrorModel(NamedTuple):
    """``scales`` by part; ``factors`` (below, of the median, above) by kind of run; ``apart``: by what two runs share,
    `BOARD` and `ENGINE`, the part of their half-widths' squares that is left between them."""

    scales: Mapping[str, float]
    factors: Mapping[str, tuple[float, float, float]]
    apart: Mapping[str, float]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ErrorModel:
        """From the content of `FILE`; KeyError, TypeError or ValueError where it is not that."""
        scales = {part: float(data["scales"][part]) for part in PARTS}
        factors = {kind: _three(data["factors"][kind]) for kind in KINDS}
        apart = {name: float(data["apart"][name]) for name in (BOARD, ENGINE)}
        if not all(0.0 <= scale < np.inf for scale in scales.values()):
            raise ValueError(f"scales {scales}: expected numbers of at least 0")
        for low, middle, high in factors.values():
            if not -np.inf < low <= 0.0 <= high < np.inf or not low < middle < high:
                raise ValueError(f"factors {factors}: expected one below 0, one above, and the median's between them")
        if not all(0.0 < part <= 1.0 for part in apart.values()):
            raise ValueError(f"apart {apart}: expected parts of 1")
        return cls(scales, factors, apart)

    def parts(self, facts: Facts) -> dict[str, Pair]:
        """Half-widths by part, before the factor: positive logarithms below and above."""
        return {part: (self.scales[part] * low, self.scales[part] * high) for part, (low, high) in facts.sizes.items()}

    def half_widths(self, facts: Facts) -> Pair:
        """All parts together."""
        below: Any = LEAST**2
        above: Any = LEAST**2
        for low, high in self.parts(facts).values():
            below, above = below + low * low, above + high * high
        return below**0.5, above**0.5

    def ends(self, facts: Facts) -> Pair:
        """Logarithms of the interval's ends over the forecast."""
        low, _, high = self.ends_and_median(facts)
        return low, high

    def ends_and_median(self, facts: Facts) -> tuple[Any, Any, Any]:
        """Logarithms over the forecast of the interval's low end, of the median, and of the high end."""
        below, above = self.half_widths(facts)
        low, middle, high = self.factors[facts.kind]
        return low * below, middle * (above if middle > 0.0 else below), high * above

    def largest(self, facts: Facts) -> str:
        """The part that most of the width is from."""
        return max(self.parts(facts).items(), key=lambda item: float(np.sum(np.square(item[1]))))[0]


def _three(factors: Any) -> tuple[float, float, float]:
    low, middle, high = factors
    return float(low), float(middle), float(high)


@cache
def error_model() -> ErrorModel:
    """The model that ships; SpecError, one line, where its file is of another version or is not whole."""
    data = read_json(FILE)
    if data.get("schema_version") != SCHEMA_VERSION:
        raise SpecError(f"{FILE}: schema_version is {data.get('schema_version')!r:.40}, expected {SCHEMA_VERSION}")
    try:
        return ErrorModel.from_dict(data)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SpecError(f"{FILE} is incomplete: {error}") from None
