"""Questions about an engine's defaults, answered from its vintages (`predictor.engines.vintage`).

All take an `Engine`, in its newest release or in that of `Engine.as_of`. None is the answer where nobody read one:
kernels were read for NVIDIA's GPUs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from predictor.engines.base import DECODE, Engine
from predictor.engines.reductions import EITHER_SHOT, NCCL, ONE_SHOT, TWO_SHOT, FusedNorm
from predictor.engines.vintage import (
    DECODES,
    LATENT,
    PROMPTS,
    Graphs,
    KernelRule,
    Scheduler,
    Setting,
)
from predictor.hardware.gpu import GPUSpec
from predictor.ops.base import Op
from predictor.ops.collective import Collective

T = TypeVar("T")


# ------------------------------------------------------------------------------------------------ scheduler and host


def scheduler(engine: Engine, setting: Setting) -> Scheduler | None:
    """How a step's batch is put together in this setting."""
    vintage = engine.vintage()
    return vintage.scheduler(setting) if vintage and vintage.scheduler else None


def overlaps(engine: Engine, what: str, setting: Setting) -> bool:
    """Whether the host does ``what`` (of `OVERLAPS`) while the GPU runs another step. False where nobody read it."""
    vintage = engine.vintage()
    return vintage is not None and what in vintage.host.overlaps and (setting.pp == 1 or vintage.host.overlaps_stages)


def follows_checkpoint(engine: Engine) -> bool:
    """Whether the KV cache has the dtype that a checkpoint names for it, where nobody asks for another one."""
    vintage = engine.vintage()
    return vintage is None or vintage.cache is None or vintage.cache.follows


def integer_cache(engine: Engine) -> bool:
    """Whether it has an attention kernel over keys and values in int8."""
    vintage = engine.vintage()
    return vintage is not None and vintage.cache is not None and vintage.cache.integers


def page_tokens(engine: Engine, kernel: str = "") -> int | None:
    """Tokens of a page of the KV cache under an attention kernel ("": one without pages of its own)."""
    vintage = engine.vintage()
    if vintage is None or vintage.cache is None:
        return None
    return vintage.cache.pages.get(kernel, vintage.cache.page_tokens)


# ------------------------------------------------------------------------------------------------------ CUDA graphs


def graphs(engine: Engine, setting: Setting) -> Graphs | None:
    """What is captured in this setting."""
    vintage = engine.vintage()
    return vintage.graphs(setting) if vintage and vintage.graphs else None


def captured_batch(engine: Engine, batch: int, setting: Setting, longest: int = 0) -> int | None:
    """Sequences of the graph that a decode step of ``batch`` runs in, those that pad it included.

    None where it runs uncaptured. ``longest``: tokens of its longest sequence.
    """
    held = graphs(engine, setting)
    return None if held is None else held.batch_of(batch, longest)


def captured_tokens(engine: Engine, tokens: int, setting: Setting) -> int | None:
    """Tokens of the captured pieces that a step with prompts, of ``tokens`` tokens in all, runs in, those that pad it
    included (its own beyond the sizes that were read); None where it is launched."""
    held = graphs(engine, setting)
    return None if held is None else held.pieces(tokens)


# ---------------------------------------------------------------------------------------------------------- kernels


def _covers(capabilities: tuple[str, ...], capability: str) -> bool:
    return not capabilities or capability in capabilities or capability.split(".")[0] in capabilities


def _rules(engine: Engine, operator: str, gpu: GPUSpec) -> Iterator[KernelRule]:
    vintage, capability = engine.vintage(), gpu.compute_capability
    if vintage is None or capability is None:
        return
    for rule in vintage.kernels:
        if operator in rule.operators and _covers(rule.capabilities, capability):
            yield rule


def attention_kernel(
    engine: Engine, phase: str, gpu: GPUSpec, *, latent: bool = False, tokens: int = 1, auto_cache: bool = True
) -> str | None:
    """Whose attention kernel runs a pass of ``phase`` (`PREFILL`, `DECODE`) on ``gpu``.

    ``latent``: over a latent cache; ``tokens`` of the call, sequences in a decode step; ``auto_cache``: the cache has
    the model's dtype.
    """
    operator = LATENT if latent else DECODES if phase == DECODE else PROMPTS
    for rule in _rules(engine, operator, gpu):
        if tokens <= rule.tokens and (auto_cache or not rule.auto_cache):
            return rule.kernels[0]
    return None


# ------------------------------------------------------------------------------------------------------ collectives


def of_capability(table: Mapping[str, T], capability: str) -> T | None:
    """The entry for a compute capability: its own ("10.3"), that of its major number ("10"), that of the rest ("")."""
    return table.get(capability) or table.get(capability.split(".")[0]) or table.get("")


def all_reduce_algorithm(
    engine: Engine, size_bytes: float, ranks: int, capability: str, *, linked: bool = True, itemsize: int = 2
) -> str | None:
    """Which of `ALGORITHMS` reduces a buffer of ``size_bytes`` over ``ranks`` GPUs of one node.

    ``linked``: NVLink joins all of them; ``itemsize`` in bytes.
    """
    vintage = engine.vintage()
    if vintage is None or vintage.collectives is None:
        return None
    rules = of_capability(vintage.collectives.reductions, capability) or ()
    if not linked and ranks >= vintage.collectives.linked_from:
        return NCCL
    for rule in rules:
        size = size_bytes / itemsize if rule.of_elements else size_bytes
        if size < rule.below.get(ranks, 0.0):
            return rule.algorithm
    return NCCL


def library_of(engine: Engine, gpu: GPUSpec) -> Callable[[Op], str] | None:
    """Library of each operator's kernels on ``gpu``: that of `Engine.library_of`, and for an all_reduce the engine's of
    this release, or NCCL where the release leaves it to that; None where it is the engine's for all.

    PyTorch's symmetric memory, which nobody measured, is taken for the engine's own kernel, which it replaces where it
    is faster.
    """
    of_kernels, vintage = engine.library_of(gpu), engine.vintage()
    if vintage is None or vintage.collectives is None:
        return of_kernels
    capability = gpu.compute_capability or ""
    kernels = (
        f"{engine.kernels} {engine.kernels_at}" if engine.aged and engine.kernels == engine.name else engine.kernels
    )

    def choose(op: Op) -> str:
        if isinstance(op, Collective) and op.kind == "all_reduce" and op.local_ranks == op.ranks:
            linked = op.link != "pcie"
            algorithm = all_reduce_algorithm(engine, op.size, op.ranks, capability, linked=linked)
            return NCCL if algorithm == NCCL else kernels
        return engine.kernels if of_kernels is None else of_kernels(op)

    return choose


def fused_norm(
    engine: Engine, size_bytes: float, tokens: int, ranks: int, capability: str, model_type: str = ""
) -> str | None:
    """The algorithm in which an all_reduce takes the sum and the norm behind it into its kernel; None where not."""
    vintage = engine.vintage()
    rule: FusedNorm | None = None
    if vintage is not None and vintage.collectives is not None:
        rule = of_capability(vintage.collectives.fused, capability)
    if rule is None or tokens > rule.tokens or (rule.models and model_type not in rule.models):
        return None
    if size_bytes > rule.largest.get(ranks, 0.0):
        return None
    if rule.one_shot is None:
        return EITHER_SHOT
    return ONE_SHOT if size_bytes <= rule.one_shot.get(ranks, 0.0) else TWO_SHOT
