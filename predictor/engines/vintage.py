"""What an engine does as of a release: a record a topic, each with the source that it was read in.

An engine's file has its vintages, the oldest first; `predictor.engines.defaults` answers questions from them. Defaults
that depend on the GPU or the model are functions of a `Setting`. Times are in seconds, sizes in bytes, lengths in
tokens. ``source`` is the release, file and lines; ``unverified`` says which part of a record nobody read there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING

from predictor.files.records import dataclass
from predictor.hardware.gpu import GPUSpec

if TYPE_CHECKING:
    from predictor.engines.reductions import AllReduceRules

#: Bytes that no buffer has, by definition.
NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class Setting:
    """What an engine looks at when it chooses its defaults.

    ``gpu``; ``tp`` and ``pp``, GPUs of a tensor and a pipeline group; ``dp``, ranks with requests of their own that
    share the experts; ``context_len``, tokens of the longest sequence
    that is served; ``cache_tokens``, tokens that the KV cache holds (0: not known); ``drafts``, tokens that speculative
    decoding guesses a step; ``online``: behind a server, not called from Python with all prompts at hand; ``latent``:
    a model with latent attention (MLA).
    """

    gpu: GPUSpec
    tp: int = 1
    pp: int = 1
    context_len: int = 8192  # chosen by hand, not from data: what few requests exceed
    cache_tokens: int = 0
    drafts: int = 0
    online: bool = True
    latent: bool = False
    dp: int = 1

    @property
    def memory_gib(self) -> float:
        """Memory of one GPU in GiB."""
        return self.gpu.memory_capacity / 2**30


# -------------------------------------------------------------------------------------------------------- scheduler

#: Whose turn it is: a step of prompts alone whenever one can be made, else one of decodes; what runs (decodes, prompts
#: begun), then what waits, in one step; decodes, then prompts, in one step.
ORDERS = PROMPTS_FIRST, RUNNING_FIRST, DECODES_FIRST = "prompts first", "running first", "decodes first"
#: Who gives way when the cache is full: the last to arrive, who is computed again; those with the fewest output tokens;
#: nobody, as only those are admitted who can finish.
PREEMPTIONS = LAST_ARRIVED, FEWEST_OUTPUTS, NOBODY = "last arrived", "fewest outputs", "nobody"


@dataclass(frozen=True, slots=True)
class Reserve:
    """KV cache that admission sets aside for the output tokens that running requests may still write.

    A share of what each may write, which is counted up to ``most_tokens``: ``first`` at the start, falling in a line to
    ``last`` over ``steps`` decode steps.
    """

    first: float = 0.0
    last: float = 0.0
    steps: int = 0
    most_tokens: int = NO_LIMIT

    def share(self, steps: int) -> float:
        """The share after so many decode steps without a preemption."""
        gone = 1.0 if steps >= self.steps else steps / self.steps
        return self.first + (self.last - self.first) * gone


#: Decode steps that a step with prompts counts for before requests are looked for. Source: SGLang 0.5.9
#: managers/scheduler_recv_skipper.py, environ.py:232, the one engine that counts.
PROMPTS_COUNT = 1000


@dataclass(frozen=True, slots=True)
class Scheduler:
    """How the batch of a step is put together, in numbers.

    ``order`` is one of `ORDERS`; ``mixes``: prompts and decodes may share a step; ``chunks``: a prompt may take several
    steps; ``tokens``: most tokens of a step, of prompts and decodes together where they mix; ``sequences``: most
    sequences of a step; ``prefill_tokens``: most tokens of the prompts of a step; ``padding``: None where prompts are
    packed; where each counts as long as the longest, the most tokens that may be padding. ``preemption`` is one of
    `PREEMPTIONS`; ``watermark``: share of the cache's pages that admission keeps free; ``whole_prompt``: a prompt is
    admitted where all of it fits into the free pages, not its next chunk alone. ``receive_every``: decode steps after
    which it looks for requests that have come; a step with prompts counts as `PROMPTS_COUNT` of them.
    """

    order: str
    mixes: bool
    chunks: bool
    tokens: int
    sequences: int
    source: str
    prefill_tokens: int = NO_LIMIT
    padding: int | None = None
    preemption: str = LAST_ARRIVED
    watermark: float = 0.0
    reserve: Reserve = Reserve()
    whole_prompt: bool = False
    receive_every: int = 1
    unverified: str = ""


# --------------------------------------------------------------------------------------------------------- KV cache


@dataclass(frozen=True, slots=True)
class CacheRules:
    """The KV cache.

    ``page_tokens``: tokens of a page; ``pages``: the same under an attention kernel that has its own; ``prefixes``:
    pages of a common beginning are shared; ``eight_bit``: keys and values of 8 bits can be asked for; ``integers``:
    in int8, too; ``follows``: dtype "auto" takes the one that a quantized checkpoint names, else the model's always.
    """

    page_tokens: int
    prefixes: bool
    source: str
    pages: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    eight_bit: bool = True
    integers: bool = False
    follows: bool = True
    unverified: str = ""


# ------------------------------------------------------------------------------------------------------ CUDA graphs


@dataclass(frozen=True, slots=True)
class Graphs:
    """What is captured.

    ``sizes``: batches of decodes, ascending; ``padded``: a batch runs the next larger one, else its own or none;
    ``longest``: tokens of the longest sequence of a captured batch. ``prompt_tokens``: steps with prompts of up to so
    many tokens run in captured pieces, the attention between them launched; 0 for none. ``of_tokens``: with drafts,
    ``sizes`` count the tokens of a step; else its sequences, each with its drafts.
    """

    sizes: tuple[int, ...]
    source: str
    padded: bool = True
    longest: int = NO_LIMIT
    prompt_tokens: int = 0
    unverified: str = ""
    of_tokens: bool = False

    def batch_of(self, batch: int, longest: int = 0) -> int | None:
        """The size that a decode step of ``batch`` sequences runs in, of up to ``longest`` tokens; None where it runs
        uncaptured."""
        return None if longest > self.longest else self.size_of(batch)

    def size_of(self, tokens: int) -> int | None:
        """The size that so many tokens of decodes run in; None where none holds them."""
        place = bisect_left(self.sizes, tokens)
        if place == len(self.sizes) or (not self.padded and self.sizes[place] != tokens):
            return None
        return self.sizes[place]

    def tokens_of(self, sequences: int, width: int = 1, longest: int = 0) -> int | None:
        """Tokens of the graph that a decode step of ``sequences`` runs in, each with ``width`` tokens of its own; None
        where it runs uncaptured."""
        if self.of_tokens:
            return self.batch_of(sequences * width, longest)
        size = self.batch_of(sequences, longest)
        return None if size is None else size * width

    def pieces(self, tokens: int) -> int | None:
        """Tokens of the pieces that a step of ``tokens`` with prompts runs in; its own beyond ``sizes``, None where it
        is launched."""
        if tokens > self.prompt_tokens:
            return None
        place = bisect_left(self.sizes, tokens)
        return self.sizes[place] if place < len(self.sizes) else tokens


def sizes_up_to(largest: int, first: tuple[int, ...] = (1, 2, 4)) -> tuple[int, ...]:
    """Sizes that engines capture: ``first``, from there on in steps of 8 to 256 and of 16 to 512, none above
    ``largest``."""
    after = 8 * (first[-1] // 8 + 1)
    return tuple(size for size in (*first, *range(after, 257, 8), *range(272, 513, 16)) if size <= largest)


# ------------------------------------------------------------------------------------------------------------- host


@dataclass(frozen=True, slots=True)
class HostTime:
    """A published time that the host of an engine takes in a step beside launches.

    ``step_s``: seconds [least, most] whatever the batch; ``sequence_s``: more for each sequence of it; ``setting``:
    release, model and GPU.
    """

    what: str
    setting: str
    source: str
    step_s: tuple[float, float] = (0.0, 0.0)
    sequence_s: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Wait:
    """What the GPU waits for after each step: ``name`` in words, ``step_s`` seconds whatever the batch, ``sequence_s``
    more for each sequence of it. ``range_s``: ``step_s`` on the hosts there are, seconds [least, most]."""

    name: str
    source: str
    step_s: float = 0.0
    sequence_s: float = 0.0
    range_s: tuple[float, float] = (0.0, 0.0)
    unverified: str = ""


#: What the host does for one step while the GPU runs another: it chooses the batch, it reads the tokens that came out.
OVERLAPS = SCHEDULING, OUTPUTS = "scheduling", "outputs"


@dataclass(frozen=True, slots=True)
class Host:
    """What the CPU does, in words of `predictor.engines.base.HOSTS`.

    ``prompts``: in a pass over prompts; ``decode``: in a decode step; ``overlaps``: of `OVERLAPS`; ``overlaps_stages``:
    over pipeline stages, too; ``times``: what was published; ``waits``: what of it no step of the GPU hides.
    ``call_s``: a framework call of releases on hosts of another time than today's, seconds, and on the hosts of that
    time, [least, most] (None: as today).
    """

    prompts: str
    decode: str
    overlaps: tuple[str, ...]
    source: str
    overlaps_stages: bool = True
    times: tuple[HostTime, ...] = ()
    waits: tuple[Wait, ...] = ()
    call_s: float | None = None
    call_range_s: tuple[float, float] | None = None
    unverified: str = ""


# ---------------------------------------------------------------------------------------------------------- kernels

#: What a rule is for: attention over prompts, in a decode step, over a latent cache (MLA).
OPERATORS = PROMPTS, DECODES, LATENT = "prompts", "decodes", "latent"


@dataclass(frozen=True, slots=True)
class KernelRule:
    """Whose kernels run attention: ``kernels`` in order of preference, the first that takes the call.

    ``operators``: of `OPERATORS`. It holds for ``capabilities`` (compute capability "9.0", or "10" for all of a major
    number; () for any), calls of up to ``tokens`` tokens and, where ``auto_cache``, for a cache of the model's dtype
    alone. ``slower``: its time over that of the kernels that were measured, where those are newer ones.
    """

    operators: tuple[str, ...]
    kernels: tuple[str, ...]
    source: str
    capabilities: tuple[str, ...] = ()
    tokens: int = NO_LIMIT
    auto_cache: bool = False
    slower: float = 1.0
    unverified: str = ""


@dataclass(frozen=True, slots=True)
class Quantizing:
    """Who narrows the activations of a GEMM in fp8: "fused" into the kernel before it, or a "kernel" of its own.

    ``norms`` and ``activations``: after a norm and after an activation; ``attention``: after attention.
    """

    norms: str
    activations: str
    attention: str
    source: str
    unverified: str = ""

    def fuses(self, scope: str) -> bool:
        """Whether a module called ``scope`` narrows what it makes; what comes from no module counts as a norm's."""
        kind = scope[scope.rfind(" ") + 1 :]
        return {"norm": self.norms, "": self.norms, "activation": self.activations}.get(kind, self.attention) == "fused"


# ---------------------------------------------------------------------------------------------------------- sampler


#: Bytes of memory traffic for each probability where a sort in PyTorch finds the tokens of top-k, top-p or both, and
#: where FlashInfer does. Source: vLLM pull 40376 (vocabulary 131,072; batch 512: 5.49 and 6.15 ms, FlashInfer 0.488
#: and 0.372; batch 128: both take 2.40 where top-p takes 2.32, FlashInfer 0.267 and 0.139) times 3.35 TB/s, as if its
#: GPU were an H100, which it does not say.
SORTED_BYTES = MappingProxyType({"top-k": 274.0, "top-p": 307.0, "top-k+top-p": 318.0})
FLASHINFER_BYTES = MappingProxyType({"top-k": 24.4, "top-p": 18.6, "top-k+top-p": 35.7})
#: Bytes of each logit in the kernels of penalties, read and written: counts and masks of the tokens of prompt and
#: output (int64, a byte), repetition as one kernel, frequency and presence as a product and a difference each. Source:
#: vLLM 0.14.1 model_executor/layers/utils.py, apply_penalties, and csrc/sampler.cu, from memory.
PENALTY_BYTES = MappingProxyType({
    "prompt counts": 8.0, "prompt mask": 9.0, "output counts": 8.0, "output mask": 9.0, "repetition": 10.0,
    "frequency": 12.0, "frequency difference": 12.0, "presence": 5.0, "presence difference": 12.0,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class SamplingSteps:
    """From logits to tokens: ``steps`` in order, over the vocabulary in ``dtype``; ``truncates``: how top-k and top-p
    find their tokens, and ``truncation_bytes`` of memory traffic for each probability, by word of
    `predictor.engines.SAMPLINGS`. Greedy requests need the cast and an argmax alone, and penalties where they ask."""

    steps: tuple[str, ...]
    truncates: str
    source: str
    dtype: str = "fp32"
    truncation_bytes: Mapping[str, float] = field(default_factory=lambda: SORTED_BYTES)
    unverified: str = ""


# --------------------------------------------------------------------------------------------------------- training


@dataclass(frozen=True, slots=True)
class TrainingFramework:
    """How a framework trains on many GPUs.

    What runs beside computation: ``tensor_overlaps``, collectives of tp, cp and ep wherever nothing waits for them;
    ``gradients_overlap``, the reduction of gradients, a bucket of ``bucket_bytes`` at a time, beside the last backward
    pass (else it follows that); ``weights_overlap``, the gather of updated weights beside the first forward pass;
    ``p2p_overlaps``, what pipeline stages send (interleaved schedules alone). ``scatters_p2p``: a tp group sends every
    activation once, split over its ranks.

    ``adds_in_product``: products that make weight gradients add them to the fp32 ones (else a kernel does, and the
    product writes 16 bit). ``main_gradients``: their dtype, in which they are reduced; "" for that of the weights.
    ``norm_and_clip``: the optimizer reads all gradients for their norm, and scales them. ``shards``: weights are
    gathered layer by layer (FSDP); ``copies_out``: what was gathered is copied into weights of their own (FSDP2), which
    else are views of one flat parameter (FSDP1). ``hooks``: framework calls that the host's work for a layer takes as
    long as, forward and backward, each as (calls, calls a weight). ``limits_gathers``: the host waits until the layer
    before the last one is done before it asks for the next one's weights. ``attention``: the library of fused
    attention, of `predictor.engines.attention_ages`, "" for that of the measured kernels. ``scales``: words of how fp8
    is scaled beside "fp8" itself, which is `predictor.formats.quantization.CURRENT` where ``scales_now`` (else from
    steps before). ``whole_adapters``: adapters beside layers of split sequences gather them
    (`predictor.passes.adapters`). ``keeps_products``: selective recomputation saves attention and every second
    product (`predictor.passes.keep_products`), and not all but attention's scores. ``attends_again``: it runs fused
    attention again. ``products_apart``: linear layers of one input are not joined. ``keeps_narrow``: operands of
    products of 8 bits and fewer are kept in them, of an input for the gradient of the weight, and of a weight that is
    frozen. ``captures``: of `predictor.engines.base.CAPTURES`, what it can capture in CUDA graphs.
    """

    source: str
    tensor_overlaps: bool = False
    gradients_overlap: bool = False
    weights_overlap: bool = False
    p2p_overlaps: bool = False
    scatters_p2p: bool = False
    bucket_bytes: float = 0.0
    adds_in_product: bool = False
    main_gradients: str = ""
    norm_and_clip: bool = False
    shards: bool = False
    copies_out: bool = False
    hooks: tuple[tuple[float, float], ...] = ()
    limits_gathers: bool = False
    scales: tuple[str, ...] = ()
    scales_now: bool = False
    attention: str = ""
    whole_adapters: bool = False
    keeps_products: bool = False
    attends_again: bool = False
    products_apart: bool = False
    keeps_narrow: bool = False
    captures: tuple[str, ...] = ()
    unverified: str = ""


# ---------------------------------------------------------------------------------------------------------- vintage

#: Tokens of a request that says nothing are chosen as the checkpoint's generation_config.json has it.
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, eq=False)
class Vintage:
    """An engine from ``version`` on, as release ``read`` has it. A topic that nobody read is None, or empty.

    ``since``: year and month in which ``version`` came out, "" where it is older than what is asked for. ``unasked``:
    how tokens are chosen of a request that says nothing, of `predictor.engines.SAMPLINGS`, or `CHECKPOINT`.
    ``classes``: release of Hugging Face's classes of models, of which it runs every kernel; "": those of 2023, or code
    of its own.
    """

    version: str
    read: str
    host: Host
    scheduler: Callable[[Setting], Scheduler] | None = None
    cache: CacheRules | None = None
    graphs: Callable[[Setting], Graphs] | None = None
    kernels: tuple[KernelRule, ...] = ()
    quantizing: Quantizing | None = None
    collectives: AllReduceRules | None = None
    sampler: SamplingSteps | None = None
    since: str = ""
    unasked: str = "greedy"
    training: TrainingFramework | None = None
    classes: str = ""
