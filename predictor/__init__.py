"""Tilecast: how long will this model take on that GPU, before anyone runs it?

>>> import predictor
>>> answer = predictor.predict("gpt2-large", "a100", batch=4, seq_len=1024)
>>> 0 < answer.mfu < 1, answer.memory.fits, max(answer.breakdown, key=lambda row: row.share).op
(True, True, 'linear')

The names of `__all__` are the public interface: a change that breaks one of them is said in the changelog.

predict, predict_many       forecast one run, or many at once; the words are those of `tilecast predict`
trace                       a torch.nn.Module as a model that `predict` takes
Prediction                  the answer: times in seconds, memory in bytes, the breakdown, where each number is from
GPUSpec, load_gpu           one GPU, of the catalogue or of a YAML file
ModelConfig, load_config    one model, of the catalogue or of a Hugging Face config.json
SystemSpec, load_system     what joins several GPUs
TilecastError               every error raised on purpose; RequestError: what was asked cannot be answered
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = [
    "GPUSpec",
    "ModelConfig",
    "Prediction",
    "RequestError",
    "SystemSpec",
    "TilecastError",
    "__version__",
    "load_config",
    "load_gpu",
    "load_system",
    "predict",
    "predict_many",
    "trace",
]

if TYPE_CHECKING:
    from predictor.api import predict, predict_many, trace
    from predictor.errors import RequestError, TilecastError
    from predictor.hardware.gpu import GPUSpec, load_gpu
    from predictor.hardware.system import SystemSpec, load_system
    from predictor.models.built import ModelConfig, load_config
    from predictor.simulate.answer import Prediction

_WHERE = {
    "predict": "predictor.api",
    "predict_many": "predictor.api",
    "trace": "predictor.api",
    "GPUSpec": "predictor.hardware.gpu",
    "load_gpu": "predictor.hardware.gpu",
    "SystemSpec": "predictor.hardware.system",
    "load_system": "predictor.hardware.system",
    "TilecastError": "predictor.errors",
    "RequestError": "predictor.errors",
    "ModelConfig": "predictor.models.built",
    "load_config": "predictor.models.built",
    "Prediction": "predictor.simulate.answer",
}


def __getattr__(name: str) -> Any:
    """Public names load when first used, so that `import predictor` costs nothing (PEP 562)."""
    if name not in _WHERE:
        raise AttributeError(f"module 'predictor' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
