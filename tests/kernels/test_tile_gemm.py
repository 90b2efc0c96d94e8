"""The fp32 GEMM estimator: its bounds, its answers to shapes, its fit on rows made up from its own formula."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from predictor.errors import SpecError
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import make_batch
from predictor.kernels.device import POWER_NEED, STATIC, loop_share, read_share, sustained_share
from predictor.kernels.fitting.family import of_cores
from predictor.kernels.gemm_fp32.core import (
    LAYOUTS,
    LIBRARIES,
    REACH,
    SPLITS,
    TILES,
    BoardConstants,
    Constants,
    consensus,
    expected_seconds,
    layout_indices,
    library_of,
    nearest_library,
)
from predictor.kernels.gemm_fp32.estimator import Fp32Gemm
from predictor.kernels.gemm_fp32.fit import fit_tile_gemm, libraries_of, tile_indices
from predictor.kernels.gemm_fp32.tile_transfer import fill_rates, power_need, ruled
from predictor.ops import Gemm
from predictor.ops.roofline import roofline

GPUS = ("v100-pcie-32gb", "a100-pcie-40gb")
KERNEL = {"v100-pcie-32gb": "volta_sgemm_", "a100-pcie-40gb": "ampere_sgemm_"}


def constants(**other: Any) -> Constants:
    """Of a library, near those of real boards, made up."""
    shape = (len(LAYOUTS), len(TILES))
    made = {
        "efficiency": np.broadcast_to(np.linspace(0.95, 0.6, len(TILES)), shape), "penalty": np.ones(shape),
        "split_penalty": np.ones((len(LAYOUTS), len(SPLITS))), "prologue": np.full(len(TILES), 10.0),
        "lonely": np.full(len(TILES), 0.2), "unaligned": 0.02, "reread": 0.2, "narrow": 0.2, "straddle": 0.2,
        "strain": 0.0, "memory": 0.85, "write_out": 0.2, "norm": 4.0, "quantization": 0.8, "fixed_s": 2e-6,
        "split_s": 8e-6,
    }  # fmt: skip
    return Constants(**{**made, **other})


def artifact(*measured: str, **of_library: Constants) -> dict[str, Any]:
    """A manifest of the libraries ``measured`` (none named: of all), some with constants ``of_library``."""
    cores = {f"*|{name}|fp32": of_library.get(name, constants()) for name in measured or LIBRARIES}
    return {
        "kind": "tile_gemm", "name": "tile_gemm", **of_cores(cores, {}, {}),
        "boards": {
            gpu: BoardConstants(*shares).to_manifest()
            for gpu, shares in zip(reversed(GPUS), ((0.9, 1.0), (0.98, 0.9)), strict=True)
        },
        "power_need": {**POWER_NEED, "ampere": 13.0}, "libraries": {"ampere 8": "ampere", "volta 7": "volta"},
        "eager_overhead_s": {layout: {"v100-pcie-32gb": [4e-5, 3e-5]} for layout in LAYOUTS},
    }  # fmt: skip


def made(manifest: dict[str, Any]) -> Fp32Gemm:
    return Fp32Gemm.from_artifact(json.loads(json.dumps(manifest)), {})


@pytest.fixture
def estimator() -> Fp32Gemm:
    return made(artifact())


def latency(estimator: Fp32Gemm, gpu: GPUSpec, *ops: Gemm) -> np.ndarray:
    bound = roofline(ops, gpu).lower_bound_s
    return np.maximum(bound, estimator.seconds(make_batch("gemm", ops), gpu))


SHAPES = [
    Gemm("fp32", 1, 1, 1), Gemm("fp32", 8192, 8192, 8192), Gemm("fp32", 1, 50257, 1600), Gemm("fp32", 7, 13, 60000),
    Gemm("fp32", 2048, 2048, 64, 96, "bmm", layout="nn"), Gemm("fp32", 1024, 1024, 4096, layout="nt"),
    Gemm("fp32", 64, 3072, 768, 4, "grouped"),
]  # fmt: skip


@pytest.mark.parametrize("gpu", [*GPUS, "a100-pcie-80gb", "t4", "p4", "h100-sxm", "l4", "rtx-4090", "a40"])
def test_no_answer_beats_the_roofline_on_any_gpu(estimator: Fp32Gemm, gpu: str) -> None:
    spec = load_gpu(gpu)
    times = latency(estimator, spec, *SHAPES)
    assert np.isfinite(times).all()
    assert (times > 1.01 * roofline(SHAPES, spec).lower_bound_s).all()  # not clipped


def test_rows_cost_time_where_compute_bounds(estimator: Fp32Gemm) -> None:
    ops = [Gemm("fp32", m, 4096, 4096) for m in (1024, 2048, 4096, 8192, 16384)]
    times = latency(estimator, load_gpu("v100-pcie-32gb"), *ops)
    assert (np.diff(times) > 0.0).all()
    assert times[-1] / times[-2] == pytest.approx(2.0, rel=0.05)


def test_one_more_wave_costs_a_step(estimator: Fp32Gemm) -> None:
    """80 SMs: 80 tiles of 128x128 fill one wave; one row more starts another."""
    full = Gemm("fp32", 1280, 1024, 4096, layout="tn")
    more = replace(full, m=1281)
    times = latency(estimator, load_gpu("v100-pcie-32gb"), full, more)
    assert times[1] > 1.05 * times[0]


def test_a_batch_answers_as_its_operators_do(estimator: Fp32Gemm) -> None:
    gpu = load_gpu("a100-pcie-40gb")
    together = latency(estimator, gpu, *SHAPES)
    alone = [latency(estimator, gpu, op)[0] for op in SHAPES]
    assert together == pytest.approx(alone, rel=1e-12)


def test_layouts_pick_kernels() -> None:
    ops = (Gemm("fp32", 8, 8, 8), Gemm("fp32", 8, 8, 8, 2, "bmm"), Gemm("fp32", 8, 8, 8, layout="nn"))
    assert layout_indices(ops).tolist() == [0, 1, 2]


def test_libraries_follow_the_architecture() -> None:
    names = ("p100-pcie-16gb", "t4", "a100-sxm-80gb", "h100-sxm", "rtx-5090")
    assert [LIBRARIES[library_of(load_gpu(n))] for n in names] == ["maxwell", "volta", "ampere", "ampere", "ampere"]


def test_power_limits_an_unseen_board() -> None:
    l4, h100 = load_gpu("l4"), load_gpu("h100-sxm")
    assert sustained_share(load_gpu("a100-sxm-80gb"), POWER_NEED) == 1.0
    assert sustained_share(h100, POWER_NEED) == pytest.approx(2 / 3)
    need = l4.peak_flops("fp32") / 1e12 * 5.45  # W at the boost clock
    share = sustained_share(l4, POWER_NEED)
    clock = share / loop_share(l4)
    assert need * (STATIC + (1 - STATIC) * clock**3) == pytest.approx(72) and 0.4 < share < 0.5
    assert sustained_share(replace(l4, power_limit_w=200.0), POWER_NEED) == pytest.approx(2 / 3)


def test_a_published_board_gives_its_own_figure() -> None:
    """cuBLAS at 4096^3 on RTX A6000: 23.2 TFLOP/s, 0.98 of what power and registers leave; A10, its chip at 150 W."""
    a6000, a10 = load_gpu("rtx-a6000"), load_gpu("a10")
    assert 0.98 * sustained_share(a6000, POWER_NEED) * a6000.peak_flops("fp32") == pytest.approx(23.2e12, rel=0.01)
    per_watt = [sustained_share(g, POWER_NEED) * g.peak_flops("fp32") / g.power_limit_w for g in (a6000, a10)]
    assert per_watt[0] < per_watt[1]  # a lower clock, a lower voltage


def test_registers_bound_only_sms_whose_schedulers_feed_32_lanes_from_two_banks() -> None:
    """64 multiply-adds a thread: 16 clocks of 128 lanes, 24 of 8 operands a clock; P4 has 16 operands, T4 64 lanes."""
    assert [loop_share(load_gpu(g)) for g in ("v100-pcie-32gb", "t4", "p4", "p100-pcie-16gb", "a100-pcie-40gb")] == [
        1.0
    ] * 5
    for name in ("a40", "l40s", "h100-pcie", "b200-sxm", "b300-sxm", "rtx-5090"):
        assert loop_share(load_gpu(name)) == pytest.approx(2 / 3)


def test_shared_memory_and_issue_slots_bound_where_they_are_scarce() -> None:
    a40 = load_gpu("a40")
    assert loop_share(replace(a40, register_operands_per_clock=None)) == pytest.approx(64.0 / 69.3)
    narrow = replace(a40, register_operands_per_clock=None, shared_memory_bytes_per_clock=12)
    assert loop_share(narrow) == pytest.approx(16 / 32)  # 384 bytes of a step
    assert loop_share(replace(a40, lanes_per_sm=None)) == 1.0


def test_published_products_on_boards_that_nobody_measured() -> None:
    """cuBLAS at 4096^3 (walk-throughs, clocks unknown): RTX A6000 23.2 TFLOP/s, RTX 4090 47.6; issue alone says 74."""
    estimator = load_artifacts().select("gemm", "fp32")
    assert isinstance(estimator, Fp32Gemm)
    for name, published in (("rtx-a6000", 23.2), ("rtx-4090", 47.6)):
        seconds = latency(estimator, load_gpu(name), Gemm("fp32", 4096, 4096, 4096, layout="nn"))[0]
        assert 2 * 4096**3 / seconds / 1e12 == pytest.approx(published, rel=0.15)


def test_no_generation_inherits_a_choice_of_kernels_without_rows(estimator: Fp32Gemm) -> None:
    names = ("v100-sxm-16gb", "t4", "a100-pcie-80gb", "a40", "p4", "l4", "h100-sxm", "b200-sxm")
    measured = ["v100-sxm-16gb", "a100-pcie-80gb", "a40"]
    assert [name for name in names if estimator.measured(load_gpu(name))] == measured
    penalty = np.ones((len(LAYOUTS), len(TILES)))
    penalty[:, 0] = 50.0  # Ampere's library does not take its largest tile; Ada's may
    other = made(artifact(ampere=constants(penalty=penalty)))
    a40, l4 = (
        latency(other, load_gpu(name), *SHAPES) / latency(estimator, load_gpu(name), *SHAPES) for name in ("a40", "l4")
    )
    assert a40.max() > 1.05
    assert l4 == pytest.approx(1.0)


def test_a_library_without_kernels_takes_the_nearest() -> None:
    none = constants(efficiency=np.zeros((len(LAYOUTS), len(TILES))))
    for manifest in (artifact("volta", "ampere"), artifact(maxwell=none)):
        assert np.isfinite(latency(made(manifest), load_gpu("p4"), *SHAPES)).all()


def test_a_library_without_kernels_is_between_its_slowest_and_fastest_candidates() -> None:
    """What nobody measured is a mean over what the measured libraries might pick, so never below the best of it."""
    gpu = load_gpu("a100-pcie-80gb")
    fastest = latency(made(artifact()), gpu, *SHAPES)
    manifest = artifact("maxwell", "volta")  # Ampere's is lacking; the others have the same kernels here
    del manifest["libraries"]["ampere 8"]
    unseen = latency(made(manifest), gpu, *SHAPES)
    assert (unseen >= fastest * (1.0 - 1e-9)).all()
    assert (unseen[1:] > fastest[1:]).any()
    assert (unseen < 3.0 * fastest).all()


def test_nearest_library() -> None:
    measured = np.array([True, False, True])
    assert [nearest_library(measured, i) for i in range(3)] == [0, 2, 2]
    assert nearest_library(np.array([True, False, False]), 2) == 0


def test_consensus_is_over_the_libraries_that_have_the_kernel() -> None:
    first, last = np.zeros((2, 8)), np.zeros((2, 8))
    first[0, 1], last[0, 1], last[0, 4] = 0.4, 0.9, 0.7
    penalty, split = np.full((2, 8), 3.0), np.ones((2, len(SPLITS)))
    libraries = [
        constants(efficiency=rates, penalty=penalty, split_penalty=factor * split)
        for rates, factor in ((first, 1.0), (last, 4.0))
    ]
    found = consensus(libraries, libraries[1])
    assert found.efficiency[0, 1] == pytest.approx(0.6) and found.efficiency[0, 4] == pytest.approx(0.7)
    assert np.count_nonzero(found.efficiency) == 2
    assert (found.penalty == 1.0).all() and found.split_penalty == pytest.approx(np.full((2, len(SPLITS)), 2.0))


def test_a_product_that_is_not_batched_splits_a_long_k_however_its_operands_lie() -> None:
    """Rows of batched products never split K: what they teach of split factors holds for no single product."""
    never = np.ones((len(LAYOUTS), len(SPLITS)))
    never[1, 1:] = 30.0
    estimator = made(artifact(volta=constants(split_penalty=never)))
    gpu, long = load_gpu("v100-pcie-32gb"), Gemm("fp32", 256, 256, 131072, layout="tn")
    tn, nn = latency(estimator, gpu, long, replace(long, layout="nn"))
    (batched,) = latency(estimator, gpu, replace(long, kind="bmm", batch=2, layout="nn"))
    assert nn == pytest.approx(tn, rel=0.1)
    assert batched > 2.5 * nn
    # Where linear layers never split it, neither does a single product, whatever batches do.
    (whole,) = latency(
        made(artifact(volta=constants(split_penalty=never[::-1].copy()))), gpu, replace(long, layout="nn")
    )
    assert whole > 1.5 * nn


def test_an_expected_time_becomes_the_fastest_as_the_choice_sharpens() -> None:
    seconds = np.array([[1e-3, 2e-3, 9e-3], [4e-3, 1e-3, 1e-3]])
    score = np.array([[1e-3, 2e-3, np.inf], [4e-3, 1e-3, 1e-3]])  # the third of the first is not allowed
    assert expected_seconds(seconds, score, 1e-6)[0] == pytest.approx(1e-3 * 2.0**0.5, rel=1e-4)
    assert expected_seconds(seconds, score, 200.0) == pytest.approx([1e-3, 1e-3])
    assert (np.diff([expected_seconds(seconds, score, s)[0] for s in (1e-6, 1.0, 5.0, 20.0)]) < 0.0).all()


def test_strain_slows_only_where_both_operands_are_large() -> None:
    near, far = made(artifact()), made(artifact(volta=constants(strain=2.0)))
    k = int(REACH / 4 / 4096)  # 4096 rows of it are REACH bytes
    ops = [Gemm("fp32", 512, 4096, 1024), Gemm("fp32", 64, 65536, k), Gemm("fp32", 4096, 4096, k)]
    gpu = load_gpu("v100-pcie-32gb")
    ratio = latency(far, gpu, *ops) / latency(near, gpu, *ops)
    assert (ratio[:2] < 1.02).all()
    assert ratio[2] == pytest.approx(2.0, rel=0.05)  # half of the strain


def test_the_launch_is_kept_apart(estimator: Fp32Gemm) -> None:
    kernel = np.array([1e-6, 1e-3])
    assert estimator.eager_seconds(kernel, "v100-pcie-32gb").tolist() == [4e-5, 3e-5 + 1e-3]
    assert estimator.eager_seconds(kernel, "unheard-of").tolist() == [4e-5, 3e-5 + 1e-3]


def test_an_artifact_of_other_tiles_or_none_is_refused() -> None:
    manifest = artifact()
    manifest["cores"]["*|volta|fp32"]["prologue"] = {"1x1": 16.0}
    with pytest.raises(SpecError, match="1x1; expected 128x128"):
        made(manifest)
    with pytest.raises(SpecError, match="no constants"):
        made({**artifact(), "cores": {}})


def test_kernel_names_give_tiles() -> None:
    names = pd.Series(["ampere_sgemm_128x64_tn", "volta_sgemm_32x32_sliced1x4_nn", "cutlass_gemm", "sgemm_256x8_tn"])
    found = tile_indices(names)
    assert [TILES[i].name if i >= 0 else "" for i in found] == ["128x64", "32x32s", "", ""]


def made_up_rows(rows: int = 400) -> pd.DataFrame:
    """Rows of the measurement schema whose latency comes from a simple law, the kernel always 128x64."""
    random = np.random.default_rng(3)
    parts = []
    for gpu in GPUS:
        spec = load_gpu(gpu)
        m, n, k = (random.integers(256, 6000, rows) for _ in range(3))
        waves = np.ceil(np.ceil(m / 64) * np.ceil(n / 128) / spec.sm_count)
        seconds = waves * 2 * 128 * 64 * (k + 16) / (0.9 * spec.peak_flops("fp32") / spec.sm_count)
        columns = {
            "op": "gemm", "dtype": "fp32", "gpu": gpu, "flag": "", "split": "train", "batch": np.nan, "m": m, "n": n,
            "k": k, "kind": "linear", "layout": "tn", "latency_ms": (seconds + 4e-5) * 1e3, "grid_z": 1.0,
            "kernel_name": KERNEL[gpu] + "128x64_tn", "grid_x": np.ceil(n / 128), "grid_y": np.ceil(m / 64),
        }  # fmt: skip
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def fitted() -> tuple[dict[str, Any], dict[str, np.ndarray], pd.DataFrame]:
    frame = made_up_rows()
    return (*fit_tile_gemm(frame, {g: load_gpu(g) for g in GPUS}, seed=0), frame)


def test_a_fit_finds_the_law_back(fitted: tuple[dict[str, Any], dict[str, np.ndarray], pd.DataFrame]) -> None:
    manifest, weights, frame = fitted
    estimator = Fp32Gemm.from_artifact(manifest, weights)
    for gpu in GPUS:
        own = frame[frame["gpu"] == gpu]
        ops = [Gemm("fp32", *(int(v) for v in row)) for row in own[["m", "n", "k"]].to_numpy()]
        kernel = latency(estimator, load_gpu(gpu), *ops)
        seen = estimator.eager_seconds(kernel, gpu)
        error = np.abs(seen / (own["latency_ms"].to_numpy() * 1e-3) - 1.0)
        assert np.median(error) < 0.05


def test_a_fit_is_the_same_to_the_byte(
    fitted: tuple[dict[str, Any], dict[str, np.ndarray], pd.DataFrame],
) -> None:
    manifest, weights, frame = fitted
    again, arrays = fit_tile_gemm(frame, {g: load_gpu(g) for g in GPUS}, seed=0)
    assert again == manifest
    assert {k: v.tobytes() for k, v in arrays.items()} == {k: v.tobytes() for k, v in weights.items()}


def test_test_rows_and_other_dtypes_are_not_fitted() -> None:
    frame = made_up_rows(20)
    frame["split"] = "test"
    with pytest.raises(SpecError, match="no fp32 gemm rows"):
        fit_tile_gemm(frame, {g: load_gpu(g) for g in GPUS})


def test_power_need_comes_from_boards_that_slow_down() -> None:
    t4, v100 = load_gpu("t4"), load_gpu("v100-pcie-32gb")
    need = power_need([t4, v100], np.array([0.5, 1.0]))
    assert need["turing"] == pytest.approx(70 / 8.1 / 0.5)
    assert need["volta"] == pytest.approx(250 / 14)
    assert need["ampere"] == POWER_NEED["ampere"]


def test_boards_that_held_their_clock_do_not_raise_the_need() -> None:
    """P100 has 27 W per TFLOP/s and holds: that is no reason to think that Pascal needs them all."""
    p100 = load_gpu("p100-pcie-16gb")
    assert power_need([p100], np.array([1.0]))["pascal"] == POWER_NEED["pascal"]


def test_a_board_that_power_holds_has_the_clock_of_the_rule_and_not_of_its_session() -> None:
    t4, v100 = load_gpu("t4"), load_gpu("v100-pcie-32gb")
    assert ruled([t4, v100], np.array([0.4, 0.9])).tolist() == [sustained_share(t4, POWER_NEED), 0.9]


def test_rates_nobody_measured_follow_tile_and_library() -> None:
    """Libraries 1.2 times apart, tiles from fast to slow: a kernel left out comes back near its product."""
    tiles = np.linspace(0.0, -0.5, 8)
    truth = np.broadcast_to(tiles, (3, 2, 8)) + np.log(1.2) * np.array([0.0, -1.0, 0.0])[:, None, None]
    known = np.ones((3, 2, 8), dtype=bool)
    known[0], known[1, 0, 5] = False, False
    found = fill_rates(np.where(known, truth, 9.0), known)
    assert found[known] == pytest.approx(truth[known])
    assert found[1, 0, 5] == pytest.approx(truth[1, 0, 5], abs=0.05)
    assert found[0, 0] == pytest.approx(0.5 * (truth[1, 0] + truth[2, 0]), abs=0.05)


def test_a_boards_library_is_what_its_rows_name() -> None:
    gpus = [load_gpu("t4"), load_gpu("a100-pcie-40gb"), load_gpu("p4")]
    names = pd.Series(["volta_sgemm_128x64_tn", "volta_sgemm_64x64_nn", "maxwell_sgemm_128x64_tn", "sgemm_32x32x32_NN"])
    found = libraries_of(names, np.array([0, 0, 1, 2]), gpus)
    assert [LIBRARIES[i] for i in found] == ["volta", "maxwell", "maxwell"]  # A100's rows go before its architecture
    assert [LIBRARIES[i] for i in libraries_of(None, np.array([0]), gpus)] == ["volta", "ampere", "maxwell"]


def test_products_of_few_rows_are_streamed() -> None:
    """One row takes the bytes of its matrix; up to four do where K lies along both; more, and odd K, take tiles."""
    estimator = load_artifacts().select("gemm", "fp32")
    assert isinstance(estimator, Fp32Gemm)
    for name in ("b200", "h100", "l4"):
        gpu = load_gpu(name)
        ops = [Gemm("fp32", m, 8192, k, layout=layout) for m, k, layout in (
            (1, 8192, "tn"), (1, 8192, "nn"), (4, 8192, "tn"), (1, 8191, "tn"), (8, 8192, "tn"),
        )]  # fmt: skip
        seconds = estimator.seconds(make_batch("gemm", ops), gpu)
        of_bytes = np.array([op.bytes_moved() for op in ops]) / (gpu.memory_bandwidth * read_share(gpu))
        assert np.all(seconds[:4] < of_bytes[:4] + 4e-6) and np.all(seconds >= of_bytes)
        assert seconds[4] > of_bytes[4] + 4e-6
        odd = estimator.seconds(
            make_batch("gemm", [Gemm("fp32", 4, 8192, 8191), Gemm("fp32", 4, 8192, 8192, kind="bmm")]), gpu
        )
        assert np.all(odd > seconds[2] * 1.05)


def test_a_larger_board_does_no_less_at_the_same_watts() -> None:
    for name in ("l4", "rtx-4090", "h100"):
        gpu = load_gpu(name)
        done = []
        for factor in (1.0, 1.5, 2.0, 3.0, 5.0, 20.0):
            peak = gpu.peak_flops("fp32") * factor
            larger = replace(gpu, peaks={**gpu.peaks, ("vector", "fp32"): peak})
            done.append(sustained_share(larger, POWER_NEED) * peak)
        assert np.all(np.diff(done) >= -1e-9 * done[0])
