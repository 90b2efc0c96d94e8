"""Trees walked in NumPy answer as LightGBM does, and survive being written to disk."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.errors import SpecError
from predictor.kernels.trees import Trees

STUMP = {
    "split_feature": 1, "threshold": 0.5, "decision_type": "<=",
    "left_child": {"leaf_value": -1.0},
    "right_child": {
        "split_feature": 0, "threshold": 2.0, "decision_type": "<=",
        "left_child": {"leaf_value": 3.0}, "right_child": {"leaf_value": 4.0},
    },
}  # fmt: skip


def test_a_tree_by_hand() -> None:
    trees = Trees.from_nested([STUMP, {"leaf_value": 10.0}], features=2)
    x = np.array([[9.0, 0.5], [2.0, 0.6], [2.1, 0.6], [0.0, -7.0]])
    assert trees.predict(x).tolist() == [9.0, 13.0, 14.0, 9.0]
    assert (trees.trees, trees.depth, trees.features) == (2, 2, 2)


def test_trees_that_end_early_beside_deep_ones() -> None:
    """A chain of fourteen splits has a leaf at every level; enough rows that those that have ended are left behind."""
    chain: dict[str, object] = {"leaf_value": 14.0}
    for level in reversed(range(14)):
        chain = {
            "split_feature": level % 2, "threshold": level + 0.5, "decision_type": "<=",
            "left_child": {"leaf_value": float(level)}, "right_child": chain,
        }  # fmt: skip
    trees = Trees.from_nested([chain, STUMP] * 100, features=2)
    for rows in (1, 3, 300):
        x = np.random.default_rng(rows).uniform(0.0, 20.0, (rows, 2))
        by_hand = [next((level for level in range(14) if row[level % 2] <= level + 0.5), 14) for row in x]
        stumps = [-1.0 if b <= 0.5 else 3.0 if a <= 2.0 else 4.0 for a, b in x]
        assert trees.predict(x).tolist() == [
            100.0 * (first + second) for first, second in zip(by_hand, stumps, strict=True)
        ]


def test_packing_keeps_structure_and_rounds_leaves() -> None:
    trees = Trees.from_nested([STUMP, {"leaf_value": 10.0}], features=2)
    again = Trees.unpack(trees.pack("t_"), "t_")
    x = np.random.default_rng(0).normal(1.0, 2.0, (50, 2))
    np.testing.assert_allclose(again.predict(x), trees.predict(x), atol=1e-3)
    np.testing.assert_array_equal(again.split_threshold, trees.split_threshold)


def test_what_cannot_be_read_is_one_line() -> None:
    packed = Trees.from_nested([STUMP], features=2).pack()
    with pytest.raises(SpecError, match="cannot be read"):
        Trees.unpack(packed, "other_")
    with pytest.raises(SpecError, match="cannot be read"):
        Trees.unpack(packed | {"nodes": packed["nodes"][:6]})
    with pytest.raises(SpecError, match="expected '<='"):
        Trees.from_nested([STUMP | {"decision_type": "=="}], features=2)


@pytest.mark.parametrize(("leaves", "depth", "bins"), [(7, 3, 15), (31, 6, 63), (63, 9, 255)])
def test_parity_with_lightgbm(leaves: int, depth: int, bins: int) -> None:
    pytest.importorskip("lightgbm", reason='LightGBM is not installed: pip install "tilecast[train]"')
    from predictor.kernels.fitting.boosting import BoosterSettings, fit_booster, roots

    rng = np.random.default_rng(leaves)
    x = np.column_stack((rng.normal(size=(3000, 3)), rng.integers(0, 4, 3000), np.round(rng.normal(size=3000), 1)))
    y = np.sin(x[:, 0]) + 0.3 * x[:, 3] * (x[:, 1] > 0) + 0.1 * x[:, 4]
    booster = fit_booster(x, y, 3, BoosterSettings(rounds=60, leaves=leaves, depth=depth, bins=bins))
    trees = Trees.from_nested(roots(booster), x.shape[1])
    probe = np.concatenate((x, rng.normal(0.0, 3.0, (2000, 5)), _on_thresholds(trees)))
    expected = np.asarray(booster.predict(probe))
    np.testing.assert_allclose(trees.predict(probe), expected, rtol=1e-12, atol=1e-12)
    packed = Trees.unpack(trees.pack())
    np.testing.assert_allclose(packed.predict(probe), expected, atol=1e-3)


def test_same_data_and_seed_give_the_same_bytes() -> None:
    pytest.importorskip("lightgbm", reason='LightGBM is not installed: pip install "tilecast[train]"')
    from predictor.kernels.fitting.boosting import BoosterSettings, boost

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(800, 4)), rng.normal(size=800)
    first, second = (boost(x, y, 5, BoosterSettings(rounds=20)).pack() for _ in range(2))
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


def _on_thresholds(trees: Trees) -> np.ndarray:
    """Rows whose features lie exactly on thresholds, where a rounded copy would go the other way.

    Not those of +-1e-35, by which LightGBM tells zero from other values: it reads a value of that size as zero.
    """
    rows = np.zeros((len(trees.split_feature), trees.features))
    known = np.isfinite(trees.split_threshold) & (np.abs(trees.split_threshold) > 1e-30)
    rows[np.arange(len(rows))[known], trees.split_feature[known]] = trees.split_threshold[known]
    return rows
