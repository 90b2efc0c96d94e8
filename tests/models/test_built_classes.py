"""What eager PyTorch runs of a model type, kernel by kernel, is what its class of today says; in an older release its
class of 2023. Kernels are counted by hand in transformers 5.24 and 4.28 (models/TYPE/modeling_TYPE.py)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from predictor.engines.software import running
from predictor.graph import Graph, Node
from predictor.models.built import Step, build, config_from_dict
from predictor.models.built.load import load_config
from predictor.ops import Elementwise
from predictor.request.request import Request
from predictor.simulate.plan import plan_of
from tests.model_types import TYPES, small

TODAY = running("eager").classes


def graph_of(model: str, mode: str = "forward", today: bool = True, act: str = "fp32", **words: Any) -> Graph:
    """The graph of a type of `tests.model_types`, else of a model of the catalogue, with unfused attention."""
    config = config_from_dict(small(model), model) if model in TYPES else load_config(model)
    lengths = {"seq_len": 1, "context_len": 300} if mode == "decode" else {"seq_len": 32}
    sizes: dict[str, Any] = lengths | {"logits": "last" if mode == "decode" else "all"} | words
    return build(
        config, Step(mode, 2, act_dtype=act, classes=TODAY if today else "", training=mode == "train", **sizes)
    )


def nodes(graph: Graph, block: str) -> list[Node]:
    (at,) = [each for each in graph.blocks if each.name == block]
    return list(at.nodes)


def chain(graph: Graph, block: str, after: str, before: str) -> list[str]:
    """What runs between two nodes of a block: functions of element-wise kernels, else what the operator is called."""
    of_block = nodes(graph, block)
    names = [node.name for node in of_block]
    between = of_block[names.index(after) + 1 : names.index(before)]
    return [node.op.fn if isinstance(node.op, Elementwise) else type(node.op).__name__.lower() for node in between]


SCORES = ("attention scores", "attention context")


@pytest.mark.parametrize(
    ("model", "block", "today", "of_2023"),
    [
        ("gpt2", "layer", ["mul_scalar", "add", "softmax"], ["fill", "div_scalar", "fill", "where", "softmax"]),
        ("bert-large", "layer", ["mul_scalar", "softmax"], ["div_scalar", "add", "softmax"]),
        ("opt-1.3b", "layer", ["mul_scalar", "add", "softmax"], ["add", "fill", "max_scalar", "softmax"]),
        ("t5-large", "encoder layer", ["mul_scalar", "add", "softmax"], ["add_", "softmax"]),
        ("t5-large", "decoder layer", ["mul_scalar", "add", "add", "softmax"], ["add_", "softmax"]),
        ("switch-base-8", "encoder layer", ["mul_scalar", "add", "add", "softmax"], ["add_", "softmax"]),
    ],
)
def test_scores_are_those_of_the_class_of_the_release(
    model: str, block: str, today: list[str], of_2023: list[str]
) -> None:
    assert chain(graph_of(model), block, *SCORES) == today
    assert chain(graph_of(model, today=False), block, *SCORES) == of_2023


def test_software_says_whose_classes_run() -> None:
    """Rows that were measured in 2023 are forecast by the classes of their day."""

    def chained(software: str) -> list[str]:
        run = Request("gpt2", "v100-pcie-32gb", dtype="fp32", mode="forward", seq_len=64, software=software).run()
        return chain(plan_of(run).stages[0].graph, "layer", *SCORES)

    assert chained("") == chained("torch 2.13") == ["mul_scalar", "add", "softmax"]
    assert chained("torch 2.1") == chained("torch 2023") == ["fill", "div_scalar", "fill", "where", "softmax"]


def kernels(graph: Graph, block: str, words: str) -> int:
    return sum(node.count for node in nodes(graph, block) if words in node.name)


def test_a_class_with_windows_makes_two_masks() -> None:
    """Gemma 2 makes one of its windows beside the causal one, Mistral that of windows alone, Llama none of windows."""
    made = {
        model: (
            kernels(graph_of(model), "embedding", "causal mask"),
            kernels(graph_of(model), "embedding", "window mask"),
        )
        for model in ("gemma-2-9b", "mistral-7b", "llama-3.1-8b")
    }
    assert [pair[0] > 0 for pair in made.values()] == [True, False, True]
    assert [pair[1] > 0 for pair in made.values()] == [True, True, False]
    flash = graph_of("gemma-2-9b", attention="flash")
    assert kernels(flash, "embedding", "mask") == 0  # fused attention knows its window


def test_sinks_are_a_column_of_scores_and_a_window_slices_the_cache() -> None:
    graph = graph_of("gpt_oss", "decode")
    window = small("gpt_oss").get("sliding_window", 128)
    for block, keys in (("moe layer window", min(window, 301)), ("moe layer", 301)):
        assert chain(graph, block, *SCORES) == ["mul_scalar", "add", "copy", "reduce", "sub", "softmax"]
        (scores,) = [node.outputs[0] for node in nodes(graph, block) if node.name == SCORES[0]]
        (softmax,) = [node.outputs[0] for node in nodes(graph, block) if node.name == "attention softmax"]
        assert (scores.shape[-1], softmax.shape[-1]) == (keys, keys + 1)


def test_rotary_positions_turn_as_each_class_turns_them() -> None:
    def turned(model: str, block: str, act: str = "bf16") -> Counter[str]:
        ops = [n.op for n in nodes(graph_of(model, act=act, attention="flash"), block) if n.name.startswith("rotary q")]
        return Counter(op.fn for op in ops if isinstance(op, Elementwise))

    assert turned("gpt_oss", "moe layer") == {"mul": 4, "sub": 1, "add": 1, "copy": 1}
    assert turned("llama4_text", "layer 0 window") == {"cast": 2, "mul": 1}
    assert turned("llama4_text", "layer 0 window", "fp32") == {"mul": 1}
    assert turned("llama-3.1-8b", "layer") == {"mul": 2, "neg": 1, "copy": 1, "add": 1}


@pytest.mark.parametrize("act", ["fp32", "bf16"])
@pytest.mark.parametrize("model", ["switch-base-8", "qwen3_vl_text", "llama-3.1-8b"])
def test_every_node_is_a_kernel(model: str, act: str) -> None:
    """One that never ran would have no time, for which an interval asks all the same."""
    assert all(node.count for block in graph_of(model, act=act).blocks for node in block.nodes)


def test_positions_of_three_axes_have_three_angles() -> None:
    graph = graph_of("qwen3_vl_text", act="bf16", attention="flash")
    (angles,) = [node for node in nodes(graph, "embedding") if node.name == "rotary angles"]
    heads = small("qwen3_vl_text")["head_dim"]
    assert isinstance(angles.op, Elementwise) and angles.op.elements == 3 * 2 * 32 * heads // 2


def test_queries_without_rotary_positions_are_scaled_by_theirs() -> None:
    """Llama 4: ten kernels in each layer without rotary positions, unless the config says otherwise."""
    graph = graph_of("llama4_text")
    blocks = [block for block in graph.blocks if block.layers]
    tuned = {block.name: sum("temperature" in node.scope for node in block.nodes) for block in blocks}
    assert {name: count for name, count in tuned.items() if count} == {"moe layer 2": 10}
    plain = build(
        config_from_dict(small("llama4_text") | {"attn_temperature_tuning": False}, "llama4"),
        Step("forward", 2, 32, classes=TODAY),
    )
    assert not any("temperature" in node.scope for block in plain.blocks for node in block.nodes)


def test_a_router_of_groups_runs_its_kernels_and_learns_through_the_shares() -> None:
    graph = graph_of("mimo_v2_flash", "train")
    block = next(block.name for block in graph.blocks if block.name.startswith("moe layer"))
    run = chain(graph, block, "router", "experts")
    assert run == [
        "sigmoid", "add_scalar", "sort", "reduce", "sort", "fill", "index", "cast", "neg", "masked_fill", "sort",
        "index", "reduce", "add_scalar", "div", "mul_scalar",
    ]  # fmt: skip
    (shares,) = [node for node in nodes(graph, block) if node.name == "router shares"]
    (chances,) = [node for node in nodes(graph, block) if node.name == "router chances"]
    assert chances.outputs[0] in shares.inputs


def test_engines_with_code_of_their_own_know_no_classes() -> None:
    assert TODAY and not any(running(name).classes for name in ("vllm", "sglang", "compile", "megatron"))
