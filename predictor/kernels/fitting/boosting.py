"""Boosted trees for an artifact: fitted with LightGBM, handed on as plain arrays. Same data and seed: same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.errors import TilecastError
from predictor.files.records import dataclass
from predictor.kernels.trees import Trees

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BoosterSettings:
    """Size and pace of a booster. 63 bins a feature keep the table of thresholds, which a forecast compares, small."""

    #: Chosen by looking at shapes held out; for GEMM 600 rounds of 255 leaves were no better
    #: (benchmarks/results/accuracy-2026-11-23.md).
    rounds: int = 300
    leaves: int = 127
    depth: int = 9
    rate: float = 0.1
    rows_a_leaf: int = 20
    sampling: float = 0.7
    bins: int = 63


def boost(x: FloatArray, y: FloatArray, seed: int, settings: BoosterSettings) -> Trees:
    """Trees fitted to minimise the mean absolute error of ``y`` (n,) from features ``x`` (n, f)."""
    return Trees.from_nested(roots(fit_booster(x, y, seed, settings)), x.shape[1])


def fit_booster(x: FloatArray, y: FloatArray, seed: int, settings: BoosterSettings) -> Any:
    """The LightGBM booster behind ``boost``; TilecastError where the library is missing."""
    try:
        import lightgbm
    except ImportError:
        raise TilecastError('training needs LightGBM: pip install "tilecast[train]"') from None
    parameters = {
        "objective": "l1",
        "num_leaves": settings.leaves,
        "max_depth": settings.depth,
        "learning_rate": settings.rate,
        "min_data_in_leaf": settings.rows_a_leaf,
        "feature_fraction": settings.sampling,
        "bagging_fraction": settings.sampling,
        "bagging_freq": 1,
        "max_bin": settings.bins,
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbosity": -1,
    }
    return lightgbm.train(parameters, lightgbm.Dataset(x, y), settings.rounds)


def roots(booster: Any) -> list[Any]:
    """Root nodes of a booster's trees as nested mappings."""
    return [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]
