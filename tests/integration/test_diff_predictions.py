"""tools/diff_predictions: what a change does to forecasts, between revisions of real git repositories."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import predictor
from predictor import engines
from predictor.models.base import MODES
from predictor.models.built import load_config
from predictor.request.precision import SUPPORTED

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "diff_predictions"
POINTS = ROOT / "tools" / "diff_predictions_points.yaml"
ENVIRONMENT = os.environ | {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
}  # fmt: skip

#: A package as small as the script can compare: latency by model, a refusal, and a word that not all versions know.
TINY = """
from types import SimpleNamespace

TIMES = {times!r}
NODES = {nodes!r}


class Refused(Exception):
    pass


def predict(model, gpu, top=0{words}):
    if model not in TIMES:
        raise Refused(f"no {{model}}\\nat all")
    nodes = [SimpleNamespace(name="n", op="o", phase="forward", count=1, latency_s=NODES.get(model, 0.5))] * bool(top)
    return SimpleNamespace(latency_s=TIMES[model], nodes=nodes, notes=["{{:d}} nodes".format(len(NODES))])
"""


def read_points() -> list[dict[str, Any]]:
    """The points as the script reads them."""
    found: list[dict[str, Any]] = runpy.run_path(str(SCRIPT))["read_points"](POINTS)
    return found


def git(repo: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(repo), *words], check=True, capture_output=True, text=True, env=ENVIRONMENT)
    return done.stdout


def diff(repo: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *words, "--repo", str(repo)]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd="/", env=ENVIRONMENT)


def write_tiny(repo: Path, times: dict[str, float], words: str = "", nodes: dict[str, float] | None = None) -> None:
    (repo / "predictor").mkdir(exist_ok=True)
    text = TINY.format(times=times, words=words, nodes=nodes or {})
    (repo / "predictor" / "__init__.py").write_text(text, encoding="utf-8")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A repository whose tag `base` forecasts a, b, c and d, and whose working tree has changed all but c."""
    repo = tmp_path / "tiny"
    repo.mkdir()
    git(repo, "init", "-q")
    write_tiny(repo, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0})
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "base")
    git(repo, "tag", "base")
    write_tiny(repo, {"a": 1.1, "b": 0.5, "c": 1.0 + 1e-12, "e": 2.0}, words=", tp=1")
    points = [{"model": name, "gpu": "g"} for name in "abcdef"] + [{"model": "a", "gpu": "g", "tp": 2}]
    (tmp_path / "points.yaml").write_text(yaml.safe_dump(points), encoding="utf-8")
    return repo


def tiny_diff(repo: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return diff(repo, *words, "--points", str(repo.parent / "points.yaml"))


def test_changes_come_first_by_size_and_refusals_are_listed(tiny: Path) -> None:
    done = tiny_diff(tiny, "base", ".")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["0.5000", "-50.00", "%"]
    assert lines[0].endswith("b on g: defaults")
    assert lines[1].split()[:3] == ["1.1000", "+10.00", "%"]
    assert lines[2] == "refused by HEAD alone: d on g: defaults: Refused: no d at all"
    assert lines[3] == "refused by BASE alone: e on g: defaults: Refused: no e at all"
    assert lines[4].startswith("refused by BASE alone: a on g: tp 2: TypeError:")
    assert lines[5] == "refused by both: f on g: defaults: Refused: no f at all"
    assert lines[6:] == ["7 points: 1 unchanged, 2 changed, 4 refused; largest change -50.00 %"]


def test_json_says_the_same(tiny: Path) -> None:
    result: dict[str, Any] = json.loads(tiny_diff(tiny, "base", ".", "--json").stdout)
    assert [row["point"]["model"] for row in result["changed"]] == ["b", "a"]
    assert [row["ratio"] for row in result["changed"]] == pytest.approx([0.5, 1.1])
    assert (result["points"], result["unchanged"], result["largest"]) == (7, 1, 0.5)
    assert [len(result[f"refused_by_{who}"]) for who in ("head", "base", "both")] == [1, 2, 1]


def test_the_gate(tiny: Path) -> None:
    """Beyond the limit or newly refused fails; a point that is new, or a change within the limit, does not."""
    assert tiny_diff(tiny, "base", "base", "--fail-above", "0").returncode == 0
    done = tiny_diff(tiny, "base", ".", "--fail-above", "20")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "FAILED: 2 beyond 20 % or refused by HEAD alone"
    write_tiny(tiny, {"a": 1.1, "b": 1.0, "c": 1.0, "d": 1.0, "e": 2.0})
    assert tiny_diff(tiny, "base", ".", "--fail-above", "10.1").returncode == 0
    assert tiny_diff(tiny, "base", ".", "--fail-above", "9.9").returncode == 1
    git(tiny, "commit", "-qam", "head")
    assert tiny_diff(tiny, "base", "HEAD", "--fail-above", "9.9").returncode == 1


def test_an_operator_that_moves_while_the_latency_stays(tiny: Path) -> None:
    write_tiny(tiny, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}, nodes={"b": 0.6})
    done = tiny_diff(tiny, "base", ".")
    lines = done.stdout.splitlines()
    assert "latency unchanged, operator n (o, forward) latency_s: 0.5 -> 0.6 (+1 more): b on g: defaults" in lines
    assert len([line for line in lines if "latency unchanged" in line]) == 4
    assert lines[-1] == "7 points: 0 unchanged, 0 changed, 3 refused, 4 in figures beside the latency"
    result = json.loads(tiny_diff(tiny, "base", ".", "--json").stdout)
    (figures,) = [row["figures"] for row in result["figures_changed"] if row["point"]["model"] == "b"]
    assert figures == {"notes": ["0 nodes", "1 nodes"], "operator n (o, forward) latency_s": [0.5, 0.6]}
    assert tiny_diff(tiny, "base", ".", "--fail-above", "50").returncode == 1  # a text is beyond any limit
    assert "operator" not in tiny_diff(tiny, "base", ".", "--latency-only", "--json").stdout


def test_a_refusal_in_other_words(tiny: Path) -> None:
    package = tiny / "predictor" / "__init__.py"
    package.write_text(package.read_text(encoding="utf-8").replace("at all", "whatever"), encoding="utf-8")
    done = tiny_diff(tiny, "base", ".", "--fail-above", "1000")
    assert "refused in other words before: f on g: defaults: Refused: no f at all" in done.stdout
    assert done.returncode == 1


def test_lists_are_all_their_combinations(tiny: Path) -> None:
    points = [{"model": ["a", "c"], "gpu": ["g", "h"], "prompt_lens": "1,2"}]
    (tiny.parent / "points.yaml").write_text(yaml.safe_dump(points, sort_keys=False), encoding="utf-8")
    result = json.loads(tiny_diff(tiny, "base", ".", "--json").stdout)
    refused = [row["point"] for row in result["refused_by_both"]]
    assert [(p["model"], p["gpu"]) for p in refused] == [("a", "g"), ("a", "h"), ("c", "g"), ("c", "h")]


def test_nothing_is_left_behind(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny.parent / "tmp"
    folder.mkdir()
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(folder))
    before = git(tiny, "status", "--porcelain", "--ignored"), git(tiny, "worktree", "list")
    assert tiny_diff(tiny, "base", ".").returncode == 0
    assert (git(tiny, "status", "--porcelain", "--ignored"), git(tiny, "worktree", "list")) == before
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [(["nosuch", "."], "'nosuch' is no revision"), (["base", "--help"], ""), (["--exec=x", "."], ""),
     (["base", ".", "--fail-above", "-1"], "--fail-above"), (["base", ".", "--fail-above", "nan"], "--fail-above")],
)  # fmt: skip
def test_wrong_requests(tiny: Path, words: list[str], said: str) -> None:
    done = tiny_diff(tiny, *words)
    assert done.returncode == (0 if "--help" in words else 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_code_that_does_not_start_is_one_line(tiny: Path) -> None:
    (tiny / "predictor" / "__init__.py").write_text("import nosuchmodule\n", encoding="utf-8")
    done = tiny_diff(tiny, "base", ".")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "nosuchmodule" in line
    not_a_repository = tiny.parent / "empty"
    not_a_repository.mkdir()
    assert tiny_diff(not_a_repository, "HEAD", "HEAD").returncode == 2


def test_bad_points_are_one_line(tiny: Path) -> None:
    for text in ("[", "- gpu: h100", "{}", ""):
        (tiny.parent / "points.yaml").write_text(text, encoding="utf-8")
        done = tiny_diff(tiny, "base", ".")
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1


def test_a_changed_constant_of_this_package(tmp_path: Path) -> None:
    """This package and what ships with it in a repository of its own, and there a launch that takes twice as long."""
    repo = tmp_path / "copy"
    shutil.copytree(ROOT / "predictor", repo / "predictor", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "models" / "default", repo / "models" / "default")
    git(repo, "init", "-q")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "base")
    constants = repo / "predictor" / "request" / "workload.py"
    text = constants.read_text(encoding="utf-8")
    assert text.count("\nDEFAULT_LAUNCH_OVERHEAD_S = 6e-6") == 1
    constants.write_text(text.replace("OVERHEAD_S = 6e-6", "OVERHEAD_S = 12e-6"), encoding="utf-8")
    few = read_points()[:60]
    (tmp_path / "points.yaml").write_text(yaml.safe_dump(few), encoding="utf-8")
    points = ("--points", str(tmp_path / "points.yaml"))
    result: dict[str, Any] = json.loads(diff(repo, "HEAD", ".", "--json", *points).stdout)
    assert result["points"] == len(few) == 60
    changed = [row["point"] for row in result["changed"]]
    assert {"model": "gpt2", "gpu": "a100", "batch": 1, "seq_len": 128} in changed
    assert all(1.0 < row["ratio"] < 2.0 + 1e-9 for row in result["changed"])
    assert not [point for point in changed if point.get("execution") in ("cuda_graph", "compile")]
    assert not result["refused_by_head"] + result["refused_by_base"] + result["refused_by_both"]
    assert result["unchanged"] > 0


def test_this_code_answers_every_point() -> None:
    """With a forecast, or with one line that the last section of the points is there to keep."""
    wrong, refused = [], 0
    for point in read_points():
        try:
            if not predictor.predict(**point).latency_s > 0:
                wrong.append(f"{point}: no time")
        except predictor.TilecastError as error:
            refused += 1
            if "\n" in str(error):
                wrong.append(f"{point}: {error}")
    assert not wrong, "\n".join(wrong)
    assert 15 <= refused <= 30


def test_the_points_are_different_and_cover_what_can_be_asked() -> None:
    """Every model type, mode, execution and dtype; several GPUs, ragged batches."""
    points = read_points()
    assert len({json.dumps(point, sort_keys=True) for point in points}) == len(points) >= 500
    assert {point.get("mode", "forward") for point in points} == set(MODES)
    assert {point.get("execution", "eager") for point in points} == set(engines.names())
    assert {point.get("dtype", "bf16") for point in points} >= set(SUPPORTED)
    types = {
        load_config(path).model_type for path in (ROOT / "predictor" / "models" / "built" / "configs").glob("*.json")
    }
    asked = {load_config(point["model"]).model_type for point in points if point["model"] != "nosuch"}
    assert asked == types
    assert any(point.get("tp", 1) > 1 and "prompt_lens" in point for point in points)
