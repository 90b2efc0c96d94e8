"""A step of training on many GPUs as a trace and on the page: every stage, its streams, its passes by name."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictor import engines
from predictor.forecast.forecast import Forecast, forecast
from predictor.report.html import to_html
from predictor.report.trace import to_trace
from predictor.report.trace_pipeline import FIRST_STAGE
from predictor.request.request import Request
from predictor.simulate.step_time import laid_out

TRAINER = next(name for name in engines.names() if engines.engine(name).trains)
RUNS: tuple[dict[str, Any], ...] = (
    {"tp": 2, "sp": True, "pp": 4, "vpp": 3, "dp": 2, "batch": 16, "shard": "zero1", "execution": TRAINER},
    {"pp": 2, "batch": 6, "schedule": "gpipe", "execution": "eager"},
    {"pp": 3, "vpp": 2, "dp": 2, "batch": 12, "schedule": "breadth_first", "execution": "eager", "shard": "zero3"},
    {"tp": 4, "dp": 2, "batch": 8, "execution": TRAINER},
)


@cache
def found(number: int) -> Forecast:
    words = {"mode": "train", "seq_len": 256, "micro_batch": 1, "artifacts": "roofline"} | RUNS[number]
    return forecast(Request("gpt2-large", "a100", **words).run())


@cache
def document(number: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(to_trace(found(number)))
    return told


def slices(number: int) -> list[dict[str, Any]]:
    return [event for event in document(number)["traceEvents"] if event["ph"] == "X"]


@pytest.mark.parametrize("number", range(len(RUNS)))
def test_every_stage_has_every_pass_once(number: int) -> None:
    work = found(number).run.work
    over = work.parallelism
    names = {
        event["pid"]: event["args"]["name"]
        for event in document(number)["traceEvents"]
        if event["name"] == "process_name"
    }
    assert list(names) == [FIRST_STAGE + stage for stage in range(over.pp)]
    assert all(name.startswith(f"stage {pid - FIRST_STAGE}, GPU") for pid, name in names.items())
    passes = [event for event in slices(number) if event["cat"] in ("forward", "backward")]
    units = [(e["pid"] - FIRST_STAGE, e["args"]["micro-batch"], e["args"]["chunk"], e["cat"]) for e in passes]
    assert len(units) == len(set(units)) == 2 * over.pp * over.vpp * work.micro_batches
    for event in passes:
        of = f" chunk {event['args']['chunk']}" if over.vpp > 1 else ""
        assert event["name"] == f"{event['cat']} {event['args']['micro-batch']}{of}"


@pytest.mark.parametrize("number", range(len(RUNS)))
def test_slices_nest_and_end_with_the_step(number: int) -> None:
    """Two slices of a thread lie within each other or apart; the last one ends when the forecast does."""
    events = slices(number)
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        assert event["dur"] >= 0.0
        threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        open_: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ and open_[-1] <= start + 2e-3:
                open_.pop()
            assert not open_ or end <= open_[-1] + 2e-3  # microseconds: what rounding leaves
            open_.append(end)
    last = max(event["ts"] + event["dur"] for event in events)
    assert last == pytest.approx(found(number).latency_s * 1e6, abs=0.01)
    named = {(e["pid"], e["tid"]) for e in document(number)["traceEvents"] if e["name"] == "thread_name"}
    assert set(threads) <= named


def test_networks_have_threads_of_their_own() -> None:
    told = document(0)["traceEvents"]
    streams = {e["args"]["name"] for e in told if e["name"] == "thread_name"}
    assert "compute" in streams and sum(name.startswith("network: ") for name in streams) >= 4
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in told if e["name"] == "thread_name"}
    for event in slices(0):
        stream = threads[event["pid"], event["tid"]]
        if event["cat"] in ("all_gather", "reduce_scatter", "all_reduce", "pipeline", "gradients", "weights"):
            assert stream.startswith("network: ")
        elif event["cat"] in ("forward", "backward", "optimizer", "block", "linear", "attention"):
            assert stream == "compute"
    sent = [event for event in slices(0) if event["cat"] == "pipeline"]
    over, m = RUNS[0], found(0).run.work.micro_batches
    assert len(sent) == 2 * m * (over["pp"] * over["vpp"] - 1)  # none behind the last chunk, none before the first


def test_passes_are_where_the_schedule_has_them() -> None:
    laid = laid_out(found(0).run, found(0).plan, found(0).timed)
    for stage in range(4):
        ends = [e["ts"] + e["dur"] for e in slices(0) if e["cat"] == "backward" and e["pid"] == FIRST_STAGE + stage]
        assert max(ends) == pytest.approx(float(laid.ends_s[stage]) * 1e6, abs=0.01)
    assert found(0).step is not None
    assert float(np.max(laid.ends_s + np.array(laid.reduce_s))) <= found(0).latency_s


def test_what_is_not_written_out_is_one_slice() -> None:
    few = json.loads(to_trace(found(0), 40))["traceEvents"]
    more = [e for e in few if e["ph"] == "X" and e["name"].endswith("more passes")]
    assert len(more) == 4 and all(e["name"].startswith("38 ") for e in more)  # 48 of a stage, 10 written
    ends = max(e["ts"] + e["dur"] for e in few if e["ph"] == "X")
    assert ends == pytest.approx(found(0).latency_s * 1e6, abs=0.01)


def test_the_page_draws_the_pipeline() -> None:
    page = to_html(found(0))
    assert 'href="#pipeline"' in page
    part = page[page.index('id="pipeline"') :]
    part = part[: part.index("</section>")]
    assert "8 micro-batches through 4 stages of 3 chunks (interleaved)" in part
    assert len(re.findall(r"stage \d, forward \d of chunk \d", part)) >= 2 * 4 * 8 * 3
    assert 'id="pipeline"' not in to_html(found(3)) and 'href="#pipeline"' not in to_html(found(3))


#: Perfetto's own trace processor, which its Python package starts and does not bring.
SHELL = shutil.which("trace_processor_shell")


@pytest.mark.skipif(
    SHELL is None or importlib.util.find_spec("perfetto") is None,
    reason="needs `pip install perfetto` and trace_processor_shell on PATH, which the package would fetch by network",
)
@pytest.mark.parametrize("number", range(len(RUNS)))
def test_perfetto_reads_every_slice(number: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(to_trace(found(number)), encoding="utf-8")
    api = importlib.import_module("perfetto.trace_processor")
    processor = api.TraceProcessor(trace=str(path), config=api.TraceProcessorConfig(bin_path=SHELL))
    try:
        told = [(row.name, row.ts, row.dur) for row in processor.query("select name, ts, dur from slice")]
        errors = [row.name for row in processor.query("select name from stats where severity = 'error' and value > 0")]
    finally:
        processor.close()
    assert errors == []
    assert sorted(name for name, _, _ in told) == sorted(event["name"] for event in slices(number))
    last = max(event["ts"] + event["dur"] for event in slices(number))
    assert max(ts + dur for _, ts, dur in told) / 1e3 == pytest.approx(last, rel=1e-3)
