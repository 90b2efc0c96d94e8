"""The number formats of a run: as asked for, else as the checkpoint says, else the GPU's default."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from predictor.engines import Engine, engine, names
from predictor.errors import RequestError, UnsupportedError, nearest
from predictor.formats.dtypes import ALIASES
from predictor.formats.parts import Checkpoint
from predictor.hardware.gpu import GPUSpec
from predictor.request.numbers import (
    BASES,
    RECIPES,
    TRAINABLE,
    Precision,
    checkpoint_precision,
    default_dtype,
    precision,
)
from predictor.request.options import CACHED, KV_DTYPES
from predictor.request.workload import ASKED, CHECKPOINT, DEFAULT


class Cache(NamedTuple):
    """What decides which KV cache a run can have."""

    mode: str
    engine: Engine
    attention: str
    gpu: GPUSpec


def numbers_of(
    checkpoint: Checkpoint | None, gpu: GPUSpec, dtype: str | None, mode: str, engine: Engine, adapters: bool = False
) -> tuple[Precision, str]:
    """The formats of weights and activations, and where they come from; ``dtype`` "checkpoint" insists on its own.
    ``adapters``: they alone are trained, on a base that may be in few bits.

    Raises UnsupportedError (or RequestError), one line, for what the GPU or the mode cannot do.
    """
    if dtype == CHECKPOINT and checkpoint is None:
        raise RequestError("--dtype checkpoint: this model's config names no quantization; leave --dtype out")
    training = mode == "train"
    if checkpoint is not None and not training and not checkpoint.trouble and checkpoint.words == (dtype,):
        dtype = CHECKPOINT  # the same word, with the layers that the checkpoint leaves as they are
    if dtype == CHECKPOINT or (dtype is None and checkpoint is not None and not training):
        assert checkpoint is not None
        if training:
            raise UnsupportedError(f"--dtype {dtype} is for inference: training runs in {', '.join(TRAINABLE)}")
        if checkpoint.trouble:
            raise UnsupportedError(f"{checkpoint.trouble}; --dtype overrides the checkpoint")
        return checkpoint_precision(checkpoint, gpu, unpacks=engine.unpacks), CHECKPOINT
    numbers = precision(default_dtype(gpu) if dtype is None else dtype, gpu)
    _check_base(numbers.name, training, adapters, engine)
    if checkpoint is not None and dtype is None:
        notes = (f"training runs in {numbers.name}, not in the checkpoint's {_named(checkpoint)}",)
        return replace(numbers, notes=notes), DEFAULT
    if checkpoint is not None:
        notes = (f"--dtype {dtype} overrides the checkpoint's {_named(checkpoint)}",)
        return replace(numbers, notes=notes), ASKED
    return numbers, DEFAULT if dtype is None else ASKED


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
        return (numbers if word == "auto" else replace(numbers, kv=word)), ASKED
    if checkpoint is None or not checkpoint.kv or cache.mode not in CACHED:
        return numbers, DEFAULT
    reason = _no_kernel(checkpoint.kv, numbers, cache)
    if reason:
        note = f"the checkpoint has its KV cache in {checkpoint.kv}, the run in {numbers.kv}: {reason}"
        return replace(numbers, notes=(*numbers.notes, note)), DEFAULT
    return replace(numbers, kv=checkpoint.kv), CHECKPOINT


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


def _no_kernel(word: str, numbers: Precision, cache: Cache) -> str:
    """Why no attention kernel is known that reads a cache in ``word``, "" where one is."""
    if word == numbers.activation:
        return ""
    if word != "fp8":
        return f"activations are {numbers.activation}; expected auto, {numbers.activation} or fp8"
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
