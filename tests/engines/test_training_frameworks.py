"""What a step of training runs as its frameworks' sources have it: user buffers, adapters, casts, kernels, overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from predictor.engines import EAGER, engine
from predictor.engines.attention_ages import CUDNN_9, library_s
from predictor.errors import RequestError
from predictor.forecast.forecast import Forecast, forecast
from predictor.graph import Node
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.kernels.power import held_s
from predictor.ops.attention import Attention
from predictor.ops.base import BACKWARD, FORWARD
from predictor.ops.collective import Collective
from predictor.ops.gemm import Gemm
from predictor.request.request import Request

LAYERS, HIDDEN, TOKENS = 32, 4096, 4096


def ask(**words: Any) -> Forecast:
    given = {"batch": 8, "seq_len": TOKENS, "micro_batch": 1, "execution": "megatron", "dtype": "fp8", "tp": 4}
    given |= {"sp": True, "artifacts": "roofline"}
    return forecast(Request("llama-3.1-8b", "h100-sxm", mode="train", **(given | words)).run())


def of_a_layer(found: Forecast) -> Iterator[Node]:
    """The nodes of a layer's passes, of one forward block and its backward block."""
    for block in found.plan.stages[0].graph.blocks:
        if block.repeat == LAYERS:
            yield from block.nodes


def collectives(found: Forecast) -> Counter[tuple[str, str, str, bool]]:
    """Collectives of a layer as large as its activations: (phase, kind, dtype, whether in pieces) -> how many."""
    return Counter(
        (node.phase, node.op.kind, node.op.dtype, node.op.in_pieces)
        for node in of_a_layer(found)
        if isinstance(node.op, Collective) and node.op.size >= TOKENS * HIDDEN
    )


def test_what_moves_beside_products_is_what_user_buffers_have() -> None:
    """Pipelined forward and for gradients that are gathered; sums of gradients, and what was saved, whole."""
    assert collectives(ask(tp_overlap=True)) == {
        (FORWARD, "all_gather", "fp8", True): 2, (FORWARD, "reduce_scatter", "bf16", True): 2,
        (BACKWARD, "all_gather", "fp8", True): 2, (BACKWARD, "all_gather", "fp8", False): 2,
        (BACKWARD, "reduce_scatter", "bf16", False): 2,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "pieces"), [("mlp gate_up", 4), ("mlp down", 4)])
def test_products_run_in_pieces_of_their_rows(name: str, pieces: int) -> None:
    rows = [n.op.m for n in of_a_layer(ask(tp_overlap=True)) if n.name == name and n.phase == FORWARD
            and isinstance(n.op, Gemm)]  # fmt: skip
    assert rows == [TOKENS // pieces] * pieces
    backward = [n.op.m for n in of_a_layer(ask(tp_overlap=True)) if n.name == "mlp gate_up" and n.phase == BACKWARD
                and isinstance(n.op, Gemm) and n.op.layout == "nn"]  # fmt: skip
    assert backward == [TOKENS], "its sum runs beside the weight's product, not beside it"


def test_pieces_keep_flops_and_hide_exchange() -> None:
    plain, pieces = ask(), ask(tp_overlap=True)
    assert plain.flops == pieces.flops
    assert pieces.summary().exposed_s["tensor"] < plain.summary().exposed_s["tensor"]


def test_sums_of_gradients_wait_where_no_weight_is_trained() -> None:
    """Frozen layers have no product of a weight's gradient to run beside."""
    exposed = [ask(tp_overlap=True, lora=lora).summary().exposed_s["tensor"] for lora in (0, 16)]
    assert exposed[1] > 2 * exposed[0]


def test_adapters_work_on_whole_sequences_and_q_k_v_share_a_sum() -> None:
    found = collectives(ask(tp_overlap=True, lora=16))
    assert found[FORWARD, "all_gather", "bf16", False] == 2  # of the norm's output, and of the adapter's columns
    assert found[BACKWARD, "all_gather", "bf16", False] == 1
    assert found[BACKWARD, "reduce_scatter", "bf16", False] == 3  # of q, k and v, of gate and up, of the adapters
    in_turn = collectives(ask(lora=16))
    assert in_turn[FORWARD, "all_gather", "bf16", False] == 2, "the layer's own gather, which adapters read"
    assert in_turn[BACKWARD, "reduce_scatter", "bf16", False] == 2
    assert not any("adapters" in node.name for node in of_a_layer(ask(lora=16, sp=False)))


def test_adapters_are_scaled() -> None:
    names = [node.name for node in of_a_layer(ask(lora=16, tp=1, sp=False)) if node.phase == FORWARD]
    assert [f"attention {part} adapter scale" in names for part in ("q", "k", "v", "out")] == [True] * 4


def test_a_bias_is_summed_by_the_cast() -> None:
    def sums(dtype: str) -> int:
        run = Request("gpt3", "h100-sxm", mode="train", execution="megatron", batch=1, seq_len=128, dtype=dtype)
        graph = forecast(run.run()).plan.stages[0].graph
        return sum(node.op.family == "elementwise" and type(node.op).__name__ == "Reduce"
                   for block in graph.blocks for node in block.nodes if block.repeat > 1)  # fmt: skip

    assert sums("bf16") - sums("fp8") == 4  # of qkv, out, up and down


@pytest.mark.parametrize(
    ("execution", "library"), [("megatron", "trtllm"), ("cuda_graph", "trtllm"), ("eager", "trtllm")]
)
def test_given_products_of_8_bits_are_cublaslts(execution: str, library: str) -> None:
    choose = engine(execution).library_of(load_gpu("h100-sxm"))
    assert choose is not None
    assert choose(Gemm("fp8", 64, 64, 64, quantized=True)) == library
    assert choose(Gemm("fp8", 64, 64, 64)) == choose(Gemm("bf16", 64, 64, 64)) != library
    assert engine(execution).library_of(load_gpu("mi300x")) is None


def test_long_products_of_8_bits_are_at_most_the_best_that_was_published() -> None:
    gpu = load_gpu("h100-sxm")
    ops = [Gemm("fp8", m, n, k, quantized=True) for m in (4096, 8192) for n in (4096, 16384) for k in (4096, 8192)]
    alone = predict_kernels(ops, gpu, load_artifacts(), EAGER.kernels, EAGER.library_of(gpu)).latency_s
    held = held_s(ops, gpu, alone)
    assert all(op.flops() / s < 1.03 * 1402.6e12 for op, s in zip(ops, held, strict=True))
    assert (held > alone).all()


@pytest.mark.parametrize(("causal", "forward", "backward"), [(False, 617, 465), (True, 484, 465 * 484 / 617)])
def test_cudnns_attention_has_its_published_rates(causal: bool, forward: float, backward: float) -> None:
    op = Attention("bf16", 8, 16, 16, 2048, 2048, 128, causal=causal)
    for each_op, rate in ((op, forward), (op.backward()[0], backward)):
        assert each_op.flops() / library_s(CUDNN_9, each_op, load_gpu("h100-sxm")) / 1e12 == pytest.approx(rate)
    assert library_s(CUDNN_9, op, load_gpu("a100-sxm-80gb")) == 0.0, "no chart tells of it"


def test_fewer_tiles_than_multiprocessors_leave_some_idle() -> None:
    few, many = (Attention("bf16", n, 16, 16, 512, 512, 128) for n in (1, 8))
    gpu = load_gpu("h100-sxm")
    assert library_s(CUDNN_9, few, gpu) > 0.9 * 132 / 64 / 8 * library_s(CUDNN_9, many, gpu)


def test_replicas_exchange_beside_computation_or_in_turn() -> None:
    words = {"tp": 1, "sp": False, "dp": 8, "shard": "zero1"}
    usual, on, off = (ask(**words, dp_overlap=said) for said in ("", "on", "off"))
    assert usual.latency_s == on.latency_s < off.latency_s
    assert on.summary().exposed_s["gradients"] < off.summary().exposed_s["gradients"]
    before = ask(**words, software="megatron 2022")
    assert before.latency_s == ask(**words, software="megatron 2022", dp_overlap="off").latency_s


def test_captured_layers_and_steps_wait_less_for_the_host() -> None:
    words = {"tp": 1, "sp": False, "seq_len": 64, "launch_overhead": 50e-6}
    none, layer, iteration = (ask(**words, cuda_graphs=said).latency_s for said in ("none", "layer", "iteration"))
    assert iteration < layer < 0.5 * none


@pytest.mark.parametrize(("words", "said"), [
    ({"dp_overlap": "maybe"}, "--dp-overlap"), ({"cuda_graphs": "all"}, "--cuda-graphs"),
    ({"cuda_graphs": "layer", "execution": "eager"}, "nothing that eager captures"),
    ({"cuda_graphs": "layer", "software": "megatron 2022"}, "nothing that megatron 2022 captures"),
])  # fmt: skip
def test_words_that_are_none_are_one_line(words: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        ask(**({"tp": 1, "sp": False} | words))
    assert "\n" not in str(caught.value)
