"""aiconfigurator's systems by the catalogue, and its tables of quantization, latent products and linear attention."""

from __future__ import annotations

from pathlib import Path

import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from predictor.data import dataset  # noqa: E402
from predictor.data.importers import ImportResult, import_source  # noqa: E402
from predictor.ops import CausalConv1d, DeltaRule, Gemm, Quantize  # noqa: E402


def table(root: Path, place: str, name: str, **columns: object) -> None:
    """A table of ``place`` (system/family/framework/version) in aiconfigurator's layout."""
    folder = root / "systems" / "data" / place
    folder.mkdir(parents=True, exist_ok=True)
    common = {"framework": "X", "version": "1.0", "device": "d", "op_name": "o", "kernel_source": "ks"}
    pd.DataFrame({**common, **columns}).to_parquet(folder / f"{name}.parquet")


def imported(root: Path) -> tuple[ImportResult, dict[str, object]]:
    result = import_source("aiconfigurator", root)
    dataset.validate(result.frame)
    names = result.frame["source_file"].astype(str).str.split("/").str[-1]
    keys = names.str.removesuffix("_perf.parquet") + ":" + result.frame["source_row"].astype(str)
    return result, dict(zip(keys, dataset.ops_of(result.frame), strict=True))


def test_a_system_folder_is_a_gpu_by_the_catalogue(tmp_path: Path) -> None:
    """Every folder that the catalogue has a GPU for, and a line with a count for each that it has none for."""
    known = {
        "a100_sxm": "a100-sxm-80gb", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200-sxm",
        "gb200": "gb200", "b300_sxm": "b300-sxm", "gb300": "gb300", "l40s": "l40s", "b60": "b60",
        "rtx_pro_6000_server": "rtx-pro-6000-server",
    }  # fmt: skip
    for system in (*known, "q1_sxm", "q2"):
        rows = {"gemm_dtype": "bfloat16", "m": [1, 2], "n": 64, "k": 64, "latency": 0.5}
        table(tmp_path, f"{system}/gemm/vllm/1.0", "gemm_perf", **rows)
    result = import_source("aiconfigurator", tmp_path)
    systems = result.frame["source_file"].astype(str).str.split("/").str[2]
    assert dict(zip(systems, result.frame["gpu"].astype(str), strict=True)) == known
    assert result.skipped_by_reason() == {
        "system 'q1_sxm' is no GPU of the catalogue": 2, "system 'q2' is no GPU of the catalogue": 2,
    }  # fmt: skip
    protocols = dict(zip(systems, result.frame["protocol"].astype(str), strict=True))
    assert {system for system, protocol in protocols.items() if protocol != "cuda_graph"} == {"b60"}


def test_quantization_of_activations(tmp_path: Path) -> None:
    shape = {"m": [8, 8, 8], "k": 128, "quant_dtype": "fp8", "latency": [0.5, 0.5, 0.0]}
    place = "b200_sxm/quantize/vllm/1.0"
    kernels = ["dynamic_minus_static", "other", "other"]
    table(tmp_path, place, "computescale_perf", **{**shape, "op_name": "compute_scale", "kernel_source": kernels})
    table(tmp_path, place, "scale_matrix_perf", **{**shape, "op_name": "scale_matrix", "kernel_source": "a_minus_b"})
    result, ops = imported(tmp_path)
    assert ops["computescale:1"] == Quantize("fp8", 8, 128, "scale", "bf16")
    assert ops["scale_matrix:2"] == Quantize("fp8", 8, 128, "cast", "bf16")
    assert result.skipped_by_reason() == {"latency is no number above zero": 2}
    assert result.frame["flag"].tolist() == ["difference", "", "", ""]


def test_a_difference_of_times_and_the_time_that_was_taken_off_give_the_other_one(tmp_path: Path) -> None:
    place, shape = "b200_sxm/quantize/vllm/1.0", {"k": 128, "quant_dtype": "fp8"}
    table(tmp_path, place, "computescale_perf", m=[8, 16], **shape, op_name="compute_scale", latency=[0.25, 0.5],
          kernel_source="dynamic_minus_static")  # fmt: skip
    table(tmp_path, place, "scale_matrix_perf", m=[8, 8, 8], **shape, op_name="scale_matrix", latency=[1.0, 2.0, 9.0],
          kernel_source="static")  # fmt: skip
    result, ops = imported(tmp_path)
    assert ops["computescale:1"] == Quantize("fp8", 8, 128, "dynamic", "bf16")
    assert ops["computescale:2"] == Quantize("fp8", 16, 128, "scale", "bf16")  # nothing was timed to add
    rows = result.frame.set_index("source_row").loc[lambda f: f["source_file"].str.contains("computescale")]
    assert rows["latency_ms"].tolist() == [2.25, 0.5]
    assert rows["kernel_source"].tolist() == ["dynamic", "dynamic_minus_static"]
    assert rows["flag"].tolist() == ["", "difference"]


def test_products_that_decode_of_latent_attention_folds_in(tmp_path: Path) -> None:
    table(tmp_path, "gb200/mla_bmm/trtllm/1.0", "mla_bmm_perf", op_name=["mla_gen_pre", "mla_gen_post", "mla_gen_pre"],
          bmm_dtype=["bfloat16", "fp8", "fp8"], num_tokens=[7, 7, 7], num_heads=[16, 128, 16], latency=0.5,
          kernel_source=["bmm_out", "bmm_out", "bmm_out_dequant_bf16"])  # fmt: skip
    result, ops = imported(tmp_path)
    assert ops["mla_bmm:1"] == Gemm("bf16", 7, 512, 128, 16, "bmm", layout="nn")
    assert ops["mla_bmm:2"] == Gemm("fp8", 7, 128, 512, 128, "bmm", layout="nn")
    assert result.frame["flag"].tolist() == ["", "", "dequantized"]


GDN = {
    "phase": ["context", "context", "generation", "generation"], "batch_size": 2, "seq_len": [64, 64, 1, 1],
    "d_conv": 4, "num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 32, "head_v_dim": 128, "latency": 1.0,
    "kernel_source": ["causal_conv1d_fn", "chunk_gated_delta_rule", "causal_conv1d_update", "fused_gated_delta_rule"],
}  # fmt: skip


def test_linear_attention(tmp_path: Path) -> None:
    table(tmp_path, "b200_sxm/linear_attention/vllm/1.0", "gdn_perf", **GDN)
    scans = {**GDN, "kernel_source": ["causal_conv1d_fn", "chunk_scan", "causal_conv1d_update", "state_update"]}
    widths = {"nheads": 64, "head_dim": 64, "n_groups": 8, "d_state": 128}
    kept = {k: v for k, v in scans.items() if "_k_" not in k and "_v_" not in k}
    table(tmp_path, "b200_sxm/linear_attention/vllm/1.0", "mamba2_perf", **kept, **widths)
    result, ops = imported(tmp_path)
    channels = (2 * 16 + 32) * 128
    assert ops["gdn:1"] == CausalConv1d("bf16", 2, 64, channels)
    assert ops["gdn:2"] == DeltaRule("bf16", 2, 64, 16, 32, 128, 128)
    assert ops["gdn:3"] == CausalConv1d("bf16", 2, 1, channels, 4, True)
    assert ops["gdn:4"] == DeltaRule("bf16", 2, 1, 16, 32, 128, 128, True)
    assert ops["mamba2:1"] == CausalConv1d("bf16", 2, 64, 64 * 64 + 2 * 8 * 128)
    assert result.skipped_by_reason() == {"kernel of linear attention that is no operator": 2}


@pytest.mark.parametrize(("times", "flags"), [((1.0, 1.02), ["channels_unknown", ""]), ((1.0, 2.5), ["", ""])])
def test_convolutions_that_take_equally_long_for_every_model(
    tmp_path: Path, times: tuple[float, float], flags: list[str]
) -> None:
    few, many = ({**GDN, "num_v_heads": heads, "latency": time} for heads, time in zip((16, 64), times, strict=True))
    rows = pd.concat([pd.DataFrame(few), pd.DataFrame(many)])
    table(tmp_path, "l40s/linear_attention/vllm/1.0", "gdn_perf", **rows.to_dict("list"))
    result, _ = imported(tmp_path)
    assert result.frame["flag"].tolist() == flags * 4


def test_long_calls_of_the_machine_that_was_slow(tmp_path: Path) -> None:
    for place in ("h200_sxm/linear_attention/sglang/1.0", "h200_sxm/linear_attention/vllm/1.0"):
        table(tmp_path, place, "gdn_perf", **{**GDN, "latency": [0.1, 0.3, 0.1, 0.3]})
    flags = imported(tmp_path)[0].frame.groupby("framework", observed=True)["flag"].apply(list)
    assert flags["sglang"] == ["", "slow_machine", "", "slow_machine"]
    assert flags["vllm"] == [""] * 4


def test_of_two_kernels_for_a_shape_the_engines_default_is_kept(tmp_path: Path) -> None:
    shape = {"batch_size": 1, "isl": [64, 64, 128, 1, 1], "num_heads": 8, "num_key_value_heads": 8, "head_dim": 64,
             "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "step": 0, "latency": 0.5}  # fmt: skip
    kernels = ["triton", "trtllm_mha", "triton", "triton", "trtllm_mha"]
    place = "b200_sxm/attention/{}/1.0"
    table(tmp_path, place.format("sglang"), "context_attention_perf", **shape, kernel_source=kernels)
    table(tmp_path, place.format("vllm"), "context_attention_perf", **shape, kernel_source=kernels)
    result, _ = imported(tmp_path)
    flags = result.frame.groupby("framework", observed=True)["flag"].apply(list)
    # 128 is Triton's alone; of the prompts of one token, which are flagged anyway, one has both reasons.
    assert flags["sglang"] == ["not_default", "", "", "one_token_prompt;not_default", "one_token_prompt"]
    assert flags["vllm"] == ["", "", "", "one_token_prompt", "one_token_prompt"]
