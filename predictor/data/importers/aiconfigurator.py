"""aiconfigurator's measurements (ai-dynamo/aiconfigurator, Apache-2.0): kernels of TensorRT-LLM, vLLM and SGLang.

Layout systems/data/<gpu>/<family>/<framework>/<version>/<table>_perf.parquet; milliseconds. Kernels are replayed in a
CUDA graph; on Intel's B60, which has none, launches stand inside the times, so its protocol is unknown.

Decode: `isl` is 1 and `step` the length of the cache before it, so kv_len = isl + step (the time grows with `step` and,
where there is a window, stops growing at the window). Prefill: kv_len = isl + step, step being 0 throughout.
Rows of one table that repeat a shape are kept, each with its own time; `dataset.merge_repeats` joins them.

What the numbers say of themselves, and the importer therefore writes down:

* GEMM weights rotate. vLLM and SGLang read from DRAM as soon as about six copies no longer fit in L2; TensorRT-LLM's
  weights stay warm up to about the size of L2 itself. TensorRT-LLM's fp8 products never take less than 10 to 12
  microseconds (a quantization launch), those of the others 4 to 6.
* vLLM's block-scaled products show the host: however small, they take 55 (FlashInfer), 78 (DeepGEMM), 150 (CUTLASS) or
  280 us (Triton), where SGLang's DeepGEMM takes 3.4; large ones agree. All are flagged "host_bound": what is left above
  the floor would still teach that short products are slow. Its latent attention takes no less than 100 to 300 us, by
  kernel: calls within that floor are flagged (`aiconfigurator_floors`).
* SGLang's tables of latent prefill hold the absorbed form, except on B200 and GB200 (`ABSORBED_PROMPTS`). Its engine
  runs the expanded form on prompts, and so does the graph of a model: the rows get their true sizes and the flag
  "absorbed_prompt".
* SGLang's heads of 192 have values of 128: with 192 its decode rows would pass L40S' memory bandwidth.
* Experts of the shapes in `NON_GATED` have no gate: with one, they would be faster than memory in all frameworks.
* TensorRT-LLM 1.0.0 on A100, decode with fewer KV heads than heads, cache above 128 MiB: up to 3.4 TB/s, twice what
  the memory gives and twice its own rate without grouping. Flagged "kv_read_short".
* B200 and GB200 have shapes with two kernels of one framework, 1.4 to 1.7 times apart (median): attention in SGLang,
  nvfp4 experts in TensorRT-LLM. One forecast cannot be both: those that the engine does not run by default are flagged
  "not_default".
* "balanced" routing of 256 experts of 7168 x 2048 (grouped top-k) hits about half of the experts that an even spread
  would hit; rows that pass the bound for it are flagged "beats_roofline" as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from predictor.data.dataset import Frame
from predictor.data.importers import aiconfigurator_comm, aiconfigurator_floors, aiconfigurator_linear
from predictor.data.importers.base import (
    Collector,
    ImportResult,
    check_columns,
    drop_bad_latency,
    find,
    flag_below_bound,
    joined,
    not_this_layout,
)
from predictor.data.parquet import count_rows, read_frame
from predictor.errors import UnknownNameError
from predictor.files.extras import require
from predictor.hardware.gpu import GPUSpec, load_gpu

EXPECTED = "systems/data/<gpu>/<family>/<framework>/<version>/<table>_perf.parquet"

#: Their dtype -> (dtype of the arithmetic, quantization scheme where that does not say it all). Weight-only schemes
#: (w4a16, int8_wo) compute in bf16; "sq" is SmoothQuant, int8 by int8.
DTYPES = {
    "bfloat16": ("bf16", ""),
    "float16": ("fp16", ""),
    "fp8": ("fp8", ""),
    "nvfp4": ("nvfp4", ""),
    "fp8_block": ("fp8", "fp8_block"),
    "sq": ("int8", "sq"),
    "int8_wo": ("bf16", "int8_wo"),
    "int4_wo": ("bf16", "int4_wo"),
    "w4a16_mxfp4": ("bf16", "w4a16_mxfp4"),
    "w4a8_mxfp4_mxfp8": ("mxfp8", "w4a8_mxfp4_mxfp8"),
}

#: Framework -> kernels in the order in which it takes them; the others come last. SGLang 0.5.9, server_args.py:1785:
#: fa3 on compute capability 9, trtllm_mha on 10, else flashinfer. TensorRT-LLM, MoeConfig: CUTLASS, others by choice.
DEFAULT_KERNELS = {"sglang": ("fa3", "trtllm_mha", "flashinfer"), "trtllm": ("moe_torch_flow_cutlass",)}

#: Kernels of `context_mla` tables that ran the absorbed form. SGLang's FlashAttention-3 on H100 and H200 and its Triton
#: kernel on L40S and RTX PRO 6000: at the widths of the absorbed form they reach 590 and 75 to 102 TFLOP/s, at those of
#: the expanded one 174 and 22 to 30, a quarter of what vLLM and TensorRT-LLM reach there. The times are 3.3 times
#: TensorRT-LLM's on H100, the FLOPs (576 + 512) / (192 + 128) = 3.4 times. B200's and GB200's (trtllm_mla) are as long
#: as TensorRT-LLM's, and the absorbed form would take twice their peak.
ABSORBED_PROMPTS = ("flash_attention", "triton")

_COMMON = ("framework", "version", "kernel_source", "latency")
_ATTENTION = (
    "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "attn_dtype", "kv_cache_dtype", "step",
)  # fmt: skip
_MOE = (
    "moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size",
    "distribution",
)  # fmt: skip

_MLA = ("batch_size", "isl", "num_heads", "mla_dtype", "kv_cache_dtype", "step")

#: Tables of a whole attention module (projections, norms, rotary, attention and output in one time): no operator of
#: ours is that much, and a graph adds the parts up. Counted among the rows that were skipped.
_MODULES = ("mla_context_module_perf", "mla_generation_module_perf")

#: (hidden, intermediate, top_k, experts) of models whose experts have no gate (Nemotron-H). Source: TensorRT-LLM's
#: rows, whose kernel_source is moe_torch_flow_nongated; other frameworks run the same shapes under their common kernel
#: names.
NON_GATED: frozenset[tuple[int, int, int, int]] = frozenset(
    {(2688, 1856, 6, 128), (1024, 2688, 22, 512), (4096, 2688, 22, 512), (2048, 5120, 22, 512), (8192, 5120, 22, 512)}
)


def run(root: Path) -> ImportResult:
    """Imports every *_perf.parquet below `root`. Raises SpecError where there is none in this layout."""
    return joined(list(parts(root)))


def parts(root: Path) -> Iterator[ImportResult]:
    """What `run` gives, one system folder after the other: all of them together need gigabytes."""
    files = [path for path in find(root, ("**/*_perf.parquet",)) if len(path.parts) >= 5]
    if not any(_gpu_of(path) is not None for path in files):
        raise not_this_layout("aiconfigurator", root, EXPECTED)
    for _, members in groupby(files, key=lambda path: path.parents[3]):
        into = Collector("aiconfigurator", root)
        into.read(members, _import_file)
        result = into.result()
        flag_below_bound(result.frame)
        yield result


def _gpu_of(path: Path) -> GPUSpec | None:
    """The GPU that a table's system folder names, such as b200_sxm; None where the catalogue has none of that name."""
    try:
        return load_gpu(path.parts[-5])
    except UnknownNameError:
        return None


def _import_file(into: Collector, path: Path) -> None:
    table = TABLES.get(path.stem)
    collectives = path.stem in aiconfigurator_comm.TABLES
    if table is None and not collectives:
        why = "times a whole attention module, no operator" if path.stem in _MODULES else "has no operator yet"
        into.skip_file(path, count_rows(path), f"table {path.stem} {why}")
        return
    gpu = _gpu_of(path)
    if gpu is None:
        into.skip_file(path, count_rows(path), f"system {path.parts[-5]!r} is no GPU of the catalogue")
        return
    raw = read_frame(path)
    if table is None:
        raw = drop_bad_latency(into, path, check_columns(path, raw, ("latency",)), "latency")
        aiconfigurator_comm.import_rows(into, path, raw, gpu)
        return
    needed, shape_of = table
    check_columns(path, raw, (*_COMMON, *needed))
    raw = drop_bad_latency(into, path, raw, "latency")
    raw = _drop_unknown(into, path, raw)
    if not len(raw):
        return
    if path.stem == "computescale_perf":
        raw = aiconfigurator_linear.with_subtrahend(raw, path)
    framework = path.parts[-3]
    columns = {
        "gpu": gpu.id, "framework": framework, "framework_version": raw["version"],
        "kernel_source": raw["kernel_source"], "protocol": "cuda_graph" if _has_graphs(gpu) else "unknown",
        "cache_state": _cache_state(path.stem, gpu), "latency_ms": raw["latency"], **shape_of(raw),
        "flag": _joined(_flag(path.stem, raw, gpu, framework), _not_default(raw, framework, needed)),
    }  # fmt: skip
    if "attn_dtype" in raw and framework == "sglang":
        columns["v_head_dim"] = raw["head_dim"].map({192: 128}).fillna(0)
    into.add(path, raw, columns)


def _joined(flags: Any, more: Any) -> Any:
    """Two flags of every row in one."""
    return more if isinstance(flags, str) else (flags + ";" + more).str.strip(";")


def _not_default(raw: Frame, framework: str, needed: tuple[str, ...]) -> Any:
    """The flag of rows whose shape the same table also times with a kernel that the engine takes first."""
    order = DEFAULT_KERNELS.get(framework, ())
    names = raw["kernel_source"].astype(str)
    rank = names.map({name: order.index(name) if name in order else len(order) for name in names.unique()})
    shape = [name for name in (*needed, "window_size") if name in raw]
    first = rank.groupby([raw[name] for name in shape]).transform("min")
    return (rank > first).map({True: "not_default", False: ""})


def _has_graphs(gpu: GPUSpec) -> bool:
    """Whether kernels are replayed in a CUDA graph; on Intel's GPUs launches stand inside the times."""
    return gpu.vendor == "nvidia"


def _flag(table: str, raw: Frame, gpu: GPUSpec, framework: str) -> Any:
    """The flag of every row of a table: why it is kept apart, or nothing."""
    if table == "generation_attention_perf" and gpu.id == "a100-sxm-80gb" and framework == "trtllm":
        return _short_reads(raw)
    if table in PROMPT_TABLES:
        short = (raw["isl"] == 1).map({True: "one_token_prompt", False: ""})
        if table != "context_mla_perf":
            return short
        absorbed = _absorbed(raw).map({True: "absorbed_prompt", False: ""})
        return _joined(_joined(short, absorbed), aiconfigurator_floors.of_latent_attention(raw))
    if table == "generation_mla_perf":
        return aiconfigurator_floors.of_latent_attention(raw)
    if table == "gemm_perf" and framework == "vllm":
        return aiconfigurator_floors.of_products(raw)
    if table == "mla_bmm_perf":
        return raw["kernel_source"].astype(str).str.contains("dequant").map({True: "dequantized", False: ""})
    if table == "gdn_perf":
        slow = aiconfigurator_linear.slow_machine(raw, gpu.id, framework)
        return _joined(aiconfigurator_linear.channels_unknown(raw), slow)
    return aiconfigurator_linear.differences(raw) if table == "computescale_perf" else ""


#: Tables of prefill kernels. Their prompts of one token have the shape of a decode step over one key, which they are
#: not: flagged, or a fit takes them for decode kernels.
PROMPT_TABLES = ("context_attention_perf", "context_mla_perf", "encoder_attention_perf")


def _short_reads(raw: Frame) -> Any:
    """The flag of decode rows whose grouped KV cache is above 128 MiB (16 bit, keys and values)."""
    cache = raw["batch_size"] * raw["num_key_value_heads"] * (raw["isl"] + raw["step"]) * raw["head_dim"] * 4
    short = (raw["num_key_value_heads"] < raw["num_heads"]) & (cache > 128 * 2**20)
    return short.map({True: "kv_read_short", False: ""})


def _cache_state(table: str, gpu: GPUSpec) -> str:
    """GEMMs cycle through copies of the weight; of the other tables, and without CUDA graphs, it is not known."""
    return "rotating" if table == "gemm_perf" and _has_graphs(gpu) else "unknown"


def _drop_unknown(into: Collector, path: Path, raw: Frame) -> Frame:
    for column in ("gemm_dtype", "moe_dtype", "attn_dtype", "mla_dtype", "kv_cache_dtype", "bmm_dtype", "quant_dtype"):
        if column not in raw:
            continue
        for name in sorted(set(raw[column].unique()) - set(DTYPES)):
            raw = into.without(path, raw, (raw[column] == name).to_numpy(), f"{column} {name!r} has no dtype here")
    if "d_conv" in raw:
        unknown = aiconfigurator_linear.unknown_kernels(raw)
        raw = into.without(path, raw, unknown, "kernel of linear attention that is no operator")
    return raw


def _dtypes(names: Frame) -> dict[str, Any]:
    return {
        "dtype": names.map({k: dtype for k, (dtype, _) in DTYPES.items()}),
        "quant": names.map({k: quant for k, (_, quant) in DTYPES.items()}),
    }


def _gemm(raw: Frame) -> dict[str, Any]:
    return {
        "op": "gemm", "kind": "linear", "layout": "tn", "bias": False, "batch": 1, "m": raw["m"], "n": raw["n"],
        "k": raw["k"], **_dtypes(raw["gemm_dtype"]),
    }  # fmt: skip


def _attention(raw: Frame) -> dict[str, Any]:
    kv_dtypes = raw["kv_cache_dtype"].map({k: dtype for k, (dtype, _) in DTYPES.items()})
    return {
        "op": "attention", "phase": "forward", "batch": raw["batch_size"], "heads": raw["num_heads"],
        "kv_heads": raw["num_key_value_heads"], "q_len": raw["isl"], "kv_len": raw["isl"] + raw["step"],
        "head_dim": raw["head_dim"], "causal": True, "kv_dtype": kv_dtypes,
        "window": raw.get("window_size", 0), **_dtypes(raw["attn_dtype"]),
    }  # fmt: skip


def _encoder(raw: Frame) -> dict[str, Any]:
    return {
        "op": "attention", "phase": "forward", "batch": raw["batch_size"], "heads": raw["num_heads"],
        "kv_heads": raw["num_heads"], "q_len": raw["isl"], "kv_len": raw["isl"], "head_dim": raw["head_dim"],
        "causal": False, "window": 0, **_dtypes(raw["attn_dtype"]),
    }  # fmt: skip


def _moe(raw: Frame) -> dict[str, Any]:
    return {
        "op": "moe", "tokens": raw["num_tokens"], "hidden": raw["hidden_size"], "intermediate": raw["inter_size"],
        "experts": raw["num_experts"], "top_k": raw["topk"], "gated": _gated(raw), "tp": raw["moe_tp_size"],
        "ep": raw["moe_ep_size"], "distribution": raw["distribution"], **_dtypes(raw["moe_dtype"]),
    }  # fmt: skip


def _gated(raw: Frame) -> Any:
    """Whether the experts have a gate: not where the kernel source says so, nor for the shapes of `NON_GATED`."""
    pd = require("pandas")
    shapes = pd.MultiIndex.from_frame(raw[["hidden_size", "inter_size", "topk", "num_experts"]])
    plain = raw["kernel_source"].astype(str).str.contains("nongated").to_numpy()
    return ~(plain | shapes.isin(list(NON_GATED)))


def _latent(raw: Frame) -> dict[str, Any]:
    """What prefill and decode of multi-head latent attention share; the tables hold DeepSeek-V3's widths."""
    kv_dtypes = raw["kv_cache_dtype"].map({k: dtype for k, (dtype, _) in DTYPES.items()})
    return {
        "op": "attention", "phase": "forward", "batch": raw["batch_size"], "heads": raw["num_heads"],
        "kv_len": raw["isl"] + raw["step"], "causal": True, "window": 0, "kv_dtype": kv_dtypes,
        **_dtypes(raw["mla_dtype"]),
    }  # fmt: skip


def _absorbed(raw: Frame) -> Any:
    """Which rows of a table of latent prefill ran the absorbed form."""
    return raw["kernel_source"].isin(ABSORBED_PROMPTS)


def _latent_prefill(raw: Frame) -> dict[str, Any]:
    """Expanded: keys of 128 + 64 and values of 128 in every head; absorbed where the kernel ran that."""
    absorbed = _absorbed(raw)
    return {
        **_latent(raw), "kv_heads": raw["num_heads"].where(~absorbed, 1), "q_len": raw["isl"],
        "head_dim": absorbed.map({True: 576, False: 192}), "v_head_dim": absorbed.map({True: 512, False: 128}),
        "shared_kv": absorbed,
    }  # fmt: skip


def _latent_decode(raw: Frame) -> dict[str, Any]:
    """Absorbed: one latent vector of 512 + 64 a token for all heads, whose first 512 are the values."""
    return {
        **_latent(raw), "kv_heads": 1, "q_len": 1, "head_dim": 576, "v_head_dim": 512, "shared_kv": True,
    }  # fmt: skip


def _latent_bmm(raw: Frame) -> dict[str, Any]:
    """What decode folds into query and output, a product a head: (tokens, 128) x (128, 512), and back."""
    before = raw["op_name"].astype(str) == "mla_gen_pre"
    return {
        "op": "gemm", "kind": "bmm", "layout": "nn", "bias": False, "batch": raw["num_heads"], "m": raw["num_tokens"],
        "n": before.map({True: 512, False: 128}), "k": before.map({True: 128, False: 512}),
        **_dtypes(raw["bmm_dtype"]),
    }  # fmt: skip


#: Table -> (columns that it must have beside the common ones, their rows -> the operator's cells).
TABLES: dict[str, tuple[tuple[str, ...], Callable[[Frame], dict[str, Any]]]] = {
    "gemm_perf": (("gemm_dtype", "m", "n", "k"), _gemm),
    "context_attention_perf": (_ATTENTION, _attention),
    "generation_attention_perf": (_ATTENTION, _attention),
    "encoder_attention_perf": (("batch_size", "isl", "num_heads", "head_dim", "attn_dtype"), _encoder),
    "moe_perf": (_MOE, _moe),
    "context_mla_perf": (_MLA, _latent_prefill),
    "generation_mla_perf": (_MLA, _latent_decode),
    "mla_bmm_perf": (("op_name", "bmm_dtype", "num_tokens", "num_heads"), _latent_bmm),
    "computescale_perf": (aiconfigurator_linear.QUANTIZE, aiconfigurator_linear.quantize),
    "scale_matrix_perf": (aiconfigurator_linear.QUANTIZE, aiconfigurator_linear.quantize),
    "gdn_perf": (aiconfigurator_linear.GDN, aiconfigurator_linear.gdn),
    "mamba2_perf": (aiconfigurator_linear.MAMBA2, aiconfigurator_linear.mamba2),
}
