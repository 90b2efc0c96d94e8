"""Boards of the page: a name of the catalogue, one with parameters multiplied, or a pasted YAML file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from predictor.errors import RequestError, unknown_name
from predictor.files.records import dataclass
from predictor.hardware.gpu import GPUSpec, all_names, load_gpu, parse_gpu
from predictor.hardware.what_if import PARAMETERS, vary, with_values

#: What stands for a pasted text in a command line, and for a board that sliders made.
PASTED = "board.yaml"
#: Boards side by side: as many as a table has room for. Chosen by looking at pages.
MOST = 6
#: Characters of a pasted file: ten times the longest of the catalogue. Chosen by hand, not from data.
LONGEST = 60_000


@dataclass(frozen=True, slots=True)
class Board:
    """One board. ``asked`` is how the state says it; ``text`` the YAML file that stands for it, "" for a name."""

    asked: str
    spec: GPUSpec
    text: str = ""

    @property
    def label(self) -> str:
        """Its id, and what was multiplied."""
        _, _, changes = self.asked.partition(" ") if "\n" not in self.asked else ("", "", "")
        return f"{self.spec.id} {changes}".strip()


@lru_cache(maxsize=256)
def board_of(asked: str) -> Board:
    """The board of "h100", of "h100 memory_bandwidth=1.5 sm_count=2" (factors), of "h100 power_limit=500W" (values, as
    --set takes them) or of the text of a YAML file (more lines).

    Raises RequestError, one line, for anything else; a path is not read.
    """
    if len(asked) > LONGEST:
        raise RequestError(f"GPU: {len(asked):,} characters; expected at most {LONGEST:,}")
    if "\n" in asked or ":" in asked:
        return Board(asked, parse_gpu(asked, Path(PASTED)), asked)
    words = asked.split()
    changes = [word for word in words if "=" in word]
    name = " ".join(word for word in words if "=" not in word)
    if "/" in name or "\\" in name or name.lower().endswith((".yaml", ".yml")):
        raise RequestError(f"GPU {name!r}: the page reads no file; expected a name, or the text of the file pasted")
    if not name:
        raise unknown_name("GPU", asked, all_names(), "a name of `tilecast gpus`")
    spec = load_gpu(name)
    for change in changes:
        parameter, _, factor = change.partition("=")
        valued = factor[:1].isdigit() and factor[-1:].isalpha()  # a value with its unit, else a factor
        spec = with_values(spec, change) if valued else vary(spec, parameter, _factor(change, factor))
    return Board(asked, spec, as_yaml(spec) if changes else "")


def _factor(change: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0.01 <= value <= 100.0:
        raise RequestError(f"GPU: {change!r}: expected a factor of 0.01 to 100, such as {next(iter(PARAMETERS))}=1.5")
    return value


def as_yaml(spec: GPUSpec) -> str:
    """A YAML file that reads as ``spec``, to the bit; what its compute capability says is left to that.

    >>> from predictor.hardware.gpu import load_gpu
    >>> same = parse_gpu(as_yaml(load_gpu("l4")), Path("l4.yaml"))
    >>> same.peaks == load_gpu("l4").peaks
    True
    """
    why = '"multiplied by hand"'
    lines = [
        f"id: {spec.id}", f'name: "{spec.name}"', f"vendor: {spec.vendor}", f"architecture: {spec.architecture}",
    ]  # fmt: skip
    if spec.compute_capability:
        lines.append(f'compute_capability: "{spec.compute_capability}"')
    if spec.memory_type:
        lines.append(f'memory_type: "{spec.memory_type}"')
    if spec.ecc:
        lines.append(f'ecc: {{value: "{spec.ecc}", source: {why}}}')
    values = [
        ("sm_count", f"{spec.sm_count}"), ("boost_clock", f"{spec.boost_clock_hz!r} Hz"),
        ("memory_bandwidth", f"{spec.memory_bandwidth!r} B/s"), ("memory_capacity", f"{spec.memory_capacity} B"),
        ("l2", f"{spec.l2_bytes} B"), ("power_limit", f"{spec.power_limit_w!r} W"),
    ]  # fmt: skip
    if spec.nvlink_bandwidth is not None:
        values.append(("nvlink_bandwidth", f"{spec.nvlink_bandwidth!r} B/s"))
    if spec.pcie_bandwidth is not None:
        values.append(("pcie_bandwidth", f"{spec.pcie_bandwidth!r} B/s"))
    if spec.launch_overhead_s is not None:
        values.append(("launch_overhead", f"{spec.launch_overhead_s!r} s"))
    lines += [f'{field}: {{value: "{value}", source: {why}}}' for field, value in values]
    lines.append("peak_flops:")
    for unit in sorted({unit for unit, _ in spec.peaks}):
        lines.append(f"  {unit}:")
        lines += [
            f'    {dtype}: {{value: "{peak!r} FLOP/s", source: {why}}}'
            for (of, dtype), peak in sorted(spec.peaks.items())
            if of == unit
        ]
    return "\n".join(lines) + "\n"
