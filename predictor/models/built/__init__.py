"""Networks: a Hugging Face config.json -> ModelConfig -> the graph of one pass, parameter counts, KV cache sizes."""

from predictor.models.built.config import ModelConfig
from predictor.models.built.load import catalogue, config_from_dict, load_config
from predictor.models.built.parameters import (
    ParameterSplit,
    active_parameters,
    kv_bytes_per_token,
    kv_cache_bytes,
    layer_parameters,
    parameter_split,
    parameters,
    weight_bytes,
)
from predictor.models.built.stack import build
from predictor.models.built.type_reader import register_family
from predictor.models.step import Step

__all__ = [
    "ModelConfig", "ParameterSplit", "Step", "active_parameters", "build", "catalogue", "config_from_dict",
    "kv_bytes_per_token", "kv_cache_bytes", "layer_parameters", "load_config", "parameter_split", "parameters",
    "register_family", "weight_bytes",
]  # fmt: skip
