"""Parallelisms: each a module that turns the model of one GPU into one GPU's part of it, with what the parts say."""

from predictor.parallel.tensor import apply, check_tensor, rank_config

__all__ = ["apply", "check_tensor", "rank_config"]
