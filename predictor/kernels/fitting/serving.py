"""Fits the estimators of serving kernels: constants of a core by robust least squares, then trees on what is left.

One pass a family: (1) constants for every (GPU, framework, variant) and, shared by all NVIDIA GPUs, for GPUs that
nobody measured; (2) trees on log(latency / core) for every measured (GPU, kind), and one booster over all NVIDIA GPUs,
which is given no feature that names one. Rows are sampled where there are very many.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from predictor import engines
from predictor.data.frame import Frame
from predictor.files.records import dataclass, replace
from predictor.hardware.generation import generation, runs_mma
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.attention import core as attention
from predictor.kernels.attention import estimator as serving_attention
from predictor.kernels.device import describe_device
from predictor.kernels.fitting.boosting import BoosterSettings
from predictor.kernels.fitting.family import FamilyFit, Fitted, Law, Residual, SearchStage, fit, of_cores
from predictor.kernels.fitting.grids import SizesOf, knots_of, stored
from predictor.kernels.fitting.serving_rows import (
    VariantRows,
    attention_for_all,
    attention_parts,
    covered,
    gemm_parts,
    moe_by_kernel,
    moe_parts,
    sample,
)
from predictor.kernels.gemm import core as gemm
from predictor.kernels.gemm import estimator as serving_gemm
from predictor.kernels.knots import Corners, Grid
from predictor.kernels.moe import core as moe
from predictor.kernels.named import Named
from predictor.kernels.residual import ANY_GPU, MMA_GPUS, SHARED
from predictor.ops.roofline import FloatArray

#: Rows that the constants of one core are fitted on, their pull toward their start against the rows' errors, and what
#: the trees of a measured GPU may say at most (a factor of 12): chosen by hand, not from data.
_CORE_ROWS = 3000
_PRIOR = 0.03
_MEASURED_CLIP = (-2.5, 2.5)
_PLAIN = "bf16"
#: A table whose slowest tenth takes so many times what the other GPUs' tables say teaches nothing. Chosen by looking at
#: all tables of GEMM, each forecast from the other boards' (see `typical`).
_FAR = np.log(2.15)
#: Half of log 2, by definition, rounded down: the trees cannot make twice a compute-bound core take less time.
_HALF_OF_LOG_2 = 0.34


@dataclass(frozen=True, slots=True)
class Family:
    """What differs between GEMM, attention and MoE."""

    kind: str
    start: Callable[[str], Named]  # by kind of rows: the constants from which a fit sets out
    features: tuple[str, ...]
    parts: Callable[[Frame, Mapping[str, GPUSpec]], Iterator[VariantRows]]
    core: Callable[[VariantRows, Any], Any]  # of a part's shapes, by constants of the start's form
    describe: Callable[[VariantRows, Any], FloatArray]
    measured: BoosterSettings
    unseen: BoosterSettings
    rows_a_booster: int
    unseen_shrink: Callable[[str], float]  # by kind: for an architecture not measured; chosen by leaving GPUs out
    alike_shrink: float | None  # the same, where boards that run the same kernels were; None: those share nothing more
    unseen_clip: float
    unlike_shrink: Callable[[str], float] | None = None  # by kind: of boards without mma.sync; None: as all others
    pulls: tuple[float, ...] = ()  # of every constant toward its start, against the usual pull; all 1 where empty
    searches: tuple[Mapping[str, float], ...] = ({},)  # in what the constants from which a fit sets out differ
    by_kernel: Callable[[Frame, Mapping[str, GPUSpec]], Iterator[VariantRows]] | None = None  # parts of what GPUs share
    kernel_of: Callable[[str, VariantRows, GPUSpec], str] | None = (
        None  # by a library's name; for which GPUs share constants
    )
    of_kernel: tuple[str, ...] = ()  # constants that all variants of a kernel have in common
    shared_pull: float = 1.0  # of what GPUs share toward its start, against the usual pull
    hidden: Callable[[str], Sequence[int]] = lambda kind: ()  # features that trees of all GPUs are not shown, by kind
    from_plain: bool = False  # what GPUs share of a variant is pulled toward the framework's plain products (bf16)
    sizes_of: SizesOf | None = None  # columns that tables have on a grid, by shapes and kind
    corners_of: Callable[[Any, str, Grid], Corners | None] | None = None  # their knots around shapes of a kind
    like: Callable[[str], str] | None = None  # the kind whose rows tell the constants that GPUs share, if there are any

    def total(self, part: VariantRows, logs: FloatArray) -> FloatArray:
        """Seconds of the core, (n,), by logarithms of its constants."""
        result: FloatArray = self.core(part, self.start(part.kind).from_logs(logs)).total
        return result

    def at_knots(self, part: VariantRows, knots: Grid) -> tuple[VariantRows, Callable[[FloatArray], FloatArray]]:
        """(the part at the measured sizes around its rows, what makes answers there those of the rows)."""
        corners = self.corners_of(part.shapes, part.kind, knots) if self.corners_of else None
        if corners is None:
            return part, lambda answers: answers
        return replace(part, shapes=corners.at(part.shapes), log_latency=part.log_latency[corners.rows]), corners.joined


# ------------------------------------------------------------------------------------------------------- the pass


class ServingFit(FamilyFit):
    """The family's estimator from measured rows of its operator, plain and quantized.

    With what answers for GPUs that nobody measured, and for the measured ones in ``fitted_gpus`` (None: all of them).
    """

    def __init__(
        self, family: Family, frame: Frame, gpus: Mapping[str, GPUSpec], seed: int, fitted_gpus: Container[str] | None
    ) -> None:
        self._family, self._gpus, self._seed, self._own = family, gpus, seed, fitted_gpus
        # Fewer rows than constants tell none of them.
        self._parts = [part for part in family.parts(frame, gpus) if part.size >= len(family.start(part.kind).names())]
        pooled = list(family.by_kernel(frame, gpus)) if family.by_kernel else self._parts
        if family.from_plain:
            pooled = _plain_first(typical(family, _of_nvidia(pooled, gpus), seed))
        groups = _groups_of(self._parts, pooled, gpus, family.alike_shrink is not None)
        self._groups = {k: v for k, v in groups.items() if k in SHARED or fitted_gpus is None or k in fitted_gpus}
        self._cores: dict[str, Named] = {}
        self._core_rows: dict[str, int] = {}
        self._grids: list[list[float]] = []

    def laws(self) -> Iterator[Law]:
        """Constants of every GPU, and of those that share some, by framework and variant."""
        family = self._family
        for name, members in self._groups.items():
            shared = name in SHARED
            common: dict[str, Named] = {}
            if shared and family.of_kernel:
                members, common = _of_kernels(family, members, self._seed)
                self._groups[name] = members
            for path, kind in dict.fromkeys((part.path, part.kind) for part in members):
                start = common.get(path.split("|")[0])
                if shared and family.from_plain:
                    start = self._cores.get("|".join((name, path.split("|")[0], _PLAIN)))
                telling = [p for p in members if p.path == path]
                if shared and family.like:
                    like = path.replace(kind, family.like(kind))
                    telling = [p for p in members if p.path == like] or telling
                law = ConstantsLaw(family, telling, self._seed, start, family.shared_pull if shared else 1.0)
                yield law
                self._cores[f"{name}|{path}"] = law.constants
                self._core_rows[f"{name}|{path}"] = sum(part.size for part in telling)

    def residuals(self) -> Iterator[Residual]:
        """Trees of every GPU, and of those that share some, by kind; none of kinds that no tree could split."""
        family = self._family
        for name, members in self._groups.items():
            shared = name in SHARED
            for kind in dict.fromkeys(part.kind for part in members):
                rows = [(part, self._cores[f"{name}|{part.path}"]) for part in members if part.kind == kind]
                if sum(part.size for part, _ in rows) < 2 * family.measured.rows_a_leaf:
                    continue
                about: dict[str, Any] = {
                    "clip": [-family.unseen_clip, family.unseen_clip] if shared else list(_MEASURED_CLIP),
                    "shrink": {ANY_GPU: family.unseen_shrink(kind), MMA_GPUS: family.alike_shrink}.get(name, 1.0),
                    "architectures": sorted({generation(self._gpus[part.gpu]) for part in members}),
                }
                if shared and family.unlike_shrink:
                    about["unlike"] = family.unlike_shrink(kind)
                if family.sizes_of:
                    about["knots"] = stored(knots_of([part for part, _ in rows], family.sizes_of), self._grids)
                settings = family.unseen if shared else family.measured
                yield Residual(f"{name}|{kind}", *_table(family, rows, self._seed, shared), settings, about)

    def artifact(self, boosters: Mapping[str, Any]) -> Fitted:
        """A `ServingEstimator` of the family's kind."""
        dtypes: dict[str, set[str]] = {}
        for part in self._parts:
            dtypes.setdefault(part.gpu, set()).add(part.dtype)
        return {
            "kind": self._family.kind, "name": self._family.kind, "features": list(self._family.features),
            **of_cores(self._cores, self._core_rows, boosters),
            "devices": {
                gpu: describe_device(self._gpus[gpu], sorted(dtypes[gpu]))
                for gpu in sorted(dtypes)
                if self._own is None or gpu in self._own
            },
            "grids": self._grids, "fitted_rows": int(sum(part.size for part in self._parts)),
            "shapes_covered": covered(self._parts),
        }, {}  # fmt: skip


def fit_family(
    family: Family, frame: Frame, gpus: Mapping[str, GPUSpec], seed: int, fitted_gpus: Container[str] | None = None
) -> Fitted:
    """(manifest, weights) of the family's estimator; arguments as `ServingFit` has them."""
    return fit(ServingFit(family, frame, gpus, seed, fitted_gpus), seed)


def _of_kernels(family: Family, parts: Sequence[VariantRows], seed: int) -> tuple[list[VariantRows], dict[str, Named]]:
    """(parts that tell of other GPUs, constants for each kernel over all its variants).

    A variant that ran on boards of one kind alone cannot tell slow arithmetic from slow supply; the others can.
    """
    kept: list[VariantRows] = []
    starts: dict[str, Named] = {}
    for name in dict.fromkeys(part.path.split("|")[0] for part in parts):
        parts_of_kernel = [part for part in parts if part.path.split("|")[0] == name]
        sound = _sound(family, parts_of_kernel, fit_constants(family, parts_of_kernel, seed))
        starts[name] = fit_constants(family, sound, seed)
        kept += sound
    return kept, starts


def _sound(family: Family, parts: Sequence[VariantRows], constants: Named) -> list[VariantRows]:
    """Without parts that take twice as long as another framework with this kernel, variant and GPU.

    That is a matter of a release (of tactics it did not tune), and no other GPU is to learn it. FlashInfer's CUTLASS
    kernels on Hopper are such: 3 to 4 times as slow as TensorRT-LLM's. Between the others there is no factor of 1.7.
    """
    few = [sample(part, _CORE_ROWS, 0) for part in parts]
    slow = [float(np.median(part.log_latency - np.log(family.core(part, constants).total))) for part in few]
    best: dict[tuple[str, str], float] = {}
    for part, value in zip(parts, slow, strict=True):
        best[(part.gpu, part.path)] = min(value, best.get((part.gpu, part.path), np.inf))
    return [p for p, value in zip(parts, slow, strict=True) if value <= best[(p.gpu, p.path)] + np.log(2.0)]


def typical(family: Family, parts: Sequence[VariantRows], seed: int) -> list[VariantRows]:
    """Without tables that other GPUs cannot learn from: far slower than the other boards' with the same kernels.

    Each board is forecast from the other ones of its framework and variant. SGLang's fp8 on RTX PRO 6000 has one tile
    of 128 x 128 and no split of K, and takes 3 times as long for few rows; TensorRT-LLM's block-scaled fp8 there
    spends 10,000 cycles on quantizing a row, where other boards spend 300. Other boards' are all within 2.1.
    """
    far = set()
    for i, part in enumerate(parts):
        others = [p for p in parts if p.path == part.path and p.gpu != part.gpu]
        if others and part.kind != _PLAIN:
            few = [sample(other, _CORE_ROWS // 6, seed) for other in others]
            core = family.core(part, fit_constants(family, few, seed))
            if np.quantile(part.log_latency - np.log(core.total), 0.9) > _FAR:
                far.add(i)
    known = {part.path for i, part in enumerate(parts) if i not in far}
    return [part for i, part in enumerate(parts) if i not in far or part.path not in known]


def _of_nvidia(parts: Sequence[VariantRows], gpus: Mapping[str, GPUSpec]) -> list[VariantRows]:
    """Parts of NVIDIA's boards; all where there are none."""
    return [part for part in parts if gpus[part.gpu].vendor == "nvidia"] or list(parts)


def _plain_first(parts: Sequence[VariantRows]) -> list[VariantRows]:
    """Parts with those of plain products in front."""
    return sorted(parts, key=lambda part: part.kind != _PLAIN)


def _groups_of(
    parts: Sequence[VariantRows], pooled: Sequence[VariantRows], gpus: Mapping[str, GPUSpec], by_instruction: bool
) -> dict[str, list[VariantRows]]:
    """Parts by what answers: every GPU, those that run mma.sync where there are two, and all NVIDIA GPUs."""
    groups = {gpu: [part for part in parts if part.gpu == gpu] for gpu in dict.fromkeys(part.gpu for part in parts)}
    common = [part for part in pooled if part.shared] or list(pooled)
    alike = [part for part in common if runs_mma(gpus[part.gpu])]
    if by_instruction and len({part.gpu for part in alike}) > 1:
        groups[MMA_GPUS] = alike
    groups[ANY_GPU] = _of_nvidia(common, gpus)
    return groups


class ConstantsLaw(Law):
    """A core's constants by the rows of ``parts``, pulled ``strength`` times as hard toward their start as usual.

    ``common``: those of the kernel, which are the start then; what all its variants have in common stays as it is.

    The best of several searches where the family names any: kernels with split-K, without, and with large tiles alone
    are three valleys.
    """

    scale, step, most = 0.1, 1e-3, 60  # errors beyond 10 % count less: chosen by hand, not from data

    def __init__(
        self,
        family: Family,
        parts: Sequence[VariantRows],
        seed: int,
        common: Named | None = None,
        strength: float = 1.0,
    ) -> None:
        self._family, self._usual = family, family.start(parts[0].kind)
        names, self.start = self._usual.names(), (common or self._usual).logs()
        self._free = np.array([common is None or name not in family.of_kernel for name in names])
        each = max(300, _CORE_ROWS // len(parts))
        self._few = [sample(part, each, seed) for part in parts]
        usual = _PRIOR * np.sqrt(sum(part.size for part in self._few)) * 0.3
        self.pull = usual * strength * np.array(family.pulls or (1.0,))
        self._begins = [
            np.array([np.log(other[name]) if name in other else v for name, v in zip(names, self.start, strict=True)])
            for other in family.searches
        ]

    def stages(self) -> Iterator[SearchStage]:
        """One search, over all rows."""

        def errors(x: FloatArray) -> FloatArray:
            return np.concatenate([np.log(self._family.total(part, x)) - part.log_latency for part in self._few])

        yield SearchStage(errors, self._free, self._begins)

    @property
    def constants(self) -> Named:
        """Those found."""
        return self._usual.from_logs(self.x)


def fit_constants(family: Family, parts: Sequence[VariantRows], seed: int) -> Named:
    """A core's constants by the rows of ``parts`` alone."""
    law = ConstantsLaw(family, parts, seed)
    law.find()
    return law.constants


def _table(
    family: Family, rows: Sequence[tuple[VariantRows, Named]], seed: int, every_gpu: bool
) -> tuple[FloatArray, FloatArray]:
    """Features (n, f) and log residuals (n,) of a booster's rows."""
    total = sum(part.size for part, _ in rows)
    share = min(1.0, family.rows_a_booster / total)
    xs, ys = [], []
    for whole, constants in rows:
        part = sample(whole, max(200, int(share * whole.size)), seed)
        core = family.core(part, constants)
        x = family.describe(part, core)
        if every_gpu:
            x[:, list(family.hidden(part.kind))] = 0.0
        xs.append(x)
        residual = part.log_latency - np.log(core.total)
        ys.append(np.clip(residual, -0.8, 0.8) if every_gpu else residual)
    return np.concatenate(xs), np.concatenate(ys)


# ------------------------------------------------------------------------------------------------------- the families

#: In the families, where constants start, pulls and rows a booster were chosen by hand, not from data; trees, clips and
#: shrinks by looking at shapes and GPUs left out (benchmarks/results/accuracy-2026-11-23.md, What was tried).
GEMM = Family(
    kind="serving_gemm",
    start=lambda kind: gemm.Constants(0.8, 0.8, 15e9, 5e3, 8.0, 170.0, 0.13, 1.5e3, 1024.0, 3e3, 1e3, 1.0),
    features=gemm.FEATURES,
    parts=gemm_parts,
    core=lambda part, x: gemm.core_time(part.shapes, part.device, x),
    describe=lambda part, core: gemm.features(part.shapes, part.device, core, part.framework),
    measured=BoosterSettings(rounds=300),
    unseen=BoosterSettings(rounds=150, leaves=31, depth=7, rows_a_leaf=60),
    rows_a_booster=130_000,
    unseen_shrink=lambda kind: 0.2,
    alike_shrink=0.6,
    unseen_clip=_HALF_OF_LOG_2,
    # A step of the K loop takes about 170 cycles wherever it was seen; what looks longer is a tile that cannot shrink.
    pulls=(1.0, 1.0, 1.0, 1.0, 1.0, 10.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    searches=({}, {"split_cycles": 2e5}, {"split_cycles": 2e5, "smallest_tile": 128.0 * 128.0}),
    from_plain=True,
    sizes_of=serving_gemm.sizes_of,
    corners_of=serving_gemm.corners_of,
)


#: As those of `GEMM`: starts chosen by hand, not from data, trees by looking at shapes and GPUs left out.
ATTENTION = Family(
    kind="serving_attention",
    start=lambda kind: attention.START[serving_attention.is_decode(kind)],
    features=attention.FEATURES,
    parts=attention_parts,
    core=lambda part, x: attention.core_time(part.shapes, part.device, x),
    describe=lambda part, core: attention.features(part.shapes, part.device, core, part.framework),
    measured=BoosterSettings(rounds=240, leaves=511, depth=16, rate=0.1, sampling=0.9),
    unseen=BoosterSettings(rounds=200, leaves=127, depth=12, rows_a_leaf=10),
    rows_a_booster=150_000,
    # Decode with 0.9 and 0.7: A100 18.7 and 15.8 %, B200 and GB200 20.8 and 19.3, H100 and H200 17.8 and 17.4, L40S
    # 14.6 and 14.2, RTX PRO 6000 14.0 and 15.2.
    unseen_shrink=lambda kind: 0.7 if serving_attention.is_decode(kind) else 0.9,
    # Prefill with 0.9 and 0.7: H100 13.9 and 13.3, B200 14.4 and 13.9, fp8 16.2 and 11.4, 16.0 and 14.9; RTX PRO 6000
    # 13.2 and 14.9, L40S 15.9 and 18.9. Decode with 0.7 and 0.5: H100 15.8 and 16.5, B200 18.2 and 16.4.
    unlike_shrink=lambda kind: 0.6 if serving_attention.is_decode(kind) else 0.7,
    alike_shrink=None,  # A100 left out: prefill 9.9 % with all GPUs, 13.1 with L40S and RTX PRO 6000 alone
    unseen_clip=0.8,
    by_kernel=attention_for_all,
    kernel_of=lambda library, part, gpu: serving_attention.shared_by(library, part.kind, gpu)[0],
    shared_pull=17.0,
    hidden=lambda kind: attention.hidden(serving_attention.is_decode(kind)),
    like=serving_attention.plain_phase,
    sizes_of=serving_attention.sizes_of,
    corners_of=serving_attention.corners_of,
)
#: As those of `GEMM`: starts chosen by hand, not from data, trees by looking at shapes and GPUs left out.
MOE = Family(
    kind="serving_moe",
    start=lambda kind: moe.Constants(0.5, 0.75, 15e9, 3e4, 16.0, 0.2, 1.0, 20.0, 0.1, 0.02, 0.75),
    features=moe.FEATURES,
    parts=moe_parts,
    core=lambda part, x: moe.core_time(part.shapes, part.device, x),
    describe=lambda part, core: moe.features(part.shapes, part.device, core, part.framework, part.blocked),
    measured=BoosterSettings(rounds=300),
    unseen=BoosterSettings(rounds=150, leaves=31, depth=7, rows_a_leaf=60),
    rows_a_booster=150_000,
    unseen_shrink=lambda kind: 1.0,
    alike_shrink=None,  # bf16 on the A100 left out: 16 % with all GPUs, 24.5 with L40S and RTX PRO 6000 alone
    unseen_clip=0.8,
    by_kernel=moe_by_kernel,
    kernel_of=lambda library, part, gpu: engines.library(library).moe_kernel(part.path.split("|")[-1], gpu),
    of_kernel=moe.OF_KERNEL,
)

fit_gemm, fit_attention, fit_moe = (partial(fit_family, family) for family in (GEMM, ATTENTION, MOE))
