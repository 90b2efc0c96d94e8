"""Nonsense to every verb: one clear line on stderr, exit status 2, nothing on stdout, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.cli import main

PREDICT = "predict --model gpt2 --gpu h100"
COMPARE = "compare --model gpt2 --gpu"
#: Words -> what the line says of them. Files are those of the fixture.
PLAIN = [
    (f"{PREDICT} --batch -1", "--batch -1"),
    (f"{PREDICT} --batch 99999999999999999999", "--batch"),
    (f"{PREDICT} --seq-len 1025", "1025"),
    (f"{PREDICT} --seq-len 1e3", "1e3"),
    (f"{PREDICT} --tp 0", "--tp 0"),
    (f"{PREDICT} --tp 1000000", "--tp 1000000"),
    (f"{PREDICT} --launch-overhead 5", "unit"),
    (f"{PREDICT} --launch-overhead nan", "nan"),
    (f"{PREDICT} --prompt-lens 0", "--prompt-lens 0"),
    (f"{PREDICT} --prompt-lens 5 --batch 3", "--batch 3"),
    (f"{PREDICT} --mode generate", "--output-len 0"),
    (f"{PREDICT} --mode forward --context-len 4", "--context-len 4"),
    (f"{PREDICT} --mode train --batch 4 --micro-batch 3", "--micro-batch 3"),
    (f"{PREDICT} --html file/x.html", "--html"),
    (f"{PREDICT} --trace folder", "--trace"),
    (f"{PREDICT} --artifacts folder", "no estimators at 'folder'"),
    (f"{PREDICT} --artifacts models:/x", "models:/NAME/VERSION"),
    ("predict --model ñandú --gpu h100", "ñandú"),
    ("predict --model gpt2 --gpu H💥", "H💥"),
    ("predict --model folder --gpu h100", "config.json"),
    ("predict --model binary.json --gpu h100", "binary.json"),
    ("predict --model deep.json --gpu h100", "deep.json"),
    ("predict --model list.json --gpu h100", "object"),
    ("predict --model gpt2 --gpu binary.yaml", "binary.yaml"),
    ("predict --model gpt2 --gpu text.yaml", "text.yaml"),
    ("predict --model gpt2 --gpu deep.yaml", "deep.yaml"),
    ("predict --model gpt2 --gpu bomb.yaml", "bomb.yaml"),
    ("gpus folder", "folder"),
    ("models folder", "config.json"),
    (f"{COMPARE} a100,,h100", "one comma"),
    (f"{COMPARE} h100,h100", "twice"),
    (f"{COMPARE} h100 --price h100=-1", "-1"),
    (f"{COMPARE} h100 --price a100=2", "no price of a GPU"),
    (f"{COMPARE} h100 --price folder", "--price folder"),
    (f"{COMPARE} h100 --price binary.yaml", "--price binary.yaml"),
    (f"{COMPARE} p4,t4 --dtype fp8", "fp8"),
    ("compare --model gpt2,gpt3 --gpu a100,h100", "many of one"),
    ("completion ksh", "ksh"),
    ("runs nope", "nope"),
]
NEEDS_PANDAS = [
    ("dataset import neusight folder --out x.parquet", "no neusight data"),
    ("dataset import vidur file --out x.parquet", "not a folder"),
    *(
        (f"{verb} {name}{rest}", name)
        for name in ("missing.parquet", "empty.parquet", "binary.parquet", "folder")
        for verb, rest in (
            ("dataset describe", ""), ("evaluate kernels", ""), ("train --data", " --out new"),
            ("calibrate --gpu rtx-4090 --data", " --out new"),
        )
    ),
    *((f"evaluate workloads {name}", name) for name in ("missing.csv", "empty.csv", "binary.csv", "folder")),
    ("evaluate workloads head.csv", "no row"),
    ("train --data rows.parquet --out file", "--out 'file'"),
    ("train --data rows.parquet --out new --holdout nan", "--holdout nan"),
    ("train --data rows.parquet --out new --register lab", "--register lab"),
]  # fmt: skip


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of files that are not what they are taken for."""
    (tmp_path / "folder").mkdir()
    for name in ("file", "empty.csv", "empty.parquet"):
        (tmp_path / name).touch()
    for name in ("binary.json", "binary.yaml", "binary.csv", "binary.parquet"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00bin")
    (tmp_path / "text.yaml").write_text("only text\n", encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    (tmp_path / "deep.yaml").write_text("[" * 2000, encoding="utf-8")
    nested = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 6)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True))
    (tmp_path / "bomb.yaml").write_text(f"a: &a [x, x]\n{nested}", encoding="utf-8")
    head = "case,config,mode,gpu,dtype,seq_len,global_batch,measured_ms\n"
    (tmp_path / "head.csv").write_text(head, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILECAST_STATE", str(tmp_path / "state"))
    return tmp_path


def refused(words: str, said: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in world.rglob("*"))
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert sorted(path.name for path in world.rglob("*")) == before, "something was written"


@pytest.mark.parametrize(("words", "said"), PLAIN)
def test_nonsense_is_one_line(words: str, said: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(words, said, world, capsys)


@pytest.mark.parametrize(("words", "said"), NEEDS_PANDAS)
def test_nonsense_about_data_is_one_line(
    words: str, said: str, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas", reason="extra 'train'")
    refused(words, said, world, capsys)


def test_an_empty_name_is_unknown(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--model", "", "--gpu", "h100"]) == 2
    assert "unknown model ''" in capsys.readouterr().err
    assert main(["predict", "--model", "gpt2", "--gpu", ""]) == 2
    assert "unknown GPU ''" in capsys.readouterr().err
