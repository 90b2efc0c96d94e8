"""The interval's term of kernels that an engine's host launches one by one."""

from __future__ import annotations

import math

import pytest

from predictor.engines import CALLS, CAPTURED, LAUNCHES, PIECES
from predictor.files.records import replace
from predictor.forecast.forecast import forecast
from predictor.kernels.collective.core import late_rank_s
from predictor.request.request import Request
from predictor.simulate.error_model import LATE, error_model
from predictor.simulate.interval import LATE_S, RunSpread, facts_of, interval_of, run_spread


def spread(**words: object) -> RunSpread:
    found = forecast(Request("gpt2", "a100", batch=2, seq_len=128, **words).run())  # type: ignore[arg-type]
    (stage,) = found.stages
    hosts = {"eager": CALLS, "cuda_graph": CAPTURED, "sglang": PIECES}
    assert stage.stage.host == hosts.get(str(words["execution"]), LAUNCHES)
    result = run_spread(found.latency_s, found.stages, found.run.work)
    assert result is not None
    return result


def test_late_kernels_widen_a_run_above_alone() -> None:
    asked = Request("gpt2", "a100", mode="prefill", batch=2, seq_len=128, execution="fastertransformer").run()
    launched = spread(mode="prefill", execution="fastertransformer")
    in_time = replace(launched, launched=0.0)
    (low, high), (least, most) = (error_model().ends(facts_of(each, asked)) for each in (launched, in_time))
    assert low == least and high > most
    size = math.log1p(launched.launched * LATE_S / launched.total_s) * error_model().scales[LATE]
    factor = error_model().factors["pass"][2]
    assert (high / factor) ** 2 == pytest.approx((most / factor) ** 2 + size**2)


def test_only_an_engines_own_launches_are_late() -> None:
    """Eager calls have a range of their own, and a captured graph no host."""
    assert spread(mode="prefill", execution="fastertransformer").launched > 12 * 5  # what a layer runs at least
    launched = spread(mode="prefill", execution="sglang")
    assert launched.launched == 2 * 12 + 1  # attention of every layer, and the captured pieces around it
    assert spread(mode="prefill", execution="cuda_graph").launched == 0.0
    assert spread(mode="forward", execution="eager").launched == 0.0
    run = Request("gpt2", "a100", mode="prefill", batch=2, seq_len=128, execution="sglang").run()
    assert forecast(run).prediction.interval_s == pytest.approx(interval_of(launched, run))


@pytest.mark.parametrize(("execution", "waits"), [("sglang", True), ("cuda_graph", False)])
def test_collectives_may_wait_for_the_last_rank_where_every_rank_has_a_host(
    execution: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Llama-3.1-8B has two all_reduces a layer, and at most a few at its ends."""
    asked = Request("llama-3.1-8b", "h100", mode="prefill", batch=1, seq_len=128, tp=4, execution=execution)
    found = forecast(asked.run())

    def above() -> float:
        spread = run_spread(found.latency_s, found.stages, found.run.work)
        assert spread is not None
        return spread.host[1]

    late = above()
    monkeypatch.setattr("predictor.kernels.collective.core.late_rank_s", lambda ranks: 0.0)
    times = (late - above()) / late_rank_s(4)
    assert times == pytest.approx(66, abs=2) if waits else times == 0.0
