"""Tilecast: how long will this model take on that GPU, before anyone runs it?

>>> import predictor
>>> answer = predictor.predict("gpt2-large", "a100", batch=4, seq_len=1024)
>>> answer.latency_ms > 0
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["GPUSpec", "ModelConfig", "Prediction", "__version__", "load_config", "load_gpu", "predict"]

if TYPE_CHECKING:
    from predictor.api import predict
    from predictor.hardware.gpu import GPUSpec, load_gpu
    from predictor.networks import ModelConfig, load_config
    from predictor.prediction import Prediction

_WHERE = {
    "predict": "predictor.api",
    "GPUSpec": "predictor.hardware.gpu",
    "load_gpu": "predictor.hardware.gpu",
    "ModelConfig": "predictor.networks",
    "load_config": "predictor.networks",
    "Prediction": "predictor.prediction",
}


def __getattr__(name: str) -> Any:
    """Public names load when first used, so that `import predictor` costs nothing (PEP 562)."""
    if name not in _WHERE:
        raise AttributeError(f"module 'predictor' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_WHERE[name]), name)
