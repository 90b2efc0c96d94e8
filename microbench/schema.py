"""The columns of a harness file: those of the measurement schema, and what the harness alone knows."""

from __future__ import annotations

from typing import Any

from predictor.data.schema import COLUMNS, SchemaColumn

#: Beside the measurement schema. `case_id` is the key of a row.
HARNESS: tuple[SchemaColumn, ...] = (
    SchemaColumn("case_id", "text", "", "hash of what was measured: the key of the row", False),
    SchemaColumn("launcher", "text", "", "module of microbench.launchers that made the call", False),
    SchemaColumn("options", "text", "", "what chose the kernel, as JSON", False),
    SchemaColumn("shape", "text", "", "fields of an operator without columns in the schema, as JSON"),
    SchemaColumn("measured_at", "text", "", "when, ISO 8601, UTC", False),
    SchemaColumn("stop", "text", "", "why measuring ended: precise, timeout, max_samples"),
    SchemaColumn("launches", "int", "", "calls in one sample"),
    SchemaColumn("throttled_samples", "int", "", "samples thrown away because the device was throttled"),
    SchemaColumn("throttle_reasons", "text", "", "why, joined by ;"),
    SchemaColumn(
        "check_error", "float", "", "largest error against a reference in higher precision, over its largest value"
    ),
    SchemaColumn(
        "checked", "text", "", "yes (this row), kernel (another row of the same kernel), no (nothing to compare with)"
    ),
    SchemaColumn("registers", "int", "", "registers of a thread of the kernel"),
    SchemaColumn("shared_memory_bytes", "int", "bytes", "shared memory of a block of the kernel"),
    SchemaColumn("cudnn_version", "text", "", "cuDNN version"),
    SchemaColumn("memory_clock_hz", "float", "Hz", "memory clock while measuring"),
    SchemaColumn("board_uuid", "text", "", "UUID of the board, as its driver says it"),
    SchemaColumn(
        "power_source", "text", "", "what power_w is: instant, energy (over the samples), average (of a second)"
    ),
    SchemaColumn("load_s", "float", "s", "sustained: GPU time of load before the samples"),
    SchemaColumn("gpu_s", "float", "s", "sustained: GPU time of the samples"),
    SchemaColumn("clock_drift", "float", "", "sustained: SM clock after the samples over that before, less 1"),
    SchemaColumn("rank_spread", "float", "", "collectives: slowest rank over the quickest, less 1"),
    SchemaColumn("library", "text", "", "serving kernels, collectives: the library whose kernel ran, and its version"),
    SchemaColumn(
        "network", "text", "", "collectives over several nodes: the cards between them, as the host names them"
    ),
    SchemaColumn("rate", "float", "", "ceilings: FLOP/s or bytes/s at the median"),
    SchemaColumn("rate_max", "float", "", "ceilings: FLOP/s or bytes/s of the fastest sample"),
)

ALL: tuple[SchemaColumn, ...] = (*COLUMNS, *HARNESS)
BY_NAME: dict[str, SchemaColumn] = {column.name: column for column in ALL}

#: What a clock or a sensor can read, in the units of its column; what is beyond is a broken sensor, or another unit:
#: guards against both, wider than any board of the catalogue.
SENSOR_LIMITS: dict[str, tuple[float, float]] = {
    "sm_clock_hz": (1e8, 1e10), "memory_clock_hz": (1e8, 2e10), "temperature_c": (-20.0, 130.0), "power_w": (0.0, 3e3),
}  # fmt: skip

_PYTHON: dict[str, tuple[type, ...]] = {"text": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}


def problems(row: dict[str, Any]) -> list[str]:
    """What is wrong with one row by name, type and nullability; empty for a good row."""
    wrong = [f"unknown column {name}" for name in row if name not in BY_NAME]
    for column in ALL:
        value = row.get(column.name)
        if value is None:
            if not column.nullable:
                wrong.append(f"no {column.name}")
        elif not isinstance(value, _PYTHON[column.type]) or (isinstance(value, bool) and column.type != "bool"):
            wrong.append(f"{column.name} is {value!r}, not {column.type}")
    return wrong
