"""Every command that README, docs and --help show is understood by the real parsers, and all that is quick is run.

The quick ones run in a folder that holds what they name: a made-up data set, a board, a config.json. What is not run
stands in `NOT_RUN` with the reason; its words are parsed all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import data_folder
from microbench_runs import with_ceilings

from microbench.cli import build_parser as harness_parser
from microbench.cli import main as harness
from predictor.cli.launched import with_launched
from predictor.cli.main import VERBS, build_parser, main
from predictor.engines import registry
from predictor.errors import TilecastError
from predictor.kernels.artifact import default_artifacts, load_artifacts

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = ("predict", "tilecast", "microbench", "python", "python3", "mlflow", "scripts", "benchmarks", "tools")
#: Folders of programs that are run from a checkout.
FOLDERS = ("scripts/", "benchmarks/", "tools/")

#: Beginning of a command -> why it is not run here.
NOT_RUN = {
    "python3 -m venv": "an installation takes minutes; tests/integration/test_packaging.py installs and runs it",
    "scripts/test": "this is what runs these tests",
    "scripts/check": "runs in scripts/test",
    "tools/walk": "the steps of docs/tutorials/walk.md one by one: more than a minute",
    "tools/diff_predictions": "tests/integration/test_diff_predictions.py runs it",
    "tools/fuzz": "minutes; tests/integration/test_fuzzing.py runs it",
    "tools/mutate": "minutes; tests/integration/test_mutate.py runs it",
    "tools/architectures": "minutes: every type is traced in a process of its own",
    "benchmarks/accuracy": "needs the public data and most of an hour",
    "benchmarks/interval_coverage": "needs the public data and most of an hour",
    "benchmarks/leave_one_out": "needs the public data and most of an hour",
    "benchmarks/speed": "times, which want a quiet machine",
    "python benchmarks/training_effects.py": "needs the public data; tests/fit/test_training_suites.py runs its parts",
    "benchmarks/plan_": "times, and the public data",
    "tilecast ui": "a server that goes on; tests/integration/test_ui.py starts one",
    "mlflow ui": "a server that goes on; tests/integration/test_tracking.py starts one",
    "mkdocs serve": "a server that goes on",
    "mkdocs build": "a test of its own below",
    "tilecast dataset import csv": "reads a table of the reader's own; test_own_table.py imports one",
    "tilecast calibrate --gpu rtx-4090 --data mine.csv": "the same; test_own_table.py calibrates with one",
    **{
        f"tilecast dataset import {source}": "needs the public data, and minutes; test_importers_data.py imports"
        for source in (
            "neusight",
            "aiconfigurator",
            "vidur",
            "vtrain",
            "llmcompass",
            "aiter",
            "simumax",
            "llmservingsim",
        )
    },
    "tilecast train --data datasets/": "minutes; tests/integration/test_datasets_folder.py trains on a slice",
    "tilecast evaluate kernels datasets/": "minutes; the same test evaluates a slice",
    "tilecast dataset fetch": "the network; tests/integration/test_dataset_fetch.py fetches from a local repository",
    "tilecast dataset describe neusight.parquet": "the public data, imported",
    "microbench plan --calibration": "tests of the harness run it",
    "microbench collect --budget": "needs a GPU",
    "microbench doctor": "needs a GPU; tests/microbench/test_microbench_doctor.py runs its parts",
    "microbench first-run": "needs a GPU and eight minutes",
    "microbench collect --part": "needs a GPU; tests/integration/test_microbench_fleet.py runs parts on the processor",
    "microbench collect --engine ray": "needs a cluster; the same test runs a local one",
    "microbench merge": "the same test",
    "microbench status node-1": "the same test",
    "microbench collect --ops": "needs a GPU",
    "microbench collect --cases": "needs a GPU; tests/integration/test_calibration_rows.py runs it on the processor",
    "microbench collect --calibration": "needs a GPU; the same test runs it",
    "tilecast dataset import microbench board": "what these collect; the same test imports it",
    "tilecast calibrate --gpu h100 --data board.parquet": "the same test calibrates with it",
    "predict --model llama-3.1-8b --gpu h100 --artifacts h100-set": "the set of that calibration",
    "tilecast calibrate --gpu rtx-4090 --data tiles.parquet": "rows of a GPU; test_tiles_on_cpu.py has a processor's",
    "microbench collect --device cpu": "the fixture `world` runs it, with a few cases; what it wrote is read here",
    "microbench workload": "needs a GPU and an hour",
    "microbench launch-overhead": "wants a GPU; tests/integration/test_microbench_launch.py runs it on the processor",
    "tilecast evaluate served $TILECAST_DATA": "minutes; tests/integration/test_serve.py evaluates a few rows",
    "tilecast plan --model gpt3 --gpu h100 --num-gpus 64 --global-batch 64 --only tp=8 --explain": "as with --out",
    "tilecast plan --model llama-3.1-8b --gpu h100 --num-gpus 16 --global-batch 64": "as those of gpt3",
    "tilecast serve plan --model llama-3.1-70b": "seconds a search; those of qwen3-32b with --emit run",
    "tilecast serve plan --model llama-3.1-8b": "the same; tests/search/test_serving_plans.py finds the fewest GPUs",
    "tilecast serve plan --model qwen3-32b --gpu h200 --num-gpus 8 --isl 4000 --osl 1000 --ttft": "the same",
    "tilecast trace": "a trace of the reader's own; tests/profiles runs each of these on made ones",
    "tilecast calibrate --trace": "the same",
    "tilecast runs push --tracking-uri http://mlflow.lab": "a server of somebody's laboratory",
}


def shown(path: Path) -> list[str]:
    """The commands of the fenced blocks of a page, comments and prompts taken off."""
    text = path.read_text(encoding="utf-8")
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        if language in ("sh", "console", "bash", ""):
            found += list(commands(block))
    return found


def commands(block: str) -> Iterator[str]:
    """The lines of a block that are commands; a backslash at the end joins two."""
    for line in re.sub(r"\\\n\s*", "", block).splitlines():
        words = shlex.split(line.strip().removeprefix("$ "), comments=True)
        program = next((word for word in words if "=" not in word), "")
        if program.split("/")[0] in PROGRAMS:
            words = words[: words.index(">")] if ">" in words else words
            yield " ".join(shlex.quote(word) if " " in word else word for word in words).replace(
                "python3 -m microbench", "microbench"
            )


def helped() -> list[str]:
    """The commands of the examples below the --help of every verb."""
    found = []
    for parser in (*every_parser(build_parser()), *every_parser(harness_parser())):
        for line in (parser.epilog or "").splitlines():
            found += list(commands(line.strip().removeprefix("example: ").split(", then: ")[0]))
    return list(dict.fromkeys(found))


def every_parser(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from every_parser(inner)


def split(command: str) -> tuple[dict[str, str], list[str]]:
    """Settings of the environment before a command, and its words."""
    words = shlex.split(command)
    settings = {}
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        name, _, value = words.pop(0).partition("=")
        settings[name] = value
    return settings, words


ALL = sorted({command for page in PAGES for command in shown(page)} | set(helped()))


def test_there_are_commands() -> None:
    assert len(ALL) > 40
    assert any(command.startswith("predict --model gpt3 --gpu h100") for command in ALL)


@pytest.mark.parametrize("command", ALL)
def test_is_understood(command: str) -> None:
    """The real parser takes every word; a script of ours names every flag."""
    _, words = split(command)
    if words[:2] == ["tilecast", "microbench"]:
        words = words[1:]
    if words[0] in ("predict", "tilecast"):
        if "dataset" not in words:  # whose --from is a folder
            words, _ = with_launched(words, "simulate" in words)
        build_parser().parse_args(words if words[0] == "predict" else words[1:])
    elif words[0] == "microbench":
        harness_parser().parse_args(words[1:])
    elif words[0].startswith(FOLDERS) or (words[0] == "python" and len(words) > 1):
        script = ROOT / (words[1] if words[0] == "python" else words[0])
        source = script.read_text(encoding="utf-8")
        for flag in (word for word in words if word.startswith("--")):
            assert flag in source, f"{script.name} has no {flag}"
    else:
        assert any(command.startswith(known) for known in NOT_RUN), "neither ours nor said to be left out"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_flag_in_the_text_exists(page: Path) -> None:
    """A flag in inline code is one of a verb, or of a script of ours."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    parsers = [*every_parser(build_parser()), *every_parser(harness_parser())]
    known = {option for parser in parsers for action in parser._actions for option in action.option_strings}
    scripts = "".join(
        path.read_text(encoding="utf-8") for name in FOLDERS for path in (ROOT / name).iterdir() if path.is_file()
    )
    # mypy's and mkdocs', nvidia-smi's, MLflow's, vLLM's and SGLang's; torchrun's
    foreign = {"--strict", "--reset-gpu-clocks", "--backend-store-uri", "--attention-backend", "--quantization"}
    foreign |= {
        "--extra",
        "--config",
        "--max-running-requests",
        "--num-layers",
        "--hidden-size",
        "--enable-dp-attention",
        "--scheduler-recv-interval",
        "--speculative-config",
    }
    foreign |= {"--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--node-rank", "--max-restarts"}
    for code in re.findall(r"`([^`]+)`", prose):
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code):
            assert flag in known | foreign or f'"{flag}"' in scripts, f"{page.name}: no command has {flag}"


# --------------------------------------------------------------------------------------------------- for real

MODULE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2.0


def get_inputs():
    return [torch.rand(64, 64)]


def get_init_inputs():
    return []
"""


def rows(gpu: str, count: int, seed: int) -> Any:
    """Made-up fp32 rows of eager PyTorch: a share of the roofline and 3 % of noise."""
    from predictor.data import dataset
    from predictor.fit.evaluate import predict_rows

    rng = np.random.default_rng(seed)
    common = {
        "source": "made-up", "source_file": "none", "source_row": np.arange(count), "gpu": gpu, "framework": "pytorch",
        "framework_version": "0", "kernel_source": "aten", "protocol": "eager_events", "cache_state": "warm",
        "dtype": "fp32", "quant": "", "flag": "", "latency_ms": 1.0,
    }  # fmt: skip
    m, n, k = (2 ** rng.integers(8, 13, count) for _ in range(3))
    gemm = {"op": "gemm", "m": m, "n": n, "k": k, "batch": 1, "kind": "linear", "bias": False, "layout": "tn"}
    frames = [dataset.to_frame(common | gemm, count)]
    frames.append(dataset.to_frame(common | {"op": "softmax", "rows": m, "cols": n}, count))
    for frame in frames:
        perfect = predict_rows(frame, load_artifacts("roofline"))["predicted_ms"].to_numpy(dtype=float)
        frame["latency_ms"] = perfect * 1.6 * np.exp(rng.normal(0, 0.03, count)) + 0.01
    return dataset.concat(frames)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that a page names."""
    pytest.importorskip("pandas", reason="extra 'train'")
    pytest.importorskip("torch", reason="extra 'torch'")
    from predictor.data import dataset

    folder = tmp_path_factory.mktemp("world")
    dataset.write(dataset.concat([rows("v100-pcie-32gb", 100, 1), rows("t4", 100, 2)]), folder / "rows.parquet")
    dataset.write(rows("rtx-4090", 60, 3), folder / "my-rows.parquet")
    (folder / "my").mkdir()
    shutil.copy(ROOT / "predictor" / "models" / "built" / "configs" / "gpt2.json", folder / "my" / "config.json")
    board = (ROOT / "examples" / "hypothetical-gpu.yaml").read_text(encoding="utf-8")
    for name in ("my-gpu", "my-board"):
        (folder / f"{name}.yaml").write_text(board.replace("hypothetical-x1", name), encoding="utf-8")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "modules").mkdir()
    (folder / "modules" / "scaled.py").write_text(MODULE, encoding="utf-8")
    (folder / "measured-modules.csv").write_text("module,gpu,measured_ms\nscaled,l4,0.05\n", encoding="utf-8")
    (folder / "measured.csv").write_text("id,measured_ms\n1,8.4\ndense,95\n", encoding="utf-8")
    arrivals = "".join(f"{0.2 * n:.1f},{100 + n},{5 + n % 3}\n" for n in range(20))
    (folder / "requests.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{arrivals}", encoding="utf-8")
    talk = {"conversations": [{"from": "human", "value": "why " * 50}, {"from": "gpt", "value": "because " * 20}]}
    (folder / "sharegpt.json").write_text(json.dumps([talk] * 9), encoding="utf-8")
    words = "collect --device cpu --threads 1 --ops softmax,norm --dtypes fp32 --max-cases 16 --case-seconds 0.02s"
    out = with_ceilings(folder / "datasets")
    assert harness([*words.split(), "--budget", "300s", "--out", str(out)]) == 0
    for copy in ("monday", "tuesday", "mine"):
        shutil.copytree(folder / "datasets", folder / copy)
    return folder


def reason(command: str) -> str | None:
    """Why a command is not run here; None where it is."""
    if "$TILECAST_DATA" in command and data_folder() is None:
        return "the public data is not here"
    return next((why for known, why in NOT_RUN.items() if command.startswith(known)), None)


def run(command: str) -> int:
    """One command in the current folder; its exit status."""
    settings, words = split(command)
    words = [
        str(found) for word in words for found in (Path().glob(word) if "*" in word else [os.path.expandvars(word)])
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        if words[0] == "predict":
            return main(words)
        if words[0] == "tilecast":
            return main(words[1:])
        if words[0] == "microbench":
            return harness(words[1:])
    done = subprocess.run(
        [sys.executable, *words[1:]], env=os.environ | settings | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.returncode


@pytest.mark.skipif(
    not (default_artifacts() / "manifest.json").is_file(), reason="no shipped estimators in this checkout"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:sqlalchemy", "ignore::DeprecationWarning:mlflow")
@pytest.mark.parametrize("page", [*(p.name for p in PAGES), "--help"])
def test_page_runs(
    page: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    todo = helped() if page == "--help" else shown(next(p for p in PAGES if p.name == page))
    place = tmp_path / "place"
    shutil.copytree(world, place, symlinks=True)
    monkeypatch.chdir(place)
    monkeypatch.setenv("TILECAST_STATE", str(tmp_path / "state"))
    if data_folder() is not None:
        monkeypatch.setenv("TILECAST_DATA", str(data_folder()))
    for command in todo:
        if reason(command) is None:
            status = run(command)
            assert status == 0, f"{page}: {command}: {status}: {capsys.readouterr().err[-1000:]}"


def test_the_readme_is_short_and_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """At most 80 lines; the sample of output has the words of today's, whatever the estimators' numbers are."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 80
    command, sample = re.findall(r"^```console\n\$ (.*?)\n```\n\n```text\n(.*?)^```", text, re.M | re.S)[0]
    assert main(shlex.split(command)) == 0

    def words(output: str) -> list[list[str]]:
        """Of each line, what is no number and no unit of time."""
        return [re.findall(r"\b(?!(?:s|ms|us)\b)[a-z][a-z-]+", line) for line in output.splitlines()]

    assert words(sample) == words(capsys.readouterr().out), "README.md: paste what the command prints"


def test_the_docs_build(tmp_path: Path) -> None:
    """`mkdocs build --strict`: every link leads somewhere, every page is in the navigation."""
    pytest.importorskip("mkdocs", reason="extra 'docs'")
    pytest.importorskip("material", reason="extra 'docs'")
    pytest.importorskip("nbconvert", reason="extra 'docs'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, env=os.environ | {"TILECAST_DOCS_RUN": "0", "NO_MKDOCS_2_WARNING": "1"}, capture_output=True,
        text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "Five minutes" in home
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        title = json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"][0].removeprefix("# ").strip()
        assert title in (tmp_path / "site" / "notebooks" / f"{notebook.stem}.html").read_text(encoding="utf-8")


def test_tables_of_notebooks_scroll_on_a_phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The theme lets a table scroll that has no class; pandas gives it one, and a style of its own."""
    frame = pytest.importorskip("pandas", reason="extra 'train'").DataFrame({"a": [1], "b": [2]})
    nbformat = pytest.importorskip("nbformat", reason="extra 'docs'")
    pytest.importorskip("nbconvert", reason="extra 'docs'")
    pytest.importorskip("mkdocs", reason="extra 'docs'")
    output = nbformat.v4.new_output("execute_result", {"text/html": frame._repr_html_()}, execution_count=1)
    path = tmp_path / "n.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", outputs=[output])]), path)
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import mkdocs_hooks

    text, _ = mkdocs_hooks.render(path, run=False)
    assert text.count("<table>") == 1
    assert "dataframe" not in text
    assert "<style" not in text


def test_the_page_of_options_has_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """A section a command, a line an option, with its default filled in."""
    pytest.importorskip("nbconvert", reason="extra 'docs'")
    pytest.importorskip("mkdocs", reason="extra 'docs'")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import mkdocs_hooks

    text = mkdocs_hooks.options_page()
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    checked = 0
    for parser in every_parser(build_parser()):
        for action in parser._actions:
            for option in set(action.option_strings) - {"-h", "--help"}:
                assert re.search(rf"^\| `[^`]*{re.escape(option)}\b", sections[parser.prog], re.M), (
                    parser.prog,
                    option,
                )
                checked += 1
    assert checked > 200
    assert "%(" not in text


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of README and of the pages runs as it stands; what it registers is gone after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_libraries", {})
    ran = 0
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            exec(compile(block, page.name, "exec", dont_inherit=True), {"__name__": page.stem})
            ran += 1
    assert ran >= 3


def test_the_parser_would_notice() -> None:
    """These tests can fail: a flag that is gone is an error of the parser."""
    with pytest.raises(TilecastError):
        build_parser().parse_args(["predict", "--model", "gpt3", "--gpu", "h100", "--gone"])
    assert "predict" in VERBS
