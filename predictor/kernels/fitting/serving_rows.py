"""Rows of serving kernels as parts: one GPU, framework and variant, with the arrays that a core takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.data.dataset import ops_of
from predictor.data.frame import Frame, numbers, texts
from predictor.data.schema import OWN_SOURCE, ROTATING
from predictor.engines.library import CUTLASS, EXPERT_KERNELS, TABLES_WORD, TRITON
from predictor.engines.releases import age, is_version
from predictor.files.records import dataclass, replace
from predictor.formats.dtypes import bytes_of
from predictor.formats.quantization import SCHEMES, activation_bytes, variant, weight_bytes
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.attention import core as attention
from predictor.kernels.attention import estimator as serving_attention
from predictor.kernels.device import Device
from predictor.kernels.fitting.adapt import row_errors
from predictor.kernels.fitting.tables import RowTable
from predictor.kernels.gemm import core as gemm
from predictor.kernels.gemm import estimator as serving_gemm
from predictor.kernels.moe import core as moe
from predictor.kernels.moe import estimator as serving_moe
from predictor.ops.roofline import FloatArray
from predictor.ops.routing import Loads, expert_loads, exponent_of

#: dtypes whose rows the serving estimators are fitted on.
ROW_DTYPES = ("bf16", "fp8", "int8", "mxfp8", "nvfp4")


@dataclass(frozen=True, slots=True)
class VariantRows(RowTable):
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
    shared: bool = True  # False: kernels that the framework runs on no GPU by default, which teach nothing of others
    log_error: FloatArray | float = 0.0  # of each row, as its samples show it

    @property
    def size(self) -> int:
        return len(self.log_latency)


def expressible(frame: Frame) -> npt.NDArray[np.bool_]:
    """(n,) True for rows that an operator can ask for: without a quantization scheme, or with one of `SCHEMES`."""
    return np.asarray(np.isin(texts(frame, "quant"), ["", *SCHEMES]), dtype=bool)


#: A warm row whose weights would take less than this share of its time from DRAM says what a served one says. Chosen by
#: hand, not from data, below the errors of the estimators.
_HOT_SHARE = 0.05


def hot(frame: Frame, gpu: GPUSpec) -> npt.NDArray[np.bool_]:
    """(n,) True for rows of ``gpu`` whose weights, experts or KV cache L2 may have kept from the call before.

    A pass of an engine finds these in DRAM, so such rows are quicker than any served call. What L2 can have saved is
    at most what DRAM takes for them, and nothing where they are more than twice as large as L2.
    """
    warm = np.flatnonzero(texts(frame, "cache_state") == "warm")
    result = np.zeros(len(frame), dtype=bool)
    if len(warm):
        some = frame.iloc[warm]
        held = np.array([op.cold_bytes() for op in ops_of(some)])
        saved_s = np.where(held > 2.0 * gpu.l2_bytes, 0.0, held / gpu.memory_bandwidth)
        result[warm] = saved_s > _HOT_SHARE * _floats(some, "latency_ms") * 1e-3
    return result


def gemm_parts(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[VariantRows]:
    """Parts of rows with op gemm, by GPU, framework and variant; rows that no operator can say are left out."""
    frame = _kept(frame)
    for (gpu, framework, dtype, quant), rows in _groups(frame, gpus, {"quant": texts(frame, "quant")}):
        batch, m, n, k = (_floats(rows, name) for name in ("batch", "m", "n", "k"))
        sizes = activation_bytes(dtype, quant), weight_bytes(dtype, quant)
        blocked = quant == serving_gemm.BLOCKED
        library = engines.library(framework)
        batch = np.nan_to_num(batch, nan=1.0)
        shapes = gemm.Shapes(batch, m, n, k, *sizes, blocked, quantized=not library.quantizes)
        device, kind = Device.of(gpus[gpu], dtype), variant(dtype, quant)
        yield VariantRows(
            gpu,
            f"{framework}|{kind}",
            kind,
            device,
            shapes,
            library.code,
            _log_latency(rows),
            dtype,
            log_error=row_errors(rows),
        )


def attention_parts(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[VariantRows]:
    """Parts of forward rows with op attention, by GPU, framework, phase and dtype."""
    frame = _kept(frame)
    for (gpu, framework, dtype, phase), rows in _groups(frame, gpus, {"phase": _phases(frame)}):
        cache = rows["kv_dtype"].astype(object).fillna("").astype(str).replace("", dtype)
        sizes = cache.map({name: bytes_of(name) for name in cache.unique()})
        names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "causal")
        columns = [_floats(rows, name) for name in names]
        columns.insert(-1, _value_width(rows))
        window = np.nan_to_num(_floats(rows, "window"))
        cache_bytes = np.asarray(sizes, dtype=np.float64)
        shapes = attention.Shapes.of(
            [*columns, window], bytes_of(dtype), cache_bytes, _shared(rows).astype(np.float64), _cold(rows)
        ).run_by(framework, gpus[gpu])
        device = Device.of(gpus[gpu], dtype)
        path = f"{framework}|{phase}|{dtype}"
        unshared = phase == serving_attention.DECODE and engines.taken_elsewhere(framework, gpus[gpu])
        code = engines.library(framework).code
        yield VariantRows(
            gpu,
            path,
            phase,
            device,
            shapes,
            code,
            _log_latency(rows),
            dtype,
            shared=not unshared,
            log_error=row_errors(rows),
        )


def attention_for_all(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[VariantRows]:
    """The parts of `attention_parts`, one path a phase, without Triton's kernels where there are others.

    Frameworks take Triton's where no kernel was written for a board and shape: what a new generation runs is written
    for it. A phase has one set of constants, decode two (`serving_attention.shared_by`), whatever the dtype.
    """
    phases = _phases(frame)
    if "kernel_source" in frame:
        written = ~np.asarray(frame["kernel_source"].astype(str).str.contains("triton"), dtype=bool)
        keep = written | ~np.isin(phases, np.unique(phases[written]))
        frame = frame[keep]
    for part in attention_parts(frame, gpus):
        kernel, code = serving_attention.shared_by(part.path.split("|")[0], part.kind, gpus[part.gpu])
        yield replace(part, path=f"{kernel}|{part.kind}|bf16", framework=code)


def moe_parts(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[VariantRows]:
    """Parts of rows with op moe, by GPU, framework and variant."""
    frame = _kept(frame)
    for (gpu, framework, dtype, quant), rows in _groups(frame, gpus, {"quant": texts(frame, "quant")}):
        names = ("tokens", "hidden", "intermediate", "experts", "top_k")
        gated = _gated(rows)
        columns = [_floats(rows, name) for name in names]
        columns += [np.where(gated, 3.0, 2.0), _floats(rows, "tp"), _floats(rows, "ep")]
        device, name = Device.of(gpus[gpu], dtype), variant(dtype, quant)
        library = engines.library(framework)
        tiling = library.moe_tiling(library.moe_kernel(name, gpus[gpu]), name)
        shapes = moe.Shapes.of(columns, _loads(rows), _exponents(rows), weight_bytes(dtype, quant), tiling)
        kind = serving_moe.booster_of(name)
        part = VariantRows(
            gpu, f"{framework}|{name}", kind, device, shapes, library.code, _log_latency(rows), dtype,
            name == serving_moe.BLOCKED, log_error=row_errors(rows),
        )  # fmt: skip
        keep = tuned_rows(shapes, device, np.exp(part.log_latency))
        named = texts(rows, "kernel_source")
        cutlass = np.array([not text or CUTLASS in text for text in named.tolist()], dtype=bool)
        for with_gate in (True, False):
            if library.untuned_experts(name, with_gate, gpus[gpu]):
                keep &= (gated != with_gate) | ~cutlass
        if keep.any():
            yield part if keep.all() else part.take(np.flatnonzero(keep))


#: Rows of a layer that read weights at less than this share of what half of the layers do were measured with a tile
#: that nothing chose. Source: TensorRT-LLM 1.3.0rc20's table of fp8 on H100, whose 520 layers, degrees and routings are
#: at 0.10 to 0.25 of the bandwidth (48 of them) or from 0.35 on, half at more than 0.8.
_UNTUNED = 0.4
#: Rows that show it: weights of this many times L2, few enough rows an expert to wait for them alone. Chosen by hand,
#: not from data.
_BEYOND_L2, _ROWS_AN_EXPERT = 5.0, 16.0


def tuned_rows(shapes: moe.Shapes, device: Device, seconds: FloatArray) -> npt.NDArray[np.bool_]:
    """(n,) False for rows of layers, on one board with one library's kernels of one variant, that ran untuned.

    Where a table's tuner finds nothing, a default tile runs all rows of a layer, its degrees and its routing: it reads
    weights at a fraction of the rate of the other layers, and `_UNTUNED` says where the line is.
    """
    s = shapes
    weights = s.active * s.matrices * s.hidden * (s.intermediate / s.tp) * s.itemsize
    shows = (weights > _BEYOND_L2 * device.l2_bytes) & (s.rows <= _ROWS_AN_EXPERT * s.active)
    layers = np.stack([s.hidden, s.intermediate, s.experts, s.top_k, s.matrices, s.tp, s.ep, s.exponent])
    _, block = np.unique(layers, axis=1, return_inverse=True)
    block = block.reshape(-1)
    rates, shown = (weights / seconds)[shows], block[shows]
    if not shown.size:
        return np.ones(block.size, dtype=bool)
    order = np.argsort(shown, kind="stable")
    seen, starts = np.unique(shown[order], return_index=True)
    half = np.array([np.median(part) for part in np.split(rates[order], starts[1:])])
    slow = np.isin(block, seen[half < _UNTUNED * np.median(half)])
    return np.asarray(~slow, dtype=bool)


def _loads(rows: Frame) -> Loads:
    """What each row's own distribution makes of its tokens."""
    names = rows["distribution"].astype(str).to_numpy()
    tokens, experts, top_k, ep = (_floats(rows, name) for name in ("tokens", "experts", "top_k", "ep"))
    parts = []
    for name in np.unique(names.astype(str)):
        at = np.flatnonzero(names == name)
        parts.append((at, expert_loads(name, tokens[at], experts[at], top_k[at], ep[at])))
    return Loads.joined(parts)


def _exponents(rows: Frame) -> FloatArray:
    spread = rows["distribution"].astype(str)
    return np.asarray(spread.map({name: exponent_of(name) for name in spread.unique()}), dtype=np.float64)


def moe_by_kernel(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[VariantRows]:
    """The parts of `moe_parts`, split by kernel, whose name takes the framework's place in the path.

    The rows name the kernel; where they do not, it is the one that the framework runs. Of earlier releases, Triton's
    rows teach what today's do alike: some multiplied the rows of other GPUs' experts, too, or have layers without a
    gate take as long as with one (`TritonExperts`).
    """
    names = texts(frame, "kernel_source").tolist()
    kernel_of = {name: next((k for k in EXPERT_KERNELS if TABLES_WORD.get(k, k) in name), "") for name in set(names)}
    kernels = np.array([kernel_of[name] for name in names], dtype=np.str_)
    ages, alike = _releases(frame)
    alike |= ~np.isin(kernels, [TRITON, ""])  # a plain "fused_moe" is Triton's
    for known, behind in sorted(set(zip(kernels.tolist(), ages.tolist(), strict=True))):
        for part in moe_parts(frame[(kernels == known) & (ages == behind) & alike], gpus):
            framework, name = part.path.split("|")
            library = engines.library(framework)
            kernel = known or library.moe_kernel(name, gpus[part.gpu], gathered=True)
            tiling = library.moe_tiling(kernel, name, library.experts[-1 - behind].version)
            yield replace(part, path=f"{kernel}|{name}", shapes=replace(part.shapes, tiling=tiling))


def _releases(frame: Frame) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(how many releases behind today's experts each row is, whether Triton's do in it what today's do); (n,) each."""
    behind = np.zeros(len(frame), dtype=np.int64)
    alike: npt.NDArray[np.bool_] = np.ones(len(frame), dtype=bool)
    if "framework_version" not in frame:
        return behind, alike
    names, versions = (frame[name].astype(str).to_numpy() for name in ("framework", "framework_version"))
    elsewhere, gated = _floats(frame, "ep") > 1, _gated(frame)
    for name, version in set(zip(names.tolist(), versions.tolist(), strict=True)):
        experts = engines.library(name).experts
        late = age(experts, version) if is_version(version) else 0
        then, rows = experts[-1 - late], (names == name) & (versions == version)
        behind[rows] = late
        alike[rows & ((then.foreign_products & elsewhere) | (then.gate_costs & ~gated))] = False
    return behind, alike


def _gated(frame: Frame) -> npt.NDArray[np.bool_]:
    """(n,) True for experts with a gate, and where nothing is said."""
    return np.asarray(frame["gated"].astype(object).fillna(True).astype(bool), dtype=bool)


def sample(part: VariantRows, count: int, seed: int) -> VariantRows:
    """At most ``count`` rows of a part, drawn without repetition, in their order."""
    if part.size <= count:
        return part
    return part.take(np.sort(np.random.default_rng(seed).choice(part.size, count, replace=False)))


def covered(parts: Sequence[VariantRows]) -> dict[str, list[float]]:
    """Smallest and largest value of every shape field over all rows."""
    ranges: dict[str, list[float]] = {}
    for part in parts:
        for name in type(part.shapes).__dataclass_fields__:
            value = getattr(part.shapes, name)
            if isinstance(value, np.ndarray) and value.size:
                low, high = ranges.get(name, [np.inf, -np.inf])
                ranges[name] = [min(low, float(value.min())), max(high, float(value.max()))]
    return ranges


def _kept(frame: Frame) -> Frame:
    """Rows of the dtypes and quantization schemes that an operator can say."""
    return frame[expressible(frame) & np.asarray(frame["dtype"].astype(str).isin(ROW_DTYPES))]


def _groups(frame: Frame, gpus: Mapping[str, GPUSpec], extra: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """((gpu, framework, dtype, *extra), rows) of the groups that a data sheet has a peak for, in sorted order."""
    keys = {name: frame[name].astype(str).to_numpy() for name in ("gpu", "framework", "dtype")}
    table = type(frame)({**keys, **extra})
    measured = [library.name for library in engines.measured()]
    for key, rows in sorted(table.groupby(list(table.columns), sort=True).indices.items()):
        gpu, framework, dtype = key[:3]
        if framework in measured and gpu in gpus and gpus[gpu].supports(dtype):
            of_group = frame.iloc[np.sort(rows)]
            served = of_group[~hot(of_group, gpus[gpu])]
            if len(served):
                yield key, _own_first(served)


#: A search that believes rows far off less goes with the many: an equal weight did not outweigh. Chosen by hand, not
#: from data.
_OWN_WEIGHT = 3


def _own_first(rows: Frame) -> Frame:
    """Rows of a board: where its owner measured some and a foreign table has others, each of the owner's so often that
    together they weigh `_OWN_WEIGHT` times the table. What runs there outweighs what ran on another board."""
    ours = np.flatnonzero(texts(rows, "source") == OWN_SOURCE)
    foreign = len(rows) - len(ours)
    times = -(-_OWN_WEIGHT * foreign // len(ours)) if len(ours) else 1
    return rows if times < 2 else rows.iloc[np.sort([*range(len(rows)), *ours.tolist() * (times - 1)])]


def _phases(rows: Frame) -> npt.NDArray[np.str_]:
    heads, kv_heads, head_dim = (_floats(rows, name) for name in ("heads", "kv_heads", "head_dim"))
    decode = _floats(rows, "q_len") == 1
    return serving_attention.phase_of(decode, _shared(rows), heads, kv_heads, head_dim, _value_width(rows))


def _shared(rows: Frame) -> npt.NDArray[np.bool_]:
    """(n,) True where the values are a slice of the keys."""
    if "shared_kv" not in rows:
        return np.zeros(len(rows), dtype=bool)
    return np.asarray(rows["shared_kv"].astype(object).fillna(False).astype(bool), dtype=bool)


def _cold(rows: Frame) -> FloatArray:
    """1 for decode steps that found nothing of the KV cache in L2, (n,)."""
    return (np.isin(texts(rows, "cache_state"), ["cold", ROTATING]) & (_floats(rows, "q_len") == 1)).astype(np.float64)


def _value_width(rows: Frame) -> FloatArray:
    """Head width of the values, (n,): the queries' unless the row says otherwise."""
    width = np.nan_to_num(numbers(rows, "v_head_dim"))
    return np.where(width > 0, width, _floats(rows, "head_dim"))


def _floats(part: Frame, name: str) -> FloatArray:
    return np.asarray(part[name].astype(float), dtype=np.float64)


def _log_latency(part: Frame) -> FloatArray:
    return np.log(_floats(part, "latency_ms") * 1e-3)
