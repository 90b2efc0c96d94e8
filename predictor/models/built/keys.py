"""Keys of a config.json against those that its configuration class knows.

A class of transformers takes any key, so a misspelt one leaves a size at its default. An unknown key that is close to
an absent known one is therefore an error; every other unknown key is named as ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from predictor.errors import SpecError, printable
from predictor.files.read import read_json

#: Written by tools/config_keys.py from transformers' classes.
TABLE = Path(__file__).parent / "config_keys.json"
#: Model types whose classes are in their checkpoints' repositories -> (the type whose class they build on, their keys).
#: Source: the config.json files of the checkpoints.
LIKE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "mimo": ("qwen2", ("num_nextn_predict_layers",)),
    "kimi_k2": ("deepseek_v3", ()),
    "kimi_k25": ("deepseek_v3", ("text_config", "vision_config", "media_placeholder_token_id", "ignore_index")),
    "nemotron-nas": ("llama", ("block_configs",)),
    "deepseek_v32": ("deepseek_v3", ("index_n_heads", "index_head_dim", "index_topk")),
}
#: What any file may have beside its class's keys: those of files of transformers 4 that 5 reads into others, and those
#: that say nothing of a pass. Source: PretrainedConfig of transformers 4.57 (as recalled), and files on the Hub.
ANY: frozenset[str] = frozenset((
    "torch_dtype", "rope_scaling", "rope_theta", "partial_rotary_factor", "rope_local_base_freq", "rope_parameters",
    "quantization_config", "quantization", "auto_map", "attn_implementation", "pretraining_tp", "use_bfloat16",
    "gradient_checkpointing", "torchscript", "tf_legacy_loss", "pruned_heads", "num_labels", "task_specific_params",
    "tokenizer_class", "prefix", "finetuning_task", "cross_attention_hidden_size", "add_cross_attention",
    "tie_encoder_decoder", "is_decoder", "min_length", "max_length", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
    "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
    "output_scores", "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "decoder_start_token_id",
    "sep_token_id", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "model_type", "name",
    "transformers_version", "architectures", "use_cache", "hidden_act", "initializer_range", "sliding_window",
    "vision_config", "audio_config", "text_config", "unsloth_version", "unsloth_fixed",
))  # fmt: skip
#: How alike a misspelt key and the meant one are, of 1. Chosen by hand, not from data: one letter of eight; the
#: catalogue and the public configs have no two keys as near of which one is unknown (tests/models/test_config_keys.py).
ALIKE = 0.85
#: Ignored keys that a line names: chosen by hand, not from data.
SHOWN = 12


class Read(dict[str, Any]):
    """A dictionary that notes in ``seen`` which keys a reader looks for; one inside it does so, too."""

    def __init__(self, data: Mapping[str, Any], seen: set[str]) -> None:
        super().__init__(data)
        self.seen = seen

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.seen.add(str(key))
        return super().__contains__(key)


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    return read_json(TABLE)


def known_keys(model_type: object) -> frozenset[str]:
    """Keys that the class of a built ``model_type`` knows; none for a type from outside."""
    base, more = LIKE.get(str(model_type), (str(model_type), ()))
    table = _table()
    return frozenset((*table["common"], *table[base], *more)) if base in table else frozenset()


def ignored_keys(data: Mapping[str, Any], model_type: str, seen: set[str], where: str) -> tuple[str, ...]:
    """Keys of a config.json, and of its "text_config", that its class does not know and its reader did not look for
    (``seen``); none for a type from outside. SpecError as `unknown_keys`."""
    known = known_keys(model_type)
    if not known:
        return ()
    inner = data.get("text_config")
    if not isinstance(inner, Mapping):
        return unknown_keys(data, known | seen, where)
    text = known_keys(inner.get("model_type")) or known
    unknown_inside = unknown_keys(inner, text | seen, f"{where} text_config")
    return (*unknown_keys(data, known, where), *(f"text_config.{key}" for key in unknown_inside))


def unknown_keys(data: Mapping[str, Any], known: Collection[str], where: str) -> tuple[str, ...]:
    """Keys of ``data`` that are not in ``known`` and change nothing. SpecError, one line, for one that is close to an
    absent known key."""
    absent = [key for key in known if key not in data]
    unknown = []
    for key in data:
        if key in known or key in ANY or key.startswith("_"):
            continue
        from difflib import get_close_matches  # a config without a slip of the keyboard starts without it

        close = get_close_matches(key, absent, n=1, cutoff=ALIKE)
        if close:
            raise SpecError(f"{where}: unknown key {printable(key)[:80]!r}; nearest: {close[0]}")
        unknown.append(key)
    return tuple(unknown)


def ignored_notes(ignored: Sequence[str]) -> tuple[str, ...]:
    """The line of an answer that names them."""
    if not ignored:
        return ()
    more = f" and {len(ignored) - SHOWN} more" if len(ignored) > SHOWN else ""
    shown = ", ".join(printable(key)[:60] for key in ignored[:SHOWN])
    return (f"The model's class ignores these keys of the config: {shown}{more}.",)


def quantization_of(data: Mapping[str, Any]) -> tuple[str, Any] | None:
    """(key, value) of what a config.json says of its numbers, or of its text model's; None where it says nothing."""
    inner = data.get("text_config")
    keys = ("quantization_config", "compression_config", "quantization")
    within = (data, inner if isinstance(inner, Mapping) else {})
    return next(((key, mapping[key]) for mapping in within for key in keys if mapping.get(key) is not None), None)
