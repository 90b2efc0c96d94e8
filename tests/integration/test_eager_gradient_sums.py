"""Sums of gradients that eager PyTorch runs outside plain layers: over the batch, and of what branches share."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from typing import Any

import pytest

from predictor.graph import Graph
from predictor.models.built import Step, build, config_from_dict
from predictor.models.built.load import CONFIGS
from predictor.ops import Elementwise, Reduce
from predictor.passes.autograd import joint

torch = pytest.importorskip("torch", reason="the test extra (torch, transformers) is not installed")
transformers = pytest.importorskip("transformers", reason="the test extra (torch, transformers) is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

SEQ = 8
LATENT = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 160, "moe_intermediate_size": 32,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "kv_lora_rank": 32, "q_lora_rank": 48,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "vocab_size": 128, "n_group": 2, "topk_group": 1,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


class Kernels(TorchDispatchMode):  # type: ignore[misc]
    """Names and output elements of the operators that reach the dispatcher below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.seen[func.overloadpacket.__name__, result.numel()] += 1
        return result


def dispatched(data: dict[str, Any], batch: int) -> Counter[tuple[str, int]]:
    cls = getattr(transformers, data["architectures"][0])
    config = cls.config_class(**data)
    config._attn_implementation = "eager"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = cls(config).train()
        tokens = torch.randint(3, 100, (batch, SEQ))
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        with Kernels() as recorder:
            loss.backward()
    return recorder.seen


def backward(data: dict[str, Any], batch: int) -> Graph:
    graph = joint(build(config_from_dict(data, "tiny"), Step("train", batch, SEQ, training=True)))
    return Graph(tuple(block for block in graph.blocks if block.backward_of is not None))


@pytest.mark.parametrize("batch", [1, 2])
def test_the_gradient_of_a_position_table_is_summed_over_the_batch(batch: int) -> None:
    data = {**json.loads((CONFIGS / "gpt2.json").read_text()), "n_embd": 64, "n_head": 4, "n_layer": 1}
    data |= {"vocab_size": 128, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    data.pop("_note", None)
    real = dispatched(data, batch)["sum", SEQ * 64]
    ours = [n for n, _ in backward(data, batch).nodes() if isinstance(n.op, Reduce) and n.op.cols == SEQ * 64]
    assert len(ours) == real == batch - 1


@pytest.mark.parametrize("dense", [9, 0], ids=["dense", "experts"])
def test_latent_attention_and_shared_experts_have_their_gradients_summed(dense: int) -> None:
    """Of a layer's width: two residuals, what a norm reads twice, the two projections' input, and the experts'."""
    data = {**LATENT, "first_k_dense_replace": dense}
    real = dispatched({**data, "num_hidden_layers": 2}, 2)
    real.subtract(dispatched({**data, "num_hidden_layers": 1}, 2))
    wide = 2 * SEQ * 64
    ours = sum(
        times for n, times in backward({**data, "num_hidden_layers": 2}, 2).nodes()
        if isinstance(n.op, Elementwise) and n.op.fn == "add" and n.op.elements == wide
    ) - sum(
        times for n, times in backward({**data, "num_hidden_layers": 1}, 2).nodes()
        if isinstance(n.op, Elementwise) and n.op.fn == "add" and n.op.elements == wide
    )  # fmt: skip
    assert ours == real["add", wide]
