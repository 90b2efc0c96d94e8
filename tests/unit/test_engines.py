"""Engines: one file each, found by being there; one from outside the package is as good."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import predictor
from predictor import engines
from predictor.engines import CALLS, CAPTURED, HOSTS, Engine, registry
from predictor.errors import RequestError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that captures its prompts, too, and costs what vLLM's kernels cost."""
    monkeypatch.setattr(registry, "_registered", {})
    made = Engine("toy", "vllm", host=CAPTURED, decode_host=CAPTURED, serves=True)
    engines.register(made)
    return made


def test_an_engine_from_outside_runs_a_model(toy: Engine) -> None:
    asked = {"mode": "prefill", "batch": 1, "seq_len": 64}
    ours = predictor.predict("llama-3.1-8b", "h100", execution="toy", **asked)
    theirs = predictor.predict("llama-3.1-8b", "h100", execution="vllm", **asked)
    assert ours.workload.engine is toy
    assert ours.gpu_busy_s == theirs.gpu_busy_s
    assert ours.cpu_busy_s == 0.0 < theirs.cpu_busy_s
    assert ours.latency_s < theirs.latency_s
    with pytest.raises(ValueError, match="'toy' exists"):
        engines.register(toy)


def test_an_unknown_engine_is_one_line_with_the_nearest() -> None:
    with pytest.raises(RequestError, match=r"^--execution 'vlm': expected one of eager, compile, .*; nearest: vllm$"):
        predictor.predict("gpt2", "h100", execution="vlm")


def test_what_engines_say_of_themselves_is_known() -> None:
    for name in engines.names():
        one = engines.engine(name)
        assert one.name == name
        assert {one.host, one.decode_host} <= set(HOSTS)
        assert one.serves or one.kernels == "pytorch"
        assert one.fuses == (one.host != CALLS)
        assert one.launch_overhead_s is None or 0 < one.launch_overhead_s < 1e-4


#: Where an engine's name still stands outside its file; each line that goes is one towards none.
LEFT = {
    "predictor/estimators/attention_shapes.py", "predictor/estimators/collective.py", "predictor/estimators/base.py",
    "predictor/estimators/memory_bound.py", "predictor/estimators/residual.py", "predictor/estimators/serving_moe.py",
    "predictor/training/calibrate_serving.py", "predictor/training/serving_rows.py",
    "predictor/training/calibrate.py", "predictor/training/calibrate_collective.py",
    "predictor/training/calibrate_gemm.py", "predictor/training/fit_collective.py", "predictor/measurement.py",
    "predictor/api.py",
}  # fmt: skip


def test_no_engine_is_named_outside_its_file() -> None:
    """A string with an engine's or a library's name, compared or not, is its file's affair (importers aside)."""
    words = {*engines.names(), *(engines.engine(name).kernels for name in engines.names())}
    named = re.compile("|".join(f'"{word}"' for word in sorted(words)))
    found = {
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "predictor").rglob("*.py"))
        if not {"engines", "importers"} & set(path.parts) and named.search(path.read_text(encoding="utf-8"))
    }
    assert found == LEFT
