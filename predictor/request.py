"""What was asked, with its defaults filled in and checked: names become specs, words a Workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.aggregate.plan import Point
from predictor.errors import RequestError, UnsupportedError
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.networks import ModelConfig, load_config
from predictor.precision import TRAINABLE, default_attention, default_dtype, precision
from predictor.workload import (
    DEFAULT_LAUNCH_OVERHEAD_S,
    DEFAULT_STEP_OVERHEAD_S,
    NATIVE,
    NATIVE_LAUNCH_OVERHEAD_S,
    Parallelism,
    Workload,
    launch_overhead_seconds,
    ragged_lengths,
    step_overhead_seconds,
)

if TYPE_CHECKING:
    from predictor.hardware.system import SystemSpec

#: Longest sequence that is taken where none is asked for.
DEFAULT_SEQ_LEN = 2048


def request(
    model: str | Path | ModelConfig,
    gpu: str | Path | GPUSpec,
    *,
    mode: str = "forward",
    batch: int | None = None,
    seq_len: int | None = None,
    output_len: int = 0,
    context_len: int | None = None,
    dtype: str | None = None,
    execution: str = "eager",
    attention: str | None = None,
    optimizer: str = "adam",
    micro_batch: int = 0,
    recompute: str = "none",
    prompt_lens: str | Sequence[int] | None = None,
    num_gpus: int | None = None,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    cp: int = 1,
    ep: int = 1,
    shard: str = "none",
    system: str | Path | SystemSpec | None = None,
    launch_overhead: str | float | None = None,
    step_overhead: str | float = DEFAULT_STEP_OVERHEAD_S,
) -> Point:
    """One run, checked; the words are those of `predictor.predict`.

    Raises RequestError (or one of its kinds), one line, for a request that cannot be answered.
    """
    config = model if isinstance(model, ModelConfig) else load_config(model)
    spec = gpu if isinstance(gpu, GPUSpec) else load_gpu(gpu)
    name = dtype or default_dtype(spec)
    numbers = precision(name, spec)
    if mode == "train" and name not in TRAINABLE:
        raise UnsupportedError(f"--dtype {name} is for inference: training runs in {', '.join(TRAINABLE)}")
    degrees = Parallelism(tp if num_gpus is None else num_gpus, tp, pp, dp, cp, ep, shard)
    lens = () if prompt_lens is None else ragged_lengths(prompt_lens)
    if lens:
        _check_ragged(config, mode, seq_len, context_len)
        seq_len = max(lens)
    longest = min(config.max_positions, DEFAULT_SEQ_LEN)
    if lens and mode == "decode":
        context_len = seq_len
    if mode == "decode" and context_len is None:
        context_len = longest - 1 if seq_len is None else seq_len  # the step's own token is the last that fits
    if seq_len is None:
        makes = output_len - 1 if mode == "generate" and isinstance(output_len, int) else 0
        seq_len = max(1, longest - max(0, makes)) if config.position == "learned" else longest
    work = Workload(
        mode=mode,
        batch=batch if batch is not None else len(lens) or 1,
        seq_len=seq_len,
        dtype=name,
        execution=execution,
        attention=attention or default_attention(name, spec),
        output_len=output_len,
        context_len=context_len or 0,
        micro_batch=micro_batch,
        optimizer=optimizer,
        recompute=recompute,
        launch_overhead_s=_launch_overhead(launch_overhead, spec, execution),
        parallelism=degrees,
        prompt_lens=lens,
        step_overhead_s=step_overhead_seconds(step_overhead),
        system=_system(system, spec, degrees),
    )
    _check_length(config, work)
    return Point(config, spec, work, numbers)


def _system(given: str | Path | SystemSpec | None, gpu: GPUSpec, degrees: Parallelism) -> SystemSpec | None:
    """What joins the GPUs of a run; None for one GPU, whose system says nothing (a wrong name is still an error)."""
    if given is None and degrees.num_gpus == 1:
        return None
    from predictor.hardware.system import default_system, load_system  # a run of one GPU starts without it

    if given is None:
        return default_system(gpu)
    found = load_system(given) if isinstance(given, str | Path) else given
    return found if degrees.num_gpus > 1 else None


def _check_ragged(config: ModelConfig, mode: str, seq_len: int | None, context_len: int | None) -> None:
    """A ragged batch says its lengths itself, and has to be of a model that can be packed."""
    for name, value in (("seq-len", seq_len), ("context-len", context_len if mode == "decode" else None)):
        if value is not None:
            raise RequestError(f"--{name} {value}: --prompt-lens gives every sequence's length; leave --{name} out")
    if config.is_encoder_decoder:
        raise UnsupportedError(f"--prompt-lens: not built for an encoder-decoder ({config.name}); expected --seq-len")


def _launch_overhead(given: str | float | None, gpu: GPUSpec, execution: str) -> float:
    """Seconds of one framework call (of one launch from C++): as asked for, else of the GPU's host where its file names
    it, else the default."""
    if given is not None:
        return launch_overhead_seconds(given)
    if execution in NATIVE:
        return NATIVE_LAUNCH_OVERHEAD_S
    if gpu.launch_overhead_s is None:
        return DEFAULT_LAUNCH_OVERHEAD_S
    try:
        return launch_overhead_seconds(gpu.launch_overhead_s)
    except RequestError as error:
        raise RequestError(f"GPU file '{gpu.path}': {error}") from None


def _check_length(config: ModelConfig, work: Workload) -> None:
    """Learned positions end somewhere; rotary and ALiBi models run beyond their training length."""
    longest = work.context_len + 1 if work.mode == "decode" else work.seq_len + max(0, work.output_len - 1)
    if config.position == "learned" and longest > config.max_positions:
        raise RequestError(
            f"{longest} tokens: {config.name} has learned positions for {config.max_positions}; expected at most that"
        )
