"""LLMServingSim's layer profiles (casys-kaist/LLMServingSim, MIT): vLLM on two boards, Hugging Face code on others.

Layout kernels/GPU/v1/MODEL/bf16/tpN/{dense,per_sequence,attention,moe,skew}.parquet (vLLM 0.19, microseconds) and
kernels/GPU/v0/MODEL/tpN/layers.parquet (Hugging Face, nanoseconds). One decoder layer at a time, tensor parallelism by
dividing heads, hidden parts and vocabulary. A row becomes one operator or is counted as skipped: calls that hold
prompts and decodes, or decodes of different lengths, are no operator of ours, nor are modules of several kernels.

Between two decode steps a pass streams the layer's weights and the vocabulary's, so that nothing of the KV cache is
left in L2: these rows are "cold". Of weights, what fits L2 stays there in part ("unknown").
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.data.dataset import Frame
from predictor.data.importers.base import (
    Collector,
    ImportResult,
    check_columns,
    collect,
    drop_bad_latency,
    find,
    flag_below_bound,
)
from predictor.data.parquet import read_frame
from predictor.errors import SpecError, UnknownNameError
from predictor.files.records import dataclass
from predictor.hardware.gpu import load_gpu

EXPECTED = "kernels/GPU/v1/MODEL/bf16/tpN/*.parquet or kernels/GPU/v0/MODEL/tpN/layers.parquet"

#: Folder -> catalogue id, where the folder says too little. "h100" reaches 813 TFLOP/s and 3.08 TB/s, which only the
#: SXM board does.
GPUS = {"h100": "h100-sxm"}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Sizes of a layer, from the model's config.json; ``experts`` are (width of one, number, picked a token)."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    experts: tuple[int, int, int] | None = None


#: Source: the config.json of each model on Hugging Face.
MODELS: Mapping[str, ServedModel] = {
    "meta-llama/Llama-3.1-8B": ServedModel(4096, 32, 8, 128, 14336, 128256),
    "meta-llama/Llama-3.1-70B": ServedModel(8192, 64, 8, 128, 28672, 128256),
    "mistralai/Mixtral-8x7B-v0.1": ServedModel(4096, 32, 8, 128, 14336, 32000, (14336, 8, 2)),
    "microsoft/Phi-mini-MoE-instruct": ServedModel(4096, 32, 8, 128, 960, 32064, (960, 16, 2)),
    "Qwen/Qwen3-32B": ServedModel(5120, 64, 8, 128, 25600, 151936),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ServedModel(2048, 32, 4, 128, 6144, 151936, (768, 128, 8)),
}
#: Hugging Face layers have a row for each of 2,048 token counts. These are kept: all up to 64, then every 16th.
#: Chosen by hand, not from data.
_ALL_TO, _EVERY = 64, 16
#: Flags: a kernel within a layer, whose weights and operands lie in L2 in part, at sizes that are on no grid; expert
#: rows, whose tokens pick among the active experts alone, which stand for all of them.
IN_LAYER, ACTIVE_EXPERTS = "in_layer", "active_experts"


def run(root: Path) -> ImportResult:
    """Imports every layer profile below `root`. Raises SpecError where there is none."""
    files = find(root, ("kernels/*/v1/*/*/bf16/tp*/*.parquet", "kernels/*/v0/*/*/tp*/layers.parquet"))
    result = collect("llmservingsim", root, files, EXPECTED, _import_file).result()
    flag_below_bound(result.frame)
    return result


def _import_file(into: Collector, path: Path) -> None:
    parts = path.relative_to(into.root).parts
    gpu, name, tp, table = parts[1], "/".join(parts[3:5]), int(parts[-2].removeprefix("tp")), path.stem
    raw = read_frame(path)
    try:
        board = load_gpu(GPUS.get(gpu, gpu)).id
    except UnknownNameError as error:
        return into.skip_file(path, len(raw), str(error))
    if name not in MODELS:
        return into.skip_file(path, len(raw), f"{name}: no sizes known of it; expected {', '.join(MODELS)}")
    about = {"gpu": board, "protocol": "profiler", "dtype": "bf16"}
    if table == "layers":
        about |= {"framework": "pytorch", "kernel_source": "transformers", "cache_state": "unknown"}
        return _layers(into, path, raw, "layer_name", "input", "latency(ns)", 1e-6, _hf_shapes(MODELS[name], tp), about)
    about |= {"framework": "vllm", "framework_version": "0.19.0", "cache_state": "unknown"}
    if table in ("dense", "per_sequence"):
        shapes, count = _vllm_shapes(MODELS[name], tp), "tokens" if table == "dense" else "sequences"
        return _layers(into, path, raw, "layer", count, "time_us", 1e-3, shapes, about)
    if table == "attention":
        return _attention(into, path, raw, MODELS[name], tp, about)
    if table == "moe":
        return _moe(into, path, raw, MODELS[name], tp, about)
    return into.skip_file(path, len(raw), "decodes of different lengths in one call")


def _layers(
    into: Collector, path: Path, raw: Frame, layer: str, count: str, time: str, to_ms: float,
    shapes: Mapping[str, Mapping[str, Any]], about: Mapping[str, Any],
) -> None:  # fmt: skip
    """Rows of a table of layers; ``shapes`` maps a layer's name to its operator, whose ``count`` varies."""
    raw = drop_bad_latency(into, path, check_columns(path, raw, (layer, count, time)), time)
    if about["framework"] == "pytorch":
        kept = (raw[count] <= _ALL_TO) | (raw[count] % _EVERY == 0)
        into.skip_file(path, int((~kept).sum()), f"sizes above {_ALL_TO} but for every {_EVERY}th")
        raw = raw[kept]
    for name, rows in raw.groupby(raw[layer].astype(str), sort=True):
        if name not in shapes:
            into.skip_file(path, len(rows), f"{name}: several kernels, or more than an operator of ours")
            continue
        shape = dict(shapes[name])
        size, times = shape.pop("size_column"), shape.pop("times", 1)
        cells = {size: rows[count] * times, "flag": IN_LAYER, "latency_ms": rows[time] * to_ms}
        into.add(path, rows, {**about, **shape, **cells})


def _product(n: int, k: int) -> dict[str, Any]:
    return {"op": "gemm", "kind": "linear", "layout": "tn", "bias": False, "batch": 1, "n": n, "k": k,
            "size_column": "m"}  # fmt: skip


def _hf_shapes(model: ServedModel, tp: int) -> dict[str, Mapping[str, Any]]:
    """Products of Hugging Face's layers; experts are whole ones, whatever the degree."""
    heads, kv_heads, width = model.heads // tp, max(1, model.kv_heads // tp), model.head_dim
    shapes: dict[str, Mapping[str, Any]] = {
        "q_proj": _product(heads * width, model.hidden),
        "k_proj": _product(kv_heads * width, model.hidden),
        "v_proj": _product(kv_heads * width, model.hidden),
        "o_proj": _product(model.hidden, heads * width),
        "gate_proj": _product(model.inner // tp, model.hidden),
        "up_proj": _product(model.inner // tp, model.hidden),
        "down_proj": _product(model.hidden, model.inner // tp),
        "lm_head": _product(model.vocab // tp, model.hidden),
    }
    if model.experts:
        inner = model.experts[0]
        shapes |= {"expert.w1": _product(inner, model.hidden), "expert.w3": _product(inner, model.hidden)}
        shapes["expert.w2"] = _product(model.hidden, inner)
    return shapes


def _vllm_shapes(model: ServedModel, tp: int) -> dict[str, Mapping[str, Any]]:
    """vLLM's fused layers; a norm that adds the residual first cannot be said by a row."""
    heads, kv_heads, width = model.heads // tp, max(1, model.kv_heads // tp), model.head_dim
    return {
        "qkv_proj": _product((heads + 2 * kv_heads) * width, model.hidden),
        "o_proj": _product(model.hidden, heads * width),
        "gate_up_proj": _product(2 * model.inner // tp, model.hidden),
        "down_proj": _product(model.hidden, model.inner // tp),
        "lm_head": _product(model.vocab // tp, model.hidden),
        "act_fn": {"op": "elementwise", "fn": "swiglu", "size_column": "elements", "times": model.inner // tp},
        "rotary_emb": {"op": "rotary", "heads": heads + kv_heads, "head_dim": width, "size_column": "tokens"},
        "embedding": {"op": "embedding", "width": model.hidden, "vocab": model.vocab // tp, "phase": "forward",
                      "size_column": "tokens"},
    }  # fmt: skip


def _attention(into: Collector, path: Path, raw: Frame, model: ServedModel, tp: int, about: Mapping[str, Any]) -> None:
    needed = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    raw = drop_bad_latency(into, path, check_columns(path, raw, needed), "time_us")
    chunk, decodes = raw["prefill_chunk"] > 0, raw["n_decode"] > 0
    into.skip_file(path, int((chunk & decodes).sum()), "a prompt and decodes in one call")
    shape = {
        "op": "attention", "heads": model.heads // tp, "kv_heads": max(1, model.kv_heads // tp), "causal": True,
        "head_dim": model.head_dim, "kv_dtype": "bf16", "phase": "forward", "kernel_source": "vllm_flash_attn_fa2",
        "window": 0,
    }  # fmt: skip
    prompts, steps = raw[chunk & ~decodes], raw[decodes & ~chunk]
    into.add(path, prompts, {
        **about, **shape, "batch": 1, "q_len": prompts["prefill_chunk"],
        "kv_len": prompts["prefill_chunk"] + prompts["kv_prefill"], "latency_ms": prompts["time_us"] * 1e-3,
    })  # fmt: skip
    into.add(path, steps, {
        **about, **shape, "batch": steps["n_decode"], "q_len": 1, "kv_len": steps["kv_decode"], "cache_state": "cold",
        "latency_ms": steps["time_us"] * 1e-3,
    })  # fmt: skip


def _moe(into: Collector, path: Path, raw: Frame, model: ServedModel, tp: int, about: Mapping[str, Any]) -> None:
    raw = drop_bad_latency(into, path, check_columns(path, raw, ("tokens", "activated_experts", "time_us")), "time_us")
    if model.experts is None:
        raise SpecError(f"{path}: a table of experts of a model without any")
    inner, _, top_k = model.experts
    into.add(path, raw, {
        **about, "op": "moe", "tokens": raw["tokens"], "hidden": model.hidden, "intermediate": inner, "top_k": top_k,
        "experts": raw["activated_experts"], "gated": True, "tp": tp, "ep": 1, "distribution": "balanced",
        "flag": ACTIVE_EXPERTS, "latency_ms": raw["time_us"] * 1e-3,
    })  # fmt: skip
