"""The measurement schema and files of it: round trips, refusals, one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.data.schema import (
    BY_NAME,
    COLUMNS,
    OP_COLUMNS,
    REQUIRED,
    SCHEMA_VERSION,
    columns_markdown,
    from_op,
    is_null,
    op_fields,
    to_op,
)
from predictor.errors import RequestError, SpecError, TilecastError, UnknownNameError
from predictor.ops import (
    OPERATORS,
    Aggregate,
    Attention,
    CausalConv1d,
    ChannelNorm,
    Collective,
    Convolution,
    Copy,
    CrossEntropy,
    DeltaRule,
    Dropout,
    Elementwise,
    Embedding,
    EmbeddingBag,
    Gemm,
    Index,
    Indexer,
    Interpolate,
    MoE,
    Norm,
    Op,
    OptimizerStep,
    Pool,
    Quantize,
    Reduce,
    Rotary,
    Routing,
    Scan,
    Softmax,
    Sort,
    StateSpace,
)

ROOT = Path(__file__).resolve().parents[2]

EXAMPLES: list[Op] = [
    Gemm("fp32", 7, 11, 13, 3, "bmm", False, "nn"),
    Gemm("bf16", 1, 2, 3, bias=True),
    Attention("bf16", 2, 8, 4, 1, 129, 64, 32, False, 16, "fp8", "forward", True, True),
    Elementwise("fp16", "fused", 100, 3, 12.5, "fp32", 7.0, False),
    Elementwise("fp32", "add", 5),
    Dropout("fp32", 9),
    Reduce("fp32", 4, 5, 1),
    Rotary("bf16", 6, 12, 64, True),
    Copy("int8", 1 << 40, "host_to_device"),
    Norm("bf16", 3, 4, "rms", "backward", True),
    Softmax("fp32", 3, 4, "backward"),
    Embedding("fp32", 3, 4, 5),
    CrossEntropy("fp32", 3, 5, "backward"),
    OptimizerStep("fp32", 10**12, "adam_fused", True),
    MoE("fp8", 16, 64, 128, 8, 2, False, 2, 4, "power_law_1.2"),
    Routing("fp32", 16, 8, 2),
    Quantize("fp8", 5, 128, "cast", "bf16", 64),
    CausalConv1d("bf16", 2, 1, 6144, 4, True),
    DeltaRule("bf16", 2, 7, 16, 32, 128, 128, True),
    StateSpace("bf16", 2, 7, 8, 64, 128, 64, True),
    Convolution("fp16", 2, 8, 16, 1, 7, 9, 1, 4, 5, 1, 3, 3, 2, 1, 4, True, False, True, "wgrad"),
    ChannelNorm("fp16", 2, 8, 49, "group", 4, False, "backward"),
    Pool("fp16", 16, 49, 16, 9, "max", True),
    Interpolate("fp16", 16, 49, 196, "bilinear"),
    Index("bf16", 5, 64, 100, "scatter_add"),
    Scan("fp32", 3, 4, False),
    Sort("fp32", 3, 400, 7),
    EmbeddingBag("fp32", 10, 3, 128, 1000, 1.05, False),
    Aggregate("bf16", 10, 20, 300, 64, 4, 0.5, True),
    Indexer("fp8", 2, 64, 3, 400, 128),
    Collective("bf16", "all_reduce", 1 << 20, 16, 8, "nvswitch", 450e9, 6e-7, True, 4e11, 5e-6, "dgx-h100"),
]


@pytest.fixture
def dataset():
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    from predictor.data import dataset

    return dataset


def rows_of(dataset, ops=EXAMPLES, **more):
    """A small made-up dataset that holds `ops`."""
    names = dict.fromkeys(name for op in ops for name in from_op(op))
    columns = {name: [from_op(op).get(name) for op in ops] for name in names}
    latency = [0.5 + 0.25 * i for i in range(len(ops))]
    facts = {
        "source": "made up", "source_file": "none", "source_row": [*range(1, len(ops) + 1)], "gpu": "h100-sxm",
        "framework": "pytorch", "protocol": "cuda_graph", "cache_state": "cold", "latency_ms": latency,
    }  # fmt: skip
    return dataset.to_frame({**columns, **facts, **more}, len(ops))


def test_schema_names_every_field_of_every_operator_once() -> None:
    names = [column.name for column in COLUMNS]
    assert len(names) == len(set(names))
    for cls in OPERATORS.values():
        for name, kind, _ in op_fields(cls):
            assert BY_NAME[name].type == kind, f"{cls.__name__}.{name}"
    assert all(column.nullable for column in OP_COLUMNS)
    assert {"gpu", "op", "dtype", "latency_ms", "flag"} <= set(REQUIRED)
    assert all(column.meaning != column.name for column in COLUMNS if column.name not in ("tokens",))


def test_examples_cover_every_operator() -> None:
    assert {type(op) for op in EXAMPLES} == set(OPERATORS.values())


@pytest.mark.parametrize("op", EXAMPLES, ids=lambda op: type(op).__name__)
def test_op_round_trip(op: Op) -> None:
    row = from_op(op)
    assert to_op(row) == op
    as_floats = {k: float(v) if isinstance(v, int) and not isinstance(v, bool) else v for k, v in row.items()}
    back = to_op({**as_floats, "unrelated": None, "m": row.get("m", float("nan"))})
    assert back == op
    assert all(type(getattr(back, name)) is type(getattr(op, name)) for name, _, _ in op_fields(type(op)))


def test_nulls_become_defaults() -> None:
    row = {"op": "gemm", "dtype": "bf16", "m": 1.0, "n": 2, "k": 3, "batch": None, "kind": float("nan")}
    assert to_op(row) == Gemm("bf16", 1, 2, 3)
    pd = pytest.importorskip("pandas")
    assert is_null(pd.NA)
    assert to_op({**row, "bias": pd.NA}) == Gemm("bf16", 1, 2, 3)


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        ({"op": "gem", "dtype": "bf16"}, UnknownNameError, "gemm"),
        ({"op": "gemm", "dtype": "bf16", "m": 1, "n": 2}, SpecError, "no k"),
        ({"op": "gemm", "dtype": "bf16", "m": 1.5, "n": 2, "k": 3}, SpecError, "m is 1.5: expected a whole number"),
        ({"op": "gemm", "dtype": "bf16", "m": "x", "n": 2, "k": 3}, SpecError, "m is 'x'"),
        ({"op": "gemm", "dtype": "bf16", "m": 1, "n": 2, "k": 3, "bias": 2}, SpecError, "true or false"),
    ],
)
def test_bad_rows(row, error, words) -> None:
    with pytest.raises(error, match=words) as caught:
        to_op(row)
    assert "\n" not in str(caught.value)


def test_measurement_is_import_light() -> None:
    code = "import sys, predictor.data.schema; print([m for m in ('pandas', 'pyarrow', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_the_documentation_shows_the_schema() -> None:
    text = (ROOT / "docs" / "reference" / "dataset-columns.md").read_text(encoding="utf-8")
    assert columns_markdown() in text
    assert f"Schema version: {SCHEMA_VERSION}." in text


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_file_round_trip(dataset, tmp_path: Path, suffix: str) -> None:
    frame = rows_of(dataset)
    path = tmp_path / "new" / f"data{suffix}"
    meta = dataset.write(frame, path, {"source": "made up"})
    back = dataset.read(path)
    assert dataset.ops_of(back) == EXAMPLES
    assert back["latency_ms"].tolist() == frame["latency_ms"].tolist()
    assert dataset.digest(back) == dataset.digest(frame) == meta["sha256"]
    assert dataset.read_meta(path)["schema_version"] == SCHEMA_VERSION
    assert json.loads(dataset.sidecar(path).read_text())["source"] == "made up"
    assert sorted(p.name for p in path.parent.iterdir()) == [f"data{suffix}", f"data{suffix}.meta.json"]
    assert list(back.columns) == [c.name for c in COLUMNS if c.name in back]
    assert back["flag"].tolist() == [""] * len(EXAMPLES)


def test_ops_of_agrees_with_to_op(dataset) -> None:
    frame = rows_of(dataset, [*EXAMPLES, *reversed(EXAMPLES)])
    assert dataset.ops_of(frame) == [to_op(row) for row in frame.to_dict("records")]
    assert dataset.ops_of(frame[frame["op"] == "no such"]) == []


def test_ops_of_refuses_missing_fields(dataset) -> None:
    frame = rows_of(dataset)
    with pytest.raises(SpecError, match="has no k"):
        dataset.ops_of(frame.drop(columns="k"))
    frame["m"] = frame["m"].astype(float) + 0.5
    with pytest.raises(SpecError, match="whole number"):
        dataset.ops_of(frame)


def test_digest_tells_rows_apart(dataset) -> None:
    frame = rows_of(dataset)
    assert dataset.digest(frame) == dataset.digest(frame.copy())
    assert dataset.digest(frame) != dataset.digest(frame[::-1])
    assert dataset.digest(frame) != dataset.digest(rows_of(dataset, gpu="h200-sxm"))


def test_concat_fills_absent_columns(dataset) -> None:
    gemm, norm = rows_of(dataset, EXAMPLES[:1]), rows_of(dataset, [Norm("bf16", 3, 4, "rms")], gpu="l4")
    both = dataset.concat([gemm, norm, dataset.concat([])])
    assert dataset.ops_of(both) == [EXAMPLES[0], Norm("bf16", 3, 4, "rms")]
    assert both["gpu"].tolist() == ["h100-sxm", "l4"]


@pytest.mark.parametrize("latency", [0.0, -1.0, float("nan"), float("inf")])
def test_latency_has_to_be_above_zero(dataset, tmp_path: Path, latency: float) -> None:
    with pytest.raises(SpecError, match="latency_ms"):
        dataset.write(rows_of(dataset, latency_ms=latency), tmp_path / "x.parquet")
    assert not list(tmp_path.iterdir())


def test_frames_outside_the_schema(dataset) -> None:
    frame = rows_of(dataset)
    with pytest.raises(SpecError, match="colour"):
        dataset.validate(frame.assign(colour=1))
    with pytest.raises(SpecError, match="gpu"):
        dataset.validate(frame.drop(columns="gpu"))
    with pytest.raises(SpecError, match=r"row 1 .*nearest: gemm"):
        dataset.validate(frame.assign(op="gem"))


def test_files_that_are_no_dataset(dataset, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    plain = tmp_path / "plain.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(plain)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"nothing of the kind")
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    old = tmp_path / "old.csv"
    dataset.write(rows_of(dataset), old)
    dataset.sidecar(old).write_text(json.dumps({"schema_version": SCHEMA_VERSION + 1}))
    cases = [(plain, "no schema version"), (broken, "cannot be read"), (table, "no schema version"), (old, "version 2")]
    for path, words in cases:
        with pytest.raises(SpecError, match=words) as caught:
            dataset.read(path)
        assert "\n" not in str(caught.value)
    for path in (tmp_path / "absent.parquet", tmp_path / "data.txt"):
        with pytest.raises(RequestError) as caught:
            dataset.read(path)
        assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_written(dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot write") as caught:
        dataset.write(rows_of(dataset), tmp_path / "file" / "x.parquet")
    assert "\n" not in str(caught.value)


def test_describe_and_repeats(dataset) -> None:
    op = EXAMPLES[0]
    frame = rows_of(dataset, [op, op, op, EXAMPLES[4]], latency_ms=[1.0, 3.0, 2.0, 5.0], flag=["", "a;b", "a", ""],
                    latency_mean_ms=[1.0, 1.0, 1.0, None], latency_std_ms=[0.1, 0.2, 0.3, None])  # fmt: skip
    facts = dataset.describe(frame)
    assert facts["rows"] == 4
    assert facts["counts"]["op"] == {"gemm": 3, "elementwise": 1}
    assert facts["ranges"]["gemm"]["latency_ms"] == [1.0, 2.0, 3.0]
    assert facts["ranges"]["gemm"]["k"] == [13.0, 13.0]
    assert facts["noise"]["spread"] == {"median": pytest.approx(0.2), "rows": 3}
    assert facts["noise"]["repeats"] == {"median": 0.5, "cases": 1}
    assert facts["flags"] == {"a": 2, "b": 1}
    json.dumps(facts)
    merged = dataset.merge_repeats(frame)
    assert merged["latency_ms"].tolist() == [2.0, 5.0]
    assert dataset.describe(rows_of(dataset, EXAMPLES[:1]))["noise"] == {"spread": None, "repeats": None}


def test_a_missing_library_names_the_command(monkeypatch) -> None:
    from predictor.files.extras import require

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(TilecastError, match=r'pip install "tilecast\[train\]"'):
        require("pandas")
