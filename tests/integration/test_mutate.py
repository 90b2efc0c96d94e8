"""tools/mutate: what survives gives exit 1, what moved is named, and the table is that of the code as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "mutate"
GOOD = {"name": "sum", "file": "toy.py", "old": "a + b", "new": "a - b", "tests": ["tests/test_toy.py::test_add"]}
BLIND = {"name": "product", "file": "toy.py", "old": "a * b", "new": "a / b", "tests": ["tests/test_toy.py"]}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A tree of two functions, of which the tests look at one."""
    root = tmp_path / "toy"
    (root / "tests").mkdir(parents=True)
    (root / "toy.py").write_text(
        "def add(a, b):\n    return a + b\n\n\ndef times(a, b):\n    return a * b\n", encoding="utf-8"
    )
    (root / "tests" / "test_toy.py").write_text(
        "from toy import add, times\n\n\ndef test_add():\n    assert add(1, 2) == 3\n\n\n"
        "def test_times():\n    assert times(5, 1) == 5\n", encoding="utf-8",
    )  # fmt: skip
    return root


def of_toy(root: Path, *entries: dict[str, Any], words: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    table = root.parent / "table.yaml"
    table.write_text(yaml.safe_dump(list(entries)), encoding="utf-8")
    return run("--root", str(root), "--table", str(table), *words)


def test_a_survivor_is_named_and_fails_and_the_tree_stays_as_it_was(toy: Path) -> None:
    before = {path: path.read_bytes() for path in toy.rglob("*") if path.is_file()}
    done = of_toy(toy, GOOD, BLIND)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["killed", "SURVIVED"]
    assert lines[-1] == "2 mutations, 1 survived: product"
    assert {path: path.read_bytes() for path in toy.rglob("*") if path.is_file()} == before
    chosen = of_toy(toy, GOOD, BLIND, words=("sum",))
    assert (chosen.returncode, chosen.stdout.splitlines()[-1]) == (0, "1 mutations, 0 survived")


def test_tests_that_fail_by_themselves_kill_nothing(toy: Path) -> None:
    (toy / "toy.py").write_text("def add(a, b):\n    return a + b + 1\n\n\ndef times(a, b):\n    return a * b\n")
    done = of_toy(toy, GOOD)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the tests do not pass on the tree as it is")


def test_what_moved_is_named(toy: Path) -> None:
    gone = GOOD | {"name": "gone", "old": "a % b"}
    twice = GOOD | {"name": "twice", "old": "return a"}
    idle = GOOD | {"name": "idle", "new": "a + b"}
    broken = GOOD | {"name": "broken", "new": "a +"}
    absent = GOOD | {"name": "absent", "file": "none.py"}
    untested = GOOD | {"name": "untested", "tests": ["tests/test_toy.py::test_gone", "tests/test_none.py"]}
    done = of_toy(toy, GOOD, gone, twice, idle, broken, absent, untested, BLIND, BLIND, {"name": "half"})
    assert done.returncode == 2
    assert done.stdout == ""
    said = done.stderr.removeprefix("error: ").splitlines()
    assert [line.split(": ", 1)[0] for line in said] == [
        "gone", "twice", "idle", "broken", "absent", "untested", "untested", "entry 10", "product",
    ]  # fmt: skip
    assert "stands 0 times in toy.py, expected once: the code moved" in said[0]
    assert "stands 2 times" in said[1]
    assert "no Python" in said[3]
    assert "there is no test tests/test_toy.py::test_gone" in said[5]
    assert "expected name, file, old, new, tests" in said[7]


def test_no_such_mutation_and_no_table(toy: Path) -> None:
    assert "no mutation is called nosuch" in of_toy(toy, GOOD, words=("nosuch",)).stderr
    done = run("--table", str(toy / "none.yaml"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_the_table_is_that_of_the_code() -> None:
    """Every text stands once in its file, and the tests are there: what moved is to be found again in the table."""
    done = run("--check")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 40
