"""On which boards an engine runs: by vendor, compute capability and architecture, and from which release on."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.engines.releases import numbers
from predictor.files.records import dataclass
from predictor.hardware.gpu import GENERATIONS, GPUSpec

#: Vendors whose boards are known; of another's, which somebody made up, nobody can say what runs there.
_VENDORS = frozenset(vendor for vendor, _ in GENERATIONS.values())


@dataclass(frozen=True, slots=True)
class Boards:
    """Boards of one ``vendor`` that an engine runs on.

    ``least`` and ``most``: compute capabilities of NVIDIA's, "" where there is no limit. ``without``: architectures
    that it does not run on. ``since``: (compute capability, release) pairs, the lowest first: boards from that
    capability on need that release. ``source``: where it says so.
    """

    vendor: str
    source: str
    least: str = ""
    most: str = ""
    without: tuple[str, ...] = ()
    since: tuple[tuple[str, str], ...] = ()

    def lacking(self, gpu: GPUSpec, release: str) -> str:
        """What this has instead of ``gpu``, in words; "" where it runs there. ``release`` "": the newest."""
        if gpu.architecture in self.without:
            return f"boards of {self.vendor} but for {', '.join(self.without)}"
        capability = numbers(gpu.compute_capability or "")
        if not capability:
            return ""
        if (self.least and capability < numbers(self.least)) or (self.most and capability > numbers(self.most)):
            limits = f"from {self.least}" * bool(self.least) + f" to {self.most}" * bool(self.most)
            return f"{self.vendor} of compute capability {limits.strip()}" + " on" * (not self.most)
        needed = [first for from_, first in self.since if capability >= numbers(from_)]
        if release and needed and numbers(release) < numbers(needed[-1]):
            return f"release {needed[-1]} on for compute capability {gpu.compute_capability}"
        return ""


def refusal(boards: Sequence[Boards], gpu: GPUSpec, release: str = "") -> str:
    """Why none of ``boards`` (none: there are no limits) has ``gpu``: what they have, "" where one does."""
    if not boards or gpu.vendor not in _VENDORS:
        return ""
    alike = [each for each in boards if each.vendor == gpu.vendor]
    if not alike:
        return f"boards of {' and '.join(dict.fromkeys(each.vendor for each in boards))}"
    reasons = [each.lacking(gpu, release) for each in alike]
    return "" if "" in reasons else reasons[0]
