"""The workflow, the hooks before a commit and scripts/check say the same."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]


def test_the_workflow_runs_what_ci_runs_on_every_python_that_is_promised() -> None:
    job = WORKFLOW["jobs"]["test"]
    promised = [
        words.rpartition(" ")[2] for words in PROJECT["project"]["classifiers"] if "Python :: 3." in words
    ]  # fmt: skip
    assert job["strategy"]["matrix"]["python"] == promised and promised[0] in PROJECT["project"]["requires-python"]
    assert "bash .ci/run" in [step.get("run") for step in job["steps"]]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_is_a_line_of_the_check(hook: dict[str, str]) -> None:
    check = (ROOT / "scripts" / "check").read_text(encoding="utf-8")
    assert hook["entry"].removesuffix(" --force-exclude") in check and hook["language"] == "system"


@pytest.mark.parametrize("name", [".ci/run", "scripts/check", "scripts/test"])
def test_a_script_is_good_shell(name: str) -> None:
    assert subprocess.run(["bash", "-n", ROOT / name], check=False, capture_output=True).stderr == b""


@pytest.mark.parametrize("name", ["codespell", "pytest-cov", "ruff", "mypy", "pytest-xdist"])
def test_what_the_scripts_call_is_installed_with_the_tests_and_has_an_upper_bound(name: str) -> None:
    assert any(words.startswith(f"{name}>=") for words in PROJECT["project"]["optional-dependencies"]["test"])
    assert f"\n{name}<=" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
