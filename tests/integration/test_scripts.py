"""Every Python script of the repository starts and says what it is for."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Modules that scripts, mkdocs and Hatchling import; they have no command line.
PARTS = (
    "accuracy_fp32.py", "accuracy_rows.py", "accuracy_suites.py", "accuracy_tables.py", "constant_set.py",
    "image_models.py", "informative_rows.py", "mkdocs_hooks.py", "wheel_hook.py",
)  # fmt: skip
FOLDERS = ("benchmarks", "tools", "scripts")
SCRIPTS = sorted(
    str(path.relative_to(ROOT)) for name in FOLDERS for path in (ROOT / name).glob("*.py") if path.name not in PARTS
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_what_it_is_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `python NAME --help` runs it, in this process: what forty of them import is loaded once."""
    pytest.importorskip("pandas", reason="the scripts read data sets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(ROOT / name), "--help"])
    monkeypatch.setattr(sys, "path", [str((ROOT / name).parent), str(ROOT), *sys.path])
    environment = dict(os.environ)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / name), run_name="__main__")
    assert end.value.code in (0, None)
    assert capsys.readouterr().out.startswith("usage: ")
    assert dict(os.environ) == environment and not any(tmp_path.iterdir())


@pytest.mark.parametrize("path", sorted(path for name in FOLDERS for path in (ROOT / name).iterdir() if path.is_file()))
def test_a_script_that_docs_call_can_be_called(path: Path) -> None:
    if path.read_text(encoding="utf-8").startswith("#!"):
        assert os.access(path, os.X_OK)
