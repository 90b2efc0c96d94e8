"""Which forecasts there are: model type x mode, engine and parallelism, found by asking for each of them.

A specimen of every type (a small model with its configuration class's defaults) is forecast on the roofline alone. What
is refused is refused in one line; the table in `support.json`, which `tilecast models --support` prints, keeps both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from predictor import engines
from predictor.errors import TilecastError, one_line
from predictor.files.read import read_json
from predictor.forecast.forecast import forecast
from predictor.models.built import config_from_dict
from predictor.models.built.config import ModelConfig
from predictor.models.built.type_reader import FAMILIES
from predictor.request.request import Request

FILE = Path(__file__).parent / "support.json"
#: Sizes of a specimen: chosen by hand, not from data, so that every degree below divides them.
_SIZES = {
    "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 8, "vocab_size": 512, "d_model": 256,
    "num_layers": 8, "num_heads": 8, "n_embd": 256, "n_layer": 8, "n_head": 8, "n_heads": 8, "n_layers": 8,
    "num_key_value_heads": 4, "intermediate_size": 512, "max_position_embeddings": 1024, "num_experts_per_tok": 2,
    "n_routed_experts": 8, "num_experts": 8, "num_local_experts": 8, "moe_intermediate_size": 128,
    "moe_shared_expert_intermediate_size": 128, "shared_expert_intermediate_size": 128,
}  # fmt: skip
#: What some types need besides; sizes chosen by hand, not from data.
_PATTERNS: dict[str, dict[str, Any]] = {
    "nemotron_h": {"hybrid_override_pattern": "M-M*ME-E"},
    "nemotron-nas": {"block_configs": [{"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.5}}] * 8},
    "switch_transformers": {"d_ff": 512},
}
GPU = "h100-sxm"
ROOFLINE = "roofline"


class SupportColumn(NamedTuple):
    """One column of the table: its group, its name, and the words of `predict` that it means."""

    group: str
    name: str
    words: dict[str, Any]


#: Words of a pass over eight short sequences, chosen by hand, not from data.
_PREFILL = {"mode": "prefill", "batch": 8, "seq_len": 128}
_DECODE = {"mode": "decode", "batch": 8, "context_len": 128}
_TRAIN = {"mode": "train", "batch": 8, "seq_len": 128}


def cases() -> tuple[SupportColumn, ...]:
    """The columns, in order: modes in eager execution, decode and train with every engine, and on two GPUs."""
    modes = [
        SupportColumn("mode", "forward", {"mode": "forward", "batch": 8, "seq_len": 128}),
        SupportColumn("mode", "train", _TRAIN),
        SupportColumn("mode", "prefill", _PREFILL), SupportColumn("mode", "decode", _DECODE),
        SupportColumn("mode", "generate", {"mode": "generate", "batch": 8, "seq_len": 128, "output_len": 4}),
    ]  # fmt: skip
    served = [SupportColumn("decode with", name, {**_DECODE, "execution": name}) for name in engines.names()]
    trained = [SupportColumn("train with", name, {**_TRAIN, "execution": name}) for name in engines.names()]
    meshes = [
        SupportColumn(f"{kind} on two GPUs", name, {**words, "num_gpus": 2, name: 2})
        for kind, words, names in (("decode", _DECODE, ("tp",)), ("train", _TRAIN, ("tp", "pp", "dp", "cp")))
        for name in names
    ]
    return (*modes, *served, *trained, *meshes)


def specimen(model_type: str) -> ModelConfig:
    """A small model of a type."""
    data = {**_SIZES, **_PATTERNS.get(model_type, {}), "model_type": model_type}
    return config_from_dict(data, f"small {model_type}")


def ask(config: ModelConfig, case: SupportColumn) -> str:
    """ "" where a forecast is given, by any engine where the case names none; else the line that says why not."""
    tried = (engines.EAGER.name,) if case.group == "mode" else engines.names()
    said = ""
    for name in (case.words["execution"],) if "execution" in case.words else tried:
        try:
            asked = Request(config, GPU, dtype="bf16", artifacts=ROOFLINE, **{**case.words, "execution": name})
            forecast(asked.run()).prediction  # noqa: B018
        except TilecastError as error:
            said = said or one_line(str(error)).replace(config.name, "it")
        else:
            return ""
    return said


def support_of_types() -> Iterator[tuple[str, dict[str, str]]]:
    """Every model type with what `ask` says of each case, by "group name"."""
    for model_type in sorted(FAMILIES):
        config = specimen(model_type)
        yield model_type, {f"{case.group} {case.name}": ask(config, case) for case in cases()}


def table() -> dict[str, dict[str, str]]:
    """What `support.json` holds."""
    return {str(kind): dict(answers) for kind, answers in read_json(FILE)["types"].items()}


def as_json(answers: dict[str, dict[str, str]]) -> str:
    """The text of `support.json`."""
    return json.dumps({"gpu": GPU, "types": answers}, indent=1) + "\n"


def as_markdown(answers: dict[str, dict[str, str]]) -> str:
    """The table of docs/reference/support.md: a column for types that share all answers, and why cells are empty."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for kind, said in answers.items():
        alike.setdefault(tuple(said[f"{case.group} {case.name}"] for case in cases()), []).append(kind)
    groups = sorted(alike.items(), key=lambda entry: -len(entry[1]))
    reasons = list(dict.fromkeys(reason for said, _ in groups for reason in said if reason))
    names = [chr(ord("A") + place) for place in range(len(groups))]
    lines = [f"- **{name}** ({len(kinds)}): {', '.join(kinds)}" for name, (_, kinds) in zip(names, groups, strict=True)]
    lines += ["", f"| asked for | {' | '.join(names)} |", "| --- |" + " --- |" * len(groups)]
    for row, case in enumerate(cases()):
        cells = [f"{reasons.index(said[row]) + 1}" if said[row] else "yes" for said, _ in groups]
        lines.append(f"| {case.group} {case.name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{i}. {reason}" for i, reason in enumerate(reasons, 1))])
