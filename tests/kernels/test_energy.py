"""What kernels draw: within the board's limits, more for more work, by one law with the clocks that power holds."""

import json
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.hardware.gpu import list_gpus, load_gpu
from predictor.hardware.what_if import with_values
from predictor.kernels.energy import (
    CONSTANTS,
    PARTS,
    PATH_PJ,
    dram_bytes,
    flop_j,
    held_j,
    issued,
    rates,
    unpacked,
    work_j,
)
from predictor.kernels.power import CLOCK_WATTS, EFFICIENCY
from predictor.ops.attention import Attention
from predictor.ops.gemm import Gemm
from predictor.ops.moe import MoE

H100 = load_gpu("h100")
TABLES = json.loads(CONSTANTS.read_text(encoding="utf-8"))
BITS, PJ = 8.0, 1e-12


@pytest.mark.parametrize("name", list_gpus())
def test_a_board_draws_more_the_more_it_does_and_never_above_its_limit(name):
    known = rates(load_gpu(name))
    assert 0.0 < known.idle_w <= known.waiting_w <= known.running_w < known.limit_w
    assert known.memory_j > 0.0
    assert known.path_j > 0.0


def test_the_best_product_draws_what_the_held_clock_says_that_it_needs():
    seconds = 1e-3
    at_hz = CLOCK_WATTS["9.0", 16][1]
    flops = EFFICIENCY * H100.peak_flops("bf16") * seconds
    drawn = rates(H100).running_w + flops * flop_j(H100, "matrix", "bf16")[1] / seconds
    assert drawn == pytest.approx(
        CLOCK_WATTS["9.0", 16][0] * H100.sm_count * at_hz * 1e-9 * H100.boost_clock_hz / at_hz
    )


def test_the_energy_of_data_paths_is_the_median_of_the_streams_whose_power_was_read():
    left = []
    for board, (rate, watts, _) in TABLES["streams"].items():
        known = rates(load_gpu(board))
        left.append((watts - known.running_w) / rate / BITS / PJ - known.memory_j / BITS / PJ)
    assert statistics.median(left) == pytest.approx(PATH_PJ, abs=0.05)


def test_tensor_cores_of_boards_that_nobody_measured_follow_their_held_clocks():
    # MI300X and MI325X, the same chip, hold 1,207 of 2,100 MHz at 750 W and 1,447 at 1,000: the law of clocks with
    # these gives 1,730 and 1,710 W at full rate.
    for board, watts in (("mi300x", 1730.0), ("mi325x", 1710.0)):
        known = rates(load_gpu(board))
        assert known.tensor_w == pytest.approx(watts, rel=0.1)
        assert any("tensor cores" in each for each in known.assumed)


def test_tensor_cores_of_b200_follow_its_tables_and_the_clock_that_was_seen():
    # 1,580 of 1,965 MHz at 1,000 W under attention, whose 1,450 of 2,250 TFLOP/s keep the tensor cores 0.69 busy: the
    # law of clocks gives 2,060 W at full rate.
    assert rates(load_gpu("b200")).tensor_w == pytest.approx(2060.0, rel=0.1)


def test_what_no_source_tells_of_a_board_is_named():
    assert rates(H100).assumed == ()
    said = " ".join(rates(load_gpu("rx-7900-xtx")).assumed)
    assert "idle power" in said
    assert "context" in said


@given(
    m=st.integers(1, 20_000), n=st.integers(1, 20_000), k=st.integers(1, 20_000),
    dtype=st.sampled_from(["bf16", "fp8", "fp32", "tf32"]), seconds=st.floats(1e-7, 1.0),
    gpu=st.sampled_from(["h100", "a100", "rtx-4090", "mi300x", "v100"]), watts=st.sampled_from([90.0, 300.0, 700.0]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_no_kernel_draws_more_than_the_limit_or_less_than_idle(m, n, k, dtype, seconds, gpu, watts):
    board = with_values(load_gpu(gpu), {"power_limit": watts})
    known = rates(board)
    joules = work_j([Gemm(dtype if board.supports(dtype) else "fp32", m, n, k)], board)
    assert (joules >= 0.0).all()
    drawn = known.running_w + held_j(joules, np.array([seconds]), board).sum() / seconds
    assert known.idle_w <= drawn <= known.limit_w * (1 + 1e-9)


@given(m=st.integers(1, 5000), more=st.integers(1, 5000), dtype=st.sampled_from(["bf16", "fp8", "fp32"]))
@settings(max_examples=80, deadline=None)
def test_more_work_never_takes_less(m, more, dtype):
    def least(rows):
        return work_j([Gemm(dtype, rows, 4096, 4096)], H100).sum()

    assert least(m + more) >= least(m)


def test_short_products_fill_whole_rows_of_tensor_cores():
    assert issued(Gemm("bf16", 1, 4096, 4096)) == 16.0
    assert issued(Gemm("bf16", 16, 4096, 4096)) == 1.0
    assert issued(Gemm("bf16", 4096, 4096, 4096)) == 1.0
    each = MoE("bf16", 8, 2048, 768, 128, 8)  # 64 rows on 64 experts
    assert issued(each) == pytest.approx(16.0)


def test_weights_that_are_narrower_than_their_products_are_unpacked():
    assert unpacked(Gemm("bf16", 8, 4096, 4096)) == 0.0
    assert unpacked(Gemm("fp8", 8, 4096, 4096)) == 0.0
    assert unpacked(Gemm("bf16", 8, 4096, 4096, quant="int4_wo")) == pytest.approx(4096 * 4096, rel=0.01)


def test_weights_come_from_memory_and_what_fits_in_l2_does_not():
    small = Gemm("bf16", 8, 4096, 4096)
    assert dram_bytes(small, H100.l2_bytes) == small.cold_bytes()
    cache = Attention("bf16", 64, 32, 8, 1, 4096, 128)
    assert dram_bytes(cache, H100.l2_bytes) == pytest.approx(cache.cold_bytes())


def test_a_stream_draws_what_was_read_on_the_board():
    rate, watts, _ = TABLES["streams"]["h200-sxm"]
    h200 = load_gpu("h200")
    known = rates(h200)
    assert known.running_w + rate * (known.memory_j + known.path_j) == pytest.approx(watts, rel=0.05)
    assert len(PARTS) == work_j([Gemm("bf16", 8, 8, 8)], h200).shape[1]


def test_every_published_constant_has_a_source():
    for name, table in TABLES.items():
        for entry in table.values() if isinstance(table, dict) else ():
            assert isinstance(entry[-1], str), name
            assert len(entry[-1].split()) >= 2, name
