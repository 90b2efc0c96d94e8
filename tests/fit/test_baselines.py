"""What a forecast is held against: constants from made-up rows, the paired bootstrap, what a fit is not shown."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

import predictor  # noqa: E402
from predictor.hardware.gpu import load_gpu  # noqa: E402
from predictor.kernels.artifact import load_artifacts  # noqa: E402
from predictor.ops import Convolution, Elementwise, Gemm  # noqa: E402
from predictor.ops.roofline import roofline  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from constant_set import family_constants, paired_difference, write_constant_set  # noqa: E402
from convolutions import Rows, splits  # noqa: E402


def test_the_mean_is_of_absolute_errors_and_the_signs_do_not_matter() -> None:
    found = paired_difference([-1.0, 2.0, -3.0], [4.0, -4.0, 4.0])
    assert found.mean == pytest.approx(2.0 - 4.0)
    assert found.low <= found.mean <= found.high


def test_a_difference_that_every_cell_shows_has_an_interval_of_no_width() -> None:
    ours = np.array([1.0, 5.0, 9.0, 30.0])  # cells differ much, the pairs not at all: what pairing is for
    assert paired_difference(ours, ours + 2.0) == pytest.approx((-2.0, -2.0, -2.0))


def test_one_cell_decides_nothing_where_it_carries_the_whole_difference() -> None:
    found = paired_difference([0.0] * 9 + [50.0], [1.0] * 10)
    assert found.mean == pytest.approx(4.0)
    assert found.low == pytest.approx(-1.0)  # the draws without that cell
    assert found.high > 10


def test_the_interval_is_that_of_the_normal_law_for_many_cells() -> None:
    random = np.random.default_rng(7)
    ours, other = random.uniform(5, 9, 400), random.uniform(5, 11, 400)
    found = paired_difference(ours, other)
    half = 1.96 * (ours - other).std() / np.sqrt(400)
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half), rel=0.05)


def test_it_is_antisymmetric_and_repeats_itself() -> None:
    ours, other = [1.0, 7.0, 2.0, 8.0], [3.0, 3.0, 3.0, 9.0]
    there, back = paired_difference(ours, other, seed=3), paired_difference(other, ours, seed=3)
    assert (there.mean, there.low, there.high) == pytest.approx((-back.mean, -back.high, -back.low))
    assert paired_difference(ours, other, seed=3) == there


@pytest.mark.parametrize(("ours", "other"), [([], []), ([1.0], [1.0, 2.0]), ([1.0, np.nan], [1.0, 2.0]), (1.0, 1.0)])
def test_what_cannot_be_paired(ours: object, other: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        paired_difference(ours, other)  # type: ignore[arg-type]


def test_a_long_row_weighs_its_time() -> None:
    families = np.array(["gemm"] * 4 + ["norm"], dtype=object)
    cold = np.array([0.1, 0.1, 0.1, 50.0, 2.0])
    measured = np.array([1.0, 1.0, 1.0, 100.0, 1.0])
    found = family_constants(families, cold, measured)
    assert found["gemm"] == pytest.approx(0.5)  # not 0.1, which most rows have
    assert found["norm"] == 1.0  # warm rows may beat the cold roofline: an efficiency does not


def test_the_set_of_constants_forecasts_roofline_over_efficiency(tmp_path: Path) -> None:
    gpu, slow = load_gpu("v100-pcie-32gb"), load_gpu("t4")
    ops = [Gemm("fp32", m, 1024, 1024) for m in (512, 1024, 2048)]
    ops2 = [Elementwise("fp32", "add", n) for n in (10**6, 10**7)]
    rows = [{"op": "gemm", "batch": 1, "m": o.m, "n": o.n, "k": o.k, "layout": o.layout} for o in ops]
    rows += [{"op": "elementwise", "fn": "add", "elements": o.elements} for o in ops2]
    parts = []
    for board, gemm in ((gpu, 0.8), (slow, 0.4)):
        part = pd.DataFrame(rows)
        part["latency_ms"] = roofline([*ops, *ops2], board).cold_s * 1e3 / np.array([gemm, gemm, gemm, 0.5, 0.5])
        told = {"framework": "pytorch", "protocol": "cuda_graph", "cache_state": "warm", "quant": ""}
        parts.append(part.assign(gpu=board.id, dtype="fp32", **told))
    found = write_constant_set(pd.concat(parts), tmp_path / "set")
    assert found["v100-pcie-32gb|gemm|*"] == pytest.approx(0.8)
    assert found["*|gemm|*"] == pytest.approx(0.6)
    assert found["*|elementwise|*"] == pytest.approx(0.5)
    chosen = load_artifacts(tmp_path / "set")
    for other, efficiency in (("v100-pcie-32gb", 0.8), ("t4", 0.4), ("l4", 0.6)):  # its own, or the median
        forecast = predictor.predict(
            "gpt2", other, seq_len=256, dtype="fp32", execution="cuda_graph", artifacts=tmp_path / "set"
        )
        assert forecast.artifacts == chosen.name == "constant"
        linear = next(row for row in forecast.breakdown if row.op == "linear")
        assert linear.utilization == pytest.approx(efficiency)


def test_a_shape_that_is_left_out_is_left_out_on_every_board() -> None:
    """The boards' tables hold the same shapes in orders of their own."""
    shapes = [Convolution.of("fp32", (1, 8, side, side), (8, 8, 3, 3), (1,), (1,)) for side in range(10, 40)]
    boards = []
    for seed, gpu in enumerate(("p4", "t4", "v100-pcie-32gb")):
        order = np.random.default_rng(seed).permutation(len(shapes))[:25]
        boards.append(Rows(load_gpu(gpu), tuple(shapes[i] for i in order), np.ones(25)))
    *one_board, (title, marks) = splits(boards)
    for place, (_, held_out) in enumerate(one_board):
        assert [mask.all() for mask in held_out] == [i == place for i in range(3)]
    taken = [{rows.ops[i] for i in np.flatnonzero(mask)} for rows, mask in zip(boards, marks, strict=True)]
    kept = [set(rows.ops) - out for rows, out in zip(boards, taken, strict=True)]
    assert title == "a fifth of the shapes" and len(set().union(*taken)) == 6
    assert not set().union(*taken) & set().union(*kept)
