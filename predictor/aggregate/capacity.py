"""How many GPUs hold a run: degrees that are built, each checked by building its plan and seeing that it fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from predictor.aggregate.memory import Memory
from predictor.errors import TilecastError
from predictor.hardware.gpu import GPUSpec
from predictor.workload import Parallelism, Workload


def advised(memory: Memory, gpu: GPUSpec, work: Workload, memory_at: Callable[[Workload], Memory]) -> Memory:
    """``memory`` with the smallest number of GPUs that hold the run, and words for it where the run does not fit.

    ``memory_at`` builds the plan of a workload and says what one of its GPUs keeps; a degree that does not divide the
    model raises a TilecastError there.
    """
    if memory.fits and memory.gpus == 1:
        return replace(memory, smallest_gpu_count=1)
    if work.mode == "train":
        return replace(memory, advice=f"Training on several GPUs is not built; {_spread(memory)}")
    held = _smallest(gpu, work, memory_at)
    if memory.fits:
        return replace(memory, smallest_gpu_count=held)
    if held is None:
        return replace(memory, advice=f"No degree that is built holds it ({_tried(gpu, work)}); {_spread(memory)}")
    words = "One of these GPUs holds it" if held == 1 else f"It takes {held} of these GPUs to hold it (--tp {held})"
    return replace(memory, smallest_gpu_count=held, advice=words)


def _smallest(gpu: GPUSpec, work: Workload, memory_at: Callable[[Workload], Memory]) -> int | None:
    """The smallest tensor-parallel degree within a node at which the run fits."""
    from predictor.hardware.system import default_system  # a run of one GPU that fits starts without it

    try:
        system = work.system or default_system(gpu)
    except TilecastError:  # a GPU whose file has no links
        system = None
    for degree in range(1, 1 + (system.gpus_per_node if system is not None else 1)):
        joined = None if degree == 1 else system
        at = replace(work, parallelism=Parallelism(degree, degree), system=joined)
        try:
            if memory_at(at).fits:
                return degree
        except TilecastError:
            continue
    return None


def _tried(gpu: GPUSpec, work: Workload) -> str:
    """The degrees that were looked at."""
    from predictor.hardware.system import default_system

    try:
        system = work.system or default_system(gpu)
    except TilecastError:
        return "--tp 1: nothing says how these GPUs are joined"
    return f"--tp within the {system.gpus_per_node} GPUs of a node of {system.id}"


def _spread(memory: Memory) -> str:
    """What it would take if everything could be spread evenly."""
    return f"spread evenly it would take {memory.even_gpu_count:,} of these GPUs"
