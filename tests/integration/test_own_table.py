"""A person's own CSV file of few columns: imported, and calibrated with, at the first try; one line for a mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from predictor.cli.main import main
from predictor.data import dataset
from predictor.data.importers.table import is_table, read_table
from predictor.data.plausible import keep_apart
from predictor.errors import RequestError
from predictor.hardware.gpu import load_gpu
from predictor.ops import Attention, Collective, Elementwise, Gemm, MoE, Norm

A40 = load_gpu("a40")


@pytest.fixture
def csv_file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "mine.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


GEMM = Gemm("bf16", 512, 1024, 2048)
INT4 = Gemm("bf16", 8, 1024, 2048, quant="int4_wo")
BLOCKS = Gemm("fp8", 8, 1024, 2048, quant="fp8_block")


@pytest.mark.parametrize(
    ("header", "row", "op", "unit", "expected", "milliseconds"),
    [
        ("m,n,k,dtype,time_us", "512,1024,2048,bf16,25", "", "", GEMM, 0.025),
        ("M, N, K, precision, latency (ms)", "512, 1024, 2048, bfloat16, 0.025", "", "", GEMM, 0.025),
        ("m,n,k,dtype,time", "512,1024,2048,torch.bfloat16,25000", "matmul", "ns", GEMM, 0.025),
        ("m,n,k,dtype,mean_s", "512,1024,2048,bf16,25e-6", "gemm", "", GEMM, 0.025),
        ("m,n,k,dtype,duration_us", "8,1024,2048,int4_wo,9", "", "", INT4, 0.009),
        ("m,n,k,dtype,time_us", "8,1024,2048,fp8_block,9", "", "", BLOCKS, 0.009),
        ("batch_size,num_heads,seq_len,head_dim,dtype,ms", "2,32,1024,128,bf16,0.5", "prefill", "",
         Attention("bf16", 2, 32, 32, 1024, 1024, 128), 0.5),
        ("batch,heads,num_kv_heads,context_len,head_dim,dtype,time_us", "8,32,8,4096,128,bf16,60", "decode", "",
         Attention("bf16", 8, 32, 8, 1, 4096, 128), 0.06),
        ("tokens,hidden_size,intermediate_size,num_experts,topk,dtype,t_ms", "64,4096,14336,8,2,bf16,1.5", "", "",
         MoE("bf16", 64, 4096, 14336, 8, 2), 1.5),
        ("rows,cols,dtype,time_us", "4096,4096,fp16,60", "rmsnorm", "", Norm("fp16", 4096, 4096, "rms"), 0.06),
        ("fn,elements,dtype,time_us", "gelu,4194304,fp32,80", "", "", Elementwise("fp32", "gelu", 4194304), 0.08),
    ],
)  # fmt: skip
def test_few_columns_are_a_row(
    csv_file: Callable[[str], Path], header: str, row: str, op: str, unit: str, expected: object, milliseconds: float
) -> None:
    path = csv_file(f"{header}\n{row}\n")
    assert is_table(path)
    frame = read_table(path, A40, op, unit).frame
    dataset.validate(frame)
    assert dataset.ops_of(frame) == [expected]
    assert frame["latency_ms"].tolist() == pytest.approx([milliseconds])
    assert frame[["gpu", "source_file", "source_row"]].iloc[0].tolist() == ["a40", "mine.csv", 1]


def test_a_collective_gets_the_links_of_the_board(csv_file: Callable[[str], Path]) -> None:
    path = csv_file("size_bytes,num_gpus,dtype,time_us\n1048576,4,bf16,90\n")
    (op,) = dataset.ops_of(read_table(path, load_gpu("l40s"), "all_reduce").frame)
    assert isinstance(op, Collective) and (op.kind, op.size, op.ranks) == ("all_reduce", 1048576, 4)
    assert op.link == "pcie" and op.link_bandwidth > 0


def test_what_the_row_says_goes_before_what_is_assumed(csv_file: Callable[[str], Path]) -> None:
    path = csv_file("m,n,k,dtype,time_us,framework,protocol,cache_state,std_us,kernel_name\n"
                    "512,1024,2048,bf16,25,vllm,cuda_graph,rotating,2,\n")  # fmt: skip
    row = read_table(path, A40).frame.iloc[0]
    assert row[["framework", "protocol", "cache_state"]].tolist() == ["vllm", "cuda_graph", "rotating"]
    assert row["latency_std_ms"] == pytest.approx(0.002)


def test_a_row_faster_than_the_board_can_be_is_kept_apart(csv_file: Callable[[str], Path]) -> None:
    path = csv_file("m,n,k,dtype,time_us\n8192,8192,8192,bf16,10\n")
    assert read_table(path, A40).frame["flag"].tolist() == ["beats_roofline"]


@pytest.mark.parametrize(
    ("text", "op", "unit", "said"),
    [
        ("m,n,kk,dtype,time_us\n1,2,3,bf16,4\n", "gemm", "", "column 'kk' is unknown"),
        ("m,n,dtype,time_us\n1,2,bf16,4\n", "gemm", "", "row 1: gemm has no k"),
        ("m,n,k,dtype,time_us\n1,2,3,bf17,4\n", "", "", "row 1: unknown dtype 'bf17'"),
        ("m,n,k,dtype,time_us\n1,2,3,bf16,4\n1,2,3,bf16,nan\n", "", "", "row 2: time_us is 'nan'"),
        ("m,n,k,dtype,time_us\n1,2,3,bf16,-4\n", "", "", "'-4'; expected a number above zero"),
        ("m,n,k,dtype,time_us\n1,2,1e300,bf16,4\n", "", "", "row 1: k is 1e+300: expected a whole number"),
        ("m,n,k,dtype,time_us\n1.5,2,3,bf16,4\n", "", "", "row 1: m is 1.5: expected a whole number"),
        ("m,n,k,dtype,time\n1,2,3,bf16,4\n", "", "", "'time' has no unit"),
        ("m,n,k,dtype,time\n1,2,3,bf16,4\n", "", "minutes", "--unit minutes: expected one of ns, us, ms, s"),
        ("m,n,k,dtype,time_us\n1,2,3,bf16,4\n", "", "ms", "column 'time_us' is in us"),
        ("m,n,k,dtype,time_us,latency_ms\n1,2,3,bf16,4,5\n", "", "", "several columns of times"),
        ("m,n,k,dtype\n1,2,3,bf16\n", "", "", "has no column of times"),
        ("a,b,dtype,time_us\n1,2,bf16,4\n", "", "", "name no operator; expected --op"),
        ("m,n,k,dtype,time_us\n1,2,3,bf16,4\n", "gem", "", "nearest: gemm"),
        ("m,n,k,dtype,time_s\n512,512,512,bf16,4000000\n", "", "", "expected 0.2 us to 100 s"),
        ("m,n,k,dtype,time_us\n1,2,3,bf16\n", "", "", "row 1 has 4 cells; expected 5"),
        ("m,n,k,dtype,time_us\n", "", "", "has no rows"),
        ("m,m,k,dtype,time_us\n1,2,3,bf16,4\n", "", "", "column 'm' appears twice"),
        ("M,m,k,dtype,time_us\n1,2,3,bf16,4\n", "", "", "two columns are both m"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(csv_file: Callable[[str], Path], text: str, op: str, unit: str, said: str) -> None:
    with pytest.raises(RequestError) as error:
        read_table(csv_file(text), A40, op, unit)
    assert said in str(error.value) and "\n" not in str(error.value)


def _products(path: Path, gpu_share: float, seed: int = 0, rows: int = 64) -> None:
    """Products of a made-up A40 whose tensor cores reach ``gpu_share`` of their peak, 1 % of noise."""
    rng = np.random.default_rng(seed)
    m, n, k = (2 ** rng.integers(9, 13, rows) for _ in range(3))
    seconds = (2.0 * m * n * k / (A40.peak_flops("bf16") * gpu_share) + 8e-6) * np.exp(0.01 * rng.normal(size=rows))
    table = pd.DataFrame({"m": m, "n": n, "k": k, "dtype": "bf16", "time_us": seconds * 1e6})
    table.to_csv(path, index=False)


def test_imported_and_calibrated_with_at_the_first_try(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.csv"
    _products(mine, 0.55)
    imported = tmp_path / "mine.parquet"
    assert main(["dataset", "import", "csv", str(mine), "--gpu", "a40", "--op", "gemm", "--out", str(imported)]) == 0
    assert "64 rows written" in capsys.readouterr().out
    assert len(dataset.read(imported)) == 64
    by_table, by_import = tmp_path / "by-table", tmp_path / "by-import"
    for data, out in ((mine, by_table), (imported, by_import)):
        assert main(["calibrate", "--gpu", "a40", "--data", str(data), "--out", str(out)]) == 0
    weights = [(out / "gemm" / "weights.npz").read_bytes() for out in (by_table, by_import)]
    assert weights[0] == weights[1]
    other = str(tmp_path / "other.parquet")
    assert main(["dataset", "import", "csv", str(mine), "--out", other]) == 2
    assert "expected --gpu" in capsys.readouterr().err
    assert main(["dataset", "import", "vidur", str(tmp_path), "--gpu", "a40", "--out", other]) == 2
    assert "--gpu belongs to" in capsys.readouterr().err


def test_a_board_that_rests_on_another_file_travels_with_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boards = tmp_path / "boards"
    boards.mkdir()
    (boards / "first.yaml").write_text('base: a40\nid: first\nsm_count: {value: 80, source: "counted"}\n')
    (boards / "second.yaml").write_text('base: ./first.yaml\nid: second\nl2: {value: 4 MiB, source: "read"}\n')
    mine, imported = tmp_path / "mine.csv", tmp_path / "mine.parquet"
    _products(mine, 0.55, rows=8)
    words = ["dataset", "import", "csv", str(mine), "--gpu", str(boards / "second.yaml"), "--op", "gemm"]
    assert main([*words, "--out", str(imported)]) == 0
    given = load_gpu(str(boards / "second.yaml"))
    for path in boards.iterdir():
        path.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    taken = dataset.devices(dataset.read_meta(imported))["second"]
    assert replace(taken, path=given.path) == given


def test_a_line_that_stands_many_times_counts_once(csv_file: Callable[[str], Path]) -> None:
    lines = ["512,1024,2048,bf16,25", *["512,1024,4096,bf16,45"] * 50, "512,1024,4096,bf16,46"]
    frame = read_table(csv_file("\n".join(["m,n,k,dtype,time_us", *lines, ""])), A40).frame
    assert (frame["flag"].astype(str) == "repeated").tolist() == [False] * 2 + [True] * 49 + [False]
    said: list[str] = []
    keep_apart(frame, "mine.csv", say=said.append)
    assert said == ["mine.csv: 49 rows kept apart, each the same as a row above it in every column: that one counts"]


def test_a_copy_of_a_row_is_kept_apart_and_a_second_measurement_is_not(csv_file: Callable[[str], Path]) -> None:
    """Rows of the schema name their row of the source: the same one twice is a copy."""
    frame = read_table(csv_file("m,n,k,dtype,time_us\n512,1024,2048,bf16,25\n512,1024,4096,bf16,45\n"), A40).frame
    frame = dataset.concat([frame, frame.iloc[:1], frame.iloc[:1].assign(source_row=3)])
    keep_apart(frame, "rows")
    assert frame["flag"].astype(str).tolist() == ["", "", "repeated", ""]
