"""What nobody states of a board is said in every forecast of it."""

from __future__ import annotations

import pytest

from predictor import predict
from predictor.forecast.notes import board_notes
from predictor.hardware.gpu import load_gpu
from predictor.hardware.what_if import with_values


def test_assumed_values_and_announced_boards_are_named() -> None:
    answer = predict("llama-3.1-8b", "mi455x", mode="decode", artifacts="roofline")
    assert any("mi455x is announced" in note for note in answer.notes)
    assert any("Nobody states sm_count, power_limit of mi455x" in note for note in answer.notes)
    assert board_notes(load_gpu("h100"), 8) == ()


def test_a_value_that_is_set_is_known() -> None:
    spec = with_values(load_gpu("h20-141gb"), "memory_bandwidth=4.8TB/s")
    assert board_notes(spec, 1) == ()
    assert "memory_bandwidth" in board_notes(load_gpu("h20-141gb"), 1)[0]


@pytest.mark.parametrize(("gpus", "lines"), [(1, 0), (8, 1)])
def test_links_count_where_boards_are_joined(gpus: int, lines: int) -> None:
    assert len(board_notes(load_gpu("mi308x"), gpus)) == lines
