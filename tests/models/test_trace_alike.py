"""Passes that only fill a cache run one of several modules alike, and leave what they left without."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from predictor.graph.saved_graph import to_json
from predictor.models.built import Step
from predictor.models.traced.huggingface import traced_config
from tests.model_types import small

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
pytest.importorskip("transformers", reason="the extra torch is not installed")

from predictor.models.traced import huggingface_passes  # noqa: E402
from predictor.models.traced.alike import once_for_all_alike  # noqa: E402

SIZES = {"vocab_size": 300, "hidden_size": 64, "max_position_embeddings": 256, "num_hidden_layers": 4}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96}
#: Streams of a token with a loop in each, windows and full attention in turn, a state in place of keys, latent vectors.
MODELS: dict[str, dict[str, Any]] = {
    "deepseek_v4": {
        **SIZES, "model_type": "deepseek_v4", "num_attention_heads": 4, "head_dim": 32, "q_lora_rank": 32,
        "o_lora_rank": 16, "o_groups": 2, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 8,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "hc_sinkhorn_iters": 3,
        "num_hash_layers": 1, "qk_rope_head_dim": 16,
    },
    "gemma3_text": {**SIZES, **HEADS, "model_type": "gemma3_text", "sliding_window": 32},
    "mamba": {**SIZES, "model_type": "mamba", "state_size": 8},
    "qwen3_next": small("qwen3_next"),
    "xglm": {
        "model_type": "xglm", "d_model": 64, "ffn_dim": 128, "num_layers": 3, "attention_heads": 4, "vocab_size": 300,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of the test's own."""
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", MODELS)
def test_a_decode_step_is_recorded_as_without(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same operators, tensors and bytes of the cache, byte for byte."""
    step = Step("decode", 2, 1, 100, "bf16", attention="flash", logits="last")
    fast = traced_config(MODELS[name], name, "config.json").source.record(step, None)
    monkeypatch.setattr(huggingface_passes, "once_for_all_alike", contextlib.nullcontext)
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "another"))
    slow = traced_config(MODELS[name], name, "config.json").source.record(step, None)
    assert to_json(fast) == to_json(slow)
    assert fast.cache_fixed + fast.cache_per_token > 0.0


class Part(torch.nn.Module):
    """``does`` something with its input, and tells ``counted`` that it ran."""

    def __init__(self, does: Any, counted: Any, seen: int = 0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(4, 4, device="meta"))
        self.does, self.counted, self.seen = does, counted, seen

    def forward(self, x: Any, *more: Any) -> Any:
        self.counted()
        return self.does(self, x, *more)


def _counts(part: Part, x: Any) -> Any:
    part.seen += 1
    return x @ part.weight


def runs_of(does: Any, *more: Any) -> int:
    """How often one of three modules alike runs."""
    runs = [0]

    def counted() -> None:
        runs[0] += 1

    parts = [Part(does, counted) for _ in range(3)]
    with torch.no_grad(), once_for_all_alike():
        outs = [part(torch.empty(2, 4, device="meta"), *more) for part in parts]
    assert len({(tuple(out.shape), out.stride(), out.dtype) for out in outs}) == 1
    assert len({id(out) for out in outs}) == 3
    return runs[0]


def test_one_of_modules_alike_runs() -> None:
    assert runs_of(lambda part, x: x @ part.weight) == 1


@pytest.mark.parametrize(
    ("does", "more"),
    [
        (lambda part, x: x.t(), ()),  # a view of what it got
        (lambda part, x: part.weight.view(2, 8), ()),  # of what it holds
        (_counts, ()),  # what it did before changes it
        (lambda part, x, kept: kept.append(x) or x @ part.weight, ([],)),  # a cache
    ],
)
def test_what_keeps_something_or_shares_it_runs_every_time(does: Any, more: tuple[Any, ...]) -> None:
    assert runs_of(does, *more) == 3


def test_modules_of_other_settings_run_by_themselves() -> None:
    def does(part: Part, x: Any) -> Any:
        return x @ part.weight[:, : part.seen]

    parts = [Part(does, int, wide) for wide in (1, 2, 3)]
    with torch.no_grad(), once_for_all_alike():
        shapes = [tuple(part(torch.empty(2, 4, device="meta")).shape) for part in parts]
    assert shapes == [(2, 1), (2, 2), (2, 3)]
    assert torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl
