"""`tilecast sweep` as a process that is killed, interrupted, and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPEC = "model: [gpt2, gpt2-large, bert-large]\ngpu: [v100, a100, t4]\nbatch: {}\nseq-len: [64, 96, 128]\ndtype: fp32\n"


def command(folder: Path, out: str) -> list[str]:
    words = ["sweep", str(folder / "s.yaml"), "--out", str(folder / out), "--artifacts", "roofline", "--jobs", "2"]
    return [sys.executable, "-m", "predictor", *words]


def paced(words: list[str]) -> list[str]:
    """The same command with parts that take their time, so that it is at work when it is stopped on any machine."""
    code = (
        "import sys, sweep_workers; from predictor.sweep import workers; from predictor.cli.main import main\n"
        "workers.answer = sweep_workers.paced\nsys.exit(main())"
    )
    assert words[1:3] == ["-m", "predictor"]
    return [words[0], "-c", code, *words[3:]]


def started(words: list[str]) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return subprocess.Popen(
        words, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def parts(folder: Path, out: str) -> int:
    return len(list((folder / f"{out}.parts").glob("part-*.json")))


def until_parts(process: subprocess.Popen[str], folder: Path, out: str, more_than: int) -> None:
    end = time.monotonic() + 120
    while process.poll() is None and parts(folder, out) <= more_than and time.monotonic() < end:
        time.sleep(0.01)


def test_killed_and_interrupted_it_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SPEC.format(list(range(1, 46))), encoding="utf-8")
    whole = started(command(tmp_path, "whole.csv"))
    assert whole.wait(timeout=180) == 0

    killed = started(paced(command(tmp_path, "a.csv")))
    until_parts(killed, tmp_path, "a.csv", 0)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=60)
    kept = parts(tmp_path, "a.csv")
    assert killed.returncode == -signal.SIGKILL and kept > 0 and not (tmp_path / "a.csv").exists()

    stopped = started(paced(command(tmp_path, "a.csv")))
    until_parts(stopped, tmp_path, "a.csv", kept)
    os.killpg(stopped.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    _, said = stopped.communicate(timeout=60)
    assert stopped.returncode == 130, said
    assert "points are kept" in said and "interrupted" in said and "Traceback" not in said
    assert parts(tmp_path, "a.csv") >= kept

    told = [signal.SIGTERM, os.kill], [signal.SIGTERM, os.killpg]  # as `kill` does it, and as a scheduler
    for number, send in told:
        kept = parts(tmp_path, "a.csv")
        ended = started(paced(command(tmp_path, "a.csv")))
        until_parts(ended, tmp_path, "a.csv", kept)
        send(ended.pid, number)
        _, said = ended.communicate(timeout=60)
        assert ended.returncode == 128 + signal.SIGTERM, said
        lines = said.splitlines()
        assert len(lines) == 2 and "points are kept" in lines[0] and lines[1] == "error: terminated", said
        assert parts(tmp_path, "a.csv") >= kept

    went_on = started(command(tmp_path, "a.csv"))
    shown, said = went_on.communicate(timeout=180)
    assert went_on.returncode == 0, said
    assert "kept from before" in shown
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not (tmp_path / "a.csv.parts").exists()


def test_a_harness_that_is_stopped_ends_by_itself(tmp_path: Path) -> None:
    """It has rows to keep: `tilecast microbench` hands SIGTERM on and waits, as it does after Ctrl-C."""
    module = tmp_path / "microbench.py"
    module.write_text(
        "import pathlib, signal, sys, time\n"
        "def stop(number, frame):\n    time.sleep(0.6)\n    pathlib.Path('kept').write_text('rows')\n"
        "    sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, stop)\nsignal.signal(signal.SIGINT, stop)\n"
        "pathlib.Path('begun').touch()\ntime.sleep(60)\n"
    )
    for number, send in ((signal.SIGTERM, os.kill), (signal.SIGINT, os.killpg)):
        path = os.pathsep.join([str(tmp_path), str(ROOT)])
        code = "import sys; from predictor.cli.main import main; sys.exit(main(['microbench', 'collect']))"
        harness = subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}, cwd=tmp_path, start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + 60
        while not (tmp_path / "begun").exists() and harness.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        send(harness.pid, number)
        assert harness.wait(timeout=60) == 130
        assert (tmp_path / "kept").read_text() == "rows", number
        (tmp_path / "kept").unlink()
        (tmp_path / "begun").unlink()
