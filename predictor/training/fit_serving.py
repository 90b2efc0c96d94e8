"""Fits the estimators of serving kernels: constants of a core by robust least squares, then trees on what is left.

One pass a family: (1) constants for every (GPU, framework, variant) and, shared by all NVIDIA GPUs, for GPUs that
nobody measured; (2) trees on log(latency / core) for every measured (GPU, kind), and one booster over all NVIDIA GPUs,
which is given no feature that names one. Rows are sampled where there are very many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.dtypes import bytes_of
from predictor.estimators import serving_attention, serving_gemm, serving_moe
from predictor.estimators.residual import (
    ANY_GPU,
    FRAMEWORKS,
    MMA_GPUS,
    Device,
    FloatArray,
    describe_device,
    runs_mma,
)
from predictor.hardware.gpu import GPUSpec
from predictor.quantization import SCHEMES, activation_bytes, variant, weight_bytes
from predictor.training.boosting import Settings, boost

Frame = Any
Fitted = tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]

#: dtypes whose rows these estimators are fitted on.
ROW_DTYPES = ("bf16", "fp8", "int8", "mxfp8", "nvfp4")
_CORE_ROWS = 3000  # rows that the constants of one core are fitted on
_PRIOR = 0.03  # pull of the constants toward their start, against the rows' errors
_MEASURED_CLIP = (-2.5, 2.5)
_HALF_OF_LOG_2 = 0.34  # clipped so far, the trees cannot make twice a compute-bound core take less time


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one GPU, framework and variant, ready for a core and its features."""

    gpu: str
    path: str  # key of the constants behind the GPU
    kind: str  # key of the booster behind the GPU
    device: Device
    shapes: Any
    framework: int
    log_latency: FloatArray
    dtype: str
    blocked: bool = False  # fp8 with a scale for every block

    @property
    def size(self) -> int:
        return len(self.log_latency)


@dataclass(frozen=True, slots=True)
class Family:
    """What differs between GEMM, attention and MoE."""

    kind: str
    names: tuple[str, ...]
    start: tuple[float, ...]
    features: tuple[str, ...]
    parts: Callable[[Frame, Mapping[str, GPUSpec]], Iterator[Part]]
    core: Callable[[Part, FloatArray], Any]
    describe: Callable[[Part, Any], FloatArray]
    measured: Settings
    unseen: Settings
    rows_a_booster: int
    unseen_shrink: float  # for an architecture that was not measured; chosen by leaving GPUs out
    alike_shrink: float  # the same, where boards that run the same kernels were
    unseen_clip: float


def fit_gemm(frame: Frame, gpus: Mapping[str, GPUSpec], seed: int, own: bool = True) -> Fitted:
    """(manifest, weights) of a `ServingGemm` from measured rows (op gemm), plain and quantized."""
    return _fit(GEMM, frame, gpus, seed, own)


def fit_attention(frame: Frame, gpus: Mapping[str, GPUSpec], seed: int, own: bool = True) -> Fitted:
    """(manifest, weights) of a `ServingAttention` from measured forward rows (op attention)."""
    return _fit(ATTENTION, frame, gpus, seed, own)


def fit_moe(frame: Frame, gpus: Mapping[str, GPUSpec], seed: int, own: bool = True) -> Fitted:
    """(manifest, weights) of a `ServingMoE` from measured rows (op moe), plain and quantized."""
    return _fit(MOE, frame, gpus, seed, own)


def expressible(frame: Frame) -> npt.NDArray[np.bool_]:
    """(n,) True for rows that an operator can ask for: without a quantization scheme, or with one of `SCHEMES`."""
    return np.asarray(np.isin(_quant(frame), ["", *SCHEMES]), dtype=bool)


# ------------------------------------------------------------------------------------------------------- the pass


def _fit(family: Family, frame: Frame, gpus: Mapping[str, GPUSpec], seed: int, own: bool) -> Fitted:
    """Without ``own``, only what answers for GPUs that nobody measured, and no sibling either."""
    parts = list(family.parts(frame, gpus))
    cores: dict[str, FloatArray] = {}
    boosters: dict[str, dict[str, Any]] = {}
    weights: dict[str, npt.NDArray[Any]] = {}
    for name, members in _groups_of(parts, gpus).items():
        shared = name in (ANY_GPU, MMA_GPUS)
        if not (shared or own):
            continue
        for path in dict.fromkeys(part.path for part in members):
            cores[f"{name}|{path}"] = fit_constants(family, [p for p in members if p.path == path], seed)
        for kind in dict.fromkeys(part.kind for part in members):
            rows = [(part, cores[f"{name}|{part.path}"]) for part in members if part.kind == kind]
            prefix = f"b{len(boosters)}_"
            trees = boost(*_table(family, rows, seed, shared), seed, family.unseen if shared else family.measured)
            weights |= trees.pack(prefix)
            boosters[f"{name}|{kind}"] = {
                "prefix": prefix,
                "clip": [-family.unseen_clip, family.unseen_clip] if shared else list(_MEASURED_CLIP),
                "shrink": {ANY_GPU: family.unseen_shrink, MMA_GPUS: family.alike_shrink}.get(name, 1.0),
                "architectures": sorted({gpus[part.gpu].architecture for part in members}),
            }
    dtypes = {gpu: sorted({part.dtype for part in parts if part.gpu == gpu}) for gpu in {part.gpu for part in parts}}
    manifest = {
        "kind": family.kind,
        "constants": list(family.names),
        "features": list(family.features),
        "devices": {gpu: describe_device(gpus[gpu], dtypes[gpu]) for gpu in sorted(dtypes) if own},
        "cores": {key: [round(float(v), 9) for v in values] for key, values in cores.items()},
        "boosters": boosters,
        "fitted_rows": int(sum(part.size for part in parts)),
        "shapes_covered": _covered(parts),
    }
    return manifest, weights


def _groups_of(parts: Sequence[Part], gpus: Mapping[str, GPUSpec]) -> dict[str, list[Part]]:
    """Parts by what answers: every GPU, those that run mma.sync where there are two, and all NVIDIA GPUs."""
    groups = {gpu: [part for part in parts if part.gpu == gpu] for gpu in dict.fromkeys(part.gpu for part in parts)}
    alike = [part for part in parts if runs_mma(gpus[part.gpu])]
    if len({part.gpu for part in alike}) > 1:
        groups[MMA_GPUS] = alike
    groups[ANY_GPU] = [part for part in parts if gpus[part.gpu].vendor == "nvidia"] or list(parts)
    return groups


def fit_constants(family: Family, parts: Sequence[Part], seed: int) -> FloatArray:
    """Logarithms of a core's constants: robust least squares on log latency, pulled toward their start."""
    from scipy.optimize import least_squares

    start = np.log(np.array(family.start))
    each = max(300, _CORE_ROWS // len(parts))
    few = [_sample(part, each, seed) for part in parts]
    pull = _PRIOR * np.sqrt(sum(part.size for part in few))

    def errors(x: FloatArray) -> FloatArray:
        gaps = [np.log(family.core(part, x).total) - part.log_latency for part in few]
        return np.concatenate([*gaps, (x - start) * pull * 0.3])

    found = least_squares(errors, start, loss="soft_l1", f_scale=0.1, diff_step=1e-3, max_nfev=60)
    return np.asarray(found.x, dtype=np.float64)


def _table(
    family: Family, rows: Sequence[tuple[Part, FloatArray]], seed: int, every_gpu: bool
) -> tuple[FloatArray, FloatArray]:
    """Features (n, f) and log residuals (n,) of a booster's rows."""
    total = sum(part.size for part, _ in rows)
    share = min(1.0, family.rows_a_booster / total)
    xs, ys = [], []
    for whole, constants in rows:
        part = _sample(whole, max(200, int(share * whole.size)), seed)
        core = family.core(part, constants)
        xs.append(family.describe(part, core))
        residual = part.log_latency - np.log(core.total)
        ys.append(np.clip(residual, -0.8, 0.8) if every_gpu else residual)
    return np.concatenate(xs), np.concatenate(ys)


def _sample(part: Part, count: int, seed: int) -> Part:
    """At most ``count`` rows of a part, drawn without repetition, in their order."""
    if part.size <= count:
        return part
    rows = np.sort(np.random.default_rng(seed).choice(part.size, count, replace=False))
    return _take(part, rows)


def _take(part: Part, rows: npt.NDArray[np.int64]) -> Part:
    from dataclasses import fields, replace

    values = {f.name: getattr(part.shapes, f.name) for f in fields(part.shapes)}
    chosen = {name: value[rows] if isinstance(value, np.ndarray) else value for name, value in values.items()}
    return replace(part, shapes=replace(part.shapes, **chosen), log_latency=part.log_latency[rows])


def _covered(parts: Sequence[Part]) -> dict[str, list[float]]:
    """Smallest and largest value of every shape field over all rows."""
    found: dict[str, list[float]] = {}
    for part in parts:
        for name in type(part.shapes).__dataclass_fields__:
            value = getattr(part.shapes, name)
            if isinstance(value, np.ndarray) and value.size:
                low, high = found.get(name, [np.inf, -np.inf])
                found[name] = [min(low, float(value.min())), max(high, float(value.max()))]
    return found


# ------------------------------------------------------------------------------------------------------- the rows


def _groups(frame: Frame, gpus: Mapping[str, GPUSpec], extra: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """((gpu, framework, dtype, *extra), rows) of the groups that a data sheet has a peak for, in sorted order."""
    keys = {name: frame[name].astype(str).to_numpy() for name in ("gpu", "framework", "dtype")}
    table = type(frame)({**keys, **extra})
    for key, rows in sorted(table.groupby(list(table.columns), sort=True).indices.items()):
        gpu, framework, dtype = key[:3]
        if framework in FRAMEWORKS and gpu in gpus and gpus[gpu].supports(dtype):
            yield key, frame.iloc[np.sort(rows)]


def _quant(frame: Frame) -> npt.NDArray[np.str_]:
    if "quant" not in frame:
        return np.full(len(frame), "", dtype=object).astype(str)
    return np.asarray(frame["quant"].astype(object).fillna("").astype(str), dtype=str)


def _kept(frame: Frame) -> Frame:
    """Rows of the dtypes and quantization schemes that an operator can say."""
    return frame[expressible(frame) & np.asarray(frame["dtype"].astype(str).isin(ROW_DTYPES))]


def _floats(part: Frame, name: str) -> FloatArray:
    return np.asarray(part[name].astype(float), dtype=np.float64)


def _log_latency(part: Frame) -> FloatArray:
    return np.log(_floats(part, "latency_ms") * 1e-3)


def _gemm_parts(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[Part]:
    frame = _kept(frame)
    for (gpu, framework, dtype, quant), rows in _groups(frame, gpus, {"quant": _quant(frame)}):
        batch, m, n, k = (_floats(rows, name) for name in ("batch", "m", "n", "k"))
        sizes = activation_bytes(dtype, quant), weight_bytes(dtype, quant)
        shapes = serving_gemm.Shapes(np.nan_to_num(batch, nan=1.0), m, n, k, *sizes)
        device, kind = Device.of(gpus[gpu], dtype), variant(dtype, quant)
        yield Part(gpu, f"{framework}|{kind}", kind, device, shapes, FRAMEWORKS[framework], _log_latency(rows), dtype)


def _attention_parts(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[Part]:
    frame = _kept(frame)
    for (gpu, framework, dtype, phase), rows in _groups(frame, gpus, {"phase": _phases(frame)}):
        cache = rows["kv_dtype"].astype(object).fillna("").astype(str).replace("", dtype)
        sizes = cache.map({name: bytes_of(name) for name in cache.unique()})
        names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "causal")
        columns = [_floats(rows, name) for name in names]
        columns.insert(-1, _value_width(rows))
        window = np.nan_to_num(_floats(rows, "window"))
        cache_bytes = np.asarray(sizes, dtype=np.float64)
        shapes = serving_attention.Shapes.of(
            [*columns, window], bytes_of(dtype), cache_bytes, _shared(rows).astype(np.float64)
        )
        device = Device.of(gpus[gpu], dtype)
        path = f"{framework}|{phase}|{dtype}"
        yield Part(gpu, path, phase, device, shapes, FRAMEWORKS[framework], _log_latency(rows), dtype)


def _shared(rows: Frame) -> npt.NDArray[np.bool_]:
    """(n,) True where the values are a slice of the keys."""
    if "shared_kv" not in rows:
        return np.zeros(len(rows), dtype=bool)
    return np.asarray(rows["shared_kv"].astype(object).fillna(False).astype(bool), dtype=bool)


def _phases(rows: Frame) -> npt.NDArray[np.str_]:
    heads, kv_heads, head_dim = (_floats(rows, name) for name in ("heads", "kv_heads", "head_dim"))
    decode = _floats(rows, "q_len") == 1
    return serving_attention.phase_of(decode, _shared(rows), heads, kv_heads, head_dim, _value_width(rows))


def _value_width(rows: Frame) -> FloatArray:
    """Head width of the values, (n,): the queries' unless the row says otherwise."""
    width = np.nan_to_num(_floats(rows, "v_head_dim")) if "v_head_dim" in rows else np.zeros(len(rows))
    return np.where(width > 0, width, _floats(rows, "head_dim"))


def _moe_parts(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[Part]:
    frame = _kept(frame)
    for (gpu, framework, dtype, quant), rows in _groups(frame, gpus, {"quant": _quant(frame)}):
        names = ("tokens", "hidden", "intermediate", "experts", "top_k")
        gated = rows["gated"].astype(object).fillna(True).astype(bool)
        spread = rows["distribution"].astype(str)
        exponents = spread.map({name: serving_moe.exponent_of(name) for name in spread.unique()})
        columns = [_floats(rows, name) for name in names]
        columns += [np.where(gated, 3.0, 2.0), _floats(rows, "tp"), _floats(rows, "ep")]
        shapes = serving_moe.Shapes.of([*columns, np.asarray(exponents, dtype=np.float64)], weight_bytes(dtype, quant))
        device, name = Device.of(gpus[gpu], dtype), variant(dtype, quant)
        kind = serving_moe.booster_of(name)
        yield Part(
            gpu, f"{framework}|{name}", kind, device, shapes, FRAMEWORKS[framework], _log_latency(rows), dtype,
            name == serving_moe.BLOCKED,
        )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- the families

GEMM = Family(
    kind="serving_gemm",
    names=serving_gemm.CONSTANTS,
    start=(0.8, 0.8, 15e9, 5e3, 8.0, 170.0, 0.13, 1.5e3),
    features=serving_gemm.FEATURES,
    parts=_gemm_parts,
    core=lambda part, x: serving_gemm.core_time(part.shapes, part.device, x),
    describe=lambda part, core: serving_gemm.features(part.shapes, part.device, core, part.framework),
    measured=Settings(rounds=300),
    unseen=Settings(rounds=150, leaves=31, depth=7, rows_a_leaf=60),
    rows_a_booster=130_000,
    unseen_shrink=0.2,
    alike_shrink=0.6,
    unseen_clip=_HALF_OF_LOG_2,
)
ATTENTION = Family(
    kind="serving_attention",
    names=serving_attention.CONSTANTS,
    start=(0.6, 0.8, 20e9, 8e3, 540.0, 0.5, 20e9, 1.8e3),
    features=serving_attention.FEATURES,
    parts=_attention_parts,
    core=lambda part, x: serving_attention.core_time(
        part.shapes, part.device, x, serving_attention.is_decode(part.kind)
    ),
    describe=lambda part, core: serving_attention.features(part.shapes, part.device, core, part.framework),
    measured=Settings(rounds=160, leaves=511, depth=16, rate=0.14, sampling=0.9),
    unseen=Settings(rounds=150, leaves=31, depth=7, rows_a_leaf=60),
    rows_a_booster=150_000,
    unseen_shrink=0.8,
    alike_shrink=1.0,
    unseen_clip=0.8,
)
MOE = Family(
    kind="serving_moe",
    names=serving_moe.CONSTANTS,
    start=(0.5, 0.75, 15e9, 3e4, 16.0, 0.2e-6, 0.2, 1.0),
    features=serving_moe.FEATURES,
    parts=_moe_parts,
    core=lambda part, x: serving_moe.core_time(part.shapes, part.device, x),
    describe=lambda part, core: serving_moe.features(part.shapes, part.device, core, part.framework, part.blocked),
    measured=Settings(rounds=300),
    unseen=Settings(rounds=150, leaves=31, depth=7, rows_a_leaf=60),
    rows_a_booster=150_000,
    unseen_shrink=1.0,
    alike_shrink=1.0,
    unseen_clip=0.8,
)
