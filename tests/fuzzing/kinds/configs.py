"""A model's config.json: one of the catalogue's, with fields changed, left out, or of another model."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from hypothesis import strategies as st

from predictor.models.built.load import CONFIGS
from tests.fuzzing.case import Case
from tests.fuzzing.changes import ODD, as_json, changed_tree, damaged_text
from tests.fuzzing.targets import ask_python

LOADS = ("torch", "torch.fx.experimental.proxy_tensor", "transformers", "transformers.modeling_utils")
MODES = ("forward", "train", "prefill", "decode", "generate")


@cache
def catalogue() -> tuple[dict[str, Any], ...]:
    """The configs that come with Tilecast."""
    return tuple(json.loads(path.read_text(encoding="utf-8")) for path in sorted(CONFIGS.glob("*.json")))


@cache
def fields() -> tuple[tuple[str, Any], ...]:
    """Every field of every config, with its value there."""
    return tuple((key, value) for config in catalogue() for key, value in config.items())


@st.composite
def cases(draw: st.DrawFn) -> Case:
    config = dict(draw(st.sampled_from(catalogue())))
    for key, value in draw(st.lists(st.sampled_from(fields()), max_size=2)):
        config[key] = value
    if draw(st.integers(0, 9)):
        config = draw(changed_tree(config))
    if draw(st.booleans()):
        config[draw(st.sampled_from(fields()))[0]] = draw(ODD)
    content = as_json(config)
    if not draw(st.integers(0, 19)):
        content = draw(damaged_text(content.decode("utf-8")))
    return Case("configs", {"config.json": content}, {
        "model": "config.json", "gpu": draw(st.sampled_from(("h100", "t4", "mi300x", "b200"))), "artifacts": "roofline",
        "mode": draw(st.sampled_from(MODES)), "batch": draw(st.sampled_from((1, 8, 100))),
        "execution": draw(st.sampled_from(("eager", "compile", "vllm", "sglang"))),
    })  # fmt: skip


ask = ask_python
