"""Traces that are broken, or made to do harm: one line each, in bounded memory."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from made_traces import MadeTrace, two_products

from predictor.cli.main import main
from predictor.errors import SpecError
from predictor.profiles import events, recorded
from predictor.profiles.events import TraceFile
from predictor.profiles.recorded import Recorded

#: What a fuzzer puts in place of a value.
VALUES: tuple[Any, ...] = (
    None, -1, 2**70, 1e308, -1e308, "", "x" * 5000, [], {}, [[]], [-1], [2**70, 2**70], True, [[1, 2], [3]], "\x1b[31m",
)  # fmt: skip


def changed(made: MadeTrace, dice: random.Random) -> bytes:
    """A trace with some of it changed: values, keys, events, or bytes."""
    trace = json.loads(json.dumps({**made.head, "traceEvents": made.events}))
    for _ in range(dice.randint(1, 6)):
        event = dice.choice(trace["traceEvents"])
        place = dice.choice([event, event.get("args") or event]) if isinstance(event.get("args"), dict) else event
        if place:
            place[dice.choice(list(place))] = dice.choice(VALUES)
    if dice.random() < 0.3:
        trace[dice.choice(["deviceProperties", "traceEvents", "schemaVersion"])] = dice.choice(VALUES)
    text = json.dumps(trace).encode()
    if dice.random() < 0.4:
        at = dice.randrange(len(text))
        text = dice.choice([text[:at], text[:at] + bytes([dice.randrange(256)]) + text[at + 1 :], text[at:], text * 2])
    if dice.random() < 0.3:
        packed = gzip.compress(text)
        return packed[: dice.randrange(4, len(packed) + 1)]
    return text


@pytest.mark.parametrize("seed", range(100))
def test_a_changed_trace_is_read_or_refused_in_one_line(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(changed(two_products(), random.Random(seed)))
    others = (["forecast", "--gpu", "a100"], ["compare"])
    for action, *words in (["show"], others[seed % 2]):
        status = main(["trace", action, str(file), *words])
        said = capsys.readouterr()
        assert status in (0, 2), said.err
        assert status == 0 or (said.err.count("\n") == 1 and not said.out)
        assert "\x1b" not in said.out + said.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is empty"), (b"PK\x03\x04", "begins with"), (b"[1, 2]", "no object"), (b"{}", "has no 'traceEvents'"),
        (b'{"traceEvents": 3}', "is no list"), (b'{"traceEvents": [], "traceEvents": []}', "twice"),
        (b'{"traceEvents": [{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", "too deeply"),
        (b'{"traceEvents": [{"a": ' + b"9" * 10_000 + b"}]}", "cannot be read"),
        (b'{"traceEvents": [{"a": 1}', "ends too early"), (b'{"traceEvents": []} x', "goes on"),
        (b'{"traceEvents": [{"ph": "X"}]}', "no kernel and no operator"), (b"\x1f\x8b rest", "cannot be unpacked"),
        (b'{"a": "' + b"x" * 9_000_000 + b'", "traceEvents": []}', "a value of more than"),
        (b'{"traceEvents": [' + b" " * 9_000_000 + b"]}", "spaces in a row"),
    ],
)  # fmt: skip
def test_what_is_no_trace(text: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(text)
    with pytest.raises(SpecError, match=said) as caught:
        Recorded(file)
    assert "\n" not in str(caught.value)


def test_a_bomb_is_left_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LARGEST_UNPACKED", 50_000_000)
    file = tmp_path / "t.json.gz"
    with gzip.open(file, "wb", compresslevel=1) as stream:
        stream.write(b'{"traceEvents": [')
        for _ in range(60):
            stream.write(b'{"ph": "M"},' * 90_000)
    assert file.stat().st_size < 5_000_000
    with pytest.raises(SpecError, match="unpacks to more than"):
        Recorded(file)


def test_more_events_or_shapes_than_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeTrace()
    for i in range(200):
        made.call("aten::mm", [[i, 1], [1, 1]], float(i), 0.5)
    file = made.write(tmp_path / "t.json")
    monkeypatch.setattr(recorded, "MOST_EVENTS", 100)
    with pytest.raises(SpecError, match="more events"):
        Recorded(file)
    monkeypatch.setattr(recorded, "MOST_EVENTS", 1000)
    monkeypatch.setattr(recorded, "MOST_TEXTS", 100)
    with pytest.raises(SpecError, match="names or shapes"):
        Recorded(file)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """60 MB of events that are not kept, in a fifth of that."""
    file = tmp_path / "t.json"
    with file.open("wb") as stream:
        stream.write(b'{"traceEvents": [')
        event = json.dumps({"ph": "X", "cat": "python_function", "name": "f" * 400, "ts": 1, "dur": 1}).encode() + b","
        for _ in range(60):
            stream.write(event * 2_200)
        stream.write(b'{"ph": "M"}]}')
    assert file.stat().st_size > 55_000_000
    tracemalloc.start()
    count = sum(1 for _ in TraceFile(file))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 60 * 2_200 + 1 and peak < 12_000_000


@pytest.mark.parametrize("piece", [1, 7, 64])
def test_events_are_whole_wherever_a_piece_ends(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = two_products().write(tmp_path / "t.json")
    whole = list(TraceFile(file))
    monkeypatch.setattr(events, "_PIECE", piece)
    assert list(TraceFile(file)) == whole == two_products().events
