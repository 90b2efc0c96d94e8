"""The table of model types against the classes of transformers, and against the checkpoints of the public folder."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from predictor import predict
from predictor.errors import TilecastError
from predictor.models.built import config_from_dict, parameters
from tests.model_types import TYPES, small

#: Checkpoints of the folder that have to give a forecast: the rest may say why not in one line.
LEAST = 56


@pytest.mark.parametrize("name", TYPES)
def test_parameters_equal_the_class_of_transformers(name: str) -> None:
    torch = pytest.importorskip("torch", reason="the test extra (torch, transformers) is not installed")
    transformers = pytest.importorskip("transformers", reason="the test extra (torch, transformers) is not installed")
    from predictor.models.traced.torchvision_operators import ready

    ready()
    config = transformers.models.auto.configuration_auto.CONFIG_MAPPING[name](**small(name))
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        known = type(config) in transformers.AutoModelForCausalLM._model_mapping
        model = (transformers.AutoModelForCausalLM if known else transformers.AutoModel).from_config(config)
    head = 0 if known or getattr(config, "tie_word_embeddings", False) else config.vocab_size * config.hidden_size
    data = {**small(name), **config.to_dict(), "architectures": None, "model_type": name}
    ours = parameters(config_from_dict({**small(name), **data}, name))
    assert ours == sum(p.numel() for p in model.parameters()) + head


def test_checkpoints_of_the_public_folder_decode_on_b200(data: Path) -> None:
    files = [path for path in sorted((data / "hf_configs").glob("*_config.json")) if "hf_quant" not in path.name]
    if not files:
        pytest.skip("no hf_configs beside the data")
    said = []
    for path in files:
        try:
            answer = predict(str(path), "b200", mode="decode", execution="vllm", batch=8, context_len=4096)
        except TilecastError as error:
            said.append(str(error))
            continue
        assert answer.latency_s > 0
        assert answer.interval_s is not None
        assert all(row.source == "estimator" or row.share < 0.01 for row in answer.breakdown), path.name
    assert len(files) - len(said) >= min(LEAST, len(files))
    assert all("\n" not in line for line in said)
