"""`--lora-targets`: which linear layers have adapters, by hand counts, and that memory, FLOPs and time follow."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.errors import RequestError
from predictor.forecast.forecast import Forecast, forecast
from predictor.passes.freeze import is_trained
from predictor.report.json_report import to_dict
from predictor.request.request import Request

RANK = 16
#: Columns and rows of Llama-3.1-8B's linear layers, by hand.
SIDES = {
    "q": 4096 + 4096, "k": 4096 + 1024, "v": 4096 + 1024, "o": 4096 + 4096, "gate": 4096 + 14336, "up": 4096 + 14336,
    "down": 14336 + 4096,
}  # fmt: skip
BASE: dict[str, Any] = {"mode": "train", "batch": 2, "seq_len": 512, "lora": RANK, "dtype": "bf16"}


def ask(model: str = "llama-3.1-8b", **words: Any) -> Forecast:
    words = {name: value for name, value in (BASE | words).items() if value is not None}
    return forecast(Request(model, "h100", artifacts="roofline", **words).run(), intervals=False)


def trained(found: Forecast) -> float:
    return sum(w.elements * n for w, n in found.plan.stages[0].graph.weights() if is_trained(w))


@pytest.mark.parametrize(
    ("targets", "layers"),
    [
        (None, "q k v o"),
        ("attention", "q k v o"),
        ("all", "q k v o gate up down"),
        ("q_proj,v_proj", "q v"),
        ("gate_proj,up_proj,down_proj", "gate up down"),
        ("down", "down"),
    ],
)
@pytest.mark.parametrize("execution", ["eager", "megatron"])
def test_adapters_are_where_they_are_asked_for(targets: str | None, layers: str, execution: str) -> None:
    found = ask(lora_targets=targets, execution=execution)
    assert trained(found) == 32 * RANK * sum(SIDES[name] for name in layers.split())


def test_memory_flops_and_time_follow() -> None:
    """Of an adapter: two products forward, two each backward (of a first layer's too, whose input has a gradient by
    the layer's own product); gradients are 2 bytes, the optimizer's state follows the trained weights."""
    some, every = ask(lora_targets="attention"), ask(lora_targets="all")
    more = 32 * RANK * (SIDES["gate"] + SIDES["up"] + SIDES["down"])
    assert every.prediction.memory.gradients - some.prediction.memory.gradients == 2 * more
    assert every.prediction.memory.optimizer / some.prediction.memory.optimizer == pytest.approx(
        trained(every) / trained(some)
    )
    assert every.prediction.memory.activations > some.prediction.memory.activations
    tokens = BASE["batch"] * BASE["seq_len"]
    assert every.prediction.flops - some.prediction.flops == pytest.approx(6 * more * tokens, rel=0.05)
    assert every.prediction.latency_s > some.prediction.latency_s


def test_a_rank_has_its_share_of_the_adapters_of_a_feed_forward() -> None:
    """Beside a layer that is cut by columns the up product is cut, beside one cut by rows the down product."""
    alone, two = (ask(lora_targets="up_proj,down_proj", execution="megatron", tp=tp) for tp in (1, 2))
    cut = 32 * RANK * 2 * 14336
    assert alone.prediction.memory.gradients / trained(alone) == pytest.approx(
        two.prediction.memory.gradients / (trained(alone) - cut / 2)
    )


def test_a_base_of_four_bits_goes_along() -> None:
    plain, packed = (ask(lora_targets="all", dtype=dtype).prediction for dtype in ("bf16", "nf4"))
    assert packed.memory.weights < plain.memory.weights / 2
    assert packed.memory.gradients == plain.memory.gradients
    assert packed.latency_s > plain.latency_s


@pytest.mark.parametrize(
    ("model", "targets", "columns_and_rows"),
    [
        ("gpt2", "c_attn", 768 + 3 * 768),
        ("gpt2", "c_proj", (768 + 768) + (3072 + 768)),
        ("phi-3-mini", "gate_up_proj", 3072 + 2 * 8192),
    ],
)
def test_names_are_those_of_the_models_class(model: str, targets: str, columns_and_rows: int) -> None:
    layers = 12 if model == "gpt2" else 32
    assert trained(ask(model, lora_targets=targets)) == layers * RANK * columns_and_rows


def test_experts_without_linear_layers_are_named() -> None:
    every, some = (ask("mixtral-8x7b", lora_targets=targets) for targets in ("all", "attention"))
    assert trained(every) == trained(some)
    assert any(note.startswith("Routers and experts get no adapters") for note in every.prediction.notes)
    assert not any(note.startswith("Adapters") for note in some.prediction.notes)
    assert not any(note.startswith("Adapters") for note in ask(lora_targets="all").prediction.notes)
    with pytest.raises(RequestError, match="--lora-targets up_proj: no linear layer of mixtral-8x7b"):
        ask("mixtral-8x7b", lora_targets="up_proj")


def test_the_answer_says_which() -> None:
    parallel = {name: to_dict(ask(lora_targets=name).prediction) for name in ("all", "attention")}
    assert {name: said["lora_targets"] for name, said in parallel.items()} == {"all": "all", "attention": "attention"}
    assert to_dict(ask().prediction)["lora_targets"] == "attention"
    assert to_dict(ask(lora=0).prediction)["lora_targets"] is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"lora": 0, "lora_targets": "attention"}, "--lora-targets attention: no adapters; expected --lora RANK"),
        ({"lora_targets": "all,q_proj"}, "--lora-targets all,q_proj: all and attention stand alone"),
        ({"lora_targets": "q_proj,,v_proj"}, "--lora-targets 'q_proj,,v_proj': expected all, attention, or names"),
        ({"lora_targets": "q_proj,q_proj"}, "--lora-targets 'q_proj,q_proj': expected all, attention, or names"),
        ({"lora_targets": ""}, "--lora-targets '': expected all, attention, or names"),
        ({"lora_targets": "q_prj"}, "--lora-targets q_prj: no linear layer of llama-3.1-8b; .*; nearest: q_proj"),
        ({"lora": None, "mode": "forward", "lora_targets": "all"}, "--lora-targets all: only --mode train takes it"),
    ],
)
def test_what_does_not_go_is_one_line(words: dict[str, Any], line: str) -> None:
    with pytest.raises(RequestError, match=line) as refused:
        ask(**words)
    assert "\n" not in str(refused.value)
