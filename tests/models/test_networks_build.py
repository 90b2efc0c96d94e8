"""Graphs of the catalogue: FLOPs by the 2 x parameters rule, structure, modes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest
from backward import backward_blocks

from predictor.engines import EAGER, Engine, engine
from predictor.engines.pytorch.engine import COMPILE
from predictor.errors import RequestError, UnsupportedError
from predictor.formats.parts import Format, Formats
from predictor.graph import Graph
from predictor.models.built import (
    ModelConfig,
    Step,
    build,
    config_from_dict,
    load_config,
    parameter_split,
    parameters,
)
from predictor.models.built.load import CONFIGS
from predictor.ops import Attention, CrossEntropy, Dropout, Elementwise, Embedding, Gemm, MoE, Norm, Softmax
from predictor.ops.attention import attended_pairs
from predictor.passes.fuse import fuse
from predictor.passes.quantize import quantize
from tests.catalogue import MODELS

DECODERS = [n for n in MODELS if load_config(n).causal and not load_config(n).is_encoder_decoder]
DENSE = [n for n in DECODERS if load_config(n).experts == 0]
FORMS = list(itertools.product((EAGER, COMPILE), ("math", "flash")))


def expected_flops(config: ModelConfig, step: Step) -> float:
    """2 x weights that multiply x tokens, and two products a (query, key) pair."""
    split = parameter_split(config)
    width = config.embed_width or config.hidden
    weights = split.layers + config.vocab * width  # the head's product, tied or not
    weights += 2 * config.hidden * config.embed_width
    if config.experts:
        weights += split.experts * config.top_k // config.experts
    pairs = 0.0
    for _, window, count in config.layer_groups():
        if step.attention == "math":
            pairs += count * step.seq_len * step.kv_len
        else:
            pairs += count * attended_pairs(step.seq_len, step.kv_len, True, window)
    attention = 2.0 * step.batch * config.heads * pairs * (config.head_dim + config.value_dim)
    return 2.0 * weights * step.tokens + attention


@pytest.mark.parametrize(("engine", "attention"), FORMS)
@pytest.mark.parametrize("name", DECODERS)
def test_flops_are_two_a_weight_and_token(name: str, engine: Engine, attention: str) -> None:
    config = load_config(name)
    step = Step("forward", 4, 512, 0, "bf16", attention=attention)
    graph = fuse(build(config, step), engine)
    products = sum(n.op.flops() * k for n, k in graph.nodes() if isinstance(n.op, (Gemm, Attention, MoE)))
    assert products == pytest.approx(expected_flops(config, step), rel=2e-3)
    assert graph.flops() == pytest.approx(expected_flops(config, step), rel=0.02 if name in LARGE else 0.06)


# Where the width is small, norms and activations are more than 2 % of the products.
LARGE = [n for n in DENSE if load_config(n).hidden >= 1024 and not load_config(n).model_type.startswith("gemma")]


#: The model with the fewest layers of every model type: unrolled, the others say nothing more.
SMALLEST = {load_config(name).model_type: name for name in sorted(MODELS, key=lambda n: -load_config(n).layers)}


@pytest.mark.parametrize(("engine", "attention"), FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_every_mode_builds_and_repeats_cost_the_same(name: str, engine: Engine, attention: str) -> None:
    config = load_config(name)
    modes = ("forward", "train") if not config.causal else ("forward", "prefill", "decode", "train")
    for mode in modes:
        context = 64 if mode == "decode" else 0
        step = Step(mode, 2, 1 if mode == "decode" else 32, context, "fp16", attention=attention,
                    training=mode == "train")  # fmt: skip
        graph = fuse(build(config, step), engine)
        layers = sum(b.repeat for b in graph.blocks if "layer" in b.name)
        assert layers == config.layers + (config.encoder_layers if mode != "decode" else 0)
        if name in SMALLEST.values():
            assert graph.unrolled().flops() == pytest.approx(graph.flops(), rel=1e-12)
        assert all(n.op.bytes_moved() > 0 and n.host_calls >= 0 for n, _ in graph.nodes())
        if mode != "train":
            assert not any(isinstance(n.op, Dropout) for n, _ in graph.nodes())


def kinds(graph: Graph, kind: type) -> int:
    return sum(times for node, times in graph.nodes() if isinstance(node.op, kind))


def gemm_names(graph: Graph) -> list[str]:
    return [node.name for node, _ in graph.nodes() if isinstance(node.op, Gemm)]


def test_fused_llama_is_what_a_serving_engine_launches() -> None:
    config = load_config("llama-3.1-8b")
    fp8 = Formats(Format("bf16"), Format("fp8"))
    step = Step("decode", 8, 1, 1000, "bf16", "fp8", "flash", "last")
    graph = fuse(quantize(build(config, step), fp8), COMPILE)
    layer = next(b for b in graph.blocks if b.name == "layer")
    assert [n.name for n in layer.nodes] == [
        "attention norm", "attention qkv", "rotary", "cache append", "attention core", "attention out", "mlp norm",
        "mlp gate_up", "mlp activation", "mlp down",
    ]  # fmt: skip
    core = next(n.op for n in layer.nodes if isinstance(n.op, Attention))
    assert (core.q_len, core.kv_len, core.kv_heads, core.kv_dtype) == (1, 1001, 8, "fp8")
    assert next(n.op for n in layer.nodes if n.name == "attention qkv") == Gemm("fp8", 8, 6144, 4096)
    assert next(n.op for n in layer.nodes if n.name == "mlp norm") == Norm("bf16", 8, 4096, "rms", "forward", True)
    head = next(n.op for n, _ in graph.nodes() if n.name == "lm head")
    assert head == Gemm("bf16", 8, 128256, 4096)


def layer_names(model: str, step: Step, of: str) -> list[str]:
    graph = fuse(build(load_config(model), step), engine(of))
    return [n.name for n in next(b for b in graph.blocks if b.name == "layer").nodes]


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_an_engines_attention_call_writes_the_cache(mode: str) -> None:
    """A compiler's graph has rotary and cache apart; TensorRT-LLM's operator does both, others write the cache."""
    sizes = (1, 512) if mode == "decode" else (512, 0)
    names = {}
    for name in ("compile", "vllm", "sglang", "tensorrt_llm"):
        names[name] = layer_names("llama-3.1-8b", Step(mode, 2, *sizes, "bf16", attention="flash"), name)
    assert {"rotary", "cache append"} <= set(names["compile"])
    for name in ("vllm", "sglang"):
        assert names[name] == [n for n in names["compile"] if n != "cache append"]
    assert names["tensorrt_llm"] == [n for n in names["vllm"] if n != "rotary"]
    unfused = Step(mode, 2, *sizes, "bf16", attention="math")
    assert "cache append" in layer_names("llama-3.1-8b", unfused, "vllm")


def test_fastertransformer_has_kernels_for_biases_and_sums_of_their_own() -> None:
    name = "fastertransformer"
    decode = layer_names("gpt2", Step("decode", 2, 1, 64, "fp16", attention="flash"), name)
    assert decode == [
        "attention norm", "attention qkv", "attention core", "attention out", "mlp norm", "mlp up", "mlp activation",
        "mlp down", "mlp residual",
    ]  # fmt: skip
    prefill = layer_names("gpt2", Step("prefill", 1, 64, 0, "fp16"), name)
    assert {"cache append", "attention split heads"} <= set(prefill)
    step = Step("forward", 2, 64, 0, "fp16", attention="flash")
    graph = fuse(build(load_config("bert-base"), step), engine(name))
    ops = {n.name: n.op for b in graph.blocks if b.name == "layer" for n in b.nodes}
    assert "mlp residual" not in ops
    assert ops["attention qkv bias"].bytes_moved() == 2 * (2 * 64 * 3 * 768) * 2
    assert ops["attention norm"].bytes_moved() == pytest.approx(3 * (2 * 64 * 768) * 2, rel=0.02)  # the sum stays put


def test_math_attention_in_fused_form_is_three_kernels() -> None:
    graph = fuse(build(load_config("gpt2"), Step("forward", 1, 128)), COMPILE)
    names = [n.name for b in graph.blocks if b.name == "layer" for n in b.nodes]
    start = names.index("attention scores")
    assert names[start : start + 3] == ["attention scores", "attention softmax", "attention context"]


def test_latent_attention_expands_in_prefill_and_absorbs_in_decode() -> None:
    config = load_config("deepseek-v3")
    prefill = build(config, Step("prefill", 1, 512, 0, "bf16", attention="flash"))
    decode = build(config, Step("decode", 16, 1, 512, "bf16", attention="flash"))
    op = next(n.op for n, _ in prefill.nodes() if isinstance(n.op, Attention))
    assert (op.heads, op.kv_heads, op.head_dim, op.value_dim, op.shared_kv) == (128, 128, 192, 128, False)
    op = next(n.op for n, _ in decode.nodes() if isinstance(n.op, Attention))
    assert (op.heads, op.kv_heads, op.head_dim, op.value_dim, op.shared_kv) == (128, 1, 576, 512, True)
    assert "attention kv_b" in gemm_names(prefill)
    assert "attention kv_b" not in gemm_names(decode)
    assert {"attention absorb key", "attention absorb value"} <= set(gemm_names(decode))


def test_dropout_is_there_in_training_where_the_config_has_it() -> None:
    train = Step("train", 1, 64, training=True)
    assert kinds(build(load_config("gpt2"), train), Dropout) == 12 * 3 + 1
    assert kinds(build(load_config("bert-base"), train), Dropout) == 12 * 3 + 1
    assert kinds(build(load_config("opt-1.3b"), train), Dropout) == 24 * 2
    assert kinds(build(load_config("llama-2-7b"), train), Dropout) == 0
    assert kinds(build(load_config("gpt2"), train), CrossEntropy) == 1


def test_grouped_queries_copy_keys_only_where_the_chain_does() -> None:
    config = load_config("llama-3.1-8b")
    eager = build(config, Step("forward", 1, 64, 0, "bf16"))
    flash = build(config, Step("forward", 1, 64, 0, "bf16", attention="flash"))
    assert sum(n.name == "attention repeat k" for n, _ in eager.nodes()) == 1
    assert (kinds(eager, Softmax), kinds(flash, Softmax), kinds(flash, Attention)) == (32, 0, 32)


def test_layers_alone_have_no_embedding_and_no_head(make_config: Callable[[str, str], ModelConfig]) -> None:
    graph = build(make_config("gpt2", "GPT2Block"), Step("forward", 2, 64))
    assert kinds(graph, Embedding) == 0
    assert "lm head" not in gemm_names(graph)
    assert [b.name for b in graph.blocks] == ["layer"]


@pytest.fixture
def make_config() -> Callable[[str, str], ModelConfig]:
    def make(name: str, architecture: str) -> ModelConfig:
        data = json.loads((CONFIGS / f"{name}.json").read_text())
        return config_from_dict({**data, "architectures": [architecture]}, name)

    return make


def test_only_the_last_position_of_each_sequence_goes_through_the_head() -> None:
    config = load_config("llama-2-7b")
    every = build(config, Step("prefill", 4, 128, 0, "fp16"))
    last = build(config, Step("prefill", 4, 128, 0, "fp16", logits="last"))
    saved = every.flops() - last.flops()
    assert saved == 2.0 * 4 * 127 * config.vocab * config.hidden


def test_an_encoder_does_not_decode() -> None:
    with pytest.raises(UnsupportedError, match=r"bert-base .* has no decode"):
        build(load_config("bert-base"), Step("decode", 1, 1, 5))


@pytest.mark.parametrize(
    "words",
    [
        {"mode": "guess"}, {"attention": "fast"}, {"logits": "none"}, {"batch": 0}, {"context_len": -1},
        {"mode": "decode", "seq_len": 2}, {"mode": "train", "seq_len": 2, "context_len": 1},
    ],
)  # fmt: skip
def test_an_impossible_step_is_an_error_of_one_line(words: dict[str, object]) -> None:
    with pytest.raises(RequestError) as error:
        Step(**words)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def attention_nodes(name: str, step: Step) -> dict[str, Elementwise]:
    """The element-wise nodes of a model's layers by name."""
    nodes = [n for b in build(load_config(name), step).blocks if "layer" in b.name for n in b.nodes]
    return {n.name: n.op for n in nodes if isinstance(n.op, Elementwise)}


def test_opt_adds_its_mask_and_takes_the_maximum_with_the_lowest_number() -> None:
    b, s, heads = 2, 64, load_config("opt-1.3b").heads
    nodes = attention_nodes("opt-1.3b", Step("forward", b, s))
    mask, lowest = nodes["attention mask"], nodes["attention lowest"]
    scores = b * heads * s * s
    assert (mask.fn, mask.elements, mask.read_bytes) == ("add", scores, scores * 4 + b * s * s * 4)
    assert mask.again_bytes == (heads - 1) * b * s * s * 4  # once for every head but the first
    assert mask.reuse_bytes == 3 * s * s * 4
    assert (lowest.fn, lowest.elements, lowest.read_bytes) == ("max_scalar", scores, scores * 4)


def test_a_relative_bias_is_read_across_heads() -> None:
    """T5 looks (s, t) positions up in a table of heads and permutes: along t, a whole row of heads lies between."""
    config = load_config("t5-base")
    nodes = attention_nodes("t5-base", Step("forward", 1, 64))
    assert nodes["attention position bias"].stride_bytes == config.heads * 4
    assert nodes["attention position bias"].reuse_bytes > 64 * 64 * 64
    assert nodes["cross position bias"].stride_bytes == 0  # made of zeros, in order


def test_a_second_backward_pass_adds_to_the_gradients_of_every_parameter() -> None:
    config = load_config("gpt2")
    forward = build(config, Step("train", 1, 64, training=True))
    first, second = (Graph(backward_blocks(forward, accumulate)) for accumulate in (False, True))
    summed = sum(n.op.elements * times for n, times in second.nodes()
                 if isinstance(n.op, Elementwise) and n.op.fn == "add_")  # fmt: skip
    tied = config.vocab * config.hidden  # as look-up and as projection
    assert summed == parameters(config) + tied
    assert second.flops() - first.flops() == summed - tied  # which the first pass sums before there is a gradient
    assert not any(isinstance(n.op, Elementwise) and n.op.fn == "add_" for n, _ in first.nodes())


def test_gradients_are_copied_and_summed_in_training_alone() -> None:
    def extra(step: Step, engine: Engine) -> int:
        forward = fuse(build(load_config("gpt2"), step), engine)
        ops = [n.op for n in forward.blocks[1].nodes]
        own = sum(len(op.backward_in_one()[0] if engine.fuses else op.backward()) for op in ops)
        return sum(len(b.nodes) for b in backward_blocks(forward) if b.name == "layer backward") - own

    # A layer: two residuals, x twice more in tanh-gelu, the gradients of q and v copied, those of q, k and v joined.
    # Merged heads of one sequence have a gradient that is a view.
    step = Step("train", 1, 64, training=True)
    assert extra(step, EAGER) == 2 + 2 + 2 + 1
    assert extra(step, COMPILE) == 0
