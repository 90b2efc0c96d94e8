"""Backward passes of one layer, as eager PyTorch dispatches them on the CPU, against the built graph's."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from typing import Any

import pytest
from backward import backward_blocks

from predictor.graph import Graph
from predictor.models.built import Step, build, config_from_dict
from predictor.models.built.load import CONFIGS
from predictor.ops import Elementwise, Gemm, Reduce

torch = pytest.importorskip("torch", reason="the test extra (torch, transformers) is not installed")
transformers = pytest.importorskip("transformers", reason="the test extra (torch, transformers) is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SMALL_OF = {
    "llama-3.1-8b": SMALL, "qwen3-8b": SMALL,
    "bert-base": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 128},
    "opt-1.3b": {
        "hidden_size": 64, "ffn_dim": 128, "num_attention_heads": 4, "vocab_size": 128, "word_embed_proj_dim": 64,
        "pad_token_id": 0,
    },
}  # fmt: skip


class Kernels(TorchDispatchMode):  # type: ignore[misc]
    """Names and output elements of the operators that reach the dispatcher below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, (tuple, list)) else result
        if isinstance(first, torch.Tensor):
            self.seen[func.overloadpacket.__name__, first.numel()] += 1
        return result


def backward_of(name: str, layers: int, batch: int) -> Counter[tuple[str, int]]:
    """Kernels of a backward pass through ``layers`` layers, dropout off."""
    data = {k: v for k, v in small_config(name).items() if k != "_note"}
    cls = getattr(transformers, data["architectures"][0])
    config = cls.config_class(**{**data, "num_hidden_layers": layers})
    config._attn_implementation = "eager"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = cls(config).train()
        out = model(input_ids=torch.randint(3, 100, (batch, 8)), use_cache=False)[0]
        with Kernels() as recorder:
            out.backward(torch.ones_like(out))
    return recorder.seen


def small_config(name: str) -> dict[str, Any]:
    data = {**json.loads((CONFIGS / f"{name}.json").read_text()), **SMALL_OF[name]}
    return {key: 0.0 if "drop" in key else value for key, value in data.items()}


def built_backward(graph: Graph) -> Counter[tuple[str, int]]:
    """Sums of gradients by size, products and reductions of the layers' backward pass."""
    found: Counter[tuple[str, int]] = Counter()
    for block in backward_blocks(graph):
        for node in block.nodes if "layer" in block.name else ():
            op = node.op
            if isinstance(op, Gemm):
                found["product", 0] += node.count
            elif isinstance(op, Reduce):
                found["sum", 0] += node.count
            elif isinstance(op, Elementwise) and op.fn in ("add", "fill"):
                found[op.fn, op.elements] += node.count
    return found


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", sorted(SMALL_OF))
def test_the_backward_pass_has_the_sums_and_products_that_autograd_dispatches(name: str, batch: int) -> None:
    real = backward_of(name, 2, batch)
    real.subtract(backward_of(name, 1, batch))
    expected: Counter[tuple[str, int]] = Counter()
    kinds = {"mm": "product", "bmm": "product", "sum": "sum", "add": "add", "slice_backward": "fill"}
    for (kernel, elements), count in real.items():
        if kernel in kinds and count:
            kind = kinds[kernel]
            expected[kind, elements if kind in ("add", "fill") else 0] += count
    graph = build(config_from_dict(small_config(name), name), Step("train", batch, 8, training=True))
    assert built_backward(graph) == expected
    if name in ("bert-base", "opt-1.3b"):  # nothing but copies of gradients is a copy there
        copies = [n.op.elements for b in backward_blocks(graph) for n in b.nodes
                  if "layer" in b.name and isinstance(n.op, Elementwise) and n.op.fn == "copy"]  # fmt: skip
        assert sorted(copies) == sorted(n for (k, n), count in real.items() for _ in range(count) if k == "clone")


class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A GPT-2 layer as torch runs it with one projection for q, k and v, a mask by where, and tanh-gelu in steps."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(shape)) for shape in shapes)
        self.biases = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape[1])) for shape in shapes)

    def linear(self, i: int, x: Any) -> Any:
        flat = torch.addmm(self.biases[i], x.view(-1, x.shape[-1]), self.weights[i])
        return flat.view(*x.shape[:-1], -1)

    def forward(self, x: Any) -> Any:
        b, s, h = x.shape
        parts = self.linear(0, self.norms[0](x)).split(h, dim=2)
        q, k, v = (part.view(b, s, self.heads, -1).permute(0, 2, 1, 3) for part in parts)
        scores = torch.matmul(q, k.transpose(-1, -2)) / torch.full([], 2.0)
        mask = torch.ones(s, s, dtype=torch.bool).tril().view(1, 1, s, s)
        weights = torch.softmax(torch.where(mask, scores, torch.full([], -1e9)), dim=-1)
        merged = torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous().view(b, s, h)
        x = self.linear(1, merged) + x
        y = self.linear(2, self.norms[1](x))
        y = 0.5 * y * (1.0 + torch.tanh(0.8 * (y + 0.044715 * torch.pow(y, 3.0))))
        return x + self.linear(3, y)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_backward_pass_of_a_gpt2_layer_by_its_kernels(batch: int) -> None:
    x = torch.randn(batch, 8, 64, requires_grad=True)
    out = Block(64, 4)(x * 1.0)
    with Kernels() as recorder:
        out.backward(torch.ones_like(out))
    real = recorder.seen
    real["mul", x.numel()] -= 1  # the scaling that stands for the layer before
    data = {**json.loads((CONFIGS / "gpt2.json").read_text()), "n_embd": 64, "n_head": 4, "vocab_size": 128}
    data |= {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    graph = build(config_from_dict(data, "gpt2"), Step("train", batch, 8, training=True))
    layer = next(block for block in backward_blocks(graph) if block.name.startswith("layer"))
    copies = Counter(n.op.elements for n in layer.nodes if isinstance(n.op, Elementwise) and n.op.fn == "copy")
    assert copies == Counter({n: real["clone", n] + real["cat", n] for k, n in real if k in ("clone", "cat")})
    adds = Counter(n.op.elements for n in layer.nodes if isinstance(n.op, Elementwise) and n.op.fn == "add")
    assert adds == Counter({n: count for (k, n), count in real.items() if k == "add"})
    wide = batch * 8 * 256
    products = sum(isinstance(n.op, Elementwise) and n.op.fn in ("mul", "mul_scalar") and n.op.elements == wide
                   for n in layer.nodes)  # fmt: skip
    assert products == real["mul", wide]
