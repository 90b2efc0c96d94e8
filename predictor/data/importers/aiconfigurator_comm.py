"""aiconfigurator's collectives in one node: NCCL, oneCCL, the all_reduce kernels of TensorRT-LLM, vLLM and SGLang.

`message_size` is in ELEMENTS of the row's dtype: of the full buffer (the gathered vector of an all_gather, what a rank
sends in an all_to_all), but for oneCCL's all_gather, whose rate passes PCIe unless it is the share of one rank.
NCCL and oneCCL rows get framework "pytorch", whose collectives they are. The frameworks' own kernels were timed inside
a CUDA graph ("..._graph", and TensorRT-LLM) and launched one by one ("..._eager": host time inside, and the copy into a
registered buffer); above some 8 MiB, and on PCIe beyond two GPUs, they hand over to NCCL themselves.
"""

from __future__ import annotations

from pathlib import Path

from predictor.data.dataset import Frame
from predictor.data.importers.base import Collector, check_columns, collective_cells
from predictor.files.extras import require
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.system import default_system

#: Table -> the column that names the dtype.
TABLES = {"nccl_perf": "nccl_dtype", "oneccl_perf": "nccl_dtype", "custom_allreduce_perf": "allreduce_dtype"}

_KINDS = {"alltoall": "all_to_all"}
_DTYPES = {"half": ("fp16", 2), "int8": ("int8", 1), "bfloat16": ("bf16", 2)}
_NEEDED = ("version", "kernel_source", "op_name", "num_gpus", "message_size", "latency")


def import_rows(into: Collector, path: Path, raw: Frame, gpu: GPUSpec) -> None:
    """Adds the collectives of one table (rows with a good latency, indexed from 0 in file order)."""
    np = require("numpy")
    column = TABLES[path.stem]
    check_columns(path, raw, (*_NEEDED, column))
    raw = into.without(path, raw, ~raw[column].isin(_DTYPES).to_numpy(), "dtype of a collective that has none here")
    if not len(raw):
        return
    kinds = raw["op_name"].astype(str).replace(_KINDS).reset_index(drop=True)
    ranks = raw["num_gpus"].astype(int).reset_index(drop=True)
    itemsize = raw[column].map({name: size for name, (_, size) in _DTYPES.items()}).reset_index(drop=True)
    sizes = raw["message_size"].astype(int).reset_index(drop=True) * itemsize
    if path.stem == "oneccl_perf":
        sizes = sizes * np.where(kinds == "all_gather", ranks, 1)
    custom = path.stem == "custom_allreduce_perf"
    eager = raw["kernel_source"].astype(str).str.endswith("_eager").reset_index(drop=True)
    graph = "cuda_graph" if gpu.vendor == "nvidia" else "unknown"
    into.add(path, raw, {
        "gpu": gpu.id, "framework": path.parts[-3] if custom else "pytorch",
        "framework_version": raw["version"].to_numpy(),
        "kernel_source": raw["kernel_source"].astype(str).str.lower().to_numpy(),
        "protocol": eager.map({True: "eager_events", False: graph}), "cache_state": "unknown",
        "dtype": raw[column].map({name: dtype for name, (dtype, _) in _DTYPES.items()}).to_numpy(),
        "latency_ms": raw["latency"].to_numpy(),
        **collective_cells(default_system(gpu), kinds, sizes, ranks, ranks),
    })  # fmt: skip
