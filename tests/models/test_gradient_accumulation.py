"""Passes of one training step add up their gradients."""

from __future__ import annotations

import pytest

from predictor.api import predict
from predictor.hardware.gpu import load_gpu
from predictor.models.built import load_config, parameters


def backward_s(batch: int, micro_batch: int, optimizer: str) -> float:
    answer = predict("gpt2-large", "v100-pcie-32gb", mode="train", batch=batch, micro_batch=micro_batch, seq_len=64,
                     dtype="fp32", optimizer=optimizer, artifacts="roofline")  # fmt: skip
    return answer.phases_s["backward"]


def test_a_gradient_that_is_there_costs_twelve_bytes_a_parameter() -> None:
    """Read both, write the sum; the look-up and the projection that share a table each add theirs."""
    config, gpu = load_config("gpt2-large"), load_gpu("v100-pcie-32gb")
    first, again = backward_s(1, 1, "adam"), backward_s(1, 1, "none")
    numbers = parameters(config) + config.vocab * config.hidden
    assert again - first == pytest.approx(12 * numbers / gpu.memory_bandwidth, rel=0.35)  # small ones sit in L2
    assert again - first < 12 * numbers / gpu.memory_bandwidth * 1.05
    assert backward_s(2, 1, "adam") == pytest.approx(2 * again)
