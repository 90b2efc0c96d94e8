"""aiconfigurator's tables of linear attention (gated delta nets, Mamba2) and of activation quantization.

A row of `gdn_perf` or `mamba2_perf` is one kernel of a layer: the short convolution over everything that is projected,
or the delta rule. The tables name no dtype: the layers run in bf16 with states in fp32.

What the numbers say of themselves:

* TensorRT-LLM's convolutions of gated delta nets, and SGLang 0.5.10's on A100, take the same time for models of 16 and
  of 64 value heads, up to 20 times less than the bytes of all channels need: they ran on fewer channels than a layer
  has. Flagged "channels_unknown", in whichever table it shows.
* SGLang 0.5.14's gated delta nets on H200: calls up to 0.2 ms take what vLLM's same kernels do (0.96 to 1.0), longer
  ones 1.5 to 5 times as much, with less than half of the memory's bandwidth, and longer than on H100. That is the
  machine's doing, not the kernels': flagged "slow_machine".
* `fused_recurrent_gated_delta_rule` (the same two) takes 1.3 times less than the packed kernel on every GPU and passes
  the memory's bandwidth with states that are read and written whole: "beats_roofline" where it does.
* "compute_scale" rows are a difference of two times where the kernel's name says "minus", and in SGLang's tables, most
  of whose rows are 0 (and therefore none): flagged "difference". Where it says what minus what, and the table beside it
  times the latter, their sum is what was timed: vLLM's kernel that finds the scales and applies them ("dynamic").
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.data.dataset import Frame
from predictor.data.parquet import read_frame
from predictor.files.extras import require

GDN = (
    "phase", "batch_size", "seq_len", "d_conv", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim",
)  # fmt: skip
MAMBA2 = ("phase", "batch_size", "seq_len", "d_conv", "nheads", "head_dim", "n_groups", "d_state")
QUANTIZE = ("op_name", "m", "k", "quant_dtype")

_KINDS = {"compute_scale": "scale", "scale_matrix": "cast", "dynamic": "dynamic"}
#: Between the names of two kernels in that of the difference of their times.
_MINUS = "_minus_"
#: Two models whose value heads differ by four take equally long, within this factor, where both are long enough. Chosen
#: by looking at all gdn_perf tables: in seven the ratio is 1.00, in the others above 20.
_ALIKE = 1.15
_LONG_MS = 0.1
#: Whose calls from so many milliseconds on ran slow. Chosen by looking at the frameworks that have the same kernels.
_SLOW, _SLOW_FROM_MS = ("h200-sxm", "sglang"), 0.2


def gdn(raw: Frame) -> dict[str, Any]:
    """The convolution's channels are the keys, queries and values side by side."""
    convolution = _is_convolution(raw)
    keys, values = raw["num_k_heads"] * raw["head_k_dim"], raw["num_v_heads"] * raw["head_v_dim"]
    rule = {
        "heads": raw["num_k_heads"], "v_heads": raw["num_v_heads"], "head_dim": raw["head_k_dim"],
        "v_head_dim": raw["head_v_dim"],
    }  # fmt: skip
    return {
        **_sequences(raw), "op": convolution.map({True: "causal_conv1d", False: "delta_rule"}),
        **_where(convolution, {"channels": 2 * keys + values, "taps": raw["d_conv"]}), **_where(~convolution, rule),
    }  # fmt: skip


def mamba2(raw: Frame) -> dict[str, Any]:
    """The convolution's channels are x, B and C side by side (Dao and Gu, arXiv:2405.21060)."""
    channels = raw["nheads"] * raw["head_dim"] + 2 * raw["n_groups"] * raw["d_state"]
    return {**_sequences(raw), "op": "causal_conv1d", "channels": channels, "taps": raw["d_conv"]}


def unknown_kernels(raw: Frame) -> Any:
    """(n,) True for rows of kernels that no operator is, such as a scan of Mamba2."""
    known = _is_convolution(raw)
    if "head_v_dim" in raw:
        known |= raw["kernel_source"].astype(str).str.contains("gated_delta_rule")
    return (~known).to_numpy()


def quantize(raw: Frame) -> dict[str, Any]:
    """Rows (m, k) in bf16 to a narrower dtype."""
    return {
        "op": "quantize", "kind": raw["op_name"].map(_KINDS), "rows": raw["m"], "cols": raw["k"], "in_dtype": "bf16",
        "dtype": raw["quant_dtype"],
    }  # fmt: skip


def with_subtrahend(raw: Frame, path: Path) -> Frame:
    """The rows of a computescale table; a difference of times becomes the first one, by adding the second again.

    The second is what the scale_matrix table in the same folder has for the shape (the median of repeats).
    """
    beside = path.with_name("scale_matrix_perf.parquet")
    names = raw["kernel_source"].astype(str)
    if not beside.is_file() or not names.str.contains(_MINUS).any():
        return raw
    other = read_frame(beside)
    shape = ["m", "k", "quant_dtype"]
    times = other.groupby([other["kernel_source"].astype(str), *shape])["latency"].median()
    parts = names.str.partition(_MINUS)
    keys = require("pandas").MultiIndex.from_arrays([parts[2], *(raw[name] for name in shape)])
    second = times.reindex(keys).to_numpy()
    known = second == second
    raw = raw.copy()
    raw["op_name"] = raw["op_name"].astype(str).where(~known, "dynamic")
    raw["kernel_source"] = names.where(~known, parts[0])
    raw["latency"] = raw["latency"].where(~known, raw["latency"] + second)
    return raw


def differences(raw: Frame) -> Any:
    """The flag of times that are a difference of two."""
    scale = raw["op_name"].astype(str) == "compute_scale"
    taken = raw["kernel_source"].astype(str).str.contains(f"{_MINUS}|^sglang$")
    return (scale & taken).map({True: "difference", False: ""})


def channels_unknown(raw: Frame) -> Any:
    """The flag of a table's convolutions where models of the fewest and of the most value heads take equally long."""
    pd = require("pandas")
    convolution = _is_convolution(raw)
    none = pd.Series("", index=raw.index)
    rows = raw[convolution]
    heads = rows["num_v_heads"]
    if heads.nunique() < 2:
        return none
    keys = ["phase", "batch_size", "seq_len"]
    few, many = (rows[heads == h].groupby(keys)["latency"].median() for h in (heads.min(), heads.max()))
    both = pd.concat([few, many], axis=1, keys=["few", "many"]).dropna()
    both = both[both["many"] > _LONG_MS]
    if both.empty or (both["many"] / both["few"]).median() > _ALIKE:
        return none
    return convolution.map({True: "channels_unknown", False: ""})


def slow_machine(raw: Frame, gpu: str, framework: str) -> Any:
    """The flag of long calls of the table whose machine was slow."""
    here = (gpu, framework) == _SLOW
    return ((raw["latency"] > _SLOW_FROM_MS) & here).map({True: "slow_machine", False: ""})


def _sequences(raw: Frame) -> dict[str, Any]:
    return {
        "batch": raw["batch_size"], "q_len": raw["seq_len"], "cached": raw["phase"] == "generation", "dtype": "bf16",
    }  # fmt: skip


def _is_convolution(raw: Frame) -> Any:
    return raw["kernel_source"].astype(str).str.startswith("causal_conv1d")


def _where(rows: Any, cells: dict[str, Any]) -> dict[str, Any]:
    """Columns that are null outside ``rows``."""
    return {name: values.astype(float).where(rows) for name, values in cells.items()}
