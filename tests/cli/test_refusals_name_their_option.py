"""A value that is refused is said with the option that has it, and with no other option before it."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from predictor.cli.main import build_parser, main

_MODEL, _ROOFLINE = ["--model", "gpt2", "--gpu", "h100"], ["--artifacts", "roofline"]
#: A verb -> words with which it would run.
VERBS = {
    ("predict",): [*_MODEL, *_ROOFLINE], ("compare",): [*_MODEL, *_ROOFLINE],
    ("plan",): [*_MODEL, "--num-gpus", "2", "--global-batch", "2", "--seq-len", "32", *_ROOFLINE],
    ("serve", "plan"): [*_MODEL, "--num-gpus", "1", "--isl", "8", "--osl", "2", *_ROOFLINE],
    ("serve", "simulate"): [*_MODEL, "--execution", "vllm", "--rate", "1", "--isl", "8", "--osl", "2", *_ROOFLINE],
    ("sweep",): ["s.yaml", "--out", "o.csv"], ("evaluate", "workloads"): ["s.csv"], ("evaluate", "served"): ["s.csv"],
    ("ui",): [], ("train",): ["--data", "rows.parquet", "--out", "set"],
    ("calibrate",): ["--gpu", "h100", "--data", "rows.parquet", "--out", "set"],
    ("dataset", "import"): ["csv", "rows.csv", "--gpu", "h100", "--out", "rows.parquet"],
}  # fmt: skip
#: What no option that is not a text of one's own takes; "-1" where numbers may be too large for a test's time.
WORD, BELOW = "nonsense-x", "-1"
#: Options whose value the line names by what it is: "unknown GPU", "unknown model", "unknown dtype", "unknown system".
BY_KIND = ("--model", "--gpu", "--dtype", "--system", "--artifacts")
#: Whatever is said is right: names, texts and files of a person's own, and what stands for several options.
_FREE = ("--name", "--register", "--stage", "--tracking-uri", "--json", "--by", "--host", "--from", "--data", "--out",
         "--html", "--trace", "--timeline", "--save-graph")  # fmt: skip


def options(words: tuple[str, ...]) -> list[str]:
    parser: argparse.ArgumentParser = build_parser(words[0])
    for word in words:
        parser = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices[word]
    named = [max(a.option_strings, key=len) for a in parser._actions if a.option_strings and a.nargs != 0]
    return [name for name in named if name not in (*_FREE, "--help", "--version")]


def without(words: list[str], option: str) -> list[str]:
    at = words.index(option) if option in words else len(words)
    return words[:at] + words[at + 2 :]


@pytest.mark.parametrize("words", VERBS)
def test_a_refusal_names_the_option_that_was_typed(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("predictor.ui.server.serve", lambda *asked: pytest.fail("the page is served"))
    for option in options(words):
        for value in (WORD, BELOW):
            capsys.readouterr()
            status = main([*words, *without(VERBS[words], option), f"{option}={value}"])
            said = capsys.readouterr().err.strip()
            if status == 0 or "cannot read" in said or "s.csv" in said or "rows." in said:
                continue  # a text that is taken, or one that the verb looks at after its files
            asked = f"{' '.join(words)} {option}={value}: {said}"
            assert status == 2 and said.count("\n") == 0, asked
            if option in BY_KIND:
                assert re.search(rf"{value}'|{value}\b", said), asked
                continue
            first = re.search(r"(?<![\w-])--[a-z][a-z-]*", said)
            assert option in said and first is not None, asked
            if not ("go together" in said or "one of the" in said):
                assert first.group() == option, asked


_BATCH = without(VERBS[("plan",)], "--global-batch")
_MANY = "99999999999"


@pytest.mark.parametrize(("words", "said"), [
    (["serve", "plan", *VERBS["serve", "plan"], "--software", "0"], "--software '0': names no engine"),
    (["plan", *_BATCH, "--global-batch", _MANY], "--global-batch 99999999999: expected at most"),
    (["serve", "simulate", *VERBS["serve", "simulate"], "--seed", "-1"], "--seed -1: expected 0 or more"),
    (["train", *VERBS[("train",)], "--seed", "-1"], "--seed: '-1': expected 0 to 2,147,483,647"),
    (["serve", "simulate", *VERBS["serve", "simulate"], "--replicas", _MANY], "--replicas 99999999999: expected"),
    (["serve", "simulate", *VERBS["serve", "simulate"], "--prefill-servers", _MANY], "--prefill-servers 99999999999:"),
])  # fmt: skip
def test_values_that_another_option_was_blamed_for(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(words) == 2
    assert said in capsys.readouterr().err
