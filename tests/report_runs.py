"""Forecasts that the tests of the page and of the trace share: every mode, engine and kind of model once."""

from __future__ import annotations

import json
from functools import cache

from predictor.forecast.forecast import Forecast
from predictor.forecast.forecast import forecast as forecast_of
from predictor.request.request import Request

Words = dict[str, object]
RUNS: dict[str, tuple[str, str, Words]] = {
    "forward": ("gpt2", "v100", {"batch": 2, "seq_len": 256}),
    "train": ("gpt2", "h100", {"mode": "train", "batch": 4, "micro_batch": 2, "seq_len": 128}),
    "no optimizer": ("gpt2", "h100", {"mode": "train", "optimizer": "none", "seq_len": 128, "execution": "compile"}),
    "prefill": ("llama-3.1-8b", "h100", {"mode": "prefill", "execution": "vllm", "step_overhead": "2ms"}),
    "decode": ("llama-3.1-8b", "h200", {"mode": "decode", "batch": 16, "execution": "cuda_graph"}),
    "generate": ("llama-3.1-8b", "h100", {"mode": "generate", "seq_len": 64, "output_len": 40, "execution": "vllm"}),
    "one token": ("gpt2", "h100", {"mode": "generate", "seq_len": 64, "output_len": 1}),
    "ragged, shared": (
        "llama-3.1-70b", "h100",
        {"mode": "generate", "tp": 4, "execution": "sglang", "prompt_lens": "9,300", "output_len": 9},
    ),
    "experts": ("switch-base-16", "a100", {"seq_len": 64}),
    "roofline": ("gpt3", "mi300x", {"artifacts": "roofline", "seq_len": 128}),
}  # fmt: skip


@cache
def forecast(name: str) -> Forecast:
    model, gpu, words = RUNS[name]
    return of(model, gpu, **words)


def of(model: str, gpu: str, **words: object) -> Forecast:
    """The forecast of the words that `predict` takes."""
    return forecast_of(Request(model, gpu, **words).run())  # type: ignore[arg-type]


def slices(trace: str) -> list[dict[str, object]]:
    """The complete events of a trace."""
    return [event for event in json.loads(trace)["traceEvents"] if event["ph"] == "X"]
