"""Every Python script of the repository starts and says what it is for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Modules that scripts import; they have no command line.
PARTS = (
    "accuracy_fp32.py", "accuracy_rows.py", "accuracy_suites.py", "accuracy_tables.py", "constant_set.py",
    "image_models.py", "informative_rows.py", "mkdocs_hooks.py",
)  # fmt: skip
FOLDERS = ("benchmarks", "tools", "scripts")
SCRIPTS = sorted(
    str(path.relative_to(ROOT)) for name in FOLDERS for path in (ROOT / name).glob("*.py") if path.name not in PARTS
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_what_it_is_for(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="the scripts read data sets")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(ROOT / name), "--help"],
        capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("path", sorted(path for name in FOLDERS for path in (ROOT / name).iterdir() if path.is_file()))
def test_a_script_that_docs_call_can_be_called(path: Path) -> None:
    if path.read_text(encoding="utf-8").startswith("#!"):
        assert os.access(path, os.X_OK)
