"""LLMServingSim's layer profiles: layers of vLLM and of transformers -> operators, what is no operator counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import data_folder

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from predictor.data import dataset  # noqa: E402
from predictor.data.importers import import_source  # noqa: E402
from predictor.data.sources import read_sources  # noqa: E402
from predictor.errors import TilecastError  # noqa: E402
from predictor.ops.attention import Attention  # noqa: E402
from predictor.ops.elementwise import Elementwise, Rotary  # noqa: E402
from predictor.ops.gemm import Gemm  # noqa: E402

VLLM = "kernels/rtx-pro-6000-server/v1/meta-llama/Llama-3.1-8B/bf16/tp2"


def write(root: Path, name: str, **columns: list[Any]) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(columns).to_parquet(path)


def test_layers_of_vllm(tmp_path: Path) -> None:
    layers = ["qkv_proj", "gate_up_proj", "down_proj", "act_fn", "rotary_emb", "layernorm"]
    write(tmp_path, f"{VLLM}/dense.parquet", layer=layers, tokens=[7] * 6, time_us=[1e3] * 6)
    write(tmp_path, f"{VLLM}/per_sequence.parquet", layer=["lm_head", "sampler"], sequences=[3, 3], time_us=[1e3] * 2)
    result = import_source("llmservingsim", tmp_path)
    assert set(dataset.ops_of(result.frame)) == {
        Gemm("bf16", 7, (16 + 2 * 4) * 128, 4096), Gemm("bf16", 7, 14336, 4096), Gemm("bf16", 7, 4096, 7168),
        Elementwise("bf16", "swiglu", 7 * 7168), Rotary("bf16", 7, 20, 128), Gemm("bf16", 3, 64128, 4096),
    }  # fmt: skip
    assert result.frame["latency_ms"].tolist() == pytest.approx([1.0] * 6)
    assert result.skipped_rows == 2
    assert set(result.frame["flag"].astype(str)) == {"in_layer"}


def test_attention_is_a_prompt_or_decodes_with_a_cold_cache(tmp_path: Path) -> None:
    write(
        tmp_path, f"{VLLM}/attention.parquet", prefill_chunk=[64, 0, 64], kv_prefill=[512, 0, 0],
        n_decode=[0, 5, 5], kv_decode=[0, 1000, 1000], time_us=[1.0, 2.0, 3.0],
    )  # fmt: skip
    write(tmp_path, f"{VLLM}/skew.parquet", n=[2, 3], t_skew_us=[1.0, 2.0])
    result = import_source("llmservingsim", tmp_path)
    prompt, step = Attention("bf16", 1, 16, 4, 64, 576, 128), Attention("bf16", 5, 16, 4, 1, 1000, 128)
    found = dict(zip(dataset.ops_of(result.frame), result.frame["cache_state"].astype(str), strict=True))
    assert {(op.batch, op.heads, op.kv_heads, op.q_len, op.kv_len, op.head_dim): v for op, v in found.items()} == {
        (op.batch, op.heads, op.kv_heads, op.q_len, op.kv_len, op.head_dim): state
        for op, state in ((prompt, "unknown"), (step, "cold"))
    }
    assert result.skipped_by_reason() == {
        "decodes of different lengths in one call": 2, "a prompt and decodes in one call": 1,
    }  # fmt: skip


def test_sizes_of_transformers_are_thinned_and_counted(tmp_path: Path) -> None:
    sizes = list(range(1, 101))
    write(
        tmp_path, "kernels/h100/v0/mistralai/Mixtral-8x7B-v0.1/tp4/layers.parquet", layer_name=["expert.w2"] * 100,
        input=sizes, kv_cache=[0] * 100, tp_size=[4] * 100, **{"latency(ns)": [5e5] * 100},
    )  # fmt: skip
    result = import_source("llmservingsim", tmp_path)
    assert [op.m for op in dataset.ops_of(result.frame)] == [*range(1, 65), 80, 96]
    assert {(op.n, op.k) for op in dataset.ops_of(result.frame)} == {(4096, 14336)}  # a whole expert, whatever tp
    assert result.imported + result.skipped_rows == 100


def test_a_folder_is_a_board_of_the_catalogue_and_others_are_counted(tmp_path: Path) -> None:
    """A newer copy of the source has boards and models more; they do not stand in the way of the rest."""
    parts = "v1/meta-llama/Llama-3.1-8B/bf16/tp1/dense.parquet"
    rows: dict[str, list[Any]] = {"layer": ["o_proj"] * 2, "tokens": [7, 8], "time_us": [1e3] * 2}
    for name in ("rtx-4090", "rtx-pro-6000-server", "rtx-9999"):
        write(tmp_path, f"kernels/{name}/{parts}", **rows)
    write(tmp_path, f"kernels/h100/{parts.replace('Llama-3.1-8B', 'Llama-9')}", **rows)
    result = import_source("llmservingsim", tmp_path)
    assert result.frame["gpu"].astype(str).tolist() == ["rtx-4090"] * 2 + ["rtx-pro-6000-server"] * 2
    unknown = {why.split(":")[0].split(";")[0]: count for why, count in result.skipped_by_reason().items()}
    assert unknown == {"meta-llama/Llama-9": 2, "unknown GPU 'rtx-9999'": 2}


def test_another_model_alone_is_one_line(tmp_path: Path) -> None:
    write(tmp_path, "kernels/h100/v0/some/body/tp1/layers.parquet", layer_name=["q_proj"])
    with pytest.raises(TilecastError, match="some/body: no sizes known of it; expected meta-llama"):
        import_source("llmservingsim", tmp_path)


def test_real_layers(tmp_path: Path) -> None:
    data = data_folder()
    if data is None or not (data / "llmservingsim").is_dir():
        pytest.skip("no llmservingsim data: set TILECAST_DATA to the folder that holds them")
    for file in read_sources()["llmservingsim"].files:  # the folder may hold more than the pinned list
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).symlink_to(data / "llmservingsim" / file)
    result = import_source("llmservingsim", tmp_path)
    assert result.imported + result.skipped_rows == 245_760 + 122_880 + 126_976 + 202_698
