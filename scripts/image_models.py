"""Networks that make images and videos, a detector and a recommender, in plain PyTorch at published sizes.

Only shapes count here: a module is traced on the meta device, so that weights, names of parameters and numbers (the
frequencies of rotary positions, say) stand for nothing. Sizes are from memory of each checkpoint's config; where the
card prints a count of parameters, `PARAMETERS` has it and tests hold the module to it.

Left out are text encoders, and the decoders of videos and of SANA (`Decoder` is that of Stable Diffusion's images).
Times and guidance come in as vectors that are embedded already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Parameters of the denoising network in 10^9, as cards and papers print them (from memory).
PARAMETERS = {
    "sd-1.5": 0.86, "sd-2.1": 0.87, "sdxl": 2.57, "pixart-sigma": 0.61, "sana-1.6b": 1.6, "sana-4.8b": 4.8,
    "sd3.5-medium": 2.24, "sd3.5-large": 8.06, "flux.1": 11.9, "cogvideox-2b": 1.69, "cogvideox1.5-5b": 5.57,
    "wan2.1-1.3b": 1.42, "wan2.1-14b": 14.3,
}  # fmt: skip


def heads_of(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, width) -> (batch, heads, tokens, width / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of (batch, heads, tokens, size), the heads side by side again."""
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """Rotary positions: ``angle`` of shape (tokens, size of a head)."""
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((-second, first), -1).flatten(3)
    return (x.float() * angle.cos() + turned.float() * angle.sin()).to(x.dtype)


class Attention(nn.Module):
    """Over the tokens themselves, or over those of a text; ``norm``: of queries and keys, by "head" or "all"."""

    def __init__(self, width: int, heads: int, source: int | None = None, norm: str = "", rotary: bool = False) -> None:
        super().__init__()
        self.heads, self.norm, self.rotary = heads, norm, rotary
        source = width if source is None else source
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(source, width), nn.Linear(source, width)
        self.out = nn.Linear(width, width)
        size = width if norm == "all" else width // heads
        if norm:
            self.norm_q, self.norm_k = nn.RMSNorm(size), nn.RMSNorm(size)

    def heads_qkv(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, normed and turned."""
        q, k, v = self.q(x), self.k(source), self.v(source)
        if self.norm == "all":
            q, k = self.norm_q(q), self.norm_k(k)
        q, k, v = (heads_of(t, self.heads) for t in (q, k, v))
        if self.norm == "head":
            q, k = self.norm_q(q), self.norm_k(k)
        if self.rotary:
            angle = torch.empty(x.shape[1], q.shape[-1], device=x.device)
            q, k = rotated(q, angle), rotated(k, angle)
        return q, k, v

    def forward(self, x: Tensor, source: Tensor | None = None) -> Tensor:
        return self.out(attend(*self.heads_qkv(x, x if source is None else source)))


class LinearAttention(Attention):
    """SANA's: relu of queries and keys, a state of the size of a head squared, in fp32."""

    def forward(self, x: Tensor, source: Tensor | None = None) -> Tensor:
        q, k, v = (t.transpose(-1, -2) for t in self.heads_qkv(x, x))  # (batch, heads, size, tokens)
        q, k = F.relu(q).float(), F.relu(k).float()
        v = F.pad(v.float(), (0, 0, 0, 1), value=1.0)
        y = (v @ k.transpose(-1, -2)) @ q
        y = y[:, :, :-1] / (y[:, :, -1:] + 1e-15)
        return self.out(y.flatten(1, 2).transpose(1, 2).to(x.dtype))


def feed_forward(width: int, inner: int) -> nn.Module:
    """Two products and a gelu between them."""
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, width))


class MixFeedForward(nn.Module):
    """SANA's: 1 x 1, 3 x 3 depthwise, a gate, 1 x 1, over a square of tokens."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Conv2d(width, 2 * inner, 1), nn.Conv2d(inner, width, 1, bias=False)
        self.deep = nn.Conv2d(2 * inner, 2 * inner, 3, padding=1, groups=2 * inner)

    def forward(self, x: Tensor) -> Tensor:
        side = round(x.shape[1] ** 0.5)
        y, gate = self.deep(F.silu(self.up(x.transpose(1, 2).unflatten(2, (side, side))))).chunk(2, 1)
        return self.down(y * F.silu(gate)).flatten(2).transpose(1, 2)


def modulated(norm: nn.Module, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """A norm whose scale and shift come from the time."""
    return norm(x) * (1 + scale) + shift


class CrossBlock(nn.Module):
    """Attention, attention over the text, feed-forward; a table is added to six vectors that all layers share (PixArt,
    SANA, Wan)."""

    def __init__(self, kind: str, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(6, width))
        self.first, self.second = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.third = nn.LayerNorm(width) if kind == "wan" else nn.Identity()
        norm = {"pixart": "", "sana": "all", "wan": "all"}[kind]
        own = LinearAttention if kind == "sana" else Attention
        self.own = own(width, heads, norm=norm, rotary=kind == "wan")
        self.cross = Attention(width, width // 112 if kind == "sana" else heads, norm=norm)
        self.mlp: nn.Module = MixFeedForward(width, inner) if kind == "sana" else feed_forward(width, inner)

    def forward(self, x: Tensor, text: Tensor, shared: Tensor) -> Tensor:
        a, b, c, d, e, f = (self.table + shared).chunk(6, 1)
        x = x + c * self.own(modulated(self.first, x, a, b))
        x = x + self.cross(self.third(x), text)
        return x + f * self.mlp(modulated(self.second, x, d, e))


class CrossDiT(nn.Module):
    """A transformer over patches of a latent, with the text in attention of its own: PixArt, SANA, Wan."""

    def __init__(
        self, kind: str, layers: int, width: int, heads: int, inner: int, channels: int, text: int,
        patch: tuple[int, ...] = (2, 2), out: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        conv = nn.Conv3d if len(patch) == 3 else nn.Conv2d
        self.patch = conv(channels, width, patch, patch)
        self.text = nn.Sequential(nn.Linear(text, width), nn.GELU(approximate="tanh"), nn.Linear(width, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.shared = nn.Linear(width, 6 * width)
        self.blocks = nn.ModuleList(CrossBlock(kind, width, heads, inner) for _ in range(layers))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        size = 1
        for n in patch:
            size *= n
        self.head = nn.Linear(width, size * (out or channels))

    def forward(self, x: Tensor, text: Tensor, time: Tensor) -> Tensor:
        x, text, time = self.patch(x).flatten(2).transpose(1, 2), self.text(text), self.time(time)
        shared = self.shared(F.silu(time)).unflatten(1, (6, -1))
        for block in self.blocks:
            x = block(x, text, shared)
        return self.head(modulated(self.norm, x, time[:, None], time[:, None]))


class Stream(nn.Module):
    """What a joint block has for the tokens of one kind: vectors of the time, attention's products, feed-forward."""

    def __init__(self, width: int, heads: int, last: bool, dual: bool, rotary: bool) -> None:
        super().__init__()
        self.last, self.dual = last, dual
        self.vectors = nn.Linear(width, (2 if last else 9 if dual else 6) * width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.own = Attention(width, heads, norm="head", rotary=rotary)
        if last:
            self.own.out = nn.Identity()
        else:
            self.mlp = feed_forward(width, 4 * width)
        if dual:
            self.again = Attention(width, heads, norm="head")

    def begin(self, x: Tensor, time: Tensor) -> tuple[list[Tensor], tuple[Tensor, Tensor, Tensor]]:
        """The vectors, and queries, keys and values."""
        vectors = list(self.vectors(F.silu(time))[:, None].chunk(self.vectors.out_features // x.shape[-1], -1))
        y = modulated(self.norm, x, vectors[0], vectors[1])
        return vectors, self.own.heads_qkv(y, y)

    def end(self, x: Tensor, y: Tensor, vectors: list[Tensor]) -> Tensor:
        """Attention's result and the feed-forward."""
        if self.last:
            return x
        before = x
        x = x + vectors[2] * self.own.out(y)
        if self.dual:
            x = x + vectors[8] * self.again(modulated(self.norm, before, vectors[6], vectors[7]))
        return x + vectors[5] * self.mlp(modulated(self.norm, x, vectors[3], vectors[4]))


class JointBlock(nn.Module):
    """Image and text attend to each other in one call, each with weights of its own (Stable Diffusion 3, FLUX)."""

    def __init__(self, width: int, heads: int, last: bool = False, dual: bool = False, rotary: bool = False) -> None:
        super().__init__()
        self.image = Stream(width, heads, False, dual, rotary)
        self.words = Stream(width, heads, last, False, rotary)

    def forward(self, x: Tensor, text: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        own, qkv = self.image.begin(x, time)
        other, more = self.words.begin(text, time)
        y = attend(*(torch.cat(pair, 2) for pair in zip(qkv, more, strict=True)))
        first, second = y.split((x.shape[1], text.shape[1]), 1)
        return self.image.end(x, first, own), self.words.end(text, second, other)


class SingleBlock(nn.Module):
    """FLUX's: attention and feed-forward side by side over text and image as one sequence."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.vectors, self.norm = nn.Linear(width, 3 * width), nn.LayerNorm(width, elementwise_affine=False)
        self.own, self.up = Attention(width, heads, norm="head", rotary=True), nn.Linear(width, 4 * width)
        self.own.out, self.down = nn.Identity(), nn.Linear(5 * width, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shift, scale, gate = self.vectors(F.silu(time))[:, None].chunk(3, -1)
        y = modulated(self.norm, x, shift, scale)
        return x + gate * self.down(torch.cat((self.own(y), F.gelu(self.up(y), approximate="tanh")), -1))


class JointDiT(nn.Module):
    """A transformer in which text and image attend to each other: Stable Diffusion 3 and FLUX."""

    def __init__(self, layers: int, width: int, heads: int, dual: int = 0, single: int = 0, text: int = 4096,
                 pooled: int = 2048, channels: int = 16) -> None:  # fmt: skip
        super().__init__()
        self.patch, self.text = nn.Linear(4 * channels, width), nn.Linear(text, width)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.pooled = nn.Sequential(nn.Linear(pooled, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(
            JointBlock(width, heads, not single and i == layers - 1, i < dual, bool(single)) for i in range(layers)
        )
        self.single = nn.ModuleList(SingleBlock(width, heads) for _ in range(single))
        self.vectors, self.norm = nn.Linear(width, 2 * width), nn.LayerNorm(width, elementwise_affine=False)
        self.head = nn.Linear(width, 4 * channels)

    def forward(self, x: Tensor, text: Tensor, time: Tensor, pooled: Tensor) -> Tensor:
        x, text, time = self.patch(x), self.text(text), self.time(time) + self.pooled(pooled)
        for block in self.blocks:
            x, text = block(x, text, time)
        if len(self.single):
            both = torch.cat((text, x), 1)
            for one in self.single:
                both = one(both, time)
            x = both[:, text.shape[1] :]
        return self.head(modulated(self.norm, x, *self.vectors(F.silu(time))[:, None].chunk(2, -1)))


class VideoBlock(nn.Module):
    """CogVideoX's: text and video as one sequence with the same weights, each with norms' vectors of its own."""

    def __init__(self, width: int, heads: int, rotary: bool) -> None:
        super().__init__()
        self.vectors = nn.ModuleList(nn.Linear(512, 6 * width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.own, self.mlp = Attention(width, heads, norm="head", rotary=rotary), feed_forward(width, 4 * width)

    def forward(self, x: Tensor, text: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        size = (text.shape[1], x.shape[1])
        for vectors, norm, inner in zip(self.vectors, self.norms, (self.own, self.mlp), strict=True):
            a, b, c, d, e, f = vectors(F.silu(time))[:, None].chunk(6, -1)
            both = torch.cat((modulated(norm, text, d, e), modulated(norm, x, a, b)), 1)
            more, y = inner(both).split(size, 1)
            x, text = x + c * y, text + f * more
        return x, text


class VideoDiT(nn.Module):
    """CogVideoX: patches of a video come in side by side with the text."""

    def __init__(self, layers: int, heads: int, patch: int, rotary: bool) -> None:
        super().__init__()
        width = 64 * heads
        self.patch, self.text = nn.Linear(16 * patch, width), nn.Linear(4096, width)
        self.time = nn.Sequential(nn.Linear(width, 512), nn.SiLU(), nn.Linear(512, 512))
        self.blocks = nn.ModuleList(VideoBlock(width, heads, rotary) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16 * patch)

    def forward(self, x: Tensor, text: Tensor, time: Tensor) -> Tensor:
        x, text, time = self.patch(x), self.text(text), self.time(time)
        for block in self.blocks:
            x, text = block(x, text, time)
        return self.head(self.norm(x))


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


class Decoder(nn.Module):
    """Stable Diffusion's: a latent of ``channels`` to an image of eight times its sides."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.into, self.before, self.after = (
            nn.Conv2d(channels, 512, 3, padding=1),
            Residual(512, 512),
            Residual(512, 512),
        )
        self.norm_middle, self.middle = nn.GroupNorm(32, 512), Attention(512, 1)
        self.up, width = nn.ModuleList(), 512
        for level, wide in enumerate((512, 512, 256, 128)):
            for _ in range(3):
                self.up.append(Residual(width, wide))
                width = wide
            if level < 3:
                self.up.append(nn.Conv2d(width, width, 3, padding=1))
        self.norm, self.out = nn.GroupNorm(32, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(self.into(x))
        y = self.middle(self.norm_middle(x).flatten(2).transpose(1, 2))
        x = self.after(x + y.transpose(1, 2).unflatten(2, x.shape[2:]))
        for step in self.up:
            x = step(F.interpolate(x, scale_factor=2.0, mode="nearest") if isinstance(step, nn.Conv2d) else x)
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
    """A denoising network: what builds it, its inputs in words for a batch, and the decoder's latent (0: not here)."""

    build: Callable[[], nn.Module]
    inputs: str
    latent: int = 0

    def words(self, batch: int) -> str:
        """Inputs of ``batch`` images or videos."""
        return self.inputs.format(b=batch)


def _cross(kind: str, *sizes: int, text: str, latent: str, time: int = 256, **more: object) -> Network:
    build = lambda: CrossDiT(kind, *sizes, **more)  # type: ignore[arg-type]  # noqa: E731
    return Network(build, f"x:float[{{b}},{latent}] text:float[{{b}},{text}] time:float[{{b}},{time}]",
                   4 if kind == "pixart" else 0)  # fmt: skip


def _joint(*sizes: int, text: str, pooled: int = 2048, latent: int = 16, **more: int) -> Network:
    build = lambda: JointDiT(*sizes, pooled=pooled, **more)  # noqa: E731
    return Network(build, f"x:float[{{b}},4096,64] text:float[{{b}},{text}] time:float[{{b}},256]"
                   f" pooled:float[{{b}},{pooled}]", latent)  # fmt: skip


def _video(layers: int, heads: int, patch: int, rotary: bool, tokens: int) -> Network:
    return Network(
        lambda: VideoDiT(layers, heads, patch, rotary),
        f"x:float[{{b}},{tokens},{16 * patch}] text:float[{{b}},226,4096] time:float[{{b}},{64 * heads}]",
    )


#: Name -> the network at its usual sizes: images of 512 x 512 (SD 1, 2) and 1024 x 1024, videos of 81 frames of
#: 480 x 832 (Wan), 49 of 480 x 720 (CogVideoX-2b) and 81 of 768 x 1360 (CogVideoX1.5-5B).
NETWORKS = {
    "sd-1.5": Network(lambda: _unet("sd-1.5"), "x:float[{b},4,64,64] text:float[{b},77,768] time:float[{b},320]", 4),
    "sd-2.1": Network(lambda: _unet("sd-2.1"), "x:float[{b},4,64,64] text:float[{b},77,1024] time:float[{b},320]", 4),
    "sdxl": Network(
        lambda: _unet("sdxl"),
        "x:float[{b},4,128,128] text:float[{b},77,2048] time:float[{b},320] added:float[{b},2816]",
        4,
    ),
    "pixart-sigma": _cross("pixart", 28, 1152, 16, 4608, 4, 4096, text="300,4096", latent="4,128,128", out=8),
    "sana-1.6b": _cross("sana", 20, 2240, 70, 5600, 32, 2304, text="300,2304", latent="32,32,32", patch=(1, 1)),
    "sana-4.8b": _cross("sana", 60, 2240, 70, 5600, 32, 2304, text="300,2304", latent="32,32,32", patch=(1, 1)),
    "sd3.5-medium": _joint(24, 1536, 24, 13, text="333,4096"),
    "sd3.5-large": _joint(38, 2432, 38, text="333,4096"),
    "flux.1": _joint(19, 3072, 24, 0, 38, text="512,4096", pooled=768),
    "cogvideox-2b": _video(30, 30, 4, False, 13 * 30 * 45),
    "cogvideox1.5-5b": _video(42, 48, 8, True, 11 * 48 * 85),
    "wan2.1-1.3b": _cross("wan", 30, 1536, 12, 8960, 16, 4096, text="512,4096", latent="16,21,60,104", patch=(1, 2, 2)),
    "wan2.1-14b": _cross("wan", 40, 5120, 40, 13824, 16, 4096, text="512,4096", latent="16,21,60,104", patch=(1, 2, 2)),
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
