"""AMD's tuned kernels: the importer on small tables and on the real ones, and what serving forecasts take from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import data_folder

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from predictor.data import dataset  # noqa: E402
from predictor.data.importers import ImportResult, import_source  # noqa: E402
from predictor.data.schema import from_op  # noqa: E402
from predictor.hardware.gpu import load_gpu  # noqa: E402
from predictor.kernels.base import make_batch  # noqa: E402
from predictor.kernels.gemm import estimator as serving_gemm  # noqa: E402
from predictor.ops.gemm import Gemm  # noqa: E402
from predictor.ops.linear_attention import DeltaRule  # noqa: E402
from predictor.ops.moe import MoE  # noqa: E402
from predictor.ops.roofline import roofline  # noqa: E402

HEAD = "gfx,cu_num,M,N,K,libtype,us,kernelName\n"
EXPERTS = "cu_num,token,model_dim,inter_dim,expert,topk,q_dtype_w,q_type,use_g1u1,us,kernelName1,kernelName2\n"
DELTA = "cu_num,dtype,K,V,BT,H,Hg,use_h0,T_flat,N,total_chunks,us\n"


def imported(folder: Path, **tables: str) -> ImportResult:
    (folder / "gfx942").mkdir()
    for name, text in tables.items():
        (folder / "gfx942" / f"{name}.csv").write_text(text)
    return import_source("aiter", folder)


def test_products_experts_and_delta_nets(tmp_path: Path) -> None:
    result = imported(
        tmp_path,
        a8w8_blockscale_tuned_gemm=HEAD
        + "gfx942,304,16,4096,2048,ck,20,k\ngfx942,304,1,1,1,ck,0,k\ngfx942,7,1,1,1,ck,9,k\n",
        bf16_tuned_gemm=HEAD + "gfx942,80,16,4096,2048,asm,30,_Zk\n",
        dsv3_a8w8_bpreshuffle_tuned_gemm="cu_num,M,N,K,q_dtype_w,us\n80,8,512,512,torch.float8_e4m3fnuz,9\n"
        "80,8,512,512,torch.int8,9\n",
        a8w8_tuned_batched_gemm="cu_num,B,M,N,K,us,kernelName\n304,16,32,256,512,30,ck_k\n",
        tuned_fmoe=EXPERTS + "80,4,2304,1536,8,2,torch.float8_e4m3fnuz,QuantType.per_1x128,1,90,_Za,b\n"
        "304,4,2304,1536,8,2,torch.bfloat16,QuantType.No,0,90,a,b\n",
        chunk_gdn_h_opt_tuned=DELTA + "80,torch.bfloat16,128,64,64,32,16,True,2048,2,32,150\n",
    )
    assert result.skipped_by_reason() == {
        "latency is no number above zero": 1, "expected 304 or 80 compute units": 1,
    }  # fmt: skip
    frame = result.frame
    assert set(zip(dataset.ops_of(frame), frame["gpu"].astype(str), strict=True)) == {
        (Gemm("fp8", 16, 4096, 2048, quant="fp8_block"), "mi300x"), (Gemm("bf16", 16, 4096, 2048), "mi308x"),
        (Gemm("fp8", 8, 512, 512), "mi308x"), (Gemm("int8", 8, 512, 512, quant="sq"), "mi308x"),
        (Gemm("int8", 32, 256, 512, batch=16, kind="bmm", quant="sq"), "mi300x"),
        (MoE("fp8", 4, 2304, 1536, 8, 2, distribution="random", quant="fp8_block"), "mi308x"),
        (MoE("bf16", 4, 2304, 1536, 8, 2, gated=False, distribution="random"), "mi300x"),
        (DeltaRule("bf16", 2, 1024, 16, 32, 128, 64, cached=True), "mi308x"),
    }  # fmt: skip
    assert set(frame["framework"]) == {"aiter"} and set(frame["protocol"]) == {"profiler"}
    flags = frame.set_index("op")["flag"].astype(str)
    assert flags["delta_rule"] == "states_alone" and set(flags.drop("delta_rule")) == {""}
    assert frame.loc[frame["op"] == "moe", "kernel_source"].tolist() == ["asm", "ck"]
    assert frame.loc[frame["dtype"] == "bf16", "latency_ms"].min() == pytest.approx(0.03)


def test_all_but_the_fastest_of_a_shape_are_kept_apart(tmp_path: Path) -> None:
    row = "gfx942,304,16,4096,2048,ck,{},k\n"
    result = imported(
        tmp_path, bf16_a=HEAD + row.format(30) + row.format(20), bf16_b=HEAD + row.format(25).replace("304", "80")
    )
    kept = result.frame[result.frame["flag"].astype(str) == ""]
    assert sorted(kept["latency_ms"]) == pytest.approx([0.02, 0.025])
    assert result.frame["flag"].astype(str).tolist().count("slower_repeat") == 1


def test_a_table_that_beats_its_roofline_is_not_believed(tmp_path: Path) -> None:
    gpu, product = load_gpu("mi308x"), Gemm("bf16", 8192, 8192, 8192)
    bound_us = roofline([product], gpu).lower_bound_s[0] * 1e6
    slow = "".join(f"gfx942,80,{m},8192,8192,ck,{bound_us * 2:.0f},k\n" for m in range(4001, 4010))
    fast = f"gfx942,80,8192,8192,8192,ck,{bound_us * 0.5:.0f},k\n"
    few = imported(tmp_path, bf16_one=HEAD + fast + slow + slow.replace(",40", ",41")).frame
    assert set(few["flag"].astype(str)) == {"", "beats_roofline"}
    other = tmp_path / "other"
    other.mkdir()
    many = imported(other, bf16_one=HEAD + fast + slow).frame
    assert set(many["flag"].astype(str)) == {"table_beats_roofline", "table_beats_roofline;beats_roofline"}


def test_real_tables() -> None:
    data = data_folder()
    if data is None or not (data / "aiter").is_dir():
        pytest.skip("no aiter data: set TILECAST_DATA to the folder that holds them")
    frame = import_source("aiter", data / "aiter").frame
    counts = frame[frame["flag"].astype(str) == ""].groupby(["gpu", "op"], observed=True).size()
    assert counts["mi300x", "gemm"] == 23_497 and counts["mi300x", "moe"] == 79 and counts["mi308x", "gemm"] > 2_500
    listed = pd.read_csv(data / "aiter" / "suspect_rows.csv")
    listed = listed[np.isfinite(listed["us"]) & (listed["us"] > 0)]
    frame["file"] = frame["source_file"].astype(str).str.rpartition("/")[2]
    mine = frame[["file", "m", "n", "k", "latency_ms", "flag"]].astype({"flag": str})
    mine = mine.assign(us=(mine["latency_ms"] * 1e3).round(4))
    both = listed.merge(mine, left_on=["file", "M", "N", "K", "us"], right_on=["file", "m", "n", "k", "us"])
    assert len(both) == len(listed) > 30 and (both["flag"] != "").all(), "what is listed as suspect is in no fit"


def rows_of(gpu: str, framework: str, products: list[Gemm], slower: float) -> list[dict[str, Any]]:
    """Rows that take ``slower`` times their cold roofline and 3 us."""
    seconds = roofline(products, load_gpu(gpu)).cold_s * slower + 3e-6
    return [
        from_op(op) | {"gpu": gpu, "framework": framework, "latency_ms": time * 1e3, "kernel_source": ""}
        for op, time in zip(products, seconds, strict=True)
    ]


def test_what_amd_teaches_stays_with_amd() -> None:
    """An engine on MI300X is answered by AMD's kernels; NVIDIA's boards share what they did without them."""
    from predictor.kernels.fitting.serving import fit_gemm

    rng = np.random.default_rng(0)
    sizes = 2 ** rng.integers(4, 13, (24, 3))
    shapes = [(int(m), int(n), int(k)) for m, n, k in sizes]
    plain, narrow = [Gemm("bf16", *s) for s in shapes], [Gemm("fp8", *s, quant="fp8_block") for s in shapes]
    nvidia = rows_of("h100-sxm", "vllm", plain + narrow, 1.5)
    amd = rows_of("mi300x", "aiter", narrow, 4.0) + rows_of("mi300x", "aiter", plain[:3], 9.0)
    gpus = {name: load_gpu(name) for name in ("h100-sxm", "mi300x")}
    alone = fit_gemm(pd.DataFrame(nvidia), gpus, 0, fitted_gpus=())
    both = fit_gemm(pd.DataFrame(nvidia + amd), gpus, 0, fitted_gpus=("mi300x",))
    shared = {key: core for key, core in both[0]["cores"].items() if key.startswith("*")}
    assert shared == alone[0]["cores"]
    assert {key for key in both[0]["cores"] if key not in shared} == {"mi300x|aiter|fp8_block"}, "3 rows tell nothing"
    estimator = serving_gemm.TensorCoreGemm.from_artifact(*both)
    vllm, aiter = (
        estimator.seconds(make_batch("gemm", narrow, name), load_gpu("mi300x")) for name in ("vllm", "aiter")
    )
    measured = np.array([row["latency_ms"] for row in amd[: len(narrow)]]) * 1e-3
    assert np.median(np.abs(aiter / measured - 1)) < 0.15
    assert (vllm > aiter).all(), "an engine quantizes the activations first, which AMD's rows leave out"
    told = estimator.explain(make_batch("gemm", narrow[:1], "aiter"), load_gpu("mi300x")).rests_on
    assert told == "24 rows of mi300x, each the best of many kernels tuned for its shape"
