"""A model of nobody's catalogue: `predict --model examples/traced_model.py:build --input "tokens:int64[8,512]" ...`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Layer(nn.Module):
    """Attention and a gated feed-forward, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, h))
        gate, up = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


class Model(nn.Module):
    """Tokens to the logits of the next ones, and their loss."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, vocab: int = 32000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def build() -> nn.Module:
    """The model; no weights are made, as it is built on the meta device."""
    return Model()


if __name__ == "__main__":
    import tilecast

    model = tilecast.trace(build, "tokens:int64[8,512]", optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    answer = tilecast.predict(model, "h100", mode="train")
    print(f"{answer.latency_ms:.1f} ms a step, {answer.memory.total / 2**30:.1f} GiB")
