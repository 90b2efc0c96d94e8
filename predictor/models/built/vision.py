"""The tower that images pass on their way into a language model: patches, layers, and what brings them into the text's
width. Sizes are those of `vision_config`; how many tokens an image becomes is the processor's rule of the type.

Shape legend: p patches of an image (or of a tile of it), h the tower's width, g patches that become one token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from predictor.errors import RequestError
from predictor.files.records import dataclass, replace
from predictor.graph.graph import Block, Graph
from predictor.graph.tensor import Tensor
from predictor.models.step import Step

if TYPE_CHECKING:
    from predictor.models.built.config import ModelConfig

#: Keys of one size, by definition of the configuration classes of transformers 5, and of Kimi's.
_SIZES = {
    "layers": ("depth", "num_hidden_layers", "vt_num_hidden_layers", "num_layers"),
    "hidden": ("vt_hidden_size", "embed_dim", "hidden_size", "width"),
    "heads": ("num_heads", "num_attention_heads", "vt_num_attention_heads", "attention_heads"),
}  # fmt: skip
#: A guard against slips of the keyboard: a guess, chosen by hand, not from data.
_LARGEST = 2**20
#: Least and most tokens of an image of Qwen's, and a side over the other. Source: qwen-vl-utils 0.0.14,
#: vision_process.py (IMAGE_MIN_TOKEN_NUM, IMAGE_MAX_TOKEN_NUM, MAX_RATIO), whose bounds in pixels are these times the
#: area of a token. As recalled, unverified: preprocessor_config.json of Qwen2-VL to Qwen3-VL has the same upper bound
#: (max_pixels 12845056 with tokens of 28 x 28, 16777216 with 32 x 32), where the class's default is 1003520.
_TOKENS, _LONGEST_SHAPE = (4, 16_384), 200
_WIDTHS = ("intermediate_size", "vt_intermediate_size", "mlp_dim")


@dataclass(frozen=True, slots=True)
class VisionTower:
    """A vision tower of a model of type ``kind``.

    ``patch`` in pixels of a side, ``frames`` images that a patch is deep, ``positions`` rows of a learned table. A
    square of ``merge`` patches a side becomes one token of width ``out``; ``mergers`` bring the tower's result, and
    those of layers, there through ``inner`` (0: one product). ``side``: pixels that every image, or tile, is brought to
    (0: it keeps its own, of ``longest`` at most, or with an area within ``pixels``); ``tiles``: parts that an image is
    cut into at most, with one of the whole beside several, in a grid of the image's shape or, if ``fits``, in one that
    holds it; ``pooled``: tokens of an image whatever its size, averages of patches; ``breaks``: a row of
    tokens ends with one more; ``extra``: tokens of a sequence beside patches. ``window``: patches that see each other
    in all layers but ``whole``.
    """

    kind: str
    layers: int
    hidden: int
    heads: int
    intermediate: int
    patch: int
    out: int
    channels: int
    merge: int = 1
    inner: int = 0
    mergers: int = 1
    frames: int = 1
    gated: bool = False
    rotary: bool = True
    side: int = 0
    longest: int = 0
    pixels: tuple[int, int] = (0, 0)
    tiles: int = 1
    fits: bool = False
    pooled: int = 0
    breaks: bool = False
    extra: int = 0
    positions: int = 0
    window: int = 0
    whole: tuple[int, ...] = ()

    @property
    def merged(self) -> int:
        """Width of what becomes one token."""
        return self.hidden if self.pooled else self.hidden * self.merge**2

    @property
    def end_parameters(self) -> int:
        """Elements of the weights before and after the layers."""
        width = self.merged
        joined = width * self.inner + self.inner * self.out if self.inner else width * self.out
        table = self.hidden * (self.channels * self.frames * self.patch**2 + self.positions)
        return table + self.mergers * joined

    def ranks(self, tp: int) -> int:
        """GPUs that share a layer: ``tp``, or one where that does not divide the heads and the width."""
        return tp if self.heads % tp == 0 and self.intermediate % tp == 0 else 1

    def seen(self, height: int, width: int) -> Seen:
        """What an image of ``height`` x ``width`` pixels is in the tower, and in the language model. RequestError for
        one that the processor refuses."""
        if self.pooled:
            return Seen(1, self.pooled * self.merge**2 + self.extra, self.pooled)
        if self.side:
            rows = self.side // self.patch // self.merge
            grid = _holding_grid if self.fits else _shaped_grid
            parts = math.prod(grid(height, width, self.side, self.tiles))
            tiles = parts + (parts > 1)
            return Seen(tiles, (rows * self.merge) ** 2 + self.extra, tiles * rows**2)
        unit = self.patch * self.merge
        rows, columns = (size // unit for size in self.resized(height, width))
        tokens = rows * columns + (rows if self.breaks else 0)
        return Seen(1, rows * columns * self.merge**2 + self.extra, tokens)

    def limited(self, height: int, width: int) -> bool:
        """Whether an image that would keep its size is too large or too small for the processor."""
        if self.pooled or self.side:
            return False
        unit = self.patch * self.merge
        return self.resized(height, width) != (_nearest(height, unit), _nearest(width, unit))

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width, in pixels, that the processor gives an image which keeps its shape: whole tokens a side.

        With ``pixels`` by the rule of transformers 5.24 models/qwen2_vl/image_processing_qwen2_vl.py (smart_resize),
        whose least area is more than one token's. RequestError for a shape that it refuses.
        """
        unit = self.patch * self.merge
        if not all(self.pixels):
            scale = min(1.0, self.longest / max(height, width)) if self.longest else 1.0
            return _nearest(height * scale, unit), _nearest(width * scale, unit)
        if max(height, width) > _LONGEST_SHAPE * min(height, width):
            raise RequestError(
                f"--images of {height}x{width} pixels: expected a side of at most {_LONGEST_SHAPE} times the other, as"
                f" the processor of {self.kind} takes them"
            )
        rows, columns = round(height / unit), round(width / unit)
        least, most = self.pixels
        if rows * columns * unit**2 > most:
            shrink = math.sqrt(height * width / most)
            rows, columns = (max(1, math.floor(size / shrink / unit)) for size in (height, width))
        elif rows * columns * unit**2 < least:
            grow = math.sqrt(least / (height * width))
            rows, columns = (math.ceil(size * grow / unit) for size in (height, width))
        return rows * unit, columns * unit


def _nearest(size: float, unit: int) -> int:
    """The multiple of ``unit`` that is nearest to ``size``; one at least."""
    return max(1, round(size / unit)) * unit


class Seen(NamedTuple):
    """An image: ``sequences`` of ``patches`` in the tower, ``tokens`` of the language model."""

    sequences: int
    patches: int
    tokens: int


def _grids(most: int) -> list[tuple[int, int]]:
    """Rows and columns of at most ``most`` tiles, fewer first."""
    grids = [(rows, columns) for columns in range(1, most + 1) for rows in range(1, most // columns + 1)]
    return sorted(grids, key=math.prod)


def _shaped_grid(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    """The grid whose shape is nearest to that of an image of ``height`` x ``width`` pixels; of several, the last one
    whose area, of tiles of ``side``, is less than twice the image's.

    Source: InternVL's dynamic_preprocess (arXiv:2404.16821), as transformers 5.24 has it in
    models/got_ocr2/image_processing_got_ocr2.py (get_optimal_tiled_canvas).
    """
    best, least = (1, 1), math.inf
    for rows, columns in _grids(most):
        off = abs(width / height - columns / rows)
        if off < least or (off == least and height * width > 0.5 * side * side * rows * columns):
            best, least = (rows, columns), off
    return best


def _holding_grid(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    """The grid of tiles of ``side`` into which an image of ``height`` x ``width`` pixels fits with the least
    enlargement, or else with the least reduction; of several, the smallest.

    Source: transformers 5.24 models/llama4/image_processing_llama4.py (get_best_fit).
    """

    def order(grid: tuple[int, int]) -> tuple[bool, float, int]:
        scale = min(grid[0] * side / height, grid[1] * side / width)
        return scale < 1.0, scale if scale >= 1.0 else -scale, math.prod(grid)

    return min(_grids(most), key=order)


def tower_of(data: Mapping[str, Any]) -> VisionTower | None:
    """The tower that a config.json describes; None for one without a `vision_config`, or with one whose sizes nobody
    can read: its language model is forecast all the same."""
    try:
        return _tower(data)
    except _Unread:
        return None


class _Unread(Exception):
    """A size of a `vision_config` that is missing or impossible."""


def _tower(data: Mapping[str, Any]) -> VisionTower | None:
    inner = data.get("thinker_config")  # of a model that speaks, too
    if isinstance(inner, Mapping) and "vision_config" not in data:
        data = {"model_type": data.get("model_type"), **inner}
    said = data.get("vision_config")
    if not isinstance(said, Mapping):
        return None
    texts = (data.get(key) for key in ("text_config", "llm_config", "language_config"))
    text = next((each for each in texts if isinstance(each, Mapping)), data)
    kind = str(data.get("model_type", ""))
    qwen = kind.startswith("qwen")
    sizes = {name: _size(said, keys) for name, keys in _SIZES.items()}
    hidden, patch = sizes["hidden"], _size(said, ("patch_size",))
    wide = next((int(said[key]) for key in _WIDTHS if isinstance(said.get(key), int)), 0)
    ratio = said.get("mlp_ratio")
    wide = wide or round(hidden * (ratio if isinstance(ratio, int | float) else 4.0))
    out = _whole(said, "text_hidden_size") or _whole(said, "out_hidden_size") or _whole(text, "hidden_size")
    out = out or _whole(said, "hidden_size")  # Qwen2-VL calls its own width embed_dim
    merge = _merge(data, said)
    gated = said.get("hidden_act") in ("silu", "swish") or said.get("model_type") == "pixtral"
    tower = VisionTower(
        kind, sizes["layers"], hidden, sizes["heads"], wide, patch, out,
        _whole(said, "in_channels") or _whole(said, "num_channels") or 3, merge, gated=gated,
        frames=_whole(said, "temporal_patch_size") or 1,
        positions=_whole(said, "num_position_embeddings"),
        inner=hidden * merge**2 if qwen or "merge_kernel_size" in said else out,
    )  # fmt: skip
    if hidden % tower.heads or not out:
        raise _Unread
    stacked, whole = said.get("deepstack_visual_indexes"), said.get("fullatt_block_indexes")
    if isinstance(stacked, list):
        tower = replace(tower, mergers=1 + len(stacked))
    if isinstance(whole, list) and _whole(said, "window_size"):  # Qwen2.5-VL: pixels of a side
        kept = tuple(i for i in whole if isinstance(i, int))
        tower = replace(tower, window=(_whole(said, "window_size") // patch) ** 2, whole=kept)
    return _of_kind(tower, data, said)


def _merge(data: Mapping[str, Any], said: Mapping[str, Any]) -> int:
    """Patches of a side that become one token."""
    kernel = said.get("merge_kernel_size")
    side = kernel[0] if isinstance(kernel, list) and kernel else said.get("spatial_merge_size")
    side = side or data.get("spatial_merge_size") or said.get("pooling_kernel_size")
    ratio = said.get("pixel_shuffle_ratio") or data.get("downsample_ratio")  # of a side
    if not side and isinstance(ratio, float) and ratio > 0.0:
        side = round(1.0 / ratio)
    return side if isinstance(side, int) and side > 0 else 1


def _of_kind(tower: VisionTower, data: Mapping[str, Any], said: Mapping[str, Any]) -> VisionTower:
    """``tower`` with the rule of its type's processor (transformers 5, image_processing_TYPE.py, as recalled)."""
    kind, image = tower.kind, said.get("image_size")
    side = _whole({"side": image[0] if isinstance(image, list) and image else image}, "side")
    pooled = _whole(data, "mm_tokens_per_image") or _whole(data, "vision_soft_tokens_per_image")
    if pooled:  # Gemma: every image is brought to one size, its patches are averaged
        merge = max(1, round((side / tower.patch) / math.sqrt(pooled))) if side else tower.merge
        return replace(tower, pooled=pooled, merge=merge, rotary=not side, inner=0, mergers=1)
    if kind == "llama4":
        tiles = _whole(said, "max_patches") or 16
        inner = _whole(said, "projector_output_dim") or tower.out
        return replace(tower, side=side, tiles=tiles, fits=True, extra=1, inner=inner)
    if kind.startswith("internvl") or "downsample_ratio" in data:
        tiles = _whole(data, "max_dynamic_patch") or 12
        return replace(tower, side=side, tiles=tiles, extra=1, rotary=False, merge=max(tower.merge, 2))
    if kind.startswith("qwen"):
        token = (tower.patch * tower.merge) ** 2
        return replace(tower, pixels=(_TOKENS[0] * token, _TOKENS[1] * token))
    if (kind in ("mistral3", "llava") and said.get("model_type") == "pixtral") or kind == "pixtral":
        return replace(tower, longest=side, breaks=True)
    if side and "num_position_embeddings" not in said and tower.merge == 1:  # CLIP and SigLIP: one size
        return replace(tower, side=side, rotary=False, extra=int("clip" in str(said.get("model_type"))))
    return tower


def _size(said: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    value = next((said[key] for key in keys if said.get(key) is not None), None)
    value = value[0] if isinstance(value, list) and value else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST:
        raise _Unread
    return value


def _whole(said: Mapping[str, Any], key: str) -> int:
    value = said.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def build(config: ModelConfig, step: Step) -> Graph:
    """The pass of a tower over ``step.batch`` sequences of ``step.seq_len`` patches."""
    from predictor.models.built.stack import decoder_layer
    from predictor.models.built.writer import Writer

    tower = config.tower
    assert tower is not None
    w = Writer(config, step)
    deep = tower.channels * tower.frames * tower.patch**2
    pixels = Tensor("pixels", (*w.axes, "pixel"), (*w.shape, deep), w.act)
    x = w.linear("embedding", "patch embedding", pixels, tower.hidden, "hidden", True)
    x = w.each("patch position sum", "add", x, w.hidden("patch positions"))
    blocks: list[Block] = [w.block("patches")]
    cut = tower.window if 0 < tower.window < step.seq_len else 0
    groups = [(tuple(i for i in range(tower.layers) if not cut or i in tower.whole), step)]
    if cut:
        apart = replace(step, batch=step.batch * math.ceil(step.seq_len / cut), seq_len=cut)
        groups.append((tuple(i for i in range(tower.layers) if i not in tower.whole), apart))
    for layers, on in groups:
        if not layers:
            continue
        of_layer = Writer(config, on)
        before = x if on is step else of_layer.hidden("windows")
        after = decoder_layer(of_layer, before, False, 0)
        blocks.append(
            of_layer.block("tower layer window" if on is not step else "tower layer", len(layers), (before, after))
        )
        x = after if on is step else x
    tokens = max(1, step.batch * step.seq_len // tower.merge**2)
    w.axes, w.shape = ("tokens",), (tokens,)
    for _ in range(tower.mergers):
        y = w.norm("merger norm", x)
        if tower.pooled:
            y = w.each("pooling", "add", y, out=Tensor("pooled", ("tokens", "merged"), (tokens, tower.merged), w.act))
        else:
            y = y.view(("tokens", "merged"), (tokens, tower.merged))
        if tower.inner:
            y = w.linear("embedding", "merger in", y, tower.inner, "merger", True)
            y = w.activation("merger activation", y)
        y = w.linear("embedding", "merger out", y, tower.out, "hidden", True)
    blocks.append(w.block("merger"))
    return Graph(tuple(blocks))
