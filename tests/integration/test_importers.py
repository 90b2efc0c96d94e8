"""Importers: made-up folders in each source's native layout. test_importers_data.py has the real data."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.errors import RequestError, SpecError, UnknownNameError
from predictor.ops import Attention, Elementwise, Embedding, Gemm, MoE, Norm, Rotary, Softmax

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from predictor.data import dataset  # noqa: E402
from predictor.data.importers import SOURCES, import_source  # noqa: E402

NEUSIGHT = (
    "OPName,Latency,Device,Torch Version,CUDNN Version,Kernel Name,Grid x,Grid y,Grid z,Block x,Block y,Block z,"
    "CUDA Version"
)


def neusight_row(op: str, latency: object, device: str, kernel: str, *shape: int) -> str:
    return ",".join(map(str, [op, latency, device, "p2.1.0", 1, kernel, 5, 4, 1, 128, 1, 1, "cu121", *shape]))


@pytest.fixture
def neusight(tmp_path: Path) -> Path:
    root = tmp_path / "neusight"
    t4, files = "Tesla T4", {}
    files["train/collect/linear/p2.1.0/Tesla T4.csv"] = [
        NEUSIGHT + ",Kernels,B,M,N,K",
        neusight_row("linear", 0.5, t4, "volta_sgemm_32x128_tn", ";a;b", 1, 500, 77, 160),
        neusight_row("linear", "nan", t4, "volta_sgemm_32x128_tn", ";a", 1, 500, 77, 160),
        neusight_row("linear", 0, t4, "volta_sgemm_32x128_tn", ";a", 1, 500, 77, 160),
        neusight_row("linear", 0.5, "Tesla Z9", "volta_sgemm_32x128_tn", ";a", 1, 500, 77, 160),
    ]
    files["train/collect/bmm/p2.1.0/Tesla T4.csv"] = [
        NEUSIGHT + ",Kernels,B,M,N,K",
        neusight_row("bmm", 0.25, t4, "volta_sgemm_32x128_nn", ";a", 6, 500, 77, 160),
    ]
    files["train/collect/conv/p2.1.0/Tesla T4.csv"] = [
        NEUSIGHT + ",Kernels,B,Input_Channel",
        neusight_row("conv", 0.25, t4, "c", ";a", 6, 5),
    ]
    both = [
        neusight_row("addu", 0.125, t4, "e", 10, 20),
        neusight_row("pow", 0.125, t4, "e", 10, 20),
        neusight_row("gelu", 0.125, t4, "e", 10, 20),
    ]
    ln, softmax = neusight_row("ln", 0.1, t4, "n", 10, 20), neusight_row("softmax", 0.1, t4, "s", 10, 20)
    files["test/elem.csv"] = [NEUSIGHT + ",B,H", *both]
    files["test/ln.csv"] = [NEUSIGHT + ",B,H", ln]
    files["test/softmax.csv"] = [NEUSIGHT + ",B,H", softmax]
    files["test/vec.csv"] = [NEUSIGHT + ",B,H", ln, softmax, *both]
    files["../label/Tesla_T4/bert.csv"] = ["op,target", "a,b"]
    for name, lines in files.items():
        path = root / "dataset" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


def test_a_row_of_neusight_without_a_device_is_counted(neusight: Path) -> None:
    before = import_source("neusight", neusight)
    with (neusight / "dataset/test/ln.csv").open("a", encoding="utf-8") as file:
        file.write(neusight_row("ln", 0.1, "", "n", 10, 20) + "\n")
    after = import_source("neusight", neusight)
    assert (after.imported, after.skipped_rows) == (before.imported, before.skipped_rows + 1)
    assert after.skipped_by_reason()["device '' has no catalogue id here"] == 1


def test_neusight(neusight: Path) -> None:
    result = import_source("neusight", neusight)
    assert result.imported == 7
    assert result.skipped_by_reason() == {
        "repeats a row of elem.csv, ln.csv or softmax.csv": 5,
        "latency is no number above zero": 2,
        "device 'Tesla Z9' has no catalogue id here": 1,
        "operator conv has no class yet": 1,
    }
    file = "dataset/train/collect/linear/p2.1.0/Tesla T4.csv"
    assert [(s.file, s.row) for s in result.skipped if s.row is not None] == [(file, 2), (file, 3), (file, 4)]
    dataset.validate(result.frame)
    ops = dict(zip(result.frame["fn"].astype(object).where(result.frame["fn"].notna(), result.frame["op"]),
                   dataset.ops_of(result.frame), strict=True))  # fmt: skip
    assert ops["add_scalar"] == Elementwise("fp32", "add_scalar", 200)
    assert ops["pow"] == Elementwise("fp32", "pow", 200)
    assert ops["norm"] == Norm("fp32", 10, 20, "layer")
    assert ops["softmax"] == Softmax("fp32", 10, 20)
    linear = result.frame[result.frame["kind"] == "linear"].iloc[0]
    # (M, N) x (N, K): 500 rows, inner dimension 77, 160 columns = 5 tiles of 32; 4 tiles of 128 rows.
    assert dataset.ops_of(result.frame[result.frame["kind"] == "linear"]) == [Gemm("fp32", 500, 160, 77, bias=True)]
    assert (-(-linear["n"] // 32), -(-linear["m"] // 128)) == (linear["grid_x"], linear["grid_y"])
    assert linear["latency_ms"] == 0.5
    assert (linear["gpu"], linear["split"], linear["protocol"], linear["source_row"]) == (
        "t4",
        "train",
        "eager_events",
        1,
    )
    assert (linear["kernel_name"], linear["kernel_count"], linear["block_x"]) == ("volta_sgemm_32x128_tn", 2, 128)
    bmm = result.frame[result.frame["kind"] == "bmm"]
    assert dataset.ops_of(bmm) == [Gemm("fp32", 500, 160, 77, 6, "bmm", False, "nn")]
    assert result.frame["split"].astype(str).value_counts().to_dict() == {"test": 5, "train": 2}


def test_neusight_takes_a_part_of_the_tree(neusight: Path) -> None:
    assert import_source("neusight", neusight / "dataset" / "train").imported == 2
    assert import_source("neusight", neusight / "dataset" / "test").imported == 5
    assert import_source("neusight", neusight / "dataset/train/collect/bmm/p2.1.0").imported == 1


def aic(root: Path, place: str, table: str, **columns: object) -> None:
    folder = root / "systems" / "data" / place
    folder.mkdir(parents=True, exist_ok=True)
    common = {"framework": "X", "version": "1.0", "device": "d", "op_name": "o", "kernel_source": "ks"}
    pd.DataFrame({**common, **columns}).to_parquet(folder / f"{table}.parquet")


@pytest.fixture
def aiconfigurator(tmp_path: Path) -> Path:
    root = tmp_path / "aic"
    dtypes = ["bfloat16", "fp8", "fp8_block", "int4_wo", "q9", "fp8"]
    aic(root, "h100_sxm/gemm/trtllm/1.0", "gemm_perf", gemm_dtype=dtypes,
        m=[1, 2, 3, 4, 5, 6], n=[64] * 6, k=[128] * 6, latency=[0.5, 0.5, 0.5, 0.5, 0.5, float("nan")])  # fmt: skip
    aic(root, "l40s/gemm/vllm/1.0", "gemm_perf", gemm_dtype=["bfloat16"], m=[8192], n=[8192], k=[8192], latency=[0.01])
    attention = {"num_heads": [8, 8], "num_key_value_heads": [2, 8], "head_dim": [192, 64], "beam_width": 1,
                 "attn_dtype": "bfloat16", "kv_cache_dtype": ["fp8", "bfloat16"], "latency": [2.0, 3.0]}  # fmt: skip
    place = "h100_sxm/attention/sglang/1.0"
    aic(
        root,
        place,
        "generation_attention_perf",
        batch_size=[4, 4],
        isl=1,
        step=[31, 63],
        window_size=[0, 16],
        **attention,
    )
    aic(root, place, "context_attention_perf", batch_size=[4, 4], isl=[32, 64], step=0, **attention)
    aic(root, "h100_sxm/encoder_attention/vllm/1.0", "encoder_attention_perf", batch_size=[2], isl=[50], num_heads=[4],
        head_dim=[64], attn_dtype=["bfloat16"], latency=[1.0])  # fmt: skip
    aic(root, "a100_sxm/attention/trtllm/1.0", "generation_attention_perf", batch_size=[64, 64], isl=1, step=[8191] * 2,
        **{**attention, "kv_cache_dtype": "bfloat16", "latency": [50.0, 50.0]})  # fmt: skip
    aic(root, "b60/moe/vllm/1.0", "moe_perf", moe_dtype="bfloat16", num_tokens=[3, 3], hidden_size=[64, 2688],
        inter_size=[128, 1856], topk=[2, 6], num_experts=[8, 128], moe_tp_size=[2, 1], moe_ep_size=[4, 1],
        distribution="balanced", latency=[1.0, 900.0])  # fmt: skip
    latent = {"mla_dtype": "bfloat16", "kv_cache_dtype": ["bfloat16", "fp8"], "num_heads": [16, 128]}
    place = "h100_sxm/mla/sglang/1.0"
    aic(root, place, "context_mla_perf", batch_size=2, isl=[64, 32], step=[0, 32], latency=[2.0, 3.0], **latent)
    aic(root, place, "generation_mla_perf", batch_size=4, isl=1, step=[99, 199], latency=[2.0, 3.0], **latent)
    aic(root, place, "mla_context_module_perf", latency=[1.0, 2.0, 3.0])
    # Times of a host that needs 0.1 ms a call, and one spike of it; 0.3 and 8 ms are kernels.
    aic(root, "h100_sxm/mla/vllm/1.0", "context_mla_perf", **{**latent, "kv_cache_dtype": "bfloat16", "num_heads": 16},
        batch_size=1, step=0, isl=[32, 64, 128, 256, 2048, 16384], latency=[0.1, 0.5, 0.1, 0.11, 0.3, 8.0])  # fmt: skip
    kernels = ["flash_attention", "triton", "trtllm_mla"]
    aic(root, "h100_sxm/mla/sglang/2.0", "context_mla_perf", kernel_source=kernels, batch_size=1, step=0, isl=64,
        **{**latent, "kv_cache_dtype": "bfloat16", "num_heads": 16}, latency=0.03)  # fmt: skip
    blocked = {"gemm_dtype": "fp8_block", "n": 64, "k": 64, "m": [1, 2, 8192, 4], "latency": [0.05, 0.06, 0.4, 0.02]}
    aic(root, "h100_sxm/gemm/vllm/1.0", "gemm_perf", **{**blocked, "kernel_source": ["a", "a", "a", "b"]})
    aic(root, "z9/gemm/vllm/1.0", "gemm_perf", gemm_dtype=["bfloat16"], m=[1], n=[1], k=[1], latency=[1.0])
    return root


def test_aiconfigurator(aiconfigurator: Path) -> None:
    result = import_source("aiconfigurator", aiconfigurator)
    frame = result.frame
    dataset.validate(frame)
    assert result.imported == 4 + 1 + 2 + 2 + 1 + 2 + 2 + 2 + 2 + 4 + 6 + 3
    assert result.skipped_by_reason() == {
        "table mla_context_module_perf times a whole attention module, no operator": 3,
        "latency is no number above zero": 1,
        "gemm_dtype 'q9' has no dtype here": 1,
        "system 'z9' is no GPU of the catalogue": 1,
    }
    ops = dict(zip(frame["source_file"].astype(str) + ":" + frame["source_row"].astype(str), dataset.ops_of(frame),
                   strict=True))  # fmt: skip
    gemm = "systems/data/h100_sxm/gemm/trtllm/1.0/gemm_perf.parquet"
    assert ops[f"{gemm}:1"] == Gemm("bf16", 1, 64, 128)
    quant = frame[frame["source_file"] == gemm].set_index("source_row")[["dtype", "quant", "cache_state", "framework"]]
    assert quant.loc[2].tolist() == ["fp8", "", "rotating", "trtllm"]
    assert quant.loc[3].tolist() == ["fp8", "fp8_block", "rotating", "trtllm"]
    assert quant.loc[4].tolist() == ["bf16", "int4_wo", "rotating", "trtllm"]
    blocked = frame[frame["source_file"] == "systems/data/h100_sxm/gemm/vllm/1.0/gemm_perf.parquet"]
    # By kernel: the fastest row of "a" takes 50 us.
    assert blocked["flag"].tolist() == ["host_bound", "host_bound", "host_bound", ""]
    place = "systems/data/h100_sxm/mla/sglang/1.0"
    # Prefill expanded, 32 queries after 32 positions; decode absorbed, one latent vector of 512 + 64 a token.
    assert ops[f"{place}/context_mla_perf.parquet:2"] == Attention(
        "bf16", 2, 128, 128, 32, 64, 192, 128, True, 0, "fp8"
    )
    assert ops[f"{place}/generation_mla_perf.parquet:1"] == Attention(
        "bf16", 4, 16, 1, 1, 100, 576, 512, True, 0, "bf16", "forward", True
    )
    latent = frame[frame["source_file"] == "systems/data/h100_sxm/mla/vllm/1.0/context_mla_perf.parquet"]
    assert latent["flag"].tolist() == ["host_bound"] * 4 + ["", ""]
    # The absorbed form: one latent vector of 512 + 64 a token for all heads, in kernels whose times say so.
    place = "systems/data/h100_sxm/mla/sglang/2.0"
    absorbed = Attention("bf16", 1, 16, 1, 64, 64, 576, 512, True, 0, "bf16", "forward", True)
    expanded = Attention("bf16", 1, 16, 16, 64, 64, 192, 128, True, 0, "bf16")
    forms = [ops[f"{place}/context_mla_perf.parquet:{row}"] for row in (1, 2, 3)]
    assert forms == [absorbed, absorbed, expanded]
    latent = frame[frame["source_file"] == f"{place}/context_mla_perf.parquet"]
    assert latent["flag"].tolist() == ["absorbed_prompt", "absorbed_prompt", ""]
    place = "systems/data/h100_sxm/attention/sglang/1.0"
    # Decode: one query, and the cache of `step` positions with the query's own.
    assert ops[f"{place}/generation_attention_perf.parquet:1"] == Attention(
        "bf16", 4, 8, 2, 1, 32, 192, 128, True, 0, "fp8"
    )
    assert ops[f"{place}/generation_attention_perf.parquet:2"] == Attention(
        "bf16", 4, 8, 8, 1, 64, 64, 0, True, 16, "bf16"
    )
    assert ops[f"{place}/context_attention_perf.parquet:2"] == Attention(
        "bf16", 4, 8, 8, 64, 64, 64, 0, True, 0, "bf16"
    )
    encoder = "systems/data/h100_sxm/encoder_attention/vllm/1.0/encoder_attention_perf.parquet"
    assert ops[f"{encoder}:1"] == Attention("bf16", 2, 4, 4, 50, 50, 64, causal=False)
    moe = "systems/data/b60/moe/vllm/1.0/moe_perf.parquet"
    assert ops[f"{moe}:1"] == MoE("bf16", 3, 64, 128, 8, 2, True, 2, 4, "balanced")
    assert ops[f"{moe}:2"] == MoE("bf16", 3, 2688, 1856, 128, 6, False, 1, 1, "balanced")
    flags = (
        frame[~frame["flag"].isin(["", "host_bound", "absorbed_prompt"])].set_index("gpu")["flag"].astype(str).to_dict()
    )
    # 2 x 8192^3 FLOP in 10 microseconds are 110 PFLOP/s; 64 x 2 x 8192 x 192 x 2 x 2 bytes of cache are 768 MiB.
    assert flags == {"l40s": "beats_roofline", "a100-sxm-80gb": "kv_read_short"}


VIDUR_OPS = ("emb", "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "mlp_up_proj", "mlp_act",
             "mlp_down_proj", "add")  # fmt: skip


def vidur_file(root: Path, model: str, gated: bool, n: int = 2) -> None:
    path = root / "data/profiling/compute/a40/maker" / model / "mlp.csv"
    path.parent.mkdir(parents=True)
    times = {
        f"time_stats.{op}.{s}": 1.0 + i
        for i, op in enumerate(VIDUR_OPS)
        for s in ("min", "max", "mean", "median", "std")
    }
    shape = {"n_head": 8, "n_kv_head": 2, "n_embd": 64, "n_expanded_embd": 192, "vocab_size": 101,
             "use_gated_mlp": gated, "num_tokens": [5, 7], "num_tensor_parallel_workers": [1, 4]}  # fmt: skip
    pd.DataFrame({**times, **shape}, index=range(n)).to_csv(path, index=False)


@pytest.fixture
def vidur(tmp_path: Path) -> Path:
    root = tmp_path / "vidur"
    vidur_file(root, "Llama-0", True)
    vidur_file(root, "phi-2", False)
    network = root / "data/profiling/network/a40_pairwise_nvlink/all_reduce.csv"
    network.parent.mkdir(parents=True)
    network.write_text(
        "time_stats.all_reduce.median,num_workers,size,collective,devices_per_node\n"
        "2.0,2,8388608,all_reduce,1\n0.05,4,1024,all_reduce,4\n4.0,4,8388608,all_reduce,4\n"
    )
    return root


def test_vidur(vidur: Path) -> None:
    result = import_source("vidur", vidur)
    frame = result.frame
    dataset.validate(frame)
    assert result.skipped_by_reason() == {
        "add of phi-2 is two kernels (attention + MLP + residual)": 2,
    }
    assert result.imported == 2 * len(VIDUR_OPS) + 2 * (len(VIDUR_OPS) - 1) + 3
    collectives = frame[frame["op"] == "collective"]
    assert collectives["flag"].astype(str).tolist() == ["network_unknown", "rank_skew", ""]
    # Four boards of a pair system meet over PCIe; what joins nodes, nobody says.
    assert collectives["link_bandwidth"].tolist() == [56.25e9, 32e9, 32e9]
    assert set(collectives["net_bandwidth"]) == {0.0} and set(collectives["system"]) == {"a40-nvlink-pairs"}
    frame = frame[frame["op"] != "collective"]
    named = zip(frame["source_file"].astype(str), frame["kernel_source"].astype(str), frame["source_row"], strict=True)
    ops = {(f.split("/")[-2], k.split()[1], int(r)): op
           for (f, k, r), op in zip(named, dataset.ops_of(frame), strict=True)}  # fmt: skip
    # Tensor parallel 4: 2 of 8 heads, at least 1 KV head, 8 columns a head; 48 of 192 columns of the MLP.
    assert ops["Llama-0", "attn_pre_proj", 2] == Gemm("fp16", 7, (2 + 2 * 1) * 8, 64)
    assert ops["Llama-0", "attn_pre_proj", 1] == Gemm("fp16", 5, (8 + 2 * 2) * 8, 64)
    assert ops["Llama-0", "attn_post_proj", 2] == Gemm("fp16", 7, 64, 16)
    assert ops["Llama-0", "mlp_up_proj", 2] == Gemm("fp16", 7, 96, 64)
    assert ops["phi-2", "mlp_up_proj", 2] == Gemm("fp16", 7, 48, 64, bias=True)
    assert ops["Llama-0", "mlp_down_proj", 2] == Gemm("fp16", 7, 64, 48)
    assert ops["Llama-0", "mlp_act", 2] == Elementwise("fp16", "swiglu", 7 * 48)
    assert ops["phi-2", "mlp_act", 1] == Elementwise("fp16", "gelu", 5 * 192)
    assert ops["Llama-0", "add", 1] == Elementwise("fp16", "add", 5 * 64)
    assert ops["Llama-0", "input_layernorm", 1] == Norm("fp16", 5, 64, "rms")
    assert ops["phi-2", "input_layernorm", 1] == Norm("fp16", 5, 64, "layer")
    assert ops["Llama-0", "attn_rope", 2] == Rotary("fp16", 7, 3, 8)
    assert ops["Llama-0", "emb", 2] == Embedding("fp16", 7, 64, 26)
    rope = frame[frame["op"] == "rotary"]
    assert sorted(rope["flag"].astype(str)) == ["", "", "partial_rotary", "partial_rotary"]
    assert rope["latency_ms"].tolist() == [4.0] * 4 == rope["latency_std_ms"].tolist()
    assert set(frame["gpu"]) == {"a40"}


def test_llmcompass(tmp_path: Path) -> None:
    files = {
        "ab/real_hardware/matmul_A100.csv": "64, 128, 256, 0.2500ms, 0.0168Tflops\n64, 128, x, 1ms, 2Tflops",
        "cf/real_hardware/softmax_MI210.csv": "100, 200, 0.4",
        "g/real_hardware/gelu_A100.csv": "1000, 0.02",
        "de/real_hardware/layernorm_A100.csv": "100, 200, 0.4",
        "de/real_hardware/layernorm_Z9.csv": "100, 200, 0.4",
        "ijkl/real_hardware/transformer_A100.csv": "0.5\n0.25",
    }
    for name, text in files.items():
        path = tmp_path / "ae" / "figure5" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result = import_source("llmcompass", tmp_path)
    assert result.skipped_by_reason() == {
        "time of a whole layer, without its shape": 2,
        "device 'Z9' has no catalogue id here": 1,
        "not 5 numbers above zero": 1,
    }
    assert set(dataset.ops_of(result.frame)) == {
        Gemm("fp16", 64, 128, 256, layout="nn"), Softmax("fp16", 100, 200), Norm("fp16", 100, 200),
        Elementwise("fp16", "gelu", 1000),
    }  # fmt: skip
    by_op = result.frame.set_index("op")["latency_ms"].to_dict()
    # 20,000 elements at 0.4 x 10^9 a second are 50 microseconds, and so are 1,000 at 0.02 x 10^9.
    assert by_op == pytest.approx({"gemm": 0.25, "softmax": 0.05, "norm": 0.05, "elementwise": 0.05})


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("source", SOURCES)
def test_folders_of_another_layout(source: str, tmp_path: Path) -> None:
    (tmp_path / "some.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SpecError, match=f"holds no {source} data: expected ") as caught:
        import_source(source, tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(RequestError, match="is not a folder"):
        import_source(source, tmp_path / "some.csv")


def test_files_of_another_layout(neusight: Path, aiconfigurator: Path, vidur: Path) -> None:
    next(neusight.glob("**/elem.csv")).write_text("a,b\n1,2\n")
    next(aiconfigurator.glob("**/moe_perf.parquet")).write_bytes(b"no parquet")
    next(vidur.glob("**/mlp.csv")).write_text("")
    for source, root in (("neusight", neusight), ("aiconfigurator", aiconfigurator), ("vidur", vidur)):
        with pytest.raises(SpecError) as caught:
            import_source(source, root)
        assert "\n" not in str(caught.value)


def test_unknown_source(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="nearest: neusight"):
        import_source("neusigth", tmp_path)
