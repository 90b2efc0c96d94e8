"""What memory, check bits and copies in flight leave of the bandwidth to a product on a board nobody measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.hardware.generation import memory_latency_s
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.kernels.device import Device, fed_share
from predictor.kernels.gemm.core import Constants, Shapes, traffic

CORE = Constants(0.8, 0.9, 1e9, 5e3, 10.0, 170.0, 0.13, 1.5e3, 1024.0, 3e3, 1e3, 1.0)


def rate(gpu: GPUSpec) -> float:
    """Bytes/s of weights that no cache holds."""
    one = np.ones(1)
    shapes = Shapes(one, one, 65536 * one, 65536 * one, 2.0, 2.0)
    return float(shapes.weights[0] / traffic(shapes, Device.of(gpu, "bf16"), CORE).seconds[0])


def test_check_bits_in_the_memory_cost_a_sixteenth() -> None:
    off, inline, apart = (replace(load_gpu("rtx-a6000"), ecc=word) for word in ("off", "inline", "apart"))
    assert rate(inline) == pytest.approx(rate(off) * 15 / 16)
    assert rate(apart) == pytest.approx(rate(off))


def test_stacked_memory_gives_less_of_its_data_sheet() -> None:
    h100 = load_gpu("h100-sxm")
    assert rate(h100) == pytest.approx(0.9 * rate(replace(h100, memory_type="GDDR7")), rel=1e-3)


def test_a_faster_memory_gains_less_where_warps_ask_for_their_own_bytes() -> None:
    for name in ("a100-sxm-80gb", "l40s", "mi300x"):
        gpu = load_gpu(name)
        twice = replace(gpu, memory_bandwidth=2 * gpu.memory_bandwidth)
        assert 1.2 < rate(twice) / rate(gpu) < 1.95, name
    for name in ("h100-sxm", "b200"):
        gpu = load_gpu(name)
        assert rate(replace(gpu, memory_bandwidth=2 * gpu.memory_bandwidth)) == pytest.approx(2 * rate(gpu)), name


def test_copies_take_the_way_to_memory_and_their_bytes() -> None:
    """A quarter of an SM's shared memory takes the latency, and then its bytes at the SM's share of the bandwidth."""
    gpu = load_gpu("l40s")
    assert gpu.shared_memory_per_sm_bytes
    way, an_sm = gpu.shared_memory_per_sm_bytes / 4, gpu.memory_bandwidth / gpu.sm_count
    seconds = memory_latency_s(gpu) + way / an_sm
    assert fed_share(gpu) == pytest.approx(15 / 16 * way / seconds / an_sm)


def test_what_the_catalogue_does_not_say_costs_nothing() -> None:
    bare = replace(load_gpu("a100-sxm-80gb"), memory_type=None, ecc="", shared_memory_per_sm_bytes=None)
    assert fed_share(bare) == 1.0
