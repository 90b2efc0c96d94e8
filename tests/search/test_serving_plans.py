"""`serve plan`: the steady state against the simulation and `predict`, what never happens, the commands it prints."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from predictor import engines, predict
from predictor.cli.main import main
from predictor.engines.serve_options import FOLDER, launch_options, listed
from predictor.engines.vintage import Setting
from predictor.errors import RequestError, UnsupportedError
from predictor.files.terminal import Plain
from predictor.hardware.gpu import load_gpu
from predictor.report.html_frontier import frontier_svg
from predictor.report.serving_plan import print_answer, rows_of, to_html, to_json
from predictor.request.request import Request
from predictor.search.serving import tables
from predictor.search.serving.answer import (
    NEVER,
    ONLY,
    ServingAnswer,
    ServingQuestion,
    chances,
    cost_per_million,
    first_better,
    growth,
    interval,
    margins,
    nothing_meets,
    plan_serving,
)
from predictor.search.serving.emit import commands
from predictor.search.serving.search import ServingPlan, Sla, at_concurrency, concurrencies, search, with_rate
from predictor.search.serving.simulation import Simulated, Simulation
from predictor.search.serving.space import Group, runs_of_groups, serving_engines
from predictor.search.serving.steady import closed_loop, decode_alone, prefill_rate
from predictor.search.serving.tables import GroupTimes, decode_run, step_facts, times_of
from predictor.serving.goals import GROWTH, SLOWER
from predictor.simulate.error_model import KERNELS, error_model
from predictor.simulate.memory import memory_of
from predictor.simulate.plan import plan_of

ISL, OSL = 2000, 200
SLA = Sla(1.0, 0.030)
MODEL, GPU = "llama-3.1-8b", "h100"


@cache
def steps(model: str = MODEL, gpus: int = 8, isl: int = ISL, osl: int = OSL) -> tuple[GroupTimes, ...]:
    groups, _ = runs_of_groups(Request(model, GPU, context_len=isl + osl // 2), serving_engines(), gpus)
    return tuple(times_of(groups, isl, osl, 256))


@cache
def answer(**words: object) -> ServingAnswer:
    given = {"num_gpus": 4, "isl": ISL, "osl": OSL, "sla": SLA} | words
    return plan_serving(ServingQuestion(Request(MODEL, GPU), **given))  # type: ignore[arg-type]


def of(execution: str, **degrees: int) -> GroupTimes:
    return next(times for times in steps() if times.group == Group(execution, **degrees))


# ------------------------------------------------------------------------------------------------------- the tables


@pytest.mark.parametrize(
    ("model", "gpu", "degrees"),
    [
        ("llama-3.1-8b", "h100", [(1, 1, 1), (2, 4, 1)]), ("deepseek-v3", "h200", [(2, 4, 1), (1, 1, 16)]),
        ("mixtral-8x7b", "a100", [(4, 2, 1)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("execution", ["vllm", "sglang", "tensorrt_llm"])
def test_steps_in_columns_are_those_of_each_by_itself(
    model: str, gpu: str, degrees: list[tuple[int, int, int]], execution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [
        (group, run)
        for group, run in runs_of_groups(Request(model, gpu, context_len=2100), [execution], 16)[0]
        if (group.tp, group.pp, group.dp) in degrees
    ]
    assert groups
    columns = times_of(groups, ISL, OSL, 200)
    monkeypatch.setattr(tables, "planned", lambda runs, *_, **__: ([], list(range(len(runs)))))
    alone = times_of(groups, ISL, OSL, 200)
    assert len(columns) == len(alone)
    for one, other in zip(columns, alone, strict=True):
        assert one.group == other.group and len(one.batches) > 3
        for name in ("decode_s", "launched_s", "attention_s", "prefill_s", "occupied_s"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12, err_msg=name)


# -------------------------------------------------------------------------------------------------- the steady state


def test_tables_are_what_predict_says() -> None:
    """A decode step of the tables is that of a long run of the same words."""
    times = of("vllm", tp=2)
    for batch, seconds in zip(times.batches[:5], times.decode_s, strict=False):
        said = predict(MODEL, GPU, mode="decode", batch=int(batch), context_len=ISL + OSL // 2, tp=2, execution="vllm")
        assert seconds == pytest.approx(said.latency_s, rel=0.02)
    said = predict(MODEL, GPU, mode="prefill", batch=1, seq_len=ISL, tp=2, execution="vllm")
    assert times.prefill_s[0] == pytest.approx(said.latency_s, rel=0.15)  # a long run is held by power
    assert times.prefill_s[0] >= said.latency_s * 0.999


def test_one_request_at_a_time_is_the_forecast_of_one() -> None:
    times = of("vllm", tp=1)
    one = closed_loop(times, np.array([1.0]))
    said = predict(MODEL, GPU, mode="generate", batch=1, seq_len=ISL, output_len=OSL, execution="vllm")
    assert one.tpot_s[0] == pytest.approx(said.phases_s["tpot"], rel=0.03)
    assert one.ttft_s[0] == pytest.approx(said.phases_s["ttft"], rel=0.15)


@pytest.mark.parametrize("place", range(9))
def test_tokens_and_requests_are_conserved(place: int) -> None:
    """Little's law for the closed loop, and for those that decode."""
    times = steps()[place * len(steps()) // 9]
    found = closed_loop(times, concurrencies(times.most))
    more = times.osl - 1
    assert found.rate * (found.ttft_s + more * found.tpot_s) == pytest.approx(found.concurrency, rel=1e-3)
    assert found.decoding == pytest.approx(found.rate * more * found.tpot_s, rel=1e-6)
    assert (found.decoding <= found.concurrency * (1 + 1e-9)).all()
    assert (np.diff(found.tpot_s) > -1e-4 * found.tpot_s[1:]).all()
    assert (found.tpot_s >= times.decode(found.decoding) * (1 - 1e-9)).all()


def test_no_more_than_the_slower_side() -> None:
    """A group serves no more requests than it can read prompts, nor than it can decode."""
    for times in steps():
        found = closed_loop(times, concurrencies(times.most))
        alone = decode_alone(times, concurrencies(times.most))[1].max()
        assert found.rate.max() <= alone * (1 + 1e-6)


@pytest.mark.parametrize("execution", ["vllm", "sglang", "tensorrt_llm"])
def test_the_simulation_agrees(execution: str) -> None:
    """The plan's formulas against the events of `serve simulate`: TPOT and tokens/s within 5 %, 10 of pipelines, 12
    where steps between captured batches are launched."""
    simulation = Simulation(Sla())
    plans = [p for p in answer(top=1000).found.best if p.group.execution == execution]
    pipeline = next(p for p in plans if p.prefill is None and p.group.pp > 1)
    plans = [p for p in plans if p.group.pp == 1 and (p.prefill is None or p.prefill.group.pp == 1)]
    both = [next(p for p in plans if p.prefill is None), next(p for p in plans if p.prefill is not None)]
    for plan in (*both, pipeline):
        said = simulation.of(plan)
        assert said is not None
        within = 0.05 if plan.times.captured is None or plan.times.captured.padded else 0.12
        within = 0.1 if plan is pipeline else within
        assert said.tpot_s == pytest.approx(plan.tpot_s, rel=within), str(plan)
        assert said.tokens_per_s == pytest.approx(plan.tokens_per_s, rel=within), str(plan)
        alone = float((plan.prefill or plan.times).prefill(np.ones(1))[0])
        assert alone * 0.9 < said.ttft_s < 10 * alone, str(plan)  # prompts of equal length come in bunches


def test_serve_simulate_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """The best plan's words, typed: a closed loop as long as the plan's."""
    plan = next(p for p in answer(disaggregated=NEVER).found.best if p.group.pp == 1)
    words = ["--tp", str(plan.group.tp), "--execution", plan.group.execution, "--concurrency", str(plan.concurrency)]
    sizes = ["--isl", str(ISL), "--osl", str(OSL), "--range", "1", "--requests", str(plan.concurrency * 6)]
    assert main(["serve", "simulate", "--model", MODEL, "--gpu", GPU, *words, *sizes, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["tpot_ms"]["mean"] == pytest.approx(plan.tpot_s * 1e3, rel=0.1)
    assert said["output_tokens_per_s"] * plan.replicas == pytest.approx(plan.tokens_per_s, rel=0.15)


# ------------------------------------------------------------------------------------------------- what never happens


def test_more_gpus_are_never_worse() -> None:
    groups, _ = runs_of_groups(Request(MODEL, GPU, context_len=ISL), serving_engines(), 9)
    every = times_of(groups, ISL, OSL, 256)
    best = []
    for gpus in range(1, 10):
        fit = [times for times in every if times.group.gpus <= gpus]
        found = search(fit, gpus, SLA)
        best.append(max((plan.rate for plan in found.best), default=0.0))
        assert all(plan.gpus <= gpus for plan in found.best)
    assert best == sorted(best) and best[0] > 0


def test_the_cache_never_overflows() -> None:
    for plan in (*answer().found.best, *answer().found.frontier):
        assert plan.kv_bytes <= plan.times.memory.kv_cache_capacity
        assert plan.concurrency <= plan.times.scheduler.sequences * plan.group.dp
    times = of("vllm", tp=1)
    full = replace(times.run, work=times.run.work.changed(batch=times.most, context_len=ISL + OSL - 1))
    assert memory_of(full, plan_of(full)).fits


def test_the_frontier_is_monotone() -> None:
    front = answer().found.frontier
    users, each_gpu = [p.tokens_per_s_per_user for p in front], [p.tokens_per_s_per_gpu for p in front]
    assert users == sorted(users, reverse=True) and each_gpu == sorted(each_gpu)
    assert len(set(each_gpu)) == len(front) > 5
    for plan in answer().found.best:
        assert any(
            p.tokens_per_s_per_user >= plan.tokens_per_s_per_user * (1 - 1e-9)
            and p.tokens_per_s_per_gpu >= plan.tokens_per_s_per_gpu * (1 - 1e-9)
            for p in front
        )


def test_what_is_listed_meets_the_sla() -> None:
    for plan in answer().found.best:
        assert plan.ttft_s <= SLA.ttft_s * (1 + 1e-9) and plan.tpot_s <= SLA.tpot_s * (1 + 1e-9)
        assert plan.gpus <= 4
    rates = [plan.rate for plan in answer().found.best]
    assert rates == sorted(rates, reverse=True)


def test_a_tighter_sla_is_never_served_better() -> None:
    best = [max((p.rate for p in search(steps(), 4, Sla(1.0, t)).best), default=0.0) for t in (0.008, 0.015, 0.03, 0.1)]
    assert best == sorted(best)


# ------------------------------------------------------------------------------------------------------ rate, cost


def test_the_fewest_gpus_for_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    most = answer(num_gpus=24, rate=40.0, min_gpus=True)
    plan = most.entries[0].plan
    assert plan.rate >= 40.0 * (1 - 1e-9)
    one_less = search(steps(gpus=8), plan.gpus - 1, SLA)
    assert max((p.rate for p in one_less.best), default=0.0) < 40.0 * 1.001
    more = answer(num_gpus=24, rate=80.0, min_gpus=True).entries[0].plan
    assert plan.gpus <= more.gpus <= 2 * plan.gpus
    print_answer(most, Plain())
    said = capsys.readouterr().out.partition(":")[0]
    assert f" on {plan.gpus} {load_gpu(GPU).label}," in said and " of 24 " not in said


def test_a_rate_below_the_most_leaves_speed() -> None:
    idle, busy = answer(rate=1.0).entries[0].plan, answer().entries[0].plan
    assert idle.tpot_s < busy.tpot_s and idle.rate >= 1.0 * (1 - 1e-9)


def test_cost_by_hand() -> None:
    plan = answer().entries[0].plan
    assert cost_per_million(plan, 3.6) == pytest.approx(plan.gpus * 1e-3 / plan.tokens_per_s * 1e6)


def test_the_margin_has_an_interval() -> None:
    for entry in answer(top=3).entries:
        ends = entry.interval
        assert ends is not None
        assert ends.tpot_s[0] < entry.plan.tpot_s < ends.tpot_s[1]
        assert ends.ttft_s[0] < entry.plan.ttft_s < ends.ttft_s[1]


def test_an_interval_of_a_plan_is_that_of_a_service() -> None:
    """A step alone says less: where requests wait, errors are as large as those of measured services."""
    plan = answer(disaggregated=NEVER).entries[0].plan
    ends = interval(plan)
    step = step_facts(decode_run(plan.times.run, ISL, OSL, plan.concurrency))
    assert ends is not None and step is not None
    assert ends.tpot_s[1] / plan.tpot_s > math.exp(error_model().ends(step.without(KERNELS))[1] * 0.5)
    assert ends.ttft_s[1] / plan.ttft_s > ends.tpot_s[1] / plan.tpot_s
    assert (ends.tpot.board, ends.tpot.engine) == (plan.times.run.gpu.id, plan.group.execution)


def test_a_rate_makes_errors_grow_and_a_closed_loop_does_not() -> None:
    plan = answer(disaggregated=NEVER).entries[0].plan
    assert growth(plan) == (1.0, 1.0)
    low, near = (growth(with_rate(plan, part * plan.rate)) for part in (0.3, 0.9))
    assert 1.0 < low[0] == low[1] < near[0] == near[1] == GROWTH[1]  # slower by 0.4, it cannot serve nine tenths


def test_prompts_of_a_disaggregated_plan_queue() -> None:
    """Slower by a, a prompt server is exp(a) times as busy: its TTFT grows as M/D/1 says, and TPOT as its steps do."""
    plan = next(e.plan for e in answer(num_gpus=4, disaggregated=ONLY).entries if e.plan.hand_over_s < e.plan.ttft_s)
    assert plan.prefill is not None and growth(plan) == (1.0, 1.0)
    reached, prompt_s = prefill_rate(plan.prefill)
    most = reached * plan.prefill_replicas
    grown, tpot = growth(replace(plan, comes=0.4 * most))
    slow, busy = prompt_s * math.exp(SLOWER[1]), 0.4 * math.exp(SLOWER[1])
    alone = prompt_s + plan.hand_over_s + prompt_s * 0.4 / 1.2
    rises = math.log((slow + plan.hand_over_s + slow * busy / (2.0 * (1.0 - busy))) / alone) / SLOWER[1]
    assert grown == pytest.approx(rises) and tpot == 1.0 < rises < GROWTH[1]
    assert growth(replace(plan, comes=0.9 * most)) == (GROWTH[1], 1.0)


def test_a_plan_of_single_tokens_has_finite_figures() -> None:
    asked = answer(osl=1, rate=2.0)
    entry = asked.entries[0]
    assert entry.interval is not None and entry.plan.tpot_s == 0.0 and entry.interval.tpot_s == (0.0, 0.0)
    assert all(math.isfinite(end) and end > 0.0 for end in entry.interval.ttft_s)
    said = chances(asked.asked, entry)
    assert said["tpot"] is None and said["ttft"] is not None and said["sla"] == said["ttft"]


def test_a_margin_and_its_probability_are_of_the_same_figure() -> None:
    asked = answer(disaggregated=NEVER)
    strict = replace(asked.asked, sla=replace(SLA, tpot_percentile=90.0))
    held = Simulated(1.0, 1.0, 1.0, 1, SLA.ttft_s * 0.5, SLA.tpot_s * 3.0)
    late = margins(strict, replace(asked.entries[0], simulated=held))
    assert (
        late["tpot"] is not None and late["tpot"][0] == pytest.approx(-2.0) and late["tpot"][1] < -2.0 < late["tpot"][2]
    )
    assert late["ttft"] == margins(asked.asked, asked.entries[0])["ttft"]


def test_how_likely_limits_are_kept() -> None:
    asked = answer(top=3)
    for entry in asked.entries:
        assert entry.interval is not None
        said = chances(asked.asked, entry)
        assert said["ttft"] == entry.interval.ttft.within(SLA.ttft_s)
        assert said["tpot"] == entry.interval.tpot.within(SLA.tpot_s)
        assert said["sla"] == pytest.approx(entry.interval.ttft.within(SLA.ttft_s) * said["tpot"])
    free = replace(asked.asked, sla=Sla(tpot_s=SLA.tpot_s))
    said = chances(free, asked.entries[0])
    assert said["ttft"] is None and said["sla"] == said["tpot"]
    held = Simulated(1.0, 1.0, 1.0, 1, SLA.ttft_s * 0.5, SLA.tpot_s * 3.0)
    strict = replace(asked.asked, sla=replace(SLA, tpot_percentile=90.0))
    late, mean = chances(strict, replace(asked.entries[0], simulated=held)), chances(asked.asked, asked.entries[0])
    assert late["ttft"] == mean["ttft"]
    assert late["tpot"] is not None and late["tpot"] < 0.1


def test_the_first_plan_is_likelier_to_beat_those_that_make_less() -> None:
    asked = answer(top=5)
    told = first_better(asked.entries)
    made = [entry.plan.tokens_per_s_per_gpu for entry in asked.entries]
    assert told[0] is None and all(0.5 <= chance < 1.0 for chance in told[1:] if chance is not None)
    assert made == sorted(made, reverse=True)
    rows = json.loads(to_json(asked))["plans"]
    assert [row["p_first_better"] for row in rows] == told
    assert rows[0]["p_sla"] == chances(asked.asked, asked.entries[0])["sla"]
    assert all(0.0 < row["p_ttft"] <= 1.0 and 0.0 < row["p_tpot"] <= 1.0 for row in rows)


# -------------------------------------------------------------------------------------------------------- disaggregated


def test_disaggregated_plans_balance() -> None:
    """Prompts keep up with decodes, GPUs are those of both, and the hand-over is within the TTFT."""
    found = answer(disaggregated=ONLY, top=1000).found.best
    assert found and all(plan.prefill is not None for plan in found)
    for plan in found:
        assert plan.prefill is not None and plan.prefill.group.execution == plan.group.execution
        assert plan.load <= 1.0
        assert plan.gpus == plan.group.gpus * plan.replicas + plan.prefill.group.gpus * plan.prefill_replicas
        assert plan.hand_over_s > 0.0
        assert plan.ttft_s > plan.hand_over_s + plan.prefill.prefill(np.ones(1))[0]
    assert all(plan.prefill is None for plan in answer(disaggregated=NEVER, top=1000).found.best)


def test_fewer_requests_at_a_time_are_faster_and_fewer() -> None:
    for plan in answer(top=1000).found.best[:6]:
        if plan.concurrency > 8:
            less = at_concurrency(plan, plan.concurrency // 2)
            assert less.tpot_s < plan.tpot_s and less.rate < plan.rate
            assert at_concurrency(plan, plan.concurrency).tpot_s == pytest.approx(plan.tpot_s, rel=0.02)


# ------------------------------------------------------------------------------------------------------ what is printed


def plan_of_group(execution: str, **degrees: int) -> ServingPlan:
    times = replace_group(of(execution, tp=2), **degrees)
    return ServingPlan(times, 1, 16, 0.1, 0.01, 10.0, 0.1, 16.0)


def replace_group(times: GroupTimes, **degrees: int) -> GroupTimes:
    return replace(times, group=Group(times.group.execution, **degrees))


def test_commands_by_hand() -> None:
    text = commands(plan_of_group("vllm", tp=2, pp=2), "meta-llama/Llama-3.1-8B")
    line = text.splitlines()[-1]
    assert line.startswith("vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --pipeline-parallel-size 2 ")
    assert "--max-num-seqs 16" in line and "--gpu-memory-utilization 0.92" in line
    sglang = commands(plan_of_group("sglang", tp=2, dp=4), "m").splitlines()[-1]
    assert "--tp-size 8" in sglang and "--dp-size 4 --enable-dp-attention" in sglang  # dp is inside tp there
    assert "--max-running-requests 16" in sglang
    trt = commands(in_formats(plan_of_group("tensorrt_llm", tp=2), kv_dtype="fp8"), "m")
    options = yaml.safe_load(trt.split("<<'END'\n")[1].split("\nEND")[0])
    assert options["kv_cache_config"] == {"dtype": "fp8", "free_gpu_memory_fraction": 0.9}
    assert trt.splitlines()[-1].startswith("trtllm-serve m --tp_size 2") and "--config tensorrt_llm.yaml" in trt


def in_formats(plan: ServingPlan, **words: str) -> ServingPlan:
    """The plan as of a request with a dtype, or a KV cache, of its own."""
    group = plan.times.group
    asked = Request(words.pop("model", MODEL), GPU, mode="decode", execution=group.execution, context_len=100, **words)  # type: ignore[arg-type]
    return replace(plan, times=replace(plan.times, run=asked.run()))


def read_back(text: str) -> dict[str, str]:
    """The options of the last command of a text and of its file, by flag or key."""
    words = shlex.split(text.splitlines()[-1])
    found = {word: value for word, value in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}
    if "<<'END'" in text:
        found |= {str(k): str(v) for k, v in yaml.safe_load(text.split("<<'END'\n")[1].split("\nEND")[0]).items()}
    return found | {"model": next(word for word in words if "lama" in word)}


#: What each engine calls the words of a plan; dp is inside tp in two of them.
FLAGS = {
    "vllm": ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--enable-expert-parallel",
             "--max-num-seqs", "--max-num-batched-tokens", "--max-model-len", "--gpu-memory-utilization"),
    "sglang": ("--tp-size", "--pp-size", "--dp-size", "--ep-size", "--max-running-requests", "--chunked-prefill-size",
               "--context-length", "--mem-fraction-static"),
    "tensorrt_llm": ("--tp_size", "--pp_size", "enable_attention_dp", "--ep_size", "--max_batch_size",
                     "--max_num_tokens", "--max_seq_len", "--kv_cache_free_gpu_memory_fraction"),
}  # fmt: skip


@pytest.mark.parametrize("engine", tuple(FLAGS))
@pytest.mark.parametrize("degrees", [(1, 1, 1), (2, 1, 1), (4, 2, 1), (1, 1, 8), (2, 2, 4)])
def test_every_word_of_a_plan_is_in_its_command(engine: str, degrees: tuple[int, int, int]) -> None:
    tp, pp, dp = degrees
    times = replace_group(of(engine, tp=2), tp=tp, pp=pp, dp=dp, ep=tp * dp)
    mixtral = Request("mixtral-8x7b", GPU, mode="decode", execution=engine, context_len=100).run()
    plan = ServingPlan(replace(times, run=mixtral), 1, 16 * dp, 0.1, 0.01, 10.0, 0.1, 16.0)
    found = read_back(commands(plan, "llama"))
    flags = FLAGS[engine]
    inside = engine != "vllm"
    assert found[flags[0]] == str(tp * dp if inside else tp)
    assert found.get(flags[1], "1") == str(pp)
    assert (flags[2] in found) == (dp > 1) and (dp == 1 or found[flags[2]] in (str(dp), "True"))
    assert (flags[3] in found) == (tp * dp > 1)
    assert engine == "vllm" or found.get(flags[3], "1") == str(tp * dp)  # there all GPUs of a stage share the experts
    way = {"vllm": ("--all2all-backend", "allgather_reducescatter"), "sglang": ("--moe-a2a-backend", "none")}
    if dp > 1 and engine in way:
        assert found[way[engine][0]] == way[engine][1]
    assert found[flags[4]] == str(16 * dp if engine == "sglang" else 16)
    # SGLang divides its chunk by dp (0.5.9 server_args.py:2115-2117)
    assert found[flags[5]] == str(times.scheduler.tokens * (dp if engine == "sglang" else 1))
    assert int(found[flags[6]]) >= ISL + OSL
    assert float(found[flags[7]]) == pytest.approx(times.memory.fraction)


def test_tokens_come_to_experts_as_forecast_or_the_engine_is_refused() -> None:
    """No option of vLLM (0.25 maps naive to its default) or SGLang sends copies by NCCL; DeepEP has kernels for prompts
    of their own, which vLLM has as another backend, and SGLang by itself (deepep_mode auto)."""
    for engine, sent, prompts in (("vllm", "deepep_low_latency", "deepep_high_throughput"),
                                  ("sglang", "deepep", "deepep")):  # fmt: skip
        times = replace_group(of(engine, tp=2), tp=1, pp=1, dp=8, ep=8)

        def of_way(way: str, times: GroupTimes = times, engine: str = engine) -> GroupTimes:
            words: dict[str, Any] = {"execution": engine, "context_len": 100, "dp": 8, "ep": 8, "batch": 8}
            return replace(times, run=Request("mixtral-8x7b", GPU, mode="decode", all_to_all=way, **words).run())

        deepep = of_way("deepep")
        apart = ServingPlan(deepep, 1, 16, 0.1, 0.01, 10.0, 0.1, 16.0, deepep, 1)
        lines = [line for line in commands(apart, "m").splitlines() if not line.startswith("#")]
        flag = "--all2all-backend" if engine == "vllm" else "--moe-a2a-backend"
        assert [line.split(f"{flag} ")[1].split()[0] for line in lines] == [prompts, sent]
        with pytest.raises(UnsupportedError, match="it has no option for --all-to-all nccl"):
            commands(ServingPlan(of_way("nccl"), 1, 16, 0.1, 0.01, 10.0, 0.1, 16.0), "m")


def test_sglang_shares_a_chunk_out_over_ranks() -> None:
    """0.4.0 server_args.py:200-206, 0.5.9 :2115-2117: chunked_prefill_size // dp_size; vLLM's budget is a rank's."""
    for engine, shared in (("sglang", True), ("vllm", False)):
        release = engines.engine(engine).vintage()
        assert release is not None and release.scheduler is not None
        one, eight = (release.scheduler(Setting(load_gpu(GPU), dp=dp)).tokens for dp in (1, 8))
        assert eight == (one // 8 if shared else one)


@pytest.mark.parametrize("engine", tuple(FLAGS))
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "fp8_block", "int4_wo", "int8"])
@pytest.mark.parametrize("kv", [None, "auto", "fp8"])
def test_number_formats_of_a_plan_are_in_its_command(engine: str, dtype: str, kv: str | None) -> None:
    """A command never loads weights in another format than the plan's: it names the format, or a checkpoint in it."""
    plan = in_formats(plan_of_group(engine, tp=2), dtype=dtype, **({} if kv is None else {"kv_dtype": kv}))
    found = read_back(commands(plan, "meta-llama/L"))
    said = found.get("--dtype", found.get("dtype", "")), found.get("--quantization", "")
    made = engine != "tensorrt_llm" and dtype == "fp8"
    published = engine == "tensorrt_llm" and dtype == "fp8"  # that engine makes none: NVIDIA's checkpoints are static
    in_format = "fp8_static" if published else dtype
    wide = {"bf16": "bfloat16", "fp16": "float16"}
    assert said == (wide.get(dtype, ""), "fp8" if made else "")
    assert found["model"] == ("meta-llama/L" if made or dtype in wide else f"<meta-llama/L in {in_format}>")
    cache = found.get("--kv-cache-dtype", found.get("kv_cache_config", ""))
    assert ("fp8" in cache) == (kv == "fp8" or (kv is None and published))


def test_a_checkpoint_in_the_format_needs_no_word() -> None:
    own = in_formats(plan_of_group("vllm", tp=2), model="deepseek-v3")
    assert own.times.run.work.dtype.startswith("fp8")
    text = commands(own, "deepseek-ai/llama")
    assert "--quantization" not in text and "--dtype" not in text and "<" not in text
    other = commands(in_formats(plan_of_group("vllm", tp=2), model="deepseek-v3", dtype="bf16"), "deepseek-ai/llama")
    assert "'<deepseek-ai/llama in bf16>'" in other, "the one that is published is in fp8"


@pytest.mark.parametrize("name", listed())
def test_every_option_names_its_source(name: str) -> None:
    document = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    assert name in engines.names()
    for release in document["releases"]:
        assert release["source"] and release["version"]
    options = launch_options(engines.engine(name))
    assert {"tp", "tokens", "sequences", "context", "memory"} <= set(options.options)
    assert "{tp}" in options.options["tp"] or "{world}" in options.options["tp"]


def test_an_old_release_has_fewer_options() -> None:
    old = launch_options(engines.engine("vllm").as_of("0.6.6"))
    assert old.version == "0.6" and "dp" not in old.options
    with pytest.raises(RequestError, match=r"options are known from 0\.6 on"):
        launch_options(engines.engine("vllm").as_of("0.2.7"))


def test_rows_json_and_pictures_hold_the_same() -> None:
    found = answer(simulate=1)
    document = json.loads(to_json(found, 3.0))
    assert document["plans"][0]["simulated"]["requests"] > 100
    assert [row["tpot_ms"] for row in document["frontier"]] == [p.tpot_s * 1e3 for p in found.found.frontier]
    rows = rows_of(found, 3.0)
    assert {row["set"] for row in rows} == {"plans", "frontier"}
    assert len(rows) == len(found.entries) + len(found.found.frontier)
    assert len({tuple(row) for row in rows}) == 1
    svg = frontier_svg(found).decode()
    assert svg.count('class="dot') == len(found.found.frontier) and svg.startswith("<svg")
    page = to_html(found, 3.0)
    assert "Points of the frontier" in page and "<script" in page


def test_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["serve", "plan", "--model", MODEL, "--gpu", GPU, "--isl", "2000", "--osl", "200", "--execution", "vllm"]
    files = [tmp_path / name for name in ("f.svg", "f.parquet", "f.html")]
    outs = [word for path in files for word in ("--out", str(path))]
    assert main([*words, "--num-gpus", "2", "--tpot", "30ms", "--price", "h100=3", "--simulate", "1", *outs]) == 0
    said = capsys.readouterr().out
    assert "tokens/s/GPU" in said and "TPOT: " in said and "for a million output tokens" in said
    assert all(path.stat().st_size > 1000 for path in files)
    import pandas as pd

    frame = pd.read_parquet(files[1])
    assert set(frame["set"]) == {"plans", "frontier"} and frame["tpot_ms"].notna().all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--num-gpus", "2", "--tpot", "1us"], "no plan on 2 h100-sxm meets TTFT any and TPOT 0.001 ms.*nearest: "),
        (["--num-gpus", "0"], "--num-gpus 0: expected at least 1"),
        ([], "--num-gpus: expected how many GPUs"),
        (["--num-gpus", "2", "--min-gpus"], "--min-gpus: needs a load; expected --rate"),
        (["--num-gpus", "2", "--execution", "eager"], "--execution eager serves no requests; expected some of"),
        (["--num-gpus", "2", "--emit", "ray"], "--emit ray: expected one of"),
        (["--num-gpus", "2", "--out", "f.png"], "--out 'f.png': expected a file that ends in"),
        (["--num-gpus", "2", "--disaggregated", "maybe"], "--disaggregated 'maybe': expected one of also"),
        (["--num-gpus", "2", "--ttft", "soon"], "--ttft: 'soon' is not a quantity"),
        (["--num-gpus", "1", "--isl", "9000000"], "--num-gpus 1: llama-3.1-8b and a request of"),
    ],
)
def test_nonsense_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [] if "--isl" in words else ["--isl", "2000"]
    engine = [] if "--execution" in words else ["--execution", "vllm"]
    given = ["serve", "plan", "--model", MODEL, "--gpu", GPU, "--osl", "200", *sizes, *engine]
    assert main([*given, *words]) == 2
    line = capsys.readouterr().err.strip()
    assert "\n" not in line
    import re

    assert re.search(said, line), line


def test_what_a_search_imports() -> None:
    """No table library and no plotting where none is asked for."""
    code = (
        "import sys; from predictor.cli.main import main;"
        " main(['serve', 'plan', '--model', 'llama-3.1-8b', '--gpu', 'h100',"
        " '--num-gpus', '1', '--isl', '500', '--osl', '50', '--execution', 'vllm', '--simulate', '0', '--json']);"
        " print(sorted({'pandas', 'torch', 'pyarrow', 'matplotlib', 'scipy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().endswith("[]")
    assert json.loads(done.stdout)["plans"][0]["gpus"] == 1
    assert math.isfinite(json.loads(done.stdout)["plans"][0]["tpot_ms"])


def test_percentiles_are_held_against_simulations() -> None:
    """Of the same seconds, a limit for 99 % of the requests allows no more at a time than one for their mean; every
    plan that is listed has a simulation."""
    means = answer(num_gpus=1, executions=("vllm",), top=2, simulate=2)
    strict = replace(SLA, ttft_percentile=99.0, tpot_percentile=90.0)
    held = answer(num_gpus=1, executions=("vllm",), top=2, sla=strict, simulate=0)
    assert len(held.entries) == len(means.entries)
    for entry in held.entries:
        simulated = entry.simulated
        assert simulated is not None and simulated.meets(strict)
        assert simulated.held_s[0] >= simulated.ttft_s and simulated.held_s[0] <= SLA.ttft_s
    tight = replace(strict, ttft_s=means.entries[0].simulated.ttft_s * 1.05)  # type: ignore[union-attr]
    fewer = answer(num_gpus=1, executions=("vllm",), top=2, sla=tight)
    assert fewer.entries[0].plan.concurrency < held.entries[0].plan.concurrency
    mean, percent = Simulated(1.0, 0.02, 1.0, 1), Simulated(1.0, 0.02, 1.0, 1, 1.5)
    assert mean.meets(SLA) and not percent.meets(SLA) and percent.held_s == (1.5, 0.02)
    plan = json.loads(to_json(held))["plans"][0]["simulated"]
    assert plan["ttft_held_ms"] > plan["ttft_ms"]
    asked = json.loads(to_json(held))
    assert (asked["ttft_percentile"], asked["tpot_percentile"]) == (99.0, 90.0)
    assert json.loads(to_json(means))["ttft_percentile"] is None


@pytest.mark.parametrize("text", ["p0:1s", "p100:1s", "q99:1s", "p99:", "p99:1", "p99:-1s", ":1s", "p99"])
def test_what_is_no_limit_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", MODEL, "--gpu", GPU, "--num-gpus", "1", "--isl", "9", "--osl", "9", "--ttft", text]
    assert main(["serve", "plan", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --ttft") and said.count("\n") == 1


def test_limits_that_are_missed_are_said() -> None:
    """Simulated figures above the SLA are marked on the page and in JSON; the nearest plan says what it misses."""
    given = answer()
    slow = replace(given.entries[0], simulated=Simulated(SLA.ttft_s * 2, SLA.tpot_s / 2, 1.0, 1))
    fine = replace(given.entries[0], simulated=Simulated(SLA.ttft_s, SLA.tpot_s, 1.0, 1))
    several = replace(given, entries=(slow, fine))
    assert [plan["simulated_missed"] for plan in json.loads(to_json(several))["plans"]] == [["ttft"], []]
    assert to_html(several).count("(missed)") == 1 and "2 s (missed)" in to_html(several)
    plan = given.entries[0].plan
    assert nothing_meets(given.asked, replace(plan, tpot_s=1.5 * SLA.tpot_s)).endswith("; misses TPOT by 50.0%")
    fast = replace(given.asked, rate=plan.rate * 2)
    assert nothing_meets(fast, replace(plan, ttft_s=9.0)).endswith("; misses TTFT by 800% and requests/s by 50.0%")
