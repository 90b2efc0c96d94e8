"""The estimators of serving kernels, fitted on made-up measurements whose law is known."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_rows import GPUS, latency, rows_of

pd = pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')
pytest.importorskip("lightgbm", reason='LightGBM is not installed: pip install "tilecast[train]"')
pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')

from predictor.errors import SpecError  # noqa: E402
from predictor.hardware.gpu import GPUSpec, load_gpu  # noqa: E402
from predictor.hardware.what_if import vary  # noqa: E402
from predictor.kernels.attention import core as attention_core  # noqa: E402
from predictor.kernels.attention.core import Shapes as AttentionShapes  # noqa: E402
from predictor.kernels.attention.core import attended_pairs  # noqa: E402
from predictor.kernels.attention.estimator import BACKWARD_OVER_FORWARD, ServingAttention  # noqa: E402
from predictor.kernels.base import make_batch  # noqa: E402
from predictor.kernels.device import Device  # noqa: E402
from predictor.kernels.fitting import serving as fit_serving  # noqa: E402
from predictor.kernels.fitting.family import NO_CALIBRATION  # noqa: E402
from predictor.kernels.gemm.estimator import TensorCoreGemm  # noqa: E402
from predictor.kernels.moe.estimator import ServingMoE  # noqa: E402
from predictor.kernels.residual import Corrections  # noqa: E402
from predictor.ops import Attention, Gemm, MoE, Op  # noqa: E402
from predictor.ops.attention import attended_pairs as pairs_of_one  # noqa: E402
from predictor.ops.roofline import roofline  # noqa: E402

UNSEEN = ("l4", "rtx-pro-6000-server", "h200-sxm", "mi300x")


def _frame(ops: list[Op], op: str) -> Any:
    rows = []
    for (name, gpu), framework in product(GPUS.items(), ("vllm", "trtllm")):
        good = [o for o in ops if gpu.supports(o.dtype)]
        rows += rows_of(good, gpu, 0.7 if name == "h100-sxm" else 0.8, op=op, framework=framework)
    return pd.DataFrame(rows)


def _gemms() -> list[Op]:
    sizes = (256, 1024, 4096)
    return [Gemm(d, m, n, k) for d, m, n, k in product(("bf16", "fp8"), (1, 16, 64, 512, 2048, 8192), sizes, sizes)]


@pytest.fixture(scope="module")
def gemm() -> TensorCoreGemm:
    return TensorCoreGemm.from_artifact(*fit_serving.fit_gemm(_frame(_gemms(), "gemm"), GPUS, seed=0))


@pytest.fixture(scope="module")
def attention() -> ServingAttention:
    ops: list[Op] = [
        Attention("bf16", b, 32, kv, q, max(q, s), 128, kv_dtype=c)
        for b, kv, q, s, c in product((1, 8, 64), (4, 32), (1, 512, 2048), (512, 4096), ("bf16", "fp8"))
    ]
    return ServingAttention.from_artifact(*fit_serving.fit_attention(_frame(ops, "attention"), GPUS, seed=0))


@pytest.fixture(scope="module")
def moe() -> ServingMoE:
    ops: list[Op] = [
        MoE("bf16", t, h, 2048, e, 2, gated, 1, ep, d)
        for t, h, e, gated, ep, d in product(
            (1, 16, 256, 4096), (1024, 4096), (8, 64), (True, False), (1, 4), ("balanced", "power_law_1.2")
        )
    ]
    return ServingMoE.from_artifact(*fit_serving.fit_moe(_frame(ops, "moe"), GPUS, seed=0))


def test_gemm_learns_a_law_and_keeps_the_roofline(gemm: TensorCoreGemm) -> None:
    ops: list[Op] = [Gemm("bf16", m, n, k) for m, n, k in product((1, 100, 3000), (768, 3072), (768, 3072))]
    for name, gpu in GPUS.items():
        assert name in gemm._corrections.gpus()
        expected = roofline(ops, gpu).cold_s / (0.7 if name == "h100-sxm" else 0.8) + 4e-6
        error = np.abs(latency(gemm, "gemm", ops, gpu) / expected - 1)
        assert np.median(error) < 0.12
    for name in UNSEEN:
        assert name not in gemm._corrections.gpus()
        latency(gemm, "gemm", ops, load_gpu(name))


def test_gemm_stand_ins(gemm: TensorCoreGemm) -> None:
    gpu = GPUS["h100-sxm"]
    bf16 = latency(gemm, "gemm", [Gemm("bf16", 300, 2000, 3000)], gpu)
    assert latency(gemm, "gemm", [Gemm("fp16", 300, 2000, 3000)], gpu) == pytest.approx(bf16)
    for kernels in ("pytorch", "something-else"):
        assert latency(gemm, "gemm", [Gemm("bf16", 300, 2000, 3000)], gpu, kernels) == pytest.approx(bf16)
    mixed: list[Op] = [Gemm("bf16", 64, 512, 512), Gemm("fp8", 64, 512, 512), Gemm("bf16", 300, 2000, 3000)]
    both = latency(gemm, "gemm", mixed, gpu)
    alone = [float(latency(gemm, "gemm", [op], gpu)[0]) for op in mixed]
    np.testing.assert_allclose(both, alone)


def test_gemm_twice_the_rows_never_take_less_time(gemm: TensorCoreGemm) -> None:
    shapes = list(product((512, 700, 1024, 3000, 4096), (2048, 5000, 8192), (1024, 4096, 11008)))
    for name in (*GPUS, *UNSEEN):
        gpu = load_gpu(name)
        once = latency(gemm, "gemm", [Gemm("bf16", m, n, k) for m, n, k in shapes], gpu)
        twice = latency(gemm, "gemm", [Gemm("bf16", 2 * m, n, k) for m, n, k in shapes], gpu)
        assert (twice >= once).all(), name


def test_attention_phases_and_backward(attention: ServingAttention) -> None:
    gpu = GPUS["a100-sxm-80gb"]
    prefill = Attention("bf16", 4, 32, 8, 1024, 1024, 128)
    decode = Attention("bf16", 16, 32, 8, 1, 3000, 128, kv_dtype="fp8")
    step = Attention("fp16", 2, 32, 8, 256, 4096, 128, window=1024)
    backward = prefill.backward()[0]
    seconds = latency(attention, "attention", [prefill, decode, step, backward], gpu)
    assert seconds[3] == pytest.approx(seconds[0] * 2.5 / BACKWARD_OVER_FORWARD)
    for name in UNSEEN:
        latency(attention, "attention", [prefill, decode, step, backward], load_gpu(name))


def test_prompts_of_one_token_say_nothing_of_decode() -> None:
    """Tables of prompts go down to one token: one query and one key, by prefill kernels, and alone with fp8 queries."""
    sizes = list(product((1, 8, 64), (4, 32)))
    decode: list[Op] = [
        Attention("bf16", b, 32, kv, 1, s, 128, kv_dtype=c)
        for (b, kv), s, c in product(sizes, (2, 64, 512, 4096), ("bf16", "fp8"))
    ]
    prompts: list[Op] = [
        Attention(dtype, b, 32, kv, 1, 1, 128, kv_dtype=dtype) for (b, kv), dtype in product(sizes, ("bf16", "fp8"))
    ]
    gpu, about = load_gpu("l40s"), {"op": "attention", "framework": "vllm"}
    rows = rows_of(decode, gpu, 0.7, **about) + rows_of(prompts, gpu, 0.001, **about)
    estimator = ServingAttention.from_artifact(*fit_serving.fit_attention(pd.DataFrame(rows), {gpu.id: gpu}, seed=0))
    for name in ("l40s", "h100"):
        asked: list[Op] = [
            Attention(dtype, 64, 32, 4, 1, s, 128, kv_dtype="fp8")
            for dtype, s in (("bf16", 1), ("bf16", 2), ("bf16", 4096), ("fp8", 1), ("fp8", 2), ("fp8", 4096))
        ]
        seconds = latency(estimator, "attention", asked, load_gpu(name))
        assert seconds[0] == pytest.approx(seconds[1]), name
        assert seconds[1] < seconds[2], name
        assert seconds[3:] == pytest.approx(seconds[:3]), name


def test_kernels_that_no_default_runs_answer_for_their_own_gpu_alone() -> None:
    """SGLang's decode rows on the A100 are of a backend that it takes there by request: no other GPU learns of them."""
    ops: list[Op] = [Attention("bf16", b, 32, kv, 1, s, 128) for b, kv, s in product((1, 8, 64), (4, 32), (512, 4096))]
    known = {name: load_gpu(name) for name in ("a100-sxm-80gb", "l40s")}
    usual = [row for gpu in known.values() for row in rows_of(ops, gpu, 0.7, op="attention", framework="vllm")]
    usual += rows_of(ops, known["l40s"], 0.7, op="attention", framework="sglang")
    slow = rows_of(ops, known["a100-sxm-80gb"], 0.2, op="attention", framework="sglang")
    without, _ = fit_serving.fit_attention(pd.DataFrame(usual), known, seed=0)
    both, weights = fit_serving.fit_attention(pd.DataFrame(usual + slow), known, seed=0)
    shared = [key for key in both["cores"] if key.startswith("*")]
    assert shared
    assert {key: both["cores"][key] for key in shared} == {key: without["cores"][key] for key in shared}
    estimator = ServingAttention.from_artifact(both, weights)
    large: list[Op] = [Attention("bf16", 64, 32, 32, 1, 4096, 128)]
    a100 = known["a100-sxm-80gb"]
    times = {name: float(latency(estimator, "attention", large, a100, name)[0]) for name in ("vllm", "sglang")}
    assert times["sglang"] > 2 * times["vllm"]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 1, 100, 5000])
def test_pairs_of_arrays_are_those_of_the_operator(causal: bool, window: int) -> None:
    cases = [(1, 1), (1, 700), (64, 64), (64, 700), (700, 700), (128, 129)]
    q, kv = (np.array(values, dtype=np.float64) for values in zip(*cases, strict=True))
    one = np.ones(len(cases))
    shapes = AttentionShapes.of([one, one, one, q, kv, one, one, one * causal, one * window], 2.0, one)
    assert attended_pairs(shapes).tolist() == [pairs_of_one(a, b, causal, window) for a, b in cases]


def test_sglang_casts_before_a_decode_step_over_a_cache_of_8_bits() -> None:
    """Two small kernels, as long on every board; none for 16 bits, latent caches, and other libraries."""
    one = np.ones(2)
    sizes, shared = np.array([1.0, 2.0]), np.zeros(2)
    for gpu in map(load_gpu, ("h100-sxm", "b200-sxm", "l40s")):
        device = Device.of(gpu, "bf16")
        seconds = {}
        for name, latent in (("sglang", 0.0), ("vllm", 0.0), ("sglang", 1.0)):
            columns = [one * 4, one * 32, one * 8, one, one * 512, one * 128, one * 128, one, one * 0]
            shapes = AttentionShapes.of(columns, 2.0, sizes, shared + latent).run_by(name, gpu)
            constants = attention_core.DecodeConstants()
            bare = attention_core.core_time(replace(shapes, beside=shared), device, constants)
            more = attention_core.core_time(shapes, device, constants).total - bare.total
            seconds[name, latent] = np.round(more * 1e6, 3).tolist()
        assert seconds == {("sglang", 0.0): [4.1, 0.0], ("vllm", 0.0): [0.0, 0.0], ("sglang", 1.0): [0.0, 0.0]}


def test_moe(moe: ServingMoE) -> None:
    ops: list[Op] = [MoE(d, t, 2048, 1024, 16, 4) for d, t in product(("bf16", "fp16"), (1, 100, 3000))]
    for name in (*GPUS, *UNSEEN):
        seconds = latency(moe, "moe", ops, load_gpu(name))
        np.testing.assert_allclose(seconds[:3], seconds[3:])
    assert "h100-sxm" in moe._corrections.gpus()


def test_trees_of_another_generation_count_in_part() -> None:
    """Blackwell of data centers is not the Blackwell of graphics boards, though NVIDIA calls both so."""
    known = {name: load_gpu(name) for name in ("rtx-pro-6000-server", "h100-sxm")}
    rows = [row for gpu in known.values() for row in rows_of(_gemms(), gpu, 0.7, op="gemm", framework="vllm")]
    manifest, weights = fit_serving.fit_gemm(pd.DataFrame(rows), known, seed=0)
    x = np.full((1, len(manifest["features"])), 3.0)
    manifest["boosters"]["*|bf16"] |= {"shrink": 0.5, "clip": [0.1, 0.1]}  # trees that say 0.1 of everything
    corrections = Corrections(manifest, weights, TensorCoreGemm.forms)
    said = {name: corrections.log_factor("*|bf16", load_gpu(name), lambda: x) for name in ("b200", "h20", "rtx-5090")}
    assert {name: float(np.ravel(value)[0]) for name, value in said.items()} == pytest.approx(
        {"b200": 0.05, "h20": 0.1, "rtx-5090": 0.1}
    )
    manifest["boosters"]["*|bf16"]["unlike"] = 0.3  # of what boards without mma.sync run
    apart = Corrections(manifest, weights, TensorCoreGemm.forms)
    strengths = {name: apart.strength("*|bf16", load_gpu(name)) for name in ("b200", "mi300x", "l40s", "h20")}
    assert strengths == {"b200": 0.3, "mi300x": 0.3, "l40s": 0.5, "h20": 1.0}


def test_whose_measurements_answer(gemm: TensorCoreGemm) -> None:
    corrections = gemm._corrections
    assert corrections.stand_ins(GPUS["h100-sxm"])[0] == "h100-sxm"
    assert corrections.stand_ins(load_gpu("h200-sxm")) == ("h200-sxm", "h100-sxm", "*")
    assert corrections.stand_ins(load_gpu("l4")) == ("l4", "*mma", "*")
    assert corrections.stand_ins(load_gpu("h20-sxm")) == ("h20-sxm", "*")  # far fewer SMs
    assert corrections.stand_ins(load_gpu("b200-sxm")) == ("b200-sxm", "*")
    assert corrections.stand_ins(load_gpu("mi300x")) == ("mi300x", "*")


def hopper() -> TensorCoreGemm:
    """Made-up rows of H100, and of H200 where a kernel is half as efficient."""
    h100, h200 = GPUS["h100-sxm"], load_gpu("h200-sxm")
    rows = [
        row for gpu, efficiency in ((h100, 0.8), (h200, 0.4))
        for row in rows_of(_gemms(), gpu, efficiency, op="gemm", framework="vllm")
    ]  # fmt: skip
    return TensorCoreGemm.from_artifact(*fit_serving.fit_gemm(pd.DataFrame(rows), {g.id: g for g in (h100, h200)}, 0))


def between(share: float) -> GPUSpec:
    """A board of a name of its own on the way from H100 to H200."""
    h100, h200 = GPUS["h100-sxm"], load_gpu("h200-sxm")
    bandwidth = h100.memory_bandwidth * (h200.memory_bandwidth / h100.memory_bandwidth) ** share
    return replace(h100, id="between", path=Path("nowhere.yaml"), memory_bandwidth=bandwidth)


def test_siblings_answer_together_by_distance() -> None:
    """Forecasts go from one sibling's to the other's without a jump; measured boards answer for themselves alone."""
    gemm = hopper()
    ops: list[Op] = [Gemm("bf16", 64, 8192, 8192)]
    h100, h200 = GPUS["h100-sxm"], load_gpu("h200-sxm")
    assert gemm._corrections.shares(h100) == gemm._corrections.shares(vary(h100, "memory_bandwidth", 1.4)) == ()
    steps = np.linspace(0.0, 1.0, 21)
    seconds = np.array([float(latency(gemm, "gemm", ops, between(share))[0]) for share in steps])
    assert seconds[0] == pytest.approx(float(latency(gemm, "gemm", ops, h100)[0]), rel=1e-3)
    assert seconds[-1] == pytest.approx(float(latency(gemm, "gemm", ops, h200)[0]), rel=1e-3)
    apart = np.abs(np.diff(np.log(seconds)))
    assert seconds[-1] / seconds[0] > 1.3 and apart.max() < 0.15
    shares = dict(gemm._corrections.shares(between(0.25)))
    assert shares["h100-sxm"] == pytest.approx(0.9) and shares["h200-sxm"] == pytest.approx(0.1)  # 1 : 1 / 3^2


def test_a_sibling_with_other_sms_fades() -> None:
    gemm = hopper()
    shares = [
        dict(gemm._corrections.shares(replace(between(0.0), sm_count=count))).get("*", 0.0)
        for count in (132, 110, 103, 98, 92, 87)
    ]
    assert shares[:2] == [0.0, 0.0] and 0.0 < shares[2] < shares[3] < shares[4] < 1.0 and shares[5] == 0.0
    assert gemm._corrections.shares(replace(between(0.0), sm_count=60)) == ()


def test_a_board_that_power_starves_is_no_sibling_of_a_card_that_it_does_not() -> None:
    """L40S runs long products at 0.6 of its clock. RTX 4090 has half of its tensor rate and more watts; L40 has the
    rate of the one and fewer watts than the other."""
    l40s, held = load_gpu("l40s"), load_gpu("l40")
    rows = pd.DataFrame(rows_of(_gemms()[:54], l40s, 0.7, op="gemm", framework="vllm"))
    corrections = Corrections(*fit_serving.fit_gemm(rows, {l40s.id: l40s}, seed=0), TensorCoreGemm.forms)
    assert corrections.siblings(held) == corrections.siblings(load_gpu("rtx-6000-ada")) == ("l40s",)
    assert corrections.siblings(load_gpu("rtx-4090")) == ()
    fed = replace(l40s, power_limit_w=2.0 * l40s.power_limit_w)
    rows = pd.DataFrame(rows_of(_gemms()[:54], fed, 0.7, op="gemm", framework="vllm"))
    corrections = Corrections(*fit_serving.fit_gemm(rows, {fed.id: fed}, seed=0), TensorCoreGemm.forms)
    assert corrections.siblings(load_gpu("rtx-4090")) == ("l40s",)


def test_trees_are_asked_about_the_board_and_not_its_variant(gemm: TensorCoreGemm) -> None:
    """What is varied changes the core alone: the factor of the trees stays, of a measured board and of any other."""
    ops: list[Op] = [Gemm("bf16", m, 4096, 4096) for m in (1, 64, 512, 8192)]
    alone = gemm.core_alone()
    for name in ("h100-sxm", "h200-sxm", "rtx-4090"):
        board, factors = load_gpu(name), []
        for gpu in (board, vary(board, "memory_bandwidth", 1.7), vary(board, "sm_count", 2.0), vary(board, "l2", 3.0)):
            ways = [made.seconds(make_batch("gemm", ops, "vllm"), gpu) for made in (gemm, alone)]
            factors.append(ways[0] / ways[1])
        assert np.ptp(factors, axis=0).max() < 1e-12


def test_a_sibling_differs_only_by_its_memory(gemm: TensorCoreGemm) -> None:
    h100, h200 = GPUS["h100-sxm"], load_gpu("h200-sxm")
    bound_by_compute: list[Op] = [Gemm("bf16", 8192, 8192, 8192)]
    bound_by_memory: list[Op] = [Gemm("bf16", 1, 16384, 16384)]
    ratio = [float((latency(gemm, "gemm", o, h100) / latency(gemm, "gemm", o, h200))[0])
             for o in (bound_by_compute, bound_by_memory)]  # fmt: skip
    assert ratio[0] == pytest.approx(1.0, abs=0.05)
    assert 1.2 < ratio[1] <= h200.memory_bandwidth / h100.memory_bandwidth + 0.01


def test_more_watts_and_megahertz_than_a_sibling_has_are_no_measured_gain() -> None:
    """GB200 answers by B200's rows: waits are as long, products gain by SMs and MHz; B200 by GB200's is as it was."""
    b200, gb200 = load_gpu("b200-sxm"), load_gpu("gb200")
    for known, other in ((b200, gb200), (gb200, b200)):
        rows = pd.DataFrame(rows_of(_gemms()[:54], known, 0.7, op="gemm", framework="vllm"))
        corrections = Corrections(*fit_serving.fit_gemm(rows, {known.id: known}, seed=0), TensorCoreGemm.forms)
        own, there = Device.of(known, "bf16"), Device.of(other, "bf16")
        found = corrections.device_as(known.id, other, "bf16")
        assert found.bandwidth == there.bandwidth and found.sms == there.sms
        if known is b200:
            gain = gb200.sm_count * gb200.boost_clock_hz / (b200.sm_count * b200.boost_clock_hz)
            assert found.peak_flops == pytest.approx(own.peak_flops * gain) and found.peak_flops < there.peak_flops
            assert found.clock_hz == own.clock_hz
        else:
            assert found == there
        assert corrections.device_as("*", other, "bf16") == there
        b300 = load_gpu("b300-sxm")  # another compute capability, with rates of its own
        assert corrections.device_as(known.id, b300, "nvfp4") == Device.of(b300, "nvfp4")


def test_same_rows_and_seed_give_the_same_artifact() -> None:
    frame = _frame(_gemms()[:54], "gemm")
    (first, one), (second, two) = (fit_serving.fit_gemm(frame, GPUS, seed=1) for _ in range(2))
    assert first == second
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)


def test_rows_of_an_unknown_scheme_are_left_out_and_broken_manifests_are_one_line() -> None:
    frame = _frame(_gemms()[:54], "gemm")
    odd = pd.concat([frame, frame.assign(quant="w2a3", latency_ms=99.0)], ignore_index=True)
    assert fit_serving.fit_gemm(odd, GPUS, seed=1)[0] == fit_serving.fit_gemm(frame, GPUS, seed=1)[0]
    with pytest.raises(SpecError, match="manifest lacks"):
        Corrections({}, {}, TensorCoreGemm.forms)
    empty = {**NO_CALIBRATION, "cores": {}, "boosters": {}, "core_rows": {}, "devices": {}}
    with pytest.raises(SpecError, match="no constants"):
        Corrections(empty, {}, TensorCoreGemm.forms).resolve(GPUS["h100-sxm"], "vllm", "bf16")
