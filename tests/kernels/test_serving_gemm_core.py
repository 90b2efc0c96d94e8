"""The physical core of serving GEMM: what power leaves of the peak, and tiles that cannot shrink."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.formats.quantization import activation_bytes, weight_bytes
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.kernels.device import Device, sustained_share
from predictor.kernels.gemm.core import Constants, CoreTime, Shapes, core_time
from predictor.ops.gemm import Gemm

CORE = (0.8, 0.75, 1e10, 9e3, 10.0, 170.0, 0.13, 3e5)
FREE = (1e-9, 1e-9, 1e-9)  # quantizing activations takes no time


def _shapes(m: list[float], n: float, k: float, dtype: str = "bf16") -> Shapes:
    one = np.ones(len(m))
    return Shapes(one, np.array(m), n * one, k * one, activation_bytes(dtype, ""), weight_bytes(dtype, ""))


def _core(shapes: Shapes, device: Device, smallest: float = 1.0) -> CoreTime:
    return core_time(shapes, device, Constants(*CORE, smallest, *FREE))


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


QUANTIZING = (1.0, 3e3, 1800.0, 1.5)  # the smallest tile, then launch, cycles a row and passes


def _quantized(shapes: Shapes, device: Device) -> np.ndarray:
    """Seconds that the kernel before the product adds."""
    with_it, without = (
        core_time(shapes, device, Constants(*CORE, 1.0, *last)).total for last in (QUANTIZING[1:], FREE)
    )
    return np.asarray(with_it - without)


def test_sixteen_bit_activations_are_not_quantized() -> None:
    device = Device.of(load_gpu("h100-sxm"), "bf16")
    assert (_quantized(_shapes([1.0, 512.0, 16384.0], 4096.0, 4096.0), device) == 0.0).all()
    weights_alone = replace(_shapes([1.0, 512.0], 4096.0, 4096.0), weight_itemsize=0.5)
    assert (_quantized(weights_alone, device) == 0.0).all()


def test_a_step_of_the_k_loop_is_128_bytes_deep() -> None:
    """One row, so that steps decide: fp8 needs half of them, weights alone in 4 bit as many, block scales no fewer."""
    device = Device.of(load_gpu("b200"), "fp8")
    steps = Constants(*CORE, 1.0, 1.0, 1e-9, 1e-9)
    wide = _shapes([1.0], 1024.0, 65536.0)
    narrow = replace(wide, itemsize=1.0, weight_itemsize=1.0)
    bf16, fp8, blocked, weights_alone = (
        core_time(shapes, device, steps).compute[0]
        for shapes in (wide, narrow, replace(narrow, blocked=True), replace(wide, weight_itemsize=0.5))
    )
    assert bf16 / fp8 == pytest.approx(2.0, rel=1e-9)
    assert bf16 == blocked == weights_alone


def test_what_quantizing_rows_costs_by_hand() -> None:
    """Short rows cost cycles of an SM each, long ones their bytes through DRAM."""
    device = Device.of(load_gpu("h100-sxm"), "fp8")
    launch = 3e3 / device.clock_hz
    short = _quantized(_shapes([1.0, 16384.0], 128.0, 64.0, "fp8"), device)
    assert short[0] == pytest.approx(launch, rel=0.02)
    assert short[1] - launch == pytest.approx(16384 * 1800 / (device.sms * device.clock_hz), rel=0.02)
    m, k = 65536.0, 65536.0
    moved = 1.5 * 3.0 * m * k - 0.5 * device.l2_bytes
    long = _quantized(_shapes([m], 128.0, k, "fp8"), device)[0]
    assert long == pytest.approx(moved / (0.75 * device.fed * device.bandwidth), rel=0.05)


def test_the_fit_tells_quantizing_from_the_product() -> None:
    """Rows of one board with a dear row: its constants forecast another board, which has other SMs and bandwidth."""
    pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')
    from predictor.kernels.fitting.serving import GEMM, fit_constants
    from predictor.kernels.fitting.serving_rows import VariantRows

    rng = np.random.default_rng(1)
    m, n, k = (np.exp2(rng.integers(low, 14, 500).astype(np.float64)) for low in (0, 7, 7))
    shapes = replace(_shapes([1.0] * 500, 1.0, 1.0, "fp8"), m=m, n=n, k=k)
    true = Constants(*CORE, *QUANTIZING)
    here, there = (Device.of(load_gpu(name), "fp8") for name in ("l40s", "h100-sxm"))
    measured = np.log(core_time(shapes, here, true).total) + rng.normal(0.0, 0.03, 500)
    found = fit_constants(GEMM, [VariantRows("", "vllm|fp8", "fp8", here, shapes, 2, measured, "fp8")], 0)
    assert found.quantize_row_cycles == pytest.approx(1800.0, rel=0.25)
    ratio = core_time(shapes, there, found).total / core_time(shapes, there, true).total
    assert np.median(np.abs(ratio - 1.0)) < 0.05


def test_other_boards_do_not_learn_from_a_board_whose_kernel_is_odd() -> None:
    pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')
    from predictor.kernels.fitting.serving import GEMM, typical
    from predictor.kernels.fitting.serving_rows import VariantRows

    rng = np.random.default_rng(2)
    m, n, k = (np.exp2(rng.integers(low, 13, 300).astype(np.float64)) for low in (0, 8, 8))
    shapes = replace(_shapes([1.0] * 300, 1.0, 1.0, "fp8"), m=m, n=n, k=k)

    def part(name: str, slower: float, path: str = "sglang|fp8") -> VariantRows:
        device = Device.of(load_gpu(name), "fp8")
        time = core_time(shapes, device, Constants(*CORE, *QUANTIZING)).total * np.where(m < 512, slower, 1.0)
        return VariantRows(name, path, path.split("|")[1], device, shapes, 1, np.log(time), "fp8")

    alike = [part("l40s", 1.0), part("h100-sxm", 1.0)]
    odd = part("rtx-pro-6000-server", 4.0)
    assert [p.gpu for p in typical(GEMM, [*alike, odd], 0)] == ["l40s", "h100-sxm"]
    assert len(typical(GEMM, [*alike, part("rtx-pro-6000-server", 1.3)], 0)) == 3
    assert [p.gpu for p in typical(GEMM, [alike[0], odd], 0)] == ["l40s"]  # of two, the fast one stays
    alone = part("rtx-pro-6000-server", 4.0, "sglang|nvfp4")  # nothing to compare it with
    assert typical(GEMM, [*alike, alone], 0)[-1] is alone


def test_the_fit_takes_a_slow_step_for_a_large_tile() -> None:
    """What one GPU shows of a kernel with one tile size has to carry over to a GPU with faster tensor cores."""
    pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')
    from predictor.kernels.fitting.serving import GEMM, fit_constants
    from predictor.kernels.fitting.serving_rows import VariantRows

    rng = np.random.default_rng(0)
    m, n, k = (np.exp2(rng.integers(low, 14, 600).astype(np.float64)) for low in (0, 8, 9))
    shapes = replace(_shapes([1.0] * 600, 1.0, 1.0, "nvfp4"), m=m, n=n, k=k)
    here, there = (Device.of(load_gpu(name), "nvfp4") for name in ("rtx-pro-6000-server", "b200"))
    measured = np.log(_core(shapes, here, 128.0 * 128.0).total) + rng.normal(0.0, 0.03, 600)
    found = fit_constants(GEMM, [VariantRows("", "vllm|nvfp4", "nvfp4", here, shapes, 2, measured, "nvfp4")], 0)
    for device, limit in ((here, 0.05), (there, 0.15)):
        ratio = core_time(shapes, device, found).total / _core(shapes, device, 128.0 * 128.0).total
        assert np.median(np.abs(ratio - 1.0)) < limit


#: Groups, rows of each, and TFLOP/s of products into 4096 and out of 2048, hidden 7168, fp8 with block scales, on H800.
#: Source: README.md of deepseek-ai/DeepGEMM@a6d97a1c.
DEEPGEMM = (
    (4, 8192, 1297, 1099), (8, 4096, 1288, 1093), (1, 1024, 1233, 925), (2, 512, 1040, 916), (4, 256, 932, 815),
)  # fmt: skip


@pytest.mark.parametrize(("groups", "rows", "into", "out"), DEEPGEMM)
def test_products_grouped_by_expert_run_as_deepgemm_publishes(groups: int, rows: int, into: int, out: int) -> None:
    """No table of products has groups, so that the core alone answers: what trees learned of a single product of 1,024
    rows (SGLang's row of 4096 x 7168: 161 us) says nothing of four groups of 256."""
    sizes = {into: (4096, 7168), out: (7168, 2048)}
    for rate, (n, k) in sizes.items():
        op = Gemm("fp8", rows, n, k, groups, "grouped", quant="fp8_block", quantized=True)
        table = predict_kernels([op], load_gpu("h800-sxm"), load_artifacts(None), "sglang")
        assert op.flops() / table.latency_s[0] == pytest.approx(rate * 1e12, rel=0.1)


@pytest.mark.parametrize("gpu", ["b200-sxm", "gb200"])
def test_sglang_gives_deepgemm_its_scales_packed_on_blackwell(gpu: str) -> None:
    """16 x 7168 x 2048: 7.9 us in TensorRT-LLM's table of B200 and 17.9 in SGLang's, of the same kernel; on Hopper, and
    in other formats, each has its own rows."""

    def us(dtype: str, quant: str, kernels: str, board: str) -> float:
        op = Gemm(dtype, 16, 7168, 2048, quant=quant)
        (seconds,) = predict_kernels([op], load_gpu(board), load_artifacts(), kernels).latency_s
        return float(seconds) * 1e6

    assert us("fp8", "fp8_block", "sglang", gpu) == us("fp8", "fp8_block", "trtllm", gpu) == pytest.approx(7.9, rel=0.2)
    assert us("bf16", "", "sglang", gpu) != us("bf16", "", "trtllm", gpu)
    assert us("fp8", "fp8_block", "sglang", "h200-sxm") != us("fp8", "fp8_block", "trtllm", "h200-sxm")


def test_an_autotuner_takes_the_fastest_measured_kernel() -> None:
    """16 x 8192 x 16384 in nvfp4 on B200: 39.4 us in TensorRT-LLM's table, 21 and 17 in those of SGLang and vLLM; from
    256 rows on, and on boards without generated kernels, the tables agree, and each has its own."""

    def us(rows: int, kernels: str, board: str = "b200-sxm") -> float:
        op = Gemm("nvfp4", rows, 8192, 16384)
        return float(predict_kernels([op], load_gpu(board), load_artifacts(), kernels).latency_s[0]) * 1e6

    assert us(16, "trtllm") == min(us(16, "vllm"), us(16, "sglang")) < 25.0
    assert us(1, "trtllm", "gb200") == min(us(1, "vllm", "gb200"), us(1, "sglang", "gb200"))
    assert us(16, "trtllm", "rtx-pro-6000-server") > 1.1 * us(16, "vllm", "rtx-pro-6000-server")
    assert us(4096, "trtllm") <= us(4096, "vllm")
