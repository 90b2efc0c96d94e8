"""Pipelines under load: no load is the forecast of one batch, lanes follow each other, and what any queue keeps."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from predictor.engines.scheduling import Sequence
from predictor.errors import RequestError
from predictor.files.records import replace
from predictor.forecast.forecast import forecast
from predictor.request.request import Request
from predictor.request.run import Run
from predictor.serving.costs import StepCosts
from predictor.serving.deployment import Options, deploy
from predictor.serving.server import Server, ServerRank
from predictor.serving.simulator import costs_of, deployed, serve
from predictor.serving.traffic import Traffic, arrivals, made

CASES = [("vllm", 2), ("vllm", 4), ("sglang", 2), ("tensorrt_llm", 2)]


@cache
def run_of(execution: str, pp: int, gpu: str = "h100") -> Run:
    return Request(
        "llama-3.2-3b", gpu, mode="generate", execution=execution, pp=pp, batch=1, seq_len=1000, output_len=200
    ).run()


@pytest.mark.parametrize(("execution", "pp"), CASES)
def test_alone_a_request_takes_what_one_batch_takes(execution: str, pp: int) -> None:
    run = run_of(execution, pp)
    served = serve(run, made(1, 1.0, None, None, 1000, 200))
    phases = forecast(run, intervals=False).phases_s
    assert served.ttft_s[0] == pytest.approx(phases["ttft"], rel=0.03)  # power holds a long run's products
    assert served.tpot_s[0] == pytest.approx(phases["tpot"], rel=0.01)


@pytest.mark.parametrize(("execution", "pp"), CASES)
def test_every_token_comes_out_and_the_caches_hold(execution: str, pp: int) -> None:
    run = run_of(execution, pp, "l4")
    random = np.random.default_rng(0)
    inputs, outputs = random.integers(1, 1500, 100), random.integers(1, 300, 100)
    traffic = Traffic(arrivals(100, 12.0), inputs, outputs, np.zeros_like(inputs))
    served = serve(run, traffic, Options(max_num_seqs=16 * pp))
    assert not np.isnan(served.last_s).any() and (served.first_s <= served.last_s).all()
    moments = [moment for each in served.moments for moment in each]
    assert sum(moment.chunk_tokens for moment in moments) >= inputs.sum()
    assert max(moment.pages for moment in moments) <= served.deployment.pages * served.deployment.ranks
    assert max(moment.decoding for moment in moments) <= 16 * pp


def test_full_lanes_follow_each_other_through_the_slowest_stage() -> None:
    """Decodes alone: a round of P lanes takes P times the slowest stage, or the way of one through all of them."""
    for pp, clients in ((2, 2), (2, 128), (4, 256)):
        run = run_of("vllm", pp)
        traffic = made(clients, None, clients, None, 16, 400)
        served = serve(run, traffic)
        costs = costs_of(deployed(run, traffic, Options()), traffic)
        lane = clients // pp
        through, held = (float(part[0]) for part in costs.decode(lane, np.array([lane * 216.0])))
        assert held < through <= pp * held * (1 + 1e-9)
        assert float(served.tpot_s.mean()) == pytest.approx(max(through, pp * held), rel=0.03)


def test_littles_law_holds_for_a_closed_queue() -> None:
    served = serve(run_of("vllm", 2), made(240, None, 12, None, 300, 100, 0.5))
    inside = served.latency_s.sum() / served.span_s
    assert 0.93 * 12 < inside <= 12 * (1 + 1e-9)


def test_a_lane_has_its_part() -> None:
    one, two = (deploy(run_of("vllm", pp), Options(), 2000) for pp in (1, 2))
    assert (one.ranks, two.ranks) == (1, 2) and two.rules.sequences == one.rules.sequences // 2
    assert two.pages * two.ranks > 2 * one.pages  # half of the weights, and of the layers of a token
    with pytest.raises(RequestError, match=r"--pp 32: llama-3\.2-3b has 28 layers"):
        serve(run_of("vllm", 32), made(1, 1.0, None, None, 9, 9))


def test_ranks_are_asked_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of several ranks are those of each rank by itself, from one call; an idle one holds nobody up."""
    run = run_of("vllm", 4)
    traffic = made(64, None, 64, None, 16, 400)
    deployment = deployed(run, traffic, Options())
    costs = costs_of(deployment, traffic)
    ranks = [ServerRank(deployment.batching()) for _ in range(deployment.ranks)]
    for place, count in enumerate((3, 0, 5, 2)):
        for i in range(count):
            ranks[place].batching.waiting.append(Sequence(i, 40 * (place + 1), 50))
        batch = ranks[place].batching.batch()
        for sequence, _ in batch.chunks:
            assert ranks[place].batching.finish_prompt(sequence)
    ticks, calls = np.arange(6.0), []
    alone = [
        costs.decode(5, rank.batching.context + len(rank.batching.decoding) * ticks)
        for rank in ranks
        if rank.batching.decoding
    ]
    asked = StepCosts.decode
    monkeypatch.setattr(StepCosts, "decode", lambda self, *words: calls.append(1) or asked(self, *words))
    server = Server(ranks, costs, True, lambda *_: None, {}, lanes=4)
    running = [rank.batching for rank in ranks if rank.batching.decoding]
    through, held = server._steps_of_ranks(running, 5, ticks)
    assert len(calls) == 1 and through.shape == held.shape == (3, 6)
    np.testing.assert_array_equal(server._round(running, through, held), np.maximum(through.max(0), held.sum(0)))
    np.testing.assert_allclose(through, [one for one, _ in alone], rtol=1e-12)
    np.testing.assert_allclose(held, [one for _, one in alone], rtol=1e-12)


def test_what_the_gpu_waits_for_is_worked_out_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of("tensorrt_llm", 2)
    traffic = made(8, None, 8, None, 16, 40)
    costs = costs_of(deployed(run, traffic, Options()), traffic)
    first = costs.waits_s(7)
    assert first == pytest.approx(sum(replace(run.work, batch=7).waits_s.values())) and first > 0.0
    monkeypatch.setattr("predictor.serving.costs.replace", None)  # a workload is checked when it is made
    assert costs.waits_s(7) == first


def test_experts_have_the_tokens_that_all_ranks_have() -> None:
    """One of four ranks of data-parallel attention reads a prompt: the experts that they share have its 2,000 tokens, a
    fourth of four such prompts; all else takes as long. Alike ranks, and models without experts, save nothing."""
    words = {"gpu": "h100", "mode": "generate", "execution": "vllm", "seq_len": 2000, "output_len": 9, "batch": 4}
    traffic = made(4, None, 4, None, 2000, 9)
    for model, ep in (("qwen3-30b-a3b", 4), ("llama-3.2-3b", 1)):
        run = Request(model, **words, dp=4, num_gpus=4, ep=ep).run()
        costs = costs_of(deployed(run, traffic, Options()), traffic)
        whole, _ = costs.mixed([(2000, 0)], 0, 0, 1, 2000)
        alike, _ = costs.mixed([(2000, 0)], 0, 0, 1, 2000, 2000)
        fewer, _ = costs.mixed([(2000, 0)], 0, 0, 1, 2000, 500)
        shared = costs.tables.mixed.saved(2000, 500)
        assert alike == whole and fewer == pytest.approx(whole - sum(shared))
        assert (0.2 * whole < sum(shared) < 0.7 * whole) if ep > 1 else sum(shared) == 0.0
    served = serve(Request("qwen3-30b-a3b", **words, dp=4, num_gpus=4, ep=4).run(), made(1, 1.0, None, None, 2000, 9))
    together = serve(Request("qwen3-30b-a3b", **words, dp=4, num_gpus=4, ep=4).run(), traffic)
    assert served.ttft_s[0] < 0.8 * together.ttft_s.max()
