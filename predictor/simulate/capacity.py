"""How many GPUs hold a run: degrees that are built, each checked by building its plan and seeing that it fits."""

from __future__ import annotations

from dataclasses import replace

from predictor.errors import TilecastError
from predictor.hardware.gpu import GPUSpec
from predictor.run import Run
from predictor.simulate.memory import Memory, memory_of
from predictor.simulate.plan import plan_of
from predictor.workload import Parallelism, Workload


def advised(memory: Memory, run: Run) -> Memory:
    """``memory``, what a GPU keeps during ``run``, with the smallest number of GPUs that hold the run, and words for it
    where the run does not fit."""
    gpu, work = run.gpu, run.work
    if memory.fits and memory.gpus == 1:
        return replace(memory, smallest_gpu_count=1)
    if work.mode == "train":
        return replace(memory, advice=f"Training on several GPUs is not built; {_spread(memory)}")
    held = _smallest(run, memory)
    if memory.fits:
        return replace(memory, smallest_gpu_count=held)
    if held is None:
        return replace(memory, advice=f"No degree that is built holds it ({_tried(gpu, work)}); {_spread(memory)}")
    words = "One of these GPUs holds it" if held == 1 else f"It takes {held} of these GPUs to hold it (--tp {held})"
    return replace(memory, smallest_gpu_count=held, advice=words)


def _smallest(run: Run, memory: Memory) -> int | None:
    """The smallest tensor-parallel degree within a node at which the run fits; at its own it keeps ``memory``."""
    from predictor.hardware.system import default_system  # a run of one GPU that fits starts without it

    try:
        system = run.work.system or default_system(run.gpu)
    except TilecastError:  # a GPU whose file has no links
        system = None
    for degree in range(1, 1 + (system.gpus_per_node if system is not None else 1)):
        if degree == memory.gpus and degree == run.work.parallelism.tp:
            held = memory
        else:
            joined = None if degree == 1 else system
            work = replace(run.work, parallelism=Parallelism(degree, degree), system=joined)
            at = replace(run, work=work)
            try:
                held = memory_of(at, plan_of(at))
            except TilecastError:  # a degree that does not divide the model
                continue
        if held.fits:
            return degree
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
