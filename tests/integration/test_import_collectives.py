"""Importers of collectives: small made-up files in the sources' layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.errors import SpecError

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from predictor.data import dataset  # noqa: E402
from predictor.data.importers import import_source  # noqa: E402
from predictor.data.importers.base import fill_links  # noqa: E402
from predictor.hardware.system import load_system  # noqa: E402
from predictor.ops.collective import over  # noqa: E402

COMM = "systems/data/{gpu}/comm/{framework}/1.0/{table}_perf.parquet"


def table(root: Path, gpu: str, framework: str, name: str, **columns: list[object]) -> None:
    path = root / COMM.format(gpu=gpu, framework=framework, table=name)
    path.parent.mkdir(parents=True, exist_ok=True)
    n = len(columns["latency"])
    pd.DataFrame({"framework": framework, "version": "1.0", "device": gpu, **columns}, index=range(n)).to_parquet(path)


def test_aiconfigurator(tmp_path: Path) -> None:
    table(
        tmp_path, "h100_sxm", "nccl", "nccl", op_name=["all_reduce", "alltoall", "all_gather"], kernel_source="NCCL",
        nccl_dtype=["half", "int8", "bool"], num_gpus=[8, 4, 2], message_size=[1024, 1024, 1024],
        latency=[0.02, 0.01, 0.01],
    )  # fmt: skip
    table(
        tmp_path, "b60", "oneccl", "oneccl", op_name=["all_gather", "reduce_scatter"], kernel_source="oneCCL",
        nccl_dtype="half", num_gpus=[4, 4], message_size=[1 << 20, 1 << 20], latency=[0.7, 0.0],
    )  # fmt: skip
    table(
        tmp_path, "a100_sxm", "vllm", "custom_allreduce", op_name="all_reduce", allreduce_dtype="bfloat16",
        kernel_source=["vLLM_custom_eager", "vLLM_custom_graph"], num_gpus=[2, 2], message_size=[512, 512],
        latency=[0.04, 0.005],
    )  # fmt: skip
    result = import_source("aiconfigurator", tmp_path)
    dataset.validate(result.frame)
    frame = result.frame.sort_values(["gpu", "source_row"], kind="stable").reset_index(drop=True)
    assert result.skipped_by_reason() == {
        "dtype of a collective that has none here": 1, "latency is no number above zero": 1,
    }  # fmt: skip
    ops = dict(zip(frame["gpu"].astype(str) + frame["kind"].astype(str), dataset.ops_of(frame), strict=True))
    h100, b60, a100 = (load_system(name) for name in ("dgx-h100", "b60-pcie", "dgx-a100"))
    assert ops["h100-sxmall_reduce"] == over(h100, "all_reduce", "fp16", 2048, 8)
    assert ops["h100-sxmall_to_all"] == over(h100, "all_to_all", "int8", 1024, 4)
    # oneCCL counts the share of one rank: four times 2 MiB.
    assert ops["b60all_gather"] == over(b60, "all_gather", "fp16", 8 << 20, 4)
    assert ops["a100-sxm-80gball_reduce"] == over(a100, "all_reduce", "bf16", 1024, 2)
    own = frame[frame["gpu"] == "a100-sxm-80gb"]
    assert own["framework"].astype(str).tolist() == ["vllm", "vllm"]
    assert own["protocol"].astype(str).tolist() == ["eager_events", "cuda_graph"]
    assert set(frame[frame["gpu"] != "a100-sxm-80gb"]["framework"]) == {"pytorch"}


def lut(root: Path, device: str, name: str, rows: str) -> None:
    path = root / "trace" / device / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)\n" + rows)


def test_vtrain(tmp_path: Path) -> None:
    lut(tmp_path, "v100", "AR_GPU2_1M_2M_LUT", "1048576,262144,float,70000,1,60000,2\n2097152,524288,half,1,1,1,1\n")
    lut(tmp_path, "a100", "AR_GPU8_1M_2M_LUT", "1048576,262144,float,nan,1,60000,2\n2097152,524288,float,90000,1,1,1\n")
    lut(tmp_path, "z9", "AR_GPU8_1M_2M_LUT", "1048576,262144,float,5,1,60000,2\n")
    result = import_source("vtrain", tmp_path)
    dataset.validate(result.frame)
    assert result.skipped_by_reason() == {
        "latency is no number above zero": 1, "device 'z9' has no catalogue id here": 1, "type is not float": 1,
    }  # fmt: skip
    a100, v100 = dataset.ops_of(result.frame)
    assert a100 == over(load_system("dgx-a100"), "all_reduce", "fp32", 2 << 20, 8)
    assert v100 == over(load_system("dgx-1-v100"), "all_reduce", "fp32", 1 << 20, 2)
    assert result.frame["latency_ms"].tolist() == [0.09, 0.07]
    with pytest.raises(SpecError, match="holds no vtrain data"):
        import_source("vtrain", _empty(tmp_path))


def _empty(root: Path) -> Path:
    path = root / "empty"
    path.mkdir()
    return path


def test_rows_without_links_get_those_of_their_gpu() -> None:
    columns = {
        "source": "microbench", "source_file": "f", "source_row": [1, 2, 3], "gpu": ["h100-sxm", "l40s", "h100-sxm"],
        "framework": "pytorch", "protocol": "eager_events", "cache_state": "warm", "latency_ms": 1.0, "dtype": "bf16",
        "op": ["collective", "collective", "softmax"], "kind": ["all_reduce", "all_gather", ""],
        "size": [1024, 2048, float("nan")], "ranks": [8, 2, float("nan")], "ranks_per_node": [0, 0, float("nan")],
        "link_bandwidth": [0.0, 0.0, float("nan")], "rows": [float("nan"), float("nan"), 3],
        "cols": [float("nan"), float("nan"), 4],
    }  # fmt: skip
    frame = fill_links(dataset.to_frame(columns, 3))
    frame = dataset.to_frame({name: frame[name] for name in frame.columns}, 3)
    first, second, _ = dataset.ops_of(frame)
    assert first == over(load_system("dgx-h100"), "all_reduce", "bf16", 1024, 8)
    assert second == over(load_system("l40s-pcie"), "all_gather", "bf16", 2048, 2)


def test_rows_over_another_link_or_several_nodes_keep_what_they_say() -> None:
    columns = {
        "source": "microbench", "source_file": "f", "source_row": [1, 2, 3], "gpu": "h100-sxm", "framework": "pytorch",
        "protocol": "cuda_graph", "cache_state": "warm", "latency_ms": 1.0, "dtype": "bf16", "op": "collective",
        "kind": "all_reduce", "size": 1024, "ranks": [8, 8, 16], "ranks_per_node": [0, 0, 8],
        "link": ["nvswitch", "pcie", "nvswitch"], "link_bandwidth": 0.0, "net_bandwidth": [0.0, 0.0, 4e11],
    }  # fmt: skip
    frame = fill_links(dataset.to_frame(columns, 3))
    filled, pcie, nodes = dataset.ops_of(dataset.to_frame({name: frame[name] for name in frame.columns}, 3))
    assert filled == over(load_system("dgx-h100"), "all_reduce", "bf16", 1024, 8)
    assert (pcie.link, pcie.link_bandwidth, pcie.system) == ("pcie", 0.0, "")
    assert (nodes.link_bandwidth, nodes.net_bandwidth, nodes.stream) == (0.0, 4e11, "network")
