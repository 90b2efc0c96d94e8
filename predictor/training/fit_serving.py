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
from predictor.estimators.residual import ANY_GPU, FRAMEWORKS, Device, FloatArray
from predictor.hardware.gpu import GPUSpec
from predictor.training.boosting import Settings, boost

Frame = Any
Fitted = tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]

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
    unseen_clip: float


def fit_gemm(frame: Frame, gpus: Mapping[str, GPUSpec], seed: int) -> Fitted:
    """(manifest, weights) of a `ServingGemm` from measured rows (op gemm); rows of quantized weights are left out."""
    return _fit(GEMM, frame, gpus, seed)


def fit_attention(frame: Frame, gpus: Mapping[str, GPUSpec], seed: int) -> Fitted:
    """(manifest, weights) of a `ServingAttention` from measured forward rows (op attention)."""
    return _fit(ATTENTION, frame, gpus, seed)


def fit_moe(frame: Frame, gpus: Mapping[str, GPUSpec], seed: int) -> Fitted:
    """(manifest, weights) of a `ServingMoE` from measured rows (op moe), bf16 and fp8."""
    return _fit(MOE, frame, gpus, seed)


def expressible(frame: Frame) -> npt.NDArray[np.bool_]:
    """(n,) True for rows that an operator can ask for: those without a quantization scheme beside their dtype.

    An operator says "fp8" alone; where a framework runs MoE layers in no fp8 but with block scales (SGLang), these
    rows are what "fp8" asks for.
    """
    quant = _quant(frame)
    blocked = (quant == "fp8_block") & np.asarray(frame["op"].astype(str) == "moe")
    if not blocked.any():
        return np.asarray(quant == "", dtype=bool)
    named = (frame["gpu"].astype(str) + "|" + frame["framework"].astype(str)).to_numpy()
    plain = (
        (quant == "") & np.asarray(frame["op"].astype(str) == "moe") & np.asarray(frame["dtype"].astype(str) == "fp8")
    )
    return np.asarray((quant == "") | (blocked & ~np.isin(named, np.unique(named[plain]))), dtype=bool)


# ------------------------------------------------------------------------------------------------------- the pass


def _fit(family: Family, frame: Frame, gpus: Mapping[str, GPUSpec], seed: int) -> Fitted:
    parts = list(family.parts(frame, gpus))
    nvidia = [part for part in parts if gpus[part.gpu].vendor == "nvidia"] or parts
    cores: dict[str, FloatArray] = {}
    for part in parts:
        cores[f"{part.gpu}|{part.path}"] = fit_constants(family, [part], seed)
    for path in dict.fromkeys(part.path for part in nvidia):
        cores[f"{ANY_GPU}|{path}"] = fit_constants(family, [p for p in nvidia if p.path == path], seed)
    boosters: dict[str, dict[str, Any]] = {}
    weights: dict[str, npt.NDArray[Any]] = {}
    architectures = sorted({gpus[part.gpu].architecture for part in nvidia})
    for gpu in (*dict.fromkeys(part.gpu for part in parts), ANY_GPU):
        chosen = nvidia if gpu == ANY_GPU else [part for part in parts if part.gpu == gpu]
        for kind in dict.fromkeys(part.kind for part in chosen):
            rows = [(part, cores[f"{gpu}|{part.path}"]) for part in chosen if part.kind == kind]
            prefix = f"b{len(boosters)}_"
            settings = family.unseen if gpu == ANY_GPU else family.measured
            trees = boost(*_table(family, rows, seed, gpu == ANY_GPU), seed, settings)
            weights |= trees.pack(prefix)
            boosters[f"{gpu}|{kind}"] = {
                "prefix": prefix,
                "clip": [-family.unseen_clip, family.unseen_clip] if gpu == ANY_GPU else list(_MEASURED_CLIP),
                "shrink": family.unseen_shrink if gpu == ANY_GPU else 1.0,
                "architectures": architectures,
            }
    manifest = {
        "kind": family.kind,
        "constants": list(family.names),
        "features": list(family.features),
        "cores": {key: [round(float(v), 9) for v in values] for key, values in cores.items()},
        "boosters": boosters,
        "fitted_rows": int(sum(part.size for part in parts)),
        "shapes_covered": _covered(parts),
    }
    return manifest, weights


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


def _kept(frame: Frame, quants: Sequence[str], dtypes: Sequence[str] = ("bf16", "fp8")) -> Frame:
    """Rows of the dtypes and quantization schemes that an operator can say."""
    keep = np.isin(_quant(frame), quants) & np.asarray(frame["dtype"].astype(str).isin(dtypes))
    return frame[keep]


def _floats(part: Frame, name: str) -> FloatArray:
    return np.asarray(part[name].astype(float), dtype=np.float64)


def _log_latency(part: Frame) -> FloatArray:
    return np.log(_floats(part, "latency_ms") * 1e-3)


def _gemm_parts(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[Part]:
    for (gpu, framework, dtype), rows in _groups(_kept(frame, ("",)), gpus, {}):
        batch, m, n, k = (_floats(rows, name) for name in ("batch", "m", "n", "k"))
        shapes = serving_gemm.Shapes(np.nan_to_num(batch, nan=1.0), m, n, k, bytes_of(dtype))
        device = Device.of(gpus[gpu], dtype)
        yield Part(gpu, f"{framework}|{dtype}", dtype, device, shapes, FRAMEWORKS[framework], _log_latency(rows))


def _attention_parts(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[Part]:
    frame = _kept(frame, ("",))
    decode = np.where(_floats(frame, "q_len") == 1, serving_attention.DECODE, serving_attention.PREFILL)
    for (gpu, framework, dtype, phase), rows in _groups(frame, gpus, {"phase": decode}):
        cache = rows["kv_dtype"].astype(object).fillna("").astype(str).replace("", dtype)
        sizes = cache.map({name: bytes_of(name) for name in cache.unique()})
        names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "causal")
        columns = [_floats(rows, name) for name in names]
        columns.insert(-1, _value_width(rows))
        window = np.nan_to_num(_floats(rows, "window"))
        cache_bytes = np.asarray(sizes, dtype=np.float64)
        shapes = serving_attention.Shapes.of([*columns, window], bytes_of(dtype), cache_bytes)
        device = Device.of(gpus[gpu], dtype)
        path = f"{framework}|{phase}|{dtype}"
        yield Part(gpu, path, phase, device, shapes, FRAMEWORKS[framework], _log_latency(rows))


def _value_width(rows: Frame) -> FloatArray:
    """Head width of the values, (n,): the queries' unless the row says otherwise."""
    width = np.nan_to_num(_floats(rows, "v_head_dim")) if "v_head_dim" in rows else np.zeros(len(rows))
    return np.where(width > 0, width, _floats(rows, "head_dim"))


def _moe_parts(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[Part]:
    frame = _kept(frame, ("", "fp8_block"))
    for (gpu, framework, dtype, quant), rows in _groups(frame, gpus, {"quant": _quant(frame)}):
        names = ("tokens", "hidden", "intermediate", "experts", "top_k")
        gated = rows["gated"].astype(object).fillna(True).astype(bool)
        spread = rows["distribution"].astype(str)
        exponents = spread.map({name: serving_moe.exponent_of(name) for name in spread.unique()})
        columns = [_floats(rows, name) for name in names]
        columns += [np.where(gated, 3.0, 2.0), _floats(rows, "tp"), _floats(rows, "ep")]
        shapes = serving_moe.Shapes.of([*columns, np.asarray(exponents, dtype=np.float64)], bytes_of(dtype))
        device = Device.of(gpus[gpu], dtype)
        path = f"{framework}|{quant or dtype}"
        yield Part(gpu, path, dtype, device, shapes, FRAMEWORKS[framework], _log_latency(rows), quant == "fp8_block")


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
    unseen_clip=_HALF_OF_LOG_2,
)
ATTENTION = Family(
    kind="serving_attention",
    names=serving_attention.CONSTANTS,
    start=(0.6, 0.8, 20e9, 8e3, 0.3e-6, 0.5, 20e9, 1e-6),
    features=serving_attention.FEATURES,
    parts=_attention_parts,
    core=lambda part, x: serving_attention.core_time(
        part.shapes, part.device, x, part.kind == serving_attention.DECODE
    ),
    describe=lambda part, core: serving_attention.features(part.shapes, part.device, core, part.framework),
    measured=Settings(rounds=300, leaves=255, sampling=0.9),
    unseen=Settings(rounds=150, leaves=31, depth=7, rows_a_leaf=60),
    rows_a_booster=150_000,
    unseen_shrink=0.8,
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
    unseen_clip=0.8,
)
