"""Columns of a table as arrays: what a row, or the whole file, does not say."""

from __future__ import annotations

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

from predictor.data.frame import numbers, texts  # noqa: E402


def test_cells_that_say_nothing_are_empty_or_no_number() -> None:
    frame = pd.DataFrame({"quant": pd.Categorical(["sq", None]), "window": pd.array([128, None], dtype="Int64")})
    assert texts(frame, "quant").tolist() == ["sq", ""]
    np.testing.assert_array_equal(numbers(frame, "window"), [128.0, np.nan])


def test_a_column_that_the_file_lacks_says_nothing_of_any_row() -> None:
    frame = pd.DataFrame({"op": ["gemm"] * 3})
    assert texts(frame, "quant").tolist() == [""] * 3
    assert np.isnan(numbers(frame, "window")).tolist() == [True] * 3
