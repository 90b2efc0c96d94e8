"""Images of a request: the tower that a `vision_config` describes, the tokens that images become, and their pass."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from predictor import predict
from predictor.cli.main import main
from predictor.errors import RequestError, UnsupportedError
from predictor.files.records import replace
from predictor.models.built import config_from_dict, load_config
from predictor.models.built.config import of_tower
from predictor.models.built.parameters import parameters
from predictor.models.built.vision import VisionTower, tower_of
from predictor.models.step import Step
from predictor.report.json_report import to_dict
from predictor.report.terminal import first_line
from predictor.request.request import Request
from predictor.simulate.plan import plan_of

#: `vision_config` of published checkpoints, with what the text's says of its width.
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen2.5-VL-7B": {"model_type": "qwen2_5_vl", "hidden_size": 3584, "vision_config": {
        "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
        "patch_size": 14, "spatial_merge_size": 2, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
        "temporal_patch_size": 2, "out_hidden_size": 3584, "in_chans": 3}},
    "gemma-3-4b": {"model_type": "gemma3", "mm_tokens_per_image": 256, "text_config": {"hidden_size": 2560},
                   "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
                                     "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14}},
    "Llama-4-Scout": {"model_type": "llama4", "text_config": {"hidden_size": 5120}, "vision_config": {
        "hidden_size": 1408, "image_size": 336, "intermediate_size": 5632, "num_attention_heads": 16,
        "num_hidden_layers": 34, "patch_size": 14, "pixel_shuffle_ratio": 0.5, "projector_output_dim": 4096}},
    "pixtral-12b": {"model_type": "llava", "text_config": {"hidden_size": 5120}, "vision_config": {
        "model_type": "pixtral", "hidden_size": 1024, "image_size": 1024, "intermediate_size": 4096,
        "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 16}},
    "InternVL3-8B": {"model_type": "internvl", "downsample_ratio": 0.5, "text_config": {"hidden_size": 3584},
                     "vision_config": {"hidden_size": 1024, "image_size": [448, 448], "intermediate_size": 4096,
                                       "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": [14, 14]}},
    "llava-1.5-7b": {"model_type": "llava", "text_config": {"hidden_size": 4096}, "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
        "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14}},
}  # fmt: skip
SERVED: dict[str, Any] = {"mode": "prefill", "execution": "vllm", "seq_len": 512}


def tower(name: str) -> VisionTower:
    read = tower_of(CONFIGS[name]) if name in CONFIGS else load_config(name).tower
    assert read is not None
    return read


@pytest.mark.parametrize(
    ("name", "size", "sequences", "patches", "tokens"),
    [
        ("Qwen2.5-VL-7B", (1024, 1024), 1, 37 * 37 * 4, 37 * 37),  # sides in units of 28
        ("Qwen/Qwen3-VL-8B-Instruct", (1024, 768), 1, 64 * 48, 32 * 24),  # of 32
        ("moonshotai/Kimi-K2.5", (560, 280), 1, 40 * 20, 20 * 10),
        ("gemma-3-4b", (2000, 300), 1, 4096, 256),
        ("Llama-4-Scout", (336, 336), 1, 577, 144),
        ("Llama-4-Scout", (672, 672), 5, 577, 5 * 144),  # 2 x 2 tiles, and one of the whole
        ("pixtral-12b", (1024, 512), 1, 64 * 32, 64 * 32 + 64),  # a row ends with a token of its own
        ("pixtral-12b", (2048, 2048), 1, 64 * 64, 64 * 64 + 64),  # 1,024 pixels at most
        ("InternVL3-8B", (448, 1344), 4, 1025, 4 * 256),
        ("InternVL3-8B", (449, 449), 1, 1025, 256),  # 2 x 2 tiles have more than twice the area
        ("InternVL3-8B", (634, 634), 5, 1025, 5 * 256),
        ("Llama-4-Scout", (400, 600), 5, 577, 5 * 144),  # 1 x 2 would make it smaller
        ("llava-1.5-7b", (1024, 1024), 1, 577, 576),
        ("Qwen2.5-VL-7B", (32_768, 32_768), 1, 128**2 * 4, 128**2),  # 16,384 tokens at most
        ("Qwen/Qwen3-VL-8B-Instruct", (8192, 2048), 1, 256 * 64 * 4, 256 * 64),
        ("Qwen/Qwen3-VL-8B-Instruct", (9000, 2048), 1, 268 * 61 * 4, 268 * 61),
        ("Qwen2.5-VL-7B", (20, 20), 1, 4 * 4, 2 * 2),  # four at least
    ],
)
def test_tokens_of_an_image(name: str, size: tuple[int, int], sequences: int, patches: int, tokens: int) -> None:
    assert tuple(tower(name).seen(*size)) == (sequences, patches, tokens)


def test_sizes_and_tiles_are_those_of_the_processors() -> None:
    """Qwen's and InternVL's rules as transformers has them, over sizes at, below and above their bounds."""
    pytest.importorskip("torch", reason="the test extra (torch, transformers) is not installed")
    pytest.importorskip("transformers", reason="the test extra (torch, transformers) is not installed")
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    random = Random(5)
    sizes = [(round(2 ** random.uniform(2, 15)), round(2 ** random.uniform(2, 15))) for _ in range(400)]
    sizes += [(side, side) for side in (14, 56, 447, 448, 449, 633, 634, 896, 3584, 3598, 4096, 32_768)]
    qwen, tiled = (tower("Qwen2.5-VL-7B"), tower("Qwen/Qwen3-VL-8B-Instruct")), tower("InternVL3-8B")
    for height, width in sizes:
        for each, factor in zip(qwen, (28, 32), strict=True):
            if max(height, width) > 200 * min(height, width):
                with pytest.raises(RequestError, match="at most 200 times the other"):
                    each.seen(height, width)
                continue
            rows, columns = smart_resize(height, width, factor, 4 * factor**2, 16_384 * factor**2)
            assert each.seen(height, width).tokens == rows * columns // factor**2, (height, width)
        columns, rows = get_optimal_tiled_canvas((height, width), (448, 448), 1, 12)
        parts = rows * columns
        assert tiled.seen(height, width).sequences == parts + (parts > 1), (height, width)


def test_an_image_of_another_size_is_named() -> None:
    """Qwen's processor brings it into its range, Pixtral's to its longest side; one that keeps its size has no word."""
    large = predict("Qwen/Qwen3-VL-8B-Instruct", "h100", images="1x8192x8192", **SERVED)
    same = predict("Qwen/Qwen3-VL-8B-Instruct", "h100", images="1x4096x4096", **SERVED)
    said = [note for note in large.notes if "resized" in note]
    assert len(said) == 1 and "Images of 8192x8192 pixels are resized to 4096x4096" in said[0]
    assert "4,096 to 16,777,216 pixels" in said[0]
    assert large.phases_s["images"] == same.phases_s["images"]
    assert not any("resized" in note for note in same.notes)
    pixtral = tower("pixtral-12b")
    assert pixtral.limited(2048, 1024) and pixtral.resized(2048, 1024) == (1024, 512)
    assert not any(tower(name).limited(2048, 300) for name in ("gemma-3-4b", "InternVL3-8B", "moonshotai/Kimi-K2.5"))
    with pytest.raises(RequestError, match="1x201 pixels: expected a side of at most 200 times the other"):
        predict("Qwen/Qwen3-VL-8B-Instruct", "h100", images="1x1x201", **SERVED)


def test_weights_of_towers_by_hand() -> None:
    """Qwen2.5-VL's tower has 676 M parameters, Qwen3-VL-8B's 576 M (both as transformers counts them)."""
    for name, millions in (("Qwen2.5-VL-7B", 676.6), ("Qwen/Qwen3-VL-8B-Instruct", 576.4), ("gemma-3-4b", 415)):
        seen = tower(name)
        assert (parameters(of_tower(seen, name)) + seen.end_parameters) / 1e6 == pytest.approx(millions, rel=0.01), name


def test_a_pass_of_images_is_its_products() -> None:
    """Two images of 64 x 64 patches in Qwen3-VL-8B: layers, patches and four mergers as products of matrices, and
    attention over an image each; transformers' class traced gives as many FLOPs (11.61 TFLOP)."""
    run = Request("Qwen/Qwen3-VL-8B-Instruct", "h100", images="2x1024x1024", **SERVED).run()
    prompts, images = plan_of(run).stages
    n, h, f, merged = 8192, 1152, 4304, 4608
    by_hand = 27 * (2 * n * (4 * h * h + 2 * h * f) + 4 * 2 * 4096**2 * h) + 2 * n * h * 3 * 2 * 16**2
    by_hand += 4 * 2 * (n // 4) * (merged * merged + merged * 4096)
    assert images.phase == "images" and images.graph.flops() == pytest.approx(by_hand, rel=0.002)
    assert (
        prompts.graph.flops()
        == plan_of(Request("Qwen/Qwen3-VL-8B-Instruct", "h100", **{**SERVED, "seq_len": 512 + 2048}).run())
        .stages[0]
        .graph.flops()
    )


def test_images_are_in_time_memory_and_the_first_line() -> None:
    words = {**SERVED, "mode": "generate", "output_len": 8}
    text = predict("Qwen/Qwen3-VL-8B-Instruct", "h100", **{**words, "seq_len": 2560})
    both = predict("Qwen/Qwen3-VL-8B-Instruct", "h100", images="2x1024x1024", **words)
    assert both.phases_s["ttft"] == pytest.approx(both.phases_s["images"] + both.phases_s["prefill"])
    assert both.phases_s["prefill"] == pytest.approx(text.phases_s["prefill"], rel=0.01)
    assert both.memory.kv_cache == text.memory.kv_cache
    assert (both.memory.weights - text.memory.weights) / 2e6 == pytest.approx(576.4, rel=0.01)
    assert "seq-len 512, images 2x1024x1024 (2,048 tokens beside)" in first_line(both)
    assert not any("vision_config" in said for said in both.assumed)
    data = to_dict(both)
    assert data["images"]["tokens"] == 2048 and data["seq_len"] == 2560 and to_dict(text)["images"] is None
    two = predict("Qwen/Qwen3-VL-8B-Instruct", "h100", images="2x1024x1024", tp=2, **words)
    assert two.phases_s["images"] < both.phases_s["images"]
    assert two.memory.weights < both.memory.weights


def test_windows_of_a_tower_make_attention_cheaper() -> None:
    windowed = tower("Qwen2.5-VL-7B")
    assert windowed.window == 64 and windowed.whole == (7, 15, 23, 31)
    step = Step("forward", 1, 64 * 64, act_dtype="bf16", attention="flash")
    full = replace(windowed, window=0)
    fewer, every = (of_tower(t, "x").graph(step).flops() for t in (windowed, full))
    assert every - fewer == 28 * 4 * 1280 * (4096**2 - 64 * 64**2)


def test_a_model_that_sees_nothing_and_wrong_words_are_one_line() -> None:
    with pytest.raises(UnsupportedError, match=r"--images: Tilecast reads no vision tower from .* llama-3\.1-8b"):
        predict("llama-3.1-8b", "h100", images="1x512x512", **SERVED)
    for text in ("2", "2x1024", "0x10x10", "axbxc", "1x1x99999999999", "1x-4x4"):
        with pytest.raises(RequestError, match="expected NxHxW"):
            predict("Qwen/Qwen3-VL-8B-Instruct", "h100", images=text, **SERVED)
    with pytest.raises(RequestError, match="--images"):
        predict("Qwen/Qwen3-VL-8B-Instruct", "h100", images="1x512x512", mode="decode", execution="vllm")
    with pytest.raises(UnsupportedError, match="not built"):
        predict("Qwen/Qwen3-VL-8B-Instruct", "h100", images="1x512x512", pp=2, **SERVED)


@pytest.mark.parametrize("vision", [{}, {"depth": 0}, {"depth": True, "hidden_size": "x"}, {"patch_size": [[]]}, "x"])
def test_a_tower_that_nobody_can_read_leaves_the_language_model(vision: Any) -> None:
    data = {
        "model_type": "qwen3_vl", "vision_config": vision,
        "text_config": {"model_type": "qwen3_vl_text", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 512,
                        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512, "head_dim": 64},
    }  # fmt: skip
    assert config_from_dict(data, "small").tower is None


def test_one_token_after_images_has_no_tpot() -> None:
    made = predict(
        "Qwen/Qwen3-VL-8B-Instruct", "h100", images="1x512x512", mode="generate", execution="vllm", output_len=1
    )
    assert made.tpot_s is None and made.phases_s["decode"] == 0.0


@pytest.mark.parametrize("seq_len", [0, -200])
def test_images_hide_no_wrong_length(seq_len: int) -> None:
    with pytest.raises(RequestError, match=f"--seq-len {seq_len}: expected at least 1"):
        predict("Qwen/Qwen3-VL-8B-Instruct", "h100", images="1x512x512", seq_len=seq_len, mode="prefill")


def test_more_tokens_of_images_than_there_can_be_are_the_images() -> None:
    with pytest.raises(RequestError, match=r"--images 7000x32768x32768: 114,688,000 tokens a sequence; "):
        predict("Qwen/Qwen3-VL-8B-Instruct", "h100", images="7000x32768x32768", mode="prefill")


def test_a_comparison_says_the_images_beside_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    words = "compare --model Qwen/Qwen3-VL-8B-Instruct --gpu h100,l40s --mode prefill --seq-len 512 --images 1x512x512"
    assert main(words.split()) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert "seq-len 512" in first and "images 1x512x512 (256 tokens beside)" in first
