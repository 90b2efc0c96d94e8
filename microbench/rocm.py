"""AMD's boards by gcnArchName: what its instruction set fixes, and which board of the catalogue it is. No torch here.

PyTorch drives them through `torch.cuda`, events and graphs included (HIP); what differs stands here and in `amd_smi`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from predictor.hardware.gpu import GPUSpec, list_gpus, load_gpu


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """One gcnArchName.

    ``architecture``: its generation in the catalogue. ``last_level_bytes``: the cache that stands before memory.
    ``lds_bytes``: local data share of a workgroup. ``fp8``: PyTorch's name of e4m3 that its matrix cores take, "" for
    none. ``tf32``: whether they have xf32. ``steps_held``: steps of A and B that Triton's pipeline of two stages keeps
    in the local data share.
    """

    architecture: str
    last_level_bytes: int
    lds_bytes: int
    fp8: str = ""
    tf32: bool = False
    steps_held: float = 1.0


#: Bytes of a MiB and of a KiB, by definition of the prefixes.
_MI, _KI = 2**20, 2**10
#: Sources: caches and local data share, ROCm@e396b48 docs/reference/gpu-arch-specs.rst (8 MiB of L2 and no other on
#: MI200, 256 MiB of Infinity Cache on MI300 and MI350); fp8 and xf32, ROCm's precision-support.rst: fnuz on gfx942, OCP
#: on gfx950, which has no xf32; steps held, the tile probes of microbench/sweeps/tile.yaml as Triton 3.9.0 compiles
#: them: one, and on gfx950, which loads past the registers, two with 1 to 3 % of padding.
INSTRUCTION_SETS: Mapping[str, InstructionSet] = {
    "gfx90a": InstructionSet("cdna2", 8 * _MI, 64 * _KI),
    "gfx942": InstructionSet("cdna3", 256 * _MI, 64 * _KI, "float8_e4m3fnuz", True),
    "gfx950": InstructionSet("cdna4", 256 * _MI, 160 * _KI, "float8_e4m3fn", steps_held=2.06),
}
#: How far a board's memory and its highest clock may lie from its data sheet's: its driver keeps some of the memory.
#: Chosen by hand, not from data.
_MEMORY_SHARE, _CLOCK_SHARE = 0.05, 0.03


def plain(gcn_arch_name: str) -> str:
    """ "gfx942:sramecc+:xnack-" -> "gfx942"."""
    return gcn_arch_name.partition(":")[0]


def of_architecture(architecture: str) -> str:
    """The instruction set of a generation of the catalogue, "cdna3" -> "gfx942"; "" for one that is not known here."""
    return next((name for name, entry in INSTRUCTION_SETS.items() if entry.architecture == architecture), "")


def stages(tile: tuple[int, int, int], itemsize: float, gfx: str) -> int:
    """Stages of Triton's pipeline for a tile M x N x K: 2, as AMD's compiler has by default; 0 where what they keep of
    A and B does not fit the local data share."""
    (rows, columns, depth), entry = tile, INSTRUCTION_SETS[gfx]
    return 2 if entry.steps_held * (rows + columns) * depth * itemsize <= entry.lds_bytes else 0


def board(gfx: str, units: int, memory_bytes: float, clock_hz: float | None = None) -> GPUSpec | None:
    """The one board of the catalogue with this instruction set, compute units, memory and, where it is told, highest
    clock: for drivers that call every board "AMD Radeon Graphics". None where none fits, or several do."""
    entry = INSTRUCTION_SETS.get(gfx)
    if entry is None:
        return None
    specs = [load_gpu(name) for name in list_gpus() if name.startswith("mi")]
    fits = [
        spec
        for spec in specs
        if (spec.architecture, spec.sm_count) == (entry.architecture, units)
        and abs(spec.memory_capacity - memory_bytes) <= _MEMORY_SHARE * spec.memory_capacity
        and (not clock_hz or abs(spec.boost_clock_hz - clock_hz) <= _CLOCK_SHARE * spec.boost_clock_hz)
    ]
    return fits[0] if len(fits) == 1 else None


def refusal(dtype: str, launcher: str, gfx: str) -> str:
    """Why PyTorch or Triton runs no ``dtype`` on ``gfx``; "" where it does."""
    entry = INSTRUCTION_SETS[gfx]
    if dtype == "fp8" and not entry.fp8:
        return f"{gfx} has no fp8"
    if dtype == "nvfp4":
        return f"{gfx} has no nvfp4"
    if dtype == "tf32" and not (entry.tf32 and launcher == "tile"):
        return f"PyTorch multiplies fp32 on {gfx} in fp32, whatever allow_tf32 says"
    return ""
