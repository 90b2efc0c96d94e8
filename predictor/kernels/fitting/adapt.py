"""How few rows of one GPU adapt an estimator to it, whatever the estimator (`predictor.fit.calibrate`).

0. `without`: what an earlier calibration of the GPU left is taken out.
1. `constants`: those that the rows may move, refitted by robust least squares (soft L1) on log latency, each pulled
   toward what the set says. The rows' errors count as correlated, as the residual takes them to be, so that rows close
   to each other are one witness.
2. `explain`: what is left becomes shares of measured boards' trees, an offset and a Gaussian process, all at once, over
   features without a unit (`predictor.kernels.gaussian`).
3. `trusted`: so much of both is kept as rows held out gain by; where that is nothing, the estimator stays as it was.

`calibrated` is the loop. What an estimator brings is a `Trial` for each of its kinds of rows: the `Question` that they
ask, and where in the artifact the answer goes. Shapes: p constants, r rows, f features, s sets of trees.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import field, fields
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data.frame import Frame, numbers
from predictor.files.extras import require
from predictor.files.records import dataclass, replace
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.base import eager_seconds, overhead
from predictor.kernels.device import Device
from predictor.kernels.fitting.solve import solve
from predictor.kernels.gaussian import Adapted, Process, covariance
from predictor.ops.roofline import FloatArray

Weights = dict[str, npt.NDArray[Any]]
IntArray = npt.NDArray[np.int64]

#: The host's time after a launch is at least so long; how often a search may try; rounds of a search, between which
#: what a forecast chose (its tile, its trees) is chosen again, and of believing rows that lie far off less. All chosen
#: by hand, not from data.
LEAST_AFTER_S = 3e-6
EVALUATIONS, ROUNDS, ROBUST_ROUNDS = 40, 2, 3
#: Where the host's time after a launch starts in a fit: a call's launch time is its host time less this one. Chosen by
#: hand, not from data; each GPU's own is fitted.
AFTER_LAUNCH_S = 13e-6
#: What is believed of the residual before any row: its standard deviation, a row's own log error, the share of each
#: set of trees around an equal one, the offset. Chosen by looking at GPUs left out
#: (benchmarks/results/accuracy-2026-11-23.md, Calibration).
DEVIATION, NOISE, SHARE_SPREAD, OFFSET_SPREAD = 0.1, 0.06, 0.2, 0.05
#: Deviations, multiples of the lengths and row errors of which the rows pick the likeliest. Chosen by hand, not from
#: data.
GRID = tuple(product((0.05, 0.1, 0.2), (0.5, 1.0, 2.0), (0.03, 0.06, 0.1)))


#: Step of a slope, of a constant's spread. Chosen by hand, not from data.
STEP = 0.01
#: Of what rows say of a set, the shares that are tried on rows held out, and how many standard errors of what they gain
#: by it count as no gain; where thousands of the board's rows say otherwise, too. Chosen by looking at bf16 GEMM of
#: boards left out, and at twenty draws of rows of boards known
#: (benchmarks/results/accuracy-2026-11-23.md, Calibration).
TRUST, DOUBT, DOUBT_MEASURED = (0.0, 0.5, 1.0), 0.5, 2.0
#: What cannot be mixed is taken whole or not at all.
ALL_OR_NONE = (0.0, 1.0)
#: Parts of the rows, each held out from a fit of the others, where no residual tells of them. Chosen by hand, not from
#: data.
FOLDS = 10


@dataclass(frozen=True, slots=True)
class Fitted:
    """An estimator's folder with the GPU in it, the scalars found, and the errors in % on the rows.

    ``held_out``: the error of rows by what is kept of what the others say of them; by all of it, where none is kept.
    ``gained``: whether any of the rows is answered otherwise than before, which they are where rows held out surely
    gain.
    """

    manifest: dict[str, Any]
    weights: Weights
    scalars: dict[str, Any]
    before: float
    after: float
    held_out: float
    gained: bool


@dataclass(frozen=True, slots=True)
class RowsView:
    """The rows under some constants: ``gaps`` gives log(measured / forecast of the core) (r,) for others near them.

    ``at`` (r, f): the residual's features; ``trees`` (r, s): what measured boards' trees say; ``share`` (r,): of a
    row's time, how much is the kernel's and not the host's.
    """

    gaps: Callable[[FloatArray], FloatArray]
    at: FloatArray
    trees: FloatArray
    share: FloatArray


@dataclass(frozen=True, slots=True)
class Question:
    """What rows ask of a core: logarithms of its constants (p,), how far each lies from them (standard deviation),
    and the rows under given ones. Without ``lengths`` (f,) of features there is no residual, and a row's usual log
    error is ``noise``; ``row_errors`` (r,) come on top of it, those that the measurement says of each row."""

    start: FloatArray
    spread: FloatArray
    view: Callable[[FloatArray], RowsView]
    lengths: FloatArray = field(default_factory=lambda: np.zeros(0))
    noise: float = NOISE
    row_errors: FloatArray | float = 0.0

    def of(self, rows: IntArray) -> Question:
        """The same asked by some of the rows (k,) alone."""

        def view(x: FloatArray) -> RowsView:
            whole = self.view(x)
            return RowsView(lambda x: whole.gaps(x)[rows], whole.at[rows], whole.trees[rows], whole.share[rows])

        errors = self.row_errors if isinstance(self.row_errors, float) else self.row_errors[rows]
        return replace(self, view=view, row_errors=errors)


#: Half-width of a 95 % interval in standard deviations, by definition of a normal distribution.
_OF_95 = 1.96


def row_errors(frame: Frame) -> FloatArray:
    """Log errors (n,) that the samples of each row show: that of their median where the row says its noise, else their
    standard deviation; 0 where it says neither."""
    spread = numbers(frame, "latency_std_ms") / numbers(frame, "latency_ms")
    noise = numbers(frame, "noise") / _OF_95
    return np.log1p(np.nan_to_num(np.where(np.isnan(noise), spread, noise)))


#: Behind the key of a measured GPU's own trees, once it is calibrated.
TRAINED = "|trained"


def without(manifest: Mapping[str, Any], weights: Weights, gpu: str) -> tuple[dict[str, Any], Weights]:
    """Manifest and arrays without an earlier calibration of ``gpu``; what it was trained on stays."""
    others = {key: value for key, value in manifest["calibrated"].items() if key != gpu}
    kept = {name: array for name, array in weights.items() if not name.startswith(f"a_{gpu}_")}
    rest = {**manifest, "calibrated": others}
    if "adapted" not in manifest:  # an estimator without a residual
        return rest, kept
    about = manifest["calibrated"].get(gpu, {"cores": {}, "adapted": []})
    own_keys = {key for key in (*about["adapted"], *manifest["adapted"]) if key.split("|")[0] == gpu}
    own_keys |= set(about["adapted"]).difference(*(other.get("adapted", ()) for other in others.values()))
    adapted = {key: values for key, values in manifest["adapted"].items() if key not in own_keys}
    cores = dict(manifest["cores"])
    if gpu not in manifest["devices"]:
        cores = {key: values for key, values in cores.items() if key.split("|")[0] != gpu}
    cores |= about["cores"]
    unused = {key + TRAINED for key in own_keys}.difference(*(about["shares"] for about in adapted.values()))
    boosters = {key: about for key, about in manifest["boosters"].items() if key not in unused}
    probes = {key: told for key, told in manifest["probes"].items() if key.split("|")[0] != gpu}
    return {**rest, "cores": cores, "boosters": boosters, "adapted": adapted, "probes": probes}, kept


class AdaptedArtifact:
    """An estimator's artifact while a GPU is put into it: ``base`` as it was but for an ``earlier`` calibration, the
    ``manifest`` and ``weights`` to be, and the ``scalars`` that a report names."""

    def __init__(self, gpu: GPUSpec, manifest: Mapping[str, Any], weights: Weights) -> None:
        self.gpu, self.scalars = gpu, dict[str, Any]()
        self.earlier: Mapping[str, Any] = manifest["calibrated"].get(gpu.id, {})
        self.base, self.weights = without(manifest, weights, gpu.id)
        self.manifest = {key: dict(value) if isinstance(value, dict) else value for key, value in self.base.items()}

    def adapt(self, gpu: str, kind: str, adapted: Adapted, own_trees: Set[str] = frozenset()) -> None:
        """Keeps what answers for rows of ``kind`` on ``gpu``, which need not be the one that is calibrated.

        Trees of measured GPUs under the keys ``own_trees``, which are answered otherwise now, get another name.
        """
        key = f"{gpu}|{kind}"
        shares = {trees + TRAINED * (trees in own_trees): share for trees, share in adapted.shares.items()}
        for trees in own_trees & adapted.shares.keys() & self.base["boosters"].keys():
            self.manifest["boosters"][trees + TRAINED] = self.base["boosters"][trees]
        prefix = f"a_{self.gpu.id}_{gpu}_{kind}_"
        self.manifest["adapted"][key], arrays = replace(adapted, shares=shares).to_manifest(prefix)
        self.manifest["calibrated"][self.gpu.id]["adapted"].append(key)
        self.weights = {**self.weights, **arrays}


class Trial(ABC):
    """Rows (r,) of a board that one residual, or none, answers for."""

    question: Question
    #: As `trusted` has them.
    doubt: float = DOUBT
    shares: Sequence[float] = ALL_OR_NONE
    #: Of the residual: whose trees it may take shares of, and the features that its process is over.
    keys: Sequence[str] = ()
    columns: tuple[int, ...] = ()

    def constants(self) -> FloatArray:
        """Logarithms (p,) that the rows say."""
        return constants(self.question)

    @abstractmethod
    def before(self) -> FloatArray:
        """Log errors (r,) of the set without the rows."""

    def held_out(self, told: Told | None) -> FloatArray:
        """Log errors (r,) of each row by the others."""
        return kept_aside(self.question) if told is None else told.held_out

    @abstractmethod
    def keep(self, board: AdaptedArtifact, x: FloatArray, told: Told | None, share: float) -> FloatArray:
        """Puts constants ``x`` and ``share`` of the residual into the artifact; log errors (r,) with them."""


def calibrated(
    trials: Callable[[Frame, AdaptedArtifact], Iterable[Trial]], rows: Frame, gpu: GPUSpec, manifest: Mapping[str, Any],
    weights: Weights,
) -> Fitted:  # fmt: skip
    """An estimator's artifact adapted to ``gpu`` by its ``rows``; an earlier calibration is replaced."""
    board = AdaptedArtifact(gpu, manifest, weights)
    before, after, aside, kept, gained = [], [], [], [], False
    for trial in trials(rows, board):
        first, x = trial.before(), trial.constants()
        told = explain(trial.question, x, trial.keys, trial.columns) if len(trial.question.lengths) else None
        held_out = trial.held_out(told)
        share = trusted(first, held_out, trial.doubt, trial.shares)
        x = trial.question.start + share * (x - trial.question.start)
        before.append(first)
        aside.append(held_out)
        kept.append((1.0 - share) * first + share * held_out)
        gained |= share > 0.0
        mixed = share > 0.0 or trial.shares != ALL_OR_NONE
        after.append(trial.keep(board, x, told, share) if mixed else first)
    old, new, held = (percent(np.concatenate(part)) for part in (before, after, kept if gained else aside))
    return Fitted(board.manifest, board.weights, board.scalars, old, new, held, gained)


def kept_aside(question: Question) -> FloatArray:
    """Log errors (r,) of rows without a residual, a part of them after the other left out of the fit (`FOLDS`)."""

    def errors(kept: IntArray, out: IntArray) -> FloatArray:
        x = constants(question.of(kept))
        return -question.view(x).gaps(x)[out]

    return in_folds(len(question.view(question.start).at), errors)


def in_folds(rows: int, errors: Callable[[IntArray, IntArray], FloatArray], folds: int = FOLDS) -> FloatArray:
    """Log errors (r,), where ``errors(kept, out)`` gives those of rows ``out`` by a fit of rows ``kept``.

    Neighbours in the file, which are often neighbours in size, fall into different folds.
    """
    result, selection = np.zeros(rows), require("sklearn.model_selection")
    for kept, out in selection.PredefinedSplit(np.arange(rows) % folds).split():
        result[out] = errors(kept, out)
    return result


def rows_alone(gaps: Callable[[FloatArray], FloatArray]) -> Callable[[FloatArray], RowsView]:
    """The view of a core without a residual."""

    def view(x: FloatArray) -> RowsView:
        rows = len(gaps(x))
        return RowsView(gaps, np.zeros((rows, 0)), np.zeros((rows, 0)), np.ones(rows))

    return view


def constants(question: Question, rounds: int = ROUNDS) -> FloatArray:
    """Logarithms (p,) that balance the rows' errors and the distance from the start."""
    x = question.start
    for _ in range(rounds):
        view = question.view(x)
        total = np.hypot(question.noise, question.row_errors) ** 2 * np.eye(len(view.at))
        if len(question.lengths):
            total += believed(view.at, view.share, DEVIATION, question.lengths) + _linear(view.trees)
        whiten, expected = np.linalg.inv(np.linalg.cholesky(total)), view.trees @ _equal(view.trees)

        errors = partial(lambda view, whiten, expected, x: whiten @ (view.gaps(x) - expected), view, whiten, expected)
        x = solve(errors, question.start, 1.0 / question.spread, step=1e-3, most=EVALUATIONS).x
    return x


def believed(at: FloatArray, share: FloatArray, deviation: float, lengths: FloatArray) -> FloatArray:
    """Covariance (r, r) of rows' log errors by the process before any was measured."""
    result: FloatArray = covariance(at, at, deviation, lengths) * share[:, None] * share[None, :]
    return result


def _equal(trees: FloatArray) -> FloatArray:
    """Shares of the sets of trees before any row speaks, (s,)."""
    return np.full(trees.shape[1], 1.0 / max(trees.shape[1], 1))


def _linear(trees: FloatArray) -> FloatArray:
    """Covariance of what shares of ``trees`` and the offset leave open, (r, r)."""
    result: FloatArray = SHARE_SPREAD**2 * trees @ trees.T + OFFSET_SPREAD**2
    return result


@dataclass(frozen=True, slots=True)
class Told:
    """What rows tell: a residual, and log errors (r,) with it, and of each row by all the others."""

    residual: Adapted
    errors: FloatArray
    held_out: FloatArray


def explain(question: Question, x: FloatArray, keys: Sequence[str], columns: tuple[int, ...]) -> Told:
    """The residual that explains best what constants ``x`` leave: deviation, lengths and row error by their likelihood.

    Rows that lie far off are believed less, in rounds (Huber's weights): a kernel that a library takes for one shape
    says little of the shapes around it. A held-out row's forecast does not know what that row said of constants,
    shares, offset and process (Rasmussen and Williams, eq. 5.12, the core linear in its constants around ``x``).
    """
    cho_solve, view = require("scipy.linalg").cho_solve, question.view(x)
    gaps, start, linear = view.gaps(x), _equal(view.trees), _linear(view.trees)
    left, scale = gaps - view.trees @ start, np.ones(len(gaps))
    for _ in range(ROBUST_ROUNDS):
        tried = []
        for deviation, multiple, noise in GRID:
            total = believed(view.at, view.share, deviation, multiple * question.lengths) + linear
            usual = np.hypot(noise, question.row_errors)
            total += np.diag((usual * scale) ** 2)
            lower = np.linalg.cholesky(total)
            weights = cho_solve((lower, True), left)
            likelihood = float(-0.5 * left @ weights - np.log(np.diag(lower)).sum())
            tried.append((likelihood, weights, deviation, multiple, usual, total))
        _, weights, deviation, multiple, usual, total = max(tried, key=lambda entry: entry[0])
        scale = np.sqrt(np.maximum(1.0, np.abs(usual * scale**2 * weights)))
    shares = start + SHARE_SPREAD**2 * (view.trees.T @ weights)
    process = Process(view.at, view.share * weights, deviation, multiple * question.lengths)
    offset = OFFSET_SPREAD**2 * float(weights.sum())
    adapted = Adapted(dict(zip(keys, shares.tolist(), strict=True)), offset, columns, process)
    errors = view.trees @ shares + view.share * adapted.told(view.at) - gaps
    slopes = np.stack([view.gaps(x + step) - gaps for step in np.diag(STEP * question.spread)], axis=1) / STEP
    inverse = np.linalg.inv(total + slopes @ slopes.T)
    known = left + slopes @ ((question.start - x) / question.spread)
    return Told(adapted, errors, -(inverse @ known) / np.diag(inverse))


def trusted(
    before: FloatArray, after: FloatArray, doubt: float = DOUBT, shares: Sequence[float] = TRUST
) -> float:  # fmt: skip
    """How far toward what its rows say a set goes, of ``shares``: as far as the held-out rows surely gain by it.

    ``before`` and ``after`` (r,): log errors without the rows, and of each row by the others. ``doubt``: how many
    standard errors of the gain count as none. Nor does a share count by which the mean error in % grows: a few rows
    that are forecast many times too slow weigh little in logarithms.
    """

    def gain(share: float) -> float:
        errors = (1.0 - share) * before + share * after
        gained = np.abs(before) - np.abs(errors)
        if share and percent(errors) > percent(before):
            return -math.inf
        return float(gained.mean() - doubt * gained.std() / math.sqrt(len(gained)))

    return max(shares, key=gain)


def width(errors: FloatArray) -> list[float]:
    """The logarithms of measured / forecast that 80 % of further rows lie between, by log errors (r,) held out.

    Of r + 1 rows alike, the next one is as likely as each to be the outermost (Vovk et al., Algorithmic Learning in a
    Random World, 2005).
    """
    ordered, rank = np.sort(-errors), math.ceil(0.9 * (len(errors) + 1))
    last = min(rank, len(errors)) - 1
    return [float(ordered[len(errors) - 1 - last]), float(ordered[last])]


def overheads(known: Mapping[str, Sequence[float]], gpu: str) -> tuple[float, float]:
    """(host, time after the launch) that the set says of a GPU: its own, or the median of the measured ones."""
    host, launch = overhead(known, gpu, (3e-5, 1.5e-5))
    return host, max(host - launch, LEAST_AFTER_S)


def eager(seconds: FloatArray, host: FloatArray, after: FloatArray, is_eager: npt.NDArray[np.bool_]) -> FloatArray:
    """What a row's protocol reads for kernels of ``seconds``, where ``is_eager`` with the host's times; shape (r,)."""
    return np.where(is_eager, eager_seconds(seconds, host, launch_s(host, after)), seconds)


def fitted_rows(frame: Frame, ops: Sequence[str]) -> Frame:
    """The fp32 rows of ``ops`` that neither a flag nor a test split of their data set keeps apart."""
    keep = frame["op"].astype(str).isin(ops) & (frame["dtype"].astype(str) == "fp32")
    if "flag" in frame:
        keep &= frame["flag"].astype(str) == ""
    if "split" in frame:
        keep &= frame["split"].astype(str) != "test"
    return frame[keep]


def of_boards(
    read: Callable[[Frame, list[GPUSpec]], Any], frame: Frame, gpus: Mapping[str, GPUSpec]
) -> tuple[list[GPUSpec], Any]:
    """(GPUs that have rows which ``read`` reads, these rows, whose ``gpu`` counts among them)."""
    specs = [gpus[name] for name in sorted(set(frame["gpu"].astype(str)) & set(gpus))]
    rows = read(frame, specs)
    used = np.unique(rows.gpu)
    if len(used) == len(specs):
        return specs, rows
    specs = [specs[i] for i in used]
    return specs, read(frame, specs)


def launch_s(host: FloatArray, after: FloatArray) -> FloatArray:
    """Time from the start of a call to that of its kernel: the host's time less what comes after the launch."""
    return np.maximum(host - after, 1e-6)


def by_call(calls: Sequence[str], gpus: Sequence[GPUSpec], host: FloatArray, launch: FloatArray) -> dict[str, Any]:
    """What a manifest says of eager calls, by kind and GPU, of times (gpus, calls)."""
    pairs = np.stack([host, launch], axis=2).tolist()
    return {call: {gpu.id: pairs[i][j] for i, gpu in enumerate(gpus)} for j, call in enumerate(calls)}


def of_rows(devices: Sequence[Device], index: IntArray) -> Device:
    """The devices of rows, where ``index`` (n,) says which: as one, whose fields are arrays (n,)."""
    columns: dict[str, Any] = {f.name: np.array([getattr(d, f.name) for d in devices])[index] for f in fields(Device)}
    return Device(**columns)


def percent(errors: FloatArray) -> float:
    """Mean absolute error in % of log errors (r,)."""
    return float(np.abs(np.expm1(errors)).mean() * 100.0)
