"""Forecasts against measurements: kernels of a data set, and whole models of a suite."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data import dataset
from predictor.data.frame import Frame, texts
from predictor.data.schema import ROTATING
from predictor.errors import RequestError, SpecError, TilecastError
from predictor.files import outputs
from predictor.files.extras import require
from predictor.files.read import read_table_text
from predictor.files.records import dataclass
from predictor.fit.suite import COLUMNS
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.kernels.base import KernelTable, Selector, predict_kernels
from predictor.kernels.fitting.serving_rows import expressible
from predictor.kernels.interval import LAUNCH, HasIntervals, op_class
from predictor.ops.attention import Attention
from predictor.ops.base import Op
from predictor.ops.gemm import Gemm
from predictor.request.precision import LATER

FloatArray = npt.NDArray[np.float64]

#: Rows that one call of the estimators takes: guards against the memory that a large data set would take at once.
CHUNK = 50_000


def predict_rows(frame: Frame, selector: Selector, gpus: Mapping[str, GPUSpec] | None = None) -> Frame:
    """The frame with ``measured_ms``, ``predicted_ms``, ``low_ms``, ``high_ms``, ``ape_pct``, ``note``, the
    ``estimator`` that answered, the quantization ``scheme`` (the dtype where there is none), the class of its interval,
    and what the roofline alone says (``roofline_ms``, with a cold cache).

    A row is forecast as it was measured: with the kernels of its own framework, and for protocol "eager_events" with
    the host's launch time that such a measurement holds; with "cold" caches as in a pass of an engine.
    """
    out = frame.copy()
    forecasts = _Forecasts.of(len(out))
    ops = np.array([*dataset.ops_of(frame), None], dtype=object)[:-1]
    later = frame["dtype"].astype(str).isin(LATER).to_numpy() & (frame["op"].astype(str) != "collective").to_numpy()
    quantized = ~expressible(frame) | later
    forecasts.notes[quantized] = "a dtype or quantization scheme that is not built yet"
    names = ["gpu", "framework", "protocol", "cache_state"]
    for (gpu, framework, protocol, cache), rows in frame[names].astype(str).groupby(names).indices.items():
        try:
            spec = (gpus or {}).get(gpu) or load_gpu(gpu)
        except TilecastError as error:
            forecasts.notes[rows] = str(error)
            continue
        for start in range(0, len(rows), CHUNK):
            part = rows[start : start + CHUNK]
            part = part[~quantized[part]]
            from_dram = np.array(
                [cache == "cold" or (cache == ROTATING and _caches(op)) for op in ops[part]], dtype=bool
            )
            for cold in (False, True):
                some = part[from_dram == cold]
                if len(some):
                    forecasts.fill(some, ops, spec, selector, framework, protocol, cold)
    measured = np.asarray(frame["latency_ms"], dtype=np.float64)
    out["measured_ms"] = measured
    out["predicted_ms"] = forecasts.predicted
    out["low_ms"] = forecasts.low
    out["high_ms"] = forecasts.high
    out["ape_pct"] = np.abs(forecasts.predicted / measured - 1.0) * 100.0
    out["roofline_ms"] = forecasts.cold
    out["estimator"] = forecasts.sources
    out["operator"] = operator_names(frame)
    out["scheme"] = scheme_names(frame)
    out["interval_class"] = forecasts.kinds
    out["note"] = forecasts.notes
    return out


def _caches(op: Any) -> bool:
    """Whether ``op`` reads a KV cache: where copies of it take turns, nothing of it lies in L2."""
    return isinstance(op, Attention) and op.is_decode


@dataclass(frozen=True, slots=True)
class _Forecasts:
    """What is known of every row, arrays of shape (n,): milliseconds, NaN where there is no forecast, and texts."""

    predicted: FloatArray
    low: FloatArray
    high: FloatArray
    cold: FloatArray
    kinds: npt.NDArray[Any]
    sources: npt.NDArray[Any]
    notes: npt.NDArray[Any]

    @classmethod
    def of(cls, n: int) -> _Forecasts:
        """Nothing known yet of ``n`` rows."""
        return cls(*(np.full(n, np.nan) for _ in range(4)), *(np.full(n, "", dtype=object) for _ in range(3)))

    def fill(
        self,
        rows: npt.NDArray[np.int64],
        ops: npt.NDArray[Any],
        spec: GPUSpec,
        selector: Selector,
        framework: str,
        protocol: str,
        cold: bool,
    ) -> None:
        """Forecast the operators at ``rows`` of ``ops``, which ran on one GPU; note those that it has no peak for."""
        good, reasons = _supported(ops[rows], spec)
        self.notes[rows[~good]] = np.array([r for r in reasons if r], dtype=object)
        rows = rows[good]
        if not len(rows):
            return
        batch = list(ops[rows])
        table = predict_kernels(batch, spec, selector, framework, cold=cold)
        seconds = as_measured(batch, table, spec, selector, protocol)
        self.predicted[rows] = seconds * 1e3
        self.kinds[rows], ends = intervals(batch, table, spec, selector, seconds)
        self.low[rows], self.high[rows] = ends * 1e3
        self.cold[rows] = table.cold_s * 1e3
        self.sources[rows] = np.array([name or "roofline" for name in table.estimators], dtype=object)


def operator_names(frame: Frame) -> npt.NDArray[Any]:
    """What a table of errors calls each row: its operator, attention told apart by prefill and decode."""
    names = np.asarray(frame["op"].astype(str), dtype=object)
    if "q_len" in frame:
        attention = names == "attention"
        decode = np.asarray(frame["q_len"], dtype=np.float64) == 1.0
        names[attention & decode] = "attention decode"
        names[attention & ~decode] = "attention prefill"
    return names


def scheme_names(frame: Frame) -> npt.NDArray[Any]:
    """What a table of errors calls each row's number format: its quantization scheme, else its dtype."""
    quant = texts(frame, "quant")
    return np.where(quant == "", texts(frame, "dtype"), quant).astype(object)


def _supported(ops: npt.NDArray[Any], spec: GPUSpec) -> tuple[npt.NDArray[np.bool_], list[str]]:
    """Which operators the GPU has a peak for, and why not."""
    good = np.ones(len(ops), dtype=bool)
    reasons = [""] * len(ops)
    known: dict[tuple[str, str], str] = {}
    for i, op in enumerate(ops):
        key = (op.unit, op.dtype)
        if key not in known:
            known[key] = "" if op.unit != "matrix" or spec.supports(op.dtype) else f"{spec.id} has no {op.dtype} peak"
        if known[key]:
            good[i] = False
            reasons[i] = known[key]
    return good, reasons


def as_measured(
    ops: list[Op], table: KernelTable, gpu: GPUSpec, selector: Selector, protocol: str
) -> npt.NDArray[np.float64]:
    """Seconds, shape (n,), that a measurement of ``protocol`` would show for kernels that take ``table.latency_s``.

    "eager_events" holds the host's launch time, as far as the operator's estimator has learned it; others hold none.
    """
    seconds = table.latency_s.copy()
    if protocol != "eager_events":
        return seconds
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i, op in enumerate(ops):
        # launching a linear layer costs the host more than a plain product: GEMM by layout, the rest by family
        call = op.layout if isinstance(op, Gemm) else op.family
        groups.setdefault((op.family, op.dtype, call), []).append(i)
    for (family, dtype, call), rows in groups.items():
        eager = getattr(selector.select(family, dtype), "eager_seconds", None)
        if eager is not None:
            index = np.array(rows)
            seconds[index] = eager(seconds[index], gpu.id, call)
    return seconds


def intervals(
    ops: list[Op], table: KernelTable, gpu: GPUSpec, selector: Selector, seconds: FloatArray
) -> tuple[npt.NDArray[Any], FloatArray]:
    """(interval class (n,), [low, high] (2, n) in seconds, NaN where the selector has no intervals).

    ``seconds``, of shape (n,), is what a measurement would show: where the host's launch is more than half of it, the
    row is of class "launch".
    """
    launched = seconds > 2.0 * table.latency_s
    kinds = np.array([LAUNCH if late else op_class(op) for op, late in zip(ops, launched.tolist(), strict=True)])
    ends = np.full((2, len(ops)), np.nan)
    if table.spread is not None:
        ends[:] = seconds * np.stack([table.spread.low_s, table.spread.high_s]) / table.latency_s
    if isinstance(selector, HasIntervals):
        for name in set(table.estimators) - {""}:
            known = selector.intervals(name)
            pair = known.launch(gpu) if known is not None else None
            if pair is not None:
                rows = launched & (np.array(table.estimators) == name)
                ends[:, rows] = seconds[rows] * np.exp(pair)[:, None]
    return kinds, ends


def write_rows(frame: Frame, path: str | Path) -> None:
    """Every row to a CSV or parquet file, whole or not at all."""
    path = Path(path)
    if path.suffix not in (".csv", ".parquet"):
        raise RequestError(f"--out {str(path)!r}: expected a .csv or .parquet file")
    if path.suffix == ".csv":
        data = frame.to_csv(index=False).encode()
    else:
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        data = buffer.getvalue()
    outputs.write("--out", path, data)


def read_suite(path: str | Path) -> Frame:
    """A suite of measured workloads; SpecError in one line for another schema."""
    pd = require("pandas")
    path = Path(path)
    text = read_table_text(path, "a CSV file of a suite", COLUMNS)
    if not text.strip():
        raise SpecError(f"{path}: expected a suite of workloads, found an empty file")
    try:
        frame = pd.read_csv(
            io.StringIO(text), dtype={"prompt_lens": str, "gpu": str, "config": str}, low_memory=False,
            keep_default_na=False, na_values=[""],  # an empty cell says nothing; one that says nan is a mistake
        )  # fmt: skip
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise SpecError(f"{path}: not a CSV file of a suite ({str(error).splitlines()[0]})") from None
    missing = [name for name in ("case", "config", "mode", "gpu", "dtype", "measured_ms") if name not in frame]
    if missing:
        raise SpecError(f"{path}: expected a suite of workloads, column(s) missing: {', '.join(missing)}")
    if not len(frame):
        raise SpecError(f"{path}: expected a suite of workloads, found no row")
    return frame


def predict_suite(
    frame: Frame, configs: Path, artifacts: str | Path | None, progress: Callable[[int, int], None] | None = None
) -> Frame:
    """Every row of a suite with its forecast, and with ``note`` where there is none (docs/how-to/suites.md);
    ``progress`` hears how many of all are done. ``attrs["of_peaks"]``: the shares of their GPUs' peaks that the models'
    FLOPs and bytes come to in the measured times, by rate, each of shape (n,)."""
    from predictor.fit.suite import predict_case

    same = frame.groupby(list(frame.columns), dropna=False, sort=False).ngroup().tolist()
    place: dict[int, int] = {}
    rows: list[dict[str, Any]] = []
    for number, (row, kind) in enumerate(zip(frame.to_dict("records"), same, strict=True), start=1):
        if place.setdefault(kind, number) == number:
            rows.append(predict_case(row, configs, artifacts))
        else:
            rows.append({"predicted_ms": None, "note": f"the same as row {place[kind]}, which counts once"})
        if progress is not None:
            progress(len(rows), len(frame))
    out = frame.copy()
    for name in ("predicted_ms", "low_ms", "high_ms", "predicted_forward_ms", "predicted_memory_gib", "note"):
        out[name] = [row.get(name) for row in rows]
    pd = require("pandas")
    out["measured_ms"] = pd.to_numeric(out["measured_ms"], errors="coerce")
    ratio = out["predicted_ms"].astype(float) / out["measured_ms"]
    out["ape_pct"] = (ratio - 1.0).abs() * 100.0
    shares = [row.get("of_peaks", {}) for row in rows]
    out.attrs["of_peaks"] = {
        rate: np.array([of.get(rate, math.nan) for of in shares]) * ratio.to_numpy(dtype=float)
        for rate in sorted({rate for of in shares for rate in of})
    }
    return out


def as_json(result: Mapping[str, Any]) -> str:
    """The JSON text of an evaluation; NaN becomes null."""
    return json.dumps(_without_nan(result), indent=2, default=float, allow_nan=False)


def _without_nan(value: Any) -> Any:
    """The same with None for every NaN and infinity, which are no JSON: a cell that says nothing is NaN."""
    if isinstance(value, Mapping):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float | np.floating) and not math.isfinite(value) else value
