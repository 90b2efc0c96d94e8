"""Networks: a Hugging Face config.json -> ModelConfig -> the graph of one pass, parameter counts, KV cache sizes."""

from predictor.networks.build import build
from predictor.networks.config import ModelConfig
from predictor.networks.families import register_family
from predictor.networks.load import catalogue, config_from_dict, load_config
from predictor.networks.parameters import (
    ParameterSplit,
    active_parameters,
    kv_bytes_per_token,
    kv_cache_bytes,
    layer_parameters,
    parameter_split,
    parameters,
    weight_bytes,
)
from predictor.networks.step import Step

__all__ = [
    "ModelConfig", "ParameterSplit", "Step", "active_parameters", "build", "catalogue", "config_from_dict",
    "kv_bytes_per_token", "kv_cache_bytes", "layer_parameters", "load_config", "parameter_split", "parameters",
    "register_family", "weight_bytes",
]  # fmt: skip
