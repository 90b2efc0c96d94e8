"""What is asked: one model, one GPU, one way of running it. Validated once, with an error that names the value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from predictor import engines
from predictor.engines import GREEDY, SAMPLINGS, Engine
from predictor.engines.exchange import ALL_GATHER, exchanges
from predictor.engines.memory import check_fraction
from predictor.errors import RequestError, UnsupportedError, nearest
from predictor.ops.routing import Router
from predictor.units import parse_quantity

if TYPE_CHECKING:
    from predictor.engines.vintage import Wait
    from predictor.hardware.system import SystemSpec

MODES = ("forward", "train", "prefill", "decode", "generate")
#: Modes that keep keys and values in a cache.
CACHED = ("prefill", "decode", "generate")
#: Where a number format of a run comes from: a person's word, the model's checkpoint, the GPU's default.
SOURCES = ASKED, CHECKPOINT, DEFAULT = "asked", "checkpoint", "default"
ATTENTIONS = ("math", "flash")
OPTIMIZERS = ("adam", "adam_fused", "adam_8bit", "sgd", "none")
RECOMPUTES = ("none", "selective", "full")
SHARDS = NO_SHARD, ZERO1, ZERO2, ZERO3, HSDP = "none", "zero1", "zero2", "zero3", "hsdp"
#: Degrees beside tp that serving has, too.
SERVED = ("pp", "dp", "ep")
#: Words that only training takes, by name, with their defaults.
_TRAINING = {
    "micro_batch": 0, "recompute": "none", "offload_layers": 0, "lora": 0, "mean_len": 0, "masked_tokens": 0,
}  # fmt: skip
#: Orders in which a stage of a pipeline works on its micro-batches.
SCHEDULES = GPIPE, ONE_F_ONE_B, INTERLEAVED, BREADTH_FIRST = "gpipe", "1f1b", "interleaved", "breadth_first"
#: How context parallelism exchanges keys and values: in a ring, or heads for positions by all_to_all (Ulysses).
CP_COMMS = RING, ALL_TO_ALL = "ring", "all_to_all"

#: CPU time of one framework call in eager PyTorch: the call from Python, dispatch, allocation, launch. Chosen by
#: looking at launch-bound runs, which show 4 to 12 microseconds; `microbench launch-overhead` measures a machine's own.
DEFAULT_LAUNCH_OVERHEAD_S = 6e-6
#: A framework call that takes a millisecond is a slip of the keyboard ("6ms").
LARGEST_LAUNCH_OVERHEAD_S = 1e-3
#: An engine that takes longer for a step is a slip of the keyboard.
LARGEST_STEP_OVERHEAD_S = 10.0

#: Sizes beyond which a request is a slip of the keyboard: no GPU holds them, and sums of them leave exact integers.
LARGEST = {
    "batch": 10**7, "micro_batch": 10**7, "seq_len": 10**8, "context_len": 10**8, "output_len": 10**6,
    "steps": 10**6,
}  # fmt: skip
#: GPUs of a run, and degrees: more are a slip of the keyboard.
LARGEST_DEGREE = 10**6
#: Sequences of a ragged batch: more are a slip of the keyboard.
LARGEST_RAGGED = 10_000


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Degrees of each parallelism, ``num_gpus`` the product of tp, pp, dp and cp.

    ``ep`` adds no GPUs: experts are shared out over groups of ep of the dp x cp ranks in training, of the tp x dp GPUs
    of a stage in serving. ``sp``: outside of what tp
    splits, sequences are split over its ranks (sequence parallelism). ``vpp``: model chunks that a pipeline stage
    holds. ``schedule``: one of `SCHEDULES` ("": interleaved where vpp is above 1, else 1f1b). ``shard``: what of the
    training state is spread over the data-parallel ranks, one of `SHARDS`; hsdp spreads all of it within a node.
    ``cp_comm``: one of `CP_COMMS`; ``ulysses``: of the cp ranks of a traced forward pass, so many exchange heads, and
    their groups are a ring (0: all do, or none, by ``cp_comm``). ``tp_overlap``: products run in pieces beside the
    collectives of tp (Transformer Engine's `--tp-comm-overlap`), which takes sp. ``stage_layers``: layers of every
    chunk of the pipeline in the model's order (none: as evenly as they go); 0 at an end is a stage of the embedding, or
    the head, alone.
    """

    num_gpus: int = 1
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    shard: str = NO_SHARD
    sp: bool = False
    vpp: int = 1
    schedule: str = ""
    cp_comm: str = RING
    tp_overlap: bool = False
    ulysses: int = 0
    stage_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "cp", "ep", "vpp", "num_gpus"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_DEGREE:
                raise RequestError(f"{flag(name)} {value}: expected a whole number, at least 1")
        for name in ("sp", "tp_overlap"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{flag(name)} {getattr(self, name)!r}: expected true or false")
        if self.tp_overlap and not self.sp:
            raise RequestError("--tp-overlap: overlaps the collectives of --sp; expected --sp with it")
        groups = self.ulysses
        if isinstance(groups, bool) or not isinstance(groups, int) or groups < 0 or (groups and self.cp % groups):
            raise RequestError(f"--ulysses {groups!r}: expected a divisor of --cp {self.cp}, or 0")
        _one_of("shard", self.shard, SHARDS)
        _one_of("cp_comm", self.cp_comm, CP_COMMS)
        if self.schedule:
            _one_of("schedule", self.schedule, SCHEDULES)
        rest = self.tp * self.pp * self.cp
        if self.num_gpus != rest * self.dp:
            used = " ".join(f"{flag(n)} {v}" for n in ("tp", "pp", "dp", "cp") if (v := getattr(self, n)) > 1)
            whole = max(1, self.num_gpus // rest)
            what = f"--dp {whole}" if whole * rest == self.num_gpus else f"--dp {whole} of {whole * rest} GPUs"
            if self.dp == self.pp == self.cp == 1:
                what = f"--tp {self.num_gpus}"
            raise RequestError(
                f"--num-gpus {self.num_gpus}: {used or '--tp 1'} uses {rest * self.dp}; expected {what}, or no"
                " --num-gpus"
            )
        if self.vpp > 1 and self.pp == 1:
            raise RequestError(f"--vpp {self.vpp}: chunks are a pipeline stage's; expected --pp 2 or more, or --vpp 1")
        if self.vpp > 1 and self.schedule in (GPIPE, ONE_F_ONE_B):
            raise RequestError(
                f"--schedule {self.schedule}: has one chunk a stage, --vpp {self.vpp} more; expected {INTERLEAVED} or"
                f" {BREADTH_FIRST}"
            )

        self._check_stages()

    def _check_stages(self) -> None:
        """RequestError where the stages' layers are not of as many chunks, or leave one in the middle empty."""
        if not self.stage_layers:
            return
        shown = ",".join(map(str, self.stage_layers))
        if self.pp == 1:
            raise RequestError(f"--stage-layers {shown}: stages are a pipeline's; expected --pp 2 or more")
        parts = self.pp * self.vpp
        if len(self.stage_layers) != parts:
            of = f"--pp {self.pp}" + (f" --vpp {self.vpp}" if self.vpp > 1 else "")
            raise RequestError(f"--stage-layers {shown}: {len(self.stage_layers)} numbers; expected {parts} for {of}")
        if 0 in self.stage_layers[1:-1]:
            raise RequestError(f"--stage-layers {shown}: a stage without a layer; expected 0 at the two ends alone")

    def check_ep(self, trains: bool) -> None:
        """RequestError where ``ep`` does not divide the ranks that share the experts: other ones in training."""
        ranks, words = (self.cp * self.dp, "--dp x --cp") if trains else (self.tp * self.dp, "--tp x --dp")
        if self.ep > 1 and ranks % self.ep:
            fit = max(n for n in range(1, ranks + 1) if ranks % n == 0 and n <= self.ep)
            raise RequestError(f"--ep {self.ep}: does not divide the {ranks} ranks of {words}; nearest valid: {fit}")

    @property
    def order(self) -> str:
        """The pipeline's schedule."""
        return self.schedule or (INTERLEAVED if self.vpp > 1 else ONE_F_ONE_B)

    @property
    def trains_only(self) -> dict[str, object]:
        """The words, by name, that serving does not take, where they are not at their defaults."""
        asked: dict[str, object] = {
            "sp": self.sp, "vpp": self.vpp, "pp": self.pp, "dp": self.dp, "cp": self.cp, "ep": self.ep,
            "shard": self.shard, "schedule": self.schedule, "tp_overlap": self.tp_overlap,
            "stage_layers": ",".join(map(str, self.stage_layers)),
        }  # fmt: skip
        return {name: value for name, value in asked.items() if value not in (1, False, NO_SHARD, "")}


@dataclass(frozen=True, slots=True)
class Workload:
    """One run: mode, sizes, dtype and execution.

    ``seq_len`` is the prompt or training length in tokens, ``context_len`` the tokens already in the KV cache of a
    decode step, ``output_len`` the tokens that generate makes a sequence, ``micro_batch`` the sequences of one forward
    and backward pass in training (0 = the batch). ``launch_overhead_s`` is the host's CPU time of one framework call,
    which counts in eager execution (and where an engine launches a prefill); ``launch_overhead_assumed``: it is the
    default, which nobody asked for or measured. ``software`` says which release of the engine runs ("": the newest that
    is known). ``step_overhead_s`` is what the engine's host adds to every prefill and decode step (None: what its
    release is known to add, `waits_s`), ``kernel_gap_s`` what passes between two kernels (None:
    `predictor.simulate.gaps`). ``sampling``: how a step's tokens are chosen, of `SAMPLINGS`.

    ``prompt_lens``: a ragged batch, packed without padding: every sequence's prompt length, or in mode decode the
    tokens that it has in the cache; ``seq_len`` or ``context_len`` is the longest of them. ``system`` joins the GPUs
    where there is more than one. ``memory_fraction``: what of the GPU's memory the run may use, as its engine counts it
    (`predictor.engines.memory`); None: the engine's default. ``kv_dtype`` is the KV cache's, "" where the mode keeps
    none; the sources say where ``dtype`` and ``kv_dtype`` come from (`SOURCES`). ``routing``: how tokens fall on
    experts, None for a model without any, or with experts of fixed capacity.

    In training ``batch`` is the global batch, of all data-parallel ranks; ``recompute`` says what runs again in the
    backward pass (`recomputed`), ``offload_layers`` how many layers a rank keeps the activations of in host memory.
    ``steps``: equal forward passes one after the other, as a diffusion sampler runs them.
    ``lora``: rank of adapters beside attention's projections, which alone are trained then (0: all weights are).
    ``mean_len``: tokens of a sequence on average where batches of training are packed without padding, each sequence
    taken as long (0: ``seq_len``). ``masked_tokens``: positions of each sequence that a masked-language-model head
    works on (0: all).
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
    all_to_all: str = ALL_GATHER
    steps: int = 1

    def __post_init__(self) -> None:
        for name, most in LARGEST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise RequestError(f"{flag(name)} {value!r}: expected a whole number")
            if value > most:
                shown = value if value < 10**18 else f"of {len(str(value))} digits"
                raise RequestError(f"{flag(name)} {shown}: expected at most {most:,}")
        _one_of("mode", self.mode, MODES)
        engines.running(self.execution, self.software)  # which says what there is
        _one_of("sampling", self.sampling, SAMPLINGS)
        _one_of("attention", self.attention, ATTENTIONS)
        _one_of("optimizer", self.optimizer, OPTIMIZERS)
        _one_of("all_to_all", self.all_to_all, exchanges())
        self._check_training()
        for name in ("batch", "seq_len", "steps"):
            if getattr(self, name) < 1:
                raise RequestError(f"{flag(name)} {getattr(self, name)}: expected at least 1")
        for name in ("context_len", "output_len", "micro_batch"):
            if getattr(self, name) < 0:
                raise RequestError(f"{flag(name)} {getattr(self, name)}: expected 0 or more")
        if self.mode == "generate" and self.output_len < 1:
            raise RequestError(f"--output-len {self.output_len}: generate needs at least 1 token")
        if self.mode != "generate" and self.output_len:
            raise RequestError(f"--output-len {self.output_len}: only --mode generate takes it")
        if self.mode != "forward" and self.steps > 1:
            raise RequestError(f"--steps {self.steps}: only --mode forward takes it")
        if self.mode != "decode" and self.context_len:
            raise RequestError(f"--context-len {self.context_len}: only --mode decode takes it")
        _check_launch_overhead(self.launch_overhead_s)
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
            raise RequestError(f"--{used} {getattr(over, used)}: expected a system, whose links join the GPUs")
        for name in ("offload_layers", "mean_len", "masked_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise RequestError(f"{flag(name)} {value!r}: expected a whole number, 0 or more")
        if self.mean_len and self.mean_len > self.seq_len:
            raise RequestError(f"--mean-len {self.mean_len}: expected at most --seq-len {self.seq_len}")
        if self.masked_tokens and self.masked_tokens > self.tokens_each:
            raise RequestError(
                f"--masked-tokens {self.masked_tokens}: a sequence has {self.tokens_each} tokens; expected at most that"
            )
        if isinstance(self.lora, bool) or not isinstance(self.lora, int) or not 0 <= self.lora <= LARGEST_DEGREE:
            raise RequestError(f"--lora {self.lora!r}: expected the rank of the adapters, 0 for none")
        if self.mode != "train":
            for name, default in _TRAINING.items():
                if getattr(self, name) != default:
                    raise RequestError(f"{flag(name)} {getattr(self, name)}: only --mode train takes it")
            serves = SERVED if self.mode in CACHED else ("sp", "cp", "dp") * (self.mode == "forward")
            for name, value in over.trains_only.items():
                if name not in serves:
                    shown = flag(name) if value is True else f"{flag(name)} {value}"
                    raise UnsupportedError(f"{shown}: not built yet for --mode {self.mode}; expected --mode train")
        over.check_ep(self.mode == "train")
        each = self.batch // over.dp
        if self.batch % over.dp:
            raise RequestError(
                f"--batch {self.batch}: the {over.dp} ranks of --dp do not divide it; nearest that they do:"
                f" {max(1, round(self.batch / over.dp)) * over.dp}"
            )
        if self.micro_batch and each % self.micro_batch:
            of = f" over --dp {over.dp}, {each} a rank" if over.dp > 1 else ""
            fit = max(n for n in range(1, min(self.micro_batch, each) + 1) if each % n == 0)
            raise RequestError(
                f"--micro-batch {self.micro_batch}: does not divide --batch {self.batch}{of}; nearest valid: {fit}"
            )

    def _check_serving(self) -> None:
        """What only serving has: ragged batches, the engine's overhead, tensor parallelism of a forward pass."""
        if self.mode == "train" and self.engine.samples:
            train = ", ".join(name for name in engines.names() if not engines.engine(name).samples)
            raise RequestError(f"--execution {self.execution}: serves and does not train; expected one of {train}")
        overhead, gap = self.step_overhead_s, self.kernel_gap_s
        if overhead is not None and not _within(overhead, LARGEST_STEP_OVERHEAD_S):
            raise RequestError(f"--step-overhead {overhead!r} s: expected 0 to 10 s, such as 5ms")
        if gap is not None and not _within(gap, LARGEST_LAUNCH_OVERHEAD_S):
            raise RequestError(f"--kernel-gap {gap!r} s: expected 0 to 1 ms, such as 0.5us")
        if overhead and self.mode not in ("prefill", "decode", "generate"):
            raise RequestError(f"--step-overhead {overhead:g} s: only --mode prefill, decode and generate take it")
        if self.sampling != GREEDY and not (self.mode in CACHED and self.engine.samples):
            sampling = ", ".join(name for name in engines.names() if engines.engine(name).samples)
            raise RequestError(
                f"--sampling {self.sampling}: only engines that choose tokens take it, in --mode prefill, decode and"
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
            raise RequestError(f"--prompt-lens {min(self.prompt_lens)}: a sequence of a workload has 1 token or more")
        if max(self.prompt_lens) != longest:
            raise RequestError(f"{longest} tokens: the longest of --prompt-lens has {max(self.prompt_lens)}")

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
        found = ((wait.name, wait.step_s + each * wait.sequence_s) for wait in self._waits())
        return {name: seconds for name, seconds in found if seconds}

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
        return self.seq_len + max(0, self.output_len - 1)

    @property
    def launch_range_s(self) -> tuple[float, float] | None:
        """What the assumed launch overhead stands for, seconds [least, most]; None where it was given."""
        return self.engine.launch_range_s if self.launch_overhead_assumed else None


def recomputed(value: str) -> tuple[str, int, int]:
    """What ``--recompute`` says: what runs again, one of `RECOMPUTES`, in so many layers of so many (0, 0: in all).

    RequestError, one line, for other words than none, selective, full and full:N-of-L.
    """
    if isinstance(value, str) and value.startswith("full:"):
        some, between, whole = value.removeprefix("full:").partition("-of-")
        if between and some.isdecimal() and whole.isdecimal() and len(value) < 24 and int(some) <= int(whole) > 0:
            return "full", int(some), int(whole)
        raise RequestError(f"--recompute {value!r}: expected full:N-of-L, N of the model's L layers, as full:21-of-80")
    _one_of("recompute", value, RECOMPUTES)
    return value, 0, 0


def _within(value: object, most: float) -> bool:
    """Whether it is a number from 0 up to, not including, ``most``."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < most


def flag(name: str) -> str:
    """The command-line spelling of a field."""
    return "--" + name.replace("_", "-")


def choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """The one line for a value that is not among the choices."""
    close = nearest(value, choices)
    return f"{flag(name)} {value!r}: expected one of {', '.join(choices)}" + (f"; nearest: {close[0]}" if close else "")


def stage_layers(value: str | Sequence[int]) -> tuple[int, ...]:
    """Layers of a pipeline's stages, from text ("7,8,8,7") or numbers; RequestError, one line, for others."""
    items: Sequence[object] = _listed(value) if isinstance(value, str) else list(value)
    for item in items:
        text = str(item)
        if isinstance(item, bool) or not text.isascii() or not text.isdigit() or len(text) > 6:
            raise RequestError(f"--stage-layers {text[:40]!r}: expected whole numbers of layers such as 7,8,8,7")
    return tuple(int(str(item)) for item in items)


def ragged_lengths(value: str | Sequence[int]) -> tuple[int, ...]:
    """Lengths of a ragged batch, from text ("12,400,3000", or spaces between) or numbers; RequestError in one line.

    A 0 is a slot of the batch that holds no sequence, as padded batches have them; not all may be 0.
    """
    if not isinstance(value, Iterable):
        raise RequestError(f"--prompt-lens {value!r}: expected lengths such as 12,400,3000")
    items: Sequence[object] = _listed(value) if isinstance(value, str) else list(value)
    if not items:
        raise RequestError("--prompt-lens: expected lengths such as 12,400,3000")
    if len(items) > LARGEST_RAGGED:
        raise RequestError(f"--prompt-lens: {len(items):,} sequences; expected at most {LARGEST_RAGGED:,}")
    found = []
    for item in items:
        text = str(item)
        if isinstance(item, bool) or not text.isascii() or not text.isdigit() or len(text) > 12:
            shown = text[:40] or str(value)[:40]
            raise RequestError(f"--prompt-lens {shown!r}: expected whole numbers of tokens such as 12,400,3000")
        if int(text) > LARGEST["seq_len"]:
            raise RequestError(f"--prompt-lens {text}: expected at most {LARGEST['seq_len']:,} tokens")
        found.append(int(text))
    if not any(found):
        shown = ",".join(map(str, found[:8])) + (",..." if len(found) > 8 else "")
        raise RequestError(f"--prompt-lens {shown}: every sequence is empty; expected at least one with a token")
    return tuple(found)


def _listed(text: str) -> list[str]:
    """The items of "12,400" or "12 400"; one that is empty, as in "12,,400", stays."""
    return [item for part in text.split(",") for item in part.split() or [""]] if text.strip() else []


def launch_overhead_seconds(value: str | float) -> float:
    """A launch overhead as a person gives it, in seconds: text with a unit ("6us"), or a number of seconds.

    Raises RequestError, one line, for another unit, or what is not above 0 and below 1 ms.
    """
    if isinstance(value, str):
        try:
            value = parse_quantity(value, "time")
        except RequestError as error:
            raise RequestError(f"--launch-overhead: {error}") from None
    _check_launch_overhead(value)
    return float(value)


def step_overhead_seconds(value: str | float) -> float:
    """An engine's time on the host a step, in seconds: text with a unit ("5ms", or "0") or a number of seconds."""
    return _time("step-overhead", value)


def kernel_gap_seconds(value: str | float) -> float:
    """What passes between kernels, in seconds: text with a unit ("0.5us", or "0") or a number of seconds."""
    return _time("kernel-gap", value)


def _time(name: str, value: str | float) -> float:
    if not isinstance(value, str):
        return value
    try:
        return 0.0 if value.strip() == "0" else parse_quantity(value, "time")
    except RequestError as error:
        raise RequestError(f"--{name}: {error}") from None


def _check_launch_overhead(value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f'--launch-overhead {value!r}: expected a time such as "6 us", or a number of seconds')
    if not 0.0 < value < LARGEST_LAUNCH_OVERHEAD_S:
        raise RequestError(
            f'--launch-overhead {value * 1e6:g} us: expected a time above 0 and below 1 ms, such as "6 us"'
        )


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str):
        raise RequestError(f"{flag(name)} {value!r}: expected one of {', '.join(choices)}")
    if value not in choices:
        raise RequestError(choice(name, value, choices))
