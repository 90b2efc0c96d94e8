"""Framework calls and kernels of a layer of eager PyTorch: those of our graph against what the real modules dispatch.

Modules of transformers run on a CPU with one layer and with two; what the second one adds is a layer. Views are
dispatched without a kernel. Releases of transformers differ by a few of both, so a few are allowed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from predictor.models.built import Step, build
from predictor.models.built.load import load_config
from predictor.models.traced.torchvision_operators import ready

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
ready()  # transformers imports torchvision, whose wheel may be of another build of torch

#: What is dispatched and launches nothing, by the word before the overload.
VIEWS = {
    "view", "_unsafe_view", "expand", "t", "transpose", "unsqueeze", "slice", "split", "permute", "select", "detach",
    "alias",
}  # fmt: skip
WIDTHS = {
    "llama": {
        "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4,
        "num_hidden_layers": 2,
    },
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2},
    "bert": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2},
}  # fmt: skip
HEADS = {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel", "bert": "BertForMaskedLM"}
DTYPES = {"llama": "bf16", "gpt2": "fp32", "bert": "fp32"}
ATTENTION = {"math": "eager", "flash": "sdpa"}


def dispatched(model_type: str, attention: str) -> Counter[str]:
    """What torch dispatches for one layer, by operator."""
    import transformers
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):  # type: ignore[misc, no-any-unimported]
        def __init__(self) -> None:
            super().__init__()
            self.seen: Counter[str] = Counter()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen[str(func).split(".")[1]] += 1
            return func(*args, **(kwargs or {}))

    def of(layers: int) -> Counter[str]:
        widths = dict(WIDTHS[model_type])
        widths["n_layer" if model_type == "gpt2" else "num_hidden_layers"] = layers
        config = transformers.AutoConfig.for_model(model_type, vocab_size=100, **widths)
        config._attn_implementation = ATTENTION[attention]
        model = getattr(transformers, HEADS[model_type])(config).eval()
        if DTYPES[model_type] == "bf16":
            model = model.to(torch.bfloat16)
        with torch.no_grad(), Counted() as counted:
            model(input_ids=torch.zeros(1, 16, dtype=torch.long), use_cache=False)
        return counted.seen

    found, one = of(2), of(1)
    found.subtract(one)
    return +found


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("model_type", HEADS)
def test_a_layer_makes_the_calls_that_torch_dispatches(model_type: str, attention: str, tmp_path: Path) -> None:
    import json

    written = {"model_type": model_type, "architectures": [HEADS[model_type]], "vocab_size": 100, **WIDTHS[model_type]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(written), encoding="utf-8")
    graph = build(load_config(path), Step(seq_len=16, act_dtype=DTYPES[model_type], attention=attention))
    (layer,) = (block for block in graph.blocks if block.repeat == 2)
    seen = dispatched(model_type, attention)
    calls, kernels = sum(seen.values()), sum(n for name, n in seen.items() if name not in VIEWS)
    assert sum(node.host_calls for node in layer.nodes) == pytest.approx(calls, abs=3), dict(seen)
    assert sum(node.op.kernels() * node.count for node in layer.nodes) == pytest.approx(kernels, abs=2), dict(seen)
