"""How rows of measured services are read: what their tool asked for, how it started the engine, whose dtype it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from predictor.data.importers.benchmarks import CHOSEN
from predictor.fit.served_rows import MeasuredService, read_cases
from predictor.forecast.forecast import forecast
from predictor.request.request import Request
from predictor.serving.deployment import Options
from predictor.serving.simulator import serve
from predictor.serving.traffic import made

ROWS = """case,model,gpu,execution,software,dtype,concurrency,isl,osl,origin,ttft_ms,tpot_ms,sampling
trt,Qwen/Qwen3-32B,h100,tensorrt_llm,1.0.0rc3,bf16,8,1024,256,aiconfigurator,1,1,
vllm,Qwen/Qwen3-32B,h100,vllm,0.12.0,bf16,8,1024,256,aiconfigurator,1,1,
newer,Qwen/Qwen3-32B,h100,sglang,0.5.8.post1,bf16,8,1024,256,aiconfigurator,1,1,
older,Qwen/Qwen3-32B,h100,sglang,0.5.1.post1,bf16,8,1024,256,aiconfigurator,1,1,
dump,Qwen/Qwen3-32B,h100,vllm,0.12.0,bf16,8,1024,256,inferencemax_dump,1,1,
own,Qwen/Qwen3-32B,h100,vllm,0.12.0,bf16,8,1024,256,,1,1,random
"""


@pytest.fixture
def cases(tmp_path: Path) -> dict[str, MeasuredService]:
    path = tmp_path / "services.csv"
    path.write_text(ROWS)
    return {case.name: case for case in read_cases(path)}


def test_rows_are_served_as_their_tool_started_the_engine(cases: dict[str, MeasuredService]) -> None:
    room = 8 + 1024 + 1500
    assert cases["trt"].options == Options(max_num_batched_tokens=room, captured=8)
    assert cases["vllm"].options == Options(max_num_batched_tokens=room)
    assert all(cases[name].options == Options() for name in ("newer", "older", "dump", "own"))
    assert [cases[name].words["memory_fraction"] for name in ("trt", "vllm", "dump")] == [0.8, None, None]
    assert {len(case.traffic) for case in cases.values()} == {80}
    assert cases["vllm"].traffic.input_tokens.min() == 1024
    assert 0.8 * 1024 - 1 <= cases["dump"].traffic.input_tokens.min() < 1024


def test_tokens_are_chosen_as_the_request_says_else_as_the_engine_does(cases: dict[str, MeasuredService]) -> None:
    found = {name: case.words["sampling"] for name, case in cases.items()}
    own = CHOSEN["Qwen/Qwen3-32B"]
    assert found == {
        "trt": "greedy", "vllm": own, "newer": own, "older": "random", "dump": "greedy", "own": "random"
    }  # fmt: skip


def test_a_word_that_is_the_checkpoints_leaves_what_it_leaves(data: Path, tmp_path: Path) -> None:
    """gpt-oss' experts alone are in mxfp4; "fp8" of a checkpoint in fp8 by blocks is that."""
    configs = data / "hf_configs"
    model = configs / "openai--gpt-oss-120b_config.json"
    own, named = (
        Request(str(model), "h100", mode="decode", context_len=100, dtype=dtype, execution="vllm", tp=2).run()
        for dtype in (None, "mxfp4")
    )
    assert forecast(own).latency_s == forecast(named).latency_s
    path = tmp_path / "services.csv"
    blocks = "Qwen--Qwen3-235B-A22B-FP8_config.json"
    path.write_text(
        "config,gpu,execution,dtype,concurrency,isl,osl\n"
        f"{blocks},h100,vllm,fp8,1,9,9\n{blocks},h100,vllm,bf16,1,9,9\nQwen--Qwen3-32B_config.json,h100,vllm,fp8,1,9,9\n"
    )
    assert [case.words["dtype"] for case in read_cases(path, configs)] == [None, "bf16", "fp8"]


def test_ten_rounds_at_once_wait_for_four_and_a_half(data: Path) -> None:
    """Rows of 512 clients show it (docs/how-to/serving.md): a server of 8 sequences that 80 requests reach at once."""
    run = Request("llama-3.2-1b", "h100", mode="generate", execution="vllm", batch=1, seq_len=64, output_len=9).run()
    served = serve(run, made(80, None, 512, None, 64, 512), Options(max_num_seqs=8))
    inside = np.mean(served.last_s - served.first_s)
    assert served.ttft_s.mean() / inside == pytest.approx(4.5, rel=0.03)


def test_a_service_that_stands_many_times_counts_once(tmp_path: Path) -> None:
    head, first, second = ROWS.splitlines()[:3]
    path = tmp_path / "services.csv"
    path.write_text("\n".join([head, first, second, first, first, ""]))
    same = "the same as row 1, which counts once"
    assert [case.left_out for case in read_cases(path)] == ["", "", same, same]
