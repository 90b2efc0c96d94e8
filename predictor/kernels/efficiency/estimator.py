"""The simplest estimator: latency = overhead + cold roofline / efficiency, two numbers an operator family and dtype.

It is what few measurements can carry: a processor that was measured for a minute, a new board's first rows. Keys of its
table are "gpu|family|dtype"; "*" stands for every GPU (medians), so that a GPU without rows has an answer, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.errors import SpecError
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.base import Batch
from predictor.kernels.explanation import SHARE, Explanation, terms
from predictor.ops.roofline import FloatArray, roofline

ANY = "*"


class Efficiency:
    """Seconds from one efficiency and one overhead by (GPU, family, dtype)."""

    def __init__(self, name: str, table: Mapping[str, tuple[float, float]]) -> None:
        self.name = name
        self._table = dict(table)

    @classmethod
    def from_artifact(cls, manifest: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]]) -> Efficiency:
        """From an artifact: ``weights["constants"]`` of shape (keys, 2) in the order of the manifest's ``keys``."""
        keys, values = manifest["keys"], weights["constants"]
        if values.shape != (len(keys), 2):
            raise SpecError("efficiency artifact: expected 'keys' in the manifest and constants of shape (keys, 2)")
        return cls(
            str(manifest["name"]),
            {key: (float(eff), float(overhead)) for key, (eff, overhead) in zip(keys, values, strict=True)},
        )

    def constants(self, gpu: str, family: str, dtype: str) -> tuple[float, float]:
        """(efficiency, overhead in seconds); the family's median over dtypes and GPUs where there is nothing closer."""
        for key in (f"{gpu}|{family}|{dtype}", f"{gpu}|{family}|{ANY}", f"{ANY}|{family}|{dtype}"):
            if key in self._table:
                return self._table[key]
        return self._table.get(f"{ANY}|{family}|{ANY}", (1.0, 0.0))

    def explain(self, batch: Batch, gpu: GPUSpec) -> Explanation:
        """The two numbers behind the only operator of ``batch``."""
        efficiency, overhead_s = self.constants(gpu.id, batch.family, batch.dtypes[0])
        cold_s = float(roofline(batch.ops, gpu).cold_s[0])
        parts = terms("time", [
            ("roofline", cold_s, "s", "with a cold cache"),
            ("efficiency", efficiency, SHARE, "of it"),
            ("overhead", overhead_s, "s", ""),
            ("kernel", cold_s / efficiency + overhead_s, "s", "roofline / efficiency + overhead"),
        ])  # fmt: skip
        known = any(key.startswith(f"{gpu.id}|{batch.family}|") for key in self._table)
        whose = f"rows of {gpu.id}" if known else "medians of the GPUs that were measured"
        return Explanation(tuple(parts), "launch" if overhead_s > cold_s / efficiency else "roofline", whose)

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time, shape (n,)."""
        pairs = np.array([self.constants(gpu.id, batch.family, dtype) for dtype in batch.dtypes])
        result: FloatArray = roofline(batch.ops, gpu).cold_s / pairs[:, 0] + pairs[:, 1]
        return result
