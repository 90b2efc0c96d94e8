"""How far a service's times may be off: what queues make of slower steps, and what is known of the request."""

from __future__ import annotations

import math

import numpy as np
import pytest

from predictor.forecast.uncertainty import why_of_services
from predictor.request.request import Request
from predictor.serving.deployment import Options
from predictor.serving.goals import mean_of, ranges_of, service_errors, service_facts, step_of
from predictor.serving.simulator import Served, serve
from predictor.serving.traffic import made
from predictor.simulate.error_model import EXPERTS, KERNELS, LATE, QUEUE, TPOT, TTFT, Facts, error_model
from predictor.simulate.interval import facts_of

STEP = Facts("decode", {KERNELS: (0.1, 0.2), LATE: (0.0, 0.02), "release": (1.0, 1.0), "decode": (1.0, 1.0)})


def service() -> Served:
    words = {"mode": "generate", "batch": 1, "seq_len": 256, "output_len": 32, "execution": "vllm", "dtype": "bf16"}
    run = Request("llama-3.1-8b", "h100", **words).run()  # type: ignore[arg-type]
    return serve(run, made(16, None, 4, None, 256, 32, 1.0), Options())


def test_a_figure_that_grows_faster_than_its_steps_is_wider() -> None:
    once, thrice = (service_facts(STEP, "ttft", growth, experts=False) for growth in (1.0, 3.0))
    assert once.kind == TTFT and thrice.sizes[KERNELS] == pytest.approx((0.3, 0.6))
    assert thrice.sizes[LATE] == pytest.approx((0.0, 0.06))
    assert thrice.sizes["release"] == once.sizes["release"] == (1.0, 1.0)
    assert error_model().ends(thrice)[1] > error_model().ends(once)[1]
    assert QUEUE not in once.sizes and thrice.sizes[QUEUE] == pytest.approx((0.0, math.log(3.0)))  # a queue is late
    assert error_model().ends(thrice)[1] > error_model().ends(thrice.without(QUEUE))[1]
    assert QUEUE not in service_facts(STEP, "tpot", 3.0, experts=False).sizes
    tokens = service_facts(STEP, "tpot", 1.0, experts=True)
    assert tokens.kind == TPOT and "decode" not in tokens.sizes
    assert tokens.sizes[EXPERTS] == (1.0, 1.0) and EXPERTS not in once.sizes


def test_the_traffic_is_served_once_more_with_slower_steps() -> None:
    served, factors = service(), list[float]()

    def rerun(factor: float) -> Served:
        factors.append(factor)
        return served

    facts = service_errors(served, rerun)
    assert len(factors) == 1 and factors[0] > 1.0
    step = step_of(served)
    assert step.spread is not None
    kernels = facts_of(step.spread, step.run).sizes[KERNELS]
    assert facts["tpot"].sizes[KERNELS] == pytest.approx([0.2 * end for end in kernels])  # nothing grew: the least
    ranges = ranges_of(served, rerun)
    assert set(ranges) == {"ttft", "tpot", "latency"}
    for name, (low, high) in ranges.items():
        ends = error_model().ends(facts[name])
        mean = mean_of(np.asarray(getattr(served, f"{name}_s")))
        assert (low, high) == pytest.approx([mean * math.exp(end) for end in ends])
        assert low < mean < high


def test_an_answer_says_why_each_time_is_unsure_and_what_narrows_it() -> None:
    facts = {name: service_facts(STEP, name, 1.0, experts=False) for name in ("ttft", "tpot", "latency")}
    first, token = why_of_services(facts)  # latency has no line of its own
    assert first.startswith("The interval of TTFT is -") and "how requests arrive and wait" in first
    assert token.startswith("The interval of TPOT is -")
    narrow = error_model().ends(facts["tpot"].without("release"))
    ends = [f"{math.expm1(end) * 100:+.0f} %" for end in narrow]
    assert token.endswith(f"--software, with the release that runs, would make it {ends[0]} to {ends[1]}.")
    known = {name: each.without("release") for name, each in facts.items()}
    assert not any("--software" in line for line in why_of_services(known))
