"""Watts and joules of a run: power times time, part by part."""

import json

import pytest

import predictor
from predictor import RequestError
from predictor.cli.main import main
from predictor.report.json_report import to_dict

DECODE = {"mode": "decode", "execution": "vllm", "context_len": 1024, "power": True}
RUNS = (
    ("qwen3-8b", "h100", {**DECODE, "batch": 8}),
    ("qwen3-8b", "b200", {**DECODE, "batch": 256}),
    ("llama-3.1-8b", "h100", {"mode": "train", "batch": 8, "tp": 2, "power": True}),
    ("llama-3.1-8b", "h100", {"mode": "train", "batch": 8, "pp": 4, "power": True}),
    ("gpt2", "rtx-4090", {"power": True}),
    ("llama-3.1-8b", "h100", {"mode": "generate", "output_len": 64, "power": True, "gpu_set": "power_limit=300W"}),
)


@pytest.mark.parametrize(("model", "gpu", "words"), RUNS)
def test_energy_is_power_times_time_and_the_sum_of_its_parts(model, gpu, words):
    answer = predictor.predict(model, gpu, **words)
    energy = answer.energy
    assert energy.energy_j == pytest.approx(energy.power_w * answer.latency_s)
    assert sum(energy.parts_j.values()) * energy.gpus == pytest.approx(energy.energy_j)
    assert energy.idle_w <= energy.power_w_per_gpu <= energy.limit_w * (1 + 1e-9)
    assert answer.joule_per_token * answer.tokens == pytest.approx(energy.energy_j)


def test_the_classes_are_the_kernels_part_where_nothing_overlaps():
    answer = predictor.predict("qwen3-8b", "h100", **DECODE, batch=8)
    gaps = answer.latency_s - answer.gpu_busy_s
    energy = answer.energy
    assert sum(row.energy_j for row in energy.classes) == pytest.approx(energy.energy_j - gaps * 187.13, rel=1e-3)


def test_a_batch_makes_tokens_cheaper_and_the_board_hotter():
    few, many = (predictor.predict("qwen3-8b", "h100", **DECODE, batch=batch) for batch in (1, 128))
    assert many.energy.power_w > few.energy.power_w
    assert many.joule_per_token < few.joule_per_token / 20


def test_a_lower_limit_takes_longer_and_less_energy():
    whole, held = (
        predictor.predict("gpt3", "h100", power=True, gpu_set=values) for values in (None, "power_limit=500W")
    )
    assert held.latency_s > whole.latency_s
    assert held.energy.energy_j < whole.energy.energy_j


def test_waiting_for_a_cpu_draws_less_than_working():
    eager = predictor.predict("gpt2", "h100", mode="decode", power=True)
    graphs = predictor.predict("gpt2", "h100", mode="decode", power=True, execution="cuda_graph")
    assert eager.energy.parts_j["waiting"] > 0.0
    assert eager.energy.power_w < graphs.energy.power_w
    assert eager.energy.energy_j > graphs.energy.energy_j


def test_without_the_word_there_is_none_of_it():
    answer = predictor.predict("gpt2", "h100")
    assert answer.energy is None
    assert answer.joule_per_token is None
    assert "power_w" not in to_dict(answer)
    with pytest.raises(RequestError, match="--power 'yes': expected true or false"):
        predictor.predict("gpt2", "h100", power="yes")


def test_many_runs_have_it_too():
    runs = [{"model": "gpt2", "gpu": "h100", "mode": "decode", "batch": batch, "power": True} for batch in range(1, 12)]
    answers = predictor.predict_many(runs)
    joules = [answer.joule_per_token for answer in answers]
    assert joules == sorted(joules, reverse=True)


def test_the_command_says_it_in_text_json_and_on_the_page(tmp_path, capsys):
    page = tmp_path / "page.html"
    words = ["predict", "--model", "gpt2", "--gpu", "a10", "--power"]
    assert main([*words, "--html", str(page)]) == 0
    assert "J a token" in (shown := capsys.readouterr().out)
    assert "assumed: idle power" in " ".join(shown.split())
    assert 'id="power"' in page.read_text(encoding="utf-8")
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["power_w"] * answer["latency_ms"] / 1e3 == pytest.approx(answer["energy_j"])
    assert answer["joule_per_token"] == pytest.approx(answer["energy_j"] / 1024)
    assert answer["power"]["power_w_per_gpu"] <= answer["power"]["power_limit_w"] == 150.0
