"""The page's state: every word is a field, a link is the state, and what it says elsewhere is the same request."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields as fields_of_class
from dataclasses import replace
from pathlib import Path

import pytest

from predictor.cli.main import build_parser
from predictor.cli.predict import asked_words
from predictor.errors import RequestError
from predictor.hardware.gpu import GPUSpec, list_gpus, load_gpu, parse_gpu
from predictor.hardware.what_if import PARAMETERS, vary
from predictor.models.built.load import CONFIGS
from predictor.request.options import OPTIONS
from predictor.request.request import Request
from predictor.ui.answers import quick
from predictor.ui.boards import as_yaml, board_of
from predictor.ui.fields import fields_of
from predictor.ui.state import (
    FieldError,
    State,
    blamed,
    boards_of,
    command_of,
    config_of,
    python_of,
    read_link,
    read_state,
    shown_board,
    words_of,
    write_link,
)

FIELDS = fields_of(OPTIONS.values())
T4 = as_yaml(load_gpu("t4")).strip()
GPT2 = (CONFIGS / "gpt2.json").read_text(encoding="utf-8").strip()
SERVED = {
    "routing": "zipf:1.2", "memory_fraction": "0.8", "software": "vllm 0.24", "execution": "vllm", "mode": "generate",
    "output_len": "7",
}  # fmt: skip
STATES = [
    State("gpt3", "", ("h100",), {}),
    State("llama-3.1-8b", "", ("h100", "a100 memory_bandwidth=1.5 sm_count=1.1"), {"mode": "decode", "batch": "32"}, 1),
    State("", GPT2, ("l4",), {"dtype": "fp16", "prompt_lens": "3,5,100", "mode": "prefill"}),
    State("gpt2", "", (T4,), {"mode": "train", "batch": "8", "micro_batch": "2", "optimizer": "sgd"}),
    State("mixtral-8x7b", "", ("h200",), SERVED),
    State("gpt3", "", ("a100",), {"mode": "train", "tp": "8", "sp": "yes", "batch": "8"}),
]  # fmt: skip


def given(state: State) -> dict[str, object]:
    """What the page sends of a state."""
    return {
        "model": state.model, "config": state.config, "gpu": list(state.gpus), "shown": str(state.shown),
        **state.words, **state.search,
    }  # fmt: skip


def test_every_word_of_a_request_is_a_field_or_says_why_not() -> None:
    left_out = {name for name, option in OPTIONS.items() if option.row.page}
    assert {one.name for one in FIELDS} | left_out == {one.name for one in fields_of_class(Request)}
    assert not {one.name for one in FIELDS} & left_out
    assert all(one.help for one in FIELDS)


def test_defaults_are_those_of_the_request() -> None:
    of = {one.name: one.default for one in fields_of_class(Request)}
    for one in FIELDS:
        expected = of[one.name]
        shown = "no" if expected is False else "" if expected is None else str(expected)
        assert one.default == shown, one.name


@pytest.mark.parametrize("place", range(len(STATES)))
def test_a_link_holds_the_whole_state(place: int) -> None:
    state = STATES[place]
    assert read_link(write_link(state), FIELDS) == state
    assert read_state(given(state), FIELDS) == state


def test_what_a_mode_does_not_take_is_not_sent() -> None:
    state = read_state({"model": "gpt2", "gpu": ["t4"], "mode": "decode", "output_len": "9", "seq_len": "4"}, FIELDS)
    assert state.words == {"mode": "decode"}


@pytest.mark.parametrize("place", range(len(STATES)))
def test_command_line_and_python_are_the_same_request(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command, parsed by the real parser, and the Python, run, give the words that the page asks with."""
    state = STATES[place]
    board = shown_board(state)
    asked = words_of(state, FIELDS)
    words = shlex.split(command_of(state, state.shown))
    parsed = build_parser("predict").parse_args(words)
    typed = asked_words(parsed)
    for name, value in asked.items():
        assert typed[name] == value, name
    spec = parse_gpu(board.text, Path("board.yaml")) if board.text else load_gpu(parsed.gpu)
    assert replace(spec, sources={}, path=Path(), aliases=()) == replace(
        board.spec, sources={}, path=Path(), aliases=()
    )
    said: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def spy(*positional: object, **named: object) -> object:
        said.append((positional, named))
        return type("Answer", (), {"latency_ms": 1.0})

    monkeypatch.setattr("predictor.predict", spy)
    exec(python_of(state, FIELDS, state.shown), {})
    assert said == [((parsed.model, parsed.gpu), asked)]


@pytest.mark.parametrize("name", list_gpus())
def test_a_board_as_yaml_reads_as_the_board(name: str) -> None:
    board = load_gpu(name)
    for spec in (board, *(vary(board, parameter, 1.37) for parameter in PARAMETERS)):
        again = parse_gpu(as_yaml(spec), Path("board.yaml"))
        different = [
            one.name
            for one in fields_of_class(GPUSpec)
            if one.name not in ("sources", "path", "aliases") and getattr(spec, one.name) != getattr(again, one.name)
        ]
        assert not different


def test_sliders_multiply() -> None:
    board = board_of("h100 memory_bandwidth=2 sm_count=0.5")
    plain = load_gpu("h100")
    assert board.spec.memory_bandwidth == 2 * plain.memory_bandwidth
    assert board.spec.sm_count == 66
    assert board.label == "h100-sxm memory_bandwidth=2 sm_count=0.5"
    assert board_of("h100").text == ""


WRONG: list[tuple[dict[str, object], str, str]] = [
    ({"model": "gpt33"}, "model", "gpt3"),
    ({"model": "/etc/passwd"}, "model", "expected a name"),
    ({"model": "evil.py:build"}, "model", "expected a name"),
    ({"model": ""}, "model", "expected a name"),
    ({"config": "{"}, "config", "not valid JSON"),
    ({"config": "[]"}, "config", "expected an object"),
    ({"config": '{"model_type": "nonesuch-type"}'}, "config", "model_type"),
    ({"config": "[" * 100_000}, "config", "not valid JSON"),
    ({"config": "x" * 300_000}, "config", "at most"),
    ({"gpu": []}, "gpu.0", "at least one"),
    ({"gpu": ["h100", "hopper9"]}, "gpu.1", "unknown GPU"),
    ({"gpu": ["/etc/passwd"]}, "gpu.0", "reads no file"),
    ({"gpu": ["board.yaml"]}, "gpu.0", "reads no file"),
    ({"gpu": ["h100 bandwith=2"]}, "gpu.0", "memory_bandwidth"),
    ({"gpu": ["h100 memory_bandwidth=much"]}, "gpu.0", "a factor"),
    ({"gpu": ["h100 memory_bandwidth=1e9"]}, "gpu.0", "a factor"),
    ({"gpu": ["id: x\nsm_count: 4"]}, "gpu.0", "missing"),
    ({"gpu": ["a: &a [*a]\nb: 2"]}, "gpu.0", "holds itself"),
    ({"gpu": ["h100"] * 7}, "gpu.6", "at most 6"),
    ({"gpu": ["h" * 70_000]}, "gpu.0", "at most"),
    ({"mode": "decde"}, "mode", "decode"),
    ({"batch": "many"}, "batch", "whole number"),
    ({"batch": "0"}, "batch", "at least 1"),
    ({"batch": "9" * 200}, "batch", "whole number"),
    ({"seq_len": "-4"}, "seq_len", "at least 1"),
    ({"dtype": "fp7"}, "dtype", "fp8"),
    ({"dtype": "bf16", "gpu": ["t4"]}, "dtype", "t4 has no bf16"),
    ({"routing": "/etc/passwd"}, "routing", "expected random"),
    ({"tp": "0"}, "tp", "at least 1"),
    ({"memory_fraction": "7"}, "memory_fraction", ""),
    ({"memory_fraction": "half"}, "memory_fraction", "a number"),
    ({"launch_overhead": "6ms"}, "launch_overhead", ""),
    ({"prompt_lens": "1,,2"}, "prompt_lens", ""),
    ({"software": "vllm 99", "execution": "vllm"}, "software", ""),
    ({"sp": "maybe"}, "sp", "yes"),
    ({"nonsense": "1"}, "", "unknown word"),
    ({"batch": 4}, "batch", "expected a text"),
    ({"gpu": "h100"}, "gpu.0", "expected a list"),
    ({"shown": "-1"}, "", "no board"),
]


def run(sent: dict[str, object]) -> None:
    """As the page's answers do, up to the forecast."""
    state = read_state(sent, FIELDS)
    for board in boards_of(state):
        if isinstance(board, FieldError):
            raise board
        try:
            Request(config_of(state), board.spec, **words_of(state, FIELDS)).run()
        except RequestError as error:
            raise blamed(error, FIELDS, 0) from None


@pytest.mark.parametrize("place", range(len(WRONG)))
def test_what_is_wrong_is_one_line_beside_its_field(place: int) -> None:
    change, field, part = WRONG[place]
    sent: dict[str, object] = {"model": "gpt2", "gpu": ["h100"], **change}
    with pytest.raises(FieldError) as caught:
        run(sent)
    assert caught.value.field == field, str(caught.value)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    json.dumps(str(caught.value))


def test_a_state_that_is_no_state() -> None:
    for sent in (None, [], "gpt2", 4):
        with pytest.raises(FieldError, match="no state"):
            read_state(sent, FIELDS)
    for sent in ({"gpu": ["\ud800"]}, {"model": "\ud800", "gpu": []}, {"\ud800": ""}, {"config": "a\udfff"}):
        with pytest.raises(FieldError, match="half of a character"):
            read_state(sent, FIELDS)


def test_a_board_that_nobody_knows_is_one_row_beside_the_answers() -> None:
    """A link with an unknown board, once or twice, shown or not: the others answer, and the link gives it back."""
    for boards, shown in (
        (["h100", "zzz"], "0"),
        (["zzz", "h100", "zzz"], "0"),
        (["h100", "a: b\nc"], "1"),
        (["h100", " "], "0"),
    ):
        state = read_state({"model": "gpt2", "gpu": boards, "shown": shown}, FIELDS)
        assert read_link(write_link(state), FIELDS) == state
        answer = quick(state, FIELDS, "roofline")
        wrong = [place for place, name in enumerate(boards) if name != "h100"]
        assert [error["field"] for error in answer["errors"]] == [f"gpu.{place}" for place in wrong]
        assert "h100-sxm: " in answer["said"] and answer["shown"] == (boards[int(shown)] == "h100")
        assert answer["html"].count("<tr>") == 1 + len(boards)
        assert "--gpu h100" in answer["command"] and "import tilecast" in answer["python"]
    nothing = quick(read_state({"model": "gpt2", "gpu": ["zzz", "yyy"]}, FIELDS), FIELDS, "roofline")
    assert len(nothing["errors"]) == 2 and "html" not in nothing
    with pytest.raises(FieldError, match="unknown GPU 'zzz'"):
        shown_board(read_state({"model": "gpt2", "gpu": ["zzz"]}, FIELDS))
