"""Made-up measurements of serving kernels whose law is known, and an estimator's answers, for several tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.kernels.base import make_batch
from predictor.ops import Op
from predictor.ops.roofline import roofline

GPUS = {name: load_gpu(name) for name in ("a100-sxm-80gb", "h100-sxm")}


def rows_of(ops: list[Op], gpu: GPUSpec, efficiency: float, **fields: Any) -> list[dict[str, Any]]:
    """Measurements of ops: the cold roofline over an efficiency, plus 4 microseconds."""
    names = list(type(ops[0]).__dataclass_fields__)
    cold = roofline(ops, gpu).cold_s / efficiency + 4e-6
    return [
        {name: getattr(op, name) for name in names} | {"gpu": gpu.id, "latency_ms": seconds * 1e3, "quant": ""} | fields
        for op, seconds in zip(ops, cold.tolist(), strict=True)
    ]


def latency(estimator: Any, family: str, ops: list[Op], gpu: GPUSpec, kernels: str = "vllm") -> Any:
    """Seconds of ops by an estimator, never below the roofline, shape (n,)."""
    seconds = estimator.seconds(make_batch(family, ops, kernels), gpu)
    assert seconds.shape == (len(ops),)
    assert (np.isfinite(seconds) & (seconds > 0)).all()
    return np.maximum(roofline(ops, gpu).lower_bound_s, seconds)
