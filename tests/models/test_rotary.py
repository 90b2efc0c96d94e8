"""Rotary embeddings: which classes join the part of a head that is turned and the part that is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor.forecast.forecast import forecast
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
