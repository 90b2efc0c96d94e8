"""A collection on two GPUs that are not there: workers that answer at once, in place of processes."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from microbench import collect, supervisor
from microbench.case import Case
from microbench.collect import Collection
from microbench.dataset import read
from microbench.measure_rows import shape_cells
from microbench.request import Request
from microbench.supervisor import Answer
from microbench.validate import validate
from predictor.hardware.gpu import load_gpu
from predictor.roofline import roofline

FACTS = {
    "kind": "cuda", "id": "h100-sxm", "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 * 2**30,
    "cache_bytes": 50 * 2**20, "units": 132, "capability": [9, 0], "gpus": 1, "stack": "torch-2.9.0_cuda-12.8",
    "torch": "2.9.0", "pid": 1, "protocols": ["cuda_graph", "eager_events"], "power_limit_w": 700.0, "triton": True,
    "environment": {"torch_version": "2.9.0", "cuda_version": "12.8", "driver": "575.1"},
}  # fmt: skip
SPEC = load_gpu("h100-sxm")


class FakeWorker:
    """Answers every case with twice its roofline bound. `dies_at`: launchers whose cases end the worker."""

    asked: ClassVar[Counter[str]] = Counter()
    started: ClassVar[list[str]] = []
    dies_at: tuple[str, ...] = ()
    uncaptured: tuple[str, ...] = ()

    def __init__(self, kind: str, visible: str, threads: int, settings: dict[str, Any]) -> None:
        self.kind, self.visible, self.alive = kind, visible, False

    def spawn(self) -> None:
        self.alive = True
        FakeWorker.started.append(self.visible)

    def wait_ready(self) -> dict[str, Any]:
        return FACTS

    def start(self) -> dict[str, Any]:
        self.spawn()
        return FACTS

    def stop(self) -> None:
        self.alive = False

    kill = stop

    def ask(self, case: Case, timeout_s: float, samples_s: float | None = None) -> Answer:
        FakeWorker.asked[self.visible] += 1
        if case.launcher in self.dies_at:
            return Answer(failure={"kind": "worker_died", "reason": "the worker was ended by SIGSEGV"}, dead=True)
        if case.launcher in self.uncaptured and case.protocol == "cuda_graph":
            return Answer(failure={"kind": "cuda_error", "reason": "CUDA graph capture failed: no"}, dead=True)
        return Answer(row=self.row(case))

    def row(self, case: Case) -> dict[str, Any]:
        cells = shape_cells(case)
        bound_s = float(roofline([case.op], SPEC).lower_bound_s[0]) if "shape" not in cells else 1e-4
        extra = {"rate": 1e12, "rate_max": 1e12} if case.launcher == "ceiling" else {}
        return {
            "case_id": case.id, "launcher": case.launcher, "options": json.dumps(dict(case.options)),
            "source": "microbench", "source_file": "", "source_row": 0, "split": "", "gpu": "h100-sxm",
            "framework": "pytorch", "framework_version": "2.9.0", "kernel_source": "eager", "protocol": case.protocol,
            "cache_state": case.cache, "quant": "", "latency_ms": max(2 * bound_s * 1e3, 2e-6), "flag": "",
            "samples": 10, "measured_at": "2026-01-01T00:00:00+00:00", "noise": 0.01, **cells, **extra,
        }  # fmt: skip


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    monkeypatch.setattr(collect, "Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "asked", Counter())
    monkeypatch.setattr(FakeWorker, "started", [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    return FakeWorker


def test_two_gpus_share_a_queue_and_a_folder(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(tmp_path, ops=("softmax", "tile", "collective"), dtypes=("bf16",))
    both = threading.Barrier(2)  # neither begins with the queue before the other does
    begun: set[str] = set()

    def ask(worker: FakeWorker, case: Case, timeout_s: float, samples_s: float | None = None) -> Answer:
        if case.launcher != "ceiling" and worker.visible in "01" and worker.visible not in begun:
            begun.add(worker.visible)
            both.wait(60)
        return answer(worker, case, timeout_s, samples_s)

    answer = gpus.ask
    monkeypatch.setattr(gpus, "ask", ask)
    summary = Collection(request, quiet=True).run()
    assert summary.devices == ["h100-sxm"] and summary.new_failures == 0 and summary.left == 0
    assert gpus.asked["0"] > 100 and gpus.asked["1"] > 100
    assert gpus.started[-1] == "0,1" and gpus.asked["0,1"] > 0  # collectives see both, after the others
    found = validate(tmp_path)
    assert found.valid and found.rows == summary.new_rows and found.roofline_violations == 0
    assert {part.path.parent.name for part in read(tmp_path)} == {"softmax", "tile", "collective", "ceiling"}
    assert not (tmp_path / "h100-sxm" / "device.yaml").exists()  # the catalogue has the board
    collectives = [row for part in read(tmp_path) for row in part.all_rows if row["op"] == "collective"]
    assert {row["ranks"] for row in collectives} == {2}


def test_a_kind_that_cannot_be_captured_costs_two_workers_and_no_more(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "uncaptured", ("embedding",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    Collection(Request(tmp_path, ops=("embedding",), dtypes=("bf16",)), quiet=True).run()
    kinds = Counter(failure["kind"] for part in read(tmp_path) for failure in part.failed)
    assert kinds["cuda_error"] == 4 and kinds["not_captured"] > 50  # two of the forward, two of the backward pass
    assert len(gpus.started) == 1 + 4
    assert any(row["protocol"] == "eager_events" for part in read(tmp_path) for row in part.all_rows)


def test_a_device_on_which_every_worker_dies_is_given_up(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "dies_at", ("softmax",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(supervisor.WorkerError, match="given up"):
        Collection(Request(tmp_path, ops=("softmax",), dtypes=("bf16",)), quiet=True).run()
    found = validate(tmp_path)
    assert found.valid and found.failures == 8


def test_an_interrupt_while_a_worker_is_replaced_ends_in_order(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that starts is killed as all others are: that is the interrupt's doing and no error of the device."""
    monkeypatch.setattr(gpus, "dies_at", ("softmax",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    collection = Collection(Request(tmp_path, ops=("softmax",), dtypes=("bf16",)), quiet=True)

    def start(worker: FakeWorker) -> dict[str, Any]:
        collection.interrupt()
        raise supervisor.WorkerError("no worker for cuda 0: the worker was ended by SIGKILL")

    monkeypatch.setattr(gpus, "start", start)
    assert collection.run().stopped_by == "interrupt"
    found = validate(tmp_path)
    assert found.valid and found.failures == 1


def test_a_budget_ends_a_collection_and_the_next_goes_on(gpus: type[FakeWorker], tmp_path: Path) -> None:
    request = Request(tmp_path, ops=("norm",), dtypes=("bf16",), max_cases=40)
    first = Collection(
        Request(tmp_path, ops=("norm",), dtypes=("bf16",), max_cases=40, budget_s=1e-9), quiet=True
    ).run()
    assert first.stopped_by == "budget" and first.left == 40
    second = Collection(request, quiet=True).run()
    assert second.stopped_by == "done" and second.left == 0 and second.cases == 40
    assert Collection(request, quiet=True).run().new_rows == 0
