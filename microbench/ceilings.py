"""What the device sustains, measured first, and the device's YAML file made of it.

The cases go the same way as all others and resume as they do; they stand in `<gpu>/ceiling/`. For a device that the
catalogue lacks (a processor, an unknown board), `device.yaml` beside the rows says in the catalogue's own form what was
measured, so that `load_gpu` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from microbench.capability import Target, refusal
from microbench.case import Case, op_from
from microbench.environment import cpu_clock_hz, cpu_vendor
from microbench.own_ops import Ceiling
from microbench.storage import write_atomic
from predictor.data.schema import SUSTAINED
from predictor.errors import TilecastError
from predictor.hardware.gpu import GPUSpec, list_gpus, load_gpu
from predictor.ops.roofline import roofline

DEVICE_FILE = "device.yaml"
#: What is added to the fastest sample of a rate, and to a row that raised one: a later row may catch a quieter moment.
#: Chosen by hand, not from data.
MARGIN = 1.10
LIFT_MARGIN = 1.05
#: How far a row may raise a ceiling that was measured on a busy machine. Beyond it the row is wrong, not the ceiling.
#: Chosen by hand, not from data.
RAISE_LIMIT = 4.0
#: The first so many of `cases` are what a device file cannot be made without: memory's bandwidth and a rate in fp32.
NEEDED = 2
#: Sizes of a square product: chosen by hand, not from data, so that the largest fills a device.
_MATMUL = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192, 16384)}
_DTYPES = {"cpu": ("fp32", "bf16", "fp16", "fp64"), "cuda": ("bf16", "fp16", "tf32", "fp32", "fp8", "fp64")}


def cases(target: Target, cache_bytes: int) -> list[Case]:
    """The ceilings of ``target``, those that a device file needs first, then one of each kind."""
    big = max(8 * cache_bytes, 256 * 2**20)
    if target.kind == "cpu":  # it fills and checks them slowly; a copy of four caches passes eight
        big = min(4 * cache_bytes, int(target.memory_bytes // 16))
    matmul = _MATMUL[target.kind]
    sizes: list[tuple[str, str, int]] = [
        ("copy", "fp32", big),
        ("matmul", "fp32", matmul[0]),
        ("copy", "fp32", cache_bytes // 8),
        *(("matmul", dtype, matmul[0]) for dtype in _DTYPES[target.kind]),
        ("read", "fp32", big),
    ]
    sizes += [("matmul", dtype, size) for size in matmul[1:] for dtype in _DTYPES[target.kind]]
    cached = [cache_bytes // share for share in (2, 8, 32)] + [256 * 1024, 32 * 1024]
    sizes += [(kind, "fp32", size) for kind in ("read", "copy") for size in cached]
    sizes += [("launch", "fp32", 1024), ("dispatch", "fp32", 1)]
    probes = []
    for kind, dtype, size in dict.fromkeys(sizes):
        protocol = "eager_events" if kind == "dispatch" else target.protocols[0]
        case = Case("ceiling", Ceiling(dtype, kind, size), (), "warm", protocol)
        # A product may take ten times as long as a case of a sweep: it is the sustained rate that is asked for.
        if not refusal(case, target) and target.seconds(case) < 0.5:
            probes.append(case)
    return probes + _sustained(probes, target)


def _sustained(cases: list[Case], target: Target) -> list[Case]:
    """The largest product of each 8- and 16-bit dtype again, under load: what the board's power limit leaves of it."""
    if SUSTAINED not in target.protocols:
        return []
    largest = {c.op.dtype: c for c in cases if getattr(c.op, "kind", "") == "matmul" and c.op.itemsize <= 2}
    return [replace(case, protocol=SUSTAINED) for case in largest.values()]


def in_catalogue(gpu: str) -> bool:
    return gpu in list_gpus()


def spec_of(folder: Path, gpu: str) -> GPUSpec | None:
    """The device's spec: `device.yaml` of its folder, else the catalogue's, else None."""
    path = folder / DEVICE_FILE
    try:
        return load_gpu(path) if path.is_file() else load_gpu(gpu)
    except TilecastError:
        return None


def _quantity(value: float, unit: str) -> str:
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def device_document(facts: Mapping[str, Any], ceilings: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The device file of `facts` from the rows of its ceilings; None where memory or fp32 was not measured."""
    rates: dict[tuple[str, str], float] = {}
    cache = int(facts["cache_bytes"])
    for row in ceilings:
        shape = yaml.safe_load(row["shape"])
        kind, size = shape["kind"], int(shape["size"])
        if kind in ("copy", "read"):
            kind = "memory" if size > 2 * cache else "cache"
        key = (kind, str(row["dtype"]) if kind == "matmul" else "")
        rates[key] = max(rates.get(key, 0.0), float(row["rate_max"]))
    if ("memory", "") not in rates or ("matmul", "fp32") not in rates:
        return None
    today = datetime.now(UTC).date().isoformat()

    def entry(kind: str, dtype: str, unit: str) -> dict[str, str]:
        value = _quantity(rates[kind, dtype] * MARGIN, unit)
        return {"value": value, "source": f"measured by microbench ceilings {today}, fastest sample x {MARGIN:g}"}

    units = int(facts["units"])
    # The catalogue's form has no cache bandwidth: it is 64 bytes a clock and unit. The clock is the one that gives it.
    port = max(rates.get(("cache", ""), 0.0), rates[("memory", "")]) * MARGIN
    clock = max(port / (64 * units), float(facts.get("clock_hz") or 0.0))
    matrix = {d: entry("matmul", d, "FLOP/s") for d in ("bf16", "fp16", "tf32", "fp8") if ("matmul", d) in rates}
    vector = {d: entry("matmul", d, "FLOP/s") for d in ("fp32", "fp64") if ("matmul", d) in rates}
    gfx = str(facts.get("gfx", ""))
    vendor = cpu_vendor() if facts["kind"] == "cpu" else "amd" if gfx else "nvidia"
    architecture = "cpu" if facts["kind"] == "cpu" else "unknown"
    document: dict[str, Any] = {
        "id": facts["id"], "name": facts["name"], "vendor": vendor, "architecture": architecture,
        "sm_count": {"value": str(units), "source": "threads of PyTorch" if facts["kind"] == "cpu" else "driver"},
        "boost_clock": {
            "value": _quantity(clock, "Hz"),
            "source": f"measured by microbench ceilings {today}: 64 bytes a clock and unit give the cache's bandwidth",
        },
        "memory_bandwidth": entry("memory", "", "B/s"),
        "memory_capacity": {"value": f"{int(facts['memory_bytes'])} B", "source": "operating system or driver"},
        "l2": {"value": f"{cache} B", "source": "last-level cache, operating system or driver"},
        "power_limit": {
            "value": f"{float(facts.get('power_limit_w') or 100):.0f} W",
            "source": "driver" if facts.get("power_limit_w") else "a placeholder: the operating system tells none",
        },
        "peak_flops": {"vector": vector} | ({"matrix": matrix} if matrix else {}),
    }  # fmt: skip
    if facts.get("capability") and not gfx:
        document["compute_capability"] = ".".join(str(part) for part in facts["capability"])
    return document


def lifted(path: Path, spec: GPUSpec, lifts: Mapping[str, tuple[float, str]]) -> dict[str, Any]:
    """The device file at ``path`` with the ceilings of ``lifts`` (see `lifts`) raised and the row named that did it."""
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    today = datetime.now(UTC).date().isoformat()
    for key, (rate, case) in lifts.items():
        source = f"measured by microbench {today}: case {case} reached it; x {LIFT_MARGIN:g}"
        rate *= LIFT_MARGIN
        if key == "memory":
            document["memory_bandwidth"] = {"value": _quantity(rate, "B/s"), "source": source}
        elif key == "cache":
            clock = _quantity(rate / (64 * spec.sm_count), "Hz")
            document["boost_clock"] = {"value": clock, "source": f"{source}; 64 bytes a clock and unit"}
        else:
            unit = "matrix" if ("matrix", key) in spec.peaks else "vector"
            document["peak_flops"][unit][key] = {"value": _quantity(rate, "FLOP/s"), "source": source}
    return document


def write_device(folder: Path, document: Mapping[str, Any]) -> None:
    """Writes `device.yaml`, atomically. Raises StorageError."""
    text = "# Measured, not a data sheet: rates that this device reached. Peaks are ceilings of what was seen.\n"
    text += yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=120)
    write_atomic(folder / DEVICE_FILE, text.encode())


def with_clock(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` with the processor's clock."""
    return {**facts, "clock_hz": cpu_clock_hz() if facts["kind"] == "cpu" else None}


def lifts(rows: Iterable[Mapping[str, Any]], spec: GPUSpec) -> dict[str, tuple[float, str]]:
    """Rates of ``rows`` above what ``spec`` holds: "fp32", ... (FLOP/s), "memory", "cache" (bytes/s) -> (rate, case).

    Only up to RAISE_LIMIT times the present ceiling: what is faster than that is reported by `validate`.
    """
    raised: dict[str, tuple[float, str]] = {}

    def offer(key: str, rate: float, present: float, case: str) -> None:
        if present < rate <= RAISE_LIMIT * present and rate > raised.get(key, (0.0, ""))[0]:
            raised[key] = (rate, case)

    for row in rows:
        if row.get("op") in (None, "ceiling") or row.get("flag") or "dtype" not in row or "latency_ms" not in row:
            continue
        op, seconds, case = row_op(row), float(row["latency_ms"]) / 1e3, str(row["case_id"])
        if not spec.supports(op.dtype) and op.unit == "matrix":
            continue
        if seconds >= float(roofline([op], spec).lower_bound_s[0]):
            continue
        moved = op.bytes_moved()
        compute = spec.peak_flops(op.dtype) if op.unit == "matrix" else spec.vector_flops(op.dtype)
        key = op.dtype if op.unit == "matrix" or op.dtype == "fp64" else "fp32"
        offer(key, op.flops() / seconds, compute, case)
        offer("memory", max(0.0, moved - spec.l2_bytes) / seconds, spec.memory_bandwidth, case)
        offer("cache", moved / seconds, spec.l2_bandwidth, case)
    return raised


def row_op(row: Mapping[str, Any]) -> Any:
    """The operator of a harness row. Raises UnknownNameError or SpecError."""
    from dataclasses import fields

    from microbench.own_ops import KNOWN, OWN

    if row["op"] in OWN:
        return op_from({"op": row["op"], "dtype": row["dtype"], **yaml.safe_load(row["shape"])})
    names = {f.name for f in fields(KNOWN[row["op"]])} if row["op"] in KNOWN else set()
    return op_from({"op": row["op"], **{name: row[name] for name in names if row.get(name) is not None}})
