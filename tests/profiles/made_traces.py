"""Small traces with every number chosen, as PyTorch's profiler writes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

MATRIX = "c10::BFloat16"


class MadeTrace:
    """Events of a job on one board; times are microseconds."""

    def __init__(self, board: str = "NVIDIA H100 80GB HBM3") -> None:
        self.events: list[dict[str, Any]] = []
        self.head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": board}]}
        self._last = 0

    def event(self, cat: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
        made = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, "args": args}
        self.events.append(made)
        return made

    def step(self, number: int, start: float, length: float) -> None:
        self.event("user_annotation", f"ProfilerStep#{number}", start, length)

    def call(
        self, name: str, dims: list[Any], start: float, length: float, types: list[str] | None = None,
        strides: list[Any] | None = None, concrete: list[str] | None = None,
    ) -> int:  # fmt: skip
        """A call of PyTorch; its external id."""
        self._last += 1
        words = {"Input type": types or [MATRIX] * len(dims), "Concrete Inputs": concrete or [""] * len(dims)}
        if strides is not None:
            words["Input Strides"] = strides
        self.event("cpu_op", name, start, length, **{"External id": self._last, "Input Dims": dims, **words})
        return self._last

    def kernel(
        self, name: str, start: float, length: float, launched: float | None, outer: int = -1, took: float = 4.0,
        **args: Any,
    ) -> None:  # fmt: skip
        """A kernel, and its launch at ``launched`` that took the host ``took``."""
        self._last += 1
        words = {"correlation": self._last, "device": 0, "stream": 7, **args}
        if launched is not None:
            of = {"External id": outer} if outer >= 0 else {}
            self.event("cuda_runtime", "cudaLaunchKernel", launched, took, correlation=self._last, **of)
        self.event("kernel", name, start, length, **words)

    def write(self, path: Path) -> Path:
        text = json.dumps({**self.head, "traceEvents": self.events}).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def two_products(board: str = "NVIDIA H100 80GB HBM3") -> MadeTrace:
    """Two products of 10 and 20 us and an unknown kernel of 10: the GPU waits 5 us for the first, 25 for the last."""
    made = MadeTrace(board)
    made.step(1, 0.0, 100.0)
    first = made.call("aten::mm", [[4096, 4096], [4096, 4096]], 0.0, 5.0)
    made.kernel("sm90_gemm_bf16", 5.0, 10.0, 1.0, first, took=3.0)
    second = made.call("aten::mm", [[4096, 4096], [4096, 8192]], 6.0, 8.0)
    made.kernel("sm90_gemm_bf16", 15.0, 20.0, 8.0, second, took=4.0)
    made.kernel("my_kernel", 60.0, 10.0, 59.0, took=5.0)
    return made
