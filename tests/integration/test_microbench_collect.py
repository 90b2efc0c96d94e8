"""The harness as a lab runs it: real processes, killed, starved of disk, two at a time."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))
from microbench_runs import (  # fmt: skip
    LIMIT_S,
    collect_words,
    command,
    environment,
    microbench,
    quick_sweeps,
    report,
    with_ceilings,
)

from microbench.cli import main
from microbench.dataset import read
from microbench.validate import validate
from predictor.data.schema import REQUIRED, to_op
from predictor.hardware.gpu import load_gpu
from predictor.ops import OPERATORS

CASES = 90


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quick_sweeps(tmp_path_factory.mktemp("sweeps"))


@pytest.fixture(scope="module")
def ceilings(tmp_path_factory: pytest.TempPathFactory, sweeps: Path) -> Path:
    """A data set with the ceilings and one case: a start for tests of what comes after."""
    out = with_ceilings(tmp_path_factory.mktemp("ceilings"))
    microbench(*collect_words(out, sweeps, "--max-cases", 1))
    return out


@pytest.fixture
def started(ceilings: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ceilings, tmp_path / "out"))


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few seconds of the harness's own sweeps on this processor."""
    out = tmp_path_factory.mktemp("collected")
    microbench(
        "collect", "--device", "cpu", "--threads", 1, "--ops", "gemm,softmax,norm,elementwise,embedding,pool",
        "--dtypes", "fp32", "--max-cases", 24, "--case-seconds", "0.01s", "--budget", "300s", "--out", out,
    )  # fmt: skip
    return out


def rows_of(out: Path) -> dict[str, dict[str, object]]:
    """Case id -> row, over all folders; fails where a case has two rows in one file."""
    found: dict[str, dict[str, object]] = {}
    for part in read(out):
        for rows in (part.rows, part.journal):
            assert max(Counter(r["case_id"] for r in rows).values(), default=1) == 1
        found |= {row["case_id"]: row for row in part.all_rows}
    return found


def one_error_line(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, stderr
    return lines[0]


# ------------------------------------------------------------------------------------------------------ a collection


def test_a_collection_is_a_valid_data_set(collected: Path) -> None:
    found = report(collected)
    assert found["valid"] and found["roofline_violations"] == 0 and found["duplicates"] == 0
    assert found["failures"] == 0 and found["rows"] > 24  # the ceilings are rows, too
    assert found["checked_rows"]["yes"] >= 5


def test_rows_hold_the_measurement_schema(collected: Path) -> None:
    for part in read(collected):
        for row in part.rows:
            assert not [name for name in REQUIRED if name not in row]
            assert row["source"] == "microbench" and row["protocol"] == "eager_events"
            assert row["latency_min_ms"] <= row["latency_ms"] <= row["latency_max_ms"]
            assert row["kernel_name"].startswith("aten::")
            if row["op"] in OPERATORS:
                to_op(row)


def test_the_device_file_is_a_gpu_of_the_catalogues_form(collected: Path) -> None:
    (path,) = collected.glob("*/device.yaml")
    spec = load_gpu(path)
    assert spec.id == path.parent.name and spec.sm_count == 1
    assert spec.peak_flops("fp32") > 1e8 and spec.memory_bandwidth > 1e8
    assert all(
        "measured by microbench" in spec.sources[name] for name in ("memory_bandwidth", "peak_flops.vector.fp32")
    )


def test_meta_says_how_it_was_measured(collected: Path) -> None:
    meta = read(collected)[0].meta
    run = meta["collections"][-1]
    assert run["stopped_by"] == "done" and run["device"]["kind"] == "cpu" and run["packages"]["torch"]
    assert str(collected) not in json.dumps(meta)


def test_a_second_run_measures_nothing_again(collected: Path) -> None:
    before = rows_of(collected)
    microbench(
        "collect", "--device", "cpu", "--threads", 1, "--ops", "gemm,softmax,norm,elementwise,embedding,pool",
        "--dtypes", "fp32", "--max-cases", 24, "--case-seconds", "0.01s", "--budget", "300s", "--out", collected,
        "--json",
    )  # fmt: skip
    after = rows_of(collected)
    assert {row["launcher"] for key, row in after.items() if key not in before} <= {"ceiling"}  # cut off by the budget
    assert {key: after[key]["latency_ms"] for key in before} == {key: row["latency_ms"] for key, row in before.items()}


def test_the_rows_are_a_data_set_to_train_on(collected: Path, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    from predictor.data import dataset
    from predictor.data.importers import microbench as importer

    result = importer.run(collected)
    reasons = result.skipped_by_reason()
    assert set(reasons) == {"operator ceiling has no class yet"}
    assert result.imported == 24
    dataset.write(result.frame, tmp_path / "rows.parquet", result.about())
    frame = dataset.read(tmp_path / "rows.parquet")
    assert set(frame["source"]) == {"microbench"} and set(frame["flag"]) == {""}
    assert len(dataset.ops_of(frame)) == result.imported
    (device,) = importer.device_files(collected)
    assert load_gpu(device).id == frame["gpu"].iloc[0]


def test_compare_prints_the_median_difference(collected: Path) -> None:
    found = json.loads(microbench("compare", collected, collected, "--json").stdout)
    assert found["total"]["median_pct"] == 0.0 and found["total"]["n"] == len(rows_of(collected))
    assert "median relative difference 0.00 %" in microbench("compare", collected, collected).stdout


def test_status_counts(collected: Path) -> None:
    found = json.loads(microbench("status", collected, "--json").stdout)
    assert found["rows"] == len(rows_of(collected)) and found["failures"] == 0


# ------------------------------------------------------------------------------------------------------------ crashes


def wait_for(happened: Callable[[], object]) -> None:
    """Returns once it has happened; fails after minutes."""
    until = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def wait_for_a_row(process: subprocess.Popen[Any], out: Path) -> None:
    """Returns once a collector has added a row, or has ended."""
    known = len(rows_of(out))
    wait_for(lambda: process.poll() is not None or len(rows_of(out)) > known)


def test_kills_lose_and_double_nothing(started: Path, ceilings: Path, sweeps: Path) -> None:
    draw = random.Random(7)
    out = started
    seen = rows_of(out)
    for number in range(6):
        process = subprocess.Popen(
            command(*collect_words(out, sweeps, "--max-cases", CASES)), env=environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if number % 2:  # amid the measuring, however long a start takes
            wait_for_a_row(process, out)
            time.sleep(draw.uniform(0.0, 0.3))
        else:  # at any time
            time.sleep(draw.uniform(0.3, 2.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = rows_of(out)
        for key, row in seen.items():
            assert now[key]["latency_ms"] == row["latency_ms"] and now[key]["measured_at"] == row["measured_at"]
        seen = now
        assert validate(out).valid
    assert len(seen) > len(rows_of(ceilings))  # it was killed amid the measuring
    microbench(*collect_words(out, sweeps, "--max-cases", CASES))
    final = rows_of(out)
    assert set(seen) <= set(final)
    assert sum(row["launcher"] != "ceiling" for row in final.values()) == CASES
    found = report(out)
    assert found["valid"] and found["duplicates"] == 0 and not [w for w in found["warnings"] if "journal" in w]
    assert not list(out.rglob("*.microbench-tmp"))


def test_a_killed_collector_leaves_no_worker(started: Path, sweeps: Path) -> None:
    process = subprocess.Popen(command(*collect_words(started, sweeps)), env=environment(), stderr=subprocess.DEVNULL)
    wait_for(lambda: workers_of(process.pid))
    workers = workers_of(process.pid)
    time.sleep(0.3)
    process.kill()
    process.wait()
    assert workers
    wait_for(lambda: not any(_alive(pid) for pid in workers))


def workers_of(pid: int) -> list[int]:
    """The worker processes that a collector started."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [child for child in children if b"microbench.worker" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except OSError:  # one of them has just ended
        return []


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_a_worker_that_dies_is_replaced(started: Path, sweeps: Path) -> None:
    words = collect_words(started, sweeps, "--max-cases", 40)
    microbench(*words, MICROBENCH_FAULT="segfault@25")
    found = report(started)
    assert found["valid"] and found["failures"] == 1
    (failure,) = [failure for part in read(started) for failure in part.failed]
    assert failure["kind"] == "worker_died" and "SIGSEGV" in failure["reason"]
    assert failure["case"]["launcher"] in ("elementwise", "softmax")
    microbench(*words)  # it may not have been the case's fault: it is tried once more
    assert report(started)["failures"] == 0


def test_a_worker_that_hangs_is_timed_out(started: Path, sweeps: Path) -> None:
    microbench(*collect_words(started, sweeps, "--max-cases", 14, "--case-timeout", "5s"), MICROBENCH_FAULT="hang@10")
    (failure,) = [failure for part in read(started) for failure in part.failed]
    assert failure["kind"] == "timeout" and failure["reason"] == "no answer within 5 s"


def test_errors_of_a_case_are_rows_of_failures(started: Path, sweeps: Path) -> None:
    microbench(*collect_words(started, sweeps, "--max-cases", 16), MICROBENCH_FAULT="oom@10")
    kinds = {failure["kind"] for part in read(started) for failure in part.failed}
    assert kinds == {"out_of_memory"}
    assert report(started)["valid"]


def test_interrupt_ends_in_order(started: Path, sweeps: Path) -> None:
    out = started
    process = subprocess.Popen(  # a second a case: a minute and more, if it is let
        command(*collect_words(out, sweeps, "--case-seconds", "1s", "--noise", "1e-9")),
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for_a_row(process, out)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130 and "Traceback" not in stderr, stderr
    assert "rows added" in stdout
    found = report(out)
    assert found["valid"] and not [w for w in found["warnings"] if "journal" in w]


def test_an_interrupt_before_the_worker_is_ready_ends_at_once(started: Path, sweeps: Path, tmp_path: Path) -> None:
    """PyTorch and CUDA take a while to load: whoever changes their mind does not wait for them."""
    before = rows_of(started)
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "torch.py").write_text("import time\ntime.sleep(3600)\n")
    path = os.pathsep.join([str(slow), environment()["PYTHONPATH"]])
    process = subprocess.Popen(
        command(*collect_words(started, sweeps)), env=environment(PYTHONPATH=path), stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: workers_of(process.pid))
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130 and "Traceback" not in stderr and "error" not in stderr, stderr
    assert rows_of(started) == before


# ----------------------------------------------------------------------------------------------------- two, full disk


def test_the_second_collector_ends_with_one_line(started: Path, sweeps: Path) -> None:
    out = started
    (lock,) = out.rglob(".lock")
    lock.unlink()
    long = collect_words(out, sweeps, "--max-cases", 25, "--case-seconds", "0.04s", "--noise", "0.0001")
    first = subprocess.Popen(command(*long), env=environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: lock.exists() and str(first.pid) in lock.read_text())
        first.send_signal(signal.SIGSTOP)  # it does not end before the second has started
        second = microbench(*collect_words(out, sweeps, "--max-cases", 25), status=1)
        line = one_error_line(second.stderr)
        assert "is being collected into by process" in line and str(first.pid) in line
    finally:
        first.send_signal(signal.SIGCONT)
        first.wait(timeout=LIMIT_S)
    assert first.returncode == 0
    waiting = microbench(*collect_words(out, sweeps, "--max-cases", 25, "--wait", "30s", "--json"))
    assert json.loads(waiting.stdout)["left"] == 0
    found = report(out)
    assert found["valid"] and found["duplicates"] == 0


@pytest.fixture
def small_disk(tmp_path: Path, ceilings: Path) -> Iterator[Path]:
    """A disk with the ceilings on it and room for some rows more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("mounting a small tmpfs needs root on Linux")
    taken = sum(-(-path.stat().st_size // 4096) * 4 for path in ceilings.rglob("*") if path.is_file())
    options = f"size={taken + 48}k"  # KiB: twelve pages are left
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    shutil.copytree(ceilings, disk, dirs_exist_ok=True)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=False)  # a worker may still be on its way out


def test_a_full_disk_ends_in_one_line_and_resumes(small_disk: Path, sweeps: Path) -> None:
    words = collect_words(small_disk, sweeps, "--max-cases", CASES)
    full = microbench(*words, status=1)
    line = one_error_line(full.stderr)
    assert "the disk is full" in line and "run the same command again" in line
    found = report(small_disk)
    assert found["valid"]
    before = rows_of(small_disk)
    assert 0 < sum(row["launcher"] != "ceiling" for row in before.values()) < CASES
    still = microbench(*words, status=1)
    assert "the disk is full" in one_error_line(still.stderr)
    assert report(small_disk)["valid"]
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    microbench(*words)
    after = rows_of(small_disk)
    assert all(after[key]["latency_ms"] == row["latency_ms"] for key, row in before.items())
    assert sum(row["launcher"] != "ceiling" for row in after.values()) == CASES
    assert report(small_disk)["valid"]


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("collect", "--device", "cpu", "--out", "TMP/x", "--budget", "10"), "60s, 10min, 2h"),
        (("collect", "--device", "cpu", "--out", "TMP/x", "--ops", "gem"), "nearest: gemm"),
        (("collect", "--device", "cpu", "--out", "TMP/x", "--dtypes", "bf61"), "nearest: bf16"),
        (("plan", "--gpu", "h10"), "nearest: h100"),
        (("plan", "--threads", "-1"), "expected 0 to"),
        (("collect", "--device", "cpu", "--out", "TMP/x", "--lock-clocks", "1500 MHz"), "expected an NVIDIA GPU"),
        (("validate", "TMP/nosuch"), "is no folder"),
        (("status", "TMP"), "holds no measurements"),
        (("frobnicate",), "unknown verb 'frobnicate'"),
        (("workload", "TMP/nosuch.csv", "--out", "TMP/x.csv"), "cannot read"),
    ],
)
def test_a_wrong_request_is_one_line(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("TMP", str(tmp_path)) for word in words]) == 2
    assert not list(tmp_path.iterdir())
    assert said in one_error_line(capsys.readouterr().err)


def test_a_wrong_request_of_a_process_is_one_line(tmp_path: Path) -> None:
    done = microbench("collect", "--device", "cpu", "--out", tmp_path / "x", "--ops", "gem", status=2)
    assert "nearest: gemm" in one_error_line(done.stderr) and not list(tmp_path.iterdir())


def test_plan_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')")
    done = microbench("plan", "--gpu", "h200", "--json", PYTHONPATH=f"{tmp_path}:{environment()['PYTHONPATH']}")
    found = json.loads(done.stdout)
    assert found["cases"] > 10_000 and {row["operator"] for row in found["operators"]} >= {"gemm", "tile", "attention"}


def test_a_budget_without_operators_measures_every_operator(tmp_path: Path) -> None:
    """The first cases of a plan are one of each; all that a processor can run have a row, and the device its file."""
    plan = json.loads(microbench("plan", "--device", "cpu", "--threads", 1, "--json").stdout)
    every = {row["operator"] for row in plan["operators"]}
    microbench("collect", "--device", "cpu", "--threads", 1, "--budget", "300s", "--max-cases", len(every),
               "--case-seconds", "0.002s", "--tracking-uri", "off", "--out", tmp_path / "out")  # fmt: skip
    measured = {row["launcher"] for row in rows_of(tmp_path / "out").values()}
    assert measured == every | {"ceiling"} and len(every) == 23
    assert report(tmp_path / "out")["valid"]
