"""What training in 8 bits keeps: operands in the format of their products, as Transformer Engine does."""

from __future__ import annotations

from typing import Any

import pytest

import predictor
from predictor.engines import engine
from predictor.graph.tensor import ACTIVATION, WEIGHT
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import load_system
from predictor.models.built import Step, load_config
from predictor.ops import Gemm
from predictor.passes.mesh import Mesh
from predictor.passes.narrow import keep_narrow, spared_bytes
from predictor.request.precision import precision
from predictor.simulate.lower import Lowering, lower

LLAMA = load_config("llama-3.1-8b")
TOKENS = 2048
#: Elements of the products of a Llama layer: of attention, and of the MLP.
OF_LAYER = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336


def trained(dtype: str, gpu: str = "h100", **words: Any) -> Any:
    words = {"execution": "megatron", **words}
    asked = predictor.predict("llama-3.1-8b", gpu, mode="train", batch=1, seq_len=TOKENS, dtype=dtype, **words)
    return asked.memory


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("dtype", ["fp8", "fp8_current"])
def test_a_layer_keeps_inputs_of_products_in_8_bits(dtype: str, tp: int) -> None:
    """In place of two bytes of the results of both norms and of the activation there is a byte; attention's result has
    a byte more, as its own backward pass reads both of its bytes."""
    words = {"tp": tp, "sp": True} if tp > 1 else {}
    wide, narrow = trained("bf16", **words), trained(dtype, **words)
    assert wide.activations - narrow.activations == 32 * TOKENS * (2 * 4096 + 14336 - 4096) / tp


def test_mxfp8_keeps_scales_beside_them() -> None:
    wide, narrow = trained("bf16", "b200"), trained("mxfp8", "b200")
    kept = 2 * 4096 + 14336 + 4096
    assert wide.activations - narrow.activations == 32 * TOKENS * (2 * (2 * 4096 + 14336) - kept * (1 + 1 / 32))


def test_compiled_pytorch_keeps_16_bits() -> None:
    """torchao saves the inputs as they came (float8_linear.py, `matmul_with_hp_or_float8_args`)."""
    wide, narrow = (trained(dtype, execution="compile") for dtype in ("bf16", "fp8"))
    assert narrow.activations == wide.activations


def test_what_runs_again_keeps_no_inputs() -> None:
    wide, narrow = (trained(dtype, recompute="full") for dtype in ("bf16", "fp8"))
    assert narrow.activations == wide.activations


@pytest.mark.parametrize(("gpu", "dtype", "stored"), [
    ("b200", "fp8", 1.0),  # one copy for both passes
    ("h100", "fp8", 2.0),  # one a layout
    ("rtx-pro-6000", "fp8", 2.0),  # Blackwell as well, but of graphics boards
    ("b200", "mxfp8", 2.0 * (1 + 1 / 32)),  # scaled along either axis
    ("b200", "nvfp4", 2.0 * 0.5625),
])  # fmt: skip
def test_frozen_weights_lie_in_8_bits(gpu: str, dtype: str, stored: float) -> None:
    wide, narrow = trained("bf16", gpu, lora=16), trained(dtype, gpu, lora=16)
    assert wide.weights - narrow.weights == 32 * OF_LAYER * (2.0 - stored)
    halves = trained("bf16", gpu, lora=16, tp=2), trained(dtype, gpu, lora=16, tp=2)
    assert halves[0].weights - halves[1].weights == 16 * OF_LAYER * (2.0 - stored)


def test_split_sequences_keep_a_part_of_what_is_gathered() -> None:
    """Norms, residual sums, attention, activation and logits are all split over ranks; nothing lies there whole."""
    whole, part = trained("bf16"), trained("bf16", tp=4, sp=True)
    assert part.activations == whole.activations / 4


def test_trained_weights_stay_in_16_bits() -> None:
    assert trained("fp8", "b200").weights == trained("bf16", "b200").weights


def test_weights_products_read_what_is_gathered_again() -> None:
    """With split sequences, the product of a weight waits for the gather of its input in the backward pass, which
    moves what was kept."""
    formats = precision("fp8", load_gpu("h100")).formats
    step = Step("train", 1, TOKENS, act_dtype="bf16", attention="flash", training=True)
    mesh = Mesh((("tp", 4),), load_system("dgx-h100"))
    graph = lower(Lowering(LLAMA, step, mesh, formats, engine("megatron"), False, sequences=True))
    layer = next(block for block in graph.blocks if block.backward_of is not None and block.repeat > 1)
    products = [n for n in layer.nodes if isinstance(n.op, Gemm) and n.op.layout == "nt" and n.op.dtype == "fp8"]
    gathers = [n for n in layer.nodes if n.op.label == "all_gather" and n.inputs[0].role == ACTIVATION]
    assert [n.inputs[0].dtype for n in gathers] == ["fp8", "fp8"]
    assert [n.inputs[0].shape for n in gathers] == [(1, TOKENS // 4, 4096)] * 2
    read = {id(t) for n in products for t in n.inputs}
    assert all(id(n.outputs[0]) in read for n in gathers)
    assert spared_bytes(graph, 2.0, True) == pytest.approx(32 * OF_LAYER / 4)
    kept = keep_narrow(graph)
    assert [len(b.nodes) for b in kept.blocks] == [len(b.nodes) for b in graph.blocks]
    assert all(t.role != WEIGHT for n in products for t in n.inputs)
