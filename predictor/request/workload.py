"""What is asked: one model, one GPU, one way of running it. Validated once, with an error that names the value."""

from __future__ import annotations

from dataclasses import field, fields
from typing import TYPE_CHECKING

from predictor import engines
from predictor.engines import GREEDY, Engine
from predictor.engines.memory import check_fraction
from predictor.engines.registry import ALL_GATHER
from predictor.errors import RequestError, UnsupportedError
from predictor.files.records import dataclass
from predictor.models.base import CACHED
from predictor.ops.routing import Router
from predictor.request.numbers import ASKED, DEFAULT
from predictor.request.options import OPTIONS, TRAIN
from predictor.request.parallelism import SERVED, Parallelism
from predictor.request.words import (
    LARGEST_LAUNCH_OVERHEAD_S,
    LARGEST_STEP_OVERHEAD_S,
    check_launch_overhead,
    flag,
    recomputed,
    within,
)

if TYPE_CHECKING:
    from predictor.engines.vintage import Wait
    from predictor.hardware.system import SystemSpec

#: Passes of a pipeline's step that are laid out at most, a few seconds' work: a guard, chosen by hand, not from data.
_MOST_UNITS = 4_000_000
#: CPU time of one framework call in eager PyTorch: the call from Python, dispatch, allocation, launch. Chosen by
#: looking at launch-bound runs, which show 4 to 12 microseconds; `microbench launch-overhead` measures a machine's own.
DEFAULT_LAUNCH_OVERHEAD_S = 6e-6


@dataclass(frozen=True, slots=True)
class Workload:
    """One run: mode, sizes, dtype and execution.

    ``seq_len`` is the prompt or training length in tokens, ``context_len`` the tokens already in the KV cache of a
    decode step, ``output_len`` the tokens that generate makes a sequence, ``micro_batch`` the sequences of one
    forward and backward pass in training (0 = the batch); ``micro_batch_assumed``: nobody asked for so many.
    ``launch_overhead_s`` is the host's CPU time of one framework call, which counts in eager execution (and where an
    engine launches a prefill); ``launch_overhead_assumed``: it is the default, which nobody asked for or measured.
    ``software`` says which release of the engine runs ("": the newest that is known). ``step_overhead_s`` is what the
    engine's host adds to every prefill and decode step (None: what its release is known to add, `waits_s`),
    ``kernel_gap_s`` what passes between two kernels (None: `predictor.simulate.timeline`). ``sampling``: how a step's
    tokens are chosen, of `SAMPLINGS`.

    ``prompt_lens``: a ragged batch, packed without padding: every sequence's prompt length, or in mode decode the
    tokens that it has in the cache; ``seq_len`` or ``context_len`` is the longest of them, ``seq_len`` more where an
    engine pads sequences to that for attention. ``system`` joins the GPUs where there is more than one.
    ``memory_fraction``: what of the GPU's memory the run may use, as its engine counts it (`predictor.engines.memory`);
    None: the engine's default. ``kv_dtype`` is the KV cache's, "" where the mode keeps none; ``dtype_source`` and
    ``kv_dtype_source`` are of `predictor.request.numbers.SOURCES`. ``routing``: how tokens fall on experts, None for a
    model without any, or with experts of fixed capacity.

    In training ``batch`` is the global batch, of all data-parallel ranks; ``recompute`` says what runs again in the
    backward pass (`recomputed`), ``offload_layers`` how many layers a rank keeps the activations of in host memory.
    ``cuda_graphs``: what a step of training captures, of `predictor.engines.base.CAPTURES`, or "none".
    ``steps``: equal forward passes one after the other, as a diffusion sampler runs them.
    ``lora``: rank of adapters beside attention's projections, which alone are trained then (0: all weights are).
    ``mean_len``: tokens of a sequence on average where batches of training are packed without padding, each sequence
    taken as long (0: ``seq_len``). ``masked_tokens``: positions of each sequence that a masked-language-model head
    works on (0: all). ``capacity_factor``: rows that an expert takes at most, over those of an even spread; what is
    beyond is dropped (0: nothing is).
    In serving ``batch`` is that of all data-parallel ranks, too; ``all_to_all`` is how tokens come to experts of other
    ranks (`predictor.passes.expert_parallel`).
    """

    mode: str
    batch: int
    seq_len: int
    dtype: str
    execution: str
    attention: str
    output_len: int = 0
    context_len: int = 0
    micro_batch: int = 0
    optimizer: str = "adam"
    recompute: str = "none"
    launch_overhead_s: float = DEFAULT_LAUNCH_OVERHEAD_S
    parallelism: Parallelism = field(default_factory=Parallelism)
    prompt_lens: tuple[int, ...] = ()
    step_overhead_s: float | None = None
    system: SystemSpec | None = None
    launch_overhead_assumed: bool = False
    memory_fraction: float | None = None
    dtype_source: str = ASKED
    kv_dtype: str = ""
    kv_dtype_source: str = DEFAULT
    routing: Router | None = None
    software: str = ""
    kernel_gap_s: float | None = None
    sampling: str = GREEDY
    offload_layers: int = 0
    lora: int = 0
    mean_len: int = 0
    masked_tokens: int = 0
    capacity_factor: float = 0.0
    all_to_all: str = ALL_GATHER
    steps: int = 1
    cuda_graphs: str = "none"
    micro_batch_assumed: bool = False

    def __post_init__(self) -> None:
        engines.running(self.execution, self.software)  # which says what there is
        for name, usual, option in _CHECKED:
            value = getattr(self, name)
            if value is not usual or usual is None:  # most are
                option.check(value)
        self._check_training()
        if self.mode == "generate" and self.output_len < 1:
            raise RequestError(f"--output-len {self.output_len}: generate needs at least 1 token")
        if self.mode != "generate" and self.output_len:
            raise RequestError(f"--output-len {self.output_len}: only --mode generate takes it")
        if self.mode != "forward" and self.steps > 1:
            raise RequestError(f"--steps {self.steps}: only --mode forward takes it")
        if self.mode != "decode" and self.context_len:
            raise RequestError(f"--context-len {self.context_len}: only --mode decode takes it")
        check_launch_overhead(self.launch_overhead_s)
        if self.memory_fraction is not None:
            check_fraction(self.memory_fraction)
        self._check_serving()

    def _check_training(self) -> None:
        """What only training has: micro-batches, recomputation, every parallelism but tp; and the GPUs' links."""
        recomputed(self.recompute)
        over = self.parallelism
        if over.ulysses and self.mode != "forward":
            raise UnsupportedError(f"--ulysses {over.ulysses}: only --mode forward of a traced model takes it")
        if over.num_gpus > 1 and self.system is None:
            used = next(name for name in ("tp", "pp", "dp", "cp") if getattr(over, name) > 1)
            raise RequestError(f"--{used} {getattr(over, used)}: needs a system; expected --system")
        factor = self.capacity_factor
        if (
            isinstance(factor, bool)
            or not isinstance(factor, int | float)
            or not (factor == 0 or 0.01 <= factor <= 1e6)
        ):
            raise RequestError(f"--capacity-factor {factor!r}: expected a number such as 1.25, or 0 to drop nothing")
        if self.mean_len and self.mean_len > self.seq_len:
            raise RequestError(f"--mean-len {self.mean_len}: expected at most --seq-len {self.seq_len}")
        if self.masked_tokens and self.masked_tokens > self.tokens_each:
            raise RequestError(
                f"--masked-tokens {self.masked_tokens}: a sequence has {self.tokens_each} tokens; expected at most that"
            )
        if self.mode != "train":
            for name, default in _TRAINING.items():
                if getattr(self, name) != default:
                    raise RequestError(f"{flag(name)} {getattr(self, name)}: only --mode train takes it")
            serves = SERVED if self.mode in CACHED else ("sp", "cp", "dp") * (self.mode == "forward")
            for name, value in over.trains_only.items():
                if name not in serves:
                    shown = flag(name) if value is True else f"{flag(name)} {value}"
                    raise UnsupportedError(f"{shown}: not built yet for --mode {self.mode}; expected --mode train")
        training = self.engine.training if self.cuda_graphs != "none" else None
        if self.cuda_graphs != "none" and (training is None or self.cuda_graphs not in training.captures):
            raise RequestError(
                f"--cuda-graphs {self.cuda_graphs}: nothing that {self.software or self.execution} captures; expected"
                " --execution megatron, of 24.08 or later"
            )
        over.check_ep(self.mode == "train")
        each = self.batch // over.dp
        if self.batch % over.dp:
            raise RequestError(
                f"--batch {self.batch}: the {over.dp} ranks of --dp do not divide it; nearest valid:"
                f" {max(1, round(self.batch / over.dp)) * over.dp}"
            )
        if self.micro_batch and each % self.micro_batch:
            of = f" over --dp {over.dp}, {each} a rank" if over.dp > 1 else ""
            fit = max(n for n in range(1, min(self.micro_batch, each) + 1) if each % n == 0)
            raise RequestError(
                f"--micro-batch {self.micro_batch}: does not divide --batch {self.batch}{of}; nearest valid: {fit}"
            )

        units = 2 * over.pp * over.vpp * self.micro_batches
        if over.pp > 1 and units > _MOST_UNITS:
            raise RequestError(
                f"--batch {self.batch}: {self.micro_batches:,} micro-batches are {units:,} passes of the {over.pp}"
                f" stages; expected at most {_MOST_UNITS:,}, by a larger --micro-batch or fewer sequences"
            )

    def _check_serving(self) -> None:
        """What only serving has: ragged batches, the engine's overhead, tensor parallelism of a forward pass."""
        if self.mode == "train" and self.engine.samples:
            train = ", ".join(name for name in engines.names() if not engines.engine(name).samples)
            raise RequestError(f"--execution {self.execution}: does not train; expected one of {train}")
        overhead, gap = self.step_overhead_s, self.kernel_gap_s
        if overhead is not None and not within(overhead, LARGEST_STEP_OVERHEAD_S):
            raise RequestError(f"--step-overhead {overhead!r} s: expected 0 to 10 s, such as 5ms")
        if gap is not None and not within(gap, LARGEST_LAUNCH_OVERHEAD_S):
            raise RequestError(f"--kernel-gap {gap!r} s: expected 0 to 1 ms, such as 0.5us")
        if overhead and self.mode not in ("prefill", "decode", "generate"):
            raise RequestError(f"--step-overhead {overhead:g} s: only --mode prefill, decode and generate take it")
        if self.sampling != GREEDY and not (self.mode in CACHED and self.engine.samples):
            sampling = ", ".join(name for name in engines.names() if engines.engine(name).samples)
            raise RequestError(
                f"--sampling {self.sampling}: only engines that sample tokens take it, in --mode prefill, decode and"
                f" generate; expected --execution {sampling}"
            )
        if not self.prompt_lens:
            return
        if self.mode == "train":
            raise RequestError("--prompt-lens: --mode train takes one --seq-len; expected another mode")
        longest = self.context_len if self.mode == "decode" else self.seq_len
        if len(self.prompt_lens) != self.batch:
            raise RequestError(
                f"--batch {self.batch}: --prompt-lens has {len(self.prompt_lens)} sequences; expected that,"
                " or no --batch"
            )
        if min(self.prompt_lens) < 1:
            raise RequestError(f"--prompt-lens {min(self.prompt_lens)}: every sequence needs at least 1 token")
        padded = self.mode == "forward" and self.engine.pads_attention
        if max(self.prompt_lens) > longest or (max(self.prompt_lens) < longest and not padded):
            raise RequestError(f"{longest} tokens: the longest of --prompt-lens has {max(self.prompt_lens)}")

    @property
    def training_words(self) -> dict[str, object]:
        """The words that training alone takes, by name, where they are not at their defaults."""
        return {name: getattr(self, name) for name, default in _TRAINING.items() if getattr(self, name) != default}

    @property
    def tokens_each(self) -> int:
        """Tokens of a sequence of training, forward passes and prompts."""
        return self.mean_len or self.seq_len

    @property
    def sequences_a_pass(self) -> int:
        """Sequences of one pass of a rank: of one forward and backward pass in training; in serving of each of those
        that are on their way through the stages of a pipeline (`in_flight`)."""
        each = self.batch // self.parallelism.dp
        return self.micro_batch or (each if self.mode == "train" else -(-each // self.in_flight))

    @property
    def in_flight(self) -> int:
        """Batches that a serving pipeline has on its way at a time: one a stage, as far as there are sequences."""
        return min(self.parallelism.pp, self.batch // self.parallelism.dp)

    @property
    def lens_a_pass(self) -> tuple[int, ...]:
        """`prompt_lens` of the pass that has the longest, where several ranks and passes share them by turns."""
        shares = self.parallelism.dp * self.in_flight
        return self.prompt_lens if shares == 1 else tuple(sorted(self.prompt_lens, reverse=True)[::shares])

    @property
    def micro_batches(self) -> int:
        """Passes of a rank in a step of training."""
        return self.batch // self.parallelism.dp // self.sequences_a_pass

    @property
    def engine(self) -> Engine:
        """What runs the model, in its release."""
        return engines.running(self.execution, self.software)

    @property
    def waits_s(self) -> dict[str, float]:
        """What the GPU waits for after every step of this batch: words -> seconds."""
        if self.step_overhead_s is not None:
            return {"step overhead": self.step_overhead_s} if self.step_overhead_s else {}
        each = self.batch // self.parallelism.dp
        waits = (wait for wait in self._waits() if wait.step_s or wait.sequence_s)
        return {wait.name: wait.step_s + each * wait.sequence_s for wait in waits}

    @property
    def waits_range_s(self) -> tuple[float, float] | None:
        """What `waits_s` add up to on the hosts there are, seconds [least, most]; None where they were given."""
        waits = self._waits()
        if self.step_overhead_s is not None or not waits:
            return None
        grown = sum(self.batch // self.parallelism.dp * wait.sequence_s for wait in waits)
        least, most = (sum(wait.range_s[end] for wait in waits) for end in (0, 1))
        return least + grown, most + grown

    def _waits(self) -> tuple[Wait, ...]:
        if self.mode not in CACHED or not self.engine.samples:
            return ()
        release = self.engine.vintage()
        return release.host.waits if release is not None else ()

    @property
    def longest_sequence(self) -> int:
        """Positions that the longest sequence of the run takes, the tokens that it makes but the last among them."""
        if self.mode == "decode":
            return self.context_len + 1
        return self.seq_len + (self.output_len - 1 if self.mode == "generate" else 0)

    @property
    def launch_range_s(self) -> tuple[float, float] | None:
        """What the assumed launch overhead stands for, seconds [least, most]; None where it was given."""
        return self.engine.launch_range_s if self.launch_overhead_assumed else None


_FIELDS = frozenset(each.name for each in fields(Workload))
#: Words of a workload that are checked as their rows say: sizes, and those that are one of a list. Of the others a
#: release, a checkpoint or an alias says more than a list.
_CHECKED = tuple(
    (name, option.default, option)
    for name, option in OPTIONS.items()
    if name in _FIELDS - {"execution", "dtype", "kv_dtype", "system"} and (option.kind == "whole" or option.row.choices)
)
#: Words of a workload that only training takes, by name, with their defaults.
_TRAINING = {name: option.default for name, option in OPTIONS.items() if option.row.modes == TRAIN and name in _FIELDS}
