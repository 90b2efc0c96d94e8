"""One row of a suite of measured workloads as a request to predict()."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from predictor.engines import EAGER, engine
from predictor.errors import RequestError, TilecastError, UnsupportedError
from predictor.files.read import inside
from predictor.files.records import replace
from predictor.forecast.forecast import Forecast, forecast
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.hardware.system import LATENCY_S, SystemSpec
from predictor.hardware.what_if import held_at
from predictor.models.built.load import catalogue
from predictor.models.forms import TRACED, model_of
from predictor.request.options import OPTIONS, Option
from predictor.request.parse import ragged_lengths
from predictor.request.request import Request

#: Columns of a suite that decide a forecast (docs/how-to/suites.md); others are carried along: those of words, and what
#: a row says beside them of its board, its network, its layers and what was measured.
COLUMNS = (
    "case", *(option.row.column for option in OPTIONS.values() if option.row.column), "gpu_note", "gpus_per_node",
    "network_gbit_per_node", "recompute_layers", "measured_ms", "measured_forward_ms",
)  # fmt: skip
#: A clock in a row's ``gpu_note``: "graphics 1380 MHz", "graphics clock 1410 MHz".
_HELD = re.compile(r"\bgraphics(?: clock)? (\d{3,4}) MHz\b")


def predict_case(row: Mapping[str, Any], configs: Path, artifacts: str | Path | None) -> dict[str, Any]:
    """The forecast of one row: predicted_ms, low_ms, high_ms, predicted_forward_ms, predicted_memory_gib, note,
    and of_peaks: the shares of its GPU's peaks that the model's FLOPs and bytes come to in the forecast, by rate.

    A row that cannot be forecast yet has predicted_ms None and the reason in note; nothing is dropped in silence.
    """
    try:
        if not 0 < _number(row, "measured_ms") < math.inf:
            raise RequestError(f"measured_ms {row.get('measured_ms')!r}: expected a latency above 0")
        made = case_forecast(row, configs, artifacts)
        answer = made.prediction
    except TilecastError as error:
        return {"predicted_ms": None, "note": str(error)}
    forward = answer.phases_s.get("forward")
    return {
        "predicted_ms": answer.latency_ms,
        "low_ms": None if answer.interval_s is None else answer.interval_s[0] * 1e3,
        "high_ms": None if answer.interval_s is None else answer.interval_s[1] * 1e3,
        "predicted_forward_ms": None if forward is None else forward * 1e3,
        "predicted_memory_gib": answer.memory.total / 2**30,
        "of_peaks": {
            "FLOP/s": answer.mfu,
            "bytes/s": made.model_bytes / answer.latency_s / made.run.gpu.memory_bandwidth,
        },
        "note": "",
    }


def case_forecast(row: Mapping[str, Any], configs: Path, artifacts: str | Path | None) -> Forecast:
    """The forecast of one row; a TilecastError says why there is none."""
    said = str(row["config"])
    name = said.removeprefix(TRACED)
    if name.startswith("timm:"):
        raise UnsupportedError("image models (timm) are not built yet")
    path = inside(configs, f"{name}.json")
    if not path.is_file() and name not in catalogue():
        raise RequestError(f"no config {str(path)!r}")
    empty = next((key for key in ("gpu", "mode") if not _text(row, key)), None)
    if empty:
        raise RequestError(f"{empty} is empty; expected a value")
    mode = _text(row, "mode")
    lens = _lengths(row, mode)
    prefix = TRACED if said != name else ""
    config = _config(f"{prefix}{path if path.is_file() else name}")
    train = mode == "train"
    derived: dict[str, Any] = {
        "model": config,
        "gpu": _board(row),
        "seq_len": _padded(row, mode, max(lens)) if lens else _int(row, "seq_len") or None,
        "output_len": _int(row, "output_len") if mode == "generate" else 0,
        "context_len": _int(row, "context_len") if mode == "decode" and not lens else None,
        "prompt_lens": lens,
        "optimizer": (_text(row, "optimizer") or "none") if train else OPTIONS["optimizer"].default,
        "micro_batch": _int(row, "micro_batch") if train else 0,
        "recompute": _recompute(row, config.stack().layers),
        "lora": _lora(row),
        "tp_overlap": _int(row, "tp_comm_overlap") > 0 and _int(row, "sequence_parallel") > 0 and _int(row, "tp") > 1,
        "cuda_graphs": _graphs(row),
        "sp": mode in ("train", "forward") and _int(row, "sequence_parallel") > 0,
        "system": _system(row),
        "launch_overhead": _launch_overhead(row),
        "step_overhead": _number(row, "step_overhead_ms") * 1e-3 if _text(row, "step_overhead_ms") else None,
        "artifacts": artifacts,
    }
    plain = {name: _cell(row, option) for name, option in OPTIONS.items() if option.row.column and name not in derived}
    return forecast(Request(**derived, **plain).run())


def _cell(row: Mapping[str, Any], option: Option) -> Any:
    """The value of a word that a cell says as it stands: its default where the cell is empty, or 0 of a number that has
    a default."""
    column, default = option.row.column, option.default
    if option.kind == "whole":
        return _given(row, column) if default is None else _int(row, column) or default
    if option.kind == "real":
        return _number(row, column) if _text(row, column) else default
    return _text(row, column) or default


def _graphs(row: Mapping[str, Any]) -> str:
    """What a row says is captured; "none" where it says 0 or nothing."""
    said = _text(row, "cuda_graph")
    return "none" if said in ("", "0") else said


def _lora(row: Mapping[str, Any]) -> int:
    """The rank of the adapters that a row trains alone, said as "lora r=16"; 0 where it says nothing of them."""
    rank = re.search(r"\blora r=(\d+)", _text(row, "peft"))
    return int(rank.group(1)) if rank else 0


def _recompute(row: Mapping[str, Any], layers: int) -> str:
    """What runs again; in ``recompute_layers`` of the model's, where the row says so."""
    kind = _text(row, "recompute") or "none"
    some = _given(row, "recompute_layers") if kind == "full" else None
    return kind if some is None else f"{kind}:{some}-of-{layers}"


def _system(row: Mapping[str, Any]) -> Any:
    """The GPU's usual system, with the GPUs of a node and the bandwidth of a node that the row says."""
    per_node, network = _int(row, "gpus_per_node"), _number(row, "network_gbit_per_node")
    if _int(row, "num_gpus") <= 1:
        return None
    from predictor.hardware.system import default_system

    return described(default_system(load_gpu(_text(row, "gpu"))), per_node, network)


@lru_cache(maxsize=64)
def described(system: SystemSpec, per_node: int, network_gbit: float) -> SystemSpec:
    """``system`` with so many GPUs in a node, and nodes of so many Gbit/s in one direction (0: as it has them).

    Of a rack of several hosts on one kind of link, a node that has as many GPUs as a host is one: its links join the
    rack's GPUs all the same, and the rack has the network cards of all its hosts.
    """
    described_system = system
    if system.gpus_per_host and per_node in (0, system.gpus_per_host):
        per_node, network_gbit = 0, network_gbit * system.gpus_per_node / system.gpus_per_host
    if network_gbit:
        cards = described_system.nics_per_node or 8
        described_system = replace(
            described_system, network=described_system.network or "infiniband", nics_per_node=cards,
            nic_bandwidth=network_gbit * 1e9 / 8 / cards,
            network_latency_s=described_system.network_latency_s or LATENCY_S["network"],
        )  # fmt: skip
    if per_node and per_node < described_system.gpus_per_node and described_system.network:
        cards = max(1, (described_system.nics_per_node or 1) * per_node // described_system.gpus_per_node)
        described_system = replace(described_system, gpus_per_node=per_node, nics_per_node=cards)
    return described_system


@lru_cache(maxsize=512)
def _config(name: str) -> Any:
    return model_of(name)


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)


def _int(row: Mapping[str, Any], key: str) -> int:
    value = _number(row, key)
    if value != int(value) or value < 0:
        raise RequestError(f"{key} {row.get(key)!r}: expected a whole number of at least 0")
    return int(value)


def _given(row: Mapping[str, Any], key: str) -> int | None:
    """A whole number, None where the cell is empty; a 0 that somebody wrote is a 0."""
    return _int(row, key) if _text(row, key) else None


def _lengths(row: Mapping[str, Any], mode: str) -> tuple[int, ...] | None:
    """Lengths of a ragged batch: of the prompts; in decode, of the caches of a step, whose mean is ``context_len``."""
    text = _text(row, "prompt_lens")
    if not text:
        return None
    lens = ragged_lengths(text)
    if mode != "decode" or not _text(row, "context_len"):
        return lens
    held = [n for n in lens if n]  # an empty slot stays empty
    grown = max(0, round(_int(row, "context_len") - sum(held) / len(held)))
    return tuple(n + grown if n else 0 for n in lens)


def _padded(row: Mapping[str, Any], mode: str, longest: int) -> int | None:
    """What a ragged batch is padded to for attention, where the engine does that and the row says so."""
    said = _int(row, "seq_len")
    pads = mode == "forward" and engine(_text(row, "execution") or EAGER.name).pads_attention
    return said if pads and said > longest else None


def _board(row: Mapping[str, Any]) -> str | GPUSpec:
    """The row's GPU, at the clock that its ``gpu_note`` says it was held at ("graphics 1380 MHz"), if that is lower."""
    name = _text(row, "gpu")
    clock = _HELD.search(_text(row, "gpu_note"))
    return held_at(load_gpu(name), float(clock[1]) * 1e6) if clock else name


def _launch_overhead(row: Mapping[str, Any]) -> float | None:
    """Seconds of one framework call of the row's host; None, the default, where the cell is empty."""
    return _number(row, "launch_overhead_us") * 1e-6 if _text(row, "launch_overhead_us") else None


def _number(row: Mapping[str, Any], key: str) -> float:
    """A cell as a finite number, 0 where it is empty; RequestError, which becomes the row's note, for other text."""
    text = _text(row, key)
    try:
        value = (float(text) if text.isascii() and "_" not in text else math.nan) if text else 0.0  # as pandas reads it
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RequestError(f"{key} {row.get(key)!r}: expected a number")
    return value
