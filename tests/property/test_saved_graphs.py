"""A saved graph that somebody changed is one line, or a forecast of finite times."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import predictor
from predictor.cli.main import main
from predictor.errors import RequestError
from predictor.graph.saved_graph import from_json

#: What stands in a changed place: numbers that no graph has, and values of other kinds.
ODD = st.sampled_from(
    (-1, 0, 1, 2**31, 10**20, -(10**20), 0.5, -0.5, math.nan, math.inf, 1e300, True, None, "", "nonsense", [], {}, [[]])
)


@lru_cache(maxsize=2)
def saved(mode: str) -> dict[str, Any]:
    from predictor.cli.predict import _recording
    from predictor.forecast.forecast import forecast
    from predictor.graph.saved_graph import recording_bytes
    from predictor.request.request import Request

    run = Request("gpt2", "h100", mode=mode, batch=1, seq_len=128).run()
    found: dict[str, Any] = json.loads(recording_bytes(_recording(forecast(run))))
    return found


@pytest.mark.parametrize(("model", "micro_batch"), [("gpt2", 2), ("bloom-560m", 4)])
def test_what_stands_in_a_graph_alone_is_saved_too(model: str, micro_batch: int, tmp_path: Path) -> None:
    """Sums into gradients that are there, and a GELU whose class writes its backward pass: no data set has them."""
    from predictor.cli.predict import _recording
    from predictor.forecast.forecast import forecast
    from predictor.graph.saved_graph import load_recording, save_recording
    from predictor.request.request import Request

    run = Request(model, "h100", mode="train", batch=4, micro_batch=micro_batch, seq_len=128).run()
    recording = _recording(forecast(run))
    save_recording(recording, tmp_path / "graph.json")
    loaded = load_recording(tmp_path / "graph.json")
    before, after = ([n.op for b in r.graph.blocks for n in b.nodes] for r in (recording, loaded))
    assert before == after and {type(op).__name__ for op in after} & {"Accumulate", "HandGelu"}


def places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to every value in a JSON object."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [before, *(way for key, each in inside for way in places(each, (*before, key)))]


@lru_cache(maxsize=2)
def ways(mode: str) -> list[tuple[Any, ...]]:
    return places(saved(mode))[1:]


def changed(data: dict[str, Any], way: tuple[Any, ...], value: Any) -> dict[str, Any]:
    found = copy.deepcopy(data)
    at: Any = found
    for key in way[:-1]:
        at = at[key]
    at[way[-1]] = value
    return found


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_changed_graph_is_refused_or_forecast(data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(("forward", "train")))
    graph = changed(saved(mode), data.draw(st.sampled_from(ways(mode))), data.draw(ODD))
    from predictor.models.traced.model import TracedModel
    from predictor.models.traced.sources import Saved

    try:
        recording = from_json(graph, "graph.json")
        answer = predictor.predict(TracedModel(recording.name, Saved(recording)), "h100", mode=recording.mode)
    except RequestError as error:
        said = str(error)
    else:
        said = f"{answer.latency_s:g} s"
        assert math.isfinite(answer.latency_s) and answer.latency_s > 0.0, said
    assert "\n" not in said


def node(index: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["blocks"][1][7][0][index] = value

    return change


def test_what_no_graph_says_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative calls of the host, fractional repeats, NaN, circles, places behind the end or from it, no file."""
    path = tmp_path / "graph.json"

    def circle(data: dict[str, Any]) -> None:
        nodes = data["blocks"][1][7]
        nodes[0], nodes[-1] = nodes[-1], nodes[0]

    changes: list[Callable[[dict[str, Any]], Any]] = [
        node(6, -5), node(6, 1.5), node(6, math.nan), node(4, 0), node(4, 2.5), node(7, math.nan), node(7, -1.0),
        node(0, -1), node(2, [-1]), node(2, [10**6]), node(5, 10**6), circle,
        lambda data: data["blocks"][1].__setitem__(1, 1.5), lambda data: data["blocks"][1].__setitem__(1, -3),
        lambda data: data["blocks"][1].__setitem__(1, math.nan), lambda data: data["blocks"][1].__setitem__(6, 99),
        lambda data: data["ops"][0][1].update(tokens=-4), lambda data: data["ops"][0][1].update(tokens=math.nan),
        lambda data: data["ops"][0][1].update(tokens=1.5), lambda data: data["ops"][0][1].update(dtype="bf17"),
        lambda data: data["tensors"][0].__setitem__(2, [-1]), lambda data: data["tensors"][0].__setitem__(5, 0),
        lambda data: data["tensors"][0].__setitem__(4, -1), lambda data: data.update(weight_bytes=math.nan),
        lambda data: data.update(parameters=-1), lambda data: data.update(dtype="bf17"), lambda data: data.pop("words"),
    ]  # fmt: skip
    texts = ["", "{", '{"schema": "tilecast graph", "version": 1}', "[]", "null"]
    for change in changes:
        data = copy.deepcopy(saved("forward"))
        change(data)
        texts.append(json.dumps(data))
    for text in texts:
        path.write_text(text)
        status = main(["predict", "--model", str(path), "--gpu", "h100", "--artifacts", "roofline"])
        said = capsys.readouterr().err
        assert status == 2 and said.startswith("error: ") and said.count("\n") == 1, (text[:200], said)
