"""Passes of a Hugging Face model on the meta device: its inputs, its attention, and the cache of a decode step."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from predictor.errors import UnsupportedError
from predictor.files.records import replace
from predictor.graph.recording import Recording
from predictor.models.step import Step
from predictor.models.traced import torch_trace
from predictor.models.traced.alike import once_for_all_alike
from predictor.models.traced.recorder import Recorder
from predictor.models.traced.substitutes import Substitutes, as_on_a_gpu, attention

#: Name under which transformers knows the attention that is noted as one kernel.
ATTENTION = "tilecast"
#: Sizes of inputs that a config does not tell: of an image, of the frames and bins of a spectrogram (Whisper's 30 s),
#: and samples of a second of speech. By definition of the models' processors.
_IMAGE, _FRAMES, _BINS, _SAMPLES = 224, 3000, 80, 16000
#: Names of a cache, in a model's arguments and in its output: transformers from 5.24, before it, and before it in
#: models with a state in place of keys and values.
_CACHE_NAMES = ("cache", "past_key_values", "cache_params")


def register_attention() -> None:
    """Makes `ATTENTION` known to transformers: no mask is built for it, and it is one kernel."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(ATTENTION, _attend)
    AttentionMaskInterface.register(ATTENTION, _no_mask)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None


def _attend(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, dropout: float = 0.0, **words: Any
) -> Any:
    """Fused attention of q (b, a, s, d): one call, its result (b, s, a, e)."""
    causal = words.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    window = words.get("sliding_window") or 0
    recorder = Recorder.active[-1] if Recorder.active else None
    if recorder is None or query.dim() != 4:
        raise NotImplementedError("attention outside a trace")
    causal = bool(causal) and query.shape[2] > 1
    out = attention(recorder, query, key, value, causal=causal, window=int(window), dropout=dropout > 0.0)
    return out.transpose(1, 2), None


def record(
    model: Any, name: str, step: Step, dtype: str, accumulate: bool, cache: tuple[float, float] | None = None
) -> Recording:
    """One pass of ``model`` as a step says it. ``cache``: what `_cache_sizes` says of it, where that is known."""
    kwargs = inputs_of(model, step.batch, step.seq_len, dtype)
    signature = inspect.signature(model.forward).parameters
    train = step.mode == "train"
    cached = step.mode in ("prefill", "decode")
    two_stacks = getattr(model.config, "is_encoder_decoder", False)
    handed_on = any(name in signature for name in _CACHE_NAMES) or (two_stacks and not cached)
    if "use_cache" in signature or ("kwargs" in signature and handed_on):
        kwargs["use_cache"] = cached
    if train and "labels" in signature:
        kwargs |= _labels(model, step, kwargs)
    if cached and "logits_to_keep" in signature:
        kwargs["logits_to_keep"] = 1
    if cached and "use_cache" not in kwargs:
        raise UnsupportedError(f"{name} has no {step.mode}: expected forward or train")
    per_token, fixed = 0.0, 0.0
    if cached:
        fixed, per_token = _cache_sizes(model, dtype) if cache is None else cache
    if step.mode == "decode":
        kwargs |= _cache(model, step.batch, max(1, step.context_len), dtype)
        kwargs = _one_token(model, kwargs, step)
    recording = torch_trace.record(
        model, (), kwargs, name=name, mode="train" if train else "forward", dtype=step.act_dtype,
        fused_attention=step.attention == "flash", accumulate=accumulate, batch=step.batch, tokens=step.seq_len,
    )  # fmt: skip
    return replace(recording, mode=step.mode, cache_per_token=per_token, cache_fixed=fixed)


def inputs_of(model: Any, batch: int, tokens: int, dtype: str) -> dict[str, Any]:
    """The arguments that a model's main input wants: token ids, an image, a spectrogram or samples of speech."""
    config, main = model.config, getattr(model, "main_input_name", "input_ids")
    floats = {"dtype": torch_trace.TORCH[dtype], "device": "meta"}
    signature = inspect.signature(model.forward).parameters
    ids = torch.empty((batch, tokens), dtype=torch.int64, device="meta")
    if main == "input_ids":
        inputs = {"input_ids": ids}
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in signature:
            inputs["decoder_input_ids"] = ids
        if hasattr(model, "text_model") and hasattr(model, "vision_model"):  # texts beside images, as in CLIP
            inputs["pixel_values"] = torch.empty(_image_shape(model, batch), **floats)
        return inputs
    if main == "pixel_values":
        inputs = {"pixel_values": torch.empty(_image_shape(model, batch), **floats)}
        if "input_ids" in signature and signature["input_ids"].default is not inspect.Parameter.empty:
            inputs["input_ids"] = ids
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in signature:
            inputs["decoder_input_ids"] = ids
        return inputs
    if main == "input_features":
        bins = getattr(config, "num_mel_bins", None) or getattr(config, "feature_size", None) or _BINS
        frames = 2 * getattr(config, "max_source_positions", _FRAMES // 2)
        shape = (batch, bins, frames) if "whisper" in config.model_type else (batch, tokens, bins)
        inputs = {"input_features": torch.empty(shape, **floats)}
        if "decoder_input_ids" in signature:
            inputs["decoder_input_ids"] = ids
        return inputs
    if main == "input_values":
        rates = getattr(config, "sampling_rate", _SAMPLES)
        return {"input_values": torch.empty((batch, rates), **floats)}
    raise UnsupportedError(f"{config.model_type}: inputs called {main!r} are not known; expected token ids or images")


def reads_length(cls: Any, config: Any) -> bool:
    """Whether `inputs_of` a class depends on the tokens of a sequence: images, Whisper's spectrogram and samples of
    speech do not, unless token ids come with them."""
    signature = inspect.signature(cls.forward).parameters
    main = cls.main_input_name
    if main == "pixel_values" and "input_ids" in signature:
        return signature["input_ids"].default is not inspect.Parameter.empty or config.is_encoder_decoder
    if main in ("pixel_values", "input_values"):
        return main == "pixel_values" and config.is_encoder_decoder and "decoder_input_ids" in signature
    return main != "input_features" or "whisper" not in config.model_type or "decoder_input_ids" in signature


def _image_shape(model: Any, batch: int) -> tuple[int, ...]:
    """(batch, channels, height, width) as the config of the vision model says; of a video with its frames."""
    config = model.config
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or getattr(config, "image_size", None) or _IMAGE
    sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if isinstance(size, dict):
        sides = (size.get("height", _IMAGE), size.get("width", _IMAGE))
    shape = (batch, getattr(vision, "num_channels", 3), *sides)
    if "num_frames" in vars(config) and "video" in type(model).__name__.lower():
        shape = (batch, config.num_frames, *shape[1:])
    return shape


def _labels(model: Any, step: Step, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Targets of the loss that the class computes: tokens, or classes of images."""
    name, config = type(model).__name__, model.config
    per_item = "Classification" in name and "Token" not in name
    shape = (step.batch,) if per_item else (step.batch, step.seq_len)
    if not any(word in name for word in ("LM", "Conditional", "Classification", "CTC", "Seq2Seq", "HeadModel")):
        return {}
    if per_item and getattr(config, "problem_type", None) is None:
        config.problem_type = "single_label_classification"
    labels = torch.empty(shape, dtype=torch.int64, device="meta")
    kept = {k: v for k, v in kwargs.items() if k != "decoder_input_ids"} if "CTC" not in name else {}
    return {"labels": labels} if kept or not kwargs else {}


def _quiet(model: Any, kwargs: dict[str, Any]) -> Any:
    """A pass that is not recorded."""
    recorder = Recorder(model)
    model.eval()
    with as_on_a_gpu(), torch.no_grad(), recorder, recorder.quiet(), Substitutes(recorder, True), once_for_all_alike():
        return model(**kwargs)


def _cache(model: Any, batch: int, tokens: int, dtype: str) -> dict[str, Any]:
    """What a prefill of so many tokens leaves for the next step, by the name of the argument that takes it."""
    kwargs = inputs_of(model, batch, tokens, dtype) | {"use_cache": True}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        kwargs["logits_to_keep"] = 1
    out = _quiet(model, kwargs)
    name = next((name for name in _CACHE_NAMES if getattr(out, name, None) is not None), None)
    if name is None:
        raise UnsupportedError(f"{type(model).__name__} leaves no cache; expected --mode forward or train")
    signature = inspect.signature(model.forward).parameters
    return {next((taken for taken in _CACHE_NAMES if taken in signature), name): getattr(out, name)}


def _cache_sizes(model: Any, dtype: str) -> tuple[float, float]:
    """Bytes of a sequence's cache that do not grow, and those of a token, between two lengths."""
    short, long = (float(sum(_bytes(_cache(model, 1, tokens, dtype), set()))) for tokens in (64, 128))
    each = max(0.0, (long - short) / 64.0)
    return max(0.0, short - 64.0 * each), each


def _bytes(value: Any, seen: set[int]) -> Iterator[float]:
    """Bytes of all tensors that an object holds."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value.numel() * value.element_size()
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _bytes(each, seen)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _bytes(each, seen)
    elif type(value).__module__.startswith("transformers") and hasattr(value, "__dict__"):
        yield from _bytes(vars(value), seen)


def _one_token(model: Any, kwargs: dict[str, Any], step: Step) -> dict[str, Any]:
    """The arguments of a decode step: one token a sequence after those in the cache; an encoder has run already."""
    signature = inspect.signature(model.forward).parameters
    ids = torch.empty((step.batch, 1), dtype=torch.int64, device="meta")
    if "decoder_input_ids" in signature and "encoder_outputs" in signature:
        from transformers.modeling_outputs import BaseModelOutput  # loads with the model

        text = model.config.get_text_config(decoder=True)  # of a model of images with two stacks (Florence 2)
        width = getattr(text, "d_model", None) or text.hidden_size
        floats = next(p.dtype for p in model.parameters())
        encoded = torch.empty((step.batch, max(1, step.context_len), width), dtype=floats, device="meta")
        kwargs = {k: v for k, v in kwargs.items() if k not in ("input_ids", "input_features", "pixel_values")}
        return kwargs | {"decoder_input_ids": ids, "encoder_outputs": BaseModelOutput(last_hidden_state=encoded)}
    return kwargs | {"input_ids": ids}
