"""Fits the widths of `predictor.kernels.interval`: what forecasts are off by on rows that their fit did not see.

The estimator is fitted again and again on a sample of its rows, each time without something:

    new      without every GPU of a generation; judged on each GPU of it
    sibling  without one GPU whose generation has others, whose own fits answer for it; judged on it
    seen     without a fifth of the shape groups; judged on those, GPU by GPU

A pair is the 10 % and the 90 % quantile of log(measured / predicted): split conformal prediction (Lei et al., 2018)
with the finite-sample correction for the seen. A GPU that nobody measured is another draw from a population of GPUs
of which K were left out, and rows of one GPU err together, so quantiles over pooled rows would be too narrow.
Conformal prediction for such a hierarchy (Dunn, Wasserman, Ramdas, 2022: every group counts alike) gives no finite 10 %
bound for K below 9. In its place, each GPU counts alike, and what the GPUs' medians differ by is stretched before the
quantiles are taken: the mean square of K deviations from their own mean is (K - 1) / K of the variance, and one more
draw lies (K + 1) / K of it from that mean (the prediction interval of a random-effects model: Higgins, Thompson,
Spiegelhalter, 2009, without their Student's t, which made intervals too wide on GPUs left out).
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from predictor.data import dataset
from predictor.data.frame import Frame
from predictor.errors import TilecastError
from predictor.files.extras import require
from predictor.files.records import dataclass
from predictor.fit.evaluate import predict_rows
from predictor.fit.splits import holdout
from predictor.hardware.generation import generation
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.artifact import KINDS
from predictor.kernels.base import Estimator
from predictor.kernels.interval import BY_DTYPE, DISTANCES, LEVEL, SIZES, variant_of
from predictor.ops.base import Op

FloatArray = npt.NDArray[np.float64]
Fit = Callable[..., tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]]

#: Rows of a GPU, operator and dtype that fits are given: those that draw a bounded number by themselves, boosted trees
#: without a GPU, boosted trees without shapes. Chosen by hand, not from data, for the time that all fits take.
ALL_ROWS, TREE_ROWS, SEEN_TREE_ROWS = 50_000, 5000, 30_000
#: Rows of a GPU and operator class that a fit is judged on: chosen by hand, not from data.
JUDGED_ROWS = 2000
#: Fewer rows of a GPU and class say nothing of its quantiles: three lie beyond each. Chosen by hand, not from data.
LEAST_ROWS = 30
HELD_OUT = 0.2  # of the shape groups, by definition of the pair "seen" (above)
TAIL = (1.0 - LEVEL) / 2.0
#: The next distance where nothing tells of it is this many times as wide (in logarithms) as the one before. Assumed.
NEXT = 2.0


@dataclass(frozen=True, slots=True)
class IntervalTarget:
    """What is fitted: the families it answers for, and ``fit`` as `predictor.fit.fit` calls it.

    A fit with an argument ``fitted_gpus`` can leave out what GPUs are not asked for that are known by their own rows.
    """

    families: Sequence[str]
    fit: Fit

    @property
    def boosted(self) -> bool:
        """Whether the time of a fit grows with its rows, and part of it is for measured GPUs alone."""
        return "fitted_gpus" in inspect.signature(self.fit).parameters

    def estimator(
        self, rows: Frame, gpus: Mapping[str, GPUSpec], seed: int, fitted_gpus: Container[str] | None = None
    ) -> Estimator:
        """Fitted to ``rows``, with fits of their own for the ``fitted_gpus`` alone (None: for all that have rows)."""
        words = {"fitted_gpus": fitted_gpus} if self.boosted else {}
        about, weights = self.fit(rows.reset_index(drop=True), gpus, seed, **words)
        module, _, name = KINDS[about["kind"]].partition(":")
        kind = getattr(importlib.import_module(module), name)
        return cast(Estimator, kind.from_artifact({**about, "name": "judged"}, weights))


class _Lone:
    """A selector of one estimator, without intervals."""

    name = "lone"

    def __init__(self, estimator: Estimator, families: Sequence[str]) -> None:
        self._estimator, self._families = estimator, frozenset(families)

    def select(self, family: str, dtype: str) -> Estimator | None:
        """The estimator, for its families."""
        return self._estimator if family in self._families else None


def fit_intervals(
    target: IntervalTarget, rows: Frame, gpus: Mapping[str, GPUSpec], seed: int, seen: bool = True
) -> dict[str, Any]:
    """The content of an estimator's ``intervals.json``; without a class where too few rows could be judged.

    Without ``seen``, what GPUs that were measured are off by is left out: it takes the sibling's place.
    """
    names = rows["gpu"].astype(str).to_numpy()
    present = sorted(set(names))
    log_errors: dict[str, dict[str, dict[str, FloatArray]]] = {}  # class -> distance -> GPU -> log errors
    few, part = (draw(rows, seed, most if target.boosted else ALL_ROWS) for most in (TREE_ROWS, SEEN_TREE_ROWS))
    test = draw(rows, seed + 1, 4 * JUDGED_ROWS)
    for out, distances in left_out(present, gpus).items():
        kin = {name for name in present if generation(gpus[name]) == generation(gpus[out[0]])}.difference(out)
        kept = dataset.concat([few[~_of(few, kin.union(out))], part[_of(part, kin)]])
        if len(kept):
            _judge(target, kept, test[_of(test, distances)], gpus, seed, distances, log_errors, kin)
    held = holdout(part, HELD_OUT, seed)
    if seen and held.any():
        judged = draw(part[held], seed, 4 * JUDGED_ROWS)
        _judge(target, part[~held], judged, gpus, seed, dict.fromkeys(present, "seen"), log_errors, None)
    ranges = _sizes(rows)
    return {
        "level": LEVEL,
        "gpus": {gpu: [generation(gpus[gpu]), gpus[gpu].vendor] for gpu in present},
        "classes": {
            name: _entry(by_distance) | ranges.get(name, {"sizes": {}, "dtypes": [], "variants": {}})
            for name, by_distance in sorted(log_errors.items())
        },
    }


def left_out(present: Sequence[str], gpus: Mapping[str, GPUSpec]) -> dict[tuple[str, ...], dict[str, str]]:
    """GPUs to leave out of a fit -> the GPUs to judge by it, with their distance; only of vendors with two generations.

    What is learned from one vendor's boards is not carried over to the first board of another one. A generation that
    is left out is fitted once, whichever of its GPUs is judged.
    """
    plans: dict[tuple[str, ...], dict[str, str]] = {}
    for gpu in present:
        kin = tuple(g for g in present if generation(gpus[g]) == generation(gpus[gpu]))
        others = [g for g in present if gpus[g].vendor == gpus[gpu].vendor and g not in kin]
        if others:
            plans.setdefault(kin, {})[gpu] = "new"
        if len(kin) > 1:
            plans.setdefault((gpu,), {})[gpu] = "sibling"
    return plans


def _of(rows: Frame, gpus: Collection[str]) -> npt.NDArray[np.bool_]:
    """(n,) True for rows of ``gpus``."""
    return np.asarray(rows["gpu"].astype(str).isin(list(gpus)), dtype=bool)


def draw(rows: Frame, seed: int, most: int) -> Frame:
    """At most ``most`` rows of every GPU, operator and dtype, in their order."""
    random = np.random.default_rng(seed)
    keys = [rows[name].astype(str).to_numpy() for name in ("gpu", "op", "dtype")]
    table = require("pandas").DataFrame(dict(zip("god", keys, strict=True)))
    chosen = []
    for _, index in sorted(table.groupby(["g", "o", "d"]).indices.items()):
        chosen.append(random.choice(index, most, replace=False) if len(index) > most else index)
    return rows.iloc[np.sort(np.concatenate(chosen))].reset_index(drop=True)


def _judge(
    target: IntervalTarget, seen: Frame, test: Frame, gpus: Mapping[str, GPUSpec], seed: int,
    distances: Mapping[str, str], log_errors: dict[str, dict[str, dict[str, FloatArray]]],
    fitted_gpus: Container[str] | None,
) -> None:  # fmt: skip
    """Fit on ``seen``, for ``fitted_gpus`` (None: all) each by itself, and add the errors on ``test`` to
    ``log_errors``, each GPU's at its distance."""
    try:
        estimator = target.estimator(seen, gpus, seed, fitted_gpus)
    except TilecastError:  # too little is left to fit on: nothing is learned of this distance here
        return
    scored = predict_rows(test.reset_index(drop=True), _Lone(estimator, target.families), gpus)
    scored = scored[np.isfinite(scored["predicted_ms"].to_numpy(float))]
    errors = np.log(scored["measured_ms"].to_numpy(float) / scored["predicted_ms"].to_numpy(float))
    keys = scored["gpu"].astype(str).to_numpy(), scored["interval_class"].astype(str).to_numpy()
    for gpu, kind in sorted(set(zip(*keys, strict=True))):
        its = errors[(keys[0] == gpu) & (keys[1] == kind)]
        if len(its) >= LEAST_ROWS:
            log_errors.setdefault(kind, {}).setdefault(distances[gpu], {})[gpu] = its


# ------------------------------------------------------------------------------------------------------ the quantiles


def _entry(by_distance: Mapping[str, Mapping[str, FloatArray]]) -> dict[str, Any]:
    """Widths of one class: a pair a distance, each within the next one, and a pair a GPU that was seen."""
    seen = by_distance.get("seen", {})
    pairs = {
        "seen": pooled(list(seen.values())),
        "sibling": of_another_gpu(list(by_distance.get("sibling", {}).values())),
        "new": of_another_gpu(list(by_distance.get("new", {}).values())),
    }
    widths = nested(pairs)
    return {
        "widths": {name: _rounded(widths[name]) for name in DISTANCES},
        "gpus": {gpu: _rounded(pooled([errors])) for gpu, errors in seen.items()},  # type: ignore[arg-type]
        "rows": {name: int(sum(map(len, part.values()))) for name, part in by_distance.items()},
        "left_out": {name: sorted(part) for name, part in by_distance.items() if name != "seen"},
    }


def nested(pairs: Mapping[str, tuple[float, float] | None]) -> dict[str, tuple[float, float]]:
    """A pair for every distance. A sibling is known no worse than a new GPU, and no better than a GPU that was seen.

    Where no sibling was ever left out it takes the pair of a new GPU; where nothing tells of a distance, it is `NEXT`
    times as wide as the one before it.
    """
    seen, new = pairs["seen"], pairs["new"]
    sibling = pairs["sibling"] or new
    if sibling is not None and new is not None:  # few siblings are ever left out: their pair alone may be absurd
        sibling = max(sibling[0], new[0]), min(sibling[1], new[1])
    low, high = seen or sibling or (0.0, 0.0)
    result = {"seen": (low, high)}
    for name, pair in (("sibling", sibling), ("new", new), ("beyond", None)):
        wider = pair or (NEXT * low, NEXT * high)
        low, high = min(low, wider[0]), max(high, wider[1])
        result[name] = (low, high)
    return result


def pooled(groups: Sequence[FloatArray]) -> tuple[float, float] | None:
    """The 10 % and 90 % quantile, the finite-sample correction included; every group counts alike. Holds 0."""
    if not groups:
        return None
    errors = np.concatenate(groups)
    weight = np.concatenate([np.full(len(group), 1.0 / len(group)) for group in groups])
    order = np.argsort(errors, kind="stable")
    share = np.cumsum(weight[order]) / weight.sum()
    count = len(groups) ** 2 / sum(1.0 / len(group) for group in groups)  # Kish's effective number of rows
    high = min((1.0 - TAIL) * (count + 1.0) / count, 1.0)
    low = 1.0 - high
    last = len(errors) - 1
    bottom = errors[order[max(int(np.searchsorted(share, low, side="right")) - 1, 0)]]
    top = errors[order[min(int(np.searchsorted(share, high - 1e-12)), last)]]
    return min(float(bottom), 0.0), max(float(top), 0.0)


def stretch(groups: int) -> float:
    """Factor on the deviations of K medians from their mean that gives them the spread of one more draw."""
    return float(np.sqrt((groups + 1.0) / (groups - 1.0)))


def of_another_gpu(groups: Sequence[FloatArray]) -> tuple[float, float] | None:
    """The pair for a GPU that is none of the K groups. One group alone says nothing of others: `NEXT` times its own."""
    if not groups:
        return None
    if len(groups) == 1:
        low, high = pooled(groups) or (0.0, 0.0)
        return NEXT * low, NEXT * high
    medians = np.array([float(np.median(group)) for group in groups])
    shifts = (stretch(len(groups)) - 1.0) * (medians - medians.mean())
    return pooled([group + shift for group, shift in zip(groups, shifts, strict=True)])


def roofline_width(rows: Frame) -> list[float]:
    """The pair of an answer that is the roofline alone, from rows with measured_ms and roofline_ms."""
    errors = np.log(rows["measured_ms"].to_numpy(float) / rows["roofline_ms"].to_numpy(float))
    gpu = rows["gpu"].astype(str).to_numpy()
    return _rounded(of_another_gpu([errors[gpu == name] for name in sorted(set(gpu))]) or (0.0, 0.0))


def _rounded(pair: tuple[float, float]) -> list[float]:
    return [round(pair[0], 4), round(pair[1], 4)]


# ----------------------------------------------------------------------------------------------------------- the range


def _sizes(rows: Frame) -> dict[str, dict[str, Any]]:
    """By class: [least, most] of every watched size, the dtypes, and the GPUs with rows of each dtype or scheme."""
    from predictor.kernels.base import make_batch
    from predictor.kernels.interval import op_class

    part = draw(rows, 0, 40_000)
    ops = dataset.ops_of(part)
    names = np.array([op_class(op) for op in ops], dtype=object)
    gpus = part["gpu"].astype(str).to_numpy()
    result: dict[str, dict[str, Any]] = {}
    for name in sorted(set(names)):
        index = np.flatnonzero(names == name)
        sizes: dict[str, list[float]] = {}
        chosen = [ops[i] for i in index]
        for _, group in itertools.groupby(sorted(chosen, key=lambda op: op.columns), key=lambda op: op.columns):
            columns = make_batch(chosen[0].family, list(group)).columns
            for size, values in columns.items():
                if size in SIZES:
                    low, high = sizes.get(size, (np.inf, -np.inf))
                    sizes[size] = [min(low, float(values.min())), max(high, float(values.max()))]
        dtypes = sorted({op.dtype for op in chosen})
        result[name] = {"sizes": sizes, "dtypes": dtypes, "variants": _variants(chosen, gpus[index])}
    return result


def _variants(ops: Sequence[Op], gpus: Sequence[str]) -> dict[str, list[str]]:
    """GPUs by the variant that was measured there; nothing for families whose kernels do not go by dtype."""
    gpus_of_variant: dict[str, set[str]] = {}
    for op, gpu in zip(ops, gpus, strict=True):
        if op.family in BY_DTYPE:
            gpus_of_variant.setdefault(variant_of(op), set()).add(gpu)
    return {name: sorted(gpus_of_variant[name]) for name in sorted(gpus_of_variant)}
