"""NeuSight's measurements (sitar-lab/NeuSight, MIT): fp32 operators of eager PyTorch 2.1, one CSV an operator and GPU.

Timed with CUDA events around the operator, 25 runs, mean of the fastest 5, no flush of L2; milliseconds.

Columns B, M, N, K: the product is (M, N) x (N, K), so its inner dimension is N, where Tilecast says k. The grids say
so: the tile in the kernel's name (sgemm_128x64_tn is 128 columns by 64 rows of the output) divides (K, M) into exactly
Grid x by Grid y blocks in every row, and no other pair of the three. Rows of `linear` carry a bias: their split-K
kernel is the instance with the bias epilogue, that of `bmm` is the one without.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.data.dataset import Frame
from predictor.data.importers.base import (
    Collector,
    ImportResult,
    check_columns,
    drop_bad_latency,
    find,
    not_this_layout,
    read_csv,
)

EXPECTED = "dataset/train/collect/<op>/<torch version>/<GPU>.csv or dataset/test/<op>.csv"

GPUS = {
    "Tesla P4": "p4",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla T4": "t4",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA L4": "l4",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
}

# Operators of B x H elements; a trailing u is the form whose second operand is a number.
FUNCTIONS = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "pow": "pow", "addu": "add_scalar", "mulu": "mul_scalar",
    "divu": "div_scalar", "powu": "pow_scalar", "relu": "relu", "tanh": "tanh", "gelu": "gelu",
}  # fmt: skip
_COMMON = ("OPName", "Latency", "Device", "Torch Version", "CUDA Version", "Kernel Name")
_LAUNCH = {f"{part}_{axis}": f"{part.title()} {axis}" for part in ("grid", "block") for axis in "xyz"}


def run(root: Path) -> ImportResult:
    """Imports every CSV of NeuSight's train and test tables below `root`. Raises SpecError where there is none."""
    into = Collector("neusight", root)
    files = [path for path in find(root, ("**/*.csv",)) if _split(path)]
    if not files:
        raise not_this_layout("neusight", root, EXPECTED)
    names = {path.name for path in files if _split(path) == "test"}
    for path in files:
        raw = read_csv(path, _COMMON)
        into.files += 1
        if path.name == "vec.csv" and {"elem.csv", "ln.csv", "softmax.csv"} <= names:
            into.skip_file(path, len(raw), "repeats a row of elem.csv, ln.csv or softmax.csv")
            continue
        _import_file(into, path, raw)
    return into.result()


def _split(path: Path) -> str:
    """ "train" or "test" by the nearest of NeuSight's folders that the file lies in; "" outside both tables."""
    split_of = {"collect": "train", "train": "train", "test": "test", "label": ""}
    return next((split_of[name] for name in reversed(path.parts[:-1]) if name in split_of), "")


def _import_file(into: Collector, path: Path, raw: Frame) -> None:
    raw = drop_bad_latency(into, path, raw, "Latency")
    for device in raw["Device"].fillna("").unique():
        if device not in GPUS:
            there = (raw["Device"].fillna("") == device).to_numpy()
            raw = into.without(path, raw, there, f"device {device!r} has no catalogue id here")
    for name, part in raw.groupby("OPName", sort=False):
        shape = _shape(path, str(name), part)
        if shape is None:
            into.skip_file(path, len(part), f"operator {name} has no class yet")
            continue
        into.add(path, part, _cells(_split(path), part, shape))


def _shape(path: Path, name: str, part: Frame) -> dict[str, Any] | None:
    """The operator's cells for the rows of `part`, or None for an operator that Tilecast has no class for."""
    if name in ("linear", "bmm"):
        check_columns(path, part, ("B", "M", "N", "K"))
        linear = name == "linear"
        return {
            "op": "gemm", "kind": name, "bias": linear, "layout": "tn" if linear else "nn",
            "batch": part["B"], "m": part["M"], "n": part["K"], "k": part["N"],
        }  # fmt: skip
    if name in ("ln", "softmax"):
        check_columns(path, part, ("B", "H"))
        shape = {"rows": part["B"], "cols": part["H"], "phase": "forward"}
        return {"op": "norm", "kind": "layer", **shape} if name == "ln" else {"op": "softmax", **shape}
    if name in FUNCTIONS:
        check_columns(path, part, ("B", "H"))
        return {"op": "elementwise", "fn": FUNCTIONS[name], "elements": part["B"] * part["H"]}
    return None


def _cells(split: str, part: Frame, shape: dict[str, Any]) -> dict[str, Any]:
    columns = {
        "split": split, "gpu": part["Device"].map(GPUS), "framework": "pytorch",
        "framework_version": part["Torch Version"].astype(str).str.lstrip("p"), "kernel_source": "eager",
        "protocol": "eager_events", "cache_state": "warm", "dtype": "fp32", "latency_ms": part["Latency"],
        "samples": 25, "kernel_name": part["Kernel Name"],
        "cuda_version": part["CUDA Version"].astype(str).str.lstrip("cu"),
        "torch_version": part["Torch Version"].astype(str).str.lstrip("p"), **shape,
    }  # fmt: skip
    columns |= {name: part[theirs] for name, theirs in _LAUNCH.items() if theirs in part}
    if "Kernels" in part and part["Kernels"].notna().all():
        columns["kernel_count"] = part["Kernels"].str.count(";")
    return columns
