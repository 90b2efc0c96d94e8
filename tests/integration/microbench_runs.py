"""Runs of the harness as real processes, for the tests: a checkout, no install, one thread, quick cases."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from microbench.cli import main

ROOT = Path(__file__).resolve().parents[2]
#: For a process that takes seconds on a quiet machine: it is there to end a hang, not to be met.
LIMIT_S = 600

#: Cases of a few microseconds, on one dtype: a collection is over in seconds.
QUICK_SWEEPS = {
    "elementwise": """
launcher: elementwise
groups:
  - name: quick
    dtypes: [fp32]
    fields: {fn: [add, relu, mul, exp]}
    axes: {elements: {log: [64, 65536]}}
    timed: [[warm, eager_events, 1.0]]
    points: 60
""",
    "softmax": """
launcher: softmax
groups:
  - name: quick
    dtypes: [fp32]
    fields: {phase: [forward, backward]}
    axes: {rows: {log: [1, 64]}, cols: {log: [8, 512]}}
    timed: [[warm, eager_events, 1.0]]
    points: 30
""",
}


def quick_sweeps(folder: Path) -> Path:
    """A folder of sweep files for `--sweeps`."""
    folder.mkdir(exist_ok=True)
    for name, text in QUICK_SWEEPS.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def environment(**more: str) -> dict[str, str]:
    found = {k: v for k, v in os.environ.items() if k != "MICROBENCH_FAULT"}
    return found | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "microbench", *(str(word) for word in words)]


def microbench(*words: object, status: int | None = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs `python3 -m microbench WORDS` from another folder than the checkout's; checks the exit status."""
    done = subprocess.run(
        command(*words), capture_output=True, text=True, env=environment(**more), cwd="/", timeout=LIMIT_S
    )
    assert status is None or done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def collect_words(out: Path, sweeps: Path, *more: object) -> list[object]:
    """A quick collection: few samples, and no look at the kernels' names, which takes longer than these cases do.

    An option among ``more`` is in place of the usual one."""
    usual: dict[str, object] = {"--case-seconds": "0.002s", "--min-samples": 3, "--noise": "0.5"}
    rest = [word for option, value in usual.items() if option not in more for word in (option, value)]
    return [
        "collect", "--device", "cpu", "--threads", 1, "--sweeps", sweeps, *rest, "--no-profile", "--out", out, *more,
    ]  # fmt: skip


@functools.cache
def _ceilings() -> Path:
    """A data set that holds this processor's ceilings alone, measured once a process."""
    folder = Path(tempfile.mkdtemp(prefix="tilecast-ceilings-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    out = folder / "out"
    microbench(*collect_words(out, quick_sweeps(folder / "sweeps"), "--max-cases", 1, "--tracking-uri", "off"))
    for part in out.glob("*/*/"):
        if part.name != "ceiling":
            shutil.rmtree(part)
    return out


def with_ceilings(out: Path) -> Path:
    """``out``, made a data set whose ceilings are measured, for what comes after them: they take seconds."""
    shutil.copytree(_ceilings(), out, dirs_exist_ok=True)
    return out


def report(out: Path, status: int | None = 0) -> dict[str, Any]:
    """What `validate --json` prints, without a process of its own."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        ended = main(["validate", str(out), "--json"])
    assert status is None or ended == status, text.getvalue()
    found: dict[str, Any] = json.loads(text.getvalue())
    return found
