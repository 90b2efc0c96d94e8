"""`tilecast gpus [NAME]`: the GPU catalogue, and one GPU with the source of every value."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from predictor.errors import printable
from predictor.files.outputs import force_argument
from predictor.files.read import read_text
from predictor.files.yaml_reader import parse_yaml
from predictor.hardware.gpu import BY_CAPABILITY, GPUSpec, list_gpus, load_gpu
from predictor.report.wording import gib, quantity, seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `gpus`."""
    parser.epilog = "example: tilecast gpus h100"
    parser.add_argument("name", nargs="?", help="a GPU's name or alias, or a YAML file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    force_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the catalogue or one entry."""
    if arguments.name is None:
        specs = [load_gpu(name) for name in list_gpus()]
        if arguments.json:
            print(json.dumps([to_dict(spec) for spec in specs], indent=2))
        else:
            _print_all(specs)
        return 0
    spec = load_gpu(arguments.name)
    if arguments.json:
        print(json.dumps(to_dict(spec) | {"others": disagreements(spec)}, indent=2))
    else:
        _print_one(spec)
    return 0


def to_dict(spec: GPUSpec) -> dict[str, Any]:
    """One GPU as JSON, base units in the names."""
    return {
        "id": spec.id,
        "name": spec.name,
        "aliases": list(spec.aliases),
        "vendor": spec.vendor,
        "architecture": spec.architecture,
        "compute_capability": spec.compute_capability,
        "sm_count": spec.sm_count,
        "boost_clock_hz": spec.boost_clock_hz,
        "memory_type": spec.memory_type,
        "memory_bandwidth_bytes_per_s": spec.memory_bandwidth,
        "memory_capacity_bytes": spec.memory_capacity,
        "l2_bytes": spec.l2_bytes,
        **{target: getattr(spec, target) for target, _ in BY_CAPABILITY.values()},
        "matrix_rates": dict(spec.matrix_rates),
        "power_limit_w": spec.power_limit_w,
        "nvlink_bandwidth_bytes_per_s": spec.nvlink_bandwidth,
        "pcie_bandwidth_bytes_per_s": spec.pcie_bandwidth,
        "launch_overhead_s": spec.launch_overhead_s,
        "peak_flops": {f"{unit}.{dtype}": peak for (unit, dtype), peak in sorted(spec.peaks.items())},
        "sources": dict(spec.sources),
    }


def disagreements(spec: GPUSpec) -> dict[str, list[dict[str, str]]]:
    """Field of the GPU's file -> what other sources say of it: ``value``, ``source`` and, where there is one, ``note``.

    The catalogue keeps them for whoever asks: no forecast reads them.
    """
    document = parse_yaml(read_text(spec.path, "a YAML file of one GPU", f"GPU file '{spec.path}'"), str(spec.path))
    by_field = {}
    for name, entry in _entries(document, ""):
        others = entry.get("others")
        told = [source for source in others if isinstance(source, dict)] if isinstance(others, list) else []
        if told:
            keys = ("value", "source", "note")
            by_field[name] = [
                {k: printable(" ".join(str(source[k]).split())) for k in keys if k in source} for source in told
            ]
    return by_field


def _entries(fields: object, below: str) -> Iterator[tuple[str, dict[Any, Any]]]:
    """Every ``{value: ..., source: ...}`` of a file under its name, as `GPUSpec.sources` has it."""
    for name, entry in fields.items() if isinstance(fields, dict) else ():
        if isinstance(entry, dict) and "value" in entry:
            yield f"{below}{name}", entry
        elif isinstance(entry, dict):
            yield from _entries(entry, f"{below}{name}.")


def _best(spec: GPUSpec, dtype: str) -> str:
    return quantity(spec.peak_flops(dtype), "FLOP/s") if spec.supports(dtype) else "-"


def _print_all(specs: list[GPUSpec]) -> None:
    from predictor.files.terminal import screen
    from predictor.report.table import Column, print_table

    heads = ("name", "aliases", "architecture", "SMs", "memory", "bandwidth", "fp32", "bf16", "fp8", "power")
    rows = [
        (spec.id, ", ".join(spec.aliases), spec.architecture, str(spec.sm_count), gib(spec.memory_capacity),
         quantity(spec.memory_bandwidth, "B/s"), _best(spec, "fp32"), _best(spec, "bf16"), _best(spec, "fp8"),
         f"{spec.power_limit_w:.0f} W")
        for spec in specs
    ]  # fmt: skip
    right = ("SMs", "memory", "power")
    print_table(screen(), [Column(head, right=head in right, key=head == "name") for head in heads], rows)


def _print_one(spec: GPUSpec) -> None:
    from predictor.files.terminal import screen
    from predictor.report.table import Column, print_table, say

    console = screen()
    names = f" ({', '.join(spec.aliases)})" if spec.aliases else ""
    say(console, f"{spec.id}{names}: {spec.name}, {spec.vendor} {spec.architecture}", style="bold")
    rows = [(field, value, spec.sources.get(field, "")) for field, value in _fields(spec).items()]
    for (unit, dtype), peak in sorted(spec.peaks.items()):
        field = f"peak_flops.{unit}.{dtype}"
        suffix = "OP/s" if dtype.startswith("int") else "FLOP/s"
        rows.append((field, quantity(peak, suffix), spec.sources.get(field, "")))
    print_table(console, [Column("field", key=True), Column("value"), Column("source", wrap=True)], rows)
    others = [
        f"{field}: {', '.join(str(source[key]) for key in ('value', 'source', 'note') if key in source)}"
        for field, told in disagreements(spec).items()
        for source in told
    ]
    if others:
        say(console, "\nOther sources say:")
        for line in others:
            say(console, line, "  ")
        console.print()
    say(console, "Peaks are dense. `unverified`: not checked against the document named.")


def _fields(spec: GPUSpec) -> dict[str, str]:
    """YAML field -> value as people read it; what the GPU has no equivalent of is left out."""
    values: dict[str, str | None] = {
        "sm_count": str(spec.sm_count),
        "boost_clock": f"{spec.boost_clock_hz / 1e6:.0f} MHz",
        "memory_type": spec.memory_type,
        "memory_bandwidth": quantity(spec.memory_bandwidth, "B/s"),
        "memory_capacity": gib(spec.memory_capacity),
        "l2": gib(spec.l2_bytes),
        "power_limit": f"{spec.power_limit_w:.0f} W",
        "nvlink_bandwidth": None if spec.nvlink_bandwidth is None
        else f"{quantity(spec.nvlink_bandwidth, 'B/s')} a direction",
        "pcie_bandwidth": None if spec.pcie_bandwidth is None
        else f"{quantity(spec.pcie_bandwidth, 'B/s')} a direction",
        "launch_overhead": None if spec.launch_overhead_s is None else seconds(spec.launch_overhead_s),
    }  # fmt: skip
    for field, (target, dimension) in BY_CAPABILITY.items():
        count = getattr(spec, target)
        values[field] = None if count is None else f"{count / 1024:.0f} KiB" if dimension == "bytes" else str(count)
    if spec.matrix_rates:
        values["matrix_rates"] = ", ".join(f"{dtype} {rate:.0f}" for dtype, rate in spec.matrix_rates.items())
    return {field: value for field, value in values.items() if value is not None}
