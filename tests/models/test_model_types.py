"""The table of model types: graphs that hold the parameters they say, layers by their rules, refusals."""

from __future__ import annotations

import pytest

from predictor import predict
from predictor.errors import SpecError
from predictor.graph.tensor import WEIGHT
from predictor.models.built import Step, build, config_from_dict, kv_cache_bytes, parameters
from predictor.models.built.model_types import TRAITS
from predictor.models.built.reader import HEADS
from predictor.ops import CausalConv1d, DeltaRule, Indexer, Sort, StateSpace
from predictor.ops.attention import Attention
from tests.model_types import ELSEWHERE, TYPES, small

NEW = (*TYPES, *ELSEWHERE)


def weights_of(config: object, **step: object) -> int:
    """Elements of the weights of products and experts that a graph reads, each tensor once, times its layers."""
    graph = build(config, Step(**{"mode": "forward", "batch": 2, "seq_len": 24, "act_dtype": "bf16",  # type: ignore[arg-type]
                                  "attention": "flash", "experts": "whole", **step}))  # fmt: skip
    total = 0
    for block in graph.blocks:
        seen = {id(t.storage): t for node in block.nodes for t in node.inputs if t.role == WEIGHT}
        total += block.repeat * sum(t.elements for t in seen.values())
    return total


@pytest.mark.parametrize("name", NEW)
def test_a_graph_reads_nearly_every_parameter(name: str) -> None:
    """All but a few vectors that no product reads (decays, sinks, biases of experts)."""
    config = config_from_dict(small(name), name)
    tied = config.vocab * config.hidden if config.tie_embeddings else 0  # read by two blocks
    assert weights_of(config) - tied == pytest.approx(parameters(config), rel=0.006)


@pytest.mark.parametrize("name", NEW)
def test_every_pass_is_built_and_forecast(name: str, tmp_path: object) -> None:
    config = config_from_dict(small(name), name)
    forward, last = (
        sum(op.flops() * n for op, n in flops_of(config, mode, 1 if mode == "decode" else 16))
        for mode in ("prefill", "decode")
    )
    assert forward > 8 * last > 0


def flops_of(config: object, mode: str, tokens: int):
    graph = build(
        config, Step(mode, 2, tokens, 64 if mode == "decode" else 0, "bf16", attention="flash", experts="whole")
    )  # type: ignore[arg-type]
    return [(node.op, node.count * block.repeat * node.share) for block in graph.blocks for node in block.nodes]


def ops_of(name: str, mode: str = "decode", context: int = 64) -> list:
    config = config_from_dict(small(name), name)
    step = Step(mode, 2, 1 if mode == "decode" else 32, context if mode == "decode" else 0, "bf16",
                attention="flash", experts="whole")  # fmt: skip
    return [(node.op, block.repeat) for block in build(config, step).blocks for node in block.nodes]


def test_linear_attention_in_every_layer_but_the_fourth() -> None:
    ops = ops_of("qwen3_5_text")
    assert sum(n for op, n in ops if isinstance(op, DeltaRule)) == 6
    assert sum(n for op, n in ops if isinstance(op, CausalConv1d)) == 6
    assert sum(n for op, n in ops if isinstance(op, Attention)) == 2
    rule = next(op for op, _ in ops if isinstance(op, DeltaRule))
    assert (rule.heads, rule.v_heads, rule.head_dim, rule.v_head_dim, rule.cached) == (4, 8, 16, 24, True)


def test_states_take_the_place_of_a_cache_that_grows() -> None:
    config = config_from_dict(small("qwen3_5_text"), "x")
    of = [kv_cache_bytes(config, 1, tokens, "bf16") for tokens in (0, 100, 200)]
    assert of[2] - of[1] == of[1] - of[0] == 100 * 2 * (2 * 2 * 32) * 2, "two layers of keys and values"
    states = 8 * 16 * 24 + 3 * (2 * 4 * 16 + 8 * 24)
    assert of[0] == 6 * states * 4


def test_one_thing_a_layer() -> None:
    ops = ops_of("nemotron_h")
    scans = [(op, n) for op, n in ops if isinstance(op, StateSpace)]
    assert sum(n for _, n in scans) == 3
    assert sum(n for op, n in ops if isinstance(op, Attention)) == 1
    with pytest.raises(SpecError, match="hybrid_override_pattern"):
        config_from_dict({**small("nemotron_h"), "hybrid_override_pattern": "M-M*XM-E"}, "x")
    with pytest.raises(SpecError, match="expected 8"):
        config_from_dict({**small("nemotron_h"), "hybrid_override_pattern": "M-"}, "x")


def test_sparse_attention_sees_the_keys_that_its_indexer_picks() -> None:
    ops = [op for op, _ in ops_of("deepseek_v32")]
    indexer = next(op for op in ops if isinstance(op, Indexer))
    assert (indexer.heads, indexer.head_dim, indexer.kv_len) == (4, 32, 65)
    assert next(op for op in ops if isinstance(op, Sort)).top_k == 16
    assert {op.window for op in ops if isinstance(op, Attention)} == {16}
    short, long = (
        sum(op.flops() for op, _ in ops_of("deepseek_v32", context=n) if isinstance(op, Attention)) for n in (64, 512)
    )
    assert short == long, "attention does not grow, its indexer does"


def test_layers_of_a_search_have_their_own_sizes() -> None:
    config = config_from_dict(small("nemotron-nas"), "x")
    assert [(config.at(i).mixer, config.at(i).feed) for i in (0, 1, 6)] == [
        ("attention", True), ("none", True), ("none", False),
    ]  # fmt: skip
    assert (config.at(0).kv_heads, config.at(0).intermediate, config.at(1).intermediate) == (2, 256, 256)
    assert len(config.layers_alike()) == 3


def test_windows_and_heads_by_layer() -> None:
    mimo = config_from_dict(small("mimo_v2_flash"), "x")
    assert mimo.windows == (0, 128, 128, 128, 128, 0, 128, 128)
    assert [mimo.at(i).kv_heads for i in (0, 1)] == [2, 4]
    assert [mimo.is_sparse(i) for i in (0, 1)] == [False, True]
    scout = config_from_dict(small("llama4_text"), "x")
    assert scout.windows == (8192, 8192, 8192, 0, 8192, 8192, 8192, 0)
    assert [scout.at(i).position for i in (2, 3)] == ["rotary", "none"]
    assert config_from_dict(small("llama4_text") | {"no_rope_layers": []}, "x") == scout  # as Hugging Face reads it


def test_degree_one_of_tensor_parallelism_changes_nothing(tmp_path: object) -> None:
    import json
    from pathlib import Path

    for name in ("qwen3_5_moe_text", "nemotron_h", "gpt_oss", "glm_moe_dsa"):
        path = Path(str(tmp_path)) / f"{name}.json"
        path.write_text(json.dumps({**small(name), "pad_token_id": 0}))
        one, same = (
            predict(str(path), "h100", mode="decode", batch=4, context_len=512, execution="vllm", **more)
            for more in ({}, {"tp": 1})
        )
        assert one.latency_s == same.latency_s > 0


def test_every_entry_names_a_class_of_its_own_type() -> None:
    for kind, traits in TRAITS.items():
        assert traits.architecture.endswith(tuple(HEADS)), kind
        assert traits.windows in ("", "all", "even", "5 of 6", "late"), kind


@pytest.mark.parametrize("name", ["qwen3_5_text", "nemotron_h", "deepseek_v32", "llama4_text", "cohere", "olmo2"])
def test_training_steps_and_shared_weights(name: str, tmp_path: object) -> None:
    """A step runs each type's backward pass; two GPUs share the work, and do a little of it both."""
    import json
    from pathlib import Path

    path = Path(str(tmp_path)) / f"{name}.json"
    path.write_text(json.dumps({**small(name), "pad_token_id": 0}))
    for mode in ("train", "prefill"):
        one, two = (predict(str(path), "h100", mode=mode, batch=64, seq_len=512, dtype="bf16", tp=n) for n in (1, 2))
        assert 1.0 <= two.flops / one.flops < 1.5, "what both do: norms, routers, the indexer"
