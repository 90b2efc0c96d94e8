"""The way of the words of `predict` to the forecast: few files, and few returns to one that they had left."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import predictor
from predictor import api
from predictor.request.options import Words
from predictor.request.parallelism import Parallelism
from predictor.request.run import Run
from predictor.request.serving import Serving
from predictor.request.training import Training
from predictor.request.workload import Workload

PACKAGE = Path(predictor.__file__).parent
#: The words, and what they become on their way. A word that travels alone, such as a GPU's name, is its reader's.
RECORDS = (Words, Parallelism, Training, Serving, Workload, Run)
#: It stands for the `__init__` that the standard library would make of a class (`predictor.files.records`).
MAKES_CLASSES = "files/records.py"


class ReachedError(Exception):
    """The run has come to the forecast."""


def way(monkeypatch: pytest.MonkeyPatch, **words: Any) -> list[str]:
    """Files of `predictor` in the order in which calls from `predict` on, which hand over the words, enter them."""
    files: list[str] = []

    def forecast(run: Run) -> None:
        raise ReachedError

    def enter(frame: FrameType, event: str, _: object) -> None:
        code, path = frame.f_code, Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(PACKAGE):
            return
        file = path.relative_to(PACKAGE).as_posix()
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        carries = any(isinstance(frame.f_locals.get(name), RECORDS) for name in arguments)
        if carries and file != MAKES_CLASSES and files[-1:] != [file]:
            files.append(file)

    monkeypatch.setattr(api, "forecast", forecast)
    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        api.predict("gpt3", "h100", **words)
    except ReachedError:
        pass
    finally:
        sys.setprofile(before)
    return files


@pytest.mark.parametrize(
    ("words", "returns"),
    [
        ({}, 6),
        ({"mode": "decode", "batch": 8, "execution": "vllm"}, 9),
        ({"mode": "train", "batch": 8, "tp": 8}, 10),  # its words are held against batch, engine, degrees and model
    ],
    ids=["forward", "decode", "train"],
)
def test_the_way_of_words_is_short(monkeypatch: pytest.MonkeyPatch, words: dict[str, Any], returns: int) -> None:
    files = way(monkeypatch, **words)
    assert files[0] == "api.py" and "request/workload.py" in files
    assert len(set(files)) <= 10
    assert len(files) - len(set(files)) <= returns
