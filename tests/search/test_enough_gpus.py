"""An answer that is no says what would do: GPUs that meet an SLA, hold a plan of training, or serve a request."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from predictor.cli.main import main
from predictor.request.options import ONLY
from predictor.request.request import Request
from predictor.search.serving import enough as enough_module
from predictor.search.serving.answer import ServingQuestion, plan_serving
from predictor.search.serving.enough import NothingMeets
from predictor.search.serving.search import Sla

LLAMA = "llama-3.1-70b"


def asked(num_gpus: int, sla: Sla, **words: Any) -> ServingQuestion:
    return ServingQuestion(Request(LLAMA, "h100"), num_gpus, 2000, 500, sla, executions=("vllm",), **words)


def nothing(given: ServingQuestion) -> NothingMeets:
    with pytest.raises(NothingMeets) as said:
        plan_serving(given)
    assert "\n" not in str(said.value)
    return said.value


@pytest.mark.parametrize(
    ("num_gpus", "sla", "words"),
    [
        (2, Sla(tpot_s=0.015), {}),  # wider groups
        (1, Sla(1.0, 0.030), {}),  # the model alone is too large
        (3, Sla(tpot_s=0.040), {"rate": 12.0}),  # more of the same
        (1, Sla(2.0, 0.060), {"disaggregated": ONLY}),  # two groups
    ],
)
def test_the_fewest_gpus_that_meet_an_sla(num_gpus: int, sla: Sla, words: dict[str, Any]) -> None:
    """On as many there is a plan, on one fewer there is none."""
    error = nothing(asked(num_gpus, sla, **words))
    assert error.enough is not None and error.enough.gpus is not None and error.enough.plan is not None
    assert f"; {error.enough.gpus:,} GPUs are enough: {error.enough.plan}" in str(error)
    assert num_gpus < error.enough.plan.gpus <= error.enough.gpus
    assert plan_serving(asked(error.enough.gpus, sla, **words)).entries[0].plan.gpus <= error.enough.gpus
    nothing(asked(error.enough.gpus - 1, sla, **words))


def test_where_no_number_of_gpus_does_it_says_why() -> None:
    sla = Sla(tpot_s=0.004)
    error = nothing(asked(2, sla))
    assert error.enough is not None and error.enough.gpus is None and error.enough.looked_at == 1024
    group, step_s = "vllm tp8", error.enough.least["tpot"]
    assert f"a decode step takes {step_s * 1e3:.3g} ms on the fastest group, {group}, whose GPUs need" in str(error)
    reads_s = 70.55e9 * 2 / 8 / 3.35e12  # weights of a rank over the memory's rate: a floor of the step
    said = re.search(r"need ([0-9.]+) ms each to read", str(error))
    assert said is not None and float(said[1]) / 1e3 == pytest.approx(reads_s, rel=0.01) and reads_s < step_s
    assert [one.name for one in error.missed] == ["tpot"] and "; misses TPOT by " in str(error)
    prompt = nothing(asked(512, Sla(ttft_s=0.001)))
    assert "a prompt alone takes " in str(prompt) and "fastest group" in str(prompt)


def test_a_search_that_takes_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enough_module, "LONGEST_S", -1.0)
    error = nothing(asked(2, Sla(tpot_s=0.015)))
    assert (
        error.enough is not None
        and error.enough.looked_at == 2
        and "no number of GPUs up to 2 is enough: " in str(error)
    )


def test_json_has_the_nearest_plan_and_what_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "plan", "--model", LLAMA, "--gpu", "h100", "--isl", "2000", "--osl", "500", "--json"]
    words += ["--execution", "vllm", "--num-gpus", "2", "--rate", "0.1"]
    assert main([*words, "--tpot", "15ms", "--simulate", "0"]) == 2
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert captured.err == f"error: {said['reason']}\n" and said["plans"] == []
    near = said["nearest"]
    missed = near["missed"]["tpot"]
    assert missed["limit_ms"] == 15.0 and missed["value_ms"] == near["tpot_ms"] > 15.0
    assert missed["over"] == pytest.approx(near["tpot_ms"] / 15.0 - 1.0)
    assert said["enough"]["num_gpus"] == 4 and said["enough"]["plan"]["tpot_ms"] <= 15.0
    assert main([*words, "--tpot", "50ms", "--simulate", "0"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nearest"] is None and found["enough"] is None and set(said) - {"reason"} <= set(found)


def test_training_that_fits_nowhere_says_what_holds_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", "llama-3.1-8b", "--gpu", "a100", "--global-batch", "16", "--seq-len", "2048"]
    assert main([*words, "--num-gpus", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    enough, near = said["enough"], said["nearest"]
    assert said["plans"] == [] and near["missing_gib"] > 0.0 and not near["fits"]
    assert main([*words, "--num-gpus", "1"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    label = enough["plan"]["label"]
    assert f"more than a GPU may use; {enough['num_gpus']} GPUs are enough: {label}" in text
    assert main([*words, "--num-gpus", str(enough["num_gpus"]), "--only", "recompute=full", "--json"]) == 0
    more = json.loads(capsys.readouterr().out)
    assert label in [plan["label"] for plan in more["plans"]] and more["nearest"] is None and more["enough"] is None


def test_training_that_no_number_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """Replicas alone hold no more than one GPU does."""
    words = ["plan", "--model", "llama-3.1-8b", "--gpu", "a100", "--global-batch", "4", "--num-gpus", "1"]
    assert main([*words, "--only", "tp=1", "--only", "pp=1", "--only", "shard=none", "--only", "cp=1"]) == 0
    assert "; no plan fits on any number of GPUs up to 4" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("model", "gpu", "isl", "words"),
    [
        (LLAMA, "h100", "1000", "no memory is left for a KV cache; .*; --tp 2 has room"),
        ("llama-3.1-8b", "l4", "100000", "a request has 100,200; .*; --tp 2 has room"),
        ("gpt3", "a100", "1000", "no memory is left for a KV cache; .*; --tp 8 has room"),
        ("llama-3.1-405b", "h100", "1000", "no memory is left for a KV cache; .*; no --tp up to 8 has room"),
    ],
)
def test_a_server_without_room_says_how_many_gpus_have(
    model: str, gpu: str, isl: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["serve", "simulate", "--model", model, "--gpu", gpu, "--rate", "1", "--isl", isl, "--osl", "200"]
    assert main([*given, "--requests", "3"]) == 2
    line = capsys.readouterr().err.strip()
    assert re.search(words, line), line
    if (tp := re.search(r"--tp (\d+) has room", line)) is not None:
        assert main([*given, "--requests", "3", "--tp", tp[1], "--json"]) == 0
        assert math.isfinite(json.loads(capsys.readouterr().out)["ttft_ms"]["mean"])
