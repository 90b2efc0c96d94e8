"""What the page draws of a search."""

from __future__ import annotations

from typing import Any

from predictor.ui.search_results import serving_plans, training_plans


def plan(label: str, gib: float, ms: float) -> dict[str, Any]:
    return {
        "label": label, "latency_ms": ms, "memory_gib": gib, "mfu": 0.4, "bubble_share": 0.1, "exposed_ms": 2.0,
    }  # fmt: skip


def test_plans_are_marks_and_rows() -> None:
    found = {"plans": [plan("a", 40.0, 100.0), plan("b", 20.0, 150.0), plan("c", 60.0, 170.0)]}
    drawn = training_plans(found | {"plans_legal": 7, "plans_fitting": 3})
    assert drawn.count('class="dot') == 2 * 3, "on wide screens and on narrow ones"
    assert drawn.count('class="ring"') == 2
    line = drawn.split('points="')[1].split('"')[0]
    assert len(line.split()) == 2, "c is beaten in both"
    assert drawn.count("<tr>") == 1 + 3
    assert "3 of 7 legal plans fit" in drawn


def test_no_plan_that_fits_is_said() -> None:
    assert "None of 7 legal plans fits" in training_plans({"plans": [], "plans_legal": 7, "plans_fitting": 0})


def test_serving_plans_are_the_frontier_and_the_choice() -> None:
    one = {
        "execution": "vllm", "tp": 2, "pp": 1, "dp": 1, "ep": 1, "replicas": 4, "batch": 8, "prefill": None, "gpus": 8,
        "tokens_per_s_per_user": 50.0, "tokens_per_s_per_gpu": 200.0, "ttft_ms": 300.0, "tpot_ms": None,
    }  # fmt: skip
    other = one | {"tokens_per_s_per_user": None, "tokens_per_s_per_gpu": 90.0, "prefill": {"tp": 1}}
    drawn = serving_plans({"frontier": [one, other], "plans": [one], "points": 9})
    assert drawn.count('class="dot') == 2 * 2
    assert "vllm tp 2 x 4, batch 8" in drawn
    assert "vllm, disaggregated" in drawn
    assert "300 ms" in drawn
