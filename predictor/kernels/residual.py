"""What the estimators of serving kernels share: a physical core times the exponential of boosted trees.

    latency = core(shape, GPU, a few constants) * exp(shrink * clip(trees(dimensionless features)))

The constants of a core are fitted for every measured (GPU, framework, variant): a variant is a quantization scheme, or
a dtype without one. A scheme that was not measured is answered by the one whose kernels come nearest. A GPU that nobody
measured is answered, in this order, by its sibling (a measured or calibrated board of the same chip with about as many
SMs), by constants and trees shared by the boards whose tensor cores work alike ("*mma"), and by those shared by all
("*"). The shared trees have never seen which GPU a row is of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.errors import SpecError, UnknownNameError
from predictor.files.records import replace
from predictor.formats.quantization import stand_ins, variant
from predictor.hardware.generation import chip, generation, runs_mma
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.hardware.what_if import as_filed
from predictor.kernels.base import Batch
from predictor.kernels.device import Device, sustained_share, tensor_rate
from predictor.kernels.explanation import COUNT, Explanation, constant_terms, terms
from predictor.kernels.knots import Answers, Corners, Grid, Knots
from predictor.kernels.named import Named, of_a_form
from predictor.kernels.trees import Trees
from predictor.ops.roofline import FloatArray

if TYPE_CHECKING:
    from predictor.kernels.gaussian import Adapted

ANY_GPU = "*"
#: All measured boards whose tensor cores take mma.sync from registers (`runs_mma`): libraries run the same kernels on
#: them, and others on Hopper and B200.
MMA_GPUS = "*mma"
SHARED = (ANY_GPU, MMA_GPUS)
#: A sibling has as many SMs, up to the first factor; up to the second one it answers for a part, and what all boards
#: share for the rest. Chosen by hand, not from data; no two boards of the catalogue are between the two.
_SIBLING_SMS, _NO_SIBLING_SMS = 1.25, 1.5
#: Siblings answer together, each by its distance to this power. Source: Shepard (1968), "A two-dimensional
#: interpolation function for irregularly-spaced data", who recommends 2.
_BY_DISTANCE = -2.0
#: Power holds a board whose peak it cuts to less than this share: what the law of power is off by where it holds none,
#: RTX PRO 6000's 0.93. Source: bf16 products of 8,192 on it, over those of A100.
_HELD = 0.93
#: Siblings closer than this (a logarithm) are the board itself, and shares below it are dropped: chosen by hand, not
#: from data.
_SAME_BOARD = 1e-3


class HasTotal(Protocol):
    """Seconds of a core, whatever parts it keeps."""

    @property
    def total(self) -> FloatArray:
        """Seconds, shape (n,)."""
        ...


C = TypeVar("C", bound=HasTotal)
S = TypeVar("S")


class Corrections:
    """Constants of the cores and boosters of one artifact, by key; boosters are unpacked when first asked for.

    ``forms`` are the constants that its cores have: each key's are of the form whose names they have.
    """

    def __init__(
        self, manifest: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]], forms: Sequence[type[Named]]
    ) -> None:
        try:
            self.cores = {key: of_a_form(values, forms, key) for key, values in manifest["cores"].items()}
            self._boosters = dict(manifest["boosters"])
            known = {gpu: about["device"] for gpu, about in manifest["calibrated"].items() if about.get("device")}
            known |= manifest["devices"]
            self._measured = frozenset(manifest["devices"])
            self._capabilities = {gpu: about["compute_capability"] for gpu, about in known.items()}
            self._devices = {
                gpu: {dtype: Device(**scalars) for dtype, scalars in about["scalars"].items()}
                for gpu, about in known.items()
            }
            self._about = {key: manifest[key] for key in ("calibrated", "probes", "core_rows")}
            self._about |= {key: manifest.get(key) for key in ("rows", "calibration")}
            self._adapted = _adapted(manifest["adapted"], weights)
        except KeyError as error:
            raise SpecError(f"manifest lacks {error}; expected what tilecast train writes") from None
        #: What was resolved: (path, source, constants) of each; kept by sets without trees alone.
        self.answers: list[tuple[tuple[str, ...], str, Named]] | None = None
        self._led_by = ""
        self._weights = weights
        self._trees: dict[str, Trees] = {}
        self._resolved: dict[tuple[GPUSpec, str, tuple[str, ...], str], tuple[str, str, Named]] = {}
        grids = [Knots.of(grid) for grid in manifest.get("grids", ())]
        self._knots = {
            key: {column: grids[i] for column, i in about["knots"].items()}
            for key, about in self._boosters.items() if "knots" in about
        }  # fmt: skip
        self._runners = {key.split("|")[1] for key in self.cores if key.split("|")[0] in SHARED}

    def without_trees(self) -> Self:
        """The same constants of the cores, with nothing learned on top of them."""
        result = copy(self)
        result._boosters, result._adapted, result._trees, result._knots = {}, {}, {}, {}
        result.answers = []
        return result

    def led_by(self, name: str) -> Self:
        """The same constants and trees, those of the GPU ``name`` (or of `SHARED`) first for boards without rows."""
        result = copy(self)
        result._led_by, result._resolved = name, {}
        return result

    def resolve(self, gpu: GPUSpec, framework: str, *path: str, kernel: str = "") -> tuple[str, str, Named]:
        """(whose constants: a GPU, "*mma" or "*", the variant that answers, constants) of the first key there is.

        This GPU's with this framework, then with another one; then its sibling's, those of the boards alike and those
        shared by all GPUs, in the same order. The last of ``path`` is the variant; without constants of it, the nearest
        one answers. Shared constants may be kept by kernel in the framework's place: then ``kernel`` names the one that
        runs, and another one answers only where this kernel was measured in no variant that could.
        """
        resolved = self._resolved.get((gpu, framework, path, kernel))
        if resolved is None:
            resolved = self._resolved[(gpu, framework, path, kernel)] = self._resolve(gpu, framework, path, kernel)
        if self.answers is not None:
            self.answers.append(((framework, *path[:-1], resolved[1]), resolved[0], resolved[2]))
        return resolved

    def _resolve(self, gpu: GPUSpec, framework: str, path: tuple[str, ...], kernel: str) -> tuple[str, str, Named]:
        direct = stand_ins(path[-1])[0]
        values = self.cores.get("|".join((gpu.id, framework, *path[:-1], direct)))
        if values is not None:  # the first of all keys below
            return gpu.id, direct, values
        measured = (library.name for library in engines.measured())
        frameworks = (framework, *(name for name in measured if name != framework))
        others = (*frameworks, *sorted(self._runners.difference(frameworks)))
        for shared in ((kernel,), others) if kernel in self._runners else (frameworks, others):
            for variant_ in stand_ins(path[-1]):
                for name in self.stand_ins(gpu):
                    for run_by in shared if name in SHARED else frameworks:
                        values = self.cores.get("|".join((name, run_by, *path[:-1], variant_)))
                        if values is not None:
                            return name, variant_, values
        raise SpecError(f"the artifact has no constants for {'|'.join((framework, *path))}")

    def knows(self, kernel: str) -> bool:
        """Whether GPUs share constants of a kernel."""
        return kernel in self._runners

    def measures(self, gpu: GPUSpec, *path: str) -> bool:
        """Whether ``gpu``, or a sibling that answers for it, has constants of its own under ``path``."""
        return any("|".join((name, *path)) in self.cores for name in self.stand_ins(gpu) if name not in SHARED)

    def stand_ins(self, gpu: GPUSpec) -> tuple[str, ...]:
        """Whose constants and trees answer for ``gpu``, or the board that it is a variant of, the best first."""
        siblings = () if gpu.id in self._measured else self.siblings(as_filed(gpu))
        if self._led_by:
            siblings = () if self._led_by in SHARED else (self._led_by, *siblings)
        return (gpu.id, *siblings, *((MMA_GPUS,) if runs_mma(gpu) else ()), ANY_GPU)

    def shares(self, gpu: GPUSpec) -> tuple[tuple[str, float], ...]:
        """(whose constants and trees, their share) of those that answer together for a board without rows of its own;
        nothing where one alone does. Shares change smoothly with the board's SMs and bandwidth, and are those of the
        board that ``gpu`` is a variant of."""
        if gpu.id in self._measured or self._led_by:
            return ()
        near = self._near(as_filed(gpu), _NO_SIBLING_SMS)
        span = math.log(_NO_SIBLING_SMS / _SIBLING_SMS)
        fades = {name: min(1.0, (math.log(_NO_SIBLING_SMS) - sms) / span) for _, sms, name in near}
        if not any(fades.values()):
            return ()
        parts = {name: fades[name] * max(apart, _SAME_BOARD) ** _BY_DISTANCE for apart, _, name in near}
        if near[0][0] < _SAME_BOARD:
            parts = {name: float(apart < _SAME_BOARD) for apart, _, name in near}
        whole, known = sum(parts.values()), max(fades.values())
        shares = {name: known * part / whole for name, part in parts.items()} | {ANY_GPU: 1.0 - known}
        kept = {name: share for name, share in shares.items() if share > _SAME_BOARD}
        return tuple((name, share / sum(kept.values())) for name, share in kept.items())

    def siblings(self, gpu: GPUSpec) -> tuple[str, ...]:
        """The measured or calibrated GPUs of the same chip, the nearest in SMs and bandwidth first, within limits."""
        return tuple(name for _, _, name in self._near(gpu, _SIBLING_SMS))

    def _near(self, gpu: GPUSpec, most: float) -> list[tuple[float, float, str]]:
        """(distance, of it by SMs, name) of those with up to ``most`` times the SMs or as few, the nearest first."""
        near: list[tuple[float, float, str]] = []
        for name, scalars in self._devices.items():
            if name != gpu.id and self._same_chip(name, gpu) and not _starved(scalars, gpu):
                other = next(iter(scalars.values()))
                apart = abs(math.log(other.sms / gpu.sm_count))
                if apart <= math.log(most):
                    near.append((apart + abs(math.log(other.bandwidth / gpu.memory_bandwidth)), apart, name))
        return sorted(near, key=lambda neighbour: (neighbour[0], neighbour[2]))

    def _same_chip(self, name: str, gpu: GPUSpec) -> bool:
        """Whether the measured GPU ``name`` runs the kernels of ``gpu``: by compute capability; by generation where a
        vendor has none (MI325X is MI300X with other memory)."""
        if gpu.compute_capability or self._capabilities[name]:
            return chip(self._capabilities[name]) == chip(gpu.compute_capability)
        try:
            return generation(load_gpu(name)) == generation(gpu)
        except UnknownNameError:  # a board of somebody's file, which the catalogue lacks
            return False

    def measured_siblings(self, gpu: GPUSpec) -> tuple[str, ...]:
        """Those of `siblings` with rows of their own."""
        return tuple(name for name in self.siblings(gpu) if name in self._measured)

    def device(self, source: str, dtype: str) -> Device | None:
        """The scalars of the measured GPU ``source``; None for shared constants, and in a dtype without rows."""
        return self._devices.get(source, {}).get(dtype)

    def device_as(self, source: str, gpu: GPUSpec, dtype: str) -> Device:
        """The scalars of ``gpu``; where a sibling of its compute capability answers, no better than its rows show.

        More watts or MHz than a sibling has are no measured gain: waits (a launch, a load from memory, a barrier) are
        as long on GB200 as on B200, at a clock 5 % higher, and products gain by SMs and MHz, not by the data sheet's
        peak at the power that it allows. Fewer of them cost what they cost any board. A calibrated board's constants
        are of what it was taken for when they were fitted. A variant of a board has that board's scalars, as far as
        they go up or down with what was varied.
        """
        filed = as_filed(gpu)
        known = self._as_sibling(source, filed, dtype)
        return known if filed is gpu else known.varied(Device.of(filed, dtype), Device.of(gpu, dtype))

    def _as_sibling(self, source: str, gpu: GPUSpec, dtype: str) -> Device:
        device, (name, sibling) = Device.of(gpu, dtype), self._stand_in(source, gpu, dtype)
        if sibling is None or self._capabilities[name] != gpu.compute_capability:
            return device
        a_clock = sibling.peak_flops / (sibling.tensor_rate * sibling.sms * sibling.clock_hz)
        peak = a_clock * device.tensor_rate * device.sms * device.clock_hz
        clock = min(device.clock_hz, sibling.clock_hz)
        return replace(device, peak_flops=min(device.peak_flops, peak), clock_hz=clock)

    def asked_as(self, source: str, gpu: GPUSpec, dtype: str, device: Device) -> Device:
        """The scalars that trees of ``source`` are asked about for ``gpu``, which its core has as ``device``.

        Those of a sibling with as many SMs are asked about the sibling itself: its kernels and waves carry over as they
        are, and the cores tell what this board's memory changes.
        """
        _, sibling = self._stand_in(source, gpu, dtype)
        return device if sibling is None or sibling.sms != device.sms else sibling

    def _stand_in(self, source: str, gpu: GPUSpec, dtype: str) -> tuple[str, Device | None]:
        """The sibling that ``source`` is, or that a calibration of ``gpu`` set out from, and its scalars, if any."""
        if source == gpu.id and source not in self._measured:
            source = next(iter(self.measured_siblings(gpu)), source)
        return source, None if source == gpu.id else self.device(source, variant(dtype))

    def knots(self, key: str) -> Grid:
        """The sizes, by column, that core and trees under ``key`` are asked at; none where rows have no grid."""
        adapted = self._adapted.get(key)
        return self._knots.get(key, {}) if adapted is None else self.knots(next(iter(adapted.shares), ""))

    def own_rows(self, key: str, features: Callable[[], FloatArray]) -> FloatArray | float:
        """What a calibration's rows say under ``key`` beside the trees; 0 where there are none."""
        adapted = self._adapted.get(key)
        if adapted is None or not len(adapted.process.weights):
            return 0.0 if adapted is None else adapted.offset
        return adapted.told(features()[:, adapted.columns])

    def log_factor(
        self, key: str, gpu: GPUSpec, features: Callable[[], FloatArray], whole: bool = False
    ) -> FloatArray | float:
        """The trees' answer under ``key``, clipped and shrunk as its booster says; ``whole`` leaves it unshrunk.

        The booster for GPUs that nobody measured is trusted in full where a GPU of the same generation was, and
        shrunk elsewhere: what is common to the measured ones holds only in part for a new generation. A calibration
        says how much of whose trees it is; what its rows say beside them is in `own_rows`.
        """
        adapted = self._adapted.get(key)
        if adapted is not None:
            x = features()
            result: FloatArray | float = 0.0
            for trees, share in adapted.shares.items():
                if share:
                    result = result + share * self.said(trees, gpu, x, whole=True)
            return result
        booster = self._boosters.get(key)
        if booster is None:
            return 0.0
        trees_of = self._trees.get(key)
        if trees_of is None:
            trees_of = self._trees[key] = Trees.unpack(self._weights, booster["prefix"])
        low, high = booster["clip"]
        shrink = 1.0 if whole else self.strength(key, gpu)
        answer: FloatArray = shrink * np.clip(trees_of.predict(features()), low, high)
        return answer

    def said(self, key: str, gpu: GPUSpec, x: FloatArray, whole: bool = False) -> FloatArray:
        """What trees and a calibration's rows say together under ``key``, (n,), at features ``x`` (n, f)."""
        both = self.own_rows(key, lambda: x) + self.log_factor(key, gpu, lambda: x, whole)
        return np.broadcast_to(both, len(x))

    def strength(self, key: str, gpu: GPUSpec) -> float:
        """How far the trees under ``key`` are trusted for ``gpu``; 0 where there are none."""
        booster = self._boosters.get(key)
        if booster is None:
            return 0.0
        if generation(gpu) in booster["architectures"]:
            return 1.0
        # Kernels for another instruction than mma.sync are written anew for a generation.
        return float(booster["shrink"] if runs_mma(gpu) else booster.get("unlike", booster["shrink"]))

    def measured(self, kind: str) -> tuple[str, ...]:
        """Keys of the trees that measured NVIDIA GPUs have for rows of ``kind``, sorted; without calibrated GPUs."""
        with_capability = {name for name in self._measured if self._capabilities[name]}
        keys = (f"{name}|{kind}" for name in with_capability)
        return tuple(sorted(key for key in keys if key in self._boosters and key not in self._adapted))

    def rests_on(self, source: str, gpu: GPUSpec, *path: str) -> str:
        """Whose rows the constants of ``source`` under ``path`` rest on, for ``gpu``, in words."""
        about, told = self._about, self._about["probes"].get(f"{source}|{path[-1]}")
        rows_of_core = about["core_rows"].get("|".join((source, *path)))
        many = f"{rows_of_core or about['rows']:,} rows" if rows_of_core or about["rows"] else "rows"
        if source in about["calibrated"]:
            probes = f" and {told['rows']:,} tile probes" if told else ""
            return f"calibrated to {source}: {(about['calibration'] or {}).get('rows', 'some')} of its rows{probes}"
        if told and not told["library_rows"]:
            return f"{told['rows']:,} tile probes of {source}; the library's choices from all boards"
        if source in SHARED:
            alike = "with similar tensor cores" if source == MMA_GPUS else "measured"
            measured = ", ".join(sorted(self._measured))
            return f"boards {alike}, without {gpu.id}: {many} of {measured}"
        sibling = "" if source == gpu.id else f", a similar GPU: {gpu.id} was not measured"
        run_by = {key.split("|")[1] for key in self.cores if key.startswith(f"{source}|")}
        told_of = "".join(f", {what}" for name in sorted(run_by) if (what := engines.library(name).rows))
        if rows_of_core:
            return f"{many} of {source}{told_of}{sibling}"
        return f"rows of {source}{told_of}{sibling} ({many} of all boards)"

    def runners(self, kind: str) -> tuple[str, ...]:
        """Libraries whose constants of ``kind`` all GPUs share, sorted."""
        keys = (key.split("|") for key in self.cores)
        return tuple(sorted({path[1] for path in keys if path[0] in SHARED and path[-1] == kind}))

    def gpus(self) -> tuple[str, ...]:
        """Ids of the GPUs that were measured, sorted."""
        return tuple(sorted({key.split("|", 1)[0] for key in self.cores} - set(SHARED)))


def _starved(scalars: Mapping[str, Device], gpu: GPUSpec) -> bool:
    """Whether power holds a measured board, of such scalars, where it does not hold ``gpu``, which has the same chip
    with less of its tensor cores.

    Its rows have its clock in long products, and ``gpu`` has another. Source: bf16 products of 256 rows and more,
    142 to 166 of 165 TFLOP/s on RTX 4090 (LLMServingSim's kernel tables); 8,192 of all three sizes on L40S, 212 of 362
    (AIConfigurator's). L40, which has RTX 4090's tensor cores on 300 W, is as slow as L40S (PipeWeave's prefills).
    """
    known, full = scalars.get("bf16"), gpu.matrix_rates.get("fp16")
    if known is None or not full or tensor_rate(gpu, "bf16") >= known.tensor_rate or sustained_share(gpu) < 1.0:
        return False
    return known.peak_flops < _HELD * known.tensor_rate * full * known.sms * known.clock_hz


def _adapted(manifest: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]]) -> dict[str, Adapted]:
    """What calibrations add, by key."""
    if not manifest:
        return {}
    from predictor.kernels.gaussian import Adapted  # a set without calibrated boards starts without it

    return {key: Adapted.from_manifest(about, weights) for key, about in manifest.items()}


def by_variant(batch: Batch) -> Iterable[tuple[str, str, npt.NDArray[np.int64]]]:
    """(dtype, scheme, rows) of the operators of a batch that one variant of a kernel runs."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i, op in enumerate(batch.ops):
        groups.setdefault((op.dtype, getattr(op, "quant", "")), []).append(i)
    return ((dtype, quant, np.array(rows)) for (dtype, quant), rows in groups.items())


class ServingEstimator:
    """What the estimators of serving kernels share: constants and trees, and the GPUs they were fitted on."""

    #: The constants that its cores have.
    forms: ClassVar[tuple[type[Named], ...]] = ()

    def __init__(self, name: str, corrections: Corrections) -> None:
        self.name = name
        self._corrections = corrections
        self._answers = Answers()
        self._views: dict[str, Self] = {}

    @classmethod
    def from_artifact(cls, manifest: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]]) -> Self:
        """From an artifact's two files; SpecError where a key is missing."""
        return cls(str(manifest["name"]), Corrections(manifest, weights, cls.forms))

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time, shape (n,): of a board with several siblings, their geometric mean by distance."""
        shares = self._corrections.shares(gpu)
        if len(shares) < 2:
            return self._answer(batch, gpu)
        logs = np.array([share * np.log(self._as(name)._answer(batch, gpu)) for name, share in shares])
        result: FloatArray = np.exp(logs.sum(axis=0))
        return result

    def _answer(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time, shape (n,), as the first of `Corrections.stand_ins` has it."""
        raise NotImplementedError

    def _as(self, name: str) -> Self:
        """The estimator with what was measured of ``name`` first."""
        if name not in self._views:
            self._views[name] = self._with(self._corrections.led_by(name))
        return self._views[name]

    def _with(self, corrections: Corrections) -> Self:
        """The estimator with other constants and trees, and nothing kept of its answers."""
        result = copy(self)
        result._corrections, result._answers, result._views = corrections, Answers(), {}
        return result

    def _corrected(
        self, source: str, kind: str, gpu: GPUSpec, dtype: str, shapes: S, core_time: Callable[[S, Device], C],
        features: Callable[[S, Device, C], FloatArray], corners: Corners | None = None,
        others: tuple[str, ...] = (),
    ) -> FloatArray:  # fmt: skip
        """Seconds of the kernels, (n,): core times trees, as ``source`` answers for ``gpu``.

        With ``corners``, both are asked at measured sizes alone (`predictor.kernels.knots`); ``others`` is what else
        tells these kernels from others. Trees are asked about the board that ``gpu`` is a variant of, whatever of it
        was varied: what that changes, the core says.
        """
        device, key, filed = self._device(source, gpu, dtype), f"{source}|{kind}", as_filed(gpu)
        of_board = device if filed is gpu else self._device(source, filed, dtype)
        asked = self._corrections.asked_as(source, filed, dtype, of_board)

        def ask(shapes: S) -> FloatArray:
            core = core_time(shapes, device)
            shown = core if asked is device else core_time(shapes, asked)
            factor = self._corrections.log_factor(key, gpu, lambda: features(shapes, asked, shown))
            seconds: FloatArray = core.total * np.exp(factor)
            return seconds

        seconds = (
            ask(shapes) if corners is None else self._answers.seconds((key, gpu, dtype, *others), shapes, corners, ask)
        )
        log_residual = self._corrections.own_rows(key, lambda: features(shapes, asked, core_time(shapes, asked)))
        return seconds * np.exp(log_residual)

    def _device(self, source: str, gpu: GPUSpec, dtype: str) -> Device:
        """What its core reads of a GPU for which ``source`` answers."""
        return self._corrections.device_as(source, gpu, dtype)

    def explain(self, batch: Batch, gpu: GPUSpec) -> Explanation:
        """What the formula says of the only operator of ``batch``, and the factor of the trees over it."""
        alone = self.core_alone()
        seconds, core = (float(e.seconds(batch, gpu)[0]) for e in (self, alone))
        parts = terms("residual", [
            ("core", core, "s", "what the formula says"),
            ("factor", seconds / core, COUNT, "kernel / core: trees, or a calibration, at the nearest measured sizes"),
            ("kernel", seconds, "s", "core x factor"),
        ])  # fmt: skip
        assert alone._corrections.answers is not None
        path, source, constants = alone._corrections.answers[0]
        return Explanation((*parts, *constant_terms(constants)), "", self._corrections.rests_on(source, gpu, *path))

    def core_alone(self) -> Self:
        """The estimator without its trees: what its formula says."""
        return self._with(self._corrections.without_trees())
