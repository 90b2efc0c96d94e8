"""One request, many ways to ask it: random requests have the same answer, to the last bit, by every way.

``MORE_REQUESTS`` says how many are drawn (200 without it); a run by hand takes thousands.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from predictor import predict, predict_many
from predictor.cli.main import main
from predictor.errors import TilecastError
from predictor.request.options import OPTIONS
from predictor.sweep.answers import answer
from predictor.ui.answers import as_json
from predictor.ui.fields import fields_of
from predictor.ui.state import read_state
from tests.property.test_more_is_never_slower import REQUESTS, asked

Words = dict[str, Any]
#: Degrees that change nothing: what a request without them means.
DEGREES = ("tp", "pp", "dp", "cp", "ep", "vpp", "num_gpus")


def valid(count: int) -> list[tuple[Words, float]]:
    """(words, seconds) of ``count`` random requests that have an answer, each asked alone and in this order."""
    requests: list[tuple[Words, float]] = []
    for request in asked(seed=7):
        if len(requests) == count:
            break
        words = {"model": request.model, "gpu": request.gpu, **dict(request.words)}
        try:
            requests.append((words, predict(**words).latency_s))
        except TilecastError:
            continue
    return requests


@pytest.fixture(scope="module")
def requests() -> list[tuple[Words, float]]:
    return valid(REQUESTS)


def _differ(requests: list[tuple[Words, float]], seconds: list[float], most: float = 0.0) -> list[str]:
    return [
        f"{words}: {before!r} becomes {after!r}"
        for (words, before), after in zip(requests, seconds, strict=True)
        if abs(after / before - 1.0) > most
    ]


def test_the_order_in_which_they_are_asked_changes_nothing(requests: list[tuple[Words, float]]) -> None:
    """Templates and caches of one process answer as a first request does."""
    order = list(range(len(requests)))
    random.Random(1).shuffle(order)
    seconds = {i: predict(**requests[i][0]).latency_s for i in order}
    assert not _differ(requests, [seconds[i] for i in range(len(requests))])


def test_degrees_of_one_change_nothing(requests: list[tuple[Words, float]]) -> None:
    alone = [(words, seconds) for words, seconds in requests if "tp" not in words]
    assert len(alone) > len(requests) / 2
    assert not _differ(alone, [predict(**words, **dict.fromkeys(DEGREES, 1)).latency_s for words, _ in alone])


def test_words_in_another_order_and_defaults_that_are_said_change_nothing(requests: list[tuple[Words, float]]) -> None:
    said = []
    for words, _ in requests:
        given = predict(**words).workload
        cache = {} if given.serving is None else {"kv_dtype": given.serving.kv_dtype}
        said.append({"attention": given.attention, **cache, **dict(reversed(words.items()))})
    assert not _differ(requests, [predict(**words).latency_s for words in said])


def test_many_at_once_and_points_of_a_sweep_are_as_one_alone(requests: list[tuple[Words, float]]) -> None:
    """Sums in another order differ in the last bits."""
    many = [each.latency_s for each in predict_many([words for words, _ in requests])]
    assert not _differ(requests, many, 1e-12)
    rows = answer([words for words, _ in requests], 0, None)
    assert not _differ(requests, [float(str(row["latency_ms"])) / 1e3 for row in rows], 1e-12)


def _command(words: Mapping[str, Any]) -> list[str]:
    return ["predict", *(text for name, value in words.items() for text in (f"--{name.replace('_', '-')}", str(value)))]


def test_the_command_line_and_the_page_say_what_python_says(
    requests: list[tuple[Words, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    fields = fields_of(OPTIONS.values())
    for words, seconds in requests[::10]:
        assert main([*_command(words), "--json"]) == 0
        told = capsys.readouterr().out
        assert json.loads(told)["latency_ms"] == pytest.approx(seconds * 1e3, rel=1e-12), words
        page = {name: [str(value)] if name == "gpu" else str(value) for name, value in words.items()}
        assert json.loads(as_json(read_state(page, fields), fields, None)) == json.loads(told), words
