"""How a collection's clock is shared, by a clock that the test moves: no machine is too busy for it."""

from __future__ import annotations

import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from microbench_cases import build_once
from test_microbench_gpus import FakeWorker

from microbench import collect, sweep
from microbench.budget import Budget
from microbench.capability import cpu_target, gpu_target
from microbench.case import Case
from microbench.collect import Collection
from microbench.dataset import read
from microbench.request import CollectionRequest
from microbench.supervisor import CaseOutcome
from predictor.hardware.gpu import load_gpu


class Clock:
    """Seconds that pass when something is done: to start a worker, to answer a case."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """One GPU of workers whose start takes `start_s` and whose cases take `case_s`, samples apart."""
    clock = Clock()
    monkeypatch.setattr(collect, "Budget", lambda seconds, begin: Budget(seconds, begin, clock))
    monkeypatch.setattr(collect, "BenchWorker", Slow)
    monkeypatch.setattr(Slow, "clock", clock)
    monkeypatch.setattr(Slow, "given", [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    build_once(monkeypatch)
    return clock


class Slow(FakeWorker):
    clock: Any = None
    given: list[tuple[str, float | None]] = []  # noqa: RUF012 - set by the fixture
    start_s, case_s = 2.0, 0.25

    def wait_ready(self) -> dict[str, Any]:
        self.clock.now += 0.0 if self.names else self.start_s  # the two begin at once
        return super().wait_ready()

    def ask(self, case: Case, timeout_s: float, samples_s: float | None = None, kernel: Any = None) -> CaseOutcome:
        takes = (2.0 if case.launcher == "ceiling" else self.case_s) + (0.4 if samples_s is None else samples_s)
        self.given.append((case.launcher, samples_s))
        self.clock.now += min(takes, timeout_s)
        if takes > timeout_s:
            return CaseOutcome(failure={"kind": "timeout", "reason": f"no answer within {timeout_s:.0f} s"}, dead=True)
        return super().ask(case, timeout_s, samples_s)


def run(out: Path, clock: Clock, budget_s: float | None, **more: Any) -> collect.Summary:
    return Collection(CollectionRequest(out, budget_s=budget_s, begin=clock.now, **more), quiet=True).run()


def rows(out: Path) -> Counter[str]:
    return Counter(row["launcher"] for part in read(out) for row in part.all_rows)


def test_a_short_budget_has_a_row_of_every_operator(machine: Clock, tmp_path: Path) -> None:
    begin = machine.now
    summary = run(tmp_path, machine, 20.0)
    every = set(sweep.sweep_names()) - {"collective", "serving"}  # one GPU, no library
    assert set(rows(tmp_path)) == every | {"ceiling"}
    assert summary.stopped_by == "budget" and summary.without_rows == [] and summary.new_failures == 0
    assert 15.0 < machine.now - begin <= 20.0
    assert summary.left == summary.cases - sum(n for name, n in rows(tmp_path).items() if name != "ceiling")


def test_what_the_clock_left_out_is_named(
    machine: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from microbench.cli import main

    monkeypatch.setattr(Slow, "case_s", 1.5)
    monkeypatch.setattr(time, "monotonic", machine)
    assert main(["collect", "--budget", "20s", "--out", str(tmp_path), "--tracking-uri", "off"]) == 0
    said = capsys.readouterr().out
    measured = rows(tmp_path)
    lacking = sorted(set(sweep.sweep_names()) - {"collective", "serving"} - set(measured))
    assert len(lacking) > 3 and measured["ceiling"] >= 1  # of a board that the catalogue has, none is needed
    assert f"no time was left for a row of: {', '.join(lacking)}" in said
    assert "ceilings left" in said


def test_a_case_that_the_budget_cuts_off_has_not_failed(
    machine: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slow, "case_s", 1e3)
    begin = machine.now
    summary = run(tmp_path, machine, 20.0)
    assert machine.now - begin < 20.0 + 2 * 2.5  # the two ceilings that are needed
    assert summary.new_failures == 0 and summary.left == summary.cases


def test_a_slow_set_up_leaves_half_of_the_budget(
    machine: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slow, "start_s", 60.0)
    begin = machine.now
    run(tmp_path, machine, 20.0)
    assert 68.0 < machine.now - begin <= 73.0 and len(rows(tmp_path)) > 10


def test_samples_of_the_first_round_share_its_time(machine: Clock, tmp_path: Path) -> None:
    run(tmp_path, machine, 20.0)
    first = [samples for _, samples in Slow.given[:15]]
    assert all(first) and 1.0 < sum(filter(None, first)) < 0.25 * 20.0
    assert Slow.given[-1][1] is None  # after it a case takes what the settings say


def test_without_a_budget_ceilings_come_first_and_nothing_is_cut(machine: Clock, tmp_path: Path) -> None:
    summary = run(tmp_path, machine, None, ops=("optimizer",))
    assert Slow.given[0][0] == "ceiling" and {samples for _, samples in Slow.given} == {None}
    assert summary.stopped_by == "done" and summary.left == summary.ceilings_left == 0
    assert Budget(None, 0.0).left_s() == math.inf


def test_a_plan_begins_with_a_quick_case_of_every_operator() -> None:
    for target in (cpu_target(2, 2**34), gpu_target(load_gpu("h100-sxm"), gpus=2)):
        cases = sweep.build(target).cases
        names = {case.launcher for case in cases}
        first = cases[: len(names)]
        assert {case.launcher for case in first} == names and len(names) >= 15
        assert all(case.cache != "cold" for case in first if case.launcher != "copy")
        assert sum(target.seconds(case) for case in first) < 0.02


def test_a_wall_clock_that_jumps_ends_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(60.0, time.monotonic())
    budget.set_up()
    before = budget.left_s()
    for jump in (-1e6, 1e6):
        monkeypatch.setattr(time, "time", lambda jump=jump: 1.7e9 + jump)
        assert 0.0 < before - budget.left_s() < 1.0
