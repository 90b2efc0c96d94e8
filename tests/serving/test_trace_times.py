"""The unit of a trace's times: of its name, of the format's definition, and said, as is a rate that cannot be."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from predictor.errors import SpecError
from predictor.serving.request_traces import read_trace
from predictor.serving.traffic import Traffic

MOONCAKE = "by the definition of Mooncake's and aiperf's traces"
#: Column of times, the other columns -> the unit that is taken, in seconds, and who says so.
COLUMNS = {
    ("timestamp", "input_length,output_length"): (1e-3, f"timestamp in ms, {MOONCAKE}"),
    ("timestamp", "input_tokens,output_tokens"): (1.0, "timestamp in s, as nothing says otherwise"),
    ("timestamp", "prompt_len,output_len"): (1e-3, "timestamp in ms, by the definition of SGLang's Autobench"),
    ("Timestamp", "Request tokens,Response tokens"): (1.0, "timestamp in s, by the definition of BurstGPT"),
    ("arrived_at", "num_prefill_tokens,num_decode_tokens"): (1.0, "arrived_at in s, by the definition of Vidur's"),
    ("arrival_s", "input_tokens,output_tokens"): (1.0, "arrival_s in s, by its name"),
    ("timestamp_s", "input_length,output_length"): (1.0, "timestamp_s in s, by its name"),
    ("timestamp_ms", "input_tokens,output_tokens"): (1e-3, "timestamp_ms in ms, by its name"),
    ("arrival_time_ns", "input_toks,output_toks"): (1e-9, "arrival_time_ns in ns, by its name"),
}


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system has no tzset")
def test_dates_without_a_zone_are_utc_wherever_the_machine_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 2024-03-10 clocks in New York went from 2 to 3 at once."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        rows = "".join(f"2024-03-10 {hour:02}:30:00,100,10\n" for hour in (1, 2, 3, 4))
        traffic = read(tmp_path, f"timestamp,input_tokens,output_tokens\n{rows}")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [b - a for a, b in pairwise(traffic.arrival_s)] == [3600.0] * 3


def read(folder: Path, text: str, name: str = "trace.csv") -> Traffic:
    (folder / name).write_text(text, encoding="utf-8")
    return read_trace(folder / name)


def test_the_unit_of_a_time_is_its_names_or_its_formats(tmp_path: Path) -> None:
    for (times, lengths), (unit, said) in COLUMNS.items():
        rows = "".join(f"{place * 0.5 / unit:.15g},10,20\n" for place in range(5))
        traffic = read(tmp_path, f"{times},{lengths}\n{rows}")
        assert traffic.arrival_s.tolist() == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0]), times
        assert traffic.notes[0].startswith(f"times of the trace: {said}"), traffic.notes
        assert "2 requests/s over 2 s" in traffic.notes[0]
        assert traffic.first(2).notes == traffic.notes


@pytest.mark.parametrize(
    ("header", "step", "said"),
    [
        ("timestamp,input_length,output_length", 1.0, "1e+03 requests/s, which is implausible; if they are in s,"
         " call the column timestamp_s"),
        ("timestamp,input_tokens,output_tokens", 500.0, "0.002 requests/s, which is implausible; if they are in ms,"
         " call the column timestamp_ms"),
        ("arrival_s,input_tokens,output_tokens", 500.0, "implausible; if they are in ms, call the column arrival_ms"),
    ],
)  # fmt: skip
def test_a_rate_that_cannot_be_is_said(tmp_path: Path, header: str, step: float, said: str) -> None:
    (note,) = read(tmp_path, header + "\n" + "".join(f"{place * step},10,20\n" for place in range(5))).notes
    assert said in note


def test_dates_and_requests_at_once_have_no_rate_to_doubt(tmp_path: Path) -> None:
    dates = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,9,9\n2023-11-16 18:35:46,9,9\n"
    assert read(tmp_path, dates).notes == ()
    (note,) = read(tmp_path, "arrival_s,input_tokens,output_tokens\n3,9,9\n3,9,9\n").notes
    assert "implausible" not in note


def test_bailians_blocks_have_sixteen_tokens(tmp_path: Path) -> None:
    """Its hash_ids name 16 tokens each, so that 40 of them are one whole block of 512 and a part of the next."""
    ids = list(range(40))
    row = '{"chat_id": 1, "timestamp": %d, "input_length": 640, "output_length": 5, "hash_ids": %s}\n'
    traffic = read(tmp_path, row % (0, ids) + row % (2, [*ids[:36], 97, 98, 99, 100]), "trace.jsonl")
    assert traffic.arrival_s.tolist() == [0.0, 2.0]
    assert traffic.shared.tolist() == [0, 36 * 16]
    assert traffic.blocks == ((31,), (31,))


def test_a_trace_without_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="row 1: no arrival_s; the row has when, input_tokens"):
        read(tmp_path, "when,input_tokens,output_tokens\n1,2,3\n")
