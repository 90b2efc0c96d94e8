"""A collection on two GPUs that are not there: workers that answer at once, in place of processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any, ClassVar

import pytest

from microbench import capability, collect, collectives, management, supervisor, sweep
from microbench.budget import Budget
from microbench.case import Case
from microbench.collect import Collection
from microbench.dataset import read
from microbench.lane import BUILD_S, Captures, Lane, Runner
from microbench.measure_rows import shape_cells
from microbench.progress import Progress
from microbench.request import CollectionRequest
from microbench.store import Store
from microbench.supervisor import CaseOutcome
from microbench.validate import validate
from predictor.hardware.gpu import load_gpu
from predictor.ops import Gemm, MoE
from predictor.ops.roofline import roofline

FACTS = {
    "kind": "cuda", "id": "h100-sxm", "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 * 2**30,
    "cache_bytes": 50 * 2**20, "units": 132, "capability": [9, 0], "gpus": 1, "stack": "torch-2.9.0_cuda-12.8",
    "torch": "2.9.0", "pid": 1, "protocols": ["cuda_graph", "eager_events", "cuda_graph_sustained"],
    "power_limit_w": 700.0, "triton": True,
    "environment": {"torch_version": "2.9.0", "cuda_version": "12.8", "driver": "575.1"},
}  # fmt: skip
SPEC = load_gpu("h100-sxm")


class FakeWorker:
    """Answers every case with twice its roofline bound. `dies_at`: launchers whose cases end the worker."""

    asked: ClassVar[Counter[str]] = Counter()
    started: ClassVar[list[str]] = []
    dies_at: tuple[str, ...] = ()
    uncaptured: tuple[str, ...] = ()

    def __init__(self, kind: str, visible: str, threads: int, settings: dict[str, Any], module: str = "") -> None:
        self.kind, self.visible, self.alive = kind, visible, False
        self.names = module.endswith("profile_worker")

    def spawn(self) -> None:
        self.alive = True
        if not self.names:
            FakeWorker.started.append(self.visible)

    def wait_ready(self) -> dict[str, Any]:
        return FACTS

    def start(self) -> dict[str, Any]:
        self.spawn()
        return FACTS

    def stop(self) -> None:
        self.alive = False

    kill = stop

    def request(self, document: dict[str, Any], timeout_s: float) -> CaseOutcome:
        return CaseOutcome(row={"kernel_name": "sm90_kernel", "kernel_count": 1})

    def ask(
        self, case: Case, timeout_s: float, samples_s: float | None = None, kernel: dict[str, Any] | None = None
    ) -> CaseOutcome:
        FakeWorker.asked[self.visible] += 1
        if case.launcher in self.dies_at:
            return CaseOutcome(failure={"kind": "worker_died", "reason": "the worker was ended by SIGSEGV"}, dead=True)
        if case.launcher in self.uncaptured and case.protocol != "eager_events":
            return CaseOutcome(failure={"kind": "not_captured", "reason": "CUDA graph capture failed: no"}, dead=True)
        return CaseOutcome(row=self.row(case))

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


class FakeGroup(FakeWorker):
    """Ranks that answer as one."""

    def __init__(self, kind: str, entries: list[str], threads: int, settings: dict[str, Any]) -> None:
        super().__init__(kind, ",".join(entries), threads, settings)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    monkeypatch.setattr(collect, "BenchWorker", FakeWorker)
    monkeypatch.setattr(collectives, "RankGroup", FakeGroup)
    monkeypatch.setattr(management, "joined_by", lambda boards: "nvswitch")
    monkeypatch.setattr(FakeWorker, "asked", Counter())
    monkeypatch.setattr(FakeWorker, "started", [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    return FakeWorker


def test_a_board_that_the_catalogue_lacks_is_planned_with_its_own_rates() -> None:
    """SMs x clock x what its compute capability does a clock; Hopper: 4,096 FLOP in 16 bits, 256 in fp32."""
    facts = FACTS | {"id": "nvidia-h999", "units": 100, "clock_hz": 2e9, "bandwidth": 3e12}
    target = capability.target_of(facts)
    assert (target.rate("bf16"), target.rate("fp32"), target.bandwidth) == (4096 * 2e11, 256 * 2e11, 3e12)
    assert capability.target_of(FACTS | {"id": "nvidia-h999"}).rate("bf16") == 5e13  # the driver tells no clock
    assert capability.target_of(facts | {"capability": [99, 0]}).rate("bf16") == 5e13


@pytest.mark.parametrize(
    ("torch", "board", "protocols"),
    [
        ("2.8.0", [9, 0], {"cuda_graph", "eager_events"}), ("2.8.0", [10, 0], set()), ("2.8.0", [8, 0], set()),
        ("2.9.1+cu128", [9, 0], {"cuda_graph", "eager_events"}), ("2.10.0", [10, 0], {"cuda_graph", "eager_events"}),
        ("2.9.1", [8, 0], {"eager_events"}), ("2.9.1", [12, 0], {"eager_events"}), ("2.9.1", [7, 5], set()),
    ],
)  # fmt: skip
def test_grouped_products_run_where_the_release_has_a_kernel(torch: str, board: list[int], protocols: set[str]) -> None:
    target = capability.target_of(FACTS | {"id": "x", "torch": torch, "capability": board})
    runs = set()
    for protocol in ("cuda_graph", "eager_events"):
        case = Case("moe", MoE("bf16", 32, 128, 128, 8, 2), (("impl", "grouped_mm"),), "warm", protocol)
        if not capability._launcher_refusal(case, target):
            runs.add(protocol)
    assert runs == protocols


def test_what_a_library_compiles_is_built_once_before_its_cases_are_timed(tmp_path: Path) -> None:
    """DeepGEMM compiles by (n, k): a minute of nvcc is no timeout of a case."""
    asked: list[tuple[str, float]] = []

    class Compiling(FakeWorker):
        def request(self, document: dict[str, Any], timeout_s: float) -> CaseOutcome:
            asked.append(("build", timeout_s))
            assert document["build"]
            return CaseOutcome(row={})

        def ask(self, case: Case, timeout_s: float, *more: Any) -> CaseOutcome:
            asked.append(("case", timeout_s))
            return CaseOutcome(row=self.row(case))

    request = CollectionRequest(tmp_path)
    runner = Runner(request, Budget(None, 0.0), threading.Event(), Progress(0, None, quiet=True))
    store = Store(tmp_path, "h100-sxm", "stack", {"run": "1"})
    store.open(1.0)
    lane = Lane(Compiling("cuda", "0", 0, {}), FACTS, store, deque())
    lane.worker.spawn()
    for m, n in ((1, 256), (32, 256), (1, 512)):
        op = Gemm("fp8", m, n, 256, quant="fp8_block")
        runner.measure(lane, Case("serving", op, (("kernel", "deep_gemm.fp8_block"),)))
    runner.measure(lane, Case("gemm", Gemm("fp8", 1, 256, 256)))
    store.close()
    assert [name for name, _ in asked] == ["build", "case", "case", "build", "case", "case"]
    assert dict(asked) == {"build": BUILD_S, "case": request.case_timeout_s}


def test_a_worker_takes_what_it_started_with_it() -> None:
    worker = supervisor.BenchWorker("cpu", "", 0, {})
    words = [sys.executable, "-c", "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True);"
             " time.sleep(600)"]  # fmt: skip
    worker._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert worker._process.stdout is not None
    compiler = int(worker._process.stdout.readline())
    worker.stop()
    until = time.monotonic() + 20
    while time.monotonic() < until and _runs(compiler):
        time.sleep(0.05)
    assert not _runs(compiler)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_two_gpus_share_a_queue_and_a_folder(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CollectionRequest(tmp_path, ops=("softmax", "tile", "collective"), dtypes=("bf16",))
    both = threading.Barrier(2)  # neither begins with the queue before the other does
    begun: set[str] = set()

    def ask(
        worker: FakeWorker, case: Case, timeout_s: float, samples_s: float | None = None, kernel: Any = None
    ) -> CaseOutcome:
        if case.launcher != "ceiling" and worker.visible in "01" and worker.visible not in begun:
            begun.add(worker.visible)
            both.wait(60)
        return answer(worker, case, timeout_s, samples_s)

    answer = gpus.ask
    monkeypatch.setattr(gpus, "ask", ask)
    summary = Collection(request, quiet=True).run()
    assert summary.devices == ["h100-sxm"] and summary.new_failures == 0 and summary.left == 0
    assert gpus.asked["0"] > 100 and gpus.asked["1"] > 100
    assert gpus.started[-1] == "0,1" and gpus.asked["0,1"] > 0  # a rank each, after the others
    found = validate(tmp_path)
    assert found.valid and found.rows == summary.new_rows and found.roofline_violations == 0
    assert {part.path.parent.name for part in read(tmp_path)} == {"softmax", "tile", "collective", "ceiling"}
    assert not (tmp_path / "h100-sxm" / "device.yaml").exists()  # the catalogue has the board
    joined = [row for part in read(tmp_path) for row in part.all_rows if row["op"] == "collective"]
    assert {(row["ranks"], row["link"]) for row in joined} == {(2, "nvswitch")}


def test_collectives_over_links_that_nobody_names_are_left_out(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management, "joined_by", lambda boards: "")
    done = Collection(CollectionRequest(tmp_path, ops=("embedding", "collective"), dtypes=("bf16",)), quiet=True).run()
    assert done.warnings == ["collectives are left out: the driver does not say how the boards are joined"]
    assert "0,1" not in gpus.started and done.new_rows


def embeddings(tmp_path: Path, **more: Any) -> collect.Summary:
    return Collection(CollectionRequest(tmp_path, ops=("embedding",), dtypes=("bf16",), **more), quiet=True).run()


def failures(tmp_path: Path) -> Counter[str]:
    return Counter(failure["kind"] for part in read(tmp_path) for failure in part.failures)


def test_captures_that_fail_one_after_the_other_are_tried_now_and_then_and_nothing_is_written_for_the_rest(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "uncaptured", ("embedding",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    first = embeddings(tmp_path)
    captured = [case for case in calls() if case.protocol != "eager_events"]
    assert failures(tmp_path) == {"not_captured": first.new_failures} and first.new_failures < 20
    assert first.not_tried == first.left == len(captured) - first.new_failures > 50
    assert any(row["protocol"] == "eager_events" for part in read(tmp_path) for row in part.all_rows)
    monkeypatch.setattr(gpus, "uncaptured", ())  # the driver was mended: all of them have rows, those that failed too
    second = embeddings(tmp_path)
    assert second.new_rows == len(captured) and second.left == second.not_tried == second.new_failures == 0
    assert validate(tmp_path).failures == 0


def calls() -> list[Case]:
    target = capability.target_of({**FACTS})
    return sweep.build(target, ("embedding",), ("bf16",)).cases


def test_one_capture_that_succeeds_ends_the_count() -> None:
    captures, case = Captures(), next(case for case in calls() if case.protocol == "cuda_graph")
    failed = CaseOutcome(failure={"kind": "not_captured", "reason": "no"}, dead=True)
    for _ in range(3):
        captures.note(case, failed)
    captures.note(case, CaseOutcome(row={}))
    for _ in range(3):
        captures.note(case, failed)
    assert not captures.rests(case)
    captures.note(case, failed)
    tried = [not captures.rests(case) for _ in range(320)]
    assert sum(tried) == 10 and not tried[0]
    assert not captures.rests(Case(case.launcher, case.op, case.options, "warm", "eager_events"))


@pytest.mark.parametrize(("kind", "again"), [("worker_died", 2), ("timeout", 2), ("cuda_error", 2), ("illegal", 1)])
def test_what_may_not_be_the_cases_fault_is_tried_once_more(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, again: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    answer = CaseOutcome(failure={"kind": kind, "reason": "no"})
    monkeypatch.setattr(gpus, "ask", lambda worker, case, *_: answer if case.launcher == "embedding" else row(case))
    row = lambda case: CaseOutcome(row=FakeWorker("cuda", "0", 0, {}).row(case))  # noqa: E731
    found = [embeddings(tmp_path, max_cases=5).new_failures for _ in range(4)]
    assert found == [5 if run < again else 0 for run in range(4)]


def test_a_dead_board_is_a_warning_where_another_one_lives(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wait_ready(worker: FakeWorker) -> dict[str, Any]:
        if worker.visible == "1":
            raise supervisor.WorkerError("no worker for cuda 1: CUDA error: initialization error")
        return FACTS

    monkeypatch.setattr(gpus, "wait_ready", wait_ready)
    summary = embeddings(tmp_path, max_cases=5)
    assert summary.new_rows >= 5 and summary.stopped_by == "done" and len(summary.warnings) == 1
    assert "initialization error; the others go on" in capsys.readouterr().err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(supervisor.WorkerError, match="initialization error"):
        embeddings(tmp_path, max_cases=5)


def test_a_board_that_is_given_up_leaves_the_queue_to_the_others(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = gpus.ask

    def ask(worker: FakeWorker, case: Case, *rest: Any) -> CaseOutcome:
        if worker.visible == "1" and case.launcher != "ceiling":
            return CaseOutcome(failure={"kind": "worker_died", "reason": "ended by SIGBUS"}, dead=True)
        return real(worker, case, *rest)

    monkeypatch.setattr(gpus, "ask", ask)
    summary = embeddings(tmp_path)
    assert summary.left == 0 and any("given up" in warning for warning in summary.warnings)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert embeddings(tmp_path).new_rows == summary.new_failures > 0  # its cases are tried once more


def test_a_case_whose_machine_went_is_begun_again(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    real, lost = gpus.ask, CaseOutcome(failure={"kind": "worker_died", "reason": "node lost"}, dead=True, lost=True)
    asked: Counter[str] = Counter()

    def ask(worker: FakeWorker, case: Case, *rest: Any) -> CaseOutcome:
        asked[case.id] += 1
        return lost if case.launcher == "embedding" and asked[case.id] < 3 else real(worker, case, *rest)

    monkeypatch.setattr(gpus, "ask", ask)
    summary = embeddings(tmp_path, max_cases=4)
    assert summary.new_failures == 0 and summary.left == 0
    assert sorted(asked.values())[-4:] == [3, 3, 3, 3]


def test_names_of_kernels_come_from_another_process_that_may_die(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    told: list[Any] = []
    real = gpus.ask

    def ask(worker: FakeWorker, case: Case, timeout_s: float, samples_s: Any = None, kernel: Any = None) -> CaseOutcome:
        told.append(kernel)
        return real(worker, case, timeout_s, samples_s, kernel)

    monkeypatch.setattr(gpus, "ask", ask)
    embeddings(tmp_path / "one", max_cases=3)
    assert told and all(kernel == {"kernel_name": "sm90_kernel", "kernel_count": 1} for kernel in told)
    told.clear()
    dead = CaseOutcome(failure={"kind": "worker_died", "reason": "SIGSEGV"}, dead=True)
    monkeypatch.setattr(gpus, "request", lambda *_: dead)
    summary = embeddings(tmp_path / "two", max_cases=9)
    assert summary.new_failures == 0 and told[:4] == [{}] * 4 and told[-1] is None


def test_parts_are_disjoint_and_together_whole(gpus: type[FakeWorker], tmp_path: Path) -> None:
    whole = {case.id for case in calls()}
    parts = [{case.id for case in calls() if CollectionRequest(tmp_path, part=(i, 3)).takes(case)} for i in (1, 2, 3)]
    assert set.union(*parts) == whole and sum(map(len, parts)) == len(whole)
    assert all(len(part) > 0.25 * len(whole) for part in parts)
    summary = embeddings(tmp_path, part=(2, 3))
    assert summary.cases == len(parts[1]) and summary.left == 0


def test_a_device_on_which_every_worker_dies_is_given_up(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "dies_at", ("softmax",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(supervisor.WorkerError, match="given up"):
        Collection(CollectionRequest(tmp_path, ops=("softmax",), dtypes=("bf16",)), quiet=True).run()
    found = validate(tmp_path)
    assert found.valid and found.failures == 8


def test_an_interrupt_while_a_worker_is_replaced_ends_in_order(
    gpus: type[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that starts is killed as all others are: that is the interrupt's doing and no error of the device."""
    monkeypatch.setattr(gpus, "dies_at", ("softmax",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    collection = Collection(CollectionRequest(tmp_path, ops=("softmax",), dtypes=("bf16",)), quiet=True)

    def start(worker: FakeWorker) -> dict[str, Any]:
        collection.interrupt()
        raise supervisor.WorkerError("no worker for cuda 0: the worker was ended by SIGKILL")

    monkeypatch.setattr(gpus, "start", start)
    assert collection.run().stopped_by == "interrupt"
    found = validate(tmp_path)
    assert found.valid and found.failures == 1


def test_a_budget_ends_a_collection_and_the_next_goes_on(gpus: type[FakeWorker], tmp_path: Path) -> None:
    request = CollectionRequest(tmp_path, ops=("norm",), dtypes=("bf16",), max_cases=40)
    first = Collection(
        CollectionRequest(tmp_path, ops=("norm",), dtypes=("bf16",), max_cases=40, budget_s=1e-9), quiet=True
    ).run()
    assert first.stopped_by == "budget" and first.left == 40
    second = Collection(request, quiet=True).run()
    assert second.stopped_by == "done" and second.left == 0 and second.cases == 40
    assert Collection(request, quiet=True).run().new_rows == 0
