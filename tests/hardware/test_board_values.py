"""`--set NAME=VALUE`: values of a board in place of its file's, the same wherever a run is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor import predict
from predictor.cli.main import main
from predictor.errors import RequestError
from predictor.fit.suite import case_forecast
from predictor.hardware.gpu import load_gpu
from predictor.hardware.what_if import VALUES, with_values
from predictor.ui.boards import board_of

SLOW = "power_limit=300W memory_bandwidth=1.5TB/s"
FLAGS = [word for each_word in SLOW.split() for word in ("--set", each_word)]
WORDS = {"model": "llama-3.2-1b", "gpu": "h100", "mode": "prefill", "batch": 8, "seq_len": 2048}


def test_values_take_the_place_of_the_files() -> None:
    gpu = load_gpu("h100")
    changed = with_values(gpu, "power_limit=500W memory_bandwidth=2.4TB/s memory_capacity=96GB l2=60MB")
    assert (changed.power_limit_w, changed.memory_bandwidth, changed.memory_capacity) == (500.0, 2.4e12, 96 * 10**9)
    assert (changed.l2_bytes, changed.sm_count, changed.peaks) == (60 * 10**6, gpu.sm_count, gpu.peaks)
    assert changed.label.startswith("h100-sxm (power_limit=500W, ")
    same = with_values(gpu, {"power_limit": 500, "memory_bandwidth": 2.4e12, "memory_capacity": "96GB", "l2": "60MB"})
    assert (same.power_limit_w, same.memory_bandwidth) == (500.0, 2.4e12)


def test_peaks_follow_what_they_hang_on() -> None:
    gpu = load_gpu("h100")
    half = with_values(gpu, ["sm_count=66"])
    assert half.sm_count == 66 and half.peak_flops("bf16") == pytest.approx(gpu.peak_flops("bf16") / 2)
    assert half.power_limit_w == pytest.approx(gpu.power_limit_w / 2)
    assert with_values(gpu, "power_limit=700W sm_count=66").power_limit_w == 700.0  # whatever the order
    slower = with_values(gpu, f"boost_clock={gpu.boost_clock_hz / 2e6}MHz")
    assert slower.peak_flops("fp8") == pytest.approx(gpu.peak_flops("fp8") / 2)
    other = with_values(gpu, "peak_flops.matrix.bfloat16=500TFLOP/s")
    assert other.peak_flops("bf16") == 500e12 and other.peak_flops("fp8") == gpu.peak_flops("fp8")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("powerlimit=500W", "unknown value 'powerlimit': .*nearest: power_limit"),
        ("nvlink_bandwidth=900GB/s", "unknown value 'nvlink_bandwidth'"),
        ("power_limit=500", "has no unit"),
        ("power_limit=500s", "has the unit 's'"),
        ("power_limit=1W", "expected 0.01 to 100"),
        ("memory_bandwidth=3000TB/s", "expected 0.01 to 100"),
        ("power_limit", "expected NAME=VALUE"),
        ("power_limit=500W power_limit=600W", "set twice"),
        ("peak_flops.matrix.fp4=1PFLOP/s", "unknown value"),
    ],
)
def test_a_wrong_value_says_so(text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        with_values(load_gpu("h100"), text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", VALUES)
def test_every_value_changes_the_answer(name: str) -> None:
    """A flag that changes nothing would be a bug: half of each is slower, or leaves less room."""
    gpu = load_gpu("h100")
    halves = {
        "sm_count": gpu.sm_count // 2, "boost_clock": gpu.boost_clock_hz / 2, "l2": gpu.l2_bytes / 2,
        "memory_bandwidth": gpu.memory_bandwidth / 2, "memory_capacity": gpu.memory_capacity / 2,
        "power_limit": gpu.power_limit_w / 2,
    }  # fmt: skip
    words = WORDS | {"batch": 16, "execution": "cuda_graph", "mode": "forward"}
    if name == "l2":  # which small tensors of training pass through
        words |= {"batch": 8, "execution": "eager", "mode": "train"}
    before, after = predict(**words), predict(**words, gpu_set={name: halves[name]})  # type: ignore[arg-type]
    if name == "memory_capacity":
        assert after.memory.capacity < before.memory.capacity
    else:
        assert after.latency_s > before.latency_s


def test_all_ways_to_ask_give_one_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = predict(**WORDS, gpu_set=SLOW)  # type: ignore[arg-type]
    assert asked.latency_s > 1.2 * predict(**WORDS).latency_s  # type: ignore[arg-type]
    words = ["--model", "llama-3.2-1b", "--mode", "prefill", "--batch", "8", "--seq-len", "2048", *FLAGS, "--json"]
    assert main(["predict", "--gpu", "h100", *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["latency_ms"] == pytest.approx(asked.latency_ms) and answer["gpu_set"] == SLOW.split()
    assert main(["compare", "--gpu", "h100,a100", *words]) == 0
    rows = {row["gpu"]: row["forecast"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["h100-sxm"]["latency_ms"] == pytest.approx(asked.latency_ms)
    row = {"config": "llama-3.2-1b", "gpu": "h100", "mode": "prefill", "global_batch": 8, "seq_len": 2048}
    assert case_forecast(row | {"gpu_set": SLOW}, tmp_path, None).latency_s == pytest.approx(asked.latency_s)
    board = board_of(f"h100 {SLOW}")
    assert predict(**(WORDS | {"gpu": board.spec})).latency_s == pytest.approx(asked.latency_s)  # type: ignore[arg-type]
    spec, out = tmp_path / "sweep.yaml", tmp_path / "rows.csv"
    spec.write_text(
        f"model: llama-3.2-1b\ngpu: h100\nmode: prefill\nbatch: 8\nseq-len: 2048\ngpu-set: ['', '{SLOW}']\n"
    )
    assert main(["sweep", str(spec), "--out", str(out), "--jobs", "1"]) == 0
    latencies = [float(line.split(",")[_column(out, "latency_ms")]) for line in out.read_text().splitlines()[1:]]
    assert latencies[1] == pytest.approx(asked.latency_ms, rel=1e-6) and latencies[0] < latencies[1]


def _column(path: Path, name: str) -> int:
    return path.read_text().splitlines()[0].split(",").index(name)


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (["predict", "--model", "llama-3.2-1b"], "on h100-sxm (power_limit=300W, memory_bandwidth=1.5TB/s)"),
        (["compare", "--model", "llama-3.2-1b"], "set power_limit=300W"),
        (
            ["plan", "--model", "llama-3.2-1b", "--num-gpus", "1", "--global-batch", "1", "--seq-len", "512"],
            "h100-sxm (power_limit=300W",
        ),
        (
            ["serve", "simulate", "--model", "llama-3.2-1b", "--rate", "4", "--isl", "99", "--osl", "9",
             "--requests", "4"],
            "h100-sxm (power_limit=300W",
        ),
        (
            ["serve", "plan", "--model", "llama-3.2-1b", "--num-gpus", "1", "--isl", "99", "--osl", "9", "--ttft", "1s",
             "--tpot", "1s", "--execution", "vllm"],
            "h100-sxm (power_limit=300W",
        ),
    ],
)  # fmt: skip
def test_every_verb_takes_values_and_says_them(
    words: list[str], title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--gpu", "h100", *FLAGS]) == 0
    assert title in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--gpu", "h100", "--set", "power=3W"]) == 2
    assert "nearest: power_limit" in capsys.readouterr().err
