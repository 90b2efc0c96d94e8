"""Where the learned part of a forecast has steps: a tree's are listed, those of waves and tiles are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictor.estimators.artifact import ArtifactSet, CoresAlone, RooflineOnly, load_artifacts
from predictor.estimators.base import Batch, Estimator, make_batch
from predictor.forecast import forecast
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.hardware.what_if import vary
from predictor.learned_steps import LEAST, learned_steps
from predictor.ops import Gemm
from predictor.request import Request
from predictor.roofline import roofline
from predictor.run import Run

GPU = load_gpu("h100")
WORDS: dict[str, Any] = {
    "mode": "decode",
    "batch": 64,
    "context_len": 2048,
    "dtype": "bf16",
    "execution": "cuda_graph",
    "kernel_gap": 0,
}


def run() -> Run:
    return Request("llama-3.1-8b", GPU, **WORDS).run()


class Stepped:
    """A formula that jumps at 0.5 of the bandwidth, and a learned part with the steps ``at``: factor -> change."""

    name = "stepped"

    def __init__(self, at: dict[float, float]) -> None:
        self.at = at

    def core_alone(self) -> Stepped:
        return Stepped({})

    def seconds(self, batch: Batch, gpu: GPUSpec) -> Any:
        factor = gpu.memory_bandwidth / GPU.memory_bandwidth
        formula = 3.0 * roofline(batch.ops, GPU).cold_s / factor * (1.5 if factor > 0.5 else 1.0)
        return formula * np.prod([change for at, change in self.at.items() if factor > at])


class SteppedSet(ArtifactSet):
    def __init__(self, at: dict[float, float]) -> None:
        super().__init__(Path(), {"name": "stepped", "estimators": []})
        self.estimator = Stepped(at)

    def select(self, family: str, dtype: str) -> Estimator:
        return self.estimator

    def measured_on(self, name: str) -> tuple[str, ...]:
        return ()

    def intervals(self, name: str) -> None:
        return None


def test_the_steps_that_were_put_in_are_found_and_the_formulas_are_not() -> None:
    at = {0.3: 1.05, 1.7: 0.9, 2.6: 1.03, 3.1: 1.0 + LEAST / 3}
    found = learned_steps(replace(run(), selector=SteppedSet(at)), "memory_bandwidth")
    assert [step.factor for step in found] == pytest.approx([0.3, 1.7, 2.6], rel=2e-3)
    assert [step.change for step in found] == pytest.approx([1.05, 0.9, 1.03], rel=1e-6)
    some = learned_steps(replace(run(), selector=SteppedSet(at)), "memory_bandwidth", 1.0, 2.0)
    assert [step.factor for step in some] == pytest.approx([1.7], rel=2e-3)
    assert learned_steps(replace(run(), selector=SteppedSet({})), "memory_bandwidth") == ()
    assert learned_steps(replace(run(), selector=RooflineOnly()), "memory_bandwidth") == ()


def test_the_shipped_trees_jump_where_it_says() -> None:
    asked, shipped = run(), load_artifacts()
    assert isinstance(shipped, ArtifactSet)
    steps = learned_steps(asked, "clock")
    assert steps
    for step in steps:
        taken = []
        for factor in (step.factor / 1.002, step.factor * 1.002):
            varied = replace(asked, gpu=vary(GPU, "clock", factor))
            cores = replace(varied, selector=CoresAlone(shipped))
            taken.append(forecast(varied).latency_s / forecast(cores).latency_s)
        assert taken[1] / taken[0] == pytest.approx(step.change, abs=2e-3)
        assert abs(step.change - 1.0) > 0.99 * LEAST


def test_the_formulas_alone_are_another_forecast_only_where_there_are_trees() -> None:
    shipped = load_artifacts()
    assert isinstance(shipped, ArtifactSet)
    cores = CoresAlone(shipped)
    for family, dtype in (("norm", "bf16"), ("collective", "bf16")):
        assert cores.select(family, dtype) is shipped.select(family, dtype)
    fp32 = make_batch("gemm", [Gemm("fp32", 1000, 512, 512)])  # no trees, and no GPU is calibrated
    of_both = [of.select("gemm", "fp32").seconds(fp32, GPU) for of in (cores, shipped)]  # type: ignore[union-attr]
    assert (of_both[0] == of_both[1]).all()
    for family in ("gemm", "attention", "moe"):
        assert cores.select(family, "bf16") is cores.select(family, "fp8") is not shipped.select(family, "bf16")
    asked = run()
    before = forecast(asked).latency_s
    assert forecast(replace(asked, selector=cores)).latency_s != pytest.approx(before, rel=1e-3)
    assert forecast(asked).latency_s == before
