"""Training in 8 bits: what is cast, when, and that nothing is counted twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.errors import UnsupportedError
from predictor.forecast.forecast import Forecast, forecast
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import default_artifacts, load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import Gemm
from predictor.ops.quantize import Quantize
from predictor.ops.roofline import roofline
from predictor.request.request import Request


def products(found: Forecast) -> list[Gemm]:
    """The linear layers' products of the first stage in 8 bits."""
    nodes = (node.op for block in found.plan.stages[0].graph.blocks for node in block.nodes)
    return [op for op in nodes if isinstance(op, Gemm) and op.dtype == "fp8"]


@pytest.mark.parametrize("gpu", ["h100-sxm", "b200", "l40s"])
def test_a_product_whose_input_is_there_takes_less_by_the_kernel_that_makes_it(gpu: str) -> None:
    board, artifacts = load_gpu(gpu), load_artifacts(default_artifacts())
    whole = Gemm("fp8", 4096, 14336, 8192)
    given = replace(whole, quantized=True)
    ops = [whole, given, Quantize("fp8", 4096, 8192)]
    both, alone, before = predict_kernels(ops, board, artifacts, "vllm").latency_s
    assert alone == pytest.approx(both - before)
    few = replace(given, m=1)
    assert (predict_kernels([few], board, artifacts, "vllm").latency_s >= roofline([few], board).lower_bound_s).all()
    plain = Gemm("bf16", 4096, 14336, 8192)
    first, second = predict_kernels([plain, replace(plain, quantized=True)], board, artifacts, "vllm").latency_s
    assert first == second


def test_kernels_that_were_measured_without_have_nothing_taken_off() -> None:
    board, artifacts = load_gpu("mi300x"), load_artifacts(default_artifacts())
    whole = Gemm("fp8", 4096, 14336, 8192)
    first, second = predict_kernels([whole, replace(whole, quantized=True)], board, artifacts, "aiter").latency_s
    assert first == second


def test_a_node_casts_or_the_product_does_never_both() -> None:
    for execution, given in (("eager", True), ("compile", False)):
        found = forecast(Request("gpt2", "h100", mode="forward", dtype="fp8", execution=execution).run())
        assert {op.quantized for op in products(found)} == {given}, execution
    step = forecast(Request("gpt2", "h100", mode="train", dtype="fp8", execution="megatron").run())
    assert {op.quantized for op in products(step)} == {True}
    served = forecast(Request("gpt2", "h100", mode="prefill", dtype="fp8", execution="vllm").run())
    assert {op.quantized for op in products(served)} == {False}


def train(dtype: str, gpu: str = "b200") -> Forecast:
    words = {"mode": "train", "seq_len": 4096, "batch": 1, "execution": "megatron"}
    return forecast(Request("llama-3.1-8b", gpu, dtype=dtype, **words).run(), intervals=False)  # type: ignore[arg-type]


def casts(found: Forecast) -> dict[str, Elementwise]:
    nodes = (node for block in found.plan.stages[0].graph.blocks for node in block.nodes)
    return {
        n.name: n.op for n in nodes if n.phase == "forward" and isinstance(n.op, Elementwise) and n.op.fn == "quantize"
    }


def test_recipes_cast_by_the_bytes_that_they_read_and_write() -> None:
    """Of what attention makes, and of weights: read in 16 bit, once more for the scale of a tensor; both directions."""
    whole = train("fp8")
    for dtype, each_way, reads in (("fp8", 1.0, 1), ("mxfp8", 8.25 / 8, 1), ("nvfp4", 4.5 / 8, 2)):
        found = train(dtype)
        ops = casts(found)
        elements = 4096 * 4096
        for name in ("attention out cast", "attention out weight cast"):
            assert ops[name].bytes_moved() == pytest.approx(elements * (2 * reads + 2 * each_way)), (dtype, name)
        assert ("attention qkv cast" in ops) == (dtype != "mxfp8"), "its norm writes both directions"
        assert found.flops == pytest.approx(whole.flops, rel=1e-4)  # casts count, a little
        assert found.latency_s <= train("bf16").latency_s
        assert {op.quantized for op in (o for b in found.plan.stages[0].graph.blocks for o in (n.op for n in b.nodes))
                if isinstance(op, Gemm) and op.dtype == dtype} == {True}  # fmt: skip
    memory, scaled = whole.memory, train("mxfp8").memory
    assert replace(scaled, activations=memory.activations) == memory
    scales = scaled.activations - memory.activations  # a byte for 32 elements of what products keep
    assert 0.0 < scales < memory.activations / 32


@pytest.mark.parametrize(("execution", "dtype", "reads", "way", "kernels", "normed"), [
    ("megatron", "fp8", 1, 1.0, 1, 2.0), ("megatron", "fp8_current", 2, 1.0, 1, 6.0),
    ("megatron", "fp8_block", 1, 1 + 4 / 128, 1, 2 + 2 + 8 / 128), ("compile", "fp8", 2, 1.0, 1, 6.0),
    ("compile", "fp8_row", 2, 1.0, 2, 3.0),
])  # fmt: skip
def test_recipes_of_8_bits_read_and_write_what_they_say(
    execution: str, dtype: str, reads: int, way: float, kernels: int, normed: float
) -> None:
    """Of a weight, and of a norm's result: reads in 16 bit, and both directions."""
    words = {"mode": "train", "seq_len": 4096, "batch": 1, "execution": execution}
    found = forecast(Request("llama-3.1-8b", "h100", dtype=dtype, **words).run(), intervals=False)  # type: ignore[arg-type]
    ops, elements = casts(found), 4096 * 4096
    weight = [op for name, op in ops.items() if name.startswith("attention out weight cast")]
    assert len(weight) == kernels
    assert sum(op.bytes_moved() for op in weight) == pytest.approx(elements * (2 * reads + 2 * way))
    of_norm = [op for name, op in ops.items() if name.startswith(("attention qkv cast", "attention q cast"))]
    assert sum(op.bytes_moved() for op in of_norm) == pytest.approx(elements * normed)
    linear = [op for op in products(found) if op.kind == "linear"]
    assert {op.quant for op in linear} == {"fp8_block" if dtype == "fp8_block" else ""}
    assert all(op.quantized for op in linear)


@pytest.mark.parametrize(("words", "said"), [
    ({"execution": "megatron", "dtype": "fp8_row"}, "--execution megatron has no such recipe; expected fp8, fp8_c"),
    ({"execution": "compile", "dtype": "fp8_block"}, "--execution compile has no such recipe; expected fp8, fp8_c"),
    ({"execution": "eager", "dtype": "fp8_current"}, "--execution eager has no such recipe; expected fp8"),
    ({"mode": "forward", "dtype": "fp8_row"}, "--dtype fp8_row is a training recipe: expected --mode train, or fp8"),
])  # fmt: skip
def test_a_recipe_that_is_not_there_is_one_line(words: dict[str, str], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        Request("gpt2", "h100", **{"mode": "train", **words}).run()  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["mxfp8", "nvfp4"])
def test_a_board_without_the_units_says_so(dtype: str) -> None:
    with pytest.raises(UnsupportedError, match=f"dtype {dtype!r}: h100-sxm has no"):
        train(dtype, "h100")
