"""Embedding tables over GPUs, and parts of a pipeline that are lists of operators."""

from __future__ import annotations

from pathlib import Path

import pytest

import predictor
from predictor.errors import RequestError, SpecError
from predictor.models.traced.tables import SHARDINGS, spread
from predictor.ops import EmbeddingBag, Gemm
from predictor.ops.collective import Collective
from predictor.request.request import Request
from predictor.simulate.answer import Prediction
from predictor.simulate.plan import plan_of

ROWS, POOLING = [40_000_000, 5_000, 3, 300_000, 70_000, 36], [100, 2, 1, 27, 1, 1]

STEP = """
sizes: {batch: 64}
parts:
  forward:
    ops:
      - tables: &tables {rows: [1000, 20], pooling: [4, 2], width: 64, batch: batch, sharding: table}
      - {mlp: [128, 256, 1], rows: batch/gpus}
  backward:
    ops:
      - {mlp: [128, 256, 1], rows: batch/gpus, phase: backward}
      - {tables: *tables, phase: backward}
      - {collective: all_reduce, bytes: 4*100, ranks: 8}
"""


def test_two_tables_on_two_gpus_by_hand() -> None:
    """A sample sums 4 rows of one table and 2 of the other; 32 samples, half of them on each GPU."""
    one = spread([1000, 10], [4, 2], 64, 32, 2, "table")
    assert one.looked_up == ((32, 4, 64, 1000),) and one.pooled == 32 * 64 and one.indices == 32 * 4
    every = spread([1000, 10], [4, 2], 64, 32, 2, "data")
    assert every.looked_up == ((16, 4, 64, 1000), (16, 2, 64, 10)) and every.summed == 1010 * 64
    columns = spread([1000, 10], [4, 2], 64, 32, 2, "column")
    assert columns.looked_up == ((32, 4, 32, 1000), (32, 2, 32, 10)) and columns.pooled == 2 * 32 * 32
    rows = spread([1000, 10], [4, 2], 64, 32, 2, "row")
    assert rows.looked_up == ((32, 2, 64, 500), (32, 1, 64, 5)) and rows.scattered == 32 * 64 * 2


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_one_gpu_has_every_table_and_exchanges_nothing(sharding: str) -> None:
    found = spread(ROWS, POOLING, 128, 512, 1, sharding)
    assert found.looked_up == tuple((512, p, 128, r) for r, p in zip(ROWS, POOLING, strict=True))
    assert not (found.pooled or found.scattered or found.summed or found.indices)


@pytest.mark.parametrize("gpus", [2, 4, 8, 64])
def test_a_plan_is_no_worse_than_whole_tables_and_no_better_than_even(gpus: int) -> None:
    """The busiest GPU reads at least its share of what all do, and less than the one that has the largest table."""
    batch = 512 * gpus

    def read(sharding: str) -> int:
        return sum(
            one.bags * one.pooling * one.width for one in spread(ROWS, POOLING, 128, batch, gpus, sharding).looked_up
        )

    even = batch * sum(POOLING) * 128 / gpus
    assert even * 0.99 <= read("planned") <= read("table")
    assert even * 0.99 <= read("column") <= even * 1.01 if 128 % gpus == 0 else True
    assert read("data") == even


@pytest.mark.parametrize(
    "words",
    [
        ({"sharding": "planed"}, "nearest: planned"),
        ({"sharding": "column", "gpus": 3}, "do not divide 128 columns"),
        ({"pooling": [1]}, "expected as many"),
    ],
)
def test_a_sharding_that_is_none_is_one_line(words: tuple[dict[str, object], str]) -> None:
    with pytest.raises(RequestError, match=words[1]):
        spread(**{"rows": ROWS, "pooling": POOLING, "width": 128, "batch": 64, "gpus": 2} | words[0])  # type: ignore[arg-type]


def a_file(folder: Path, text: str = STEP) -> str:
    path = folder / "step.yaml"
    path.write_text(text)
    return str(path)


def ops(path: str, **words: object) -> list[object]:
    plan = plan_of(Request(path, "h100", dtype="bf16", execution="compile", **words).run())  # type: ignore[arg-type]
    return [node.op for stage in plan.stages for node, _ in stage.graph.nodes()]


def test_a_step_of_a_list_is_its_operators(tmp_path: Path) -> None:
    alone, two = ops(a_file(tmp_path)), ops(a_file(tmp_path), dp=2)
    products = [op for op in alone if isinstance(op, Gemm)]
    assert sum(op.flops() for op in products) == 3 * 2 * 64 * (128 * 256 + 256)  # forward, and both gradients
    assert not any(isinstance(op, Collective) for op in alone)
    assert sum(op.flops() for op in two if isinstance(op, Gemm)) == 3 * 64 * (128 * 256 + 256)
    sent = [(op.kind, op.size, op.ranks) for op in two if isinstance(op, Collective)]
    busiest = 64 * 64 * 2  # the pooled rows of one table, 2 bytes each; 4 indices a sample of 8 bytes
    assert sent == [
        ("all_to_all", 64 * 4 * 8, 2),
        ("all_to_all", busiest, 2),
        ("all_to_all", busiest, 2),
        ("all_reduce", 400, 2),
    ]
    assert all(op.system == "dgx-h100" for op in two if isinstance(op, Collective))
    assert [op.phase for op in two if isinstance(op, EmbeddingBag)] == ["forward", "backward"]


def test_mlperf_steps_take_less_on_more_gpus() -> None:
    for name, batch in (("dlrm-dcnv2", 135_168), ("rgat-igbh", 65_536)):
        took = [predictor.predict(name, "h100", batch=batch, dp=n, execution="compile").latency_s for n in (8, 16, 64)]
        assert took == sorted(took, reverse=True)


@pytest.mark.parametrize(
    "text",
    [
        ("{op: gem, m: 1}", "nearest: gemm"),
        ("{op: gemm, m: 1, n: 1, kay: 1}", "no field 'kay'"),
        ("{op: gemm, m: 1}", "gemm:"),
        ("{collective: all_two_all, bytes: 1}", "unknown collective"),
        ("{mlp: [3]}", "two widths or more"),
        ("{tables: {rows: [1]}}", "expected rows and pooling"),
        ("{mlp: [3, 4], phase: sideways}", "expected forward or backward"),
        ("{op: elementwise, fn: fused, elements: 1, chain_flops: x}", "chain_flops of Elementwise is 'x'"),
        ("{op: elementwise, fn: {a: 1}, elements: 1}", "fn of Elementwise is {'a': 1}"),
        ("{op: elementwise, fn: gathre, elements: 1}", "Elementwise has no 'gathre'"),
        ("{op: optimizer, parameters: 1, kind: adma}", "OptimizerStep has no 'adma'"),
        ("{op: gemm, m: 1, n: 1, k: 1, bias: perhaps}", "bias of Gemm is 'perhaps'; expected true or false"),
        ("{op: gemm, m: 1, n: 1, k: 1, dtype: bf17}", "dtype of Gemm is 'bf17'"),
        ("{mlp: [3, 4], row: 8}", "mlp has no field 'row'; expected some of mlp, rows, relu, phase; nearest: rows"),
        ("{mlp: [3, 4], relu: 'no'}", "relu is 'no'; expected true or false"),
        ("{collective: all_reduce, byte: 8}", "nearest: bytes"),
        ("{tables: {rows: [1], pooling: [1], widht: 8}}", "nearest: width"),
        ("{op: gemm, mlp: [1, 2]}", "one of op, collective, mlp, tables"),
    ],
)
def test_a_list_that_is_none_is_one_line(text: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(RequestError) as error:
        predictor.predict(a_file(tmp_path, f"parts: {{x: {{ops: [{text[0]}]}}}}"), "h100")
    assert text[1] in str(error.value) and "\n" not in str(error.value)


def beside(folder: Path, text: str, gpus: int = 8) -> Prediction:
    path = folder / "beside.yaml"
    path.write_text(f"sizes: {{batch: 65536}}\nparts:\n  step:\n    ops:\n{text}")
    return predictor.predict(str(path), "h100", dtype="bf16", execution="compile", dp=gpus)


def test_an_exchange_hides_behind_what_runs_beside_it(tmp_path: Path) -> None:
    """Whichever is longer, and what the exchange takes of the GPU; what follows in its entry waits for it."""
    dense, sent = "{mlp: [512, 4096, 512], rows: batch/gpus}", "{collective: all_to_all, bytes: 2*batch*512"
    layers, exchange = (beside(tmp_path, f"    - {one}\n").latency_s for one in (dense, sent + "}"))
    both = beside(tmp_path, f"    - {sent}, beside: [{dense}]}}\n")
    apart = beside(tmp_path, f"    - {sent}}}\n    - {dense}\n")
    assert apart.latency_s == pytest.approx(layers + exchange, rel=0.03)
    assert max(layers, exchange) <= both.latency_s < 0.85 * apart.latency_s
    assert both.flops == apart.flops
    alone = beside(tmp_path, f"    - {sent}, beside: [{dense}]}}\n", gpus=1)
    assert alone.latency_s == beside(tmp_path, f"    - {dense}\n", gpus=1).latency_s  # which exchanges nothing
    tables = "tables: {rows: [4000000, 4000000], pooling: [8, 8], width: 128, batch: batch}"
    looked, hidden = (
        beside(tmp_path, f"    - {{{tables}{more}}}\n").latency_s for more in ("", f", beside: [{dense}]")
    )
    assert max(looked, layers) <= hidden < looked + layers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{mlp: [8, 8], rows: 4, beside: [{mlp: [8, 8], rows: 4}]}", "beside: expected a list of operators, of tables"),
        ("{collective: all_reduce, bytes: 8, beside: 3}", "beside: expected a list"),
        ("{collective: all_reduce, bytes: 8, beside: [{collective: all_reduce, bytes: 8, beside: []}]}", "one level"),
        ("{collective: all_reduce, bytes: 8, beside: [{mpl: 1}]}", "beside 1: expected a mapping with one of op"),
    ],
)
def test_what_cannot_hide_anything_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=said):
        beside(tmp_path, f"    - {text}\n")
