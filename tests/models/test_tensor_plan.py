"""Traced models on many GPUs: tensor parallelism by a plan of their modules, replicas and pipelines by none."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor.errors import RequestError
from predictor.forecast.forecast import Forecast, forecast
from predictor.models.forms import TRACED
from predictor.ops import Collective
from predictor.ops.attention import Attention
from predictor.request.request import Request
from predictor.simulate.plan import plan_of

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
pytest.importorskip("transformers", reason="the extra torch is not installed")

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 2816,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 8000, "num_hidden_layers": 4,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "tie_word_embeddings": False,
}  # fmt: skip
#: What the house's rules do: transformers' plan of llama, with embedding and head cut by the vocabulary.
PLAN = {
    "model.embed_tokens": "embedding_rowwise", "lm_head": "colwise_loss_parallel",
    **{f"layers.*.self_attn.{part}_proj": "colwise" for part in "qkv"}, "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.mlp.gate_proj": "colwise", "layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise",
}  # fmt: skip
TRAIN = {"mode": "train", "batch": 8, "seq_len": 512}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The config's file; recordings are kept in a folder of these tests' own."""
    folder = tmp_path_factory.mktemp("llama")
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    patch = pytest.MonkeyPatch()
    patch.setenv("TILECAST_CACHE", str(folder / "cache"))
    yield str(folder / "config.json")
    patch.undo()


def both(llama: str, words: dict[str, Any]) -> tuple[Forecast, Forecast]:
    """Built, and traced with the house's rules as a plan."""
    asked = (Request(llama, "h100", **words), Request(TRACED + llama, "h100", tp_plan=PLAN, **words))
    built, traced = (forecast(one.run()) for one in asked)
    return built, traced


def collectives(found: Forecast) -> Counter[tuple[str, Collective]]:
    """Every collective of a run with its phase, and how often it runs."""
    counts: Counter[tuple[str, Collective]] = Counter()
    for stage in found.plan.stages:
        for node, times in stage.graph.nodes():
            if isinstance(node.op, Collective):
                counts[node.phase, node.op] += round(times * stage.weight)
    return counts


@pytest.mark.parametrize("words", [
    TRAIN | {"tp": 2}, TRAIN | {"tp": 8}, {"mode": "prefill", "batch": 4, "seq_len": 512, "tp": 4},
    {"mode": "decode", "batch": 8, "context_len": 400, "tp": 2}])  # fmt: skip
def test_a_rank_is_that_of_the_built_model(llama: str, words: dict[str, Any]) -> None:
    """Collectives, their bytes and links, are equal, FLOPs of all ranks within 0.5 %, bytes of weights and cache equal,
    the forecast within 3 %."""
    built, traced = both(llama, words)
    assert collectives(built) == collectives(traced) and collectives(traced)
    one, other = built.prediction, traced.prediction
    assert other.parameters == one.parameters and other.flops == pytest.approx(one.flops, rel=0.005)
    assert other.memory.weights == one.memory.weights and other.memory.kv_cache == one.memory.kv_cache
    assert other.memory.activations == pytest.approx(one.memory.activations, rel=0.05)
    assert other.latency_s == pytest.approx(one.latency_s, rel=0.035)


def test_padding_may_be_a_row_of_another_rank(llama: str, tmp_path: Path) -> None:
    """The last row of the vocabulary pads; each of eight ranks has an eighth of the rows, of a tied head, too."""
    times = []
    for row in (0, 7999):
        path = tmp_path / f"{row}.json"
        path.write_text(json.dumps({**LLAMA, "pad_token_id": row, "tie_word_embeddings": True}), encoding="utf-8")
        plan = {**PLAN, "lm_head": "colwise_gather_output"}
        times.append(predictor.predict(TRACED + str(path), "h100", mode="forward", seq_len=64, tp=8, tp_plan=plan))
    assert times[0].latency_s == times[1].latency_s


def test_a_vocabulary_is_padded_to_the_ranks(llama: str, tmp_path: Path) -> None:
    """7,993 words, a prime number, on eight ranks: 1,000 rows each, as 8,000 words have."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "vocab_size": 7993}), encoding="utf-8")
    odd, even = (
        predictor.predict(TRACED + each, "h100", mode="forward", seq_len=64, tp=8, tp_plan=PLAN)
        for each in (str(path), llama)
    )
    assert odd.latency_s == pytest.approx(even.latency_s, rel=1e-3)


def test_one_rank_alone_is_the_whole_model(llama: str) -> None:
    plain, planned = (
        predictor.predict(TRACED + llama, "h100", mode="forward", seq_len=256, tp_plan=plan) for plan in (None, PLAN)
    )
    assert planned.latency_s == plain.latency_s and planned.flops == plain.flops
    assert planned.memory.total == plain.memory.total


@pytest.mark.parametrize("words", [{"dp": 4}, {"dp": 4, "shard": "zero1"}, {"pp": 2}, {"pp": 4, "dp": 2}])
def test_replicas_and_stages_need_no_plan(llama: str, words: dict[str, Any]) -> None:
    """Traced and built runs of training agree within 5 %, launches aside: gradients, and what a stage holds."""
    asked = {**TRAIN, "micro_batch": 1, "launch_overhead": 1e-9, **words}
    built, traced = (predictor.predict(name, "h100", **asked) for name in (llama, TRACED + llama))
    assert traced.latency_s == pytest.approx(built.latency_s, rel=0.05)
    for part in ("weights", "gradients", "optimizer"):
        assert getattr(traced.memory, part) == getattr(built.memory, part), part


def test_layers_that_repeat_run_again(llama: str) -> None:
    """Three of four: the first stands alone, as its backward pass ends in the embedding."""
    more = []
    for name in (llama, TRACED + llama):
        plain, again = (
            predictor.predict(name, "h100", **TRAIN, launch_overhead=1e-9, recompute=what) for what in ("none", "full")
        )
        assert again.memory.activations < plain.memory.activations
        more.append(again.latency_s - plain.latency_s)
    assert more[1] == pytest.approx(0.75 * more[0], rel=0.15)


def test_a_pipeline_of_an_engine_stages_a_TracedModel(llama: str) -> None:
    words = {"mode": "decode", "batch": 8, "context_len": 256, "launch_overhead": 1e-9, "pp": 2}
    built, traced = (predictor.predict(name, "h100", **words) for name in (llama, TRACED + llama))
    assert traced.latency_s == pytest.approx(built.latency_s, rel=0.05)
    assert traced.memory.weights == pytest.approx(built.memory.weights, rel=0.01)
    assert traced.memory.kv_cache == built.memory.kv_cache


def test_transformers_own_plans_are_taken(llama: str) -> None:
    """Llama's: two sums a layer each way, one of the embedding and one of the head's gradient, and the gathered logits.
    A mixture's experts are half as wide."""
    found = forecast(Request(TRACED + llama, "h100", tp=2, tp_plan="class", **TRAIN).run())
    kinds = Counter((phase, op.kind) for phase, op in collectives(found).elements())
    assert kinds == {("forward", "all_reduce"): 9, ("backward", "all_reduce"): 9, ("forward", "all_gather"): 1}
    path = Path(llama).parent / "mixture" / "config.json"
    path.parent.mkdir()
    mixture = LLAMA | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4}
    path.write_text(json.dumps(mixture | {"num_experts_per_tok": 2, "num_hidden_layers": 2}), encoding="utf-8")
    one, two = (predictor.predict(f"{TRACED}{path}", "h100", seq_len=256, tp=tp, tp_plan="class") for tp in (1, 2))
    assert two.flops == pytest.approx(one.flops, rel=0.001) and two.parameters == one.parameters
    assert two.memory.weights < 0.6 * one.memory.weights


class Layer(torch.nn.Module):  # type: ignore[misc]
    """x (4, 8) -> (4, 8), by way of 16."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        return self.norm(self.down(self.up(x)))


@pytest.mark.parametrize(
    ("plan", "sent"),
    [
        # down's results are summed; gradients of x, which is no parameter, are nobody's
        ({"up": "colwise", "down": "rowwise"}, [("forward", "all_reduce", 4 * 8 * 2)]),
        ({"down": "colwise_rep"}, [("forward", "all_gather", 4 * 8 * 2), ("backward", "all_reduce", 4 * 16 * 2)]),
        ({"down": "rowwise_rep"}, [("forward", "all_reduce", 4 * 8 * 2), ("backward", "all_gather", 4 * 16 * 2)]),
        ({"norm": "replicated_with_grad_allreduce"}, [("backward", "all_reduce", 8 * 2)] * 2),
        ({"up": "local_colwise", "down": "local_rowwise"}, []),
    ],
)
def test_styles_by_a_hand_count(plan: dict[str, str], sent: list[tuple[str, str, int]]) -> None:
    module = Layer()
    model = predictor.trace(module, "x:float[4,8]")
    found = forecast(Request(model, "h100", mode="train", tp=2, tp_plan=plan).run())
    counted = Counter((phase, op.kind, op.size) for phase, op in collectives(found).elements())
    assert counted == Counter(sent)
    assert module.up.weight.shape == (16, 8) and module.down(torch.empty(1, 16, device="meta")).shape == (1, 8)


def test_a_rank_is_saved_and_read(llama: str, tmp_path: Path) -> None:
    from predictor.cli.predict import save_graph

    found = forecast(Request(TRACED + llama, "h100", mode="prefill", batch=2, seq_len=128, tp=2, tp_plan=PLAN).run())
    save_graph(found, str(tmp_path / "rank.json"))
    words = {"mode": "prefill", "batch": 2, "seq_len": 128}
    again = predictor.predict(tmp_path / "rank.json", "h100", tp=2, **words)
    assert again.latency_s == found.prediction.latency_s and again.memory.weights == found.prediction.memory.weights
    with pytest.raises(RequestError, match=r"--tp 4: .* was recorded with 2, .* expected 2"):
        predictor.predict(tmp_path / "rank.json", "h100", tp=4, **words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"tp": 3, "tp_plan": {"up": "colwise"}}, "--tp 3: does not divide the 16 of up.weight of layer; nearest"),
        ({"tp": 2}, "--tp 2: layer brings no tp_plan; expected --tp-plan FILE.yaml"),
        ({"tp": 2, "tp_plan": {"up": "columns"}}, "--tp-plan: up: style 'columns' is not built; nearest: "),
        ({"tp": 2, "tp_plan": {"upp": "colwise"}}, "--tp-plan: 'upp' is no module and no parameter of layer; nearest"),
        ({"tp": 2, "tp_plan": {"up": "colwise"}}, "--tp 2: layer: cannot be traced in module 'down'"),
        ({"tp_plan": {"up": 3}}, "--tp-plan: expected lines of a module's path"),
        ({"tp_plan": "none.yaml"}, "--tp-plan none.yaml: No such file"),
        ({"cp": 2}, "--cp 2: not built for models that are traced"),
        ({"ep": 2, "dp": 2}, "--ep 2: not built for models that are traced"),
        ({"tp": 2, "sp": True}, "--sp: not built for models that are traced"),
        ({"lora": 4}, "--lora 4: not built for models that are traced"),
        ({"recompute": "selective"}, "--recompute selective: not built for models that are traced"),
    ],
)
def test_what_does_not_go_is_one_line(words: dict[str, Any], said: str) -> None:
    model = predictor.trace(Layer, "x:float[4,8]", name="layer")
    with pytest.raises(RequestError) as error:
        predictor.predict(model, "h100", mode="train", **words)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_built_model_takes_no_plan() -> None:
    with pytest.raises(RequestError, match=r"--tp-plan: gpt2 is built, .* expected a traced model \(traced:gpt2\)"):
        predictor.predict("gpt2", "h100", tp_plan={"h.*.mlp.c_fc": "colwise"})


@pytest.fixture
def few_heads(tmp_path: Path) -> str:
    """Gemma 4, small, with a kind of layer that has two key-value heads, as google/gemma-4-26B-A4B has."""
    folder = tmp_path / "few"
    folder.mkdir()
    kinds = ["sliding_attention", "full_attention"]
    config = {
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "vocab_size": 512, "hidden_size": 256,
        "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 8,
        "num_global_key_value_heads": 2, "head_dim": 32, "global_head_dim": 64, "attention_k_eq_v": True,
        "sliding_window": 64, "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 4,
        "top_k_experts": 2, "moe_intermediate_size": 64, "max_position_embeddings": 1024, "layer_types": kinds,
        "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder / "config.json")


def test_ranks_share_a_head_where_there_are_fewer(few_heads: str) -> None:
    """Each of eight ranks has a whole head of the two, as serving engines have it, and the queries that go with it."""
    answers = {tp: Request(few_heads, "h100", mode="prefill", seq_len=128, tp=tp).run() for tp in (1, 8)}
    calls = {
        tp: [node.op for node, _ in plan_of(run).stages[0].graph.nodes() if isinstance(node.op, Attention)]
        for tp, run in answers.items()
    }
    assert [(op.heads, op.kv_heads) for op in calls[1]] == [(16, 8), (16, 2)]
    assert [(op.heads, op.kv_heads) for op in calls[8]] == [(2, 1), (2, 1)]
    for attention in ("flash", "math"):  # math repeats the keys for the queries of each
        words = {"mode": "decode", "batch": 4, "context_len": 64, "tp": 8, "attention": attention}
        assert predictor.predict(few_heads, "h100", **words).latency_s > 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"mode": "train", "batch": 8, "seq_len": 64, "tp": 8}, "2 heads of .*training expects at most 2"),
        ({"mode": "prefill", "seq_len": 64, "tp": 16}, "8 heads of .*nearest valid: 8"),
    ],
)
def test_heads_that_ranks_cannot_share_are_refused(words: dict[str, Any], said: str, few_heads: str) -> None:
    with pytest.raises(predictor.RequestError, match=said) as caught:
        predictor.predict(few_heads, "h100", **words)
    assert "\n" not in str(caught.value)
