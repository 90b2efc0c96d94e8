"""Sequence parallelism: conjugate collectives, work that is conserved over ranks, what Megatron runs in a layer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import predictor
from predictor.engines import EAGER, engine, running
from predictor.errors import RequestError
from predictor.graph import Graph
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import default_system
from predictor.models.built import Step, load_config
from predictor.ops import BACKWARD, FORWARD, Gemm, Norm
from predictor.ops.collective import Collective
from predictor.ops.elementwise import Dropout, DropoutSum
from predictor.passes.mesh import Mesh
from predictor.simulate.lower import Lowering, lower

SYSTEM = default_system(load_gpu("a100-sxm-80gb"))
MODELS = ("gpt2", "llama-3.2-1b", "mixtral-8x7b")


def graph(model: str, tp: int, sp: bool, attention: str = "flash", again: str = "none", of: Any = EAGER) -> Graph:
    step = Step("train", 2, 256, act_dtype="bf16", attention=attention, training=True, experts="whole")
    mesh = Mesh((("tp", tp),), SYSTEM) if tp > 1 else None
    return lower(Lowering(load_config(model), step, mesh, None, of, False, again, sequences=sp))


def exchanged(of: Graph) -> Counter[tuple[str, str]]:
    """Bytes by phase and kind of what the layers exchange."""
    found: Counter[tuple[str, str]] = Counter()
    for block in of.blocks:
        if "layer" in block.name:
            for node in block.nodes:
                if isinstance(node.op, Collective):
                    found[node.phase, node.op.kind] += node.op.size * node.count * block.repeat
    return found


@pytest.mark.parametrize("model", MODELS[:2])
@pytest.mark.parametrize("attention", ["math", "flash"])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(model: str, attention: str) -> None:
    """Both ways as many bytes; what products saved in pieces is gathered once more for the weights' gradients."""
    plain, split = exchanged(graph(model, 4, False, attention)), exchanged(graph(model, 4, True, attention))
    whole = plain[FORWARD, "all_reduce"]
    assert plain == {(FORWARD, "all_reduce"): whole, (BACKWARD, "all_reduce"): whole}
    assert split == {
        (FORWARD, "all_gather"): whole, (FORWARD, "reduce_scatter"): whole,
        (BACKWARD, "all_gather"): 2 * whole, (BACKWARD, "reduce_scatter"): whole,
    }  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tp", [2, 4])
def test_products_are_those_of_tensor_parallelism_and_norms_are_split(model: str, tp: int) -> None:
    plain, split = graph(model, tp, False), graph(model, tp, True)
    for kind, share in ((Gemm, 1), (Norm, tp), (Dropout, tp)):
        ops = [
            sum(node.op.flops() * times for node, times in each_.nodes() if isinstance(node.op, kind)
                and "vocab" not in node.outputs[0].axes and node.name not in ("router", "final norm"))
            for each_ in (plain, split)
        ]  # fmt: skip
        routers = kind is Gemm and model == "mixtral-8x7b"
        assert ops[0] == pytest.approx(share * ops[1], rel=1e-9 if not routers else 0.02)
    assert split.parameters() == plain.parameters()


@pytest.mark.parametrize("again", ["selective", "full"])
def test_full_recompute_exchanges_the_forward_pass_once_more(again: str) -> None:
    runs = EAGER if again == "full" else engine("megatron")  # whose selective is attention's scores alone
    once, more = (exchanged(graph("gpt2", 4, True, "math", kind, runs)) for kind in ("none", again))
    forward = once[FORWARD, "all_gather"]
    assert more[BACKWARD, "all_gather"] - once[BACKWARD, "all_gather"] == (forward if again == "full" else 0)
    assert more[FORWARD, "all_gather"] == forward


def test_one_rank_is_the_graph_of_one_gpu() -> None:
    assert [(n.name, n.op) for n, _ in graph("gpt2", 1, True).nodes()] == [
        (n.name, n.op) for n, _ in graph("gpt2", 1, False).nodes()
    ]


def test_a_fused_layer_is_megatrons() -> None:
    """Dropout in the residual sum, one kernel for its gradient; collectives beside the products they belong to."""
    fused = graph("gpt2", 4, True, "math", of=engine("megatron"))
    layer = next(block for block in fused.blocks if block.name == "layer")
    names = [type(node.op).__name__ if not isinstance(node.op, Collective) else node.op.kind for node in layer.nodes]
    assert names == [
        "Norm", "all_gather", "Gemm", "Gemm", "Softmax", "Dropout", "Gemm", "Elementwise", "Gemm", "reduce_scatter",
        "DropoutSum", "Norm", "all_gather", "Gemm", "Elementwise", "Gemm", "reduce_scatter", "DropoutSum",
    ]  # fmt: skip
    back = next(block for block in fused.blocks if block.name == "layer backward")
    made = [i for i, node in enumerate(back.nodes) if node.name == "mlp up"]
    scattered = next(i for i, node in enumerate(back.nodes) if node.name == "mlp reduce_scatter")
    assert made[0] < scattered < made[1], "after the gradient of the input, beside that of the weight"
    assert not any(isinstance(node.op, DropoutSum) for node in back.nodes)


@pytest.mark.parametrize(("words", "since"), [
    (("megatron", "megatron 2021"), "2021-04"), (("megatron", "megatron-deepspeed 2023"), "2022-06"),
    (("megatron", ""), "2024-08"),
])  # fmt: skip
def test_releases_of_megatron_by_age(words: tuple[str, str], since: str) -> None:
    found = running(*words).vintage()
    assert found is not None and found.since == since and found.training is not None


def test_sizes_that_do_not_divide_are_one_line() -> None:
    with pytest.raises(RequestError) as caught:
        predictor.predict("gpt2", "h100", mode="train", seq_len=1023, tp=4, sp=True, batch=2)
    assert str(caught.value) == "--sp with --tp 4: does not divide --seq-len 1023; nearest valid: 1024"


@pytest.mark.parametrize("execution", ["compile", "megatron", "eager"])
def test_layers_run_again_over_split_sequences_as_over_whole_ones(execution: str) -> None:
    """Compiled, what runs again ended in a gather for the gradients, which is no sum: it failed."""
    words = {"mode": "train", "tp": 2, "batch": 4, "micro_batch": 1, "seq_len": 512, "execution": execution,
             "artifacts": "roofline"}  # fmt: skip
    for again in ("full", "full:4-of-12"):
        whole, found = (predictor.predict("gpt2", "h100", recompute=again, sp=sp, **words) for sp in (False, True))  # type: ignore[arg-type]
        assert found.flops == pytest.approx(whole.flops, rel=2e-3)
        assert found.memory.activations < whole.memory.activations


@pytest.mark.parametrize("execution", ["compile", "megatron", "eager"])
def test_latent_attention_gathers_its_latent_vectors_and_the_part_of_keys_that_turns(execution: str) -> None:
    """The products down to them run on a rank's tokens, those up from them on all (Megatron Core's
    multi_latent_attention.py gathers both)."""
    blocks = graph("deepseek-v2-lite", 2, True, of=engine(execution)).blocks
    layer = next(block for block in blocks if "layer" in block.name and block.backward_of is None)
    moved = [node for node in layer.nodes if isinstance(node.op, Collective)]
    assert not any(node.op.kind == "all_reduce" for node in moved if isinstance(node.op, Collective))
    gathered = {node.scope: node.outputs[0].shape for node in moved}
    assert gathered["attention kv_b all_gather"] == (2, 256, 512)
    assert gathered["key assembly all_gather"] == (2, 256, 64)
    rows = {node.name: node.op.m for node in layer.nodes if isinstance(node.op, Gemm)}
    assert (rows["attention kv_a"], rows["attention kv_b"]) == (256, 512)


def test_sequences_that_no_rank_shares_leave_adapters_as_they_are() -> None:
    words = {"mode": "train", "execution": "megatron", "cp": 2, "lora": 8, "batch": 2, "seq_len": 256}
    one, same = (predictor.predict("llama-3.1-8b", "h100", sp=sp, **words) for sp in (False, True))  # type: ignore[arg-type]
    assert one.latency_s == same.latency_s


def test_the_shared_rotary_key_of_latent_heads_is_turned_by_the_rank_that_has_its_tokens() -> None:
    """Queries' heads are shared out either way; every rank has the one key, of its tokens alone under ``sp``."""

    def turned(sp: bool) -> dict[str, float]:
        nodes = (node for block in graph("deepseek-v2-lite", 2, sp).blocks for node in block.nodes)
        return {node.name: node.op.elements for node in nodes if node.name.startswith(("rotary q ", "rotary k "))}

    plain, split = turned(False), turned(True)
    assert len(plain) == 6
    assert split == {name: count / (2 if name.startswith("rotary k") else 1) for name, count in plain.items()}
