"""Fitting of widths: quantiles that hold what they say, for a GPU that was seen and for another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from predictor.data import dataset
from predictor.fit.fit_intervals import (
    IntervalTarget,
    draw,
    fit_intervals,
    left_out,
    nested,
    of_another_gpu,
    pooled,
    stretch,
)  # fmt: skip
from predictor.fit.scores import coverage
from predictor.hardware.gpu import load_gpu
from predictor.kernels.efficiency.fit import fit_efficiency
from predictor.kernels.interval import DISTANCES, Intervals


def test_a_pooled_pair_holds_four_fifths_and_zero() -> None:
    random = np.random.default_rng(0)
    low, high = pooled([random.normal(0.0, 1.0, 5000)]) or (0, 0)
    fresh = random.normal(0.0, 1.0, 50_000)
    assert np.mean((low <= fresh) & (fresh <= high)) == pytest.approx(0.8, abs=0.02)
    low, high = pooled([random.normal(5.0, 0.1, 500)]) or (0, 0)
    assert low == 0.0 and high > 5.0
    assert pooled([]) is None


def test_groups_count_alike() -> None:
    few, many = np.linspace(-1.0, 1.0, 101), np.linspace(-0.1, 0.1, 100_001)
    low, high = pooled([few, many]) or (0, 0)
    assert high == pytest.approx(0.62, abs=0.04)  # a tenth of all is a fifth of the few
    assert low == pytest.approx(-0.62, abs=0.04)


@pytest.mark.parametrize("groups", [4, 5, 8])
def test_another_gpu_is_covered_on_average(groups: int) -> None:
    """GPUs whose errors differ more between than within: pooled quantiles hold too few of the next one's."""
    random = np.random.default_rng(1)
    ours, plain = [], []
    for _ in range(400):
        shifts = random.normal(0.0, 1.0, groups + 1)
        rows = [random.normal(shift, 0.3, 60) for shift in shifts]
        for pair, share in ((of_another_gpu(rows[:-1]), ours), (pooled(rows[:-1]), plain)):
            low, high = pair or (0, 0)
            share.append(np.mean((low <= rows[-1]) & (rows[-1] <= high)))
    assert 0.72 <= np.mean(ours) <= 0.85
    assert np.mean(plain) < np.mean(ours)


def test_one_group_is_doubled_and_stretch_fades_with_many() -> None:
    own = np.linspace(-1.0, 1.0, 1001)
    low, high = of_another_gpu([own]) or (0, 0)
    assert (low, high) == pytest.approx((-1.6, 1.6), abs=0.01)
    assert stretch(2) > stretch(5) > stretch(100) > 1.0
    assert stretch(100) == pytest.approx(1.0, abs=0.02)


def test_distances_are_nested() -> None:
    pairs = nested({"seen": (-0.2, 0.1), "sibling": (-9.0, 0.05), "new": (-0.5, 0.4)})
    assert pairs == {"seen": (-0.2, 0.1), "sibling": (-0.5, 0.1), "new": (-0.5, 0.4), "beyond": (-1.0, 0.8)}
    no_sibling = nested({"seen": (-0.2, 0.1), "sibling": None, "new": (-0.9, 0.4)})
    assert no_sibling["sibling"] == no_sibling["new"] == (-0.9, 0.4)
    assert nested({"seen": None, "sibling": None, "new": (-0.9, 0.4)})["sibling"] == (-0.9, 0.4)
    alone = nested({"seen": (-0.2, 0.1), "sibling": None, "new": None})
    assert alone["sibling"] == (-0.4, 0.2) and alone["new"] == (-0.8, 0.4)


def test_plans_leave_gpus_and_architectures_out() -> None:
    names = ["a100-sxm-80gb", "h100-sxm", "h200-sxm", "mi300x"]
    plans = left_out(names, {name: load_gpu(name) for name in names})
    assert plans == {
        ("a100-sxm-80gb",): {"a100-sxm-80gb": "new"},
        ("h100-sxm", "h200-sxm"): {"h100-sxm": "new", "h200-sxm": "new"},  # fitted once for both
        ("h100-sxm",): {"h100-sxm": "sibling"},
        ("h200-sxm",): {"h200-sxm": "sibling"},
    }


def made_up(gpu: str, slow: float, seed: int, count: int = 400) -> dict[str, Any]:
    """GEMM rows at half of a GPU's fp32 roofline, ``slow`` times slower, with 10 % noise."""
    random = np.random.default_rng(seed)
    m, n, k = (random.choice([256, 512, 1024, 2048], count) for _ in range(3))
    spec = load_gpu(gpu)
    seconds = 2.0 * m * n * k / spec.peak_flops("fp32") * 2.0 * slow * np.exp(random.normal(0.0, 0.1, count))
    return {
        "source": "made-up", "source_file": gpu, "source_row": np.arange(count), "split": "", "gpu": gpu,
        "framework": "pytorch", "framework_version": "1", "kernel_source": "", "protocol": "cuda_graph",
        "cache_state": "warm", "op": "gemm", "dtype": "fp32", "quant": "", "m": m, "n": n, "k": k, "batch": 1,
        "kind": "linear", "layout": "tn", "latency_ms": seconds * 1e3, "flag": "",
    }  # fmt: skip


def frame_of(*boards: tuple[str, float]) -> Any:
    return dataset.concat([dataset.to_frame(made_up(g, s, i), 400) for i, (g, s) in enumerate(boards)])


GPUS = ("p4", "t4", "v100-pcie-32gb", "a100-pcie-40gb", "a100-sxm-80gb")


def test_fitted_widths_widen_with_the_distance() -> None:
    frame = frame_of(*zip(GPUS, (1.0, 1.3, 0.9, 1.1, 1.2), strict=True))
    gpus = {name: load_gpu(name) for name in GPUS}
    found = fit_intervals(IntervalTarget(("gemm",), fit_efficiency), frame, gpus, 0)
    entry = found["classes"]["linear"]
    spans = [entry["widths"][name][1] - entry["widths"][name][0] for name in DISTANCES]
    assert spans == sorted(spans)
    assert spans[0] < spans[2]
    assert set(entry["gpus"]) == set(GPUS)
    assert entry["left_out"]["sibling"] == ["a100-pcie-40gb", "a100-sxm-80gb"]
    assert entry["sizes"]["m"] == [256.0, 2048.0]
    assert 0.15 < spans[0] < 0.6  # noise of 10 %: 80 % lie within 26 %
    assert Intervals.from_dict(found).distance(load_gpu("h100")) == 2
    assert fit_intervals(IntervalTarget(("gemm",), fit_efficiency), frame, gpus, 0) == found


def test_a_sibling_is_judged_by_what_its_kin_have_of_their_own() -> None:
    """A board with a measured sibling is answered by the sibling's own fit, so its width is of such answers."""
    frame = frame_of(*zip(GPUS, (1.0, 1.3, 0.9, 1.1, 1.2), strict=True))
    gpus = {name: load_gpu(name) for name in GPUS}
    asked: list[tuple[frozenset[str], Any]] = []

    def fit(rows: Any, gpus: Any, seed: int, fitted_gpus: Any = None) -> Any:
        known = frozenset(rows["gpu"].astype(str))
        asked.append((known, None if fitted_gpus is None else frozenset(fitted_gpus)))
        return fit_efficiency(rows, gpus, seed)

    fit_intervals(IntervalTarget(("gemm",), fit), frame, gpus, 0)
    pair, everyone = frozenset(("a100-pcie-40gb", "a100-sxm-80gb")), frozenset(GPUS)
    assert {(seen, own) for seen, own in asked if own} == {(everyone - {gpu}, pair - {gpu}) for gpu in pair}
    assert [seen for seen, own in asked if own is None] == [everyone], "shapes held out: every GPU's own"
    assert (everyone - pair, frozenset()) in asked and (everyone - {"t4"}, frozenset()) in asked


def test_one_gpu_alone_knows_of_no_other() -> None:
    frame = frame_of(("t4", 1.0))
    found = fit_intervals(IntervalTarget(("gemm",), fit_efficiency), frame, {"t4": load_gpu("t4")}, 0)
    widths = found["classes"]["linear"]["widths"]
    assert widths["sibling"] == pytest.approx([2 * w for w in widths["seen"]], abs=2e-4)


def test_draws_are_even_and_repeatable() -> None:
    frame = frame_of(("t4", 1.0), ("p4", 1.0))
    part = draw(frame, 0, 100)
    assert part["gpu"].value_counts().to_dict() == {"t4": 100, "p4": 100}
    assert part["source_row"].tolist() == draw(frame, 0, 100)["source_row"].tolist()


def test_coverage_counts_rows_with_an_interval() -> None:
    import pandas as pd

    rows = pd.DataFrame(
        {"measured_ms": [1.0, 2.0, 3.0, 4.0], "predicted_ms": [1.0, 1.0, 1.0, 1.0],
         "low_ms": [0.5, 0.5, 0.5, np.nan], "high_ms": [1.5, 2.0, 1.5, np.nan]}
    )  # fmt: skip
    found = coverage(rows)
    assert found["interval_coverage_pct"] == pytest.approx(200 / 3)
    assert found["interval_width_pct"] == pytest.approx(100.0)
    assert coverage(rows.drop(columns="low_ms")) == {}
