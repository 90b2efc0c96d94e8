"""UNets that make images, a detector and a recommender, in plain PyTorch at published sizes, as MLPerf trains them.

Only shapes count here: a module is traced on the meta device, so that weights, names of parameters and numbers stand
for nothing. Sizes are from memory of each checkpoint's config; where the card prints a count of parameters,
`PARAMETERS` has it and tests hold the module to it. Times and guidance come in as vectors that are embedded already.
Pipelines that make images and videos, with text encoders and decoders, are `predictor/models/traced/pipelines`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Parameters of the denoising network in 10^9, as cards and papers print them (from memory).
PARAMETERS = {"sd-1.5": 0.86, "sd-2.1": 0.87, "sdxl": 2.57}


def heads_of(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, width) -> (batch, heads, tokens, width / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of (batch, heads, tokens, size), the heads side by side again."""
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Over the tokens themselves, or over those of a text."""

    def __init__(self, width: int, heads: int, source: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        source = width if source is None else source
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(source, width), nn.Linear(source, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor | None = None) -> Tensor:
        source = x if source is None else source
        q, k, v = (heads_of(t, self.heads) for t in (self.q(x), self.k(source), self.v(source)))
        return self.out(attend(q, k, v))


class Residual(nn.Module):
    """Two convolutions behind group norms; ``time`` wide vectors are added between them."""

    def __init__(self, inside: int, outside: int, time: int = 0) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(32, inside), nn.GroupNorm(32, outside)
        self.conv, self.conv2 = nn.Conv2d(inside, outside, 3, padding=1), nn.Conv2d(outside, outside, 3, padding=1)
        self.time = nn.Linear(time, outside) if time else None
        self.short: nn.Module = nn.Identity() if inside == outside else nn.Conv2d(inside, outside, 1)

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        y = self.conv(F.silu(self.first(x)))
        if self.time is not None and time is not None:
            y = y + self.time(F.silu(time))[:, :, None, None]
        return self.short(x) + self.conv2(F.silu(self.second(y)))


class GatedFeedForward(nn.Module):
    """A gelu gate, four times as wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.up(x).chunk(2, -1)
        return self.down(y * F.gelu(gate))


class Spatial(nn.Module):
    """Layers of attention over the pixels, over the text, and feed-forward."""

    def __init__(self, width: int, heads: int, text: int, depth: int) -> None:
        super().__init__()
        self.norm, self.into, self.out = nn.GroupNorm(32, width), nn.Linear(width, width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 * depth))
        self.inner = nn.ModuleList()
        for _ in range(depth):
            self.inner += [Attention(width, heads), Attention(width, heads, text), GatedFeedForward(width)]

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        y = self.into(self.norm(x).flatten(2).transpose(1, 2))
        for place, (norm, inner) in enumerate(zip(self.norms, self.inner, strict=True)):
            y = y + (inner(norm(y), text) if place % 3 == 1 else inner(norm(y)))
        return x + self.out(y).transpose(1, 2).unflatten(2, x.shape[2:])


class UNet(nn.Module):
    """Stable Diffusion's: levels of ``channels``, two residual blocks each on the way down and three on the way up,
    ``depths`` layers of attention behind each (0: none); ``size`` of a head, or 8 heads where it is 0."""

    def __init__(
        self, channels: tuple[int, ...], depths: tuple[int, ...], text: int, size: int, added: int = 0
    ) -> None:
        super().__init__()
        first, time = channels[0], 4 * channels[0]
        self.time = nn.Sequential(nn.Linear(first, time), nn.SiLU(), nn.Linear(time, time))
        self.added = nn.Sequential(nn.Linear(added, time), nn.SiLU(), nn.Linear(time, time)) if added else None
        self.into = nn.Conv2d(4, first, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips, width = [first], first

        def spatial(width: int, depth: int) -> nn.Module | None:
            return Spatial(width, width // size if size else 8, text, depth) if depth else None

        for level, (wide, depth) in enumerate(zip(channels, depths, strict=True)):
            for _ in range(2):
                self.down.append(nn.ModuleList([Residual(width, wide, time), spatial(wide, depth) or nn.Identity()]))
                width = wide
                skips.append(width)
            if level < len(channels) - 1:
                self.down.append(nn.Conv2d(width, width, 3, 2, 1))
                skips.append(width)
        middle = max(depths[-1], 1)
        self.middle = nn.ModuleList(
            [Residual(width, width, time), spatial(width, middle) or nn.Identity(), Residual(width, width, time)]
        )
        for level in reversed(range(len(channels))):
            wide, depth = channels[level], depths[level]
            for _ in range(3):
                block = Residual(width + skips.pop(), wide, time)
                self.up.append(nn.ModuleList([block, spatial(wide, depth) or nn.Identity()]))
                width = wide
            if level:
                self.up.append(nn.Conv2d(width, width, 3, padding=1))
        self.norm, self.out = nn.GroupNorm(32, width), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Tensor, text: Tensor, time: Tensor, added: Tensor | None = None) -> Tensor:
        t = self.time(time)
        if self.added is not None and added is not None:
            t = t + self.added(added)

        def run(pair: nn.ModuleList, x: Tensor) -> Tensor:
            x = pair[0](x, t)
            return pair[1](x, text) if isinstance(pair[1], Spatial) else x

        x = self.into(x)
        skips = [x]
        for step in self.down:
            x = step(x) if isinstance(step, nn.Conv2d) else run(step, x)
            skips.append(x)
        x = self.middle[2](run(self.middle[:2], x), t)
        for step in self.up:
            if isinstance(step, nn.Conv2d):
                x = step(F.interpolate(x, scale_factor=2.0, mode="nearest"))
            else:
                x = run(step, torch.cat((x, skips.pop()), 1))
        return self.out(F.silu(self.norm(x)))


class Frozen(nn.Module):
    """A batch norm whose numbers stand still: a scale and a shift a channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.empty(1, width, 1, 1))
        self.register_buffer("shift", torch.empty(1, width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Bottleneck(nn.Module):
    """ResNeXt's: 1 x 1, 3 x 3 in 32 groups, 1 x 1."""

    def __init__(self, inside: int, width: int, outside: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = (
            nn.Conv2d(inside, width, 1, bias=False),
            nn.Conv2d(width, width, 3, stride, 1, groups=32, bias=False),
        )
        self.three = nn.Conv2d(width, outside, 1, bias=False)
        self.norms = nn.ModuleList(Frozen(n) for n in (width, width, outside))
        same = inside == outside and stride == 1
        self.short: nn.Module = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), Frozen(outside))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.one(x)))
        y = F.relu(self.norms[1](self.two(y)))
        return F.relu(self.short(x) + self.norms[2](self.three(y)))


class RetinaNet(nn.Module):
    """MLPerf's single-stage detector: ResNeXt-50 32x4d, whose stem and first level stay as they are, a pyramid of five
    levels, and two towers over each for 9 anchors of 264 classes. Its result is a loss of every anchor; what pairs
    anchors with boxes is left out."""

    def __init__(self, classes: int = 264, anchors: int = 9) -> None:
        super().__init__()
        self.stem, self.norm, self.levels = nn.Conv2d(3, 64, 7, 2, 3, bias=False), Frozen(64), nn.ModuleList()
        inside = 64
        for level, count in enumerate((3, 4, 6, 3)):
            wide = 256 << level
            blocks = [Bottleneck(inside if not i else wide, wide // 2, wide, 2 if level and not i else 1)
                      for i in range(count)]  # fmt: skip
            self.levels.append(nn.Sequential(*blocks))
            inside = wide
        for fixed in (self.stem, self.levels[0]):
            fixed.requires_grad_(False)
        self.lateral = nn.ModuleList(nn.Conv2d(n, 256, 1) for n in (512, 1024, 2048))
        self.smooth = nn.ModuleList(nn.Conv2d(256, 256, 3, padding=1) for _ in range(3))
        self.coarse = nn.ModuleList(nn.Conv2d(256, 256, 3, 2, 1) for _ in range(2))
        self.towers = nn.ModuleList(
            nn.Sequential(*(part for _ in range(4) for part in (nn.Conv2d(256, 256, 3, padding=1), nn.ReLU())),
                          nn.Conv2d(256, anchors * out, 3, padding=1))
            for out in (classes, 4)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.levels[0](F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1))
        found = []
        for level, lateral in zip(list(self.levels)[1:], self.lateral, strict=True):
            x = level(x)
            found.append(lateral(x))
        for i in (1, 0):
            found[i] = found[i] + F.interpolate(found[i + 1], size=found[i].shape[2:], mode="nearest")
        found = [smooth(y) for smooth, y in zip(self.smooth, found, strict=True)]
        found.append(self.coarse[0](found[-1]))
        found.append(self.coarse[1](F.relu(found[-1])))
        named, boxes = (
            torch.cat([tower(y).permute(0, 2, 3, 1).flatten(1) for y in found], 1).float() for tower in self.towers
        )
        chance, wrong = named.sigmoid(), F.binary_cross_entropy_with_logits(named, named.detach(), reduction="none")
        return (wrong * (1 - chance) ** 2).sum() + boxes.abs().sum()


def _unet(kind: str) -> nn.Module:
    if kind == "sdxl":
        return UNet((320, 640, 1280), (0, 2, 10), 2048, 64, 2816)
    return UNet((320, 640, 1280, 1280), (1, 1, 1, 0), *((768, 0) if kind == "sd-1.5" else (1024, 64)))


@dataclass(frozen=True)
class Network:
    """A denoising network: what builds it, and its inputs in words for a batch."""

    build: Callable[[], nn.Module]
    inputs: str

    def words(self, batch: int) -> str:
        """Inputs of ``batch`` images or videos."""
        return self.inputs.format(b=batch)


#: Name -> the network at its usual sizes: images of 512 x 512 (SD 1, 2) and 1024 x 1024.
NETWORKS = {
    "sd-1.5": Network(lambda: _unet("sd-1.5"), "x:float[{b},4,64,64] text:float[{b},77,768] time:float[{b},320]"),
    "sd-2.1": Network(lambda: _unet("sd-2.1"), "x:float[{b},4,64,64] text:float[{b},77,1024] time:float[{b},320]"),
    "sdxl": Network(
        lambda: _unet("sdxl"),
        "x:float[{b},4,128,128] text:float[{b},77,2048] time:float[{b},320] added:float[{b},2816]",
    ),
}


class Recommender(nn.Module):
    """DLRM with a cross network of low rank (DCNv2): 26 embedding bags of ``pooling`` rows each, at MLPerf's sizes but
    for the rows of a table, which are alike here."""

    def __init__(self, rows: int = 1_000_000, width: int = 128, tables: int = 26, rank: int = 512) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = _layers(13, 512, 256, width)
        wide = (tables + 1) * width
        self.down = nn.ModuleList(nn.Linear(wide, rank, bias=False) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(rank, wide) for _ in range(3))
        self.top = _layers(wide, 1024, 1024, 512, 256, 1)

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        """``dense``: (batch, 13); ``rows``: (batch, tables, pooling)."""
        found = [self.bottom(dense)] + [bag(rows[:, i]) for i, bag in enumerate(self.bags)]
        first = x = torch.cat(found, 1)
        for down, up in zip(self.down, self.up, strict=True):
            x = first * up(down(x)) + x
        return self.top(x)


def _layers(*sizes: int) -> nn.Module:
    pairs = pairwise(sizes)
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU())))
