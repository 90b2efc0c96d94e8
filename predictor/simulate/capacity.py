"""How many GPUs hold a run: degrees that are built, each checked by building its plan and seeing that it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import gcd
from typing import Any

from predictor.errors import TilecastError
from predictor.files.records import replace
from predictor.hardware.gpu import GPUSpec
from predictor.request.options import HSDP, SHARDS
from predictor.request.parallelism import Parallelism
from predictor.request.run import Run
from predictor.request.workload import Workload
from predictor.simulate.memory import Memory, least_of_training, memory_of
from predictor.simulate.plan import plan_of


def advised(memory: Memory, run: Run) -> Memory:
    """``memory``, what a GPU keeps during ``run``, with the smallest number of GPUs that hold the run, and words for it
    where the run does not fit."""
    gpu, work = run.gpu, run.work
    if memory.fits and memory.gpus == 1:
        return replace(memory, smallest_gpu_count=1)
    if work.training is not None:
        return memory if memory.fits else replace(memory, advice=_change(run, memory))
    held = _smallest(run, memory)
    if memory.fits:
        return replace(memory, smallest_gpu_count=held)
    if held is None:
        return replace(memory, advice=f"No --tp makes it fit ({_tried(gpu, work)}); {_spread(memory)}")
    words = "It fits on one of these GPUs" if held == 1 else f"It fits on {held} of these GPUs (--tp {held})"
    return replace(memory, smallest_gpu_count=held, advice=words)


def _change(run: Run, memory: Memory) -> str:
    """The first change of a step of training, the least first, with which it fits; in words."""
    for words, changed in (*_changes(run.work), *_on_more(run)):
        try:
            at = replace(run, work=changed())
            if least_of_training(at) > memory.capacity:
                continue
            held = memory_of(at, plan_of(at))
        except TilecastError:  # what does not divide, or does not go together
            continue
        if held.fits:
            return f"It fits with {words}"
    return f"No single change makes it fit (recompute, micro-batch, shard, tp, pp); {_spread(memory)}"


def _changes(work: Workload) -> Iterator[tuple[str, Callable[[], Workload]]]:
    """Changes on as many GPUs: what costs time alone, then what spreads the state, then other degrees. In words, with
    what makes the work, which is refused where other words of it do not allow the change."""
    over, training = work.parallelism, work.training
    assert training is not None
    for kind in ("selective", "full"):
        if training.recompute not in (kind, "full"):
            yield f"--recompute {kind}", partial(work.changed, recompute=kind)
    if work.sequences_a_pass > 1:
        yield "--micro-batch 1", partial(work.changed, micro_batch=1)
        yield "--micro-batch 1 --recompute full", partial(work.changed, micro_batch=1, recompute="full")

    def other(degrees: dict[str, Any], **more: Any) -> Workload:
        joined = replace(over, **degrees)
        system = None if work.system is None else work.system.shared_by(joined.groups, (joined.sharers,))
        return work.changed(parallelism=joined, system=system, **more)

    for shard in SHARDS[1 + SHARDS.index(over.shard) : 4] if over.dp > 1 and over.shard != HSDP else ():
        yield f"--shard {shard}", partial(other, {"shard": shard})
        spread = partial(other, {"shard": shard}, recompute="full", micro_batch=1)
        yield f"--shard {shard} --micro-batch 1 --recompute full", spread
    for name in ("tp", "pp"):
        if over.dp % 2 == 0:
            degrees = {name: 2 * getattr(over, name), "dp": over.dp // 2}
            words = f"--{name} {degrees[name]} --dp {degrees['dp']}"
            if over.ep > 1 and not over.folds and degrees["dp"] * over.cp % over.ep:
                degrees["ep"] = gcd(over.ep, degrees["dp"] * over.cp)
                words += f" --ep {degrees['ep']}"
            yield words, partial(other, degrees)
            yield f"{words} --micro-batch 1 --recompute full", partial(other, degrees, micro_batch=1, recompute="full")


def _on_more(run: Run) -> Iterator[tuple[str, Callable[[], Workload]]]:
    """More GPUs of a node for a run of one: replicas that share the batch, and spread the whole state."""
    from predictor.hardware.system import default_system  # a run of one GPU that fits starts without it

    work = run.work
    if work.parallelism.num_gpus > 1:
        return
    try:
        system = default_system(run.gpu)
    except TilecastError:  # a GPU whose file has no links
        return
    for dp in range(2, system.gpus_per_node + 1):
        if work.batch % dp == 0:
            spread = Parallelism(dp, dp=dp, shard="zero3")
            micro = min(work.sequences_a_pass, work.batch // dp)
            if work.batch // dp % micro == 0:
                changed = partial(work.changed, parallelism=spread, system=system, micro_batch=micro)
                yield f"--dp {dp} --shard zero3", changed
                yield f"--dp {dp} --shard zero3 --recompute full", partial(changed, recompute="full")


def _smallest(run: Run, memory: Memory) -> int | None:
    """The smallest tensor-parallel degree within a node at which the run fits; at its own it keeps ``memory``.

    Degrees at which not even an even split of one GPU's memory fits are not planned: no degree keeps less."""
    from predictor.hardware.system import default_system  # a run of one GPU that fits starts without it

    try:
        system = run.work.system or default_system(run.gpu)
        system = system.whole or system
    except TilecastError:  # a GPU whose file has no links
        system = None
    least = memory.even_gpu_count if memory.gpus == 1 else 1
    for degree in range(least, 1 + (system.gpus_per_node if system is not None else 1)):
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
        return "tried --tp 1 alone: no system says how these GPUs are connected"
    return f"tried up to the {(system.whole or system).gpus_per_node} GPUs of a node of {system.id}"


def _spread(memory: Memory) -> str:
    """What it would take if everything could be spread evenly."""
    return f"split evenly, it would need {memory.even_gpu_count:,} of these GPUs"
