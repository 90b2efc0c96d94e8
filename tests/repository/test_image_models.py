"""Networks of images, videos and recommendations at published sizes, and what forecasts of them need."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

import predictor
from predictor.errors import RequestError

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import image_models as zoo  # noqa: E402


@pytest.mark.parametrize("name", list(zoo.NETWORKS))
def test_parameters_are_those_that_cards_print(name: str) -> None:
    with torch.device("meta"):
        module = zoo.NETWORKS[name].build()
    count = sum(weight.numel() for weight in module.parameters())
    assert count / 1e9 == pytest.approx(zoo.PARAMETERS[name], rel=0.02)


def test_a_unet_has_its_published_work() -> None:
    """Stable Diffusion 1's at 64 x 64: some 0.80 TFLOP (401 GMAC by its authors' counters, from memory)."""
    net = zoo.NETWORKS["sd-1.5"]
    answer = predictor.predict(predictor.trace(net.build, net.words(1), name="unet"), "h100")
    assert answer.flops == pytest.approx(0.803e12, rel=0.02)
    assert not answer.unknown


def test_a_denoiser_runs_and_its_steps_add_up() -> None:
    net = zoo.NETWORKS["sd-2.1"]
    model = predictor.trace(net.build, net.words(2), name="unet")
    answer = predictor.predict(model, "h100")
    assert not answer.unknown
    assert predictor.predict(model, "h100", steps=3).latency_s == pytest.approx(3 * answer.latency_s, rel=0.35)


@pytest.mark.parametrize("tokens", [3_000, 32_760, 100_000])
def test_attention_over_a_shorter_text_is_priced_by_the_text(tokens: int) -> None:
    """Between measured lengths of the queries the text stays as long as it is: no negative lengths, and more costs
    more."""
    found = []
    for text in (77, 512, 2_048):
        words = f"x:float[1,{tokens},640] source:float[1,{text},640]"
        model = predictor.trace(lambda: zoo.Attention(640, 10), words, name="cross")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found.append(predictor.predict(model, "h100", execution="cuda_graph", dtype="bf16").latency_s)
    assert found == sorted(found)


def test_the_inputs_of_a_traced_model_are_those_of_a_rank() -> None:
    model = predictor.trace(lambda: torch.nn.Linear(256, 256), "input:float[8,256]")
    alone, four = (predictor.predict(model, "h100", mode="train", dp=dp) for dp in (1, 4))
    assert (alone.workload.batch, four.workload.batch) == (8, 32)
    assert four.flops == pytest.approx(4 * alone.flops, rel=1e-12)
    assert four.sequences == 4 * alone.sequences
    with pytest.raises(RequestError, match=r"--batch 8: the inputs of .* have 32"):
        predictor.predict(model, "h100", mode="train", dp=4, batch=8)


def test_a_detector_and_a_recommender_train() -> None:
    for build, words in (
        (zoo.RetinaNet, "x:float[1,3,256,256]"),
        (lambda: zoo.Recommender(rows=1000), "dense:float[64,13] rows:int64[64,26,4]"),
    ):
        answer = predictor.predict(predictor.trace(build, words, name="net"), "h100", mode="train")
        assert answer.latency_s > 0
        assert sum(answer.unknown.values()) < 0.01
