"""Whole groups are held out, the same ones whatever the order of the rows."""

from __future__ import annotations

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')

from predictor.fit import splits  # noqa: E402


def _frame() -> pd.DataFrame:
    gemm = [
        {"op": "gemm", "gpu": gpu, "m": m, "n": n, "k": k}
        for gpu in ("a", "b") for m in (1, 64) for n in (256, 512, 1024, 2048) for k in (64, 128, 512)
    ]  # fmt: skip
    moe = [
        {"op": "moe", "gpu": "a", "tokens": t, "hidden": h, "intermediate": 64, "experts": 8, "top_k": 2}
        for t in (1, 2, 4, 8, 16) for h in (128, 256, 512)
    ]  # fmt: skip
    other = [{"op": "norm", "gpu": "a", "rows": r, "cols": 64} for r in range(1, 21)]
    return pd.DataFrame([*gemm, *moe, *other])


def test_groups_are_whole_and_about_the_fraction() -> None:
    frame = _frame()
    held = splits.holdout(frame, 0.25, seed=0)
    for op, columns in (("gemm", ["n", "k"]), ("moe", ["tokens"]), ("norm", ["rows", "cols"])):
        rows = frame[frame["op"] == op].assign(held=held[frame["op"] == op])
        share = rows.groupby(columns)["held"].agg(["min", "max"])
        assert (share["min"] == share["max"]).all()
        assert 0.1 < share["max"].mean() < 0.4


def test_order_of_rows_and_types_do_not_matter_but_the_seed_does() -> None:
    frame = _frame()
    held = splits.holdout(frame, 0.25, seed=0)
    order = np.random.default_rng(1).permutation(len(frame))
    shuffled = frame.iloc[order].astype({"op": "category", "gpu": "category"})
    assert (splits.holdout(shuffled, 0.25, seed=0) == held[order]).all()
    assert (splits.holdout(frame, 0.25, seed=1) != held).any()
    assert not splits.holdout(frame, 0.0, seed=0).any()


def test_whole_moe_models() -> None:
    frame = _frame()
    held = splits.model_holdout(frame, 0.2, seed=0)
    assert set(frame[held]["op"]) == {"moe"}
    assert frame[held]["hidden"].nunique() == 1
    assert held.sum() == 5
    assert splits.group_key("norm") == splits.SHAPE
