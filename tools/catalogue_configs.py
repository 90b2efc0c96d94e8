#!/usr/bin/env python3
"""Writes published config.json files into the catalogue (predictor/models/built/published): their sizes and number
formats alone.

    tools/catalogue_configs.py FOLDER --source "ai-dynamo/aiconfigurator@095f58a, Apache-2.0"

FOLDER has ORG--NAME_config.json files, and ORG--NAME_hf_quant_config.json beside quantized ones. A repository that
predictor/models/built/aliases.json lists is left as it is; another is written under its name in small letters, and its
alias noted. Keys that say nothing of a pass (ids of tokens, how text is sampled, where classes are) are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from predictor.files.records import replace  # noqa: E402
from predictor.models.built import load  # noqa: E402
from predictor.models.built.config import ModelConfig  # noqa: E402
from predictor.models.built.keys import ANY  # noqa: E402

#: What of the keys that any file may have says something of a pass.
SIZES = {
    "architectures", "model_type", "hidden_act", "sliding_window", "text_config", "vision_config", "audio_config",
    "rope_scaling", "rope_theta", "rope_parameters", "rope_local_base_freq", "partial_rotary_factor",
    "quantization_config", "quantization",
}  # fmt: skip
#: Keys of classes that say nothing of a pass.
SILENT = re.compile(
    r"_token_id$|_token_index$|^dtype$|_implementation|^(?:output_attentions|output_hidden_states|return_dict|id2label"
    r"|label2id|problem_type|is_encoder_decoder|chunk_size_feed_forward|aux_loss_alpha|seq_aux|ep_size|use_cache"
    r"|router_aux_loss_coef|router_jitter_noise|output_router_logits|num_logits_to_keep|initializer_range"
    r"|rescale_prenorm_residual|time_step_(?:floor|limit|max|min)|ignore_index|for_llm_compressor|use_mamba_kernels)$"
)
#: What names have at either end that tells them from nothing else.
ENDS = re.compile(r"^(?:nvidia-|meta-)(?=[a-z])|-(?:hf|bf16|instruct|instruct-2407)$")


def shipped(data: Mapping[str, Any], ignored: tuple[str, ...]) -> dict[str, Any]:
    """``data`` without the keys that say nothing of a pass."""
    kept: dict[str, Any] = {}
    for key, value in data.items():
        if key in ignored or (key in ANY and key not in SIZES) or SILENT.search(key) or key.startswith("_"):
            continue
        inside = tuple(name.removeprefix(f"{key}.") for name in ignored if name.startswith(f"{key}."))
        kept[key] = shipped(value, inside) if key in ("text_config", "vision_config", "audio_config") else value
    return kept


def facts(config: ModelConfig) -> ModelConfig:
    """What both files have to say alike."""
    return replace(config, ignored=())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", required=True, help="where the files are from, and their licence")
    arguments = parser.parse_args()
    listed = json.loads(load.ALIASES.read_text(encoding="utf-8"))
    for path in sorted(arguments.folder.glob("*--*_config.json")):
        repository = path.name.removesuffix("_config.json").replace("--", "/")
        if path.name.endswith("_hf_quant_config.json") or repository in load.aliases():
            continue
        name = ENDS.sub("", ENDS.sub("", repository.split("/")[1].lower())).replace("llama-3_3", "llama-3.3")
        published = load.load_config(path)
        data = load.data_of(*load.config_file(str(path))[:2])
        note = f"config.json of {repository} as published, its sizes and formats alone ({arguments.source})"
        written = {"_note": note, **shipped(data, published.ignored)}
        assert facts(load.config_from_dict(written, published.name)) == facts(published), repository
        (load.PUBLISHED / f"{name}.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
        listed.setdefault(name, []).append(repository)
    rows = (f"  {json.dumps(name)}: {json.dumps(others)}" for name, others in sorted(listed.items()))
    load.ALIASES.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
