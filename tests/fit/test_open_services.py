"""Rows of measured services beside closed loops: at a rate, all at once, prompts read apart, medians, repeats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictor.cli.main import main
from predictor.errors import SpecError
from predictor.fit.served import as_frame, errors
from predictor.fit.served_rows import OFFLINE_REQUESTS, MeasuredService, read_cases

PLAIN = {"model": "llama-3.2-1b", "gpu": "h100", "execution": "vllm", "software": "0.15.0", "dtype": "bf16"}


def cases_of(path: Path, *rows: dict[str, Any]) -> list[MeasuredService]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(names), *(",".join(str(row.get(name, "")) for name in names) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return read_cases(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "services.csv"


def test_requests_come_at_the_rate_and_share_their_system_prompts(path: Path) -> None:
    row = PLAIN | {"arrival": "poisson", "rate": 5, "duration_s": 60, "isl": 547, "isl_served_about": 574, "osl": 248}
    (case,) = cases_of(path, row | {"system_prompt_len": 100, "num_system_prompts": 9, "prefix_caching": 1})
    traffic = case.traffic
    assert not case.note and len(traffic) == 300 and traffic.concurrency == 0
    assert traffic.arrival_s[-1] == pytest.approx(60, rel=0.2)
    assert set(traffic.input_tokens) == {574} and set(traffic.output_tokens) == {248}
    assert traffic.shared[:9].sum() == 0 and set(traffic.shared[9:]) == {100}
    assert case.options.prefix_cache is True


def test_engines_share_a_rate_in_turn(path: Path) -> None:
    """Each of eight engines has an eighth of the requests, with gaps that vary by the root of an eighth."""
    row = PLAIN | {"arrival": "poisson", "rate": 80, "replicas": 8, "num_gpus": 8, "tp": 1, "isl": 778, "osl": 128.6}
    (case,) = cases_of(path, row | {"duration_s": 400})
    gaps = np.diff(case.traffic.arrival_s)
    assert len(case.traffic) == 4000 and gaps.mean() == pytest.approx(0.1, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(8**-0.5, rel=0.05)
    assert case.words["num_gpus"] == 1 and set(case.traffic.output_tokens) == {129}


def test_prompts_of_unknown_length_are_scored_by_tpot_alone(path: Path) -> None:
    row = PLAIN | {"rate": 10, "isl_max": 1024, "osl": 300, "requests": 500, "ttft_ms": 100, "tpot_ms": 20}
    (case,) = cases_of(path, row | {"max_num_batched_tokens": 256})
    assert np.isnan(case.measured["ttft_ms"]) and case.measured["tpot_ms"] == 20
    lengths = case.traffic.input_tokens
    assert lengths.min() < 50 and 950 < lengths.max() <= 1024 and set(case.traffic.output_tokens) == {300}
    assert case.options.chunked_prefill is True  # 256 tokens a step, and prompts are longer


def test_throughput_rows_have_all_requests_at_once(path: Path) -> None:
    row = PLAIN | {"mode": "throughput", "concurrency": "", "isl": 64, "osl": 32, "output_tps_per_gpu": 5000}
    (case,) = cases_of(path, row)
    assert len(case.traffic) == OFFLINE_REQUESTS and case.traffic.arrival_s.max() == 0.0
    (case,) = cases_of(path, row | {"requests": 200})
    frame = as_frame([case], intervals=False)
    assert errors(frame)["output_tokens_per_s_per_gpu"]["n"] == 1 and "tpot" not in errors(frame)
    assert frame["predicted_output_tps_per_gpu"][0] == pytest.approx(frame["predicted_output_tokens_per_s"][0])


def test_prompts_that_are_read_apart(path: Path) -> None:
    row = {"id": "a", "model": "llama-3.2-1b", "gpu": "h100", "framework": "vllm", "version": "0.15.0", "num_gpus": 4}
    row |= {"concurrency": 4, "isl": 256, "osl": 32, "prefill_workers": 2, "prefill_tp": 1, "prefill_dp": 1}
    row |= {"decode_workers": 1, "decode_tp": 2, "decode_dp": 1, "ttft_ms": 30, "tpot_ms": 2}
    (case,) = cases_of(path, row)
    assert (case.words["tp"], case.prompts["tp"], case.prompt_servers, case.gpus) == (2, 1, 2, 4)
    frame = as_frame([case])
    assert frame["note"][0] == "" and frame["case"][0] == "a"
    assert frame["low_tpot_ms"][0] < frame["predicted_tpot_ms"][0] < frame["high_tpot_ms"][0]
    (together,) = cases_of(path, row | {"prefill_workers": "", "tp": 2, "framework": "vllm"})
    alone = as_frame([together], intervals=False)
    assert frame["predicted_ttft_ms"][0] != alone["predicted_ttft_ms"][0]


def test_medians_are_compared_with_medians(path: Path) -> None:
    """All clients of a closed loop start at once: the mean of TTFT holds that burst, the median does not."""
    row = PLAIN | {"concurrency": 16, "isl": 2000, "osl": 256, "tpot_ms": 3, "ttft_ms": "", "ttft_p50_ms": 40}
    row |= {"length_range": 0.5}
    mean, median = cases_of(path, row | {"statistic": "mean"}, row | {"statistic": "median"})
    assert np.isnan(mean.measured["ttft_ms"]) and median.measured["ttft_ms"] == 40
    frame = as_frame([mean, median])
    assert frame["predicted_ttft_ms"][1] < 0.9 * frame["predicted_ttft_ms"][0]
    assert (frame["low_ttft_ms"] < frame["predicted_ttft_ms"]).all()
    assert (frame["predicted_ttft_ms"] < frame["high_ttft_ms"]).all()


def test_rows_that_are_left_out_say_why_and_count_nowhere(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = PLAIN | {"concurrency": 2, "isl": 64, "osl": 8, "tpot_ms": 2, "ttft_ms": 9}
    rows = [
        row | {"setup_id": "s1"}, row | {"setup_id": "s1"}, row | {"setup_id": "s2", "suspect": "speculative"},
        row | {"setup_id": "s2"}, row | {"valid": "INVALID"}, row | {"note": "mixed boards"},
    ]  # fmt: skip
    left = [
        case.left_out for case in cases_of(path, *({"case": f"r{i}", **each_row} for i, each_row in enumerate(rows)))
    ]
    assert [bool(text) for text in left] == [False, True, True, False, True, True]
    assert left[2] == "suspect: speculative"
    assert main(["evaluate", "served", str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["n"] == 2 and answer["unpredicted"] == 0 and sum(answer["left_out"].values()) == 4
    assert main(["evaluate", "served", str(path)]) == 0
    assert "not scored: 1 x suspect: speculative" in capsys.readouterr().out


@pytest.mark.parametrize("column", ["ttft_ms", "tpot_ms"])
def test_services_in_another_unit_are_refused(column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pd = pytest.importorskip("pandas", reason="the extra train is not installed")
    path, out = tmp_path / "served.csv", tmp_path / "rows.csv"
    words = ["evaluate", "served", str(path), "--artifacts", "roofline", "--out", str(out), "--force"]
    lines = [f"case{n},llama-3.2-1b,h100,vllm,1,{60 + n},8,1,1" for n in range(5)]
    path.write_text("\n".join(["case,model,gpu,execution,concurrency,isl,osl,ttft_ms,tpot_ms", *lines, ""]))
    assert main(words) == 0
    forecasts = pd.read_csv(out)
    frame = pd.read_csv(path).assign(ttft_ms=forecasts["predicted_ttft_ms"], tpot_ms=forecasts["predicted_tpot_ms"])
    for unit, scale, status in (("", 1.5, 0), ("seconds", 1e-3, 2), ("microseconds", 1e3, 2)):
        frame.assign(**{column: frame[column] * scale}).to_csv(path, index=False)
        capsys.readouterr()
        assert main(words) == status
        said = capsys.readouterr().err
        assert status == 0 or (f"{column} of 5 rows" in said and f"these look like {unit}" in said), said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"concurrency": 4, "mtp_tokens": 3}, "mtp_tokens 3: speculation without a column acceptance"),
        ({"concurrency": 4, "spec_method": "mtp"}, "spec_method mtp: speculation without a column mtp_tokens"),
        ({"concurrency": 4, "statistic": "p99"}, "statistic 'p99': expected mean or median"),
        ({"rate": 4, "stage": "both"}, "stage both: its rate is the mean of two"),
        ({"rate": 4, "num_gpus": 8}, "tp is empty: nobody says how the 8 GPUs share the model"),
        ({"rate": -4}, "--"),
        ({"rate": ""}, "neither concurrency nor rate"),
        ({"rate": 4, "replicas": 0}, "replicas 0"),
    ],
)
def test_a_row_that_cannot_be_served_says_why(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    (case,) = cases_of(tmp_path / "services.csv", PLAIN | {"isl": 64, "osl": 8, "tpot_ms": 2} | more)
    assert case.note.startswith(said)


def test_drafts_of_a_row_are_guessed(path: Path) -> None:
    row = PLAIN | {"concurrency": 4, "isl": 64, "osl": 64, "mtp_tokens": 2, "acceptance": 0.8}
    (case,) = cases_of(path, row)
    assert (case.options.drafts, case.options.acceptance) == (2, 0.8)


def test_a_file_without_traffic_is_refused(path: Path) -> None:
    with pytest.raises(SpecError, match="expected measured services with a concurrency or a rate"):
        cases_of(path, PLAIN | {"isl": 64, "osl": 8})


def test_a_recipe_narrows_activations_where_the_board_multiplies_them(path: Path) -> None:
    """InferenceX's recipe of gpt-oss under vLLM asks for mxfp8 on Blackwell; rows of other origins do not."""
    row = PLAIN | {"dtype": "mxfp4", "concurrency": 4, "isl": 64, "osl": 64, "origin": "inferencemax_dump"}
    boards = [row | {"gpu": gpu} for gpu in ("b200-sxm", "h200-sxm")]
    cases = cases_of(path, *boards, boards[0] | {"origin": "aiconfigurator"}, boards[0] | {"execution": "sglang"})
    assert [case.words["dtype"] for case in cases] == ["mxfp4_mxfp8", "mxfp4", "mxfp4", "mxfp4"]


def test_a_recipe_has_a_cache_in_eight_bits(path: Path) -> None:
    """AIConfigurator's templates of TensorRT-LLM ask for one where the weights are in fp8; a row's own word stands."""
    row = PLAIN | {"execution": "tensorrt_llm", "concurrency": 4, "isl": 64, "osl": 64, "origin": "aiconfigurator",
                   "dtype": "fp8", "kv_dtype": ""}  # fmt: skip
    rows = [row, row | {"dtype": "bf16"}, row | {"kv_dtype": "bf16"}, row | {"execution": "vllm"}]
    assert [case.words["kv_dtype"] for case in cases_of(path, *rows)] == ["fp8", None, "bf16", None]


def test_a_recipe_has_the_scheduler_look_for_requests_now_and_then(path: Path) -> None:
    """--scheduler-recv-interval of InferenceX's recipes: 30 from 16 clients on, 10 below, on Blackwell alone."""
    row = PLAIN | {"execution": "sglang", "model": "deepseek-ai/DeepSeek-R1-0528", "gpu": "b200-sxm", "tp": 8,
                   "num_gpus": 8, "concurrency": 16, "isl": 64, "osl": 64, "origin": "inferencex"}  # fmt: skip
    rows = [row, row | {"concurrency": 8}, row | {"gpu": "h200-sxm"}, row | {"tp": 1, "dp": 8}, row | {"origin": ""}]
    cases = cases_of(path, *rows, row | {"model": "Qwen/Qwen3.5-397B-A17B", "concurrency": 8})
    assert [case.options.receive_every for case in cases] == [30, 10, 1, 1, 1, 30]
