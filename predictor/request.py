"""What was asked, with its defaults filled in and checked: names become specs, words a Workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from predictor.aggregate.plan import Point
from predictor.errors import RequestError, UnsupportedError
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.networks import ModelConfig, load_config
from predictor.ops.routing import RANDOM
from predictor.precision import TRAINABLE, default_attention, default_dtype, precision
from predictor.routing import router_of
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

Words = ParamSpec("Words")
Answer = TypeVar("Answer")

#: Longest sequence that is taken where none is asked for.
DEFAULT_SEQ_LEN = 2048


@dataclass(slots=True)  # not frozen: that costs `predict_many` as much as the rest of a request
class Request:
    """The words of one run, as they were given: the only list of them. `predictor.predict` takes the same.

    The command line has a flag for each, with the same default; its help says what they mean.
    """

    model: str | Path | ModelConfig
    gpu: str | Path | GPUSpec
    _: KW_ONLY
    mode: str = "forward"
    batch: int | None = None
    seq_len: int | None = None
    output_len: int = 0
    context_len: int | None = None
    dtype: str | None = None
    execution: str = "eager"
    attention: str | None = None
    optimizer: str = "adam"
    micro_batch: int = 0
    recompute: str = "none"
    prompt_lens: str | Sequence[int] | None = None
    routing: str | Path | Sequence[float] = RANDOM
    num_gpus: int | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    shard: str = "none"
    system: str | Path | SystemSpec | None = None
    launch_overhead: str | float | None = None
    step_overhead: str | float = DEFAULT_STEP_OVERHEAD_S
    artifacts: str | Path | None = None
    top: int = 0

    def point(self) -> Point:
        """The run, checked: names are specs and words a Workload, with the defaults filled in.

        Raises RequestError (or one of its kinds), one line, for a request that cannot be answered.
        """
        config = self.model if isinstance(self.model, ModelConfig) else load_config(self.model)
        gpu = self.gpu if isinstance(self.gpu, GPUSpec) else load_gpu(self.gpu)
        if isinstance(self.top, bool) or not isinstance(self.top, int) or self.top < 0:
            raise RequestError(f"--top {self.top!r}: expected 0 or more")
        dtype = self.dtype or default_dtype(gpu)
        numbers = precision(dtype, gpu)
        if self.mode == "train" and dtype not in TRAINABLE:
            raise UnsupportedError(f"--dtype {dtype} is for inference: training runs in {', '.join(TRAINABLE)}")
        num_gpus = self.tp if self.num_gpus is None else self.num_gpus
        degrees = Parallelism(num_gpus, self.tp, self.pp, self.dp, self.cp, self.ep, self.shard)
        lens = () if self.prompt_lens is None else ragged_lengths(self.prompt_lens)
        seq_len, context_len = _lengths(self, config, lens)
        work = Workload(
            mode=self.mode,
            batch=self.batch if self.batch is not None else len(lens) or 1,
            seq_len=seq_len,
            dtype=dtype,
            execution=self.execution,
            attention=self.attention or default_attention(dtype, gpu),
            output_len=self.output_len,
            context_len=context_len or 0,
            micro_batch=self.micro_batch,
            optimizer=self.optimizer,
            recompute=self.recompute,
            launch_overhead_s=_launch_overhead(self.launch_overhead, gpu, self.execution),
            parallelism=degrees,
            prompt_lens=lens,
            step_overhead_s=step_overhead_seconds(self.step_overhead),
            system=_system(self.system, gpu, degrees),
            routing=router_of(self.routing, 0 if config.expert_capacity else config.experts, config.top_k),
        )
        _check_length(config, work)
        return Point(config, gpu, work, numbers)


def of_words(source: Callable[Words, Request]) -> Callable[[Callable[[Request], Answer]], Callable[Words, Answer]]:
    """Makes a function of a Request one of its words, so that these, their types and their defaults are listed once.

    What it makes has the signature of ``source``, the class Request, for type checkers and for `inspect`.
    """

    def decorate(answer: Callable[[Request], Answer]) -> Callable[Words, Answer]:
        @wraps(answer, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
        def call(*args: Words.args, **words: Words.kwargs) -> Answer:
            return answer(source(*args, **words))

        shown = signature(source).replace(return_annotation=answer.__annotations__["return"])
        call.__signature__ = shown  # type: ignore[attr-defined]
        return call

    return decorate


def _lengths(asked: Request, config: ModelConfig, lens: tuple[int, ...]) -> tuple[int, int | None]:
    """Tokens of a sequence, and those in its KV cache: as asked for, else what the model can take."""
    seq_len, context_len = asked.seq_len, asked.context_len
    if lens:
        _check_ragged(config, asked.mode, seq_len, context_len)
        seq_len = max(lens)
    longest = min(config.max_positions, DEFAULT_SEQ_LEN)
    if lens and asked.mode == "decode":
        context_len = seq_len
    if asked.mode == "decode" and context_len is None:
        context_len = longest - 1 if seq_len is None else seq_len  # the step's own token is the last that fits
    if seq_len is None:
        makes = asked.output_len - 1 if asked.mode == "generate" and isinstance(asked.output_len, int) else 0
        seq_len = max(1, longest - max(0, makes)) if config.position == "learned" else longest
    return seq_len, context_len


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
