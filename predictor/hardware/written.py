"""A GPU as the fields of its file, and as the text of one: what `base:` takes over, and what a page saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictor.hardware.gpu import GPUSpec

_UNITS = {"count": "", "frequency": " Hz", "bandwidth": " B/s", "bytes": " B", "power": " W", "time": " s"}


def fields_of(gpu: GPUSpec, quantities: Mapping[str, tuple[str, str]], share: float = 1.0) -> dict[str, Any]:
    """The fields of a file that reads as ``gpu``, to the bit, each with the source that ``gpu`` has for it.

    ``quantities``: field of a file -> (field of GPUSpec, dimension). ``share`` multiplies the peaks.
    """
    fields: dict[str, Any] = {"id": gpu.id, "name": gpu.name, "vendor": gpu.vendor, "architecture": gpu.architecture}
    if gpu.compute_capability:
        fields["compute_capability"] = gpu.compute_capability
    for field in ("memory_type", "ecc"):
        if getattr(gpu, field):
            fields[field] = _entry(gpu, field, getattr(gpu, field))
    for field, (target, dimension) in quantities.items():
        value = getattr(gpu, target)
        if value is not None:
            fields[field] = _entry(gpu, field, f"{value!r}{_UNITS[dimension]}")
    peaks: dict[str, dict[str, Any]] = {}
    for (unit, dtype), peak in sorted(gpu.peaks.items()):
        entry = _entry(gpu, f"peak_flops.{unit}.{dtype}", f"{peak * share!r} FLOP/s")
        if share != 1.0:
            entry["source"] += ", scaled with sm_count and boost_clock"
        peaks.setdefault(unit, {})[dtype] = entry
    return fields | {"peak_flops": peaks}


def _entry(gpu: GPUSpec, field: str, value: str) -> dict[str, str]:
    return {"value": value, "source": gpu.sources.get(field, "not stated")}


def as_yaml(gpu: GPUSpec, quantities: Mapping[str, tuple[str, str]], source: str) -> str:
    """The text of a file that reads as ``gpu``, to the bit; ``source`` is said of every value.

    What its compute capability says is left to that.
    """
    fields = fields_of(gpu, quantities)
    peaks = fields.pop("peak_flops")
    lines = [f"{field}: {_text(entry, source)}" for field, entry in fields.items()]
    lines.append("peak_flops:")
    for unit, rates in peaks.items():
        lines.append(f"  {unit}:")
        lines += [f"    {dtype}: {_text(entry, source)}" for dtype, entry in rates.items()]
    return "\n".join(lines) + "\n"


def _text(entry: dict[str, str] | str, source: str) -> str:
    if isinstance(entry, str):
        return f'"{entry}"'
    return f'{{value: "{entry["value"]}", source: "{source}"}}'
