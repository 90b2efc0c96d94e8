"""A few cases of every fuzzer, and what the fuzzers have to notice. For more of them: `tools/fuzz --minutes N`."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictor.errors import RequestError
from tests.fuzzing import kinds
from tests.fuzzing.case import Case, from_json
from tests.fuzzing.oracle import ANSWERED, FAILED, REFUSED, Fault, Limits, Outcome, judge, read_answer
from tests.fuzzing.run import ask, generated

ROOT = Path(__file__).resolve().parents[2]
#: Cases of a kind here: all kinds together take seconds.
FEW = 4


@pytest.mark.parametrize("name", kinds.NAMES)
def test_a_few_cases(name: str, tmp_path: Path) -> None:
    if kinds.missing(name):
        return
    failed: list[str] = []
    asked = 0

    def use(case: Case) -> None:
        nonlocal asked
        asked += 1
        # processor time that a machine at work with other tests has, too; memory beside what these tests hold
        outcome = ask(from_json(case.to_json()), tmp_path / name)
        if outcome.verdict == FAILED:
            failed.append(f"{outcome.where}: {outcome.said[-1500:]}\n{case.to_json()[:2000]}")

    generated(name, 0, FEW, use, repeatable=True)
    assert asked >= 1
    assert not failed, "\n".join(failed)


# -------------------------------------------------------------------------------------------- what it has to notice


def judged(target: Callable[[Path], Any], folder: Path, blind: bool = False) -> Outcome:
    """A made-up target in a folder of its own, under small limits."""
    inside = folder / "case"
    inside.mkdir()
    limits = Limits(seconds=0.5, waits=1.5, bytes=64 * 2**20)
    return judge(Case("made-up"), lambda _: target(folder), inside, limits, blind)


def refuse(line: str) -> Callable[[Path], None]:
    def target(_: Path) -> None:
        raise RequestError(line)

    return target


def test_an_answer_and_a_line_are_none(tmp_path: Path) -> None:
    assert judged(lambda _: None, tmp_path).verdict == ANSWERED
    (tmp_path / "other").mkdir()
    found = judged(refuse("--batch 0: expected at least 1"), tmp_path / "other")
    assert (found.verdict, found.said) == (REFUSED, "--batch 0: expected at least 1")


def traceback(_: Path) -> None:
    {}["nobody"]


def hang(_: Path) -> None:
    while True:
        pass


def stubborn(_: Path) -> None:
    """Takes everything for an error of its own, once."""
    try:
        hang(_)
    except BaseException:
        hang(_)


def wait_for_nobody(_: Path) -> None:
    reads, _writes = os.pipe()
    os.read(reads, 1)


def hog(_: Path) -> None:
    np.ones(12 * 2**20)


def write_outside(folder: Path) -> None:
    (folder / "outside").write_text("x", encoding="utf-8")


def swallowed(folder: Path) -> None:
    try:
        write_outside(folder)
    except BaseException:
        raise RequestError("cannot write") from None


def rename_out(folder: Path) -> None:
    Path("made").write_text("x", encoding="utf-8")
    Path("made").rename(folder / "outside")


def link_out(folder: Path) -> None:
    Path("link").symlink_to(folder)
    (Path("link") / "outside").mkdir()


def execute(_: Path) -> None:
    subprocess.run(["true"], check=False)


def connect(_: Path) -> None:
    import socket

    with socket.socket() as link:
        link.connect(("127.0.0.1", 9))


def unpickle(_: Path) -> None:
    pickle.loads(b"cos\ngetcwd\n(tR.")


def run_data(_: Path) -> None:
    Path("data.py").write_text("x = 1\n", encoding="utf-8")
    exec(compile(Path("data.py").read_text(encoding="utf-8"), os.path.abspath("data.py"), "exec"))  # noqa: PTH100


def overflow(_: Path) -> None:
    np.float64(1e300) * np.float64(1e300)


@pytest.mark.parametrize(
    ("target", "where"),
    [
        (traceback, "KeyError"), (hang, "no end"), (stubborn, "no end"), (wait_for_nobody, "no end"), (hog, "memory"),
        (write_outside, "guard: open"), (swallowed, "guard: open"), (rename_out, "guard: os.rename"),
        (link_out, "guard: os.mkdir"), (execute, "guard: subprocess.Popen"), (connect, "guard: socket.connect"),
        (unpickle, "guard: unpickles"), (run_data, "guard: runs"), (overflow, "RuntimeWarning"),
        (refuse("two\nlines"), "a refusal of several lines"), (refuse(" "), "a refusal without a word"),
        (refuse("Traceback (most recent call last)"), "a refusal that is a traceback"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)  # fmt: skip
def test_it_notices(target: Callable[[Path], None], where: str, tmp_path: Path) -> None:
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    found = judged(target, folder)
    assert found.verdict == FAILED and found.where.startswith(where), found
    assert not (folder / "outside").exists()


def test_a_models_name_is_asked_of_no_hub(tmp_path: Path) -> None:
    """By design of the command line; the page names no repository, and asks for none."""
    pytest.importorskip("huggingface_hub", reason="the hub extra is not installed")
    found = ask(Case("command_lines", {}, ["predict", "--model", "org/name", "--gpu", "h100"]), tmp_path / "case")
    assert found.verdict == REFUSED and "no hub is asked" in found.said, found


def test_it_notices_a_file_that_is_read(tmp_path: Path) -> None:
    """Where nothing of the folder may be read: the page, whatever a request names."""
    (tmp_path / "secret").write_text("x", encoding="utf-8")
    inside = tmp_path / "case"
    inside.mkdir()
    (inside / "secret").write_text("x", encoding="utf-8")
    target = lambda _: Path("secret").read_text(encoding="utf-8")[:0] or None  # noqa: E731
    assert judge(Case("made-up"), target, inside, blind=False).verdict == ANSWERED
    assert judge(Case("made-up"), target, inside, blind=True).where == "guard: reads"


@pytest.mark.parametrize(
    "text", ['{"latency_ms": NaN}', '{"latency_ms": 1e999}', '{"latency_ms": 0}', '{"host_s": -1.0}', "{"]
)
def test_figures_of_no_answer(text: str) -> None:
    with pytest.raises(Fault):
        read_answer(text)


def test_the_tool_keeps_what_failed(tmp_path: Path) -> None:
    """A table of the kinds, with status 0; a case that is kept is asked again with what came of it."""
    tool = [sys.executable, str(ROOT / "tools" / "fuzz")]
    done = subprocess.run(
        [*tool, "--only", "gpus", "--cases", "3", "--minutes", "1", "--out", str(tmp_path / "failed")],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].split()[:2] == ["all", "3"]
    kept = tmp_path / "kept.json"
    kept.write_text(Case("gpus", {"g.yaml": b"id: x\n"}, ["gpus", "g.yaml"]).to_json(), encoding="utf-8")
    done = subprocess.run([*tool, "--replay", str(kept)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("refused") and "GPU file 'g.yaml'" in done.stdout
