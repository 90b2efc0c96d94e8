"""SimuMax' efficiencies: shares of a peak by shape -> times of products and attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import data_folder

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from predictor.data import dataset  # noqa: E402
from predictor.data.importers import import_source  # noqa: E402
from predictor.errors import SpecError  # noqa: E402
from predictor.ops.attention import Attention  # noqa: E402
from predictor.ops.gemm import Gemm  # noqa: E402

PRODUCT = "b=1, m=1000, k=200, n=300, layout={}, accumulate={}, out_dtype=bf16"
GROUPED = "ng=4, M=64, N=32, K=16, dtype=bf16, stage={}, grad=True, accumulate={}"
ATTENTION = "batch=2, seq_len=64, head_num=8, kv_head_num=2, qk_head_dim=192, v_head_dim=128, qkv_contiguous=True"


def written(folder: Path, **tables: dict[str, float]) -> Path:
    names = ("matmul", "group_matmul", "sdp_fwd", "sdp_bwd")
    ops: dict[str, Any] = {name: {"tflops": 312, "accurate_efficient_factor": tables.get(name, {})} for name in names}
    path = folder / "configs" / "system" / "a100_pcie.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"accelerator": {"op": ops}}))
    return path


def test_a_share_of_the_peak_becomes_a_time(tmp_path: Path) -> None:
    written(
        tmp_path,
        matmul={PRODUCT.format("TN", "False"): 0.5, PRODUCT.format("NT", "True"): 0.25},
        group_matmul={GROUPED.format("bwd_grad_act", "False"): 0.5},
        sdp_fwd={ATTENTION: 1.0},
        sdp_bwd={ATTENTION: 0.5},
    )
    frame = import_source("simumax", tmp_path).frame
    forward = Attention("bf16", 2, 8, 2, 64, 64, 192, 128)
    assert dataset.ops_of(frame)[:4] == [
        Gemm("bf16", 1000, 300, 200), Gemm("bf16", 1000, 300, 200, layout="nt"),
        Gemm("bf16", 64, 32, 16, batch=4, kind="grouped", layout="nn"), forward,
    ]  # fmt: skip
    flops = [2 * 1000 * 300 * 200 / 0.5, 2 * 1000 * 300 * 200 / 0.25, 2 * 4 * 64 * 32 * 16 / 0.5]
    flops += [2 * 2 * 8 * 64**2 * (192 + 128), 2.5 * 2 * 2 * 8 * 64**2 * (192 + 128) / 0.5]
    assert frame["latency_ms"].tolist() == pytest.approx([count / 312e9 for count in flops], rel=1e-6)
    flags = [set(flag.split(";")) - {"beats_roofline", ""} for flag in frame["flag"].astype(str)]
    assert flags == [set(), {"accumulates"}, set(), set(), {"flops_unknown"}]


def test_another_file_is_one_line(tmp_path: Path) -> None:
    written(tmp_path).write_text("{}")
    with pytest.raises(SpecError, match="cannot be read as a system of SimuMax"):
        import_source("simumax", tmp_path)


def test_real_efficiencies() -> None:
    data = data_folder()
    if data is None or not (data / "simumax").is_dir():
        pytest.skip("no simumax data: set TILECAST_DATA to the folder that holds them")
    frame = import_source("simumax", data / "simumax").frame
    assert frame["op"].value_counts().to_dict() == {"gemm": 195, "attention": 24}
    assert frame["flag"].astype(str).value_counts().to_dict() == {"": 142, "accumulates": 65, "flops_unknown": 12}
