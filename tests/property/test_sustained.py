"""Power in long runs: the law against published clocks and rates; short runs to the bit; smooth, and monotone."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import predictor
from predictor.engines import EAGER
from predictor.graph import Block, Graph, Node
from predictor.hardware.gpu import GPUSpec, list_gpus, load_gpu
from predictor.hardware.what_if import vary
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.kernels.device import STATIC
from predictor.kernels.power import EFFICIENCY, held_clock, held_s, need, seconds_at
from predictor.ops import Attention, Gemm
from predictor.simulate.stage import Plan, Stage
from predictor.simulate.sustained import SETTLING_S
from predictor.simulate.times import Operators, TimedStage

ARTIFACTS = load_artifacts()
PCIE = load_gpu("a100-pcie-80gb")
SQUARE = Gemm("bf16", 8192, 8192, 8192)
FEW = Gemm("bf16", 16, 8192, 8192)


def run(repeat: int, gpu: GPUSpec = PCIE, op: Gemm = SQUARE) -> TimedStage:
    graph = Graph((Block("layer", (Node(op, name="product"), Node(FEW)), repeat=repeat),))
    ((done,),) = Operators(gpu, EAGER, ARTIFACTS).time([Plan((Stage(graph, "forward"),))])
    return done


def clock_at(power: float, use: float = 1.0) -> float:
    """Share of the need's clock that so much of the need holds, of a product that reads nothing."""
    return 1.0 / float(seconds_at(power, np.array([use]), np.zeros(1), np.ones(1))[0])


def need_of(clock: float, watts: float) -> float:
    """W at the boost clock of a board that holds so much of it."""
    low, high = watts, 100.0 * watts
    for _ in range(60):
        low, high = (low, (low + high) / 2) if clock_at(2 * watts / (low + high)) < clock else ((low + high) / 2, high)
    return low


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        # (share of the boost clock, W): RTX PRO 6000 at two limits, 2,430 MHz; MI300X and MI325X, bf16, 2,100 MHz
        ((2338 / 2430, 600.0), (1641 / 2430, 300.0)), ((1207 / 2100, 750.0), (1447 / 2100, 1000.0)),
    ],
)  # fmt: skip
def test_one_clock_says_the_other(known: tuple[float, float], asked: tuple[float, float]) -> None:
    found = clock_at(asked[1] / need_of(*known))
    assert found == pytest.approx(asked[0], rel=0.03)
    assert (asked[1] / known[1]) ** 1.0 != pytest.approx(asked[0] / known[0], rel=0.03)  # not in proportion


@pytest.mark.parametrize(
    ("name", "published"), [("a100-sxm-80gb", 271.2e12), ("a100-pcie-80gb", 252.9e12), ("h100-sxm", 794.5e12)]
)
def test_long_products_are_at_most_the_best_that_was_published(name: str, published: float) -> None:
    gpu = load_gpu(name)
    assert 0.94 * published < held_clock(gpu) * EFFICIENCY * gpu.peak_flops("bf16")
    for op in (SQUARE, Gemm("bf16", 2048, 2048, 13312)):
        done = run(2000, load_gpu(name), op)
        assert op.flops() / done.operators.seconds[0] <= published * 1.01


def test_blackwell_is_held_near_the_clock_that_was_seen() -> None:
    """B200 under attention whose products are 1,450 of 2,250 TFLOP/s at the boost clock: 1,580 of 1,965 MHz."""
    gpu = load_gpu("b200-sxm")
    watts, at_hz = need(gpu) or (0.0, 0.0)
    clock = at_hz * clock_at(gpu.power_limit_w / watts, 1450 / 2250 / EFFICIENCY)
    assert clock == pytest.approx(1580e6, rel=0.06)
    assert held_clock(gpu, 8) < held_clock(gpu) < 0.8  # products keep the tensor cores busier than attention does
    op = Gemm("mxfp8", 8192, 8192, 8192)
    assert held_s([op], gpu, np.array([2e-4])) > 2e-4


@pytest.mark.parametrize(("name", "like"), [("b300-sxm", "b200-sxm"), ("gb300", "gb200")])
def test_a_chip_of_a_family_is_held_as_its_siblings_are(name: str, like: str) -> None:
    """As many SMs, and 1.10 or 1.17 times the power: the held clock rises by less than that, and the answer says whose
    watts these are."""
    gpu, sibling = load_gpu(name), load_gpu(like)
    for bits in (16, 8):
        hz, its_hz = (held_clock(one, bits) * one.boost_clock_hz for one in (gpu, sibling))
        assert 1.0 < hz / its_hz < gpu.power_limit_w / sibling.power_limit_w
    train = partial(predictor.predict, "llama-3.1-8b", mode="train", batch=1, seq_len=4096)
    (said,) = (note for note in train(gpu=name).notes if "power limit" in note)
    assert said.endswith("Watts are those of compute capability 10.0 (unverified).")
    (said,) = (note for note in train(gpu=like).notes if "power limit" in note)
    assert "compute capability" not in said


@pytest.mark.parametrize("use", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("reads", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("power", [0.1, 0.25, 0.6, 0.9, 1.4])
def test_power_is_that_of_the_clock_and_of_what_is_busy(use: float, reads: float, power: float) -> None:
    """The law, put together again: at the clock that is found, the SMs that run draw the board's limit."""
    taken = float(seconds_at(power, np.array([use]), np.array([reads]), np.array([1.0 - reads]))[0])
    running = min(1.0, power / (1.5 * STATIC))
    clock = (1.0 - reads) / (taken - reads) / running
    a_running = STATIC + (1 - STATIC) * use / (running * clock * taken) * clock**3
    assert running * a_running == pytest.approx(power, rel=1e-4)
    more = float(seconds_at(1.1 * power, np.array([use]), np.array([reads]), np.array([1.0 - reads]))[0])
    assert more < taken


def test_less_power_slows_by_no_more_than_sms_switched_off_would() -> None:
    """A limit below what all SMs draw with nothing to do leaves some of them; there is no step on the way."""
    powers = np.geomspace(0.02, 2.0, 200)
    arguments = np.array([0.9]), np.array([0.2]), np.array([0.8])
    taken = np.array([float(seconds_at(power, *arguments)[0]) for power in powers])
    slower, less = taken[:-1] / taken[1:], powers[1:] / powers[:-1]
    assert (slower > 1.0).all() and (slower <= less).all()


def test_a_faster_clock_or_more_power_never_slows_a_long_run() -> None:
    """All boards; products from few rows, which bytes bound, to many. 2 %: steps of the learned part of a board that
    was measured, which no burst is free of either; the law alone has none."""
    products = [Gemm("bf16", m, n, k) for m in (16, 128, 256, 4096) for n, k in ((4096, 14336), (14336, 4096))]
    factors = (0.6, 1.0, 1.2, 1.5, 2.0, 3.0)
    for name in list_gpus():
        gpu = load_gpu(name)
        if not any(dtype == "bf16" for dtype, _ in gpu.peaks):
            continue
        for parameter in ("clock", "power_limit"):
            boards = [vary(gpu, parameter, factor) for factor in factors]
            alone = np.array([predict_kernels(products, board, ARTIFACTS).latency_s for board in boards])
            held = np.array([held_s(products, *one) for one in zip(boards, alone, strict=True)])
            slower = np.maximum(alone, held)[1:] / np.maximum(alone, held)[:-1]
            assert (slower <= 1.02 * np.maximum(alone[1:] / alone[:-1], 1.0)).all(), (name, parameter)


def test_what_the_forecast_lowers_already_is_not_lowered_again() -> None:
    """H100 PCIe, whose core takes two thirds of its boost clock: power takes next to nothing more."""
    board = load_gpu("h100-pcie")
    burst = predict_kernels([SQUARE], board, ARTIFACTS).latency_s
    assert held_clock(board) < 0.8 and held_s([SQUARE], board, burst)[0] < 1.05 * burst[0]


def test_short_runs_are_the_same_to_the_bit() -> None:
    table = predict_kernels([SQUARE, FEW], PCIE, ARTIFACTS)
    assert (held_s([SQUARE], PCIE, table.latency_s[:1]) > table.latency_s[:1]).all()  # power would hold it
    for repeat in (1, 2, 4):
        done = run(repeat)
        assert done.operators.seconds.tolist() == table.latency_s.tolist()
        assert done.kernels_s == repeat * float(np.add.reduce(table.latency_s))


def test_a_long_run_is_held_and_the_settling_is_not() -> None:
    """Hand count: the same longer time for everything behind the first 20 ms, and none before."""
    burst = predict_kernels([SQUARE, FEW], PCIE, ARTIFACTS).latency_s
    held = held_s([SQUARE, FEW], PCIE, burst)
    repeat = 500
    work = repeat * (burst[0] + held[1])
    expected = repeat * burst.sum() + repeat * (held[0] - burst[0]) * (1 - SETTLING_S / work)
    done = run(repeat)
    assert done.kernels_s == pytest.approx(expected)
    assert done.operators.seconds[1] == burst[1]  # bytes bound it
    assert done.table.latency_s.tolist() == done.operators.seconds.tolist()
    spread = done.table.spread
    assert spread is not None and spread.low_s[0] < done.operators.seconds[0] < spread.high_s[0]


def test_longer_runs_take_longer_without_a_jump() -> None:
    each = [run(repeat).kernels_s / repeat for repeat in range(1, 40)]
    growth = np.diff(each)
    assert (growth >= -1e-15).all() and growth.max() < 0.04 * each[0]
    whole = np.diff([repeat * one for repeat, one in enumerate(each, 1)])
    assert (whole > 0).all()
    sizes = [run(50, op=Gemm("bf16", 512 * i, 8192, 8192)).kernels_s for i in (1, 2, 4, 8, 16, 32)]
    assert sizes == sorted(sizes)


def test_more_power_is_never_slower() -> None:
    for name in ("a100-sxm-80gb", "h100-sxm", "l40s"):
        gpu = load_gpu(name)
        boards = [replace(gpu, power_limit_w=watts) for watts in (100.0, 200.0, 300.0, 400.0, 600.0, 900.0, 1500.0)]
        clocks = [held_clock(board) for board in boards]
        assert clocks == sorted(clocks) and clocks[0] > 0.0 and clocks[-1] == 1.0
        times = [run(200, board).kernels_s for board in boards]
        assert times == sorted(times, reverse=True)


def test_what_no_published_rate_tells_of_is_not_held() -> None:
    others = [
        Gemm("fp32", 8192, 8192, 8192),
        Gemm("int8", 8192, 8192, 8192),
        Attention("bf16", 8, 32, 8, 4096, 4096, 128),
    ]
    assert held_s(others, PCIE, np.full(3, 1e-3)).tolist() == [0.0] * 3
    for name in list_gpus():
        gpu = load_gpu(name)
        assert (held_clock(gpu) < 1.0) <= (gpu.compute_capability in ("8.0", "9.0", "10.0", "10.3")), name
    assert held_clock(load_gpu("h20-sxm")) == 1.0  # a quarter of the tensor rate
    assert EFFICIENCY < 1.0 and held_s([SQUARE], load_gpu("h20-sxm"), np.ones(1)).tolist() == [0.0]
    alone = predictor.predict("gpt3", "a100-pcie-80gb", mode="prefill", batch=4, artifacts="roofline")
    assert not any("of their clock" in note for note in alone.notes)


def test_a_forecast_says_what_power_takes() -> None:
    words = {"mode": "prefill", "batch": 8, "execution": "vllm"}
    found = predictor.predict("llama-3.1-8b", "a100-pcie-80gb", explain="mlp down", **words)
    (note,) = [note for note in found.notes if "of their clock" in note]
    assert note.startswith("The power limit of a100-pcie-80gb (300 W) holds its tensor cores at 0.81 of their clock: +")
    assert re.fullmatch(r"\+[0-9.]+ (us|ms|s)\.", note.rpartition(" clock: ")[2])
    why = found.explained
    assert why is not None and why.bound == "the power limit"
    terms = {term.name: term.value for term in why.terms if term.group == "power"}
    assert terms["in a burst"] < why.latency_s <= terms["held"]
    short = predictor.predict("llama-3.1-8b", "a100-pcie-80gb", mode="prefill", seq_len=128, execution="vllm")
    assert not any("of their clock" in note for note in short.notes)
