"""Any product of the ways to share a step of training has a forecast whose parts make it up, or is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from predictor.errors import TilecastError
from predictor.forecast.forecast import forecast
from predictor.request.request import Request

#: A model of each kind: heads of their own and shared ones, experts, latent attention, an encoder and a decoder.
MODELS = ("gpt2-medium", "llama-3.2-1b", "qwen3-30b-a3b", "deepseek-v2-lite", "t5-small")
WORDS: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 4), "sp": (False, True), "pp": (1, 1, 2, 3), "vpp": (1, 1, 2), "dp": (1, 2, 8), "cp": (1, 1, 2),
    "ep": (1, 1, 2), "cp_comm": ("ring", "all_to_all"), "micro_batch": (1, 2),
    "shard": ("none", "zero1", "zero2", "zero3", "hsdp"), "recompute": ("none", "selective", "full"),
    "optimizer": ("adam", "sgd", "adam_8bit"), "lora": (0, 0, 8), "offload_layers": (0, 0, 2),
    "execution": ("megatron", "megatron", "eager", "compile"), "dtype": ("bf16", "bf16", "fp8"),
}  # fmt: skip


def test_every_product_is_a_forecast_or_a_line() -> None:
    draw = random.Random(0)
    found, said = 0, list[str]()
    for _ in range(150):
        words = {name: draw.choice(values) for name, values in WORDS.items()}
        model = draw.choice(MODELS)
        if words["pp"] == 1:
            words["vpp"] = 1
        if model not in ("qwen3-30b-a3b", "deepseek-v2-lite"):
            words["ep"] = 1
        try:
            run = Request(model, "h100", mode="train", seq_len=512, batch=48, artifacts="roofline", **words).run()
            one = forecast(run, intervals=False)
        except TilecastError as error:
            said.append(str(error))
            continue
        found += 1
        assert sum(one.phases_s.values()) == pytest.approx(one.latency_s), (model, words)
        answer = one.summary()
        assert 0 < answer.mfu < 1 and 0 <= answer.bubble_s < one.latency_s, (model, words)
        assert all(seconds >= -1e-12 for seconds in answer.exposed_s.values()), (model, words)
        assert answer.memory.total > 0, (model, words)
    assert found > 70, "most of them are plans that can be"
    assert not [line for line in said if "\n" in line or ("expected" not in line and "nearest" not in line)]
