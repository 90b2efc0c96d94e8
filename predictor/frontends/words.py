"""What `--model` names: a model of the catalogue or a config.json, or what is traced or was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from predictor.errors import RequestError
from predictor.files import read_json
from predictor.graph.saved_graph import from_json, is_recording
from predictor.networks.config import ModelConfig
from predictor.networks.load import load_config
from predictor.networks.traced import traced_model


def model_of(name: str | Path, inputs: str | Sequence[str] | None = None) -> ModelConfig:
    """The model that ``name`` stands for; ``inputs`` are those of one that is traced.

    A name of the catalogue, a config.json, a folder with one; "file.py:function"; a saved graph (.json). Raises
    RequestError, or one of its kinds.
    """
    text = str(name)
    if ".py:" in text:
        from predictor.frontends.sources import of_file  # a built model starts without it

        return of_file(text, inputs)
    if text.endswith(".json") and Path(text).expanduser().is_file() and not text.endswith("config.json"):
        data = read_json(Path(text).expanduser())
        if is_recording(data):
            from predictor.frontends.sources import Saved

            found = from_json(data, text)
            _no_inputs(inputs, "a saved graph has its inputs")
            return traced_model(found.name, Saved(found))
    _no_inputs(inputs, "only a model that is traced takes it (file.py:function)")
    return load_config(name)


def _no_inputs(inputs: str | Sequence[str] | None, why: str) -> None:
    if inputs:
        raise RequestError(f"--input {inputs if isinstance(inputs, str) else ' '.join(inputs)}: {why}; leave it out")
