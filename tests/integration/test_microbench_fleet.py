"""Many nodes: parts of a plan, a Ray cluster whose worker is killed, Slurm's script, and one data set of all of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))
from microbench_runs import (  # fmt: skip
    LIMIT_S,
    ROOT,
    collect_words,
    command,
    environment,
    microbench,
    quick_sweeps,
    report,
    with_ceilings,
)

from microbench.dataset import read


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quick_sweeps(tmp_path_factory.mktemp("sweeps"))


def cases_of(out: Path) -> list[str]:
    return [row["case_id"] for part in read(out) for row in part.all_rows if row["launcher"] != "ceiling"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, sweeps: Path) -> Path:
    """Two nodes' data sets, collected by Slurm's script: an array of two tasks."""
    out = tmp_path_factory.mktemp("parts")
    words = collect_words(out, sweeps, "--max-cases", 30, "--tracking-uri", "off", "--budget", "300s")
    words = words[1 : words.index("--out")] + words[words.index("--out") + 2 :]
    script = ROOT / "examples" / "slurm" / "collect.sbatch"
    folder = out / "bin"
    folder.mkdir()
    (folder / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "python3").chmod(0o755)
    for task in ("1", "2"):
        with_ceilings(out / f"part-{task}")
        more = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "2", "OUT": str(out)}
        path = os.pathsep.join([str(folder), os.environ["PATH"]])
        done = subprocess.run(["bash", script, *map(str, words)], env=environment(PATH=path, **more),
                              capture_output=True, text=True, timeout=LIMIT_S)  # fmt: skip
        assert done.returncode == 0, done.stderr
    return out


def test_parts_are_merged_into_one_data_set(parts: Path, tmp_path: Path) -> None:
    one, two = (cases_of(parts / f"part-{number}") for number in (1, 2))
    assert one and two and not set(one) & set(two) and len(one) + len(two) == 30
    words = ("merge", parts / "part-1", parts / "part-2", "--out", tmp_path / "all", "--json")
    first = json.loads(microbench(*words).stdout)
    assert sorted(cases_of(tmp_path / "all")) == sorted(one + two)
    found = report(tmp_path / "all")
    assert found["valid"] and found["duplicates"] == 0 and found["rows"] == first["rows"]
    assert json.loads(microbench(*words).stdout)["rows"] == 0  # again: nothing is doubled
    assert list((tmp_path / "all").glob("*/device.yaml"))
    status = json.loads(microbench("status", parts / "part-1", parts / "part-2", "--json").stdout)
    assert status["cases"] == found["rows"] <= status["rows"]


def test_a_merged_data_set_is_gone_on_with(parts: Path, sweeps: Path, tmp_path: Path) -> None:
    microbench("merge", parts / "part-1", parts / "part-2", "--out", tmp_path / "all")
    words = collect_words(tmp_path / "all", sweeps, "--max-cases", 34, "--tracking-uri", "off", "--json")
    assert json.loads(microbench(*words, "--budget", "300s").stdout)["cases"] == 34
    assert len(cases_of(tmp_path / "all")) == 34


def test_a_truncated_file_is_one_line_and_hides_no_other(parts: Path, sweeps: Path, tmp_path: Path) -> None:
    out = tmp_path / "all"
    microbench("merge", parts / "part-1", "--out", out)
    (path,) = out.glob("*/softmax/*/measurements.parquet")
    path.write_bytes(path.read_bytes()[:-200])
    assert f"{path} cannot be read" in microbench("validate", out, status=1).stdout
    assert "broken: " in microbench("status", out).stdout
    done = microbench(*collect_words(out, sweeps, "--max-cases", 30, "--tracking-uri", "off", "--budget", "300s"))
    assert "warning: softmax is left out" in done.stderr
    rows = {row["launcher"] for part in read(out) for row in part.all_rows}
    assert "elementwise" in rows and path.stat().st_size > 0  # the broken file is as it was
    merged = microbench("merge", out, "--out", tmp_path / "again")
    assert "cannot be read" in merged.stderr and cases_of(tmp_path / "again")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("collect", "--device", "cpu", "--out", "TMP/x", "--part", "3/2"), "such as 2/8"),
        (("collect", "--device", "cpu", "--out", "TMP/x", "--workers", "2"), "for --engine ray"),
        (("merge", "TMP", "--out", "TMP"), "is --out itself"),
        (("merge", "TMP", "--out", "TMP/x"), "holds no measurements"),
    ],
)
def test_a_wrong_request_is_one_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = microbench(*(word.replace("TMP", str(tmp_path)) for word in words), status=2)
    assert said in done.stderr and done.stderr.count("error: ") == 1


def hands() -> list[int]:
    """Processes of Ray's that hold a worker of ours."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::Hand" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_a_worker_of_a_ray_cluster_that_is_killed_loses_nothing(sweeps: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="no Ray here")
    out, known = tmp_path / "out", set(hands())
    words = collect_words(out, sweeps, "--engine", "ray", "--workers", 2, "--max-cases", 40, "--tracking-uri", "off",
                          "--json")  # fmt: skip
    words[words.index("--case-seconds") + 1] = "0.2s"  # long enough to be killed within
    words[words.index("--noise") + 1] = "1e-9"
    process = subprocess.Popen(command(*words), env=environment(RAY_DISABLE_IMPORT_WARNING="1"), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until and process.poll() is None and not (out.exists() and len(cases_of_any(out)) > 3):
        time.sleep(0.2)
    mine = [pid for pid in hands() if pid not in known]
    assert mine, "no actor was seen"
    os.kill(mine[0], signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0 and "Traceback" not in stderr, stderr
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["left"] == 0 and summary["new_failures"] == 0
    assert len(cases_of(out)) == len(set(cases_of(out))) == 40 and report(out)["valid"]


def cases_of_any(out: Path) -> list[str]:
    try:
        return cases_of(out)
    except Exception:  # nothing is there yet
        return []


def test_the_first_session_goes_through_its_steps_and_loses_nothing(tmp_path: Path) -> None:
    """Few cases and a budget that they do not use up, on a busy machine neither: it ends when all are measured."""
    sweeps, out = quick_sweeps(tmp_path / "sweeps"), with_ceilings(tmp_path / "out")
    for path in sweeps.iterdir():
        path.write_text(re.sub(r"points: \d+", "points: 8", path.read_text()))
    words = ("first-run", "--device", "cpu", "--threads", 1, "--budget", "480s", "--sweeps", sweeps, "--out", out)
    done = microbench(*words)
    notes = json.loads((out / "first-run.json").read_text())
    steps = ["doctor", "launch overhead", "strata", "side by side", "kill and resume", "rows to calibrate with",
             "collection", "calibrated set"]  # fmt: skip
    assert list(notes) == ["here", *steps] and not [step for step in steps if "failed" in notes[step]]
    assert notes["kill and resume"]["lost"] == 0 and notes["strata"]["rows"] >= notes["strata"]["strata"] == 6
    assert notes["collection"]["left"] == 0
    assert f"[{len(steps)}/{len(steps)}] calibrated set" in done.stdout and report(out)["valid"]
    ended = notes["calibrated set"]
    assert re.fullmatch(r"[\d.]+ % before, [\d.]+ % after", ended["median error on rows kept aside"])
    assert ended["forecast of gpt2"].endswith(" ms") and (out / "first-run" / "set" / "manifest.json").is_file()
    assert ended["next"].startswith("predict --model gpt2 --gpu ") and "--artifacts" in ended["next"]
