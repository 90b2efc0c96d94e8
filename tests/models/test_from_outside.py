"""What somebody adds without touching the package: an operator, and a model type's reader (engines: test_engines)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import predictor
from predictor import ops
from predictor.data.schema import from_op, to_op
from predictor.engines import EAGER
from predictor.errors import SpecError, UnknownNameError, UnsupportedError
from predictor.graph.graph import Block, Graph, Node
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import ESTIMATOR, ROOFLINE, predict_kernels
from predictor.models.built import ModelConfig, config_from_dict, register_family
from predictor.models.built.reader import DEFAULT_ARCHITECTURE, Reader, common_fields, head_width
from predictor.models.built.type_reader import FAMILIES
from predictor.ops import OPERATORS, Gemm, Op
from predictor.simulate.stage import Plan, Stage
from predictor.simulate.times import Operators

H100 = load_gpu("h100")


@dataclass(frozen=True, slots=True)
class PrefixSum(Op):
    """A cumulative sum over ``cols``, row by row (rows, cols)."""

    rows: int
    cols: int

    family: ClassVar[str] = "prefix_sum"
    columns: ClassVar[tuple[str, ...]] = ("rows", "cols")

    def flops(self) -> float:
        return float(self.rows * self.cols)

    def bytes_read(self) -> float:
        return self.rows * self.cols * self.itemsize

    def bytes_written(self) -> float:
        return self.rows * self.cols * self.itemsize


@dataclass(frozen=True, slots=True)
class Odd(PrefixSum):
    """A field of it has no column in the measurement schema."""

    wobble: int = 0


@pytest.fixture
def tables() -> Iterator[None]:
    """The package's tables as they were, whatever a test adds to them."""
    known = [(table, dict(table)) for table in (OPERATORS, FAMILIES, DEFAULT_ARCHITECTURE)]
    yield
    for table, before in known:
        table.clear()
        table.update(before)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------- operators


def test_an_operator_from_outside_is_forecast_by_the_roofline(tables: None) -> None:
    """512 MiB in and out at the board's bandwidth, alone and in a graph beside a product that has an estimator."""
    scan = PrefixSum("bf16", 2**18, 1024)
    row = predict_kernels([scan], H100, load_artifacts()).row(0)
    assert row.latency_s == pytest.approx(2**30 / H100.memory_bandwidth)
    assert (row.source, row.bound) == (ROOFLINE, "memory")
    product = Gemm("bf16", 4096, 4096, 4096)
    graph = Graph((Block("layer", (Node(product), Node(scan, count=2)), repeat=3),))
    ((done,),) = Operators(H100, EAGER, load_artifacts()).time([Plan((Stage(graph, "forward"),))])
    alone = predict_kernels([product], H100, load_artifacts()).row(0)
    assert alone.source == ESTIMATOR
    assert done.timeline.total_s == pytest.approx(3 * (alone.latency_s + 2 * row.latency_s))
    assert graph.flops() == 3 * (2 * 4096**3 + 2 * 2**28)


def test_rows_of_an_operator_from_outside_teach_an_estimator(
    tables: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registered, its rows are read, and a set of constant efficiencies answers for it, on other boards, too."""
    pytest.importorskip("pandas")
    from predictor.data import dataset

    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from constant_set import write_constant_set

    scans = [PrefixSum("bf16", rows, cols) for rows in (4096, 2**18) for cols in (512, 4096)]
    with pytest.raises(UnknownNameError, match="operator 'PrefixSum'"):
        from_op(scans[0])
    ops.register("prefix_sum", PrefixSum)
    cells = [from_op(scan) for scan in scans]
    assert [to_op(row) for row in cells] == scans
    cold = predict_kernels(scans, H100, load_artifacts()).cold_s
    about = {"gpu": H100.id, "source": "made up", "source_file": "none", "framework": EAGER.kernels}
    columns = {name: [row[name] for row in cells] for name in cells[0]}
    facts = {"source_row": range(len(scans)), "latency_ms": cold / 0.4 * 1e3, "protocol": "cuda_graph"}
    frame = dataset.to_frame({**about, **columns, **facts, "cache_state": "cold"}, len(scans))
    dataset.write(frame, tmp_path / "rows.parquet")
    write_constant_set(dataset.read(tmp_path / "rows.parquet"), tmp_path / "set")
    trained = load_artifacts(str(tmp_path / "set"))
    table = predict_kernels(scans, H100, trained)
    assert table.row(0).source == ESTIMATOR
    np.testing.assert_allclose(table.latency_s, cold / 0.4)
    a100 = load_gpu("a100")
    other = predict_kernels([scans[-1]], a100, trained)
    assert other.latency_s[0] == pytest.approx(float(other.cold_s[0]) / 0.4)


def test_an_operator_that_cannot_be_registered_or_written_says_why(tables: None) -> None:
    with pytest.raises(ValueError, match=r"^an operator called 'gemm', or one of class PrefixSum, exists$"):
        ops.register("gemm", PrefixSum)
    with pytest.raises(ValueError, match=r"^an operator called 'gemm2', or one of class Gemm, exists$"):
        ops.register("gemm2", Gemm)
    ops.register("odd", Odd)
    with pytest.raises(SpecError, match=r"^operator 'odd' has a field 'wobble': expected columns of the measurement"):
        from_op(Odd("bf16", 1, 1))


# ---------------------------------------------------------------------------------------------------------- frontends


def read_pebble(data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    """A decoder with keys of its own, built as Llama is."""
    r = Reader(data, where)
    hidden, heads = r.size("width"), r.size("n_heads")
    return ModelConfig(
        **common_fields(r, "pebble", name), hidden=hidden, layers=r.size("depth"), heads=heads,
        kv_heads=r.integer("n_kv", heads), head_dim=head_width(r, hidden, heads), intermediate=r.size("ff"),
        vocab=r.size("vocab_size"), max_positions=r.integer("positions", 2048), activation="silu", gated=True,
        assumed=tuple(r.assumed),
    )  # fmt: skip


PEBBLE = {
    "model_type": "pebble", "width": 4096, "depth": 32, "n_heads": 32, "n_kv": 8, "ff": 14336, "vocab_size": 128256,
}  # fmt: skip


def test_a_model_type_from_outside_is_forecast(tables: None, tmp_path: Path) -> None:
    """Llama 3.1 8B under other keys takes what Llama 3.1 8B takes, in every mode; what it assumes is listed."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PEBBLE), encoding="utf-8")
    with pytest.raises(UnsupportedError, match="model_type 'pebble'"):
        predictor.predict(str(path), "h100")
    register_family("pebble", read_pebble, "PebbleForCausalLM")
    for words in (
        {"mode": "decode", "context_len": 1000, "execution": "vllm", "tp": 2},
        {"mode": "prefill", "seq_len": 512},
        {"mode": "train", "seq_len": 128, "dtype": "bf16"},
    ):
        ours, theirs = (predictor.predict(model, "h100", **words) for model in (str(path), "llama-3.1-8b"))
        assert ours.latency_s == theirs.latency_s, words
        assert ours.memory.weights == theirs.memory.weights, words
    assert "architectures=PebbleForCausalLM" in config_from_dict(PEBBLE).assumed
    assert "positions=2048" in config_from_dict(PEBBLE).assumed


def test_a_model_type_from_outside_is_checked_as_others_are(tables: None) -> None:
    register_family("pebble", read_pebble, "PebbleForCausalLM")
    with pytest.raises(SpecError, match=r"^config.json \(pebble\): missing 'ff', expected a positive integer$"):
        config_from_dict({k: v for k, v in PEBBLE.items() if k != "ff"})
    with pytest.raises(SpecError, match="'architectures' says 'LlamaForCausalLM' and 'model_type' 'pebble'"):
        config_from_dict({**PEBBLE, "architectures": ["LlamaForCausalLM"]})
    with pytest.raises(UnsupportedError, match=r"unknown model_type 'peble'.*nearest: pebble"):
        config_from_dict({**PEBBLE, "model_type": "peble"})
    with pytest.raises(ValueError, match=r"^a reader of model_type 'pebble' exists$"):
        register_family("pebble", read_pebble, "PebbleForCausalLM")
    with pytest.raises(ValueError, match=r"^architecture 'Stone': expected a name that ends with one of ForCausalLM, "):
        register_family("stone", read_pebble, "Stone")
    assert "stone" not in FAMILIES
