"""The search that all fits share, and what cores read of a device."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.hardware.gpu import list_gpus, load_gpu
from predictor.kernels.base import eager_seconds, overhead
from predictor.kernels.device import Device, loop_share, sustained_share
from predictor.kernels.named import p_norm

pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')

from predictor.kernels.fitting.adapt import of_rows
from predictor.kernels.fitting.solve import Unknowns, solve

X = np.linspace(1.0, 9.0, 50)


def test_a_line_is_found_and_what_is_not_free_stays() -> None:
    start = np.array([1.0, 0.5])

    def errors(of: np.ndarray) -> np.ndarray:
        return of[0] + of[1] * X - (2.0 + 3.0 * X)

    assert solve(errors, start, 1e-6).x == pytest.approx([2.0, 3.0], rel=1e-4)
    held = solve(errors, start, 1e-6, begin=np.array([2.5, 0.5]), free=np.array([False, True])).x
    assert held[0] == 2.5 and held[1] != 0.5
    assert solve(errors, start, 1e6).x == pytest.approx(start, abs=1e-3)  # a hard pull lets nothing move
    assert start.tolist() == [1.0, 0.5]


def test_an_outlier_beyond_the_scale_counts_less() -> None:
    seen = np.full(20, 1.0)
    seen[0] = 50.0
    found = solve(lambda x: x[0] - seen, np.zeros(1), 0.0, scale=0.1).x
    assert found[0] == pytest.approx(1.0, abs=0.05)  # least squares alone: the mean, 3.45


def test_named_unknowns_are_one_vector() -> None:
    of = Unknowns({"a": np.array([1.0, 2.0]), "b": np.array([3.0])}, {"b": 9.0}, 0.5)
    assert of.start.tolist() == [1.0, 2.0, 3.0] and of.pull.tolist() == [0.5, 0.5, 9.0]
    assert of.join(of.split(of.start)).tolist() == of.start.tolist()
    assert of.marks({"a": np.array([True, False])}, others=True).tolist() == [True, False, True]


@pytest.mark.parametrize("name", list_gpus())
def test_a_device_is_the_data_sheet_cut_to_what_is_sustained(name: str) -> None:
    gpu = load_gpu(name)
    sheet = Device.sheet(gpu, 1e12)
    free = 16 / 15 if gpu.ecc == "off" else 1.0  # of 16 bytes one is for check bits
    assert (sheet.peak_flops, sheet.clock_hz) == (1e12, gpu.boost_clock_hz)
    assert sheet.bandwidth == pytest.approx(gpu.memory_bandwidth * free)
    assert sheet.l2_bandwidth == gpu.l2_bandwidth
    half = sheet.sustaining(0.5, 0.25)
    assert (half.peak_flops, half.bandwidth, half.sms) == (5e11, sheet.bandwidth / 4, sheet.sms)
    assert sheet.sustaining() == sheet
    assert 0.0 < sustained_share(gpu) <= 1.0
    assert 0.0 < sustained_share(gpu, {gpu.architecture: 10.0}) <= loop_share(gpu) <= 1.0


def test_devices_of_rows_are_columns() -> None:
    both = [Device.sheet(load_gpu(name)) for name in ("h100", "l4")]
    rows = of_rows(both, np.array([1, 0, 1]))
    assert np.asarray(rows.sms).tolist() == [both[1].sms, both[0].sms, both[1].sms]


def test_a_call_takes_the_host_or_launch_and_kernel() -> None:
    known = {"a": (4e-5, 3e-5), "b": (2e-5, 1e-5)}
    assert overhead(known, "a") == (4e-5, 3e-5)
    assert overhead(known, "c") == pytest.approx((3e-5, 2e-5))  # medians
    assert overhead({**known, "*": (1e-5, 0.0)}, "c") == (1e-5, 0.0)
    assert overhead({}, "c", (5e-5, 0.0)) == (5e-5, 0.0)
    assert eager_seconds(np.array([1e-6, 1e-3]), 4e-5, 3e-5).tolist() == [4e-5, 3e-5 + 1e-3]


def test_a_p_norm_lies_between_the_larger_and_the_sum() -> None:
    a, b = np.array([3.0, 0.0, 1.0]), np.array([4.0, 2.0, 1.0])
    assert p_norm(a, b, 2.0) == pytest.approx([5.0, 2.0, np.sqrt(2.0)])
