"""Parallelisms: each a module that turns the model of one GPU into one GPU's part of it, with what the parts say."""

from predictor.parallel.tensor import check_tensor, rank_config

__all__ = ["check_tensor", "rank_config"]
