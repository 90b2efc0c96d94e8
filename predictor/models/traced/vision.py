"""The part of a vision and language model that images pass: its tower and what brings them into the text's width.

What runs is `get_image_features` of the class in transformers, on images as they come: patches, their grid and places
follow from an image's size, as its processor works them out on the host. The language model is left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from predictor.errors import RequestError, UnsupportedError
from predictor.files.read import read_json
from predictor.models.built.load import config_file, model_name
from predictor.models.forms import VISION
from predictor.models.traced.huggingface import made
from predictor.models.traced.inputs import inputs_of
from predictor.models.traced.model import TracedModel
from predictor.models.traced.sources import Module, need_torch

#: How an input is called that a person does not name; by definition of transformers' processors.
_PIXELS = "pixel_values"


def of_tower(text: str, words: str | Sequence[str] | None) -> TracedModel:
    """The tower of "vision:NAME" over images (images, channels, height, width). RequestError where it has none."""
    path, _, _ = config_file(text.removeprefix(VISION))
    data, name, where = read_json(path), model_name(path), str(path)
    if not isinstance(data.get("vision_config"), Mapping):
        raise UnsupportedError(f"{where}: no 'vision_config'; expected the config of a model that sees images")
    asked = inputs_of(words)
    if len(asked) != 1 or len(asked[0].shape) != 4 or asked[0].name not in ("", _PIXELS):
        raise RequestError(
            f"{VISION}{name}: expected --input {_PIXELS}:float[images,channels,height,width], such as"
            f" {_PIXELS}:float[4,3,1024,1024]"
        )
    title = f"{name}-vision"
    source = Module(title, lambda: _tower(data, where), asked, made_of=([dict(data), "vision"], ("transformers",)))
    return TracedModel(title, source, str(data["model_type"]))


def _tower(data: Mapping[str, Any], where: str) -> Any:
    """A module whose forward is `get_image_features` of the class of a config."""
    torch = need_torch()
    whole = made(data, "sdpa", where)
    seeing = getattr(whole, whole.base_model_prefix, whole)
    if not callable(getattr(seeing, "get_image_features", None)):
        raise UnsupportedError(f"{where}: {type(seeing).__name__} of transformers has no get_image_features")
    if getattr(seeing, "language_model", None) is not None:
        seeing.language_model = torch.nn.Identity()
    by_grid = "image_grid_thw" in inspect.signature(seeing.get_image_features).parameters

    class Tower(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = seeing

        def forward(self, pixel_values: Any) -> Any:
            if not by_grid:
                return self.model.get_image_features(pixel_values)
            return self.model.get_image_features(*_patches(torch, pixel_values, seeing.config.vision_config))

    return Tower()


def _patches(torch: Any, images: Any, vision: Any) -> tuple[Any, Any]:
    """What a processor makes of images: (patches, numbers of a patch), and the grid (frames, rows, columns) of each."""
    count, channels, height, width = images.shape
    patch, frames = vision.patch_size, getattr(vision, "temporal_patch_size", 1)
    side = patch * getattr(vision, "spatial_merge_size", 1)
    for size in (height, width):
        if size % side:
            raise RequestError(
                f"images of {height} x {width}: expected sides that are multiples of {side};"
                f" nearest: {max(1, round(size / side)) * side}"
            )
    rows, columns = height // patch, width // patch
    grid = torch.tensor([[1, rows, columns]] * count)
    return images.new_empty((count * rows * columns, channels * frames * patch * patch)), grid
