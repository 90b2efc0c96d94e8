"""The part of a vision and language model that images pass, traced from the class of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor.errors import RequestError
from predictor.models.forms import model_of

pytest.importorskip("torch", reason="the extra torch is not installed")
transformers = pytest.importorskip("transformers", reason="the extra torch is not installed")

DEPTH, WIDTH, INNER, OUT, PATCH = 4, 64, 160, 96, 16
VISION = {
    "depth": DEPTH, "hidden_size": WIDTH, "intermediate_size": INNER, "num_heads": 4, "out_hidden_size": OUT,
    "patch_size": PATCH, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 64,
    "deepstack_visual_indexes": [1, 2], "in_channels": 3,
}  # fmt: skip
TEXT = {
    "hidden_size": OUT, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
    "num_hidden_layers": 2, "vocab_size": 500,
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "cache"))


def written(folder: Path, model_type: str = "qwen3_vl", **more: Any) -> str:
    path = folder / "small_config.json"
    path.write_text(json.dumps({"model_type": model_type, "text_config": TEXT, "vision_config": VISION} | more))
    return f"vision:{path}"


@pytest.mark.parametrize("model_type", ["qwen3_vl", "qwen3_vl_moe"])
def test_a_tower_counts_what_a_hand_counts(model_type: str, tmp_path: Path) -> None:
    """Parameters are the class's own; FLOPs those of patches, layers, attention image by image, and three mergers."""
    name = written(tmp_path, model_type)
    images, height, width = 3, 128, 192
    answer = predictor.predict(name, "h100", input=f"pixel_values:float[{images},3,{height},{width}]")
    config = transformers.AutoConfig.for_model(model_type, text_config=TEXT, vision_config=VISION)
    with transformers.modeling_utils.torch.device("meta"):
        whole = transformers.AutoModelForImageTextToText.from_config(config)
    assert answer.parameters == sum(p.numel() for p in whole.model.visual.parameters())
    each = (height // PATCH) * (width // PATCH)
    tokens = images * each
    layers = 2 * tokens * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER) + 4 * images * each * each * WIDTH
    merged = tokens // 4
    mergers = 3 * 2 * merged * (4 * WIDTH) * (4 * WIDTH + OUT)
    products = DEPTH * layers + mergers + 2 * tokens * 3 * 2 * PATCH * PATCH * WIDTH
    found = model_of(name, f"pixel_values:float[{images},3,{height},{width}]").source
    assert found is not None
    assert answer.flops == pytest.approx(products, rel=0.05) and answer.flops >= products
    twice = predictor.predict(name, "h100", input=f"pixel_values:float[{images},3,{2 * height},{width}]")
    assert twice.flops > 2.0 * answer.flops  # attention over twice as many patches


def test_a_language_model_follows_in_a_pipeline(tmp_path: Path) -> None:
    """A part of a pipeline may be a tower, its images sized by formulas."""
    name = written(tmp_path)
    path = tmp_path / "both.yaml"
    path.write_text(
        "sizes: {images: 2, height: 64}\nparts:\n  vision:\n"
        f"    model: {name}\n    inputs: ['pixel_values:float[images,3,height,2*height]']\n"
    )
    alone = predictor.predict(name, "h100", input="pixel_values:float[4,3,64,128]")
    assert predictor.predict(path, "h100", input=["images=4"]).latency_s == alone.latency_s


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        ({"vision_config": None}, "pixel_values:float[1,3,64,64]", "no 'vision_config'"),
        ({}, "pixel_values:float[1,3,64,70]", "nearest: 64"),
        ({}, "", "expected --input pixel_values"),
        ({}, "tokens:int64[1,8]", "expected --input pixel_values"),
    ],
)
def test_what_is_no_image_is_one_line(change: dict[str, Any], words: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as error:
        predictor.predict(written(tmp_path, **change), "h100", input=words or None)
    assert said in str(error.value) and "\n" not in str(error.value)
