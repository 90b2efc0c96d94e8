"""A sweep that goes on has no row of other inputs: boards, models, sets and code, by what they hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from predictor.cli.main import main
from predictor.errors import RequestError
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import default_artifacts
from predictor.models.built.load import CONFIGS
from predictor.sweep import inputs
from predictor.sweep.inputs import Inputs
from predictor.sweep.parts import Parts
from predictor.sweep.spec import read_spec


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(str(load_gpu("t4").path), "board.yaml")
    shutil.copyfile(CONFIGS / "gpt2.json", "model.json")
    Path("part.json").write_text("{}")
    Path("pipe.yaml").write_text("sizes: {}\nparts:\n  one: {model: part.json}\n")
    Path("net.py").write_text("import layers\nfrom heads import one\n\ndef build(): ...\n")
    Path("layers.py").write_text("WIDTH = 8\n")
    Path("heads").mkdir()
    Path("heads/one.py").write_text("HEADS = 8\n")
    Path("hf").mkdir()
    shutil.copyfile(CONFIGS / "gpt2.json", "hf/config.json")
    Path("shares.txt").write_text("1 2 3 4")
    return tmp_path


def edit(name: str) -> Callable[[], object]:
    return lambda: Path(name).write_text(Path(name).read_text() + " ")


def test_keys_follow_content(folder: Path) -> None:
    """Each file that a point reads, and those that it names in turn; files of the same content are the same."""
    points = {
        "board.yaml": {"model": "gpt2", "gpu": "board.yaml"}, "model.json": {"model": "model.json", "gpu": "t4"},
        "part.json": {"model": "pipe.yaml", "gpu": "t4"}, "pipe.yaml": {"model": "pipe.yaml", "gpu": "t4"},
        "net.py": {"model": "net.py:build", "gpu": "t4"}, "layers.py": {"model": "net.py:build", "gpu": "t4"},
        "heads/one.py": {"model": "net.py:build", "gpu": "t4"}, "hf/config.json": {"model": "hf:hf", "gpu": "t4"},
        "shares.txt": {"model": "mixtral-8x7b", "gpu": "t4", "routing": "shares.txt"},
    }  # fmt: skip
    plain = {"model": "gpt2", "gpu": "t4"}
    before = {name: Inputs(None).key([point]) for name, point in points.items()}
    same = Inputs(None).key([plain])
    assert len({*before.values()}) == len({json.dumps(p) for p in points.values()})
    for name, point in points.items():
        whole = Path(name).read_text()
        edit(name)()
        assert Inputs(None).key([point]) != before[name], name
        assert Inputs(None).key([plain]) == same
        Path(name).write_text(whole)
        assert Inputs(None).key([point]) == before[name], name


def test_keys_follow_the_set_and_the_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(default_artifacts(), "set")
    point = {"model": "gpt2", "gpu": "t4"}
    before = Inputs("set").key([point])
    manifest = Path("set/memory-bound/manifest.json")
    manifest.write_text(manifest.read_text().replace("1", "2", 1))
    assert Inputs("set").key([point]) not in (before, Inputs(None).key([point]))
    same = Inputs(None).key([point])
    monkeypatch.setattr(inputs, "code_digest", lambda: "another")
    assert Inputs(None).key([point]) != same


def test_a_resumed_sweep_runs_again_what_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows of an edited board are new, those of the other board are kept."""
    Path("spec.yaml").write_text("model: gpt2\ngpu: [board.yaml, v100]\nseq-len: 64\nbatch: [1, 2, 3, 4, 5, 6, 7, 8]\n")
    words = ("sweep", "spec.yaml", "--jobs", "1", "--json", "--artifacts", "roofline")
    assert main((*words, "--out", "before.csv")) == 0
    spec = read_spec(Path("spec.yaml"))
    from predictor.sweep.answers import answer

    with Parts(spec, Path("a.csv"), "roofline") as parts:  # an interruption after all parts
        for number in parts.numbers:
            parts.write(number, answer(parts.points(number), parts.first(number), "roofline"))
        assert len(parts.numbers) == 2 and not parts.missing()
    board = Path("board.yaml")
    board.write_text(board.read_text().replace("320 GB/s", "160 GB/s"))
    capsys.readouterr()
    assert main((*words, "--out", "a.csv")) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["points_kept"] == 8 and "8 of the kept points run again" in said.err
    assert main((*words, "--out", "fresh.csv")) == 0
    assert Path("a.csv").read_bytes() == Path("fresh.csv").read_bytes() != Path("before.csv").read_bytes()


def test_an_input_that_changes_under_way_ends_the_sweep(folder: Path) -> None:
    Path("spec.yaml").write_text("model: gpt2\ngpu: board.yaml\nbatch: [1, 2]\n")
    spec = read_spec(Path("spec.yaml"))
    rows = [{"point": i, "note": ""} for i in range(2)]
    with Parts(spec, Path("a.csv"), "roofline") as parts:
        parts.write(0, rows)
        assert parts.missing() == []
    with Parts(spec, Path("a.csv"), "roofline") as parts:
        assert parts.outdated() == 0 and parts.missing() == []
        edit("board.yaml")()
        for act in (lambda: parts.write(0, rows), parts.finish):
            with pytest.raises(RequestError, match=r"board\.yaml changed while the sweep ran"):
                act()
    with Parts(spec, Path("a.csv"), "roofline") as parts:
        assert parts.outdated() == 2 and parts.missing() == [0]


def test_a_table_is_not_written_over_what_a_point_reads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("shares.csv").write_text(",".join("1" * 8))
    Path("spec.yaml").write_text("model: mixtral-8x7b\ngpu: h100\nrouting: shares.csv\n")
    for more in ((), ("--force",)):
        assert main(("sweep", "spec.yaml", "--out", "shares.csv", *more)) == 2
        assert capsys.readouterr().err.count("\n") == 1 and Path("shares.csv").read_text() == ",".join("1" * 8)
    assert not Path("shares.csv.parts").exists()
