"""The estimator of memory-bound operators: its bounds, its traffic against hand counts, its fit on made-up rows."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from predictor.errors import SpecError
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import make_batch
from predictor.kernels.memory_bound.core import traffic_of
from predictor.kernels.memory_bound.estimator import FAMILIES, MemoryBound
from predictor.kernels.memory_bound.fit import START, fit_memory_bound, share_by_architecture, share_by_type
from predictor.ops import (
    Copy,
    CrossEntropy,
    Dropout,
    Elementwise,
    Embedding,
    Norm,
    Op,
    OptimizerStep,
    Reduce,
    Rotary,
    Routing,
    Softmax,
)  # fmt: skip
from predictor.ops.roofline import roofline

GPUS = ("v100-pcie-32gb", "a100-pcie-40gb")
KERNELS = ("sarathi", "vllm", "sglang", "trtllm", "pytorch")


def artifact() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The fit's starting point as an artifact."""
    overhead = {op: {"v100-pcie-32gb": [4e-5, 2e-5]} for op in ("elementwise", "softmax", "norm")}
    manifest = {
        "kind": "memory_bound", "name": "memory_bound", "boards": ["v100-pcie-32gb"], "constants": asdict(START),
        "share_by_architecture": {}, "calibrated": {},
        "share_by_memory_type": {"HBM2": 0.9, "GDDR6": 0.75}, "hold_by_architecture": {"volta": 0.9},
        "eager_overhead_s": overhead,
    }  # fmt: skip
    return manifest, {"boards": np.array([[0.9, 0.8]])}


@pytest.fixture
def estimator() -> MemoryBound:
    return MemoryBound.from_artifact(*artifact())


def latency(estimator: MemoryBound, gpu: GPUSpec, *ops: Op) -> np.ndarray:
    bound = roofline(ops, gpu).lower_bound_s
    return np.maximum(bound, estimator.seconds(make_batch(ops[0].family, ops), gpu))


ONE_OF_EACH: list[Op] = [
    Elementwise("fp32", "add", 1 << 26), Elementwise("fp32", "gelu", 1), Dropout("bf16", 1 << 20),
    Reduce("fp32", 4096, 4096), Softmax("fp32", 1 << 16, 1024), Softmax("fp32", 3, 50257),
    Softmax("fp32", 1 << 12, 2048, "backward"), Norm("fp32", 8192, 1024), Norm("bf16", 1, 8192, "rms", residual=True),
    Norm("fp32", 8192, 1024, phase="backward"), Embedding("fp32", 8192, 1024, 50257),
    Embedding("fp32", 8192, 1024, 50257, "backward"), CrossEntropy("fp32", 8192, 50257),
    CrossEntropy("fp32", 8192, 50257, "backward"), Rotary("bf16", 4096, 40, 128), OptimizerStep("fp32", 10**9),
    Copy("fp32", 1 << 30), Routing("bf16", 4096, 8, 2),
]  # fmt: skip


@pytest.mark.parametrize("gpu", [*GPUS, "t4", "p4", "h100-sxm", "rtx-4090", "mi300x", "b60"])
@pytest.mark.parametrize("op", ONE_OF_EACH, ids=lambda op: f"{op.family}-{op.dtype}")
def test_the_formula_itself_keeps_to_the_hardware(gpu: str, op: Op) -> None:
    """Before anything is clipped: later than the roofline, and within a hundred times that and 40 microseconds a
    kernel (three long rows of a softmax leave most of a GPU idle)."""
    spec = load_gpu(gpu)
    estimator = MemoryBound.from_artifact(*artifact())
    seconds = estimator.seconds(make_batch(op.family, [op]), spec)[0]
    bound = roofline([op], spec).lower_bound_s[0]
    assert bound < seconds < 100.0 * bound + 40e-6 * op.kernels()


def test_every_family_has_an_operator_here() -> None:
    assert {op.family for op in ONE_OF_EACH} == set(FAMILIES)


def test_a_large_sum_runs_at_the_share_of_bandwidth(estimator: MemoryBound) -> None:
    gpu = load_gpu("v100-pcie-32gb")
    time = latency(estimator, gpu, Elementwise("fp32", "add", 1 << 28))[0]
    assert time == pytest.approx(3 * 4 * (1 << 28) / (0.9 * gpu.memory_bandwidth) + START.fixed_s, rel=1e-6)


def test_what_fits_l2_does_not_wait_for_dram(estimator: MemoryBound) -> None:
    gpu = load_gpu("v100-pcie-32gb")
    elements = int(0.1 * gpu.l2_bytes / 12)
    time = latency(estimator, gpu, Elementwise("fp32", "add", elements))[0]
    assert time - START.fixed_s < 12 * elements / gpu.memory_bandwidth


def test_softmax_reads_again_above_1024_columns() -> None:
    gpu = load_gpu("v100-pcie-32gb")
    traffic = traffic_of(make_batch("softmax", [Softmax("fp32", 4096, c) for c in (1024, 2048)]), gpu)
    assert traffic.once.tolist() == [2 * 4 * 4096 * 1024, 2 * 4 * 4096 * 2048]
    assert traffic.reread.tolist() == [0.0, 2 * 4 * 4096 * 2048]
    assert traffic.warp.tolist() == [1024.0, 0.0]
    assert traffic.softmax.tolist() == [0.0, 3 * 2048]  # 256 threads x 4 elements, two whole steps, three passes
    assert traffic.footprint[1] == 80 * 8 * 2048 * 4  # 80 SMs hold 2048 / 256 blocks each


def test_a_ragged_row_takes_more_steps() -> None:
    gpu = load_gpu("v100-pcie-32gb")
    traffic = traffic_of(make_batch("softmax", [Softmax("fp32", 4096, 1600)]), gpu)
    assert traffic.softmax.tolist() == [3 * 4 * 1024]  # one whole step, three of single elements


def test_layer_norm_backward_is_two_kernels_that_read_twice() -> None:
    gpu = load_gpu("v100-pcie-32gb")
    forward, backward = Norm("fp32", 4096, 1024), Norm("fp32", 4096, 1024, phase="backward")
    one = 4096 * 1024 * 4.0
    traffic = traffic_of(make_batch("norm", [forward, backward]), gpu)
    assert traffic.once[0] == forward.bytes_moved()
    assert traffic.once[1] == backward.bytes_moved() + 2 * one  # the parameters' gradient reads x and dy again
    assert traffic.reread[1] == 2 * one
    assert traffic.kernels.tolist() == [1.0, 2.0]
    assert traffic.norm.tolist() == [2 * 1024.0, 4 * 1024.0]


def test_long_rows_fall_out_of_l2(estimator: MemoryBound) -> None:
    """V100 holds 80 x 16 rows in flight: rows of 4 KiB fit its 6 MiB, rows of 64 KiB do not."""
    gpu = load_gpu("v100-pcie-32gb")
    ops = [Norm("fp32", 1 << 17, 512), Norm("fp32", 1 << 13, 8192)]
    times = latency(estimator, gpu, *ops)
    assert times[1] > 1.2 * times[0]


def test_few_rows_take_as_long_as_enough_to_fill_the_gpu(estimator: MemoryBound) -> None:
    gpu = load_gpu("v100-pcie-32gb")
    one, many, more = latency(estimator, gpu, *(Norm("fp32", rows, 4096) for rows in (1, 64, 1 << 15)))
    assert one == pytest.approx(many, rel=0.3)
    assert more > 10 * many


def test_an_unseen_gpu_goes_by_its_memory_type(estimator: MemoryBound) -> None:
    assert estimator.board(load_gpu("t4"))[0] == pytest.approx(0.75)
    h100 = load_gpu("h100-sxm")
    assert estimator.board(h100) == (pytest.approx(0.9), 0.8)  # HBM3: the median


def test_neighbours_far_apart_cost_a_fetch_an_element(estimator: MemoryBound) -> None:
    """32 heads between neighbours of one operand of a sum: 64 bytes an element of it where L2 forgot the others."""
    v100, n = load_gpu("v100-pcie-32gb"), 2**27
    plain = Elementwise("fp32", "add", n)
    strided = replace(plain, stride_bytes=128.0, reuse_bytes=1e9)
    near = replace(strided, reuse_bytes=1e4)
    times = latency(estimator, v100, plain, strided, near)
    assert times[1] / times[0] == pytest.approx((4 + 4 + 64) / 12, rel=0.02)
    assert times[0] < times[2] < times[1] / 2  # whole sectors still have to come from L2
    narrow = replace(strided, stride_bytes=8.0)
    assert latency(estimator, v100, narrow)[0] / times[0] == pytest.approx(16 / 12, rel=0.02)


def test_a_mask_is_read_again_where_l2_has_forgotten_it(estimator: MemoryBound) -> None:
    v100, n, mask = load_gpu("v100-pcie-32gb"), 2**27, 2**22 * 4.0
    plain = Elementwise("fp32", "add", n, 1, mask)
    again = replace(plain, again_bytes=4.0 * n - mask, reuse_bytes=3 * mask)
    held = replace(again, reuse_bytes=1e5)
    times = latency(estimator, v100, plain, again, held)
    assert times[1] / times[0] == pytest.approx(12 / 8, rel=0.05)
    assert times[2] == pytest.approx(times[0], rel=0.01)


def test_a_look_up_is_bound_by_its_elements_on_a_fast_board(estimator: MemoryBound) -> None:
    """As many cycles an element on every SM: HBM does not help, and half the bytes take as long."""
    a100 = load_gpu("a100-sxm-80gb")
    wide, narrow = Embedding("fp32", 65536, 4096, 50000), Embedding("fp16", 65536, 4096, 50000)
    expected = 65536 * 4096 * estimator.const.gather / (a100.sm_count * a100.boost_clock_hz)
    times = latency(estimator, a100, narrow, wide)
    assert times[0] == pytest.approx(expected, rel=0.1)
    assert times[1] == pytest.approx(times[0], rel=0.3)
    picked = Elementwise("fp16", "gather", 65536 * 4096)
    assert latency(estimator, a100, picked)[0] == pytest.approx(expected, rel=0.1)


def test_a_pascal_board_goes_by_pascal() -> None:
    boards = [load_gpu(name) for name in ("p4", "v100-pcie-32gb")]
    assert share_by_architecture(boards, np.array([0.7, 0.9])) == {"pascal": 0.7}
    assert share_by_architecture(boards[1:], np.array([0.9])) == {}
    manifest, weights = artifact()
    known = MemoryBound.from_artifact({**manifest, "share_by_architecture": {"pascal": 0.7}}, weights)
    p100 = load_gpu("p100-pcie-16gb")
    assert known.board(p100)[0] == pytest.approx(0.7)


def test_the_launch_is_kept_apart(estimator: MemoryBound) -> None:
    kernel = np.array([1e-6, 1e-3])
    assert estimator.eager_seconds(kernel, "v100-pcie-32gb", "elementwise").tolist() == [4e-5, 2e-5 + 1e-3]
    assert estimator.eager_seconds(kernel, "unheard-of", "norm").tolist() == [4e-5, 2e-5 + 1e-3]


def test_an_incomplete_artifact_is_refused() -> None:
    manifest, weights = artifact()
    with pytest.raises(SpecError, match="incomplete"):
        MemoryBound.from_artifact(manifest, {})
    with pytest.raises(SpecError, match="expected warp_row"):
        MemoryBound.from_artifact({**manifest, "constants": ["norm"]}, weights)


def made_up_rows(rows: int = 150) -> pd.DataFrame:
    """Element-wise, softmax and norm rows that stream at 80 % of the bandwidth after a launch of 20 microseconds."""
    random = np.random.default_rng(5)
    parts = []
    for gpu in GPUS:
        bandwidth = load_gpu(gpu).memory_bandwidth
        n, c = random.integers(1 << 9, 1 << 16, rows), random.choice([256, 512, 1024], rows)
        kernel = 8.0 * n * c / (0.8 * bandwidth)
        common = {
            "gpu": gpu, "dtype": "fp32", "protocol": "eager_events", "flag": "", "split": "train",
            "latency_ms": np.maximum(3e-5, 2e-5 + kernel) * 1e3,
        }  # fmt: skip
        parts.append(pd.DataFrame({"op": "elementwise", "fn": "relu", "elements": n * c, **common}))
        parts.append(pd.DataFrame({"op": "softmax", "rows": n, "cols": c, "phase": "forward", **common}))
        parts.append(pd.DataFrame({"op": "norm", "rows": n, "cols": c, "kind": "layer", "phase": "forward", **common}))
    return pd.concat(parts, ignore_index=True)


def test_a_fit_finds_the_share_back_and_is_the_same_to_the_byte() -> None:
    frame, gpus = made_up_rows(), {g: load_gpu(g) for g in GPUS}
    manifest, weights = fit_memory_bound(frame, gpus, seed=0)
    estimator = MemoryBound.from_artifact(manifest, weights)
    for gpu in GPUS:
        assert estimator.board(gpus[gpu])[0] == pytest.approx(0.8, rel=0.05)
    again, arrays = fit_memory_bound(frame, gpus, seed=0)
    assert again == manifest
    assert {k: v.tobytes() for k, v in arrays.items()} == {k: v.tobytes() for k, v in weights.items()}


def traced_rows(rows: int = 80) -> pd.DataFrame:
    """bf16 sums at 70 % of an A40's bandwidth, and rotary kernels at 5 % of its L2 limit, as a profiler sees them."""
    spec = load_gpu("a40")
    random = np.random.default_rng(7)
    elements, tokens = random.integers(1 << 25, 1 << 28, rows), random.integers(1 << 10, 1 << 16, rows)
    common = {"gpu": "a40", "dtype": "bf16", "framework": "sarathi", "protocol": "profiler", "flag": "", "split": ""}
    moved = np.array([Rotary("bf16", int(t), 40, 128).bytes_moved() for t in tokens])
    sums = {"latency_ms": (6.0 * elements / (0.7 * spec.memory_bandwidth) + START.fixed_s) * 1e3}
    turns = {"latency_ms": (moved / (0.05 * spec.l2_bandwidth) + START.fixed_s) * 1e3}
    add = pd.DataFrame({"op": "elementwise", "fn": "add", "elements": elements, **common, **sums})
    rotary = pd.DataFrame({"op": "rotary", "tokens": tokens, "heads": 40, "head_dim": 128, **common, **turns})
    return pd.concat([add, rotary], ignore_index=True)


def test_a_gpu_known_from_traces_alone_adds_its_share() -> None:
    frame = pd.concat([made_up_rows(), traced_rows()], ignore_index=True)
    manifest, weights = fit_memory_bound(frame, {g: load_gpu(g) for g in (*GPUS, "a40")}, seed=0)
    estimator = MemoryBound.from_artifact(manifest, weights)
    assert manifest["gpus"][-1] == "a40"
    assert estimator.board(load_gpu("a40"))[0] == pytest.approx(0.7, rel=0.02)
    assert estimator.const.scalar_share == pytest.approx(0.05, rel=0.1)
    assert "a40" not in manifest["eager_overhead_s"]["elementwise"]


def test_every_board_keeps_its_own_share_whatever_the_order_of_gpus() -> None:
    """`tilecast train` writes the GPUs of a set in alphabetical order; traced boards are fitted after the others."""
    names = (*GPUS, "a40")
    frame = pd.concat([made_up_rows(), traced_rows()], ignore_index=True)
    manifest, weights = fit_memory_bound(frame, {g: load_gpu(g) for g in names}, seed=0)
    assert list(manifest["boards"]) != sorted(names)
    estimator = MemoryBound.from_artifact({**manifest, "gpus": sorted(names)}, weights)
    for gpu, share in zip(names, (0.8, 0.8, 0.7), strict=True):
        assert estimator.board(load_gpu(gpu))[0] == pytest.approx(share, 0.05)


def test_what_l2_holds_of_a_sum_is_not_taken_for_bandwidth() -> None:
    """A profiler repeats: 6 MB (an A40's L2) of every sum need no DRAM, which says nothing of the others."""
    spec, rows = load_gpu("a40"), traced_rows(400)
    sums = (rows["op"] == "elementwise") & (rows["elements"] < 1 << 26)
    moved = 6.0 * rows["elements"] - spec.l2_bytes
    rows.loc[sums, "latency_ms"] = (moved / (0.7 * spec.memory_bandwidth) + START.fixed_s)[sums] * 1e3
    frame = pd.concat([made_up_rows(), rows[sums | (rows["op"] == "rotary")]], ignore_index=True)
    manifest, weights = fit_memory_bound(frame, {g: load_gpu(g) for g in (*GPUS, "a40")}, seed=0)
    share = MemoryBound.from_artifact(manifest, weights).board(spec)[0]
    assert share == pytest.approx(0.7, rel=0.005)
    measured = 6.0 * rows["elements"] / (rows["latency_ms"] * 1e-3 - START.fixed_s) / spec.memory_bandwidth
    assert measured[sums].median() > 1.01 * share


def test_an_engines_norm_costs_its_bytes(estimator: MemoryBound) -> None:
    """Rows of any width at the share of bandwidth, a few rows one short kernel; PyTorch's and fp32 ones as before."""
    v100 = load_gpu("v100-pcie-32gb")

    def seconds(op: Norm, kernels: str) -> float:
        return float(estimator.seconds(make_batch("norm", [op], kernels), v100)[0])

    for rows, cols in ((1 << 15, 5120), (1 << 20, 128)):
        op = Norm("fp16", rows, cols, "rms", residual=True)
        streamed = op.bytes_moved() / (0.9 * v100.memory_bandwidth)
        for kernels in ("vllm", "sglang", "trtllm"):
            assert seconds(op, kernels) == pytest.approx(streamed, rel=0.05)
        assert seconds(op, "pytorch") > 1.3 * streamed
    few = Norm("fp16", 8, 5120, "rms")
    assert START.fixed_s < seconds(few, "sglang") < 1.1 * START.fixed_s
    layer, backward = Norm("fp16", 8, 5120, "layer"), Norm("fp16", 8, 5120, "rms", "backward")
    for same in (Norm("fp32", 8, 5120, "rms"), layer, backward):
        assert seconds(same, "vllm") == seconds(same, "pytorch")
    assert seconds(layer, "trtllm") < seconds(layer, "vllm")


def test_test_rows_are_not_fitted() -> None:
    frame = made_up_rows(5)
    frame["split"] = "test"
    with pytest.raises(SpecError, match="no memory-bound rows"):
        fit_memory_bound(frame, {g: load_gpu(g) for g in GPUS})


def test_a_memory_type_without_a_board_takes_the_one_before() -> None:
    shares = share_by_type([load_gpu("v100-pcie-32gb"), load_gpu("t4")], np.array([0.9, 0.7]))
    assert shares == {"HBM2": 0.9, "HBM2e": 0.9, "HBM3": 0.9, "HBM3e": 0.9, "GDDR6": 0.7, "GDDR6X": 0.7, "GDDR7": 0.7}


def test_only_the_engine_that_moves_one_element_a_thread_pays_for_it() -> None:
    """Sarathi's kernels of 2023 are bound by their threads; those of today's engines by bytes, and never slower."""
    gpu = load_gpu("h100")
    estimator = load_artifacts().select("elementwise", "bf16")
    assert estimator is not None
    ops = [Elementwise("bf16", "swiglu", 1 << 27, 2)]
    taken = {k: float(estimator.seconds(make_batch("elementwise", ops, k), gpu)[0]) for k in KERNELS}
    assert taken["sarathi"] > taken["vllm"] / 0.9
    assert taken["vllm"] == taken["sglang"] == taken["trtllm"] == taken["pytorch"]


def test_an_l2_of_one_part_holds_twice_as_much() -> None:
    """Two parts hold what all SMs read twice: L4 and A100 have about as much L2, and their streams differ in when they
    leave it."""
    l4, a100 = load_gpu("l4"), load_gpu("a100-pcie-40gb")
    estimator = load_artifacts().select("elementwise", "fp32")
    assert estimator is not None

    def share_of_stream(gpu: GPUSpec, fill: float) -> float:
        """Seconds of a kernel that moves ``fill`` of L2, over those of DRAM at its sustained rate."""
        op = Elementwise("fp32", "relu", int(fill * gpu.l2_bytes / 8))
        large = Elementwise("fp32", "relu", 1 << 28)
        one, long = (float(estimator.seconds(make_batch("elementwise", [each]), gpu)[0]) for each in (op, large))
        return (one - START.fixed_s) / long * large.bytes_moved() / op.bytes_moved()

    assert share_of_stream(a100, 0.65) > 0.9
    assert share_of_stream(l4, 0.65) < 0.5
    assert share_of_stream(l4, 1.3) > 0.9
