"""Serving kernels adapted to a GPU by a few rows of it, on made-up measurements whose law is known."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')
pytest.importorskip("lightgbm", reason='LightGBM is not installed: pip install "tilecast[train]"')
pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')

from predictor.errors import RequestError, SpecError  # noqa: E402
from predictor.hardware.gpu import GPUSpec, load_gpu  # noqa: E402
from predictor.kernels.base import make_batch  # noqa: E402
from predictor.kernels.fitting import serving as fit_serving  # noqa: E402
from predictor.kernels.fitting.adapt import row_errors, without  # noqa: E402
from predictor.kernels.fitting.calibrate_serving import (  # noqa: E402
    as_served,
    attention_rows,
    calibrate_gemm,
    gemm_rows,
    moe_rows,
    stratified,
)
from predictor.kernels.fitting.serving_rows import gemm_parts  # noqa: E402
from predictor.kernels.gemm.estimator import TensorCoreGemm  # noqa: E402
from predictor.ops import Gemm, Op  # noqa: E402
from predictor.ops.roofline import roofline  # noqa: E402

MEASURED = {name: load_gpu(name) for name in ("a100-sxm-80gb", "h100-sxm")}
NEW = load_gpu("l40s")
OPS: list[Op] = [
    Gemm("bf16", m, n, k)
    for m, n, k in product((1, 8, 64, 256, 1024, 4096), (256, 1024, 4096, 8192), (512, 2048, 8192))
]


def _frame(gpu: GPUSpec, efficiency: float, ops: list[Op] = OPS) -> Any:
    """Measurements: the cold roofline over an efficiency, plus 6 microseconds."""
    seconds = roofline(ops, gpu).cold_s / efficiency + 6e-6
    names = list(Gemm.__dataclass_fields__)
    rows = [{n: getattr(op, n) for n in names} | {"latency_ms": s * 1e3} for op, s in zip(ops, seconds, strict=True)]
    return pd.DataFrame(rows).assign(gpu=gpu.id, framework="vllm", op="gemm", quant="")


@pytest.fixture(scope="module")
def fitted() -> tuple[dict[str, Any], dict[str, Any]]:
    frame = pd.concat([_frame(gpu, 0.75) for gpu in MEASURED.values()], ignore_index=True)
    return fit_serving.fit_gemm(frame, MEASURED, 0)


def _error(files: Any, frame: Any, gpu: GPUSpec) -> float:
    seconds = TensorCoreGemm.from_artifact(*files).seconds(make_batch("gemm", OPS, "vllm"), gpu)
    forecast = np.maximum(roofline(OPS, gpu).lower_bound_s, seconds)
    return float(np.median(np.abs(forecast / (frame["latency_ms"].to_numpy() * 1e-3) - 1.0)))


def test_rows_of_a_new_gpu_bring_its_error_down(fitted: Any) -> None:
    frame = _frame(NEW, 0.45)
    few = frame.iloc[stratified(frame, 24, 0)].reset_index(drop=True)
    found = calibrate_gemm(few, NEW, *fitted)
    before, after = _error(fitted, frame, NEW), _error((found.manifest, found.weights), frame, NEW)
    assert after < 0.5 * before
    assert after < 0.1
    assert found.after < found.before
    assert set(found.scalars["vllm|bf16"]) == set(fitted[0]["cores"]["*|vllm|bf16"])
    other = MEASURED["h100-sxm"]
    rows = _frame(other, 0.75)
    assert _error(fitted, rows, other) == _error((found.manifest, found.weights), rows, other)


def test_a_second_calibration_replaces_the_first(fitted: Any) -> None:
    first = calibrate_gemm(_frame(NEW, 0.3).iloc[::3].reset_index(drop=True), NEW, *fitted)
    rows = _frame(NEW, 0.6).iloc[::4].reset_index(drop=True)
    second = calibrate_gemm(rows, NEW, first.manifest, first.weights)
    direct = calibrate_gemm(rows, NEW, *fitted)
    assert second.manifest == direct.manifest
    assert set(second.weights) == set(direct.weights)


def test_without_a_row_that_it_reads(fitted: Any) -> None:
    with pytest.raises(RequestError, match="no row of l40s"):
        calibrate_gemm(_frame(NEW, 0.5).assign(framework="other"), NEW, *fitted)


def test_a_new_gpu_mixes_the_trees_of_measured_ones(fitted: Any) -> None:
    frame = _frame(NEW, 0.45)
    found = calibrate_gemm(frame.iloc[stratified(frame, 24, 0)].reset_index(drop=True), NEW, *fitted)
    about = found.manifest["adapted"]["l40s|bf16"]
    assert set(about["shares"]) == {"*|bf16", "a100-sxm-80gb|bf16", "h100-sxm|bf16"}
    mixed = _error((found.manifest, found.weights), frame, NEW)
    alone = {**found.manifest, "adapted": {"l40s|bf16": {**about, "shares": {}, "offset": 0.0}}}
    assert _error((alone, found.weights), frame, NEW) != mixed
    assert "l40s" in TensorCoreGemm.from_artifact(alone, found.weights)._corrections.gpus()
    for key in about:
        cut = {**found.manifest, "adapted": {"l40s|bf16": {k: v for k, v in about.items() if k != key}}}
        with pytest.raises(SpecError, match=key):
            TensorCoreGemm.from_artifact(cut, found.weights)


def test_a_measured_gpu_keeps_its_trees_and_can_be_calibrated_again(fitted: Any) -> None:
    gpu = MEASURED["h100-sxm"]
    frame = _frame(gpu, 0.5)  # a board that is slower than the one that was measured
    few = frame.iloc[stratified(frame, 24, 0)].reset_index(drop=True)
    first = calibrate_gemm(few, gpu, *fitted)
    before, after = _error(fitted, frame, gpu), _error((first.manifest, first.weights), frame, gpu)
    assert after < 0.5 * before
    again = calibrate_gemm(few, gpu, first.manifest, first.weights)
    assert again.manifest == first.manifest
    base, weights = without(first.manifest, first.weights, gpu.id)
    assert base["cores"] == fitted[0]["cores"]
    assert base["boosters"] == fitted[0]["boosters"]
    assert set(weights) == set(fitted[1])


def test_rows_of_pytorch_count_where_the_host_is_not_in_them(fitted: Any) -> None:
    frame = _frame(NEW, 0.5).assign(
        framework="pytorch", protocol="cuda_graph", cache_state="rotating", kernel_source="eager"
    )
    assert gemm_rows(frame, NEW).all()
    eager = frame.assign(protocol="eager_events")
    np.testing.assert_array_equal(gemm_rows(eager, NEW), (frame["latency_ms"] >= 0.05).to_numpy())
    for changed in ({"cache_state": "cold"}, {"layout": "nn"}, {"kind": "bmm"}, {"framework": "other"}, {"dtype": "x"}):
        assert not gemm_rows(frame.assign(**changed), NEW).any()
    assert not gemm_rows(frame, load_gpu("p100-pcie-16gb")).any()  # it has no bf16
    assert not gemm_rows(frame.drop(columns=["kind", "layout"]), NEW).any()  # a file of other operators
    assert not attention_rows(frame, NEW).any() and not moe_rows(frame, NEW).any()
    found = calibrate_gemm(frame.iloc[::3].reset_index(drop=True), NEW, *fitted)
    served = calibrate_gemm(frame.iloc[::3].reset_index(drop=True).assign(framework="vllm"), NEW, *fitted)
    assert found.manifest == served.manifest


def test_rows_whose_weights_lay_in_the_cache_teach_no_served_call(fitted: Any) -> None:
    """Warm rows count where DRAM could not have taken long for their weights, or L2 not kept them."""
    ops = [
        Gemm("bf16", 8, 4096, 4096),  # 33 MB of weights in 96 MB of L2
        Gemm("bf16", 8, 16384, 8192),  # 268 MB: more than twice L2
        Gemm("bf16", 8192, 4096, 4096),  # its weights are nothing beside its FLOP
    ]
    frame = _frame(NEW, 0.5, ops).assign(protocol="cuda_graph", cache_state="warm", kernel_source="eager")
    for framework in ("pytorch", "vllm"):
        assert gemm_rows(frame.assign(framework=framework), NEW).tolist() == [False, True, True]
        assert gemm_rows(frame.assign(framework=framework, cache_state="rotating"), NEW).all()
    (part,) = gemm_parts(frame, {NEW.id: NEW})
    assert part.size == 2


def test_a_boards_own_rows_outweigh_a_foreign_table_of_it() -> None:
    gpu = MEASURED["h100-sxm"]
    table, own = _frame(gpu, 0.75).assign(source="table"), _frame(gpu, 0.4).assign(source="microbench")
    both = pd.concat([table, own.iloc[::5]], ignore_index=True)
    files = fit_serving.fit_gemm(both, {gpu.id: gpu}, 0)
    assert _error(files, own, gpu) < _error(files, table, gpu)
    unknown = fit_serving.fit_gemm(both.assign(source="table"), {gpu.id: gpu}, 0)
    assert _error(unknown, own, gpu) > _error(unknown, table, gpu)


def test_rows_weigh_by_the_noise_of_their_median(fitted: Any) -> None:
    """A third of the rows is three times too slow, and says that its median is not known."""
    frame = _frame(NEW, 0.45)
    few = frame.iloc[stratified(frame, 30, 0)].reset_index(drop=True)
    bad = np.arange(len(few)) % 3 == 0
    few = few.assign(latency_ms=few["latency_ms"] * np.where(bad, 3.0, 1.0), latency_std_ms=1e-6)
    errors = []
    for noise in (np.full(len(few), 0.005), np.where(bad, 1.5, 0.005)):
        told = calibrate_gemm(few.assign(noise=noise), NEW, *fitted)
        errors.append(_error((told.manifest, told.weights), frame, NEW))
    assert errors[1] < 0.5 * errors[0]
    np.testing.assert_allclose(row_errors(few.assign(noise=0.196)), np.log1p(0.1))
    np.testing.assert_allclose(row_errors(few.assign(latency_std_ms=0.1 * few["latency_ms"])), np.log1p(0.1))


def test_training_takes_pytorchs_rows_for_the_library_that_answers() -> None:
    """Those that tell of an engine, and no others."""
    rows = _frame(NEW, 0.5).assign(framework="pytorch", protocol="cuda_graph", cache_state="rotating")
    eager = rows.assign(protocol="eager_events", latency_ms=0.01)
    table = _frame(NEW, 0.5)
    taken = as_served(pd.concat([rows, eager, table], ignore_index=True), {NEW.id: NEW})
    assert len(taken) == len(rows) + len(table) and set(taken["framework"]) == {"vllm"}
    assert not len(as_served(eager, {NEW.id: NEW})) and as_served(table, {NEW.id: NEW}) is table


@pytest.mark.parametrize(
    ("gpu", "counted"),
    [
        ("a100", ("sdpa_flash",)),
        ("l40s", ("sdpa_flash",)),
        ("h100", ("sdpa_cudnn", "fa3")),
        ("b200", ("sdpa_cudnn", "fa3")),
    ],
)
def test_from_hopper_on_flash_attention_2_calibrates_no_serving_prefill(gpu: str, counted: tuple[str, ...]) -> None:
    """A serving framework prefills with kernels of the Hopper kind there, which PyTorch's flash backend is not."""
    sources = ["sdpa_flash", "sdpa_cudnn", "fa3", "sdpa_efficient", "sdpa_math"]
    frame = pd.DataFrame({
        "framework": "pytorch", "protocol": "cuda_graph", "cache_state": "warm", "op": "attention", "dtype": "bf16",
        "quant": "", "flag": "", "phase": "forward", "q_len": 512.0, "kv_len": 512.0, "batch": 1.0, "heads": 32.0,
        "kv_heads": 8.0, "head_dim": 128.0, "latency_ms": 1.0, "kernel_source": sources,
    })  # fmt: skip
    taken = attention_rows(frame, load_gpu(gpu))
    assert [name for name, own in zip(sources, taken, strict=True) if own] == list(counted)
    assert not attention_rows(frame.assign(q_len=1.0), load_gpu(gpu)).any()  # decode reads a paged cache in a framework
    assert not attention_rows(frame.assign(phase="backward"), load_gpu(gpu)).any()
    assert attention_rows(frame.assign(framework="vllm", q_len=1.0), load_gpu(gpu)).all()


def test_stratified_rows_are_distinct_and_spread() -> None:
    frame = _frame(NEW, 0.5)
    few = stratified(frame, 16, 3)
    assert len(set(few.tolist())) == 16
    assert stratified(frame, 16, 3).tolist() == few.tolist()
    flops = np.log((frame["m"] * frame["n"] * frame["k"]).to_numpy(dtype=float))
    assert np.ptp(flops[few]) > 0.6 * np.ptp(flops)
    assert len(stratified(frame, 10_000, 0)) == len(frame)


def test_a_calibration_carries_to_siblings_and_no_further(fitted: Any) -> None:
    board, near, far = (load_gpu(name) for name in ("b200-sxm", "gb300", "l40s"))
    frame = _frame(board, 0.4)
    found = calibrate_gemm(frame.iloc[stratified(frame, 32, 0)].reset_index(drop=True), board, *fitted)
    files = found.manifest, found.weights
    before, after = _error(fitted, _frame(near, 0.4), near), _error(files, _frame(near, 0.4), near)
    assert after < 0.5 * before
    rows = _frame(far, 0.4)
    assert _error(files, rows, far) == _error(fitted, rows, far)


def test_a_measured_sibling_takes_over_half_of_what_rows_say(fitted: Any) -> None:
    board, sibling = load_gpu("h100-sxm"), load_gpu("h200-sxm")
    both = pd.concat([_frame(gpu, 0.75) for gpu in (*MEASURED.values(), sibling)], ignore_index=True)
    gpus = {**MEASURED, sibling.id: sibling}
    base = fit_serving.fit_gemm(both, gpus, 0)
    slower = _frame(board, 0.5)
    found = calibrate_gemm(slower.iloc[stratified(slower, 32, 0)].reset_index(drop=True), board, *base)
    batch = make_batch("gemm", OPS, "vllm")
    files = found.manifest, found.weights
    old, new = (TensorCoreGemm.from_artifact(*each).seconds(batch, sibling) for each in (base, files))
    own = TensorCoreGemm.from_artifact(found.manifest, found.weights).seconds(batch, board)
    was = TensorCoreGemm.from_artifact(*base).seconds(batch, board)
    share = np.median(np.log(new / old)) / np.median(np.log(own / was))
    assert 0.3 < share < 0.7
    again, weights = without(found.manifest, found.weights, board.id)
    assert again["adapted"] == {} and again["boosters"] == base[0]["boosters"] and set(weights) == set(base[1])
    rows = _frame(sibling, 0.6)
    both_told = calibrate_gemm(rows.iloc[stratified(rows, 32, 0)].reset_index(drop=True), sibling, *files)
    once_more, _ = without(both_told.manifest, both_told.weights, board.id)
    assert once_more["adapted"][f"{sibling.id}|bf16"] == both_told.manifest["adapted"][f"{sibling.id}|bf16"]


def test_a_calibration_sets_out_from_what_a_measured_sibling_says() -> None:
    """GB200 is answered by B200's rows as `device_as` has it; rows that say the same leave it there."""
    known, other = load_gpu("b200-sxm"), load_gpu("gb200")
    base = fit_serving.fit_gemm(_frame(known, 0.6), {known.id: known}, 0)
    batch = make_batch("gemm", OPS, "vllm")
    said = TensorCoreGemm.from_artifact(*base).seconds(batch, other)
    rows = _frame(other, 0.6).assign(latency_ms=said * 1e3)
    found = calibrate_gemm(rows.iloc[::4].reset_index(drop=True), other, *base)
    assert found.before < 0.1 and found.after < 0.1  # %; by GB200's own clock and power it was 4
    again = TensorCoreGemm.from_artifact(found.manifest, found.weights).seconds(batch, other)
    assert np.abs(np.log(again / said)).max() < 0.01
    slower = calibrate_gemm(rows.assign(latency_ms=said * 1.3e3).iloc[::4].reset_index(drop=True), other, *base)
    moved = TensorCoreGemm.from_artifact(slower.manifest, slower.weights).seconds(batch, other)
    assert np.median(moved / said) == pytest.approx(1.3, rel=0.03)


def test_rows_that_repeat_what_is_known_change_nothing_much(fitted: Any) -> None:
    gpu = MEASURED["h100-sxm"]
    frame = _frame(gpu, 0.75)
    noisy = frame.assign(latency_ms=frame["latency_ms"] * np.random.default_rng(0).normal(1.0, 0.05, len(frame)))
    before = _error(fitted, frame, gpu)
    for seed in range(4):
        few = noisy.iloc[stratified(noisy, 16, seed)].reset_index(drop=True)
        found = calibrate_gemm(few, gpu, *fitted)
        assert _error((found.manifest, found.weights), frame, gpu) < before + 0.02
