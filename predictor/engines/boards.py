"""On which boards an engine runs: by vendor, compute capability and architecture, and from which release on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from types import MappingProxyType

from predictor.engines.releases import numbers
from predictor.files.records import dataclass
from predictor.hardware.gpu import GENERATIONS, GPUSpec

#: Vendors whose boards are known; of another's, which somebody made up, nobody can say what runs there.
_VENDORS = frozenset(vendor for vendor, _ in GENERATIONS.values())


@dataclass(frozen=True, slots=True)
class Boards:
    """Boards of one ``vendor`` that an engine runs on.

    ``least`` and ``most``: compute capabilities of NVIDIA's, "" where there is no limit. ``only``: the architectures
    that it runs on, empty for all of the vendor's. ``since``: release -> boards that need it or a later one: the
    vendor's, an architecture's, or those from a compute capability on. ``until``: release -> the compute capability
    from which on boards run in it and later ones, too. ``source``: where it says so.
    """

    vendor: str
    source: str
    least: str = ""
    most: str = ""
    only: tuple[str, ...] = ()
    since: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    until: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def lacking(self, gpu: GPUSpec, release: str) -> str:
        """What this has instead of ``gpu``, in words; "" where it runs there. ``release`` "": the newest."""
        if self.only and gpu.architecture in GENERATIONS and gpu.architecture not in self.only:
            return f"boards of {self.vendor}: {', '.join(self.only)}"
        capability = numbers(gpu.compute_capability or "")
        below = bool(self.least) and capability < numbers(self.least)
        if capability and (below or (self.most and capability > numbers(self.most))):
            limits = f"from {self.least}" * bool(self.least) + f" to {self.most}" * bool(self.most)
            return f"{self.vendor} of compute capability {limits.strip()}" + " on" * (not self.most)
        kind = f"compute capability {gpu.compute_capability}" if capability else gpu.architecture
        for ended, above in self.until.items():
            if capability and capability < numbers(above) and not (release and numbers(release) < numbers(ended)):
                return f"a release before {ended} for {kind}"
        for first, boards in self.since.items():
            if release and numbers(release) < numbers(first) and any(map(partial(_among, gpu), boards)):
                return f"release {first} on for {kind}"
        return ""


def _among(gpu: GPUSpec, boards: str) -> bool:
    """Whether ``boards``, a vendor, an architecture or the least compute capability, has ``gpu``."""
    if boards in (gpu.vendor, gpu.architecture):
        return True
    return boards[0].isdigit() and numbers(gpu.compute_capability or "") >= numbers(boards)


def refusal(boards: Sequence[Boards], gpu: GPUSpec, release: str = "") -> str:
    """Why none of ``boards`` (none: there are no limits) has ``gpu``: what they have, "" where one does."""
    if not boards or gpu.vendor not in _VENDORS:
        return ""
    alike = [each for each in boards if each.vendor == gpu.vendor]
    if not alike:
        return f"boards of {' and '.join(dict.fromkeys(each.vendor for each in boards))}"
    reasons = [each.lacking(gpu, release) for each in alike]
    return "" if "" in reasons else reasons[0]
