"""The estimator of experts: what its core counts, which kernels a table names, and what other GPUs learn of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from made_rows import GPUS, latency, rows_of

pd = pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')
pytest.importorskip("lightgbm", reason='LightGBM is not installed: pip install "tilecast[train]"')
pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')

from predictor.engines import library  # noqa: E402
from predictor.engines.library import FASTEST, STRIPES, TWO_TILES  # noqa: E402
from predictor.hardware.gpu import load_gpu  # noqa: E402
from predictor.kernels.artifact import default_artifacts, load_estimator  # noqa: E402
from predictor.kernels.device import Device  # noqa: E402
from predictor.kernels.fitting import serving as fit_serving  # noqa: E402
from predictor.kernels.fitting import serving_rows  # noqa: E402
from predictor.kernels.moe.core import Constants, core_time  # noqa: E402
from predictor.kernels.moe.core import Shapes as MoEShapes  # noqa: E402
from predictor.kernels.moe.estimator import ServingMoE, on_board  # noqa: E402
from predictor.ops import MoE, Op  # noqa: E402
from predictor.ops.routing import expert_loads  # noqa: E402


def _layers(ep: float, matrices: float = 3.0) -> MoEShapes:
    one = np.ones(3)
    tokens = np.array([16.0, 512.0, 8192.0])
    columns = [tokens, one * 4096, one * 1024, one * 64, one * 4, one * matrices, one, one * ep]
    return MoEShapes.of(columns, expert_loads("balanced", tokens, columns[3], columns[4], columns[7]), one * 0, 2.0)


def test_rows_of_other_gpus_cost_the_kernels_that_touch_them() -> None:
    device = Device.of(GPUS["h100-sxm"], "bf16")
    plain = Constants(0.5, 0.75, 15e9, 3e4, 16.0, 0.2, 1.0, 20.0, 1e-9, 1e-9, 1.0)
    traffic, products = replace(plain, foreign_traffic=1.0), replace(plain, foreign_rows=1.0)
    for touched in (traffic, products):
        np.testing.assert_allclose(
            core_time(_layers(1), device, touched).total, core_time(_layers(1), device, plain).total
        )
        assert (core_time(_layers(8), device, touched).total > core_time(_layers(8), device, plain).total).all()
    # A kernel that multiplies every row gains nothing from more GPUs but the weights.
    alone, spread = (core_time(_layers(ep), device, products).compute[-1] for ep in (1, 8))
    assert spread == pytest.approx(alone, rel=0.05)


def test_default_tiles_of_sglang_change_where_tokens_outnumber_local_experts() -> None:
    device = Device.of(GPUS["h100-sxm"], "bf16")
    known = Constants(0.5, 0.75, 15e9, 3e4, 16.0, 0.2, 1.0, 20.0, 0.1, 0.02, 0.7)
    for ep, few in ((1, [True, False, False]), (8, [False, False, False])):  # 16, 512, 8192 tokens; 64, 8 experts
        best = core_time(_layers(ep), device, known)
        two = core_time(replace(_layers(ep), tiling=TWO_TILES), device, known)
        np.testing.assert_allclose(two.memory / best.memory, np.where(few, 1.0, 1 / 0.7), rtol=1e-3)
        assert (two.compute >= best.compute).all()
    for framework, version in (("sglang", ""), ("sglang", "0.5.10"), ("vllm", "0.14.0"), ("vllm", "0.10")):
        assert library(framework).moe_tiling("triton", "bf16", version) == TWO_TILES, (framework, version)
    assert library("vllm").moe_tiling("triton", "bf16", "0.24.0") == FASTEST
    for framework, kernel, name in (
        ("vllm", "triton", "bf16"),
        ("sglang", "cutlass", "bf16"),
        ("sglang", "triton", "fp8_block"),
        ("trtllm", "triton", "fp8"),
    ):
        assert library(framework).moe_tiling(kernel, name) == FASTEST


def test_stripes_occupy_every_sm() -> None:
    """One expert's tiles are fewer than the SMs: whole ones leave some idle, stripes do not."""
    device = Device.of(load_gpu("a100-sxm-80gb"), "bf16")
    known = Constants(0.5, 0.75, 15e9, 3e4, 16.0, 0.2, 1.0, 20.0, 0.1, 0.02, 0.7)
    one = np.ones(2)
    columns = [np.array([1.0, 4096.0]), one * 4096, one * 1024, one * 8, one, one * 3, one, one]
    loads = expert_loads("balanced", columns[0], columns[3], columns[4], columns[7])
    whole, stripes = (
        core_time(MoEShapes.of(columns, loads, one * 0, 0.5, tiling), device, known) for tiling in (FASTEST, STRIPES)
    )
    assert stripes.compute[0] < 0.5 * whole.compute[0]
    assert stripes.compute[1] == pytest.approx(whole.compute[1], rel=1e-3)
    assert {library(name).moe_tiling("marlin", "int4_wo") for name in ("vllm", "sglang")} == {STRIPES}


def test_marlin_multiplies_as_fast_a_clock_on_every_generation() -> None:
    """mma.sync does no more on Hopper and B200, whose peaks are of other instructions; a graphics board has its own."""
    known = Constants(0.5, 0.75, 15e9, 3e4, 16.0, 0.2, 1.0, 1e6, 0.1, 0.02, 0.7)
    columns = [np.full(1, float(v)) for v in (2**18, 4096, 1024, 8, 1, 3, 1, 1)]
    loads = expert_loads("balanced", columns[0], columns[3], columns[4], columns[7])

    def clocks(name: str, tiling: str) -> float:
        device = Device.of(load_gpu(name), "bf16")
        shapes = MoEShapes.of(columns, loads, columns[0] * 0, 0.5, tiling)
        return float(core_time(shapes, device, known).compute[0]) * device.sms * device.clock_hz

    for name in ("h100-sxm", "b200-sxm"):
        assert clocks(name, STRIPES) == pytest.approx(clocks("a100-sxm-80gb", STRIPES), rel=0.01)
        assert clocks(name, FASTEST) < 0.7 * clocks("a100-sxm-80gb", FASTEST)
    assert clocks("l40s", STRIPES) == clocks("l40s", FASTEST) > 1.5 * clocks("a100-sxm-80gb", STRIPES)


def test_a_kernel_that_does_not_wait_for_memory_gains_nothing_from_a_faster_one() -> None:
    h100, h200 = (Device.of(load_gpu(name), "bf16") for name in ("h100-sxm", "h200-sxm"))
    slow, usual = (Constants(0.5, share, 15e9, 3e4, 16.0, 0.2, 1.0, 20.0, 0.1, 0.02, 0.7) for share in (0.1, 0.7))
    layers = _layers(1)
    memory = [
        [core_time(layers, device, on_board(x, 2.0, h100, device)).memory for device in (h100, h200)]
        for x in (slow, usual)
    ]
    np.testing.assert_allclose(memory[0][1], memory[0][0])
    np.testing.assert_allclose(memory[1][1] / memory[1][0], h100.bandwidth / h200.bandwidth, rtol=1e-3)
    assert on_board(slow, 2.0, None, h200) is slow  # shared constants are of no board


def test_early_releases_teach_other_gpus_what_todays_do_alike() -> None:
    ops: list[Op] = [MoE("bf16", 64, 2048, 1024, 64, 4, gated, 1, ep) for gated, ep in product((True, False), (1, 4))]
    gpu = GPUS["h100-sxm"]

    def kept(framework: str, version: str, source: str) -> list[tuple[float, float, bool]]:
        about = {"framework": framework, "framework_version": version, "kernel_source": source}
        frame = pd.DataFrame(rows_of(ops, gpu, 0.6, op="moe", distribution="balanced", **about))
        parts = list(serving_rows.moe_by_kernel(frame, {gpu.id: gpu}))
        return [
            (m, ep, p.shapes.tiling == TWO_TILES)
            for p in parts
            for m, ep in zip(p.shapes.matrices, p.shapes.ep, strict=True)
        ]

    assert kept("sglang", "0.5.10", "fused_moe_triton") == [(3, 1, True)]
    assert kept("vllm", "0.14.0", "vllm_fused_moe") == [(3, 1, True), (3, 4, True)]
    assert kept("vllm", "0.24.0", "vllm_triton") == [(3, 1, False), (3, 4, False), (2, 1, False), (2, 4, False)]
    assert len(kept("sglang", "0.5.10", "marlin")) == len(kept("sglang", "0.5.14", "fused_moe_triton")) == 4


def test_what_gpus_share_of_moe_goes_by_kernel() -> None:
    """A framework that changes its kernel from one board to the next takes over what that kernel does elsewhere."""
    ops: list[Op] = [MoE("bf16", t, 2048, f, e, 4) for t, f, e in product((1, 16, 256, 4096), (512, 2048), (16, 128))]
    known = {name: load_gpu(name) for name in ("a100-sxm-80gb", "h100-sxm", "l40s")}
    rows: list[dict[str, Any]] = []
    for gpu in known.values():
        rows += rows_of(ops, gpu, 0.6, op="moe", framework="vllm", kernel_source="vllm_triton", distribution="balanced")
        rows += rows_of(ops, gpu, 0.3, op="moe", framework="trtllm", kernel_source="cutlass", distribution="balanced")
    manifest, weights = fit_serving.fit_moe(pd.DataFrame(rows), known, seed=0)
    assert {key for key in manifest["cores"] if key.startswith("*|")} == {"*|triton|bf16", "*|cutlass|bf16"}
    estimator = ServingMoE.from_artifact(manifest, weights)
    large: list[Op] = [MoE("bf16", 4096, 2048, 2048, 128, 4)]
    a100, b200 = known["a100-sxm-80gb"], load_gpu("b200")
    for gpu, faster in ((a100, "vllm"), (load_gpu("a100-pcie-40gb"), "vllm")):
        times = {name: float(latency(estimator, "moe", large, gpu, name)[0]) for name in ("vllm", "trtllm")}
        assert min(times, key=lambda name: times[name]) == faster
    assert [library("vllm").moe_kernel("bf16", gpu) for gpu in (a100, b200)] == ["triton", "generated"]
    times = {name: float(latency(estimator, "moe", large, b200, name)[0]) for name in ("vllm", "trtllm")}
    assert times["vllm"] == pytest.approx(times["trtllm"], rel=0.3)
    few: list[Op] = [
        MoE("bf16", 1, 512, 128, 8, 2)
    ]  # generated kernels, which nobody measured, are launched less often
    vllm, trtllm = (float(latency(estimator, "moe", few, b200, name)[0]) for name in ("vllm", "trtllm"))
    assert 0.5 < vllm / trtllm < 0.9


def test_which_kernel_of_experts_a_table_names() -> None:
    """FlashInfer's TensorRT-LLM experts on B200 are neither Triton's nor CUTLASS', whichever engine called them."""
    b200 = {"b200-sxm": load_gpu("b200")}
    names = {"flashinfer_trtllm_moe": "generated", "fused_moe_triton": "triton", "flashinfer_cutlass": "cutlass"}
    for framework, (source, kernel) in product(("vllm", "sglang"), names.items()):
        rows = rows_of([MoE("bf16", 8, 512, 128, 8, 2)], b200["b200-sxm"], 0.5, op="moe", framework=framework,
                     kernel_source=source, distribution="balanced")  # fmt: skip
        assert [p.path for p in serving_rows.moe_by_kernel(pd.DataFrame(rows), b200)] == [f"{kernel}|bf16"]
    kernels = [library("sglang").moe_kernel(name, b200["b200-sxm"]) for name in ("bf16", "fp8", "int4_wo")]
    assert kernels == ["generated", "triton", "generated"]


def test_rows_of_a_default_tile_teach_nothing() -> None:
    """A layer that reads its weights at a fifth of the rate of the others was timed with a tile that nothing chose."""
    tokens = np.tile([16.0, 32.0, 4096.0], 4)
    width = np.repeat([1024.0, 1536.0, 2048.0, 4096.0], 3)
    one = np.ones(12)
    columns = [tokens, one * 8192, width, one * 16, one * 2, one * 3, one, one]
    shapes = MoEShapes.of(columns, expert_loads("balanced", tokens, columns[3], columns[4], one), one * 0, 2.0)
    device = Device.of(GPUS["h100-sxm"], "bf16")
    seconds = shapes.active * 3 * 8192 * width * 2 / (0.8 * device.bandwidth)
    assert serving_rows.tuned_rows(shapes, device, seconds).all()
    slow = np.where(width == 2048, 5.0, 1.0)
    np.testing.assert_array_equal(serving_rows.tuned_rows(shapes, device, seconds * slow), slow == 1)
    alike = np.where(tokens > 100, 50.0, 1.0)  # many rows an expert: their products take long, in all layers
    assert serving_rows.tuned_rows(shapes, device, seconds * alike).all()


@pytest.mark.parametrize("board", ["h100-sxm", "h200-sxm", "b200-sxm"])
def test_rows_that_an_engine_would_have_tuned_answer_for_nobody(board: str) -> None:
    """vLLM's rows of fp8 with a scale a tensor on Hopper are of a default tile: the same kernels of TensorRT-LLM, which
    times them, answer in place of those."""
    gpu = load_gpu(board)
    ops: list[Op] = [MoE("fp8", t, 4096, f, 16, 2) for t, f in product((1, 16, 256, 4096), (1024, 4096))]
    rows: list[dict[str, Any]] = []
    for framework, efficiency in (("vllm", 0.1), ("trtllm", 0.6)):
        rows += rows_of(ops, gpu, efficiency, op="moe", framework=framework, kernel_source="cutlass",
                        distribution="balanced")  # fmt: skip
    frame, gpus = pd.DataFrame(rows), {gpu.id: gpu}
    untuned = gpu.compute_capability == "9.0"
    assert [part.path for part in serving_rows.moe_parts(frame, gpus)] == ["trtllm|fp8", *["vllm|fp8"] * (not untuned)]
    assert library("vllm").untuned_experts("fp8", True, gpu) == untuned
    assert library("sglang").untuned_experts("bf16", False, gpu) == untuned
    assert not library("sglang").untuned_experts("bf16", True, gpu)


#: Layers of Llama 4 Scout, Nemotron 3 Super (of two matrices), Mixtral 8x7B and Qwen3 30B-A3B on two GPUs.
LAYERS = ((5120, 8192, 16, 1, True), (1024, 2688, 512, 22, False), (4096, 14336, 8, 2, True), (2048, 768, 128, 8, True))


@pytest.mark.parametrize("framework", ["vllm", "sglang", "trtllm"])
def test_fp8_experts_of_the_shipped_set_take_no_longer_than_bf16(framework: str) -> None:
    """Half the bytes and twice the rate on Hopper; with few tokens, launches are most of it (a tenth is allowed)."""
    estimator = load_estimator(default_artifacts() / "moe")
    for name in ("h100-sxm", "h200-sxm", "h100-nvl"):
        for hidden, width, experts, top_k, gated in LAYERS:
            ops = {
                dtype: [MoE(dtype, t, hidden, width, experts, top_k, gated, 2, 1, "random") for t in (1, 16, 256, 4096)]
                for dtype in ("fp8", "bf16")
            }
            narrow, wide = (latency(estimator, "moe", list(ops[d]), load_gpu(name), framework) for d in ("fp8", "bf16"))
            assert (narrow <= 1.1 * wide).all(), (name, hidden, width, narrow / wide)


def test_experts_of_trtllm_on_blackwell_are_generated_but_behind_data_parallel_attention() -> None:
    """By hand from the tables of power_law_1.2 on B200, tp 8, 8 tokens, us: DeepGEMM's fp8 170 and SGLang's generated
    73; CUTLASS's nvfp4 113 and generated 45. Gathered tokens stay with TensorRT-LLM's own rows."""
    estimator, gpu = load_estimator(default_artifacts() / "moe"), load_gpu("b200-sxm")

    def us(dtype: str, quant: str, framework: str, gathered: bool = False) -> float:
        op = MoE(dtype, 8, 7168, 2048, 256, 8, True, 8, 1, "power_law_1.2", quant, gathered=gathered)
        return float(latency(estimator, "moe", [op], gpu, framework)[0]) * 1e6

    for dtype, quant, generated, own in (("fp8", "fp8_block", 73.0, 170.0), ("nvfp4", "", 45.0, 113.0)):
        assert us(dtype, quant, "trtllm") == pytest.approx(generated, rel=0.15)
        assert us(dtype, quant, "trtllm", gathered=True) == pytest.approx(own, rel=0.15)
        assert us(dtype, quant, "sglang", gathered=True) == us(dtype, quant, "sglang")
    trtllm = library("trtllm")
    assert trtllm.moe_kernel("w4a8_mxfp4_mxfp8", gpu, gathered=True) == "generated"
    assert trtllm.moe_kernel("fp8_block", load_gpu("h200-sxm")) == trtllm.moe_kernel("nvfp4", gpu, True) == "cutlass"


def test_experts_that_were_sent_their_tokens_take_as_long_as_the_rows_that_came() -> None:
    """64 ranks: each has 4 of the 256 experts, and 1,024 of 65,536 rows. Kernels that see the tokens of all ranks pass
    over the other rows."""
    estimator, h200 = load_estimator(default_artifacts() / "moe"), load_gpu("h200-sxm")
    everywhere = MoE("bf16", 8192, 7168, 2048, 256, 8, ep=64)
    sent = replace(everywhere, dispatched=True)
    ops: list[Op] = [everywhere, sent, sent.received()]
    whole, came, received = latency(estimator, "moe", ops, h200, "vllm").tolist()
    assert came == received < whole
