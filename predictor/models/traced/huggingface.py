"""Model types of Hugging Face that no reader knows: the real class of transformers is traced, pass by pass.

A class is made on the meta device from its config. A decode step runs on the cache that a prefill made, which is not
recorded; what the cache holds is the state of the model. Recordings are kept in the user's cache folder by a hash of
the config, the pass and the versions, so that a second forecast needs neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self

from predictor.engines import EAGER
from predictor.errors import (
    RequestError,
    SpecError,
    UnknownModelTypeError,
    UnsupportedError,
    nearest,
    one_line,
    printable,
)
from predictor.files.records import replace
from predictor.formats.dtypes import bytes_of
from predictor.graph.recording import Recording
from predictor.graph.samples import TOKENS
from predictor.models.base import Model
from predictor.models.built.checkpoint import checkpoint_of_any
from predictor.models.built.config import ModelConfig
from predictor.models.built.load import config_file, config_from_dict, data_of, model_name
from predictor.models.built.stand_in import LANGUAGE_ALONE, TEXTS, stand_in, text_of
from predictor.models.built.type_reader import FAMILIES
from predictor.models.built.vision import tower_of
from predictor.models.forms import TRACED, no_inputs
from predictor.models.step import Step
from predictor.models.traced.model import Source, TracedModel
from predictor.models.traced.no_code import no_code
from predictor.models.traced.sources import FLOATS, kept_object, kept_or, need_torch

#: transformers calls attention in parts by the same word as PyTorch's execution, by its definition.
_UNFUSED = EAGER.name
#: Tokens a sequence at most, where a config says none: chosen by hand, not from data.
_POSITIONS = 2**20


def of_config(text: str, words: str | Sequence[str] | None) -> TracedModel:
    """The class of the config.json that "traced:NAME" names. Raises RequestError, or one of its kinds."""
    no_inputs(words)
    path, beside, stamp = config_file(text.removeprefix(TRACED))
    return _of_file(path, beside, stamp)


def of_unknown(text: str, words: str | Sequence[str] | None) -> Model:
    """The model of a config.json whose model_type neither Tilecast nor transformers knows: that of its language model,
    or of the class that it names, traced where transformers has it; else the nearest decoder that its keys describe."""
    no_inputs(words)
    path, beside, _ = config_file(text)
    data, name = data_of(path, beside), model_name(path)
    inner = text_of(data)
    kind = _traced_type(inner)
    if not kind:
        return stand_in(data, name, str(path))
    model = traced_config({**inner, "model_type": kind}, name, str(path))
    model.source.notes = (
        f"Nobody knows model_type '{printable(str(data['model_type']))[:80]}': {name} is forecast as {kind}, the model"
        " type within its config.",
    )
    return model


def _traced_type(data: Mapping[str, Any]) -> str:
    """The type of a config that transformers knows and no reader does, by its name or by that of its class; "" where
    there is none."""
    import transformers

    auto = transformers.models.auto
    kind = str(data.get("model_type"))
    if kind not in auto.configuration_auto.CONFIG_MAPPING_NAMES:
        of_class = {name: kind for kind, name in auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()}
        named = data.get("architectures")
        kind = of_class.get(str(named[0]), "") if isinstance(named, list) and named else ""
    return "" if kind in FAMILIES else kind


@lru_cache(maxsize=64)
def _of_file(path: Path, beside: Path | None, stamp: tuple[int, ...]) -> TracedModel:
    """The model of a file, which ``stamp`` tells from what stood there before."""
    return traced_config(data_of(path, beside), model_name(path), str(path))


def traced_config(data: Mapping[str, Any], name: str, where: str) -> TracedModel:
    """The model of a config.json, traced. RequestError where transformers has no such class."""
    if not isinstance(data.get("model_type"), str):
        raise SpecError(f"{where}: missing 'model_type'")
    text = data.get("text_config")
    inner = text if isinstance(text, Mapping) else {}
    limits = [data.get(k, inner.get(k)) for k in ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")]
    positions = next((n for n in limits if isinstance(n, int) and n > 0), _POSITIONS)
    built = _built(data, name, where)
    checkpoint = checkpoint_of_any(data, where) if built is None else built.checkpoint
    source = HuggingFace(data, name, where, built)
    model = TracedModel(name, source, str(data["model_type"]), positions, checkpoint, tower=tower_of(data))
    if built is not None:
        return replace(model, assumed=built.assumed, ignored=built.ignored)
    kept = kept_object(
        lambda: _keys(data, where), f"{data['model_type']}.keys", ["keys", source.data], ("transformers",)
    )
    return replace(
        model, assumed=tuple(kept["assumed"]), ignored=tuple(kept["ignored"]), reads_length=bool(kept["length"])
    )


def _keys(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What the class of a config knows of its keys, and assumes (`predictor.models.traced.config_class.read_of`), and
    whether its inputs have a length."""
    from predictor.models.traced.config_class import read_of

    classes = _classes(data, where)
    read = read_of(classes[str(data["model_type"])], data, where, classes)._asdict()
    return read | {"length": _reads_length(data, classes)}


def _reads_length(data: Mapping[str, Any], classes: Mapping[str, Any]) -> bool:
    """Whether the inputs of a config's class have as many tokens as a step says; True where the class cannot be told,
    which is refused when it is made."""
    import transformers

    from predictor.models.traced import huggingface_passes

    try:
        with no_code():
            config = classes[str(data["model_type"])].from_dict(dict(data))
            return huggingface_passes.reads_length(_class_of(transformers, data, config), config)
    except Exception:  # whatever a class of somebody else raises
        return True


def _built(data: Mapping[str, Any], name: str, where: str) -> ModelConfig | None:
    """The model as a reader builds it; None where none knows its type, or it cannot be built."""
    try:
        return config_from_dict(data, name, where)
    except RequestError:
        return None


#: What a model is for, in the order in which a class is looked for: by transformers' names of its mappings.
_KINDS = (
    "AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForImageTextToText", "AutoModelForMaskedLM",
    "AutoModelForImageClassification", "AutoModelForSpeechSeq2Seq", "AutoModelForCTC", "AutoModel",
)  # fmt: skip
#: Where a config of several models has that of its language model. Source: `sub_configs` of transformers' classes.
_TEXTS = (*TEXTS, "decoder")


class HuggingFace(Source):
    """Records passes of a config's class; see `predictor.models.traced.model.Source`."""

    sizes: tuple[int, int] | None = None
    dtype = ""
    modes: tuple[str, ...] = ("forward", "train", "prefill", "decode", "generate")
    notes: tuple[str, ...] = ()

    def __init__(self, data: Mapping[str, Any], name: str, where: str, built: ModelConfig | None = None) -> None:
        self.built = built
        self.data = {k: v for k, v in data.items() if k != "quantization_config"}
        self.name = name
        self.where = where
        self.plan: Mapping[str, str] | None = None
        self.text_alone = False  # whether the whole model could not be recorded
        self._models: dict[str, Any] = {}
        self._found: dict[str, Recording] = {}
        self._caches: dict[tuple[str, str, int], tuple[float, float]] = {}  # by attention, dtype and ranks

    def planned(self, plan: Mapping[str, str]) -> Self:
        source = copy(self)
        source.plan, source._found, source._caches = plan, {}, {}
        return source

    def record(self, step: Step, accumulate: bool | None, tp: int = 1) -> Recording:
        key: tuple[Any, ...] = (
            step.mode, step.batch, step.seq_len, step.context_len, step.act_dtype, step.attention, step.logits,
            accumulate,
        )  # fmt: skip
        if tp > 1:
            key = (*key, tp, self.plan)
        known = json.dumps(key)
        if known not in self._found:
            self._found[known] = kept_or(
                lambda: self._recorded(step, bool(accumulate), tp), str(self.data["model_type"]), [self.data, key],
                ("transformers",),
            )  # fmt: skip
            self.notes = tuple(dict.fromkeys((*self.notes, *self._found[known].notes)))
        return self._found[known]

    def parameters(self, tp: int = 1) -> int:
        recordings = [*self._found.values()]
        recording = next((r for r in recordings if r.tp == tp), recordings[0] if recordings else None)
        if recording is not None:
            return recording.parameters_of(tp)
        return int(sum(p.numel() for p in dict.fromkeys(self._model("sdpa").parameters())))

    @property
    def unit(self) -> str:
        whole = sorted(self._found.values(), key=lambda r: r.mode == "decode")  # a step leaves out what an encoder read
        return whole[0].unit if whole else TOKENS

    def cache_bytes(self, batch: int, tokens: int, kv_dtype: str, tp: int = 1) -> float:
        """Bytes of what a prefill of so many tokens leaves, from two lengths: what grows, and what does not."""
        recording = next((r for r in self._found.values() if r.mode in ("prefill", "decode") and r.tp == tp), None)
        if recording is not None and recording.cache_per_token >= 0.0:
            scale = bytes_of(kv_dtype) / bytes_of(recording.dtype)
            return batch * scale * (recording.cache_fixed + recording.cache_per_token * tokens)
        return 0.0

    @property
    def module(self) -> Any:
        """The module that was traced last, on the meta device."""
        return next(iter(self._models.values()), None) or self._model("sdpa")

    # -- recording -----------------------------------------------------------------------------------------------------

    def _recorded(self, step: Step, accumulate: bool, tp: int) -> Recording:
        """The pass of the whole model; where its class has none without images or sound, that of its language model."""
        if self.text_alone:
            return self._of_text(step, accumulate, tp)
        try:
            return self._of_class(step, accumulate, tp)
        except RequestError as error:
            if not any(isinstance(self.data.get(key), Mapping) for key in _TEXTS):
                raise
            self._forget(text_alone=True)
            with contextlib.suppress(RequestError):
                return self._of_text(step, accumulate, tp)
            self._forget(text_alone=False)
            raise error

    def _forget(self, text_alone: bool) -> None:
        self.text_alone = text_alone
        self._models.clear()
        self._caches.clear()

    def _of_text(self, step: Step, accumulate: bool, tp: int) -> Recording:
        recording = self._of_class(step, accumulate, tp)
        return replace(recording, notes=(*recording.notes, LANGUAGE_ALONE.format(self.name)))

    def _of_class(self, step: Step, accumulate: bool, tp: int) -> Recording:
        *fused, unfused = ("tilecast", "sdpa", _UNFUSED) if step.attention == "flash" else (_UNFUSED,)
        for attention in fused:  # what a class can take is known when it has run
            with contextlib.suppress(RequestError):
                return self._with(step, accumulate, attention, tp)
        return self._with(step, accumulate, unfused, tp)  # what every class has: its error is the class's own

    def _with(self, step: Step, accumulate: bool, attention: str, tp: int) -> Recording:
        need_torch()
        from predictor.models.traced import huggingface_passes, torch_trace
        from predictor.models.traced.tensor_plan import of_one_rank

        dtype = step.act_dtype if step.act_dtype in FLOATS else "bf16"
        model = torch_trace.on_meta(self._model(attention), dtype)
        about = attention, dtype, tp
        record = partial(
            huggingface_passes.record, model, self.name, step, dtype, accumulate, self._caches.get(about)
        )  # fmt: skip
        try:
            recording = of_one_rank(model, self.plan, tp, self.name, record, trains=step.mode == "train")
            if recording.cache_per_token >= 0.0 and step.mode in ("prefill", "decode"):
                self._caches[about] = recording.cache_fixed, recording.cache_per_token
            return recording
        except (RequestError, KeyboardInterrupt):
            raise
        except Exception as error:  # in the pass that fills a cache, which is not recorded
            said = one_line(f"{type(error).__name__}: {error}")[:300]
            raise RequestError(f"{self.name}: cannot be traced in mode {step.mode}: {said}") from None

    def _model(self, attention: str) -> Any:
        """The module on the meta device; its parts run ``attention``."""
        if attention not in self._models:
            self._models.clear()  # one at a time: a large one takes a while to make
            self._models[attention] = made(self.data, attention, self.where, self.text_alone)
        return self._models[attention]


def made(data: Mapping[str, Any], attention: str, where: str, text_alone: bool = False) -> Any:
    """The class of a config on the meta device; with ``text_alone`` that of the language model in it. RequestError, one
    line, where there is none or it refuses."""
    torch = need_torch()
    known = _classes(data, where)
    import transformers

    from predictor.models.traced import experts, huggingface_passes
    from predictor.models.traced.substitutes import Unfilled

    huggingface_passes.register_attention()
    experts.register_experts()
    model_type = str(data["model_type"])
    try:
        with no_code():
            config = known[model_type].from_dict(dict(data))
            if text_alone:
                config, data = _text_of(transformers, config), {}
            whole = _around(transformers, data, config)
        cls = _class_of(transformers, data, config if whole is None else whole)
        asked = config if whole is None else whole
        asked._attn_implementation = attention
        for each in (config, asked):
            experts.ask_for_experts(each)
        with torch.device("meta"), Unfilled(), no_code():
            model = cls(asked)
        experts.leave_zero_experts(model)
        experts.note_loops(model)
        if whole is not None:
            _leave_text(model)
        if data.get("tie_word_embeddings") is False:
            _with_own_head(model)
        return model
    except Exception as error:
        said = one_line(f"{type(error).__name__}: {error}")[:300]
        raise RequestError(f"{where}: transformers cannot make this model: {said}") from None


def _classes(data: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Configuration classes by model type, that of ``data`` among them. UnknownModelTypeError, one line, where it is
    not."""
    need_torch()
    try:
        import transformers
    except ImportError:
        raise UnsupportedError(
            f"{where}: tracing a model_type needs transformers: pip install 'tilecast[torch]'"
        ) from None
    transformers.logging.set_verbosity_error()
    model_type = str(data["model_type"])
    known: Mapping[str, Any] = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if model_type not in known:
        close = nearest(model_type, known.keys())
        tail = f"; nearest: {', '.join(close)}" if close else ""
        raise UnknownModelTypeError(
            f"{where}: model_type {model_type!r} is no class of transformers {transformers.__version__}; expected"
            f" one that it has, or a file.py:function that makes the model{tail}"
        )
    return known


def _with_own_head(model: Any) -> None:
    """A head of its own, where a class ties it to the embedding whatever the config says: T5's of transformers 5, which
    unties a checkpoint that has weights of both."""
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and getattr(head, "weight", None) is getattr(table, "weight", 0):
        head.weight = type(head.weight)(head.weight.detach().clone())


def _around(transformers: Any, data: Mapping[str, Any], config: Any) -> Any:
    """The config of images and text that has ``config`` as its text's, where transformers has a head for that alone:
    the text's own class ends with the layers (Qwen3VLTextModel). None for every other type."""
    auto = transformers.models.auto.modeling_auto
    if any(hasattr(transformers, str(name)) for name in data.get("architectures") or ()):
        return None
    if any(type(config) in getattr(auto, kind)._model_mapping for kind in _KINDS if kind != "AutoModel"):
        return None
    beside = vars(sys.modules[type(config).__module__]).values()
    around = (each for each in beside if (getattr(each, "sub_configs", None) or {}).get("text_config") is type(config))
    outer = next((each for each in around if each in auto.AutoModelForImageTextToText._model_mapping), None)
    if outer is None:
        return None
    return outer(text_config=config, **{key: data[key] for key in ("tie_word_embeddings",) if key in data})


def _text_of(transformers: Any, config: Any) -> Any:
    """The config of the language model in that of several: of those inside one another the first that has a class with
    a head. UnsupportedError where none has words."""
    auto, inner = transformers.models.auto.modeling_auto, config
    while (key := next((key for key in _TEXTS if hasattr(getattr(inner, key, None), "model_type")), None)) is not None:
        inner = getattr(inner, key)
        if any(type(inner) in getattr(auto, kind)._model_mapping for kind in _KINDS if kind != "AutoModel"):
            return inner
    if inner is config or not getattr(inner, "vocab_size", None):
        raise UnsupportedError(f"no language model in {type(config).__name__}")
    return inner


def _leave_text(model: Any) -> None:
    """The language model and the head of a model of images and text, without its vision tower and what joins them."""
    whole, text = model.base_model, model.get_decoder()
    for name, child in list(whole.named_children()):
        if child is not text:
            delattr(whole, name)


def _class_of(transformers: Any, data: Mapping[str, Any], config: Any) -> Any:
    """The class that a config names, else what transformers takes for its type."""
    for name in data.get("architectures") or ():
        cls = getattr(transformers, str(name), None)
        if cls is not None and hasattr(cls, "forward"):
            return cls
    auto = transformers.models.auto.modeling_auto
    two_stacks = bool(getattr(config, "is_encoder_decoder", False)) and not data
    for kind in sorted(_KINDS, key=lambda kind: two_stacks and kind == "AutoModelForCausalLM"):
        mapping = getattr(auto, kind)._model_mapping
        if type(config) in mapping:
            listed = mapping[type(config)]
            return listed[0] if isinstance(listed, tuple | list) else listed
    raise UnsupportedError(f"no class for {type(config).__name__}")
