"""What a library of kernels does with the calls that it is given, whichever one it is.

A library is what the measured tables call a framework: its kernels run under one engine or several. Estimators hold the
cores, in which a library's name means nothing; how its kernels share out their work is told by the fields here. Arrays
have shape (n,), one entry a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from predictor.engines.releases import age, as_of
from predictor.files.records import dataclass, replace
from predictor.formats.quantization import MARLIN as MARLIN_SCHEMES
from predictor.hardware.gpu import GPUSpec

FloatArray = npt.NDArray[np.float64]

#: Kernels of experts: NVIDIA's grouped GEMMs (TensorRT-LLM, FlashInfer), those that TensorRT-LLM generates for
#: compute capability 10, Triton's fused_moe, and Marlin for weights of 4 bits.
EXPERT_KERNELS = CUTLASS, GENERATED, TRITON, MARLIN = "cutlass", "generated", "triton", "marlin"
#: What measured tables call them, where that is another word.
TABLES_WORD = {GENERATED: "flashinfer_trtllm"}
#: How they share out their products: the fastest tile, one of two by the tokens, equal stripes for all SMs.
TILINGS = FASTEST, TWO_TILES, STRIPES = "fastest", "two tiles", "stripes"
#: Variants that Triton has no kernels for.
_CUTLASS_ALONE = ("nvfp4", "mxfp8", "w4a8_mxfp4_mxfp8")
#: Turn of a library that says none: by definition behind all that do.
_LAST = 99


@dataclass(frozen=True, slots=True)
class AttentionCalls:
    """n attention calls, as far as kernels decide by them.

    ``group``: query heads a KV head; ``window`` in tokens, 0 for none; ``kv_itemsize`` in bytes; ``shared`` 1 where
    the values are a slice of the keys.
    """

    group: FloatArray
    window: FloatArray
    kv_itemsize: FloatArray
    shared: FloatArray


@dataclass(frozen=True, slots=True)
class Sharing:
    """How kernels share n attention calls out over blocks.

    ``packed``: query heads of a KV head that share a tile's rows in prefill; ``copies``: times that a decode step reads
    the cache, once for every so many blocks of query heads; ``whole``: 1 where a decode kernel does not split a
    sequence's cache over the SMs; ``beside``: small kernels before a decode step's, in its measured time.
    """

    packed: FloatArray
    copies: FloatArray
    whole: FloatArray
    beside: FloatArray


def packed_groups(calls: AttentionCalls, gpu: GPUSpec) -> Sharing:
    """FlashAttention-3 and FlashInfer: the query heads of a KV head in one tile, a cache read once and split."""
    zero = np.zeros(calls.group.size)
    return Sharing(calls.group, zero + 1.0, zero, zero)


def runs_generated(gpu: GPUSpec) -> bool:
    """Whether TensorRT-LLM generates kernels (trtllm-gen) for a GPU, which other engines call, too."""
    return (gpu.compute_capability or "").startswith("10.")


def its_own(library: str, gpu: GPUSpec) -> str:
    """A library that calls its own kernels on every GPU."""
    return library


def its_own_products(library: str, variant: str, gpu: GPUSpec) -> str:
    """A library whose own rows tell of its products."""
    return library


def takes_the_measured(variant: str, gpu: GPUSpec) -> bool:
    """A library that runs the kernels of its own rows."""
    return False


def triton_everywhere(variant: str, gpu: GPUSpec) -> str:
    """Triton's kernels for whatever Marlin and CUTLASS alone do not take."""
    return TRITON


def all_tuned(variant: str, gated: bool, gpu: GPUSpec) -> bool:
    """The measured rows of experts are all of kernels as the library runs them."""
    return False


def as_measured(variant: str, gated: bool, gathered: bool, gpu: GPUSpec) -> bool:
    """The measured rows of experts are all of the kernels that the library runs."""
    return False


@dataclass(frozen=True, slots=True)
class JointCall:
    """An attention call over the prompts and decodes of a step, in which a decode's query has tiles of its own.

    ``rows``: queries of a tile; ``split_bytes``: 0 where the call hands tiles out as there are any, so that a decode is
    its work or its cache; else the grid is of the longest prompt's tiles for every sequence and head, and a tile's
    steps are over as many keys as have so many bytes in a KV head of 16 bit, a power of two; ``start_steps``: what a
    tile takes before and after its steps, in steps; ``empty_cycles`` that a tile without queries keeps its place;
    ``unsplit``: a call of decodes alone splits no cache from so many tiles an SM on; ``lone``: how many times as fast a
    tile by itself is there as among those of a long prompt.
    """

    rows: int
    split_bytes: int = 0
    start_steps: float = 0.0
    empty_cycles: float = 0.0
    unsplit: float = 0.0
    lone: float = 1.0

    def keys_of(self, head_dim: int) -> int:
        """Keys of a step."""
        return int(2 ** math.floor(math.log2(self.split_bytes / (2 * head_dim))))

    def tiles_an_sm(self, head_dim: int, itemsize: float, gpu: GPUSpec) -> int:
        """Tiles that an SM's shared memory holds at a time: queries, keys and values of a step."""
        held = (self.rows + 2 * self.keys_of(head_dim)) * head_dim * itemsize
        return max(1, int((gpu.shared_memory_per_sm_bytes or 0) / held))


def apart(gpu: GPUSpec) -> JointCall | None:
    """Decodes and prompts of one step in attention calls of their own."""
    return None


def several_kernels(gpu: GPUSpec) -> bool:
    """The delta rule over a prompt in several kernels, the states' with many blocks on an SM."""
    return False


@dataclass(frozen=True, slots=True)
class TritonExperts:
    """Triton's fused_moe as a library has it from ``version`` on.

    ``two_tiles``: the variants for which it has two default tiles, one for few tokens; ``foreign_products``: it
    multiplies the rows of other GPUs' experts, too; ``gate_costs``: layers without a gate take as long as with one in
    the tables of these versions. ``source`` is where it was read or seen.
    """

    version: str = ""
    two_tiles: tuple[str, ...] = ()
    foreign_products: bool = False
    gate_costs: bool = False
    source: str = ""


#: `AllReduce.one_shot` of the custom kernel: over two GPUs always, over others below so many bytes. Source: vLLM
#: csrc/custom_all_reduce.cuh@036bb685, of which SGLang has a copy.
CUSTOM_ONE_SHOT = (2, math.inf), (4, 512 * 2.0**10), (8, 256 * 2.0**10)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """A library's own all_reduce from ``version`` on: for buffers of up to ``largest_bytes``, of which the GPUs have a
    share each where it is ``over_ranks``, within a node; ``linked_from`` GPUs or more need NVLink.

    It reads the peers' memory between barriers; one that ``pushes`` writes into the peers' buffers over NVLink, and
    they poll. ``one_shot``: (GPUs, bytes below which as many or fewer take one shot, all else two), the fewest first;
    none where nobody read its rule: then the faster of both.
    """

    largest_bytes: float
    over_ranks: bool = False
    pushes: bool = False
    linked_from: int = 3  # source: vLLM's custom_all_reduce.py, 0.6.6
    one_shot: tuple[tuple[int, float], ...] = ()
    version: str = ""
    source: str = ""

    def limit(self, ranks: FloatArray) -> FloatArray:
        """Bytes of the largest buffer that it takes over so many GPUs, (n,)."""
        return self.largest_bytes / (ranks if self.over_ranks else np.ones(ranks.size))

    def shots_from(self, ranks: FloatArray) -> FloatArray:
        """Bytes from which so many GPUs take two shots, (n,); NaN where the faster of one and two is taken."""
        sizes = np.full(ranks.size, np.nan if not self.one_shot else 0.0)
        for most, size in reversed(self.one_shot):
            sizes[ranks <= most] = size
        return sizes


@dataclass(frozen=True, slots=True)
class Exchanges:
    """How a library of kernels for experts brings tokens to other GPUs (`predictor.ops.exchange`).

    ``start_s``: seconds of a call beside the bytes; shares of the bandwidth of links and network that it reaches,
    direct and forwarded. ``sms`` run the forwarding kernels.
    """

    start_s: float
    share_link_direct: float
    share_net_direct: float
    share_link_forwarded: float
    share_net_forwarded: float
    sms: int
    source: str
    unverified: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """A library of kernels, as the measured tables name it (column ``framework``). There is one object a library.

    ``code``: its number in the features of trees, negative for one that nobody measured; ``turn``: where a GPU was not
    measured with a library, that with the lowest one answers first. Both stand in trained sets: a number that one has
    had is never another's. ``runs``: the measured library whose kernels it calls, "" for its own; one that was not
    measured and calls its own is answered by the measured one with the lowest ``turn``.

    ``norms``: the kinds of norms that it has kernels of its own for in 16 bit, others are PyTorch's; ``scalar``: its
    16-bit row kernels move one element a thread, not 16 bytes; ``all_reduces``: its own by version, the oldest first,
    none where it calls NCCL's alone; ``quantizes``: the kernels, of `predictor.ops.quantize`, that quantize activations
    in its tables of narrow products; ``rows``: what a measured row is, where it is not the kernel that an engine runs
    by default;
    ``share_attention``: how its attention kernels share out their work on a GPU. ``unpacks_experts``: experts in
    weight-only schemes run in Marlin; ``expert_kernel``: one of `EXPERT_KERNELS` for another (variant, GPU), but
    ``generated_experts`` are the variants that run generated kernels where there are any, ``gathered_experts`` those
    where tokens of data-parallel attention are gathered (None: the same); ``experts``: its Triton experts by version,
    the oldest first; ``untuned_experts``: whether the measured rows of (variant, with a gate, GPU) are of kernels that
    an engine tunes before it serves, so that they answer for nobody; ``other_experts``: whether those of (variant, with
    a gate, with tokens gathered, GPU) are of kernels that it does not run, with the same end. ``decodes_by``: the
    library whose attention kernels its decode steps call on a GPU; ``products_by``: the library in whose tables its
    products of a variant are as it runs them;
    ``tunes_products``: whether its engine times kernels for products of a variant when it starts, which its rows have
    not seen, so that the fastest of all measured rows answer; ``merges``: its own leave it to another kernel to
    add up what the parts of a split cache gave; ``joins``: the call in which decodes are with the prompts of their
    step on a GPU, if they are. ``chunks_alone``: whether on a GPU the delta rule goes over a prompt
    in one kernel, an SM for each value head of a sequence. ``channel_blocks``: its causal convolution gives every
    channel of a prompt a block, which goes over the tokens (else a block has a few of many channels).
    ``exchanges``: how it brings tokens to experts on other GPUs, of those that ``sends_tokens``; None: by an
    all_to_all of copies.
    """

    name: str
    code: int = -1
    turn: int = _LAST
    runs: str = ""
    norms: tuple[str, ...] = ()
    scalar: bool = False
    all_reduces: tuple[AllReduce, ...] = ()
    quantizes: tuple[str, ...] = ("dynamic",)
    rows: str = ""
    share_attention: Callable[[AttentionCalls, GPUSpec], Sharing] = packed_groups
    unpacks_experts: bool = True
    expert_kernel: Callable[[str, GPUSpec], str] = triton_everywhere
    generated_experts: tuple[str, ...] = ()
    gathered_experts: tuple[str, ...] | None = None
    experts: tuple[TritonExperts, ...] = (TritonExperts(),)
    untuned_experts: Callable[[str, bool, GPUSpec], bool] = all_tuned
    other_experts: Callable[[str, bool, bool, GPUSpec], bool] = as_measured
    decodes_by: Callable[[str, GPUSpec], str] = its_own
    products_by: Callable[[str, str, GPUSpec], str] = its_own_products
    tunes_products: Callable[[str, GPUSpec], bool] = takes_the_measured
    merges: bool = True
    joins: Callable[[GPUSpec], JointCall | None] = apart
    chunks_alone: Callable[[GPUSpec], bool] = several_kernels
    channel_blocks: bool = False
    exchanges: Exchanges | None = None
    sends_tokens: bool = False

    def as_of(self, version: str) -> Library:
        """The library without what came after ``version``. RequestError for a version that is none."""
        reduces, experts = self.all_reduces, self.experts
        reduces = reduces[: len(reduces) - age(reduces, version)]
        return replace(self, all_reduces=reduces, experts=experts[: len(experts) - age(experts, version)])

    def all_reduce(self) -> AllReduce | None:
        """Its own all_reduce, the newest listed; None where it calls NCCL's alone."""
        return self.all_reduces[-1] if self.all_reduces else None

    def moe_kernel(self, variant: str, gpu: GPUSpec, gathered: bool = False) -> str:
        """The kind of kernel that experts of a variant run with on ``gpu``, as its releases of 2026 choose.

        ``gathered``: of tokens of data-parallel attention.

        The measured tables name the kernel of every row and agree.
        """
        if gpu.vendor != "nvidia":
            return MARLIN if self.unpacks_experts and variant in MARLIN_SCHEMES else TRITON
        apart = gathered and self.gathered_experts is not None
        if runs_generated(gpu) and variant in ((self.gathered_experts or ()) if apart else self.generated_experts):
            return GENERATED
        if self.unpacks_experts and variant in MARLIN_SCHEMES:
            return MARLIN
        return CUTLASS if variant in _CUTLASS_ALONE else self.expert_kernel(variant, gpu)

    def moe_tiling(self, kernel: str, variant: str, version: str = "") -> str:
        """How a kernel of experts shares out its products, one of `TILINGS`, as of ``version`` ("": the newest listed).

        Two default tiles of Triton's: up to as many tokens as experts on this GPU, 16 rows x 32 columns, K in steps of
        64. From there on, whatever an expert gets: 64 x 64 in steps of 32, which reads weights 64 bytes at a time, at
        about 0.75 of the rate on every board. Tuned tiles, which libraries ship for some boards and widths, are not
        told apart. Marlin cuts all tiles and their K loops into stripes of equal length, one for each SM.
        """
        if kernel == MARLIN:
            return STRIPES
        two = kernel == TRITON and variant in as_of(self.experts, version).two_tiles
        return TWO_TILES if two else FASTEST
