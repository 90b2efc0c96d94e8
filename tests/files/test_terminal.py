"""What a command prints: the same lines into a pipe, without rich, as rich draws where nothing limits their width."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

import predictor
from predictor.cli.main import main
from predictor.files.terminal import Plain, columns_of, headed, screen, show, wide_console
from predictor.report.terminal import print_prediction

TEXTS = [
    "a\tb", "x\x07y\x0bz\x0c", "wide 漢字 and é", "[bold]x[/bold] :smile:", "trail  ", "a\r\nb", "", "\nhead",
    "x" * 500, "\x1b[31mred",
]  # fmt: skip


def rich_console() -> tuple[Console, io.StringIO]:
    drawn = io.StringIO()
    return Console(file=drawn, width=10_000, markup=False, emoji=False, force_terminal=False), drawn


@pytest.mark.parametrize("text", TEXTS)
def test_a_line_is_as_rich_prints_it(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    console, drawn = rich_console()
    for each in (console, Plain()):
        show(each, text, "bold")
        headed(each, text, "rest")
        each.print()
    assert capsys.readouterr().out == drawn.getvalue()


@pytest.mark.parametrize("text", TEXTS)
def test_columns_are_those_of_rich(text: str) -> None:
    assert columns_of(text) == cell_len(text)


def test_an_answer_is_as_rich_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    answer = predictor.predict("gpt2", "h100", mode="generate", tp=2, output_len=4, top=3, explain="mlp up")
    console, drawn = rich_console()
    for each in (console, Plain()):
        print_prediction(answer, each)
    assert capsys.readouterr().out == drawn.getvalue()


def test_a_terminal_and_a_width_are_of_rich(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")  # a dumb one has no bold text
    assert isinstance(screen(), Plain)
    words = ["predict", "--model", "gpt2", "--gpu", "h100"]
    assert main(words) == 0
    plain = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    assert isinstance(screen(), Console) and screen().width == 60
    assert main(words) == 0
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 60 < max(map(len, plain.splitlines()))
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(words) == 0
    assert "\x1b[1m" in capsys.readouterr().out


@pytest.mark.parametrize(("said", "width"), [("0", 10_000), ("", 10_000), ("²", 10_000), ("100", 100), ("5", 20)])
def test_columns_that_are_a_number_above_zero_set_the_width(
    said: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", said)
    assert wide_console().width == width
