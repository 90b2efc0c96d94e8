"""What an engine does with a model, whichever one it is: the fields that every other part reads in place of a name.

Times are in seconds. A field that a file of this folder does not set keeps the default, which is eager PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from predictor.engines.boards import Boards, refusal
from predictor.engines.memory import WHOLE, MemoryRule
from predictor.engines.releases import Release, age, as_of, numbers
from predictor.files.records import dataclass, replace
from predictor.hardware.gpu import GPUSpec
from predictor.ops.attention import Attention
from predictor.ops.base import Op
from predictor.ops.gemm import Gemm

if TYPE_CHECKING:
    from predictor.engines.scheduling import Batching
    from predictor.engines.vintage import KernelRule, Scheduler, TrainingFramework, Vintage

#: What the CPU does while the GPU runs: it makes every framework call of eager PyTorch, it launches every kernel, it
#: launches captured pieces and the kernels between them that look at the cache, or nothing, as all was captured in one
#: graph.
HOSTS = CALLS, LAUNCHES, PIECES, CAPTURED = "calls", "launches", "pieces", "captured"

#: What a step of training captures in CUDA graphs: each layer, or all passes of a step, without the optimizer.
CAPTURES = LAYER, ITERATION = "layer", "iteration"
#: How the next tokens are chosen: the likeliest, by chance, by chance among the likeliest (top-k, top-p).
GREEDY, RANDOM, TOP_K, TOP_P = "greedy", "random", "top-k", "top-p"
_CHOICES = (GREEDY, RANDOM, TOP_K, TOP_P, f"{TOP_K}+{TOP_P}")
#: Behind a choice: tokens that are there already (repetition, frequency, presence) lose some of their logit first.
PENALTIES = "+penalties"
SAMPLINGS = (*_CHOICES, *(f"{choice}{PENALTIES}" for choice in _CHOICES))
#: What a framework call costs on the hosts there are, seconds [least, most]. Chosen by looking at launch-bound runs,
#: as `DEFAULT_LAUNCH_OVERHEAD_S` of `predictor.request.workload`.
CALL_RANGE_S = (4e-6, 12e-6)
#: Passes of a model: over whole prompts (forward, train, prefill), or a decode step.
PREFILL, DECODE = "prefill", "decode"


def as_stored(word: str, gpu: GPUSpec) -> str:
    """A checkpoint's format runs as it is."""
    return word


def later(module: str, name: str) -> Callable[[], Any]:
    """Gives what ``module`` of this folder has under ``name``, and reads the module when somebody first asks."""
    return partial(_of_module, f"{__package__}.{module}", name)


def _of_module(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


@dataclass(frozen=True, slots=True)
class FusedEncoders:
    """Attention without a mask of causes that an engine has one kernel for.

    ``capabilities``: dtype -> compute capabilities; ``heads``: widths of a head; ``longest``: tokens of a sequence.
    """

    capabilities: Mapping[str, tuple[str, ...]]
    heads: tuple[int, ...]
    longest: int
    source: str

    def has(self, dtype: str, capability: str | None, head_dim: int, tokens: int) -> bool:
        """Whether there is a kernel for such heads and so many tokens."""
        return capability in self.capabilities.get(dtype, ()) and head_dim in self.heads and tokens <= self.longest


@dataclass(frozen=True, slots=True)
class EightBit:
    """What ``--dtype fp8`` means under an engine, where the model's checkpoint has no fp8 of its own.

    ``linear``: the word of the linear layers (`predictor.request.precision`); ``experts``: that of the experts;
    ``kv``: dtype of the KV cache, "" for the activations'; ``said``: the same in words, for an answer's first line.
    ``before``: types of models of which the engine's maker has a checkpoint made for it, though their publisher has
    one in fp8 as well.
    """

    linear: str
    experts: str
    kv: str
    said: str
    source: str
    before: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """How an execution runs a model: a word of ``--execution``. There is one object an engine, compared by identity.

    ``kernels``: the library whose kernels run, as the measured tables name it. ``host`` and ``decode_host``: what the
    CPU does in a pass over prompts and in a decode step, one of `HOSTS`. ``launch_overhead_s``: CPU time of one launch
    where the engine's host is C++; None where it is the Python of the machine at hand. ``launch_range_s``: what a
    launch (a framework call) that is assumed stands for on the hosts there are, seconds [least, most]. ``fuses``:
    element-wise chains run as one kernel. ``serves``: a serving engine, which joins more than a compiler does: the
    attention call is its own, and a norm after a sum does not write the sum.

    Where its attention differs: ``appends``, the passes whose attention call writes new keys and values into the cache;
    ``rotates``, whether it applies rotary positions, too; ``decodes_in_one_kernel``, whether decode attention is one
    kernel even where math attention is asked for; ``adds_qkv_bias``, whether a kernel of its own adds the bias of q, k
    and v before a fused prefill, and splits the heads of a batch of one in an unfused one; ``ends_in_sum``, whether a
    layer with its norms in front ends with a residual sum of its own; ``fp8_cache``, whether it reads keys and values
    of 8 bits; ``joins_dropout``: dropout runs in the residual sum behind it, and norms do no sums; ``views_heads``: the
    products of unfused attention read heads where the projection left them; ``pads_attention``: ragged batches are
    padded for attention alone, to the length that its buffers have; ``fused_encoders``: which attention of an encoder
    is one kernel, where the engine's own rule is known; ``trains``: it trains and does nothing
    else, so that a forward pass is one of training; ``aged``: another release than the newest, with its library's
    kernels as of ``kernels_at`` ("" for the newest); ``kernels_changed``: what they changed by, with its version.
    ``unpacks``: it has kernels that unpack weights which the GPU has no units for (Marlin). ``runs_as``: the word of
    `predictor.request.precision` that it runs a checkpoint's word as on a GPU: the same weights, other activations.
    ``memory``: its share of the GPU's memory by version, the oldest first.
    ``decode_attention_of``: compute capability -> library whose decode attention comes nearest to what the engine runs
    there. ``given_narrow``: the library in whose tables the products of operands that come in 8 bits or fewer are, on
    NVIDIA's boards, "" for ``kernels``. ``slower``: attention of a pass (`PREFILL`, `DECODE`) over that of the measured
    kernels, where an older release runs older ones. ``called``: other names of its software; ``samples``: a step that
    gives logits chooses its tokens on the GPU. ``vintages``: gives its releases, the oldest
    first (`later`, so that nobody who asks for no engine reads one). ``batching``: gives the class of the scheduler
    that has such numbers (`predictor.engines.scheduling`); None where it serves no requests that arrive one by one.
    ``receives_apart``: its scheduler can be told to look for requests after several decode steps.
    ``boards``: those that it runs on; empty for all. ``decoders_alone``: it has no model of an encoder-decoder of text;
    what its kernels would take is forecast all the same, and the answer says so. ``fp8``: what it runs where fp8 is all
    that is asked for; None where nobody read it. ``classes``: of this release, as
    `predictor.engines.vintage.Vintage` has it.
    """

    name: str
    kernels: str = "pytorch"
    host: str = CALLS
    decode_host: str = CALLS
    launch_overhead_s: float | None = None
    launch_range_s: tuple[float, float] = CALL_RANGE_S
    fuses: bool = True
    serves: bool = False
    appends: tuple[str, ...] = (PREFILL, DECODE)
    rotates: bool = False
    decodes_in_one_kernel: bool = False
    adds_qkv_bias: bool = False
    ends_in_sum: bool = False
    fp8_cache: bool = False
    joins_dropout: bool = False
    views_heads: bool = False
    pads_attention: bool = False
    fused_encoders: FusedEncoders | None = None
    trains: bool = False
    aged: bool = False
    kernels_at: str = ""
    kernels_changed: tuple[Release, ...] = ()
    unpacks: bool = True
    runs_as: Callable[[str, GPUSpec], str] = as_stored
    memory: tuple[MemoryRule, ...] = (WHOLE,)
    decode_attention_of: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    given_narrow: str = ""
    slower: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    called: tuple[str, ...] = ()
    samples: bool = False
    vintages: Callable[[], tuple[Vintage, ...]] = tuple
    batching: Callable[[Scheduler], type[Batching]] | None = None
    receives_apart: bool = False
    boards: tuple[Boards, ...] = ()
    decoders_alone: bool = False
    fp8: EightBit | None = None
    classes: str = ""

    def refuses(self, gpu: GPUSpec, version: str = "") -> str:
        """Which boards ``version`` ("": the newest) runs on where ``gpu`` is none of them, in words; "" where it is."""
        return refusal(self.boards, gpu, version)

    def as_of(self, version: str = "") -> Engine:
        """The engine in its release of ``version`` ("": the newest listed, which is this one): one object a release.

        It has that release's host, captured steps and memory; its `vintage` tells the rest. RequestError for a version
        that is none.
        """
        if not version:
            return self
        releases = self.vintages()
        changed = self.kernels_changed and as_of(self.kernels_changed, version).version
        return _older(self, max(0, age(releases, version)), age(self.memory, version), changed or "")

    def vintage(self) -> Vintage | None:
        """What is known of the release that this is; None where the engine's file lists none."""
        releases = self.vintages()
        return releases[-1] if releases else None

    @property
    def training(self) -> TrainingFramework | None:
        """How this release trains on many GPUs; None for one that does not."""
        vintage = self.vintage()
        return vintage.training if vintage is not None else None

    def library_of(self, gpu: GPUSpec) -> Callable[[Op], str] | None:
        """Library of an operator's kernels on ``gpu``, but for collectives; None where it is ``kernels`` for all."""
        decode = self.decode_attention_of.get(gpu.compute_capability or "")
        narrow = self.given_narrow if gpu.vendor == "nvidia" else ""
        if decode is None and not narrow:
            return None

        def choose(op: Op) -> str:
            if narrow and isinstance(op, Gemm) and op.quantized and not op.quant:
                return narrow
            decodes = decode is not None and isinstance(op, Attention) and op.is_decode and not op.shared_kv
            return decode if decodes and decode is not None else self.kernels

        return choose


@lru_cache(maxsize=64)
def _older(engine: Engine, ago: int, memory_ago: int, changed: str) -> Engine:
    """``engine`` in the release before the last ``ago``, with the memory rule before the last ``memory_ago`` and its
    library's kernels as of ``changed``, which may lie between two releases that are told apart."""
    if not ago and not memory_ago:
        return engine
    memory = engine.memory[: len(engine.memory) - memory_ago]
    releases = engine.vintages()
    if not releases:
        return replace(engine, memory=memory)
    kept = releases[: len(releases) - ago]
    host, cache = kept[-1].host, kept[-1].cache
    at = max(kept[-1].version, changed, key=numbers)
    return replace(
        engine, aged=True, kernels_at=at, host=host.prompts, decode_host=host.decode, memory=memory,
        launch_overhead_s=host.call_s or engine.launch_overhead_s,
        launch_range_s=host.call_range_s or engine.launch_range_s,
        fp8_cache=engine.fp8_cache and (cache is None or cache.eight_bit), vintages=lambda: kept,
        slower=_slower(kept[-1].kernels), classes=kept[-1].classes,
    )  # fmt: skip


def _slower(rules: Sequence[KernelRule]) -> dict[str, float]:
    """`Engine.slower` of a release's rules."""
    passes = {PREFILL: "prompts", DECODE: "decodes"}
    return {
        name: rule.slower
        for rule in rules
        for name, operator in passes.items()
        if operator in rule.operators and rule.slower != 1.0
    }
