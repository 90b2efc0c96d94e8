"""Prompts read by servers of their own: no load is the two phases and a message, and what any queue keeps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from predictor.engines.scheduling import Pages, Sequence
from predictor.engines.vintage import Setting
from predictor.errors import RequestError
from predictor.forecast.forecast import forecast
from predictor.hardware.gpu import load_gpu
from predictor.request.request import Request
from predictor.request.run import Run
from predictor.serving.deployment import Options
from predictor.serving.disaggregated import Apart, Handed, hand_over, serve_apart
from predictor.serving.simulator import Served
from predictor.serving.traffic import Traffic, arrivals, made
from predictor.simulate.memory import cache_bytes

ENGINES = ("vllm", "sglang", "tensorrt_llm")


@cache
def run_of(execution: str = "vllm", tp: int = 1) -> Run:
    return Request(
        "llama-3.2-3b", "h100", mode="generate", execution=execution, batch=1, seq_len=1000, output_len=200, tp=tp
    ).run()


def mixed(requests: int, rate: float) -> Traffic:
    random = np.random.default_rng(0)
    inputs, outputs = random.integers(1, 3000, requests), random.integers(1, 300, requests)
    return Traffic(arrivals(requests, rate), inputs, outputs, np.zeros_like(inputs))


@pytest.mark.parametrize("execution", ENGINES)
def test_alone_a_request_takes_its_phases_and_a_message(execution: str) -> None:
    run = run_of(execution)
    served = serve_apart(run, Apart(run, 1), made(1, 1.0, None, None, 1000, 200), Options())
    phases = forecast(run, intervals=False).phases_s
    assert served.moved_s > 0.0
    assert served.ttft_s[0] == pytest.approx(phases["ttft"] + served.moved_s, rel=0.03)  # power holds a long run
    assert served.tpot_s[0] == pytest.approx(phases["tpot"], rel=0.01)


@pytest.mark.parametrize("execution", ENGINES)
def test_every_token_comes_out_and_the_caches_hold(execution: str) -> None:
    run = run_of(execution)
    work = replace(run.work, memory_fraction=0.2)
    traffic = mixed(150, 60.0)
    served = serve_apart(replace(run, work=work), Apart(run, 2), traffic, Options(max_num_seqs=32))
    assert not np.isnan(served.last_s).any() and (served.first_s <= served.last_s).all()
    assert (served.scheduled_s < served.first_s).all()
    decodes = [moment for each in served.moments for moment in each]
    prompts = [moment for each in served.prompt_moments for moment in each]
    assert sum(moment.chunk_tokens for moment in prompts) == traffic.input_tokens.sum()
    again = sum(moment.chunk_tokens for moment in decodes)
    assert (again > 0) == (served.preempted > 0)
    made_there = sum(moment.decoding * moment.steps for moment in decodes)
    assert made_there == (traffic.output_tokens - 1).sum() - served.preempted  # a prompt's step makes a token, too
    assert max(moment.pages for moment in decodes) <= served.deployment.pages


def mean(served: Served, name: str) -> float:
    return float(np.nanmean(getattr(served, name)))


def test_more_servers_are_never_worse() -> None:
    run, traffic = run_of(), mixed(150, 120.0)
    readers = [serve_apart(run, Apart(run, n), traffic, Options()) for n in (1, 2, 4)]
    assert (ttft := [mean(one, "ttft_s") for one in readers]) == sorted(ttft, reverse=True) and ttft[0] > ttft[2]
    writers = [serve_apart(run, Apart(run, 4), traffic, Options(replicas=n)) for n in (1, 2)]
    assert mean(writers[0], "tpot_s") > mean(writers[1], "tpot_s")


def test_littles_law_holds_for_a_closed_queue() -> None:
    served = serve_apart(run_of(), Apart(run_of(), 1), made(240, None, 12, None, 300, 100, 0.5), Options())
    inside = served.latency_s.sum() / served.span_s
    assert 0.93 * 12 < inside <= 12 * (1 + 1e-9)


def test_the_message_is_the_part_of_the_busiest_gpu() -> None:
    one, four = run_of(), run_of(tp=4)
    whole = cache_bytes(one.config, one.work.changed(mode="prefill", seq_len=777, output_len=0), one.numbers)
    assert hand_over(one, one, 777, 2).size == round(whole)
    assert hand_over(four, one, 777, 5).size == round(whole)  # one GPU takes all of it
    assert hand_over(four, four, 777, 8).size == round(whole / 4)
    assert hand_over(one, four, 777, 5).size == round(whole)  # one GPU sends to four


def test_who_lost_its_pages_is_read_again_on_the_spot() -> None:
    rules = run_of().work.engine.vintage().scheduler(Setting(load_gpu("h100")))  # type: ignore[union-attr,misc]
    batching = Handed(rules, Pages(8, 1))
    batching.waiting.extend([Sequence(0, 3, 6), Sequence(1, 3, 6)])
    assert batching.batch().decodes and len(batching.decoding) == 2
    batching.tick(1)
    found = batching.batch()
    assert [one.index for one in found.preempted] == [1] and not found.chunks
    batching.tick(4)
    batching.leave(batching.decoding[0])
    assert [(one.index, tokens) for one, tokens in batching.batch().chunks] == [(1, 5)]


def test_what_does_not_go_together_is_a_line() -> None:
    run = run_of()
    with pytest.raises(RequestError, match="--prefill-servers 0"):
        Apart(run, 0)
    with pytest.raises(RequestError, match="--drafts 1: not with"):
        serve_apart(run, Apart(run, 1), mixed(3, 1.0), Options(drafts=1, acceptance=0.5))
