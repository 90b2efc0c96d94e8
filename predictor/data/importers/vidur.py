"""Vidur's operator profiles (microsoft/vidur, MIT): layers of five models in fp16, by tokens and tensor parallelism.

Layout compute/<gpu>/<organisation>/<model>/mlp.csv; one row holds the times of up to ten operators, in milliseconds,
and each of them is a measurement here. Kernel times from a profiler's trace, in whole microseconds (the smallest
medians are 1 to 3), so launches are not inside, and a row of 2 microseconds is known to about 25 %. The headline is the
median of 20 samples. The kernels are those of sarathi-serve, a branch of vLLM: cuBLAS products, vLLM's own others.

Every width is divided by the tensor parallel degree as Megatron does. The boards are those that the folders name: the
H100 reaches 749 TFLOP/s, more than its PCIe form sustains, and H100 / A100 / A40 stand to each other as their peaks and
bandwidths do, operator by operator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.data.dataset import Frame
from predictor.data.importers.base import (
    Collector,
    ImportResult,
    collect,
    collective_cells,
    find,
    flag_below_bound,
    is_time,
    read_csv,
)
from predictor.files.extras import require
from predictor.hardware.system import load_system

FILES = ("**/all_reduce.csv", "**/send_recv.csv")

#: Folder -> (GPU, system, whether the network between its nodes is the system's).
SYSTEMS = {
    "a100_dgx": ("a100-sxm-80gb", "dgx-a100", False),
    "h100_dgx": ("h100-sxm", "dgx-h100", True),
    "a100_pairwise_nvlink": ("a100-pcie-80gb", "a100-nvlink-pairs", False),
    "h100_pairwise_nvlink": ("h100-nvl", "h100-nvlink-pairs", False),
    "a40_pairwise_nvlink": ("a40", "a40-nvlink-pairs", False),
}
SKEW_BELOW = 4 * 2**20  # bytes; chosen by looking at Vidur's all_reduce tables (see rank_skew above)

_NEEDED = ("num_workers", "size", "collective", "devices_per_node")


def import_file(into: Collector, path: Path) -> None:
    """Adds the rows of one file, or notes why they are left out."""
    name = path.stem
    raw = read_csv(path, (*_NEEDED, f"time_stats.{name}.median"))
    known = SYSTEMS.get(path.parent.name)
    if known is None:
        into.skip_file(path, len(raw), f"system {path.parent.name!r} is in no catalogue here")
        return
    gpu, system, networked = known
    bad = ~is_time(raw[f"time_stats.{name}.median"].to_numpy(dtype=float)) | (raw["collective"] != name).to_numpy()
    kept = into.without(path, raw, bad, f"latency of {name} is no number above zero")
    raw = kept.reset_index(drop=True)
    into.add(path, kept, {
        "gpu": gpu, "framework": "pytorch", "kernel_source": "nccl", "protocol": "profiler", "cache_state": "unknown",
        "dtype": "fp16", **_times(raw, name), "flag": _flags(path, raw, networked),
        **collective_cells(
            load_system(system), raw["collective"], raw["size"], raw["num_workers"], raw["devices_per_node"]
        ),
    })  # fmt: skip


def _times(raw: Frame, name: str) -> dict[str, Any]:
    """The statistics of an operator's times; the median is its latency."""
    times = {s: raw[f"time_stats.{name}.{s}"] for s in _STATISTICS if f"time_stats.{name}.{s}" in raw}
    return {"latency_ms": times["median"], **{f"latency_{s}_ms": values for s, values in times.items()}}


def _flags(path: Path, raw: Frame, networked: bool) -> Frame:
    pd = require("pandas")
    reasons = pd.Series([""] * len(raw))
    if path.parent.name == "h100_pairwise_nvlink" and path.stem == "send_recv":
        return pd.Series(["copy_of_a100"] * len(raw))
    if path.parent.name == "a40_pairwise_nvlink" and path.stem == "send_recv":
        reasons = reasons.mask(raw["num_workers"] <= raw["devices_per_node"], "link_not_used")
    if path.stem == "all_reduce":
        reasons = reasons.mask(raw["size"] < SKEW_BELOW, "rank_skew")
    if not networked:
        reasons = reasons.mask(raw["num_workers"] > raw["devices_per_node"], "network_unknown")
    return reasons


EXPECTED = "compute/<gpu>/<organisation>/<model>/mlp.csv"

GPUS = {"a100": "a100-sxm-80gb", "h100": "h100-sxm", "a40": "a40"}
LAYER_NORM = ("phi-2",)  # models with layer norm and biases; the others have RMS norm
PARTIAL_ROTARY = ("phi-2",)  # rotate only the first 32 of a head's 80 columns
QKV_BIAS = ("phi-2", "Qwen-72B")

_SHAPE = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size", "use_gated_mlp", "num_tokens",
          "num_tensor_parallel_workers")  # fmt: skip
_STATISTICS = ("min", "max", "mean", "median", "std")


def run(root: Path) -> ImportResult:
    """Imports every mlp.csv below `root`. Raises SpecError where there is none in this layout."""
    files = [path for path in find(root, ("**/mlp.csv",)) if len(path.parts) >= 4]
    into = collect("vidur", root, files, EXPECTED, _import_file)
    into.read(find(root, FILES), import_file)
    result = into.result()
    flag_below_bound(result.frame)
    return result


def _import_file(into: Collector, path: Path) -> None:
    raw = read_csv(path, _SHAPE)
    if not len(raw):
        return
    names = [column.split(".")[1] for column in raw if column.startswith("time_stats.") and column.endswith(".median")]
    gpu, model = GPUS.get(path.parts[-4]), path.parts[-2]
    for name in names:
        if gpu is None:
            into.skip_file(path, len(raw), f"device {path.parts[-4]!r} has no catalogue id here")
            continue
        shapes = _shapes(raw, model)
        if name not in shapes:
            into.skip_file(path, len(raw), f"operator {name} has no class yet")
        elif name == "add" and model in LAYER_NORM:
            into.skip_file(path, len(raw), f"add of {model} is two kernels (attention + MLP + residual)")
        else:
            flag = "partial_rotary" if name == "attn_rope" and model in PARTIAL_ROTARY else ""
            bad = ~is_time(raw[f"time_stats.{name}.median"].to_numpy(dtype=float))
            kept = into.without(path, raw, bad, f"latency of {name} is no number above zero")
            cells = _shapes(kept, model)[name] if bad.any() and len(kept) else shapes[name]
            into.add(path, kept, {
                "gpu": gpu, "flag": flag, "framework": "sarathi", "kernel_source": f"sarathi {name}", "samples": 20,
                "protocol": "profiler", "cache_state": "warm", "dtype": "fp16", **_times(kept, name), **cells,
            })  # fmt: skip


def _shapes(raw: Frame, model: str) -> dict[str, dict[str, Any]]:
    """Their operator name -> the cells of ours, for all rows of a file."""
    np = require("numpy")
    tokens, width, tp = raw["num_tokens"], raw["n_embd"], raw["num_tensor_parallel_workers"]
    head_dim = width // raw["n_head"]
    heads = raw["n_head"] // tp
    kv_heads = np.maximum(1, raw["n_kv_head"] // tp)
    inner = raw["n_expanded_embd"] // tp
    gated = bool(raw["use_gated_mlp"].iloc[0])
    bias = model in LAYER_NORM
    norm = {"op": "norm", "kind": "layer" if bias else "rms", "rows": tokens, "cols": width, "phase": "forward"}
    linear = {"op": "gemm", "kind": "linear", "layout": "tn", "batch": 1, "m": tokens, "bias": bias}
    return {
        "emb": {"op": "embedding", "tokens": tokens, "width": width, "vocab": -(-raw["vocab_size"] // tp),
                "phase": "forward"},
        "input_layernorm": norm,
        "post_attention_layernorm": norm,
        "attn_pre_proj": {**linear, "n": (heads + 2 * kv_heads) * head_dim, "k": width, "bias": model in QKV_BIAS},
        "attn_rope": {"op": "rotary", "tokens": tokens, "heads": heads + kv_heads, "head_dim": head_dim},
        "attn_post_proj": {**linear, "n": width, "k": heads * head_dim},
        "mlp_up_proj": {**linear, "n": inner * (2 if gated else 1), "k": width},
        "mlp_act": {"op": "elementwise", "fn": "swiglu" if gated else "gelu", "elements": tokens * inner},
        "mlp_down_proj": {**linear, "n": width, "k": inner},
        "add": {"op": "elementwise", "fn": "add", "elements": tokens * width},
    }  # fmt: skip
