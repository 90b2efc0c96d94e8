"""What cases cost, beside what the simulated board takes for them, and plans as deep as a budget."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import microbench_cases as cases
import pytest

torch = pytest.importorskip("torch")

import simulated_cuda  # noqa: E402

from microbench import calibration, prices, sweep  # noqa: E402
from microbench.capability import Target  # noqa: E402
from microbench.case import Case  # noqa: E402
from microbench.cli import main  # noqa: E402
from microbench.timing_settings import Settings  # noqa: E402
from predictor.data.schema import SUSTAINED  # noqa: E402
from predictor.ops import Gemm, Softmax  # noqa: E402

SMALL = Softmax("fp32", 64, 64)


@pytest.mark.parametrize(
    "case",
    [
        Case("softmax", SMALL, (), "warm", "cuda_graph"), Case("softmax", SMALL, (), "warm", "eager_events"),
        Case("softmax", SMALL, (), "cold", "eager_events"), Case("softmax", SMALL, (), "warm", SUSTAINED),
        Case("gemm", Gemm("bf16", 4, 512, 512), (), "rotating", "cuda_graph"),
    ],
    ids=lambda case: f"{case.cache} {case.protocol}",
)  # fmt: skip
def test_a_price_is_what_the_simulated_board_takes(case: Case) -> None:
    from microbench.devices import open_device
    from microbench.measure import Measurer

    target = replace(cases.GPU, cache_bytes=2.0**20)
    done = simulated_cuda.install(simulated_cuda.Board(l2_bytes=2**20))
    try:
        measurer = Measurer(open_device("cuda", 0), Settings(profile=False, check=False))
        begin = done.board.now()
        measurer.measure(case)
        took = done.board.now() - begin
    finally:
        done.remove()
    assert prices.timed_s(case, target, Settings()) == pytest.approx(took, rel=0.35)


def _plan(target: Target, budget_s: float) -> tuple[sweep.CasePlan, float]:
    plan = prices.deepened(target, ("gemm", "softmax", "sort"), None, sweep.SWEEPS, budget_s, Settings())
    return plan, sum(prices.case_seconds(case, target, Settings()) for case in plan.cases)


def test_a_longer_budget_buys_more_cases_and_keeps_their_share() -> None:
    short, short_s = _plan(cases.GPU, 60.0)
    long, long_s = _plan(cases.GPU, 3 * short_s)
    assert len(long.cases) > 2 * len(short.cases) and long_s > 2 * short_s
    assert {case.id for case in short.cases} <= {case.id for case in long.cases}  # a budget goes on with another's rows
    read = [calibration.reads(case, cases.GPU) for case in long.cases]
    assert all(sum(read[:many]) >= 0.55 * many for many in (1000, len(short.cases), len(read)))


def test_two_thirds_of_linear_layers_are_of_served_models_by_their_bytes() -> None:
    pairs, shares = sweep.served_products()
    assert len(pairs) == len(set(pairs)) == len(shares) == 85 and shares[-1] == 1.0
    built = sweep.build(cases.GPU, ("gemm",), ("bf16",)).cases
    layers = {(op.m, op.n, op.k) for case in built if isinstance(op := case.op, Gemm) and op.kind == "linear"
              and op.layout == "tn"}  # fmt: skip
    served = Counter((n, k) for _, n, k in layers if (n, k) in pairs)
    assert sum(served.values()) == pytest.approx(0.67 * len(layers), rel=0.1)
    weights = dict(zip(pairs, (n * k for n, k in pairs), strict=True))
    heavy = sorted(pairs, key=lambda pair: -weights[pair])[:10]
    assert sum(served[pair] for pair in heavy) / sum(served.values()) == pytest.approx(
        sum(weights[pair] for pair in heavy) / sum(weights.values()),
        rel=0.25,  # a shape stands once
    )


def test_a_sweep_of_ones_own_may_ask_for_them(tmp_path: Path) -> None:
    (tmp_path / "gemm.yaml").write_text(
        "launcher: gemm\ngroups:\n  - {name: a, dtypes: [bf16], served: 1.0, points: 20, axes: {m: {log: [1, 64]},"
        " n: {log: [64, 128]}, k: {log: [64, 128]}}, fields: {kind: linear, layout: tn}}\n"
    )
    built = sweep.build(cases.GPU, folder=tmp_path).cases
    assert built and all((case.op.n, case.op.k) in sweep.served_products()[0] for case in built)  # type: ignore[attr-defined]


def test_sweeps_of_ones_own_keep_their_points_whatever_the_budget(tmp_path: Path) -> None:
    (tmp_path / "softmax.yaml").write_text(
        "launcher: softmax\ngroups:\n  - {name: a, dtypes: [fp32], points: 8, timed: [[warm, eager_events, 1.0]],"
        " axes: {rows: {log: [64, 4096]}, cols: {log: [64, 4096]}}}\n"
    )
    assert len(prices.deepened(cases.CPU, None, None, tmp_path, 480.0, Settings()).cases) == 8


def test_a_processor_draws_its_linear_layers() -> None:
    pairs, _ = sweep.served_products()
    built = sweep.build(cases.CPU, ("gemm",), ("bf16",)).cases
    drawn = [(op.n, op.k) for case in built if isinstance(op := case.op, Gemm) and op.layout == "tn"]
    assert sum(pair in pairs for pair in drawn) < 0.1 * len(drawn)  # powers of two meet by chance


def test_plan_says_how_many_rows_calibrate_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--gpu", "h100", "--budget", "2min", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert 0.55 * said["cases_within_budget"] <= said["read_by_calibrate"] <= 0.7 * said["cases_within_budget"]
