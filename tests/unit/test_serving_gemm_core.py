"""The physical core of serving GEMM: what power leaves of the peak, and tiles that cannot shrink."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.estimators.residual import Device, sustained_share
from predictor.estimators.serving_gemm import CONSTANTS, CoreTime, Shapes, core_time
from predictor.hardware.gpu import load_gpu
from predictor.quantization import activation_bytes, weight_bytes

CORE = (0.8, 0.75, 1e10, 9e3, 10.0, 170.0, 0.13, 3e5)


def _shapes(m: list[float], n: float, k: float, dtype: str = "bf16") -> Shapes:
    one = np.ones(len(m))
    return Shapes(one, np.array(m), n * one, k * one, activation_bytes(dtype, ""), weight_bytes(dtype, ""))


def _core(shapes: Shapes, device: Device, smallest: float | None = None) -> CoreTime:
    return core_time(shapes, device, np.log(CORE if smallest is None else (*CORE, smallest)))


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "h200-sxm", "rtx-pro-6000-server", "rtx-4090"])
def test_boards_with_power_to_spare_hold_their_clock(name: str) -> None:
    assert sustained_share(load_gpu(name)) == 1.0


@pytest.mark.parametrize("name", ["l40s", "l4", "h100-pcie", "b200"])
def test_boards_short_of_power_do_not(name: str) -> None:
    gpu = load_gpu(name)
    share = sustained_share(gpu)
    assert 0.3 < share < 1.0
    assert Device.of(gpu, "bf16").peak_flops == pytest.approx(share * gpu.peak_flops("bf16"))
    more = replace(gpu, power_limit_w=1.1 * gpu.power_limit_w)
    assert share < sustained_share(more) <= 1.1 * share * (1 + 1e-9)


def test_tensor_cores_of_half_the_rate_need_less_but_more_than_half() -> None:
    """L40 and L40S are one chip at nearly one clock; L40's tensor cores count half."""
    l40, l40s = load_gpu("l40"), load_gpu("l40s")
    per_watt = sustained_share(l40) / l40.power_limit_w, sustained_share(l40s) / l40s.power_limit_w
    assert 1.2 < per_watt[0] / per_watt[1] < 2.0


def test_an_artifact_without_a_smallest_tile_reads_as_one_that_never_binds() -> None:
    assert len(CONSTANTS) == len(CORE) + 1
    device = Device.of(load_gpu("h100-sxm"), "bf16")
    shapes = _shapes([1.0, 100.0, 4096.0], 4096.0, 4096.0)
    np.testing.assert_array_equal(_core(shapes, device).total, _core(shapes, device, 1.0).total)


def test_a_tile_that_cannot_shrink_costs_few_rows_most() -> None:
    device = Device.of(load_gpu("rtx-pro-6000-server"), "nvfp4")
    shapes = _shapes([1.0, 64.0, 8192.0], 4096.0, 8192.0, "nvfp4")
    slower = _core(shapes, device, 128.0 * 128.0).compute / _core(shapes, device).compute
    assert slower[0] > 1.5
    assert slower[0] >= slower[1] >= slower[2] == 1.0


def test_such_a_tile_runs_faster_on_faster_tensor_cores() -> None:
    """A tile is arithmetic, not a number of cycles: B200 has 7.5 times RTX PRO 6000's nvfp4 peak an SM."""
    shapes = _shapes([1.0], 4096.0, 16384.0, "nvfp4")
    here, there = (Device.of(load_gpu(name), "nvfp4") for name in ("rtx-pro-6000-server", "b200"))
    faster = _core(shapes, here, 128.0 * 128.0).compute[0] / _core(shapes, there, 128.0 * 128.0).compute[0]
    assert 2.0 < faster < 8.0


def test_the_fit_takes_a_slow_step_for_a_large_tile() -> None:
    """What one GPU shows of a kernel with one tile size has to carry over to a GPU with faster tensor cores."""
    pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')
    from predictor.training.fit_serving import GEMM, fit_constants
    from predictor.training.serving_rows import Part

    rng = np.random.default_rng(0)
    m, n, k = (np.exp2(rng.integers(low, 14, 600).astype(np.float64)) for low in (0, 8, 9))
    shapes = replace(_shapes([1.0] * 600, 1.0, 1.0, "nvfp4"), m=m, n=n, k=k)
    here, there = (Device.of(load_gpu(name), "nvfp4") for name in ("rtx-pro-6000-server", "b200"))
    measured = np.log(_core(shapes, here, 128.0 * 128.0).total) + rng.normal(0.0, 0.03, 600)
    found = fit_constants(GEMM, [Part("", "vllm|nvfp4", "nvfp4", here, shapes, 2, measured, "nvfp4")], 0)
    for device, limit in ((here, 0.05), (there, 0.15)):
        ratio = core_time(shapes, device, found).total / _core(shapes, device, 128.0 * 128.0).total
        assert np.median(np.abs(ratio - 1.0)) < limit
