"""Rotary embeddings: which classes join the part of a head that is turned and the part that is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor.errors import SpecError
from predictor.forecast.forecast import forecast
from predictor.models.built.load import config_from_dict
from predictor.request.request import Request

SIZES = {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 512,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "more", "joins"),
    [
        ("llama", {}, False),
        ("phi3", {}, True),  # its class always joins
        ("glm4", {"partial_rotary_factor": 0.5, "head_dim": 64}, True),
    ],
)
def test_parts_of_a_head_are_joined_where_the_class_does(
    model_type: str, more: dict[str, object], joins: bool, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": model_type, **SIZES, **more}))
    run = Request(str(path), "h100", execution="eager", seq_len=32, artifacts="roofline").run()
    graph = forecast(run).plan.stages[0].graph
    joined = sorted({node.name for node, _ in graph.nodes() if node.name.startswith("rotary") and "join" in node.name})
    assert joined == (["rotary k join", "rotary q join"] if joins else [])


@pytest.mark.parametrize(
    ("model_type", "more", "said"),
    [
        ("llama", {"head_dim": 1}, "even width, got 1"),
        ("qwen3", {"head_dim": 97}, "even width, got 97"),
        ("glm4", {"head_dim": 64, "partial_rotary_factor": 0.4}, "even width, got 25"),
        ("glm4", {"head_dim": 64, "partial_rotary_factor": 0.01}, "turns nothing of a head of 64"),
        ("glm4", {"head_dim": 64, "partial_rotary_factor": 0}, "turns nothing of a head of 64"),
    ],
)
def test_positions_turn_pairs_of_numbers(model_type: str, more: dict[str, object], said: str) -> None:
    """The class fails on an odd width: its tables have a number more than the head. Of width 1, half a pair is none."""
    with pytest.raises(SpecError, match=said):
        config_from_dict({"model_type": model_type, **SIZES, **more}, "m", "m.json")
