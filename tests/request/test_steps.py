"""`--steps`: a loop of equal forward passes, as diffusion samplers run them."""

from __future__ import annotations

import pytest

import predictor
from predictor.errors import RequestError
from predictor.models.base import MODES

#: A pass of some 100 us: a loop of ten stays a burst, which power does not hold.
SHORT = {"batch": 1, "seq_len": 64, "execution": "cuda_graph"}


def test_one_step_is_the_pass_to_the_bit() -> None:
    plain = predictor.predict("gpt2", "h100", **SHORT)
    assert predictor.predict("gpt2", "h100", steps=1, **SHORT) == plain


@pytest.mark.parametrize("execution", ["eager", "cuda_graph", "compile"])
def test_time_and_operators_scale_and_memory_does_not(execution: str) -> None:
    words = SHORT | {"execution": execution}
    one, ten = predictor.predict("gpt2", "h100", **words), predictor.predict("gpt2", "h100", steps=10, **words)
    assert ten.latency_s == pytest.approx(10 * one.latency_s, rel=1e-12)
    assert ten.phases_s["forward"] == ten.latency_s
    assert ten.flops == pytest.approx(10 * one.flops, rel=1e-12)
    assert ten.gpu_busy_s == pytest.approx(10 * one.gpu_busy_s, rel=1e-12)
    assert [row.count for row in ten.breakdown] == [10 * row.count for row in one.breakdown]
    assert ten.memory == one.memory
    assert (ten.mfu, ten.tokens_per_s) == pytest.approx((one.mfu, one.tokens_per_s), rel=1e-12)
    assert ten.sequences == one.sequences  # an image goes through all of the steps
    assert ten.interval_s is not None and one.interval_s is not None
    assert ten.interval_s == pytest.approx([10 * end for end in one.interval_s], rel=1e-9)


def test_a_long_loop_is_held_by_power_as_any_long_run_is() -> None:
    """2,000 large passes are a long run: what power leaves counts, which one pass in a burst does not."""
    words = {"batch": 16, "seq_len": 1024, "execution": "cuda_graph"}
    one = predictor.predict("gpt2", "h100", **words)
    many = predictor.predict("gpt2", "h100", steps=2000, **words)
    assert one.latency_s <= many.latency_s / 2000 < 1.6 * one.latency_s


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "forward"])
def test_other_modes_say_so_in_a_line(mode: str) -> None:
    with pytest.raises(RequestError, match="--steps 4: only --mode forward takes it"):
        predictor.predict("gpt2", "h100", mode=mode, steps=4)


@pytest.mark.parametrize("steps", [0, -3, 2.0, True, "4", 10**9])
def test_what_is_no_number_of_steps(steps: object) -> None:
    with pytest.raises(RequestError, match=r"--steps .*: expected"):
        predictor.predict("gpt2", "h100", steps=steps)  # type: ignore[arg-type]


def test_a_traced_module_runs_in_a_loop() -> None:
    nn = pytest.importorskip("torch", reason="the extra torch is not installed").nn
    model = predictor.trace(lambda: nn.Sequential(nn.Linear(256, 256), nn.GELU()), "input:float[8,256]")
    one, many = predictor.predict(model, "h100"), predictor.predict(model, "h100", steps=28)
    assert many.latency_s == pytest.approx(28 * one.latency_s, rel=1e-12)
    assert many.memory == one.memory
