"""Widths of intervals: which distance answers, what is outside, and how a whole forecast's interval is made of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import predictor
from predictor.engines import CALLS, CAPTURED, EAGER
from predictor.engines.base import CALL_RANGE_S
from predictor.errors import SpecError
from predictor.graph import Block, Graph, Node
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import Batch, predict_kernels
from predictor.kernels.interval import DISTANCES, FILE, Intervals
from predictor.kernels.stored import FILES, SCHEMA_VERSION, described
from predictor.ops import Attention, Elementwise, Gemm, Norm, Op
from predictor.ops.roofline import roofline
from predictor.report.wording import span
from predictor.request.workload import DEFAULT_LAUNCH_OVERHEAD_S, Workload
from predictor.simulate.interval import run_spread, spread_of
from predictor.simulate.stage import Plan, Stage
from predictor.simulate.times import Operators, TimedStage

GIVEN = Workload(1, 1, "fp32", "eager", "math")
ASSUMED = replace(GIVEN, launch_overhead_assumed=True)


def kernel_ends(total_s: float, stages: list[TimedStage], work: Workload) -> tuple[float, float] | None:
    """A run's seconds with all that its kernels and its host may be off, alone; None without widths."""
    spread = run_spread(total_s, stages, work)
    if spread is None:
        return None
    below, above = (float(np.hypot(spread.kernels[side], spread.host[side])) for side in (0, 1))
    return total_s - below, total_s + above


def entry(half: float, sizes: dict[str, list[float]] | None = None, gpus: dict[str, list[float]] | None = None) -> Any:
    widths = {name: [-half * (i + 1), 2 * half * (i + 1)] for i, name in enumerate(DISTANCES)}
    return {"widths": widths, "gpus": gpus or {}, "sizes": sizes or {}, "dtypes": ["fp32"], "variants": {}}


def content(**classes: Any) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "gpus": {"v100-pcie-32gb": ["volta 7", "nvidia"]}, "classes": classes}


LINEAR = entry(0.1, {"m": [1, 1024]}, {"v100-pcie-32gb": [-0.02, 0.03]})
KNOWN = Intervals.from_dict(content(linear=LINEAR, bmm=entry(0.3)))


def width(ops: list[Op], gpu: str, known: Intervals = KNOWN) -> Any:
    columns = {name: np.array([float(getattr(op, name)) for op in ops]) for name in ops[0].columns}
    return known.width(ops, columns, load_gpu(gpu))


@pytest.mark.parametrize(
    ("gpu", "low", "high"),
    [("v100-pcie-32gb", -0.02, 0.03), ("v100-sxm-32gb", -0.2, 0.4), ("h100", -0.3, 0.6), ("mi300x", -0.4, 0.8)],
)
def test_the_distance_of_a_gpu_decides(gpu: str, low: float, high: float) -> None:
    found = width([Gemm("fp32", 64, 64, 64)], gpu)
    assert (found.low[0], found.high[0]) == pytest.approx((low, high))
    assert found.inside[0] == (gpu != "mi300x")


def test_out_of_range_takes_the_next_distance_and_says_so() -> None:
    found = width([Gemm("fp32", m, 64, 64) for m in (1024, 2048, 2049, 9999)], "v100-pcie-32gb")
    assert found.inside.tolist() == [True, True, False, False]
    assert found.high.tolist() == pytest.approx([0.03, 0.03, 0.4, 0.4])
    assert found.notes == ("linear: m 2049 is outside the measured 1 to 1024",)


def test_a_table_of_positions_is_not_called_a_vocabulary() -> None:
    said = " ".join(predictor.predict("gpt2", "h100", seq_len=64).notes)
    assert "embedding: table length 1024 is outside" in said and "vocab" not in said


def test_a_dtype_that_another_stands_in_for_is_outside() -> None:
    found = width([Gemm("fp16", 64, 64, 64), Gemm("fp32", 64, 64, 64)], "v100-pcie-32gb")
    assert found.inside.tolist() == [False, True]
    assert found.notes == ("linear: fp16 was not measured, only fp32",)


def test_the_distance_is_that_from_gpus_with_rows_of_the_scheme() -> None:
    gpus = {"h100-sxm": ["hopper 9", "nvidia"], "a100-sxm-80gb": ["ampere 8", "nvidia"],
            "rtx-pro-6000-server": ["blackwell 12", "nvidia"]}  # fmt: skip
    variants = {"bf16": sorted(gpus), "nvfp4": ["rtx-pro-6000-server"], "int4_wo": ["a100-sxm-80gb", "h100-sxm"]}
    moe = entry(0.1) | {"dtypes": ["bf16", "nvfp4"], "variants": variants}
    known = Intervals.from_dict({"gpus": gpus, "classes": {"linear": moe}})

    def far(gpu: str, dtype: str, quant: str = "") -> float:
        found = width([Gemm(dtype, 64, 64, 64, quant=quant)], gpu, known)
        return round(float(found.high[0]) / 0.2)

    assert [far(gpu, "bf16") for gpu in ("h100", "h200", "b200", "rtx-5090")] == [1, 2, 3, 2]
    # nvfp4 ran on one generation alone: nobody can say how it carries over, and the board's own rows count
    assert [far(gpu, "nvfp4") for gpu in ("rtx-pro-6000-server", "rtx-5090", "b200")] == [1, 2, 4]
    assert [far(gpu, "bf16", "int4_wo") for gpu in ("h100", "rtx-pro-6000-server", "b200")] == [1, 3, 3]
    found = width([Gemm("nvfp4", 64, 64, 64)], "b200", known)
    assert found.notes == ("linear: nvfp4 was only measured on rtx-pro-6000-server",)
    assert not found.inside[0]


def test_latent_attention_is_a_class_of_its_own_where_it_was_judged() -> None:
    latent, plain = (
        Attention("bf16", 1, 16, 1, 1, 512, 576, 512, shared_kv=True),
        Attention("bf16", 1, 16, 1, 1, 512, 128),
    )
    classes = {"decode attention": entry(0.1) | {"dtypes": ["bf16"]}}
    assert width([latent, plain], "v100-pcie-32gb", Intervals.from_dict(content(**classes))).high.tolist() == [0.2, 0.2]
    classes["latent decode attention"] = entry(0.5) | {"dtypes": ["bf16"]}
    assert width([latent, plain], "v100-pcie-32gb", Intervals.from_dict(content(**classes))).high.tolist() == [1.0, 0.2]


def test_a_class_without_rows_borrows_the_widest() -> None:
    found = width([Gemm("fp32", 64, 64, 64, 2, "grouped"), Gemm("fp32", 64, 64, 64)], "v100-pcie-32gb")
    assert (found.low[0], found.high[0]) == pytest.approx((-0.6, 1.2))  # bmm's, one distance further
    assert found.inside.all()


def test_farther_is_never_narrower() -> None:
    own = entry(0.1, gpus={"v100-pcie-32gb": [-0.9, 0.9]})
    known = Intervals.from_dict(content(linear=own))
    near = width([Gemm("fp32", 64, 64, 64)], "v100-pcie-32gb", known)
    assert (near.low[0], near.high[0]) == (-0.9, 0.9)
    ops: list[Op] = [Gemm("fp32", 64, 64, 64, kind="bmm")]
    far = width(ops, "v100-pcie-32gb", known)
    assert far.low[0] <= near.low[0] and far.high[0] >= near.high[0]


def test_a_calibrated_gpu_is_its_own_sibling() -> None:
    known = Intervals.from_dict(content(linear=LINEAR), calibrated={"h100-sxm": {}})
    assert width([Gemm("fp32", 64, 64, 64)], "h100", known).high[0] == pytest.approx(0.4)


def test_a_calibrated_gpu_has_the_widths_of_its_held_out_rows() -> None:
    about = {"h100-sxm": {"width": {"linear": [-0.02, 0.03]}}}
    known = Intervals.from_dict(content(linear=LINEAR), calibrated=about)
    ops: list[Op] = [Gemm("fp32", 64, 64, 64), Gemm("bf16", 64, 64, 64)]  # bf16 was not measured
    found = width(ops, "h100", known)
    assert (found.low[0], found.high[0]) == pytest.approx((-0.02, 0.03))
    assert found.high[1] > 0.1
    assert width(ops[:1], "h200", known).high[0] == pytest.approx(0.6)


def test_attention_and_backward_have_classes_of_their_own() -> None:
    known = Intervals.from_dict(content(**{"decode attention": entry(0.1), "prefill attention": entry(0.2)}))
    ops: list[Op] = [Attention("fp32", 1, 8, 8, q, 512, 64) for q in (1, 512)]
    assert width(ops, "h100", known).high.tolist() == pytest.approx([0.6, 1.2])
    norms: list[Op] = [Norm("fp32", 64, 64), Norm("fp32", 64, 64, "layer", "backward")]
    forward = Intervals.from_dict(content(norm=entry(0.1)))
    assert width(norms, "v100-pcie-32gb", forward).high.tolist() == pytest.approx([0.2, 0.4])


@pytest.mark.parametrize("data", [{"schema_version": 9}, {"schema_version": SCHEMA_VERSION, "gpus": {}}, content()])
def test_a_broken_file_is_one_line(tmp_path: Path, data: dict[str, Any]) -> None:
    (tmp_path / FILE).write_text(json.dumps(data))
    with pytest.raises(SpecError, match=r"intervals\.json"):
        Intervals.read(tmp_path, {FILES: described(tmp_path)})
    assert Intervals.read(tmp_path / "none", {}) is None


class Half:
    """Everything runs at half the roofline."""

    name = "half"

    def seconds(self, batch: Batch, gpu: GPUSpec) -> Any:
        return 2.0 * roofline(batch.ops, gpu).lower_bound_s


class Set:
    """A selector of one estimator: ``known`` are its widths, ``rest`` the roofline's."""

    def __init__(self, known: Intervals | None, rest: tuple[float, float] | None = (0.0, 1.0)) -> None:
        self.known, self.rest = known, rest

    def select(self, family: str, dtype: str) -> Half:
        return Half()

    def intervals(self, name: str) -> Intervals | None:
        return self.known

    def roofline_width(self) -> tuple[float, float] | None:
        return self.rest


GPU = replace(load_gpu("h100"), id="v100-pcie-32gb", architecture="volta")
BIG, BATCHED = Gemm("fp32", 1024, 1024, 1024), Gemm("fp32", 512, 512, 512, 8, "bmm")


def timed(
    nodes: list[Node], selector: Set, host: str = CAPTURED, repeat: int = 1, weights: tuple[float, ...] = (1.0,)
) -> tuple[TimedStage, ...]:
    graph = Graph((Block("all", tuple(nodes), repeat),))
    plan = Plan(tuple(Stage(graph, "forward", weight, host) for weight in weights))
    return Operators(GPU, EAGER, selector).time([plan])[0]


def test_no_lower_end_beats_the_roofline() -> None:
    wide = Intervals.from_dict(content(linear=entry(3.0)))
    table = predict_kernels([BIG], GPU, Set(wide))
    row = table.row(0)
    bound = float(roofline([BIG], GPU).lower_bound_s[0])
    assert row.interval_s is not None
    assert row.interval_s[0] == pytest.approx(bound)
    assert row.interval_s[0] <= row.latency_s <= row.interval_s[1]


def test_a_class_errs_together_and_classes_apart() -> None:
    known = Intervals.from_dict(content(linear=entry(0.1), bmm=entry(0.1)))
    up = float(np.expm1(0.2))
    (twice,) = timed([Node(BIG, "a"), Node(replace(BIG, n=2048), "b")], Set(known), repeat=3)
    low, high = kernel_ends(twice.timeline.total_s, [twice], ASSUMED) or (0, 0)
    assert high / twice.timeline.total_s - 1 == pytest.approx(up)
    assert 1 - low / twice.timeline.total_s == pytest.approx(-np.expm1(-0.1))
    (both,) = timed([Node(BIG, "a"), Node(BATCHED, "b")], Set(known))
    parts = both.table.latency_s * up
    _, high = kernel_ends(both.timeline.total_s, [both], ASSUMED) or (0, 0)
    assert high - both.timeline.total_s == pytest.approx(float(np.hypot(*parts)))


def test_weights_add_up_within_a_class() -> None:
    nodes, known = [Node(BIG, "a")], Set(Intervals.from_dict(content(linear=entry(0.1))))
    apart, one = timed(nodes, known, weights=(2.0, 3.0)), timed(nodes, known, weights=(5.0,))
    total = 5 * one[0].timeline.total_s
    assert kernel_ends(total, apart, ASSUMED) == pytest.approx(kernel_ends(total, one, ASSUMED))


def test_a_node_that_does_not_run_has_no_part() -> None:
    """Counts that are not 1, and nodes of no kernel beside nodes of several, which are as many kernels as nodes."""
    known = Set(Intervals.from_dict(content(linear=entry(0.1), bmm=entry(0.3))))
    other = replace(BIG, n=2048)
    for host in (CAPTURED, CALLS):
        (apart,) = timed([Node(BIG, "a"), Node(BATCHED, "b"), Node(BATCHED, "c")], known, host)
        for counts in ((1, 0, 2), (1, 2, 0)):
            nodes = [Node(BIG, "a"), Node(BATCHED, "b", count=counts[1]), Node(BATCHED, "c", count=counts[2])]
            (joint,) = timed(nodes, known, host)
            total = joint.timeline.total_s
            assert total == pytest.approx(apart.timeline.total_s)
            expected = kernel_ends(total, [apart], ASSUMED)
            assert kernel_ends(total, [joint], ASSUMED) == pytest.approx(expected)
        (skipped,) = timed([Node(BIG, "a"), Node(other, "b", count=0)], known, host)
        (alone,) = timed([Node(BIG, "a")], known, host)
        total = alone.timeline.total_s
        assert kernel_ends(total, [skipped], ASSUMED) == pytest.approx(kernel_ends(total, [alone], ASSUMED))


def test_kernels_that_hide_behind_the_cpu_do_not_count_but_the_host_does() -> None:
    known = Intervals.from_dict(content(linear=entry(0.1)))
    tiny = Gemm("fp32", 8, 8, 8)
    (bound,) = timed([Node(tiny, "a")], Set(known), CALLS, repeat=1000)
    total = bound.timeline.total_s
    assert total > 5 * bound.timeline.gpu_s
    low, high = kernel_ends(total, [bound], ASSUMED) or (0, 0)
    assert high == pytest.approx(total * CALL_RANGE_S[1] / DEFAULT_LAUNCH_OVERHEAD_S, rel=0.02)
    assert low == pytest.approx(total * CALL_RANGE_S[0] / DEFAULT_LAUNCH_OVERHEAD_S, rel=0.02)
    given = kernel_ends(total, [bound], GIVEN) or (0, 0)
    assert given == pytest.approx((total, total), rel=0.01)  # a launch overhead that was measured


def test_an_answer_of_the_roofline_alone_errs_upward_and_without_widths_there_is_none() -> None:
    known = Intervals.from_dict(content(linear=entry(0.1)))

    class Roof(Set):
        def select(self, family: str, dtype: str) -> Any:
            return None if family == "elementwise" else Half()

    add = [Node(Elementwise("fp32", "add", 10**8), "a")]
    (alone,) = timed(add, Roof(known))
    low, high = kernel_ends(alone.timeline.total_s, [alone], ASSUMED) or (0, 0)
    assert low == pytest.approx(alone.timeline.total_s)
    assert high == pytest.approx(alone.timeline.total_s * np.e)
    assert kernel_ends(1.0, timed(add, Roof(known, None)), ASSUMED) is None
    assert spread_of(timed([Node(BIG, "a")], Set(None))[0], ASSUMED) is None


@pytest.mark.parametrize("mode", ["forward", "train", "generate"])
@pytest.mark.parametrize("execution", ["eager", "cuda_graph"])
@pytest.mark.parametrize("gpu", ["v100", "h100", "mi300x"])
def test_the_interval_holds_the_forecast(mode: str, execution: str, gpu: str) -> None:
    artifacts = load_artifacts()
    words: dict[str, Any] = {"output_len": 8} if mode == "generate" else {}
    answer = predictor.predict("gpt2", gpu, mode=mode, execution=execution, seq_len=256, **words)
    expected = getattr(artifacts, "manifest", {}).get("roofline_width") is not None
    assert (answer.interval_s is not None) == expected
    if answer.interval_s is not None:
        assert 0 < answer.interval_s[0] <= answer.latency_s <= answer.interval_s[1]


def test_both_ends_in_one_unit() -> None:
    assert span(12.1e-3, 14.9e-3) == "12.1 - 14.9 ms"
    assert span(0.9e-3, 1.2e-3) == "0.900 - 1.20 ms"
