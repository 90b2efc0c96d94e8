"""torchvision without its compiled operators: its wheel does not load beside every build of torch, and transformers and
timm import it wherever it is installed. Two operators that it names when it is imported are enough."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

_NAMED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


@lru_cache(maxsize=1)
def ready() -> Any:
    """Names what torchvision misses where its library does not load; None where nothing is missing."""
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or hasattr(torch.ops.torchvision, "nms"):
        return None
    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))
            return None
        except (OSError, RuntimeError):
            continue
    made = torch.library.Library("torchvision", "FRAGMENT")
    for words in _NAMED:
        made.define(words)
    return made  # kept: an operator goes with its library
