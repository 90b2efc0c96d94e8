"""The words of a run, one row a word: the only list of them.

A row says a word's type, default, choices, unit, range, the modes that take it, its group and its help. Derived from
the rows: `predictor.request.request.Request` and with it `predictor.predict`, the options and the --help of the verbs,
the fields of the page, completion, the keys of a sweep, the columns of a suite, the values of `tilecast plan --only`,
and what `Workload`, `Training`, `Serving` and `Parallelism` refuse. The modes of a row say which of these has the word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor import engines
from predictor.engines.base import CAPTURES
from predictor.engines.registry import ALL_GATHER, exchanges
from predictor.errors import RequestError, printable
from predictor.files.arguments import LARGEST_SEED
from predictor.files.outputs import PAGE, PICTURE, SAVED_GRAPH, TRACE, OutputKind, by_ending, table
from predictor.files.records import dataclass, replace
from predictor.hardware.system import list_systems
from predictor.hardware.what_if import VALUES
from predictor.models.base import CACHED, MODES
from predictor.ops.routing import RANDOM
from predictor.request.parse import LARGEST_DEGREE, LARGEST_TOKENS, one_of
from predictor.request.precision import CHECKPOINT, KV_DTYPES, SUPPORTED

if TYPE_CHECKING:
    from predictor.hardware.gpu import GPUSpec
    from predictor.hardware.system import SystemSpec
    from predictor.hardware.what_if import Values
    from predictor.models.base import Model

#: Groups of --help, in its order.
GROUPS = MODEL, WORKLOAD, NUMBERS, GPUS, ENGINE, OUTPUT = ("model", "workload", "numbers", "GPUs", "engine", "output")
TRAIN = ("train",)
DECODES = ("decode", "generate")
ATTENTIONS = ("math", "flash")
SHARDS = NO_SHARD, ZERO1, ZERO2, ZERO3, HSDP = "none", "zero1", "zero2", "zero3", "hsdp"
#: Orders in which a stage of a pipeline works on its micro-batches.
SCHEDULES = GPIPE, ONE_F_ONE_B, INTERLEAVED, BREADTH_FIRST = "gpipe", "1f1b", "interleaved", "breadth_first"
#: How context parallelism exchanges keys and values: in a ring, or heads for positions by all_to_all (Ulysses).
CP_COMMS = RING, ALL_TO_ALL = "ring", "all_to_all"
#: Whether what replicas exchange once a step runs beside computation; "" is as the framework's release has it.
DP_OVERLAPS = ON, OFF = "on", "off"
OPTIMIZERS = ("adam", "adam_fused", "adam_8bit", "sgd", "none")
#: Verbs that take some of the words; `predict`, `compare` and sweeps take all.
SERVE, PLAN = "serve", "plan"
#: Sizes beyond which a request is a slip of the keyboard: no GPU holds them, and sums of them leave exact integers.
_SEQUENCES, _TOKENS_MADE, _STEPS = 10**7, 10**6, 10**6
#: What `plan` lists first.
OBJECTIVES = TIME, COST, ENERGY, THROUGHPUT = "time", "cost", "energy", "throughput"
#: Another word for `COST`.
DOLLARS = "tokens-per-dollar"
#: How requests come, where no trace says it.
ARRIVALS = POISSON, GAMMA, BURSTS, CONSTANT = "poisson", "gamma", "bursts", "constant"
#: Whether prompts and decodes may have GPUs of their own.
SPLITS = ALSO, ONLY, NEVER = "also", "only", "never"
#: Requests at a time of one rank that are looked at where nobody says: what engines take by default at most.
MOST_BATCH = 1024  # source: vLLM 0.24.0 engine/arg_utils.py:2404, max_num_seqs on 70 GiB and more
#: GPUs that a search for the fewest goes up to. Chosen by hand, not from data.
MOST_GPUS = 1024
#: Servers, requests of a simulation, and tokens guessed a step: guards, chosen by hand, not from data.
MOST_SERVERS, MOST_REQUESTS, _DRAFTS = 1024, 1_000_000, 16
#: Endings of files that --out of `serve plan` takes.
SERVE_PLANS_IN = (".parquet", ".csv", ".svg", ".html")
_PLANS_TABLE = table("a table of plans", ("label", "latency_ms", "fits", "bubble_share"))
_SERVE_TABLE = table("a table of plans", ("set", "ttft_low_ms", "tpot_low_ms"))


def _launchers() -> tuple[str, ...]:
    from predictor.engines.launchers import LAUNCHERS  # `plan --emit` alone has them

    return tuple(LAUNCHERS)


@dataclass(frozen=True, slots=True)
class Row:
    """What the table says of a word.

    ``help``: one sentence without its default, modes and choices, which --help adds; "{choices}" in it is where these
    go. ``usual``: the default in words, where the value does not say it. ``choices``: values that there are (empty: any
    text of its kind). ``modes`` that take it (empty: all). ``unit`` of a number, or the form of a text. ``least`` and
    ``most``: the range of a number; ``above``: what it has to be more than. ``common``: --help explains it, where
    --help-all explains all. ``flag``: its option, where that is not its name. ``repeats``: it may be given several
    times. ``verbs`` of `SERVE` and `PLAN` that take it, too. ``page``: why the page has no field for it. ``swept``: a
    point of a sweep may have it. ``column`` of a suite that says it. ``writes``: what file it names, which is written.
    """

    group: str
    help: str
    usual: str = ""
    choices: Sequence[str] | Callable[[], Sequence[str]] = ()
    modes: tuple[str, ...] = ()
    unit: str = ""
    least: int | None = None
    most: int | None = None
    above: int | None = None
    common: bool = False
    flag: str = ""
    repeats: bool = False
    verbs: tuple[str, ...] = ()
    page: str = ""
    swept: bool = True
    column: str = ""
    writes: OutputKind | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """A word with its row: ``type`` as the class `Words` annotates it; ``required`` where there is no ``default``."""

    name: str
    type: str
    default: Any
    row: Row
    required: bool = False

    def with_row(self, **words: Any) -> Option:
        """The option with other entries of its row, as a verb has it."""
        return replace(self, row=replace(self.row, **words))

    @property
    def kind(self) -> str:
        """What a value of it is: a "switch", a "whole" number, a "real" number, or "text"."""
        kinds = {"bool": "switch", "int": "whole", "float": "real"}
        return kinds.get(self.type.removesuffix(" | None"), "text")

    @property
    def takes_numbers(self) -> bool:
        """Whether a list of numbers is one value of it."""
        return "Sequence[int]" in self.type or "Sequence[float]" in self.type

    @property
    def flag(self) -> str:
        """Its option on a command line."""
        return self.row.flag or "--" + self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that there are; empty where any text of its kind is one."""
        listed = self.row.choices
        return tuple(listed() if callable(listed) else listed)

    def check(self, value: object) -> None:
        """RequestError, one line, for a value that is not of the word's kind, in its range, or one of its choices."""
        default = self.default
        if default is not None and type(value) is type(default) and value == default:
            return  # most words of most runs
        kind, row = self.kind, self.row
        if kind == "switch" and not isinstance(value, bool):
            raise RequestError(f"{self.flag} {value!r:.40}: expected true or false")
        if kind == "whole":
            if isinstance(value, bool) or not isinstance(value, int):
                raise RequestError(f"{self.flag} {value!r:.40}: expected a whole number")
            if row.most is not None and value > row.most:
                shown = value if value < 10**18 else f"of {len(str(value))} digits"
                raise RequestError(f"{self.flag} {shown}: expected at most {row.most:,}")
            if row.least is not None and value < row.least:
                expected = f"at least {row.least}" if row.least else "0 or more"
                raise RequestError(f"{self.flag} {value}: expected {expected}")
        if kind == "real" and (row.least, row.most, row.above) != (None, None, None):
            self._check_real(value)
        if row.choices and value != self.default:
            one_of(self.name, value, self.choices)

    def refuse(self, value: object) -> None:
        """RequestError, one line, for a value that asks for something, in a mode that does not take the word."""
        if value is None or value is self.default:
            return
        self.check(value)
        if value == self.default or value == 0:
            return
        *others, last = self.row.modes
        modes = f"{', '.join(others)} and {last} take" if others else f"{last} takes"
        shown = f"{value:g} s" if self.row.unit == "TIME" else printable(f"{value}")[:80]
        raise RequestError(f"{self.flag} {shown}: only --mode {modes} it")

    def _check_real(self, value: object) -> None:
        row, limits = self.row, []
        limits += [f"above {row.above:,}"] if row.above is not None else []
        limits += [f"at least {row.least:,}"] if row.least is not None else []
        limits += [f"at most {row.most:,}"] if row.most is not None else []
        number = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
        low = -math.inf if row.least is None else row.least
        inside = low <= number <= (math.inf if row.most is None else row.most) and math.isfinite(number)
        if not inside or (row.above is not None and number <= row.above):
            shown = f"{value:g}" if isinstance(value, float) else f"{value!r:.40}"
            raise RequestError(f"{self.flag} {shown}: expected a number {' and '.join(limits)}")

    @property
    def text(self) -> str:
        """What --help says: the sentence, and in brackets the modes that take it and its default."""
        row = self.row
        sentence = row.help
        if "{choices}" in sentence:
            sentence = sentence.replace("{choices}", ", ".join(self.choices))
        shown = row.usual or ("" if self.default in (None, "", False, 0) else f"{self.default}")
        notes = [", ".join(row.modes)] if row.modes else []
        notes += [f"default {shown}"] if shown else []
        return f"{sentence} ({'; '.join(notes)})" if notes else sentence


def row(group: str, help_: str, **more: Any) -> Mapping[str, Row]:
    """The metadata of a field of `Words`: its row."""
    return {"row": Row(group, help_, **more)}


@dataclass(slots=True)  # not frozen: that costs `predict_many` as much as the rest of a request
class Words:
    """The words of one run, as they were given. A row of this class is a row of the table.

    The order is that of --help, of sweeps and of the page.
    """

    # fmt: off
    model: str | Path | Model = field(metadata=row(
        MODEL, "a name of `tilecast models`, a Hugging Face config.json, hf:FOLDER, file.py:function (traced), an .onnx"
        " or .pt2 file, or a saved graph", common=True, column="config",
        page="a field of its own, where a config.json can be pasted, too"))
    gpu: str | Path | GPUSpec = field(metadata=row(
        GPUS, "a name or alias of `tilecast gpus`, or a YAML file", common=True, column="gpu",
        page="a list of its own: boards side by side"))
    _: KW_ONLY
    input: str | Sequence[str] | None = field(default=None, metadata=row(
        MODEL, "an input of a traced model, such as tokens:int64[8,1024]; several in one text or one a flag",
        unit="NAME:DTYPE[SIZES]", repeats=True, page="of a traced model, which is code of this machine"))
    tp_plan: str | Path | Mapping[str, str] | None = field(default=None, metadata=row(
        MODEL, "traced models: a YAML file that says how --tp shares each module, or class: the plan of the model's"
        " class", usual="Megatron-LM's way where a reader knows the type, else the plan of the class", unit="FILE",
        page="a file of this machine, as a traced model is"))
    strict: bool = field(default=False, metadata=row(
        MODEL, "traced models: an operator that no table knows is an error", page="of a traced model"))
    mode: str = field(default="forward", metadata=row(
        WORKLOAD, "what runs: {choices}", choices=MODES, unit="MODE", common=True, column="mode"))
    batch: int | None = field(default=None, metadata=row(
        WORKLOAD, "sequences; in train and serving those of all replicas", usual="1, or as many as --prompt-lens has",
        unit="sequences", least=1, most=_SEQUENCES, common=True, column="global_batch"))
    seq_len: int | None = field(default=None, metadata=row(
        WORKLOAD, "tokens of a sequence", usual="the model's maximum, at most 2048",
        modes=("forward", "train", "prefill", "generate"), unit="tokens", least=1, most=LARGEST_TOKENS, common=True,
        verbs=(PLAN,), column="seq_len"))
    output_len: int | None = field(default=None, metadata=row(
        WORKLOAD, "tokens that each sequence generates", usual="128", modes=("generate",), unit="tokens", least=0,
        most=_TOKENS_MADE, common=True, column="output_len"))
    context_len: int | None = field(default=None, metadata=row(
        WORKLOAD, "tokens that each sequence has in the KV cache", usual="what fits, at most 2047", modes=("decode",),
        unit="tokens", least=0, most=LARGEST_TOKENS, common=True, column="context_len"))
    prompt_lens: str | Sequence[int] | None = field(default=None, metadata=row(
        WORKLOAD, "a ragged batch, packed without padding: the prompt length of every sequence (in decode: its tokens"
        " in the cache); 0 is an empty slot, which costs nothing", modes=("forward", *CACHED), unit="N,N,...",
        column="prompt_lens"))
    images: str | None = field(default=None, metadata=row(
        WORKLOAD, "images of every sequence, height and width in pixels: they pass the model's vision tower, and their"
        " tokens come to those of --seq-len", modes=("prefill", "generate"), unit="NxHxW", column="images"))
    steps: int | None = field(default=None, metadata=row(
        WORKLOAD, "passes one after the other, as a diffusion sampler runs them", usual="1, or the pipeline's",
        modes=("forward",), unit="passes", least=1, most=_STEPS))
    routing: str | Path | Sequence[float] = field(default=RANDOM, metadata=row(
        WORKLOAD, "how tokens choose experts: random, balanced, zipf:ALPHA, or a file with the share of each expert",
        unit="HOW", verbs=(SERVE,), column="routing"))
    optimizer: str = field(default="adam", metadata=row(
        WORKLOAD, "the optimizer of training: {choices}", choices=OPTIMIZERS, modes=TRAIN, unit="NAME", verbs=(PLAN,),
        column="optimizer"))
    micro_batch: int = field(default=0, metadata=row(
        WORKLOAD, "sequences of one forward and backward pass of a replica",
        usual="1 in a pipeline, else the replica's part of the batch", modes=TRAIN, unit="sequences", least=0,
        most=_SEQUENCES, column="micro_batch"))
    recompute: str = field(default="none", metadata=row(
        WORKLOAD, "what the backward pass computes again: none, selective (as the framework has it), full, or"
        " full:N-of-L: N of the model's L layers", modes=TRAIN, unit="WHAT", column="recompute"))
    offload_layers: int = field(default=0, metadata=row(
        WORKLOAD, "layers whose activations move to the host's memory", modes=TRAIN,
        least=0, most=LARGEST_TOKENS, unit="layers", column="cpu_offload_layers"))
    lora: int = field(default=0, metadata=row(
        WORKLOAD, "rank of adapters beside linear layers; training updates these alone", modes=TRAIN,
        least=0, most=LARGEST_DEGREE, unit="rank", column="peft"))
    lora_targets: str | None = field(default=None, metadata=row(
        WORKLOAD, "linear layers that have adapters: all of a layer, attention, or names such as q_proj,v_proj",
        usual="attention", modes=TRAIN, unit="NAME,..."))
    mean_len: int = field(default=0, metadata=row(
        WORKLOAD, "mean tokens of a sequence, where batches are packed without padding", modes=TRAIN,
        least=0, most=LARGEST_TOKENS, unit="tokens", column="mean_len"))
    masked_tokens: int = field(default=0, metadata=row(
        WORKLOAD, "tokens of a sequence that the masked-language-model head of BERT predicts", modes=TRAIN,
        least=0, most=LARGEST_TOKENS, unit="tokens", column="masked_tokens"))
    capacity_factor: float = field(default=0.0, metadata=row(
        WORKLOAD, "rows that an expert takes at most, as a multiple of an even share; it drops the rest; 0 drops none",
        modes=TRAIN, unit="factor", column="capacity_factor"))
    dtype: str | None = field(default=None, metadata=row(
        NUMBERS, "number format of the weights and products: {choices}",
        usual="what a quantized checkpoint says, else bf16 where the GPU has it, else fp16 or fp32",
        choices=(*SUPPORTED, CHECKPOINT), unit="DTYPE", common=True, verbs=(SERVE, PLAN), column="dtype"))
    kv_dtype: str | None = field(default=None, metadata=row(
        NUMBERS, "number format of the KV cache: {choices}",
        usual="what the checkpoint says, else auto, the format of the activations", choices=KV_DTYPES, modes=CACHED,
        unit="DTYPE", verbs=(SERVE,), column="kv_dtype"))
    gpu_set: Values | None = field(default=None, metadata=row(
        GPUS, f"a value of the board in place of the catalogue's: {', '.join(VALUES)}, peak_flops.matrix.DTYPE; such as"
        " power_limit=500W or memory_bandwidth=2.4TB/s; may repeat", unit="NAME=VALUE", flag="--set", repeats=True,
        verbs=(SERVE, PLAN), column="gpu_set"))
    num_gpus: int | None = field(default=None, metadata=row(
        GPUS, "GPUs of the run", usual="the product of --tp, --pp, --dp and --cp",
        least=1, most=LARGEST_DEGREE, unit="GPUs", column="num_gpus"))
    tp: int = field(default=1, metadata=row(
        GPUS, "GPUs that share every layer: tensor parallelism",
        least=1, most=LARGEST_DEGREE, unit="GPUs", common=True, verbs=(SERVE,), column="tp"))
    sp: bool = field(default=False, metadata=row(
        GPUS, "sequence parallelism: the GPUs of --tp split sequences where --tp splits no weights",
        modes=("forward", "train"), column="sequence_parallel"))
    tp_overlap: bool = field(default=False, metadata=row(
        GPUS, "products run beside the collectives of --tp; needs --sp", modes=TRAIN, column="tp_comm_overlap"))
    pp: int = field(default=1, metadata=row(
        GPUS, "stages of the pipeline", modes=("train", *CACHED),
        least=1, most=LARGEST_DEGREE, unit="stages", verbs=(SERVE,), column="pp"))
    vpp: int = field(default=1, metadata=row(
        GPUS, "chunks of the model that each stage holds", modes=TRAIN,
        least=1, most=LARGEST_DEGREE, unit="chunks", column="vpp"))
    stage_layers: str | Sequence[int] = field(default="", metadata=row(
        GPUS, "layers of every stage (of every chunk with --vpp), such as 7,8,8,7; 0 at an end: the embedding or the"
        " head alone", usual="evenly", modes=TRAIN, unit="N,..."))
    schedule: str = field(default="", metadata=row(
        GPUS, "order of the passes of a pipeline: {choices}", usual="1f1b, interleaved with --vpp", choices=SCHEDULES,
        modes=TRAIN, unit="ORDER"))
    dp: int = field(default=1, metadata=row(
        GPUS, "replicas that share the batch: data parallelism; in serving they share the experts",
        least=1, most=LARGEST_DEGREE, unit="replicas", verbs=(SERVE,), column="dp"))
    dp_overlap: str = field(default="", metadata=row(
        GPUS, "whether replicas exchange gradients and weights beside computation: {choices}",
        usual="as the framework does", choices=DP_OVERLAPS, modes=TRAIN, unit="on|off", column="dp_overlap"))
    shard: str = field(default="none", metadata=row(
        GPUS, "the training state that replicas share out: {choices}", choices=SHARDS, modes=TRAIN, unit="WHAT",
        column="shard"))
    cp: int = field(default=1, metadata=row(
        GPUS, "GPUs that share every sequence: context parallelism; forward: traced models alone",
        modes=("forward", "train"), least=1, most=LARGEST_DEGREE, unit="GPUs", column="cp"))
    cp_comm: str = field(default=CP_COMMS[0], metadata=row(
        GPUS, "how the GPUs of --cp exchange keys and values: {choices}", choices=CP_COMMS, unit="HOW"))
    ulysses: int = field(default=0, metadata=row(
        GPUS, "GPUs of --cp that exchange heads, in a traced model; groups of them form a ring",
        usual="all or none, as --cp-comm says", modes=("forward",), least=0, most=LARGEST_DEGREE, unit="GPUs"))
    ep: int = field(default=1, metadata=row(
        GPUS, "GPUs that share out whole experts: of --dp x --cp in train (with --etp 1 of --tp x --dp x --cp), of"
        " --tp x --dp in serving", least=1, most=LARGEST_DEGREE, unit="GPUs", verbs=(SERVE,), column="ep"))
    etp: int = field(default=0, metadata=row(
        GPUS, "GPUs that share the width of each expert: as many as --tp has, or 1 with --sp", usual="--tp",
        least=0, most=LARGEST_DEGREE, unit="GPUs"))
    ep_overlap: bool = field(default=False, metadata=row(
        GPUS, "tokens travel to experts and back beside another micro-batch's passes; needs --ep", modes=TRAIN))
    all_to_all: str = field(default=ALL_GATHER, metadata=row(
        GPUS, "how tokens reach experts over --dp in serving: {choices}; in train over --ep by deepep, else by"
        " nccl's copies", choices=exchanges, modes=("train", *CACHED), unit="HOW", verbs=(SERVE,)))
    system: str | Path | SystemSpec | None = field(default=None, metadata=row(
        GPUS, "what joins the GPUs: the name of a system, or a YAML file", usual="the GPU's usual system",
        choices=list_systems, unit="NAME", verbs=(SERVE, PLAN)))
    execution: str = field(default=engines.EAGER.name, metadata=row(
        ENGINE, "what runs the model: {choices}", choices=engines.names, unit="HOW", common=True, verbs=(SERVE, PLAN),
        column="execution"))
    software: str = field(default="", metadata=row(
        ENGINE, "the engine's age: 'vllm 0.24', 'vllm 2023' (what was out by the middle of that year), 'vllm 2024-11'"
        " or 'vllm nightly-20260402'", usual="the newest that is known", unit="WORDS", verbs=(SERVE, PLAN),
        column="software"))
    attention: str | None = field(default=None, metadata=row(
        ENGINE, "the kernel of attention: {choices}", usual="flash in 16 bit from Ampere on, else math",
        choices=ATTENTIONS, unit="KIND", verbs=(PLAN,), column="attention"))
    cuda_graphs: str = field(default="none", metadata=row(
        ENGINE, "what Megatron captures as CUDA graphs, without the optimizer: {choices}",
        choices=("none", *CAPTURES), modes=TRAIN, unit="WHAT", column="cuda_graph"))
    launch_overhead: str | float | None = field(default=None, metadata=row(
        ENGINE, "CPU time of one framework call in eager execution, or of one launch of an engine",
        usual="6us, 3us from C++; microbench launch-overhead measures a host's", unit="TIME", verbs=(SERVE,),
        column="launch_overhead_us"))
    step_overhead: str | float | None = field(default=None, metadata=row(
        ENGINE, "time that an engine's host adds to a step: 5ms, 0", usual="what its release is known to add",
        modes=CACHED, unit="TIME", verbs=(SERVE,), column="step_overhead_ms"))
    kernel_gap: str | float | None = field(default=None, metadata=row(
        ENGINE, "time between two kernels: 0.5us, 0", usual="that of graphs, or of streams", unit="TIME",
        verbs=(SERVE,)))
    sampling: str = field(default=engines.GREEDY, metadata=row(
        ENGINE, "how an engine that serves chooses tokens: {choices}", choices=engines.SAMPLINGS, modes=CACHED,
        unit="HOW", verbs=(SERVE,)))
    drafts: int = field(default=0, metadata=row(
        ENGINE, "tokens that are guessed a step, for the model to check: by its own layer for that (multi-token"
        " prediction), or by --draft-model; needs --acceptance", modes=DECODES, unit="K", least=0, most=_DRAFTS,
        page="needs --acceptance"))
    acceptance: str | float | None = field(default=None, metadata=row(
        ENGINE, "how many drafts are right: the chance of each (0 to 1), the tokens a step that come of it (above 1, as"
        " engines report their acceptance length), or a file of either (docs/how-to/serving.md)", modes=DECODES,
        unit="L|FILE", page="may name a file of this machine"))
    draft_model: str | Path | Model | None = field(default=None, metadata=row(
        ENGINE, "the model that makes the drafts, on the same GPUs", usual="a layer of --model", modes=DECODES,
        unit="MODEL", page="needs --acceptance"))
    memory_fraction: float | None = field(default=None, metadata=row(
        ENGINE, "part of the GPU's memory that the run may use, as the engine counts it (vLLM gpu_memory_utilization,"
        " SGLang mem_fraction_static, TensorRT-LLM free_gpu_memory_fraction)", usual="the engine's, 1 without an"
        " engine", unit="fraction", verbs=(SERVE, PLAN), column="memory_fraction"))
    artifacts: str | Path | None = field(default=None, metadata=row(
        ENGINE, "estimators to use; 'roofline': none", usual="those that ship", unit="DIR", verbs=(SERVE, PLAN),
        swept=False, page="a folder of this machine, which a page must not name; --artifacts of `tilecast ui` does"))
    power: bool = field(default=False, metadata=row(
        OUTPUT, "say what the GPUs draw: watts, and joules of a step and of a token (docs/how-to/power.md)",
        verbs=(PLAN,)))
    top: int = field(default=0, metadata=row(
        OUTPUT, "list the N operators that take longest", unit="N", swept=False,
        page="the roofline's table lists every operator"))
    explain: str | None = field(default=None, metadata=row(
        OUTPUT, "say why an operator takes as long as it does: its name, as --top lists it", unit="NODE", swept=False,
        page="the roofline's table says what bounds every operator"))
    # fmt: on


def options_of(words: type[Words]) -> dict[str, Option]:
    """The options of a class of words, by name, in the order of its rows."""
    return {each.name: _option(each) for each in fields(words)}


def _option(each: Any) -> Option:
    required = each.default is MISSING
    return Option(each.name, str(each.type), None if required else each.default, each.metadata["row"], required)


#: The table: word -> its option.
OPTIONS: dict[str, Option] = options_of(Words)
#: A launch command in place of words; the line that has it is read as if they stood there (`predictor.cli.launched`).
LAUNCHED = Option("launched", "str | None", None, Row(
    MODEL, "a launch command of vLLM, SGLang, TensorRT-LLM, torchtitan or Megatron-LM in quotes, or its file: its words"
    " count, unless they are given beside it, too", unit="COMMAND", flag="--from", swept=False))  # fmt: skip
#: What `predict` prints and writes; no word of a run, so that Python and sweeps have none of it.
OUTPUTS: dict[str, Option] = {
    output.name: output
    for output in (
        LAUNCHED,
        Option("save_graph", "str | None", None, Row(
            OUTPUT, "also write the graph of the pass as JSON, which --model reads again", unit="FILE",
            writes=SAVED_GRAPH)),
        Option("html", "str | None", None, Row(
            OUTPUT, "also write a page with charts, provenance, and what would change the answer", unit="FILE",
            writes=PAGE)),
        Option("trace", "str | None", None, Row(
            OUTPUT, "also write the timeline, kernel by kernel, for Perfetto (ui.perfetto.dev)", unit="FILE",
            writes=TRACE)),
        Option("json", "bool", False, Row(OUTPUT, "print the answer as JSON (docs/reference/json-schema.md)")),
    )
}  # fmt: skip

#: Dollars of a GPU, for `compare`, `plan` and `serve plan`; each says what for.
PRICE = Option("price", "Sequence[str] | None", None, Row(
    OUTPUT, "dollars an hour of one GPU: h100=2.99, several with commas or one a flag, 2.99 where there is one GPU,"
    " or a YAML file of lines such as 'h100: 2.99'", unit="GPU=USD", repeats=True))  # fmt: skip

#: The same of a file, with its date.
PRICES = Option("prices", "str | None", None, Row(
    OUTPUT, "a YAML file with the date and the provider of its prices, dollars an hour of one GPU; --price goes before"
    " it", unit="FILE"))  # fmt: skip


def _named(*options: Option) -> dict[str, Option]:
    return {option.name: option for option in options}


#: What `plan` asks beside the words of a run.
PLANS: dict[str, Option] = _named(
    Option("num_gpus", "str | None", None, Row(
        GPUS, "GPUs of the run; several numbers are compared", usual="those of the instance that --gpu names",
        unit="N,...")),
    Option("global_batch", "int", None, Row(
        WORKLOAD, "sequences of a step, over all GPUs", unit="B", least=1, most=_SEQUENCES), required=True),
    Option("only", "Sequence[str] | None", None, Row(
        GPUS, "hold a word of the plans to values, such as tp=4,8 or recompute=selective (may be given again)",
        unit="WORD=V,...", repeats=True)),
    Option("objective", "str", TIME, Row(
        OUTPUT, "what is listed first: {choices}; of a step, whose tokens are fixed, throughput is time; cost needs a"
        " price", choices=(*OBJECTIVES, DOLLARS), unit="WHAT")),
    PRICE.with_row(help=f"{PRICE.row.help}; for --objective {COST}"),
    PRICES,
    Option("top", "int", 10, Row(OUTPUT, "plans to list", unit="N", least=1)),
    Option("explain", "str | None", None, Row(
        OUTPUT, "what bounds a plan and what to change: its label, or its place in the list", unit="PLAN")),
    Option("emit", "str | None", None, Row(
        OUTPUT, "the flags of the best plan (of that of --explain): {choices}", choices=_launchers, unit="LAUNCHER")),
    Option("out", "str | None", None, Row(
        OUTPUT, "all plans: a picture (.svg) or a table (.parquet, .csv)", unit="FILE",
        writes=by_ending(svg=PICTURE, csv=_PLANS_TABLE, parquet=_PLANS_TABLE))),
    Option("json", "bool", False, Row(OUTPUT, "print the answer as JSON (docs/reference/json-schema.md)")),
)  # fmt: skip
#: What a request may take, for both verbs of `serve`.
GOALS: dict[str, Option] = _named(
    Option("ttft", "str | None", None, Row(
        WORKLOAD, "the most that a first token may take: 1s, 500ms; in serve plan p99:1s for 99 % of the requests,"
        " else for their mean", unit="TIME")),
    Option("tpot", "str | None", None, Row(
        WORKLOAD, "the most between tokens of a request: 20ms; in serve plan p90:20ms, too", unit="TIME")),
)  # fmt: skip
_ISL = Option("isl", "int | None", None, Row(WORKLOAD, "tokens of a prompt", unit="N", least=1, most=_SEQUENCES))
_OSL = Option("osl", "int | None", None, Row(WORKLOAD, "tokens of an answer", unit="N", least=1, most=_SEQUENCES))
#: Where the requests of `serve simulate` come from.
TRAFFIC: dict[str, Option] = _named(
    Option("trace", "str | None", None, Row(
        WORKLOAD, "requests and their times: CSV, parquet, JSON, JSON lines (docs/how-to/serving.md)", unit="FILE")),
    Option("rate", "float | None", None, Row(WORKLOAD, "requests a second", unit="R", above=0, most=10**6)),
    Option("concurrency", "int | None", None, Row(
        WORKLOAD, "clients that each wait for an answer before they ask again", unit="N", least=1, most=MOST_REQUESTS)),
    Option("lengths", "str | None", None, Row(
        WORKLOAD, "a trace that gives the lengths of requests; its times do not count", unit="FILE")),
    _ISL,
    _OSL,
    Option("range", "float", 1.0, Row(
        WORKLOAD, "draw lengths between F times --isl (--osl) and that length", usual="1", unit="F", above=0, most=1)),
    Option("requests", "int | None", None, Row(
        WORKLOAD, "requests", usual="the file's, else 1,000", unit="N", least=1, most=MOST_REQUESTS)),
    Option("arrivals", "str", POISSON, Row(WORKLOAD, "{choices}", choices=ARRIVALS, unit="HOW")),
    Option("cv", "float", 1.0, Row(
        WORKLOAD, "gamma: variation of gaps; bursts: how many come at once", usual="1", unit="X", above=0, most=10**6)),
    Option("seed", "int", 0, Row(
        WORKLOAD, "seed of the random draws", usual="0", unit="N", least=0, most=LARGEST_SEED)),
)  # fmt: skip
#: What `serve simulate` asks of its servers, and writes.
SIMULATIONS: dict[str, Option] = _named(
    LAUNCHED,
    Option("max_num_seqs", "int | None", None, Row(
        ENGINE, "sequences of a step at most", usual="the engine's for the GPU", unit="N", least=1)),
    Option("max_num_batched_tokens", "int | None", None, Row(
        ENGINE, "tokens of a step at most", usual="the engine's", unit="N", least=1)),
    Option("prefix_cache", "str | None", None, Row(
        ENGINE, "whether prompts share pages: {choices}", usual="the engine's", choices=(ON, OFF), unit="on|off")),
    Option("receive_every", "int", 1, Row(
        ENGINE, "look for new requests after N decode steps (SGLang's --scheduler-recv-interval)", usual="1", unit="N",
        least=1, most=10**6)),
    *(OPTIONS[name].with_row(modes=()) for name in ("drafts", "acceptance", "draft_model")),
    Option("replicas", "int", 1, Row(
        GPUS, "servers alike that share the requests", unit="N", least=1, most=MOST_SERVERS)),
    Option("prefill_servers", "int | None", None, Row(
        GPUS, "servers for prompts alone; the others decode", unit="N", least=1, most=MOST_SERVERS)),
    Option("prefill_tp", "int | None", None, Row(
        GPUS, "tensor parallelism of the prefill servers", usual="--tp", unit="N", least=1, most=LARGEST_DEGREE)),
    Option("html", "str | None", None, Row(
        OUTPUT, "also write a page with pictures: queue, cache and batch over time", unit="FILE", writes=PAGE)),
    Option("timeline", "str | None", None, Row(
        OUTPUT, "also write requests and steps as a Chrome trace, for ui.perfetto.dev", unit="FILE", writes=TRACE)),
    Option("out", "str | None", None, Row(
        OUTPUT, "also write every request (.csv or .parquet)", unit="FILE",
        writes=table("a table of requests", ("request", "arrival_s", "ttft_ms", "latency_ms")))),
    Option("json", "bool", False, Row(OUTPUT, "print JSON (docs/how-to/serving.md)")),
)  # fmt: skip
#: What `serve plan` asks beside the words of a server.
SERVE_PLANS: dict[str, Option] = _named(
    Option("num_gpus", "int | None", None, Row(
        GPUS, "GPUs to plan for, with --min-gpus at most", usual=f"{MOST_GPUS:,} with --min-gpus", unit="N", least=1,
        most=LARGEST_DEGREE)),
    replace(_ISL, type="int", required=True),
    replace(_OSL, type="int", required=True).with_row(most=_TOKENS_MADE),
    Option("execution", "str | None", None, Row(
        ENGINE, "engines to look at", usual="all whose scheduler is known", unit="NAME,...")),
    Option("rate", "float", 0.0, Row(
        WORKLOAD, "requests a second that have to be served", unit="R", least=0)),
    Option("min_gpus", "bool", False, Row(GPUS, "the fewest GPUs that serve --rate")),
    Option("max_batch", "int", MOST_BATCH, Row(
        ENGINE, "the most requests of one rank at a time", unit="N", least=1, most=10**6)),
    Option("disaggregated", "str", ALSO, Row(
        GPUS, "GPUs of their own for prompts: {choices}", choices=SPLITS, unit="WHICH")),
    PRICE.with_row(help=f"{PRICE.row.help}; adds the cost"),
    PRICES,
    OPTIONS["power"].with_row(help="say what the plans draw: watts, and joules of an output token"),
    Option("objective", "str | None", None, Row(
        OUTPUT, "what is listed first: {choices}", usual="most requests a second; with --rate the least TPOT, with"
        " --min-gpus the fewest GPUs", choices=OBJECTIVES, unit="WHAT")),
    Option("emit", "str | None", None, Row(
        OUTPUT, "print the commands that start the best plan of vllm, sglang or trtllm", unit="ENGINE")),
    Option("top", "int", 5, Row(OUTPUT, "plans to list", unit="N", least=1, most=1000)),
    Option("simulate", "int", 3, Row(
        OUTPUT, "how many of the best plans to simulate", unit="N", least=0)),
    Option("out", "Sequence[str] | None", None, Row(
        OUTPUT, f"also write plans and frontier: {', '.join(SERVE_PLANS_IN)}; may repeat", unit="FILE", repeats=True,
        writes=by_ending(svg=PICTURE, html=PAGE, csv=_SERVE_TABLE, parquet=_SERVE_TABLE))),
    Option("json", "bool", False, Row(OUTPUT, "print JSON (docs/reference/json-schema.md)")),
)  # fmt: skip


def words_of(verb: str) -> tuple[str, ...]:
    """The words of the table that ``verb`` takes, too: `SERVE` or `PLAN`."""
    return tuple(name for name, option in OPTIONS.items() if verb in option.row.verbs)


def words_of_modes(modes: Sequence[str]) -> tuple[str, ...]:
    """The words of the table that ``modes`` take, all or some of them, and no other mode."""
    return tuple(name for name, option in OPTIONS.items() if option.row.modes and set(option.row.modes) <= set(modes))


#: A record's word -> the default that its row says, which needs no check, and the row.
Checks = tuple[tuple[str, Any, Option], ...]
#: Of these a release, a checkpoint, an alias or a file says more than a list.
_READ_ELSEWHERE = ("execution", "dtype", "kv_dtype", "system", "mode")


def checks_of(fields: Sequence[str]) -> Checks:
    """What `check_words` needs of a data class with these fields: its words that are sizes, switches, or one of a
    list."""
    options = (OPTIONS[name] for name in fields if name in OPTIONS and name not in _READ_ELSEWHERE)
    listed = (option for option in options if option.kind in ("whole", "switch") or option.row.choices)
    return tuple((option.name, option.default, option) for option in listed)


def check_words(record: object, checks: Checks) -> None:
    """RequestError, one line, for the first value of a record that its row does not allow."""
    for name, usual, option in checks:
        value = getattr(record, name)
        if value is not usual or usual is None:  # most are
            option.check(value)
