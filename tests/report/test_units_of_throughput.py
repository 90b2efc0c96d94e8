"""Throughput is counted in what a model reads: tokens, images, videos, or samples."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import predictor
from predictor.errors import SpecError
from predictor.graph.samples import IMAGES, SAMPLES, TOKENS, UNITS, VIDEOS, unit_of
from predictor.ops import EmbeddingBag
from predictor.ops.convolution import Convolution
from predictor.report.compare import Entry, print_comparison, to_json
from predictor.report.html_sections import headline
from predictor.report.json_report import to_dict
from predictor.report.terminal import print_prediction
from predictor.report.throughput import throughput
from predictor.report.wording import per_second
from predictor.simulate.answer import Prediction
from predictor.sweep.answers import answer as answers

CONVOLUTION = object.__new__(Convolution)
SUMMED = object.__new__(EmbeddingBag)

#: Inputs, the operators on them, and the unit.
FED: tuple[tuple[tuple[str, ...], tuple[Any, ...], str], ...] = (
    (("input_ids:int64[8,128]",), (), TOKENS),
    (("int64[8,128]", "int64[8,128]"), (), TOKENS),
    (("int64[2048,26]",), (SUMMED,), SAMPLES),  # rows of tables
    (("dense:float[2048,13]", "sparse:int64[2048,26]"), (), SAMPLES),
    (("user:int64[4096]", "item:int64[4096]"), (), SAMPLES),
    (("x:fp32[8,3,224,224]",), (CONVOLUTION,), IMAGES),
    (("pixel_values:fp32[8,3,224,224]",), (), IMAGES),
    (("float[1,3,16,224,224]",), (CONVOLUTION,), VIDEOS),
    (("pixel_values_videos:fp32[1,16,3,224,224]",), (), VIDEOS),
    (("q:float[8,16,128,64]", "k:float[8,16,128,64]", "v:float[8,16,128,64]"), (), SAMPLES),  # heads are no planes
    (("input_ids:int64[8,77]", "pixel_values:fp32[8,3,224,224]"), (CONVOLUTION,), SAMPLES),  # pairs
    (("input_values:fp32[8,16000]",), (CONVOLUTION,), SAMPLES),
    (("src:float[2,512,512]",), (), SAMPLES),
)


@pytest.mark.parametrize("case", FED)
def test_inputs_say_the_unit(case: tuple[tuple[str, ...], tuple[Any, ...], str]) -> None:
    inputs, ops, unit = case
    assert unit_of(inputs, ops) == unit and unit in UNITS


def test_files_without_inputs_go_by_their_tokens() -> None:
    assert unit_of((), (), tokens=512) == TOKENS and unit_of((), ()) == SAMPLES


SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
#: Configs that are traced, by what they read.
CONFIGS: dict[str, dict[str, Any]] = {
    "vit": {"unit": IMAGES, **SMALL},
    "resnet": {"unit": IMAGES, "depths": [1, 1], "hidden_sizes": [32, 64], "embedding_size": 16},
    "wav2vec2": {"unit": SAMPLES, **SMALL},
    "videomae": {
        "unit": VIDEOS,
        **SMALL,
        "num_frames": 4,
        "image_size": 32,
        "architectures": ["VideoMAEForVideoClassification"],
    },
    "xglm": {"unit": TOKENS, "d_model": 48, "num_layers": 2, "attention_heads": 3, "ffn_dim": 96, "vocab_size": 500},
}


def printed(answer: Prediction) -> str:
    text = io.StringIO()
    print_prediction(answer, Console(file=text, width=300))
    return text.getvalue()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prediction]:
    """A forecast of every kind of model."""
    pytest.importorskip("transformers", reason="the extra torch is not installed")
    folder = tmp_path_factory.mktemp("units")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILECAST_CACHE", str(folder / "cache"))
        for name, config in CONFIGS.items():
            path = folder / f"{name}.json"
            path.write_text(json.dumps({"model_type": name} | {k: v for k, v in config.items() if k != "unit"}))
            length = 64 if config["unit"] == TOKENS else None
            found[name] = predictor.predict(str(path), "a100", batch=4, seq_len=length)
    return found


def test_a_traced_model_answers_in_what_it_reads(traced: dict[str, Prediction]) -> None:
    for name, answer in traced.items():
        unit = CONFIGS[name]["unit"]
        text, page, said = printed(answer), headline(answer), to_dict(answer)
        assert answer.unit == said["unit"] == unit, name
        each_s = 4.0 / answer.latency_s
        if unit == TOKENS:
            assert f" tokens/s, {each_s:,.0f} sequences/s" in text and "such sequences" in text
            assert said["units_per_s"] == said["tokens_per_s"] == pytest.approx(64 * each_s)
        else:
            assert "tokens/s" not in text and "sequences" not in text and f"such {unit}" in text, name
            assert f"{each_s:,.0f} {unit}/s" in text and f"4 {unit}" in page and "sequences" not in page, name
            assert said["units_per_s"] == said["sequences_per_s"] == pytest.approx(each_s)
        assert ("seq-len" in text) == (unit in (TOKENS, SAMPLES)), name


def test_speech_reads_samples_and_makes_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="the extra torch is not installed")
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "whisper.json"
    sizes = {f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in
             (("layers", 1), ("attention_heads", 2), ("ffn_dim", 64))}  # fmt: skip
    path.write_text(
        json.dumps(
            {"model_type": "whisper", "d_model": 32, **sizes, "architectures": ["WhisperForConditionalGeneration"]}
        )
    )
    decode = predictor.predict(str(path), "a100", batch=4, mode="decode", context_len=32)
    forward = predictor.predict(str(path), "a100", batch=4)
    assert decode.unit == TOKENS and forward.unit == SAMPLES


def test_a_recommender_answers_in_samples_and_per_gpu() -> None:
    answer = predictor.predict("dlrm-dcnv2", "h100", dp=8)
    text = printed(answer)
    total, each_s = answer.sequences_per_s, answer.sequences_per_s / 8
    assert f"throughput  {total:,.0f} samples/s in total, {each_s:,.0f} samples/s a GPU" in text
    assert "tokens/s" not in text and "seq-len" not in text
    assert to_dict(answer)["units_per_s_per_gpu"] == pytest.approx(each_s)


def test_pipelines_say_what_they_make(tmp_path: Path) -> None:
    folder = Path(predictor.__file__).parent / "models" / "traced" / "pipelines"
    for path in folder.glob("*.yaml"):
        assert "\nunit: " in path.read_text(), path.name
    path = tmp_path / "mine.yaml"
    body = "sizes: {batch: 2}\nparts:\n  all:\n    ops:\n      - {mlp: [64, 64], rows: batch}\n"
    path.write_text(f"unit: videos\n{body}")
    assert predictor.predict(str(path), "h100").unit == VIDEOS
    path.write_text(body)
    assert predictor.predict(str(path), "h100").unit == SAMPLES
    path.write_text(f"unit: tokens\n{body}")
    with pytest.raises(SpecError, match="unit 'tokens': expected one of images, videos, samples"):
        predictor.predict(str(path), "h100")


def compared(*found: Prediction) -> tuple[str, list[dict[str, Any]]]:
    entries = [Entry(answer.model, answer.gpu, answer, price=3.6) for answer in found]
    text = io.StringIO()
    print_comparison(entries, Console(file=text, width=300))
    return text.getvalue(), json.loads(to_json(entries))["rows"]


def test_comparisons_count_units(traced: dict[str, Prediction]) -> None:
    text, rows = compared(traced["vit"], traced["resnet"])
    assert " images/s " in text and "$/M images" in text and "token" not in text and "seq-len" not in text
    assert rows[0]["cost_usd_per_million_units"] == pytest.approx(1e3 / traced["vit"].sequences_per_s)
    text, _ = compared(traced["vit"], traced["xglm"])
    assert " units/s " in text and "$/M units" in text
    assert f"{traced['vit'].sequences_per_s:,.0f} images" in text and " tokens " in text


def test_sweeps_have_the_unit_in_every_row() -> None:
    row, other = answers([{"model": "dlrm-dcnv2", "gpu": "h100"}, {"model": "gpt2", "gpu": "h100"}], 0, None)
    assert row["unit"] == SAMPLES and row["units_per_s"] == pytest.approx(55296e3 / row["latency_ms"])
    assert other["unit"] == TOKENS and other["units_per_s"] == other["tokens_per_s"]


def test_a_rate_of_one_is_of_one_thing() -> None:
    answer = replace(predictor.predict("gpt2", "h100", artifacts="roofline", seq_len=64), latency_s=1.0)
    assert throughput(answer) == "64 tokens/s, 1 sequence/s"
    assert [per_second(rate, "steps") for rate in (1.0, 0.5, 2.0)] == ["1 step/s", "0.5 steps/s", "2 steps/s"]
