"""The number formats of a run: as asked for, else as the checkpoint says, else the GPU's default; and what each word
means for each part of a model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from predictor.engines import Engine, engine, names
from predictor.errors import RequestError, UnsupportedError, nearest
from predictor.files.records import dataclass, replace
from predictor.formats.dtypes import ALIASES, bytes_of
from predictor.formats.parts import Checkpoint, Format, Formats, Named
from predictor.formats.quantization import INTEGERS
from predictor.hardware.gpu import GPUSpec
from predictor.models.base import CACHED

if TYPE_CHECKING:
    from predictor.engines.base import EightBit, FusedEncoders

#: The dtype that stands for what a checkpoint says of its weights.
CHECKPOINT = "checkpoint"
#: Where a number format of a run comes from: a person's word, the model's checkpoint, the GPU's default, or what an
#: engine has beside a person's word.
ASKED, DEFAULT, ENGINE = "asked", "default", "engine"
SOURCES = ASKED, CHECKPOINT, DEFAULT, ENGINE
#: The word that an engine has a meaning of its own for (`predictor.engines.base.EightBit`).
FP8 = "fp8"
#: What a KV cache may be asked to be: "auto" is the activations' dtype. Nothing is known of kernels for others.
KV_DTYPES = ("auto", "fp8", "int8", "bf16", "fp16", "fp32")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a word means for each part of a model.

    ``gemm``: dtype that the linear layers compute in; "" is the activations'. ``quant`` and ``experts``: quantization
    schemes of the linear layers and of the experts (`predictor.formats.quantization`). ``activation``: dtype of the
    activations; "" is bf16, or fp16 on a GPU without it. ``also``: a further dtype that the GPU has to have a peak for.
    """

    gemm: str
    activation: str = ""
    quant: str = ""
    experts: str = ""
    also: str = ""


#: Units that scale blocks of 32 elements themselves are those that take 4-bit floats, too (Blackwell, CDNA 4).
_MICROSCALING = "fp4"

_NAMED: Mapping[str, Meaning] = {
    "fp32": Meaning("fp32", "fp32"),
    "tf32": Meaning("tf32", "fp32"),
    "fp16": Meaning("fp16", "fp16"),
    "bf16": Meaning("bf16", "bf16"),
    # One scale a tensor; experts in blocks, as the published fp8 checkpoints of DeepSeek and Qwen3 have them.
    "fp8": Meaning("fp8", "bf16", "", "fp8_block"),
    "fp8_static": Meaning("fp8", "bf16", "fp8_static", "fp8_block"),
    # What engines make of 16-bit weights as they load them: one scale a tensor or column, one a token.
    "fp8_dynamic": Meaning("fp8", "bf16"),
    "fp8_block": Meaning("fp8", "bf16", "fp8_block", "fp8_block"),
    "fp8_current": Meaning("fp8", "bf16", "fp8_current", "fp8_block"),
    "fp8_row": Meaning("fp8", "bf16", "fp8_row", "fp8_block"),
    "int8": Meaning("int8", "", "sq", "sq"),
    "int8_wo": Meaning("", "", "int8_wo", "int8_wo"),
    "int4_wo": Meaning("", "", "int4_wo", "int4_wo"),
    "int4_wo_g64": Meaning("", "", "int4_wo_g64", "int4_wo_g64"),
    "int4_wo_g32": Meaning("", "", "int4_wo_g32", "int4_wo_g32"),
    "int3_wo": Meaning("", "", "int3_wo", "int3_wo"),
    "int2_wo": Meaning("", "", "int2_wo", "int2_wo"),
    "fp8_wo": Meaning("", "", "fp8_wo", "fp8_wo"),
    "nvfp4_wo": Meaning("", "", "nvfp4_wo", "nvfp4_wo"),
    "nf4": Meaning("", "", "nf4", "nf4"),
    "mxfp4": Meaning("", "", "w4a16_mxfp4", "w4a16_mxfp4"),
    "mxfp8": Meaning("mxfp8", "bf16", also=_MICROSCALING),
    "mxfp4_mxfp8": Meaning("mxfp8", "bf16", "w4a8_mxfp4_mxfp8", "w4a8_mxfp4_mxfp8", _MICROSCALING),
    "nvfp4": Meaning("nvfp4", "bf16", also=_MICROSCALING),
}
SUPPORTED = tuple(_NAMED)
#: And those that checkpoints alone have: integers in groups of every size, and pairs of formats.
_MEANINGS: Mapping[str, Meaning] = {
    **{name: Meaning("", "", name, name) for name in INTEGERS},
    "mxfp4_fp8": Meaning("fp8", "bf16", "w4a8_mxfp4_fp8", "w4a8_mxfp4_fp8", _MICROSCALING),
    # computed as nvfp4: both are 4-bit floats in blocks, on the same units
    "mxfp4_mxfp4": Meaning("nvfp4", "bf16", "w4a4_mxfp4", "w4a4_mxfp4", _MICROSCALING),
    "int4_fp8": Meaning("fp8", "bf16", "w4a8_int4_fp8", "w4a8_int4_fp8"),
    "nf4_plain": Meaning("", "", "nf4_plain", "nf4_plain"),
    **_NAMED,
}
#: Those that training can run in; the others quantize for inference.
TRAINABLE = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp8_current", "fp8_row", "fp8_block", "mxfp8", "nvfp4")
#: Those that training alone has: serving looks for the scale of every token.
RECIPES = ("fp8_current", "fp8_row")
#: Those of a frozen base under adapters, whose weights are unpacked ahead of every product (QLoRA).
BASES = ("nf4", "int4_wo", "int4_wo_g64", "int4_wo_g32", "nvfp4_wo", "int8_wo", "fp8_wo")
#: dtypes that have a peak on some GPU and no estimator or graph yet
LATER = ("int4", "fp4", "fp64")
#: What tools call formats that have several here, or none -> the nearest words, the likeliest first.
_NEAREST: Mapping[str, tuple[str, ...]] = {
    "int4": ("int4_wo",), "w4a16": ("int4_wo",), "awq": ("int4_wo",), "gptq": ("int4_wo",), "gptq_marlin": ("int4_wo",),
    "awq_marlin": ("int4_wo",), "fp4": ("nvfp4", "mxfp4"), "w8a16": ("int8_wo", "fp8_wo"), "w8a8": ("int8", "fp8"),
    "fp64": ("fp32",), "bitsandbytes": ("nf4",), "bnb": ("nf4",), "smoothquant": ("int8",),
}  # fmt: skip

#: The words of fp8 in checkpoints, whatever its scales.
_FP8_WORDS = ("fp8", "fp8_static", "fp8_dynamic", "fp8_block")
#: The words that run the same weights on a GPU without the units of a word: unpacked to 16 bit.
_WEIGHT_ONLY: Mapping[str, str] = {
    "fp8": "fp8_wo", "fp8_static": "fp8_wo", "fp8_dynamic": "fp8_wo", "fp8_block": "fp8_wo",
    "nvfp4": "nvfp4_wo", "mxfp4_mxfp8": "mxfp4", "mxfp4_fp8": "mxfp4", "mxfp4_mxfp4": "mxfp4", "int4_fp8": "int4_wo",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Precision:
    """Dtypes of a run. ``name``: the word for it, ``gemm``: what most of the linear layers compute in, whose peak MFU
    is of, ``formats``: those of every part of the model. ``recipe``: what the word asked for means under the engine, in
    words, "" where it is ``name`` alone; ``kv_named``: the KV cache's dtype that goes with it. ``notes`` are lines for
    the answer."""

    name: str
    gemm: str
    activation: str
    kv: str
    formats: Formats
    notes: tuple[str, ...] = ()
    recipe: str = ""
    kv_named: str = ""

    @property
    def mixed(self) -> bool:
        """Whether training keeps 32-bit weights beside those that it computes with."""
        return self.activation in ("bf16", "fp16")


def dtype_word(text: str | None) -> str | None:
    """The word of `SUPPORTED` that ``text`` spells another way, else ``text``: "BF16", "torch.float16", "fp8-e4m3".

    >>> dtype_word("BF16"), dtype_word("torch.float16"), dtype_word("int4")
    ('bf16', 'fp16', 'int4')
    """
    if not isinstance(text, str) or text in _MEANINGS:
        return text
    word = text.strip().lower().removeprefix("torch.").replace("-", "_").replace(" ", "_")
    word = ALIASES.get(word, word)
    return word if word in _MEANINGS else text


def precision(dtype: str, gpu: GPUSpec) -> Precision:
    """The precision that ``dtype`` names, checked against what ``gpu`` can do; UnsupportedError otherwise."""
    means = _meaning(dtype, gpu)
    activation = means.activation or _sixteen_bit(gpu)
    linear, experts = _formats(means, activation)
    high = linear.dtype if bytes_of(linear.dtype) >= 2 else activation
    of_parts = () if experts == linear else (("experts", experts),)
    return Precision(dtype, linear.dtype, activation, activation, Formats(Format(high), linear, of_parts))


def _meaning(dtype: str, gpu: GPUSpec) -> Meaning:
    """What a word means; UnsupportedError for one that is none, or that ``gpu`` has no units for."""
    if not isinstance(dtype, str) or dtype not in _MEANINGS:
        word = str(dtype).strip().lower().replace("-", "_")
        close = _NEAREST.get(word) or nearest(ALIASES.get(word, str(dtype)), SUPPORTED, 1)
        tail = f"; nearest: {', '.join(close)}" if close else ""
        raise UnsupportedError(f"unknown dtype {dtype!r}: expected one of {', '.join(SUPPORTED)}{tail}")
    lacking = _lacking(dtype, gpu)
    if lacking:
        has = [name for name in SUPPORTED if not _lacking(name, gpu)]
        raise UnsupportedError(f"dtype {dtype!r}: {gpu.id} has no {lacking} peak; it has {', '.join(has)}")
    return _MEANINGS[dtype]


def _formats(means: Meaning, activation: str) -> tuple[Format, Format]:
    """The formats of the linear layers and of the experts."""
    gemm = means.gemm or activation
    return Format(gemm, means.quant), Format(gemm, means.experts)


def checkpoint_precision(
    checkpoint: Checkpoint, gpu: GPUSpec, unpacks: bool = True, runs_as: Mapping[str, str] = MappingProxyType({})
) -> Precision:
    """The precision that a checkpoint asks for on ``gpu``; ``runs_as``: words for the same weights that replace its.

    Where the GPU lacks the units of its weights they are unpacked to 16 bit on the way to the tensor cores, as Marlin
    does it, which a note says; UnsupportedError where the engine does not (``unpacks``) or no kernel is known.
    """
    taken: dict[str, str] = {}
    notes: list[str] = []
    for word in checkpoint.words:
        lacking = _lacking(word, gpu)
        recast = runs_as.get(word, word)
        if recast != word and not _lacking(recast, gpu):
            taken[word] = recast
            notes.append(f"weights in the checkpoint's {word} run with activations in {_MEANINGS[recast].gemm}")
            continue
        taken[word] = _WEIGHT_ONLY.get(word, word) if lacking and unpacks and _runs_marlin(gpu) else word
        if lacking and (taken[word] == word or _lacking(taken[word], gpu)):
            has = [name for name in SUPPORTED if not _lacking(name, gpu)]
            raise UnsupportedError(
                f"the checkpoint's {word} ({checkpoint.method}): {gpu.id} has no {lacking} peak; it has"
                f" {', '.join(has)}; --dtype overrides the checkpoint"
            )
        if taken[word] != word:
            notes.append(
                f"{gpu.id} does not compute in the checkpoint's {word}: weights stay in {word}, products run in"
                f" {_sixteen_bit(gpu)}"
            )
    activation = _sixteen_bit(gpu)

    def named(words: tuple[tuple[str, str], ...]) -> tuple[tuple[str, Format], ...]:
        return tuple((part, as_format(word)) for part, word in words)

    def as_format(word: str) -> Format:
        return _formats(_MEANINGS[taken[word]], activation)[0] if word else Format(activation)

    formats = Formats(
        Format(activation), as_format(checkpoint.scheme), named(checkpoint.own),
        tuple((layer, named(words)) for layer, words in checkpoint.layers),
    )  # fmt: skip
    return Precision("+".join(dict.fromkeys(taken.values())), formats.linear.dtype, activation, activation, formats,
                     (*notes, *checkpoint.notes))  # fmt: skip


def experts_as_they_are(numbers: Precision, name: str) -> Precision:
    """``numbers`` with the experts in the activations' dtype: of a class that runs all of them as one batched product
    of a parameter, which is no linear layer that a format could be set for. A note says so where that changes it."""
    high = Format(numbers.activation)

    def kept(named: Named) -> Named:
        return (*(pair for pair in named if pair[0] != "experts"), ("experts", high))

    formats = numbers.formats
    wide = replace(
        formats, own=kept(formats.own),
        layers=tuple((layer, kept(named) if "experts" in dict(named) else named) for layer, named in formats.layers),
    )  # fmt: skip
    if formats.of("experts") == high and not formats.layers:
        return numbers
    note = f"the experts of {name} stay in {numbers.activation}: its class runs all as one product, no linear layer"
    return replace(numbers, formats=wide, notes=(*numbers.notes, note))


def _runs_marlin(gpu: GPUSpec) -> bool:
    """Marlin is written for NVIDIA's GPUs from compute capability 8.0 on (github.com/IST-DASLab/marlin, README)."""
    return gpu.vendor == "nvidia" and float(gpu.compute_capability or 0.0) >= 8.0


def computes_in(name: str) -> str:
    """The dtype whose peak a run's MFU is of, from the name of its `Precision`; "16-bit" where weights are unpacked.

    >>> computes_in("fp8_block"), computes_in("int4_wo"), computes_in("nvfp4+fp8")
    ('fp8', '16-bit', 'nvfp4')
    """
    means = _MEANINGS.get(name.split("+")[0])
    return name if means is None else means.gemm or "16-bit"


def _sixteen_bit(gpu: GPUSpec) -> str:
    return "bf16" if gpu.supports("bf16") else "fp16"


def _lacking(dtype: str, gpu: GPUSpec) -> str:
    """The dtype whose peak ``gpu`` lacks for the word ``dtype``, "" where it has all."""
    means = _MEANINGS[dtype]
    needed = (means.gemm or _sixteen_bit(gpu), means.also or "fp32")
    return next((name for name in needed if not gpu.supports(name)), "")


def default_dtype(gpu: GPUSpec) -> str:
    """bf16 where the GPU has it, else fp16 where its matrix units have it (Volta on), else fp32."""
    if gpu.supports("bf16"):
        return "bf16"
    return "fp16" if ("matrix", "fp16") in gpu.peaks else "fp32"


def default_attention(
    dtype: str, gpu: GPUSpec, fused: FusedEncoders | None = None, head_dim: int = 0, tokens: int = 0
) -> str:
    """Flash in 16 bit and below where the GPU has bf16 (Ampere on), else math; by an engine's ``own`` rule for heads of
    width ``head_dim`` and sequences of so many tokens, where it has one."""
    if fused is not None:
        return "flash" if fused.has(dtype, gpu.compute_capability, head_dim, tokens) else "math"
    return "flash" if dtype not in ("fp32", "tf32") and gpu.supports("bf16") else "math"


class Cache(NamedTuple):
    """What decides which KV cache a run can have."""

    mode: str
    engine: Engine
    attention: str
    gpu: GPUSpec
    latent: bool = False


def numbers_of(
    checkpoint: Checkpoint | None,
    gpu: GPUSpec,
    dtype: str | None,
    mode: str,
    engine: Engine,
    adapters: bool = False,
    published: str = "",
) -> tuple[Precision, str]:
    """The formats of weights and activations, and where they come from; ``dtype`` "checkpoint" insists on its own.
    ``adapters``: they alone are trained, on a base that may be in few bits. ``published``: `Model.published_fp8`, ""
    where the engine's maker has another (`EightBit.before`).

    Raises UnsupportedError (or RequestError), one line, for what the GPU or the mode cannot do.
    """
    if dtype == CHECKPOINT and checkpoint is None:
        raise RequestError("--dtype checkpoint: this model's config names no quantization; leave --dtype out")
    training = mode == "train"
    if checkpoint is not None and not training and not checkpoint.trouble and _is_of(dtype, checkpoint, engine):
        dtype = CHECKPOINT  # the same word, with the layers that the checkpoint leaves as they are
    if dtype == CHECKPOINT or (dtype is None and checkpoint is not None and not training):
        assert checkpoint is not None
        if training:
            raise UnsupportedError(f"--dtype {dtype} is for inference: training runs in {', '.join(TRAINABLE)}")
        if checkpoint.trouble:
            raise UnsupportedError(f"{checkpoint.trouble}; --dtype overrides the checkpoint")
        runs_as = {word: engine.runs_as(word, gpu) for word in checkpoint.words}
        return checkpoint_precision(checkpoint, gpu, engine.unpacks, runs_as), CHECKPOINT
    if checkpoint is not None and dtype is not None and not training and _same_weights(checkpoint, dtype):
        _meaning(dtype, gpu)  # which refuses it without the units
        return checkpoint_precision(checkpoint, gpu, engine.unpacks, dict.fromkeys(checkpoint.words, dtype)), ASKED
    if dtype == FP8 and engine.fp8 is not None and not training:
        numbers = _eight_bit(engine.fp8, engine, gpu, published)
    else:
        numbers = precision(default_dtype(gpu) if dtype is None else dtype, gpu)
    _check_base(numbers.name, training, adapters, engine)
    if checkpoint is not None and dtype is None:
        notes = (f"training runs in {numbers.name}, not in the checkpoint's {_named(checkpoint)}",)
        return replace(numbers, notes=notes), DEFAULT
    if checkpoint is not None:
        notes = (f"--dtype {dtype} overrides the checkpoint's {_named(checkpoint)}",)
        return replace(numbers, notes=notes), ASKED
    return numbers, DEFAULT if dtype is None else ASKED


def _is_of(word: str | None, checkpoint: Checkpoint, engine: Engine) -> bool:
    """Whether a word is a checkpoint's; under an engine with an fp8 of its own that word is fp8 of every kind."""
    words = checkpoint.words
    if word == FP8 and engine.fp8 is not None:
        return bool(words) and all(each in _FP8_WORDS for each in words)
    return words == (word,)


def _eight_bit(rule: EightBit, engine: Engine, gpu: GPUSpec, published: str) -> Precision:
    """What ``engine`` runs on ``gpu`` where fp8 is asked for: the fp8 checkpoint that the model's publisher has, else
    what is the engine's; without units for it, weights that Marlin unpacks."""
    word = published or rule.linear
    of = f"fp8 in {engine.name}"
    if _lacking(word, gpu) and engine.unpacks and _runs_marlin(gpu):
        return replace(
            precision(_WEIGHT_ONLY[word], gpu), recipe=f"{of} on {gpu.id}: weights alone, unpacked to 16 bit"
        )
    numbers = precision(word, gpu)
    if published:
        return replace(numbers, recipe=f"{of}: the publisher's checkpoint")
    experts = _formats(_MEANINGS[rule.experts], numbers.activation)[0]
    formats = Formats(numbers.formats.high, numbers.formats.linear, (("experts", experts),))
    return replace(numbers, formats=formats, recipe=f"{of}: {rule.said}", kv_named=rule.kv)


def _same_weights(checkpoint: Checkpoint, dtype: str) -> bool:
    """Whether ``dtype`` is the checkpoint's one word with narrower activations, on units that scale blocks: its layers
    stay what they are."""
    means = _MEANINGS.get(dtype)
    narrow = means is not None and means.also == _MICROSCALING and not checkpoint.trouble
    return narrow and checkpoint.words == (_WEIGHT_ONLY.get(dtype),)


def _check_base(word: str, training: bool, adapters: bool, runs: Engine) -> None:
    """UnsupportedError, one line, for a word that does not train, or trains under adapters alone."""
    if training and word not in TRAINABLE and not (adapters and word in BASES):
        under = f", and under --lora in {', '.join(BASES)}" if word in BASES or adapters else ""
        raise UnsupportedError(f"--dtype {word} is for inference: training runs in {', '.join(TRAINABLE)}{under}")
    if training and word in BASES and runs.trains:
        raise UnsupportedError(f"--dtype {word}: --execution {runs.name} has no base in it; expected eager or compile")
    if not training and word in RECIPES:
        raise UnsupportedError(f"--dtype {word} is a training recipe: expected --mode train, or fp8")
    scales = runs.training.scales if training and runs.fuses and runs.training is not None else ()
    if training and word.startswith("fp8_") and word in TRAINABLE and word not in scales:
        has = ", ".join(("fp8", *scales))
        raise UnsupportedError(f"--dtype {word}: --execution {runs.name} has no such recipe; expected {has}")
    if not training and word == "nf4":
        raise UnsupportedError("--dtype nf4 is for a frozen base: expected --mode train with --lora")


def _named(checkpoint: Checkpoint) -> str:
    return f"{'+'.join(checkpoint.words) or 'quantization'} ({checkpoint.method})"


def cached(
    numbers: Precision, checkpoint: Checkpoint | None, kv_dtype: str | None, cache: Cache
) -> tuple[Precision, str]:
    """The same with the KV cache's dtype, and where that comes from.

    What the checkpoint says and the run cannot do is left out with a note; what a person asks for is an error, one
    line: RequestError for a word that is none, UnsupportedError for one without a kernel.
    """
    if kv_dtype is not None:
        word = kv_word(kv_dtype)
        if cache.mode not in CACHED:
            raise RequestError(f"--kv-dtype {kv_dtype}: only --mode {', '.join(CACHED)} keep a KV cache")
        reason = "" if word == "auto" else _no_kernel(word, numbers, cache)
        if reason:
            raise UnsupportedError(f"--kv-dtype {kv_dtype}: {reason}")
        return (numbers if word == "auto" else _in_cache(numbers, word)), ASKED
    named = checkpoint.kv if checkpoint is not None and checkpoint.kv else numbers.kv_named
    if not named or cache.mode not in CACHED:
        return numbers, DEFAULT
    of_engine = checkpoint is None or not checkpoint.kv
    reason = _not_followed(cache.engine) or _no_kernel(named, numbers, cache)
    if reason:
        has = f"{cache.engine.name} has its KV cache with fp8" if of_engine else "the checkpoint has its KV cache"
        note = f"{has} in {named}, the run in {numbers.kv}: {reason}"
        return replace(numbers, notes=(*numbers.notes, note)), DEFAULT
    return _in_cache(numbers, named), ENGINE if of_engine else CHECKPOINT


def _in_cache(numbers: Precision, word: str) -> Precision:
    """``numbers`` with another KV cache. No table has attention over integers: that over as many bits answers."""
    note = ("attention over the int8 cache is not measured: kernels over an fp8 one answer",) if word == "int8" else ()
    return replace(numbers, kv=word, notes=(*numbers.notes, *note))


def kv_word(value: str) -> str:
    """The KV cache's dtype that a person names, one of `KV_DTYPES` (aliases too); RequestError, one line, otherwise."""
    if isinstance(value, str):
        word = value.strip().lower()
        word = ALIASES.get(word.removeprefix("torch."), word)
        if word in KV_DTYPES:
            return word
    close = nearest(str(value), KV_DTYPES, 1)
    tail = f"; nearest: {close[0]}" if close else ""
    raise RequestError(f"--kv-dtype {value!r}: expected one of {', '.join(KV_DTYPES)}{tail}")


def _not_followed(engine: Engine) -> str:
    """Why a release has another cache than its checkpoint names, "" where it follows that."""
    from predictor.engines.defaults import follows_checkpoint  # few checkpoints name a cache

    release = engine.vintage()
    if release is None or follows_checkpoint(engine):
        return ""
    return f"{engine.name} {release.version} takes the format of the activations; --kv-dtype asks for another one"


def _no_kernel(word: str, numbers: Precision, cache: Cache) -> str:
    """Why no attention kernel is known that reads a cache in ``word``, "" where one is."""
    if word == numbers.activation:
        return ""
    if word not in ("fp8", "int8"):
        return f"activations are {numbers.activation}; expected auto, {numbers.activation}, fp8 or int8"
    if word == "int8":
        return _no_integers(numbers, cache)
    if not cache.gpu.supports("fp8"):
        return f"{cache.gpu.id} has no fp8 units; expected auto"
    if not cache.engine.fp8_cache:
        able = [name for name in names() if engine(name).fp8_cache]
        return f"--execution {cache.engine.name} has no attention kernel for it; expected one of {', '.join(able)}"
    if cache.attention == "math":
        return "--attention math has no kernel for it; expected flash"
    if numbers.activation not in ("bf16", "fp16"):
        return f"no attention kernel is known for {numbers.activation} activations; expected auto"
    return ""


def _no_integers(numbers: Precision, cache: Cache) -> str:
    """Why no attention kernel is known that reads a cache in int8, "" where one is."""
    from predictor.engines.defaults import integer_cache  # few ask for it

    if not integer_cache(cache.engine):
        able = [name for name in names() if integer_cache(engine(name))]
        release = cache.engine.vintage()
        of = f"{cache.engine.name} {release.version}" if release is not None else cache.engine.name
        return f"--execution {of} has no attention kernel for it; expected one of {', '.join(able)}, newest release"
    if cache.latent:
        return "latent attention has no kernel for it; expected auto or fp8"
    if cache.attention == "math" or numbers.activation not in ("bf16", "fp16"):
        return "it needs fused attention in 16 bit; expected --attention flash, or auto"
    return ""
