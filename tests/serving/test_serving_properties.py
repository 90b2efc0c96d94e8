"""Laws that any scheduler and any queue keep."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from predictor.engines import engine
from predictor.engines.scheduling import Batching, Pages, Sequence, StepBatch
from predictor.engines.vintage import Setting
from predictor.errors import RequestError
from predictor.forecast.forecast import forecast
from predictor.request.options import BURSTS, GAMMA
from predictor.request.request import Request
from predictor.request.run import Run
from predictor.serving import simulator
from predictor.serving.cost_tables import Decodes
from predictor.serving.deployment import Options, deploy
from predictor.serving.server import Server
from predictor.serving.simulator import Served, serve
from predictor.serving.traffic import TOKENIZER_S, TURNAROUND_S, Traffic, arrivals, made

SERVING = ("vllm", "sglang", "tensorrt_llm")
CASES = [*((name, "") for name in SERVING), ("vllm", "0.6"), ("vllm", "0.2.7"), ("vllm", "0.19"), ("sglang", "0.4")]


@cache
def run_of(execution: str, software: str = "", gpu: str = "l4", model: str = "llama-3.2-3b") -> Run:
    return Request(
        model, gpu, mode="generate", execution=execution, software=software, batch=1, seq_len=1000, output_len=9
    ).run()


def traffic_of(requests: int, rate: float, seed: int = 0, longest: int = 1500, how: str = "poisson") -> Traffic:
    random = np.random.default_rng(seed)
    inputs, outputs = random.integers(1, longest, requests), random.integers(1, 400, requests)
    return Traffic(arrivals(requests, rate, how, 2.0, seed), inputs, outputs, np.minimum(inputs, 32) * (inputs % 2))


@cache
def loaded(execution: str, software: str = "", fraction: float = 0.45) -> Served:
    """More than an L4 can do, with a small cache, so that requests queue and give way."""
    run = run_of(execution, software)
    work = replace(run.work, memory_fraction=fraction)
    return serve(replace(run, work=work), traffic_of(120, 8.0), Options(max_num_batched_tokens=2048, max_num_seqs=48))


@pytest.mark.parametrize(("execution", "software"), CASES)
def test_every_request_and_every_token_comes_out(execution: str, software: str) -> None:
    served = loaded(execution, software)
    assert not np.isnan(served.last_s).any()
    assert (served.arrival_s <= served.scheduled_s).all() and (served.scheduled_s < served.first_s).all()
    more = served.traffic.output_tokens > 1
    assert (served.first_s[more] < served.last_s[more]).all()
    assert (served.first_s[~more] == served.last_s[~more]).all()
    moments = [moment for each in served.moments for moment in each]
    read = sum(moment.chunk_tokens for moment in moments)
    asked = int(served.traffic.input_tokens.sum()) - sum(served.found_tokens)
    made_tokens = sum(moment.decoding * moment.steps for moment in moments)
    if not served.preempted:
        assert read == asked
        assert made_tokens == int((served.traffic.output_tokens - 1).sum())
    else:  # what gave way is read again with what it had made; its next token comes from that prompt
        assert read >= asked
        assert 0 < int((served.traffic.output_tokens - 1).sum()) - made_tokens <= served.preempted


@pytest.mark.parametrize(("execution", "software"), CASES)
def test_the_cache_never_holds_more_than_it_has(execution: str, software: str) -> None:
    served = loaded(execution, software)
    held = [moment.pages for each in served.moments for moment in each]
    assert 0.5 * served.deployment.pages < max(held) <= served.deployment.pages
    assert min(held) >= 0
    memory = served.deployment.memory
    each_token = memory.kv_cache_capacity / (served.deployment.pages * served.deployment.page_tokens)
    assert max(held) * served.deployment.page_tokens * each_token <= memory.usable - memory.weights


@pytest.mark.parametrize(("execution", "software"), CASES)
def test_steps_follow_each_other_and_keep_to_the_limits(execution: str, software: str) -> None:
    served = loaded(execution, software)
    (moments,) = served.moments
    assert all(a.end_s <= b.start_s + 1e-9 for a, b in pairwise(moments))
    rules = served.deployment.rules
    assert max(moment.decoding for moment in moments) <= rules.sequences
    mixed = [moment for moment in moments if moment.chunk_tokens]
    assert max(moment.chunk_tokens + moment.decoding * rules.mixes for moment in mixed) <= rules.tokens
    if not rules.mixes:
        assert all(not moment.decoding for moment in mixed)


@pytest.mark.parametrize("execution", SERVING)
def test_first_come_first_served(execution: str) -> None:
    run = run_of(execution)
    served = serve(run, traffic_of(100, 6.0), Options(max_num_seqs=16))
    assert served.preempted == 0
    assert (np.diff(served.scheduled_s) >= 0).all()
    assert served.scheduled_s[-1] > served.arrival_s[-1] + 0.1  # there was a queue


@pytest.mark.parametrize("execution", SERVING)
def test_littles_law_holds_for_a_closed_queue(execution: str) -> None:
    clients = 12
    traffic = made(240, None, clients, None, 300, 100, 0.5)
    served = serve(run_of(execution), traffic)
    inside = served.latency_s.sum() / served.span_s  # requests in the system = throughput x mean latency
    assert 0.93 * clients < inside <= clients * (1 + 1e-9)
    arrived = np.sort(served.arrival_s)
    ended = np.sort(served.last_s)
    assert np.allclose(arrived[clients:], ended[: len(ended) - clients])  # who is answered asks again at once


@pytest.mark.parametrize("execution", SERVING)
def test_alone_a_request_takes_what_one_batch_takes(execution: str) -> None:
    run = run_of(execution, gpu="h100")
    traffic = made(1, 1.0, None, None, 1000, 200)
    served = serve(run, traffic)
    work = run.work.changed(seq_len=1000, output_len=200)
    phases = forecast(replace(run, work=work), intervals=False).phases_s
    assert served.ttft_s[0] == pytest.approx(phases["ttft"], rel=0.03)  # power holds a long run's products
    assert served.tpot_s[0] == pytest.approx(phases["tpot"], rel=0.005)


def test_a_client_who_waits_for_answers_waits_for_the_tokenizer_too() -> None:
    """One client after the other finds the server idle: the way there is all that its first token takes longer."""
    run = run_of("vllm", gpu="h100")
    for isl in (200, 8000):
        alone = serve(run, made(1, 1.0, None, None, isl, 20)).ttft_s[0]
        asked = serve(run, made(3, None, 1, None, isl, 20)).ttft_s
        assert asked - alone == pytest.approx([TURNAROUND_S + isl * TOKENIZER_S] * 3, rel=1e-6)


def test_more_gpus_are_never_worse() -> None:
    run, traffic = run_of("vllm"), traffic_of(150, 10.0, how=BURSTS)
    served = [serve(run, traffic, Options(replicas=n)) for n in (1, 2, 4)]
    for name in ("ttft_s", "tpot_s", "latency_s"):
        means = [float(np.nanmean(getattr(one, name))) for one in served]
        assert means == sorted(means, reverse=True), (name, means)


def test_a_slower_server_queues_longer() -> None:
    fast, slow = (serve(run_of("vllm", gpu=gpu), traffic_of(80, 6.0)) for gpu in ("h100", "l4"))
    assert (slow.latency_s > fast.latency_s).all()
    assert slow.ttft_s.mean() > 3 * fast.ttft_s.mean()


def test_shared_prefixes_are_read_once() -> None:
    n = 60
    shared = np.r_[0, np.full(n - 1, 800)].astype(np.int64)
    traffic = Traffic(arrivals(n, 5.0), np.full(n, 1000), np.full(n, 20), shared)
    on, off = (serve(run_of("vllm"), traffic, Options(prefix_cache=kept)) for kept in (True, False))
    assert on.found_tokens == (0, *[800] * (n - 1)) and sum(off.found_tokens) == 0
    assert on.ttft_s.mean() < 0.6 * off.ttft_s.mean()


def test_drafts_that_are_right_make_tokens_faster() -> None:
    run, traffic = run_of("vllm", gpu="h100"), made(40, 4.0, None, None, 300, 200)
    times = [
        float(np.nanmean(serve(run, traffic, Options(drafts=drafts, acceptance=right)).tpot_s))
        for drafts, right in ((0, 0.0), (1, 0.0), (1, 0.8), (2, 0.9))
    ]
    none, wrong, right, two = times
    assert wrong > none > right > two
    assert right > none / 1.8  # 1.8 tokens a step at most
    assert Options(drafts=2, acceptance=0.5).tokens_a_step == 1.75


def test_traffic_has_the_rate_and_the_spread_that_was_asked_for() -> None:
    for how, cv, spread in (("poisson", 1.0, 1.0), (GAMMA, 3.0, 3.0), (GAMMA, 0.5, 0.5), ("constant", 1.0, 0.0)):
        gaps = np.diff(arrivals(20_000, 4.0, how, cv, seed=3))
        assert gaps.mean() == pytest.approx(0.25, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(spread, rel=0.05, abs=1e-9)
    bursts = arrivals(1000, 4.0, BURSTS, 10, seed=3)
    assert len(np.unique(bursts)) == 100 and bursts[-1] == pytest.approx(250, rel=0.25)
    assert (arrivals(50, 1.0, seed=1) == arrivals(50, 1.0, seed=1)).all()
    assert (arrivals(50, 1.0, seed=1) != arrivals(50, 1.0, seed=2)).any()


def test_pages_of_those_who_grow_are_counted_as_one_by_one() -> None:
    random = np.random.default_rng(0)
    for size in (1, 16, 64):
        pages, lengths, clock = Pages(10**6, size), random.integers(1, 300, 40), 17
        for length in lengths:
            pages.follow(int(length), clock)
        found = pages.growth(clock, 100)
        for ticks in (1, 5, 100):
            expected = sum(math.ceil((n + ticks) / size) - math.ceil(n / size) for n in lengths)
            assert found[ticks - 1] == pages.grown(clock, ticks) == expected
    with pytest.raises(ValueError, match="2 pages wanted, 1 of 1 free"):
        Pages(1, 16).take(2)


@pytest.mark.parametrize("drafts", [0, 2])
def test_steps_one_by_one_take_as_long_as_in_arrays(drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic, options = traffic_of(60, 4.0), Options(drafts=drafts, acceptance=0.6 * bool(drafts))
    monkeypatch.setattr(simulator, "_only", lambda _: None)  # a server with one scheduler has a loop of its own
    served = serve(run_of("vllm"), traffic, options)
    monkeypatch.setattr(Server, "_few", lambda *_: False)
    arrays = serve(run_of("vllm"), traffic, options)
    assert len(served.moments[0]) == len(arrays.moments[0]) > 100
    assert served.last_s == pytest.approx(arrays.last_s, rel=1e-12)
    assert served.first_s == pytest.approx(arrays.first_s, rel=1e-12)


def test_a_step_by_itself_is_that_of_an_array() -> None:
    table = Decodes([1, 2, 4], [16, 64, 256], np.array([[1.0, 3.0, 4.0], [2.0, 4.0, 7.0], [3.0, 8.0, 9.0]]))
    contexts = np.array([3.0, 16.0, 17.5, 64.0, 200.0, 256.0, 600.0])
    for n in (1, 3, 4):
        assert [table.of(n, context) for context in contexts.tolist()] == table.at(n, contexts).tolist()


def _batching(name: str, tokens: int, pages: int, software: str = "") -> Batching:
    of = engine(name).as_of(software)
    release = of.vintage()
    assert release is not None and release.scheduler is not None and of.batching is not None
    rules = replace(release.scheduler(Setting(run_of("vllm").gpu)), tokens=tokens)
    return of.batching(rules)(rules, Pages(pages, 16))


def test_the_spread_of_those_who_decode_is_that_of_their_lengths() -> None:
    """Whoever comes, goes or gives way; no tick changes it."""
    batching, random, spreads = _batching("vllm", 10**6, 10**6), np.random.default_rng(4), set()
    for step in range(300):
        if step % 5 == 0:
            prompt, output = (int(n) for n in random.integers(1, 900, 2))
            batching.waiting.append(Sequence(step, prompt, output))
        batch = batching.batch()
        if batch.decodes and batching.decoding:
            batching.tick(1)
        for sequence, _ in batch.chunks:
            batching.finish_prompt(sequence)
        while (sequence := batching.due()) is not None:
            batching.leave(sequence)
        if step % 71 == 70:
            batching.give_way(next(iter(batching.decoding.values())), StepBatch())
        lengths = [batching.length(sequence) for sequence in batching.decoding.values()]
        assert batching.spread == pytest.approx(np.std(lengths) if lengths else 0.0, abs=1e-6)
        spreads.add(batching.spread)
    assert len(spreads) > 60


def test_vllm_reads_decodes_first_then_what_was_begun_then_new_prompts() -> None:
    batching = _batching("vllm", 100, 1000)
    for i, prompt in enumerate((150, 30, 400)):
        batching.waiting.append(Sequence(i, prompt, 10))
    first = batching.batch()
    assert [(one.index, tokens) for one, tokens in first.chunks] == [(0, 100)] and not first.decodes
    second = batching.batch()
    assert [(one.index, tokens) for one, tokens in second.chunks] == [(0, 50), (1, 30), (2, 20)]
    for one, _ in second.chunks[:2]:
        assert batching.finish_prompt(one)
    third = batching.batch()
    assert third.decodes and [(one.index, tokens) for one, tokens in third.chunks] == [(2, 98)]


def test_sglang_never_mixes_and_tensorrt_llm_never_splits() -> None:
    batching = _batching("sglang", 100, 1000)
    for i, prompt in enumerate((150, 30)):
        batching.waiting.append(Sequence(i, prompt, 10))
    assert [tokens for _, tokens in batching.batch().chunks] == [100]
    found = batching.batch()
    assert [tokens for _, tokens in found.chunks] == [50, 30] and not found.decodes
    batching = _batching("tensorrt_llm", 100, 1000)
    for i, prompt in enumerate((80, 30)):
        batching.waiting.append(Sequence(i, prompt, 10))
    assert [tokens for _, tokens in batching.batch().chunks] == [80]  # 30 more do not fit and are not split


def test_tensorrt_llm_sets_pages_aside_for_all_that_a_request_writes() -> None:
    batching = _batching("tensorrt_llm", 8192, 10)
    batching.waiting.extend([Sequence(0, 40, 100), Sequence(1, 16, 16)])
    assert [one.index for one, _ in batching.batch().chunks] == [0]  # 9 pages, and the second needs 2
    assert batching.pages.free == 1


def test_the_last_to_arrive_gives_way_and_is_read_again_with_its_tokens() -> None:
    batching = _batching("vllm", 8192, 6)
    batching.waiting.extend([Sequence(0, 31, 90), Sequence(1, 30, 90)])
    for one, _ in batching.batch().chunks:
        batching.finish_prompt(one)
    batching.tick(2)
    assert (batching.pages.free, batching.batch().preempted) == (1, [])
    batching.tick(15)
    found = batching.batch()
    assert [one.index for one in found.preempted] == [1]
    (waiting,) = batching.waiting
    assert (waiting.prompt, waiting.output) == (30 + 18, 90 - 18)


def test_what_cannot_be_served_says_so_in_a_line() -> None:
    with pytest.raises(RequestError, match="reads prompts whole and at most 8,192 tokens a step"):
        serve(run_of("tensorrt_llm"), made(2, 1.0, None, None, 9000, 10))
    with pytest.raises(RequestError, match=r"KV cache holds .* tokens and a request has"):
        serve(run_of("vllm"), made(2, 1.0, None, None, 900_000, 10))
    with pytest.raises(RequestError, match="serves no requests; expected vllm, sglang or tensorrt_llm"):
        deploy(run_of("cuda_graph"), Options(), 100)
    for words in ({"max_num_seqs": 0}, {"drafts": 17}, {"acceptance": 1.5}, {"replicas": 0}):
        with pytest.raises(RequestError, match="expected"):
            Options(**words)  # type: ignore[arg-type]


@pytest.mark.parametrize(("execution", "software"), [*CASES[:3], ("vllm", "0.6")])
def test_a_scheduler_with_nothing_to_choose_is_not_asked(
    execution: str, software: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request has the times that it has where the scheduler is asked before every step, also where pages run out
    and requests give way."""
    monkeypatch.setattr(simulator, "_only", lambda _: None)  # a server with one scheduler has a loop of its own
    few, asked = loaded(execution, software), [0, 0]
    scheduler = type(deploy(run_of(execution, software), Options(), 4096).batching())
    batch = scheduler.batch

    def counted(place: int) -> Served:
        def count(self: Batching) -> StepBatch:
            asked[place] += 1
            return batch(self)

        monkeypatch.setattr(scheduler, "batch", count)
        return loaded.__wrapped__(execution, software)

    counted(0)
    monkeypatch.setattr(Batching, "settled", False)
    always = counted(1)
    assert asked[0] < asked[1]
    assert few.preempted_times == always.preempted_times
    for column in ("scheduled_s", "first_s", "last_s"):
        np.testing.assert_array_equal(getattr(few, column), getattr(always, column))


@pytest.mark.parametrize(("execution", "software"), [("vllm", ""), ("vllm", "0.6"), ("sglang", "")])
def test_a_scheduler_is_asked_where_pages_run_out(execution: str, software: str) -> None:
    """Two that decode fill four of five pages, and want one more each after the next tick: one of them gives way."""
    deployment = deploy(run_of(execution, software), Options(), 4096)
    batching = type(deployment.batching())(deployment.rules, Pages(5, 16))
    for index in range(2):
        batching.waiting.append(Sequence(index, 31, 30))
        assert batching.finish_prompt(batching.admit(31)[0])
    assert batching.settled and batching.pages.free == 1
    batching.tick(1)
    assert not batching.settled
    assert len(batching.batch().preempted) == 1


def test_requests_wait_until_the_scheduler_looks_for_them() -> None:
    """One request decodes all the time; others come between its steps, and wait half of the steps on average, not one
    step more than all. A step with prompts counts as a thousand, so that the next one looks again."""
    run, every = run_of("sglang"), 30
    arrival = np.concatenate([[0.0], np.linspace(3.0, 60.0, 40)])
    outputs = np.array([3000, *[1] * 40])
    traffic = Traffic(arrival, np.full(41, 16), outputs, np.zeros(41, dtype=np.int64))
    plain, skipping = (serve(run, traffic, Options(receive_every=n)) for n in (1, every))
    tpot = float(plain.tpot_s[0])
    later = (skipping.ttft_s - plain.ttft_s)[1:]
    assert later.mean() == pytest.approx(every / 2 * tpot, rel=0.15)
    assert later.min() >= -1.01 * tpot and later.max() <= (every + 1) * tpot
    assert plain.ttft_s[0] == skipping.ttft_s[0]  # an idle server looks at once
    np.testing.assert_array_equal(serve(run, traffic).last_s, plain.last_s)


def test_a_scheduler_that_looks_in_every_step_is_told_nothing_else() -> None:
    for words, why in ((("vllm", ""), "vllm looks"), (("tensorrt_llm", ""), "tensorrt_llm looks")):
        with pytest.raises(RequestError, match=why):
            serve(run_of(*words), traffic_of(2, 1.0), Options(receive_every=10))
