"""What is asked: one model, one GPU, one way of running it. Validated once, with an error that names the value."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from predictor import engines
from predictor.engines import Engine
from predictor.engines.memory import check_fraction
from predictor.engines.registry import ALL_GATHER
from predictor.errors import RequestError, UnsupportedError
from predictor.files.records import dataclass, replace
from predictor.ops.routing import Router
from predictor.request.options import OPTIONS, check_words, checks_of
from predictor.request.parallelism import SERVED, Parallelism
from predictor.request.parse import LARGEST_LAUNCH_OVERHEAD_S, check_launch_overhead, flag, within
from predictor.request.precision import ASKED, CHECKPOINT, FP8
from predictor.request.serving import Serving
from predictor.request.training import Training

if TYPE_CHECKING:
    from predictor.engines.vintage import Wait
    from predictor.hardware.system import SystemSpec
    from predictor.models.base import Model

#: CPU time of one framework call in eager PyTorch: the call from Python, dispatch, allocation, launch. Chosen by
#: looking at launch-bound runs, which show 4 to 12 microseconds; `microbench launch-overhead` measures a machine's own.
DEFAULT_LAUNCH_OVERHEAD_S = 6e-6


@dataclass(frozen=True, slots=True)
class Workload:
    """One run: sizes, dtype and execution; ``training`` or ``serving`` hold what these modes alone have, neither of
    them in mode forward.

    ``batch`` is that of all data-parallel ranks, ``seq_len`` the prompt or training length in tokens.
    ``launch_overhead_s`` is the host's CPU time of one framework call, which counts in eager execution (and where an
    engine launches a prefill); ``launch_overhead_assumed``: it is the default, which nobody asked for or measured.
    ``software`` says which release of the engine runs ("": the newest that is known). ``kernel_gap_s`` is what passes
    between two kernels (None: `predictor.simulate.timeline`).

    ``prompt_lens``: a ragged batch, packed without padding: every sequence's prompt length, or in mode decode the
    tokens that it has in the cache; ``seq_len`` or ``context_len`` is the longest of them, ``seq_len`` more where an
    engine pads sequences to that for attention. ``system`` joins the GPUs where there is more than one.
    ``memory_fraction``: what of the GPU's memory the run may use, as its engine counts it (`predictor.engines.memory`);
    None: the engine's default. ``dtype_source`` is of `predictor.request.precision.SOURCES`, ``dtype_recipe`` its word
    as the engine takes it, "" where it has no such meaning. ``routing``: how tokens fall on experts, None for a model
    without any, or with experts of fixed capacity. ``all_to_all``: how tokens come to experts of other ranks
    (`predictor.passes.expert_parallel`). ``steps``: equal forward passes one after the other, as a diffusion sampler
    runs them.
    """

    batch: int
    seq_len: int
    dtype: str
    execution: str
    attention: str
    training: Training | None = None
    serving: Serving | None = None
    launch_overhead_s: float = DEFAULT_LAUNCH_OVERHEAD_S
    parallelism: Parallelism = field(default_factory=Parallelism)
    prompt_lens: tuple[int, ...] = ()
    system: SystemSpec | None = None
    launch_overhead_assumed: bool = False
    memory_fraction: float | None = None
    dtype_source: str = ASKED
    dtype_recipe: str = ""
    routing: Router | None = None
    software: str = ""
    kernel_gap_s: float | None = None
    all_to_all: str = ALL_GATHER
    steps: int = 1

    def __post_init__(self) -> None:
        engines.running(self.execution, self.software)  # which says what there is
        if self.training is not None and self.serving is not None:
            raise TypeError("a workload trains or serves; expected training or serving, or neither of them")
        check_words(self, _CHECKED)
        if self.steps > 1 and self.mode != "forward":
            OPTIONS["steps"].refuse(self.steps)
        if self.all_to_all != ALL_GATHER and self.mode == "forward":
            OPTIONS["all_to_all"].refuse(self.all_to_all)
        self._check_degrees()
        for words in (self.training, self.serving):
            if words is not None:
                words.check(self)
        check_launch_overhead(self.launch_overhead_s)
        if self.memory_fraction is not None:
            check_fraction(self.memory_fraction)
        gap = self.kernel_gap_s
        if gap is not None and not within(gap, LARGEST_LAUNCH_OVERHEAD_S):
            raise RequestError(f"--kernel-gap {gap!r} s: expected 0 to 1 ms, such as 0.5us")
        if self.prompt_lens:
            self._check_ragged()

    def _check_degrees(self) -> None:
        """RequestError, one line, for degrees that the mode does not take, or that do not divide the batch."""
        over = self.parallelism
        if over.ulysses and self.mode != "forward":
            raise UnsupportedError(f"--ulysses {over.ulysses}: only --mode forward of a traced model takes it")
        if over.num_gpus > 1 and self.system is None:
            used = next(name for name in ("tp", "pp", "dp", "cp") if getattr(over, name) > 1)
            raise RequestError(f"--{used} {getattr(over, used)}: needs a system; expected --system")
        if self.training is None:
            takes = ("sp", "cp", "dp") if self.serving is None else SERVED
            for name, value in over.trains_only.items():
                if name not in takes:
                    shown = flag(name) if value is True else f"{flag(name)} {value}"
                    raise UnsupportedError(f"{shown}: not built yet for --mode {self.mode}; expected --mode train")
        over.check_ep(self.training is not None)
        if self.batch % over.dp:
            raise RequestError(
                f"--batch {self.batch}: the {over.dp} ranks of --dp do not divide it; nearest valid:"
                f" {max(1, round(self.batch / over.dp)) * over.dp}"
            )

    def _check_ragged(self) -> None:
        """RequestError, one line, for lengths of a ragged batch that are not as many, or as long, as it says."""
        if len(self.prompt_lens) != self.batch:
            raise RequestError(
                f"--batch {self.batch}: --prompt-lens has {len(self.prompt_lens)} sequences; expected that,"
                " or no --batch"
            )
        if min(self.prompt_lens) < 1:
            raise RequestError(f"--prompt-lens {min(self.prompt_lens)}: every sequence needs at least 1 token")
        longest, padded = self.given_len, self.serving is None and self.engine.pads_attention
        if max(self.prompt_lens) > longest or (max(self.prompt_lens) < longest and not padded):
            raise RequestError(f"{longest} tokens: the longest of --prompt-lens has {max(self.prompt_lens)}")

    def check_model(self, model: Model) -> None:
        """RequestError (or UnsupportedError), one line, for what ``model`` cannot do: learned positions end somewhere,
        while rotary and ALiBi models run beyond their training length; only some models have experts."""
        if self.parallelism.etp and not model.experts:
            raise RequestError(f"--etp {self.parallelism.etp}: {model.name} has no experts; leave it out")
        if self.training is not None:
            self.training.check_model(model, self.engine)
        longest = self.longest_sequence
        if model.position == "learned" and longest > model.max_positions:
            raise RequestError(
                f"{longest} tokens: {model.name} has {model.max_positions} learned positions; expected at most"
                f" {model.max_positions}"
            )

    def changed(self, **words: Any) -> Workload:
        """The workload with other words, each in the record that has it.

        Raises RequestError, one line, for a word that its mode does not take, TypeError for what is no word.
        """
        for record, names in _RECORDS:
            mine = {name: words.pop(name) for name in names & words.keys()}
            held = getattr(self, record)
            if mine and held is not None:
                words[record] = replace(held, **mine)
                continue
            for name, value in mine.items():
                if name not in OPTIONS or not OPTIONS[name].row.modes:
                    raise TypeError(f"a workload of mode {self.mode} has no {name!r}")
                OPTIONS[name].refuse(value)
        return replace(self, **words)

    @property
    def mode(self) -> str:
        """What runs, of `predictor.models.base.MODES`."""
        if self.training is not None:
            return "train"
        return "forward" if self.serving is None else self.serving.mode

    @property
    def dtype_word(self) -> str:
        """The word of ``--dtype`` that gives the formats of this run."""
        return CHECKPOINT if self.dtype_source == CHECKPOINT else FP8 if self.dtype_recipe else self.dtype

    @property
    def text_len(self) -> int:
        """Tokens of a sequence beside those of its images."""
        images = None if self.serving is None else self.serving.images
        return self.seq_len - (0 if images is None else images.tokens)

    @property
    def tokens_each(self) -> int:
        """Tokens of a sequence of training, forward passes and prompts."""
        return self.seq_len if self.training is None else self.training.mean_len or self.seq_len

    @property
    def sequences_a_pass(self) -> int:
        """Sequences of one pass of a rank: of one forward and backward pass in training; in serving of each of those
        that are on their way through the stages of a pipeline (`in_flight`)."""
        each = self.batch // self.parallelism.dp
        return -(-each // self.in_flight) if self.training is None else self.training.micro_batch or each

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
        overhead_s = None if self.serving is None else self.serving.step_overhead_s
        if overhead_s is not None:
            return {"step overhead": overhead_s} if overhead_s else {}
        each = self.batch // self.parallelism.dp
        waits = (wait for wait in self._waits() if wait.step_s or wait.sequence_s)
        return {wait.name: wait.step_s + each * wait.sequence_s for wait in waits}

    @property
    def waits_range_s(self) -> tuple[float, float] | None:
        """What `waits_s` add up to on the hosts there are, seconds [least, most]; None where they were given."""
        waits = self._waits()
        if not waits or self.serving is None or self.serving.step_overhead_s is not None:
            return None
        grown = sum(self.batch // self.parallelism.dp * wait.sequence_s for wait in waits)
        least, most = (sum(wait.range_s[end] for wait in waits) for end in (0, 1))
        return least + grown, most + grown

    def _waits(self) -> tuple[Wait, ...]:
        if self.serving is None or not self.engine.samples:
            return ()
        release = self.engine.vintage()
        return release.host.waits if release is not None else ()

    @property
    def given_len(self) -> int:
        """Tokens that the longest sequence comes with: those in the cache of a decode step, else those of `seq_len`."""
        serving = self.serving
        return serving.context_len if serving is not None and serving.mode == "decode" else self.seq_len

    @property
    def longest_sequence(self) -> int:
        """Positions that the longest sequence of the run takes, the tokens that it makes but the last among them."""
        serving = self.serving
        if serving is None:
            return self.seq_len
        return self.given_len + {"prefill": 0, "decode": 1, "generate": serving.output_len - 1}[serving.mode]

    @property
    def launch_range_s(self) -> tuple[float, float] | None:
        """What the assumed launch overhead stands for, seconds [least, most]; None where it was given."""
        return self.engine.launch_range_s if self.launch_overhead_assumed else None


_CHECKED = checks_of(Workload.__match_args__)
#: The records of a workload, and the words of each.
_RECORDS = tuple(
    (name, frozenset(kind.__match_args__)) for name, kind in (("training", Training), ("serving", Serving))
)
