"""Importers on the real data, where they are at hand: in $TILECAST_DATA, else in ../shared/data beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import data_folder

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from predictor.data import dataset  # noqa: E402
from predictor.data.importers import ImportResult, import_source  # noqa: E402


def real(source: str, *parts: str) -> Path:
    data = data_folder()
    folder = None if data is None else data.joinpath(source, *parts)
    if folder is None or not folder.is_dir():
        pytest.skip(f"no {source} data: set TILECAST_DATA to the folder that holds them")
    return folder


def rows_in(folder: Path, pattern: str) -> int:
    """Rows of all files below `folder` that match, the header not counted."""
    if pattern.endswith(".parquet"):
        import pyarrow.parquet as pq

        return sum(pq.read_metadata(path).num_rows for path in folder.glob(pattern))
    return sum(len(pd.read_csv(path)) for path in folder.glob(pattern))


@pytest.fixture(scope="module")
def real_neusight() -> ImportResult:
    return import_source("neusight", real("neusight"))


def test_real_neusight_loses_no_row(real_neusight: ImportResult) -> None:
    folder = real("neusight")
    in_files = rows_in(folder, "**/collect/*/*/*.csv") + rows_in(folder, "**/dataset/test/*.csv")
    assert real_neusight.imported + real_neusight.skipped_rows == in_files
    assert set(real_neusight.skipped_by_reason()) == {
        "operator conv has no class yet", "repeats a row of elem.csv, ln.csv or softmax.csv",
    }  # fmt: skip
    counts = dataset.describe(real_neusight.frame)["counts"]
    assert set(counts["gpu"]) == {"p4", "p100-pcie-16gb", "t4", "v100-pcie-32gb", "a100-pcie-40gb", "a100-pcie-80gb"}
    assert counts["op"] == {"gemm": 134913, "elementwise": 100131, "softmax": 9206, "norm": 7456}
    assert counts["split"] == {"train": 231847, "test": 19859}
    assert dataset.describe(real_neusight.frame)["flags"] == {}


def test_real_neusight_grids_agree_with_the_orientation(real_neusight: ImportResult) -> None:
    frame = real_neusight.frame
    gemm = frame[(frame["op"] == "gemm") & (frame["split"] == "train")]
    tile = gemm["kernel_name"].astype(str).str.extract(r"sgemm_(\d+)x(\d+)").astype(float)
    columns, rows = -(-gemm["n"] // tile[0]), -(-gemm["m"] // tile[1])
    agree = columns * rows == gemm["grid_x"] * gemm["grid_y"]
    assert agree[tile[0].notna()].mean() > 0.999
    assert tile[0].notna().mean() > 0.99


@pytest.fixture(scope="module")
def real_a100() -> tuple[Path, ImportResult]:
    data = real("aiconfigurator", "aic-core", "src", "aiconfigurator_core", "systems", "data", "a100_sxm")
    return data, import_source("aiconfigurator", data)


def test_real_aiconfigurator_loses_no_row(real_a100: tuple[Path, ImportResult]) -> None:
    data, result = real_a100
    assert result.imported + result.skipped_rows == rows_in(data, "**/*_perf.parquet")
    assert all(reason.startswith("table ") for reason in result.skipped_by_reason())
    facts = dataset.describe(result.frame)
    assert facts["counts"]["op"] == {
        "gemm": 72366 + 2 * 424, "moe": 70866, "attention": 31498 + 9749, "collective": 849, "causal_conv1d": 912,
        "delta_rule": 86,
    }  # fmt: skip
    assert set(facts["counts"]["dtype"]) == {"bf16", "int8", "fp16"}  # NCCL ran in fp16
    assert set(facts["flags"]) == {
        "beats_roofline", "channels_unknown", "host_bound", "kv_read_short", "one_token_prompt",
    }  # fmt: skip
    assert facts["flags"]["channels_unknown"] == 912  # every model's convolution takes equally long there
    gemm = result.frame[(result.frame["op"] == "gemm").to_numpy()]
    assert (gemm["flag"] == "beats_roofline").sum() < 300


def test_real_decode_time_grows_with_the_cache(real_a100: tuple[Path, ImportResult]) -> None:
    frame = real_a100[1].frame
    decode = frame[(frame["op"] == "attention") & (frame["q_len"] == 1) & (frame["framework"] == "vllm")]
    long = decode[(decode["batch"] == 64) & (decode["kv_heads"] == 8) & (decode["heads"] == 32)]
    by_length = long.groupby("kv_len")["latency_ms"].median().loc[256:4096]
    assert by_length.is_monotonic_increasing
    assert by_length.iloc[-1] > 8 * by_length.iloc[0]


def test_real_vidur_loses_no_row() -> None:
    folder = real("vidur")
    result = import_source("vidur", folder)
    in_files = 0
    for path in folder.glob("**/mlp.csv"):
        raw = pd.read_csv(path)
        in_files += len(raw) * sum(column.endswith(".median") for column in raw)
    in_files += rows_in(folder, "**/network/*/*.csv")
    assert result.imported + result.skipped_rows == in_files
    assert dataset.describe(result.frame)["flags"] == {
        "partial_rotary": 783, "beats_roofline": 740, "copy_of_a100": 1988, "link_not_used": 994,
        "network_unknown": 6958, "rank_skew": 2240,
    }  # fmt: skip
    # Boards are what the folders say: large products and sums stand to each other as peaks and bandwidths do.
    big = result.frame[result.frame["latency_ms"] > 0.3]
    wide = big[(big["op"] == "gemm") & (big["m"] == 4096)]
    by_gpu = wide.groupby(["n", "k", "gpu"], observed=True)["latency_ms"].median().unstack().dropna()
    assert 2.3 < (by_gpu["a100-sxm-80gb"] / by_gpu["h100-sxm"]).median() < 3.5
    assert 1.7 < (by_gpu["a40"] / by_gpu["a100-sxm-80gb"]).median() < 2.3


def test_real_llmcompass_rates_are_elements_a_second() -> None:
    folder = real("llmcompass")
    result = import_source("llmcompass", folder)
    lines = sum(len(path.read_text().strip().splitlines()) for path in folder.glob("**/real_hardware/*.csv"))
    assert result.imported + result.skipped_rows == lines
    rates = result.frame[result.frame["op"] != "gemm"]
    ticks = rates["latency_ms"] / 1e3 * 2**22  # the clock's resolution; 100 iterations may be averaged
    assert ((ticks - ticks.round()).abs() < 0.02).mean() > 0.5
