"""Tokens to experts on other GPUs: bytes by hand, the published table, the bound of the links."""

from __future__ import annotations

import pytest

from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import load_system
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.ops.exchange import DIRECT, FORWARDED, WAYS, Exchange, exchange, rows_sent
from predictor.ops.roofline import roofline

H800 = load_gpu("h800-sxm")
NODES = load_system("hgx-h800")
HIDDEN = 7168
OUT, BACK = HIDDEN + HIDDEN / 128 * 4, 2.0 * HIDDEN  # fp8 with its scales, bf16

#: microseconds out and back by GPUs, 128 tokens each, top-8 (README.md of deepseek-ai/DeepEP@567632d)
LOW_LATENCY = {8: (77, 114), 16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}


def seconds(ops: list[Exchange]) -> list[float]:
    return predict_kernels(ops, H800, load_artifacts()).latency_s.tolist()


def made(way: str, tokens: int, ranks: int, row_bytes: float = OUT, skew: float = 1.0) -> Exchange:
    return exchange(NODES, "deepep", way, "bf16", row_bytes, tokens, 8, ranks, min(8, ranks), skew)


def test_rows_by_hand() -> None:
    assert rows_sent(DIRECT, 128, 8, 16, 8) == (128 * 8 * 7 / 16, 128 * 8 * 8 / 16)
    near, far = rows_sent(FORWARDED, 4096, 8, 16, 8)
    assert near == pytest.approx(4096 * 16 * (1 - (15 / 16) ** 8) * 7 / 8)
    assert far == pytest.approx(4096 * 2 * (1 - 0.5**8) / 2)
    assert rows_sent(FORWARDED, 4096, 8, 8, 8)[1] == 0.0


@pytest.mark.parametrize("ranks", LOW_LATENCY)
def test_published_low_latency_kernels(ranks: int) -> None:
    out, back = (t * 1e6 for t in seconds([made(DIRECT, 128, ranks), made(DIRECT, 128, ranks, BACK)]))
    assert out == pytest.approx(LOW_LATENCY[ranks][0], rel=0.08)
    assert back == pytest.approx(LOW_LATENCY[ranks][1], rel=0.14)


def test_published_normal_kernels() -> None:
    (eight,) = seconds([made(FORWARDED, 4096, 8)])
    sent = 4096 * 8 * (1 - (7 / 8) ** 8) * OUT * 7 / 8
    assert sent / eight == pytest.approx(153e9, rel=0.1)


@pytest.mark.parametrize("way", WAYS)
def test_laws(way: str) -> None:
    """Never faster than the links, more tokens never faster, a busier GPU slower, forwarding saves the network."""
    ops = [made(way, tokens, ranks) for ranks in (8, 16, 64) for tokens in (1, 16, 256, 4096, 65536)]
    found = seconds(ops)
    assert all(t >= bound for t, bound in zip(found, roofline(ops, H800).lower_bound_s, strict=True))
    for i in range(0, len(found), 5):
        assert found[i : i + 5] == sorted(found[i : i + 5])
    assert seconds([made(way, 4096, 16, skew=2.0)]) > seconds([made(way, 4096, 16)])
    assert made(FORWARDED, 4096, 64).net_size < made(DIRECT, 4096, 64).net_size
