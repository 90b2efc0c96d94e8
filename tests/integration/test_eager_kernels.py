"""Kernels of one layer, counted as eager transformers dispatches them on the CPU, against the built graph."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from predictor.models.built import Step, build, config_from_dict
from predictor.models.built.load import CONFIGS

torch = pytest.importorskip("torch", reason="the test extra (torch, transformers) is not installed")
transformers = pytest.importorskip("transformers", reason="the test extra (torch, transformers) is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

VIEWS = {
    "view", "t", "transpose", "permute", "unsqueeze", "expand", "_unsafe_view", "slice", "select", "split",
    "split_with_sizes", "detach", "alias", "as_strided", "squeeze", "unbind", "_reshape_alias", "chunk",
}  # fmt: skip
SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CASES = [
    ("llama-3.1-8b", SMALL), ("qwen3-8b", SMALL), ("gemma-2-2b", SMALL), ("phi-3-mini", SMALL),
    ("mpt-7b", {"d_model": 64, "n_heads": 4, "vocab_size": 128}),
]  # fmt: skip


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Names of the operators that reach the dispatcher below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def dispatched(data: dict[str, Any], layers: int, batch: int, attention: str) -> tuple[int, int]:
    """(kernels, dispatcher calls) of a forward pass."""
    data = {k: (layers if k in ("num_hidden_layers", "n_layers") else v) for k, v in data.items() if k != "_note"}
    cls = getattr(transformers, data["architectures"][0].replace("MPTFor", "MptFor"))
    config = cls.config_class(**data)
    config._attn_implementation = attention
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = cls(config).eval()
        with torch.no_grad(), Recorder() as recorder:
            model(input_ids=torch.randint(3, 100, (batch, 16)), use_cache=False)
    return sum(name not in VIEWS for name in recorder.names), len(recorder.names)


# transformers has no fused attention for soft-capped scores and for MPT; Phi-3's copies once more on the CPU alone.
_FLASH = ("llama-3.1-8b", "qwen3-8b")
_RUNS = [(name, change, how) for name, change in CASES for how in ("math", "flash") if how == "math" or name in _FLASH]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("name", "change", "attention"), _RUNS, ids=[f"{name}-{how}" for name, _, how in _RUNS])
def test_a_layer_has_the_kernels_that_eager_pytorch_dispatches(
    name: str, change: dict[str, Any], attention: str, batch: int
) -> None:
    data = {**json.loads((CONFIGS / f"{name}.json").read_text()), **change}
    how = "eager" if attention == "math" else "sdpa"
    one, two = dispatched(data, 1, batch, how), dispatched(data, 2, batch, how)
    graph = build(config_from_dict(data, name), Step("forward", batch, 16, attention=attention))
    layer = next(block for block in graph.blocks if "layer" in block.name)
    assert sum(node.count for node in layer.nodes) == two[0] - one[0]
    assert sum(node.host_calls * node.count for node in layer.nodes) == pytest.approx(two[1] - one[1], rel=0.15)
