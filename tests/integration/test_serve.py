"""`tilecast serve simulate` and `tilecast evaluate served` as their users run them."""

from __future__ import annotations

import csv
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictor.cli.main import main
from predictor.engines.defaults import graphs
from predictor.engines.vintage import Setting
from predictor.fit.served import as_frame, errors, ranking
from predictor.fit.served_rows import read_cases
from predictor.forecast.forecast import forecast
from predictor.request.request import Request
from predictor.serving.costs import StepCosts
from predictor.serving.simulator import serve
from predictor.serving.step_tables import Sizes
from predictor.serving.traffic import made

SMALL = ["--model", "llama-3.2-1b", "--gpu", "h100"]


def served(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["serve", "simulate", *SMALL, *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["serve", "simulate", *SMALL, *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("error: ")
    return error


def test_the_answer_has_what_the_house_promises(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    html, timeline, out = tmp_path / "a.html", tmp_path / "a.json", tmp_path / "a.csv"
    found = served(
        capsys, "--rate", "20", "--isl", "500", "--osl", "60", "--requests", "120", "--ttft", "100ms", "--tpot", "10ms",
        "--html", str(html), "--timeline", str(timeline), "--out", str(out),
    )  # fmt: skip
    for name in ("ttft_ms", "tpot_ms", "latency_ms"):
        times = found[name]
        assert 0 < times["p50"] <= times["p90"] <= times["p99"]
        assert times["interval"][0] < times["mean"] < times["interval"][1]
    assert found["requests"] == 120 and found["output_tokens"] == 120 * 60
    assert found["output_tokens_per_s"] == pytest.approx(60 * found["requests_per_s"])
    assert 0 <= found["goodput"] <= found["requests_per_s"]
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 120
    assert np.mean([float(row["ttft_ms"]) for row in rows]) == pytest.approx(found["ttft_ms"]["mean"])
    good = [float(row["ttft_ms"]) <= 100 and float(row["tpot_ms"]) <= 10 for row in rows]
    assert np.mean(good) == pytest.approx(found["good_share"])
    half = f"{found['ttft_ms']['p50']}ms"
    again = served(capsys, "--rate", "20", "--isl", "500", "--osl", "60", "--requests", "120", "--ttft", half)
    assert again["good_share"] == pytest.approx(0.5, abs=0.02)
    page = html.read_text()
    assert "<polyline" in page and "Queue" in page and "http://" not in page.split("<main")[1]
    events = json.loads(timeline.read_text())["traceEvents"]
    assert {event["name"] for event in events} >= {"queue", "prompt", "answer", "decode steps"}


def test_text_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["serve", "simulate", *SMALL, "--concurrency", "4", "--isl", "99", "--osl", "9", "--requests", "9"]) == 0
    )
    text = capsys.readouterr().out
    assert "9 requests, 4 at a time" in text and "time to first token" in text and "tokens/s" in text
    assert ", vllm 0." in text.splitlines()[0]  # the engine, not its release alone


TRACES = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,374,44\n"
    "2023-11-16 18:17:04.03,396,109\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}\n'
    '{"timestamp": 60, "input_length": 1030, "output_length": 9, "hash_ids": [1, 2, 9]}\n',
    "own.csv": "arrival_s,input_tokens,output_tokens,shared_prefix_tokens\n0,374,44,\n0.06,396,109,32\n",
}


@pytest.mark.parametrize("name", sorted(TRACES))
def test_traces_are_read(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(TRACES[name])
    found = served(capsys, "--trace", str(path))
    assert found["requests"] == 2 and found["input_tokens"] in (770, 2130)
    assert found["cached_tokens"] == {"azure.csv": 0, "mooncake.jsonl": 1024, "own.csv": 32}[name]


def test_lengths_of_conversations_are_counted_in_characters(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    talk = [{"from": "human", "value": "a" * 400}, {"from": "gpt", "value": "b" * 80}, {"from": "human", "value": "c"}]
    path.write_text(json.dumps([{"id": "1", "conversations": talk}]))
    found = served(capsys, "--lengths", str(path), "--rate", "2", "--requests", "5")
    assert (found["input_tokens"], found["output_tokens"]) == (500, 100)
    assert "no times" in refused(capsys, "--trace", str(path))


BAD = {
    "a.csv": ("arrival_s,input_tokens,output_tokens\n0,10,5\n1,ten,5\n", "row 2: input_tokens 'ten'"),
    "b.csv": ("arrival_s,input_tokens,output_tokens\n0,10,5\n1,10\n", "row 2: expected 3 cells"),
    "c.csv": ("arrival_s,input_tokens,output_tokens\n5,10,5\n1,10,5\n", "row 2: comes before the row above it"),
    "d.csv": ("arrival_s,input_tokens,output_tokens\n0,10,0\n", "row 1: output_tokens '0'"),
    "e.csv": ("arrival_s,output_tokens\n0,10\n", "row 1: no input_tokens"),
    "f.csv": ("arrival_s,input_tokens,output_tokens\nnan,10,5\n", "row 1: arrival_s 'nan'"),
    "g.jsonl": ('{"timestamp": 0, "input_length": 5, "output_length": 5}\n{"time', "row 2: line 1: not valid JSON"),
    "h.json": ("[3]", "row 1: expected an object"),
    "i.csv": ("arrival_s,input_tokens,output_tokens\n", "expected at least one request"),
    "j.txt": ("x", ".csv, .parquet, .json or .jsonl"),
    "k.parquet": ("no", "expected a parquet file"),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_bad_trace_is_a_line_with_the_row(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(BAD[name][0])
    assert BAD[name][1] in refused(capsys, "--trace", str(path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rate", "2"), "expected --trace FILE, or --rate R"),
        (("--isl", "9", "--osl", "9"), "--concurrency N"),
        (("--rate", "0", "--isl", "9", "--osl", "9"), "--rate 0: expected a number above 0"),
        (("--rate", "2", "--isl", "0", "--osl", "9"), "--isl 0: expected at least 1"),
        (("--rate", "2", "--isl", "9", "--osl", "9", "--requests", "0"), "--requests 0"),
        (("--rate", "2", "--isl", "9", "--osl", "9", "--arrivals", "x"), "expected one of poisson"),
        (("--rate", "2", "--isl", "9", "--osl", "9", "--tpot", "soon"), "--tpot"),
        (("--rate", "2", "--isl", "9", "--osl", "9", "--out", "a.txt"), ".csv or .parquet"),
        (("--rate", "2", "--isl", "9", "--osl", "9", "--execution", "eager"), "serves no requests"),
        (("--rate", "2", "--isl", "9", "--osl", "9", "--max-num-seqs", "0"), "--max-num-seqs 0"),
        (("--rate", "2", "--isl", "9", "--osl", "9", "--acceptance", "0.5"), "--drafts K and --acceptance P"),
        (("--rate", "2", "--isl", "9", "--osl", "9", "--drafts", "2"), "--drafts K and --acceptance P"),
        (("--rate", "2", "--isl", "9", "--osl", "9", "--cv", "3"), "--cv 3: of --arrivals gamma or bursts"),
        (("--concurrency", "2", "--isl", "9", "--osl", "9", "--arrivals", "gamma"), "--arrivals gamma: of --rate"),
        (("--rate", "2", "--lengths", "a.csv", "--range", "0.5"), "--range 0.5: of --isl and --osl"),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, *words)


def test_tables_of_steps_are_near_forecasts_of_single_steps() -> None:
    """Within 2 % on average and 10 % at most: what lies between points of a table is a line."""
    ratios = []
    for model, execution, tp in (("llama-3.1-8b", "vllm", 1), ("qwen3-30b-a3b", "tensorrt_llm", 2)):
        run = Request(
            model, "h100", mode="generate", execution=execution, tp=tp, batch=1, seq_len=99, output_len=9
        ).run()
        costs = StepCosts(run, Sizes(8192, 256, 8192), graphs(run.work.engine, Setting(run.gpu, tp)))
        for batch, context in ((1, 700), (24, 1000), (100, 3000), (128, 90)):
            work = run.work.changed(mode="decode", batch=batch, seq_len=1, output_len=0, context_len=context)
            exact = forecast(replace(run, work=work), intervals=False).latency_s
            ratios.append(float(costs.decode(batch, np.array([batch * context]))[0][0]) / exact)
        for tokens in (77, 640, 1500, 5000):
            work = run.work.changed(mode="prefill", seq_len=tokens, output_len=0)
            exact = forecast(replace(run, work=work), intervals=False).latency_s
            ratios.append(costs.mixed([(tokens, 0)], 0, 0, 1)[0] / exact)
    off = np.abs(np.array(ratios) - 1.0)
    assert off.mean() < 0.02 and off.max() < 0.10, np.round(ratios, 3)


def test_a_step_takes_longer_with_more_in_it() -> None:
    run = Request("llama-3.1-8b", "l40s", mode="generate", execution="vllm", batch=1, seq_len=99, output_len=9).run()
    costs = StepCosts(run, Sizes(4096, 128, 4096), graphs(run.work.engine, Setting(run.gpu)))
    alone, held = costs.mixed([(512, 0)], 0, 0, 1)
    assert alone == held  # one stage
    assert alone < costs.mixed([(512, 1024)], 0, 0, 1)[0] < costs.mixed([(512, 1024)], 32, 32 * 500, 1)[0]
    assert costs.mixed([(512, 0)], 32, 32 * 500, 1)[0] < costs.mixed([(256, 0), (256, 0)], 32, 32 * 2000, 2)[0]
    decodes, _ = costs.decode(64, np.array([64 * 100.0, 64 * 1000.0, 64 * 4000.0]))
    assert (np.diff(decodes) > 0).all()
    assert costs.scaled(2.0).mixed([(512, 0)], 0, 0, 1)[0] == pytest.approx(2 * alone)


def test_ten_thousand_requests_to_a_70b_model_take_seconds() -> None:
    """20 s of one core are promised; half of that leaves room for another machine."""
    run = Request(
        "llama-3.1-70b", "h100", mode="generate", execution="vllm", tp=8, batch=1, seq_len=1000, output_len=250
    ).run()
    began = time.process_time()
    found = serve(run, made(10_000, 8.0, None, None, 1000, 250, 0.2))
    assert time.process_time() - began < 10.0
    assert len(found.first_s) == 10_000


def test_measured_services_are_held_against_the_simulation(tmp_path: Path) -> None:
    path = tmp_path / "services.csv"
    rows = ["case,model,gpu,execution,software,tp,num_gpus,concurrency,isl,osl,ttft_ms,tpot_ms,output_tps_per_gpu"]
    rows += [
        f"c{n},llama-3.2-1b,h100,vllm,0.24,1,1,{n},512,64,20,{2 + n / 10},{900 * n}" for n in (1, 2, 3, 4, 6, 8, 12, 16)
    ]
    rows.append("bad,llama-3.2-1b,h100,vllm,0.24,1,1,4,0,64,20,2,1000")
    path.write_text("\n".join(rows) + "\n")
    frame = as_frame(read_cases(path))
    assert list(frame["case"])[-1] == "bad" and "--isl 0" in frame["note"].iloc[-1]
    found = errors(frame)
    assert (found["tpot"]["n"], found["tpot"]["unpredicted"]) == (8, 1)
    known = frame[frame["note"] == ""]
    assert (known["low_tpot_ms"] < known["predicted_tpot_ms"]).all()
    assert (known["predicted_tpot_ms"] < known["high_tpot_ms"]).all()
    assert known["predicted_tpot_ms"].is_monotonic_increasing
    ranks = ranking(frame)
    assert ranks["groups"] == 1 and ranks["tokens_per_s_per_gpu"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"concurrency": "-4"}, "--concurrency -4: expected at least 1"),
        ({"concurrency": "inf"}, "concurrency inf: expected a whole number"),
        ({"concurrency": "4.5"}, "concurrency 4.5: expected a whole number"),
        ({"isl": "many"}, "isl 'many': expected a number"),
        ({"tp": "1.5"}, "tp 1.5: expected a whole number"),
        ({"ttft_ms": "-3"}, "ttft_ms -3"),
        ({"ttft_ms": "soon"}, "ttft_ms 'soon': expected a number"),
    ],
)
def test_a_wrong_row_of_services_says_so(wrong: dict[str, str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "services.csv"
    row = {"execution": "vllm", "gpu": "h100", "model": "llama-3.2-1b", "concurrency": "4", "isl": "9", "osl": "9"}
    row |= {"tp": "1", "ttft_ms": "3", "tpot_ms": "1"} | wrong
    path.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    (case,) = read_cases(path)
    assert case.note.startswith(said)


def test_evaluate_served_prints_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, out = tmp_path / "services.csv", tmp_path / "rows.csv"
    path.write_text(
        "case,model,gpu,execution,concurrency,isl,osl,ttft_ms,tpot_ms\na,llama-3.2-1b,h100,sglang,4,256,32,20,2\n"
    )
    assert main(["evaluate", "served", str(path), "--json", "--out", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n"] == 1 and found["ttft"]["n"] == 1 and found["groups"][0]["execution"] == "sglang"
    (row,) = csv.DictReader(out.open())
    assert {
        f"{which}_{name}_ms" for which in ("measured", "predicted", "low", "high") for name in ("ttft", "tpot")
    } <= row.keys()
    assert main(["evaluate", "served", str(tmp_path)]) == 2
    assert "no requests.parquet" in capsys.readouterr().err


def test_a_folder_of_requests_is_read(data: Path) -> None:
    (case,) = read_cases(data / "llmservingsim" / "requests" / "rtxpro6000-llama-3.1-8b")
    assert len(case.traffic) == 300 and case.options.max_num_seqs == 128
    assert case.measured["tpot_ms"] == pytest.approx(32.46, abs=0.01)
    assert case.measured["ttft_ms"] == pytest.approx(7097.2, abs=0.1)
