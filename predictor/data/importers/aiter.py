"""aiter's tables of tuned kernels (ROCm/aiter, MIT): products, fused experts and gated delta nets on gfx942.

Layout gfx942/<table>.csv, the tables of aiter/configs and aiter/configs/model_configs with the rows of gfx942 alone;
microseconds. A row is the best of the many kernels (ck, asm, opus, triton, ...) that the tuner ran for a shape: a floor
of what one library does, not what another engine would choose. The launch is not in it, operands come from memory, and
activations are given quantized: no row holds the kernel that quantizes them.

The tables name a GPU by its compute units: 80 is MI308X. 304 is MI300X or MI325X, which are not told apart; here it is
MI300X.

What the numbers say of themselves, and the importer therefore writes down:

* A shape that stands in several tables differs 1.2 times (median), up to 2.6 times: the tuner ran at another time, with
  more kernels to choose from. All but the fastest are flagged "slower_repeat". (None of MI300X repeats.)
* Where a tenth and more of a table's rows of a board beat their roofline, all of them are flagged
  "table_beats_roofline": products of 80 compute units that pass that board's peak, measured on another one it seems,
  and 325 rows of fused experts that take as long for 32,768 tokens as for 8,192.
* chunk_gdn_h is one kernel of a chunked delta rule, that of the states, flagged "states_alone".
* Fused experts are the kernels of their two products; sorting the tokens is not in them. Tokens pick experts at random.
  Gelu in place of SwiGLU, and weighing in the first product, make no operator of their own: they are repeats.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.data.dataset import Frame
from predictor.data.importers.base import (
    FLAG,
    Collector,
    ImportResult,
    below_bound,
    collect,
    drop_bad_latency,
    find,
    read_csv,
)
from predictor.data.plausible import add_flag
from predictor.files.extras import require

EXPECTED = "gfx942/<table>.csv with cu_num and us"

#: Compute units -> catalogue id. Source: ROCm's gpu-arch-specs.rst (304), AMD-AGI GEAK's sku.json (80).
GPUS = {304: "mi300x", 80: "mi308x"}
#: What a file's name says of its products -> (dtype, quantization scheme); the column q_dtype_w goes before it.
FORMATS = {"blockscale": ("fp8", "fp8_block"), "a8w8": ("int8", "sq"), "bf16": ("bf16", "")}
DTYPES = {"torch.float8_e4m3fnuz": ("fp8", ""), "torch.int8": ("int8", "sq"), "torch.bfloat16": ("bf16", "")}
#: The scheme of experts whose weights have a scale for each block.
_BLOCKS = "QuantType.per_1x128"
#: Of a table's rows of one board, from which on none is believed. Chosen by looking at all tables: two have 0.28 and
#: 0.52, the next 0.004.
_TOO_MANY = 0.1


def run(root: Path) -> ImportResult:
    """Imports every table below `root`. Raises SpecError where there is none in this layout."""
    files = find(root, ("**/gfx942/*.csv",))
    result = collect("aiter", root, files, EXPECTED, _import_file).result()
    _flag_fast(result.frame)
    _flag_repeats(result.frame)
    return result


def _import_file(into: Collector, path: Path) -> None:
    np, pd = require("numpy"), require("pandas")
    raw = read_csv(path, ("cu_num", "us"))
    raw = drop_bad_latency(into, path, raw, "us")
    expected = f"expected {' or '.join(map(str, GPUS))} compute units"
    raw = into.without(path, raw, ~raw["cu_num"].isin(GPUS).to_numpy(), expected)
    if not len(raw):
        return
    delta_net = "total_chunks" in raw
    shape = _delta_net(raw) if delta_net else _experts(raw) if "topk" in raw else _products(raw, path.name)
    kernels = _kernels(raw)
    into.add(path, raw, {
        "gpu": raw["cu_num"].map(GPUS), "framework": "aiter",
        "kernel_source": raw["libtype"] if "libtype" in raw else _written_in(kernels),
        "kernel_name": kernels, "protocol": "profiler", "cache_state": "cold",
        "latency_ms": pd.to_numeric(raw["us"]).to_numpy(dtype=np.float64) / 1e3, **shape,
        "flag": "states_alone" if delta_net else "",
    })  # fmt: skip


def _kernels(raw: Frame) -> Any:
    """Names of the kernels of each row, joined; empty where a table has none."""
    joined = require("pandas").Series("", index=raw.index)
    for name in ("kernelName", "kernelName1", "kernelName2"):
        if name in raw:
            joined = joined + "+" + raw[name].where(raw[name].notna(), "").astype(str)
    return joined.str.strip("+")


def _written_in(kernels: Any) -> Any:
    """asm for kernels with a mangled name, ck for those that spell their tiles out, triton for none."""
    written = kernels.str.startswith("_Z").map({True: "asm", False: "ck"})
    return written.where(kernels != "", "triton")


def _formats(raw: Frame) -> tuple[Any, Any]:
    """dtype and quantization scheme of each row."""
    dtype, quant = (raw["q_dtype_w"].map({word: form[i] for word, form in DTYPES.items()}) for i in (0, 1))
    return dtype, quant


def _products(raw: Frame, name: str) -> dict[str, Any]:
    """C[M, N] = A[M, K] B[N, K] of a table that its name describes."""
    formats = next(form for word, form in FORMATS.items() if word in name)
    dtype, quant = _formats(raw) if "q_dtype_w" in raw else formats
    batched = "B" in raw
    return {
        "op": "gemm", "kind": "bmm" if batched else "linear", "layout": "tn", "bias": False, "dtype": dtype,
        "quant": quant, "batch": raw["B"] if batched else 1, "m": raw["M"], "n": raw["N"], "k": raw["K"],
    }  # fmt: skip


def _experts(raw: Frame) -> dict[str, Any]:
    """Fused experts; their width is one GPU's, so that tp and ep are 1."""
    dtype, quant = _formats(raw)
    return {
        "op": "moe", "tokens": raw["token"], "hidden": raw["model_dim"], "intermediate": raw["inter_dim"],
        "experts": raw["expert"], "top_k": raw["topk"], "gated": raw["use_g1u1"] == 1, "tp": 1, "ep": 1,
        "distribution": "random", "dtype": dtype, "quant": quant.where(raw["q_type"] != _BLOCKS, "fp8_block"),
    }  # fmt: skip


def _delta_net(raw: Frame) -> dict[str, Any]:
    """The states of N sequences of T_flat tokens together."""
    return {
        "op": "delta_rule", "dtype": "bf16", "batch": raw["N"], "q_len": (raw["T_flat"] // raw["N"]).clip(lower=1),
        "heads": raw["Hg"], "v_heads": raw["H"], "head_dim": raw["K"], "v_head_dim": raw["V"],
        "cached": raw["use_h0"].astype(bool),
    }  # fmt: skip


def _flag_fast(frame: Frame) -> None:
    """Flags the rows that beat their roofline, and all of a table and board of which too many do."""
    fast = require("pandas").Series(below_bound(frame), index=frame.index)
    share = fast.groupby([frame["source_file"].astype(str), frame["gpu"].astype(str)]).transform("mean")
    add_flag(frame, (share >= _TOO_MANY).to_numpy(), "table_beats_roofline")
    add_flag(frame, fast.to_numpy(), FLAG)


def _flag_repeats(frame: Frame) -> None:
    """Flags every row of a shape but the fastest that has no flag."""
    shape = [
        "gpu", "op", "kind", "dtype", "quant", "batch", "m", "n", "k", "tokens", "hidden", "intermediate", "experts",
        "top_k", "gated",
    ]  # fmt: skip
    free = (frame["flag"].astype(str) == "").to_numpy()
    shapes = frame.loc[free, [name for name in shape if name in frame]].astype(object).fillna("")
    first = frame.loc[free, "latency_ms"].groupby([shapes[name] for name in shapes]).rank(method="first") == 1
    slower = free.copy()
    slower[free] = ~first.to_numpy()
    add_flag(frame, slower, "slower_repeat")
