"""Libraries that only training and data need, imported where they are used and named when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from predictor.errors import TilecastError

# import name -> the extra of this package that installs it
_EXTRAS = {"torch": "torch", "transformers": "torch", "ray": "ray"}


def require(module: str) -> Any:
    """The imported `module`. Raises TilecastError with the pip command that brings it, where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not module.startswith(error.name):
            raise
        extra = _EXTRAS.get(module.split(".")[0], "train")
        raise TilecastError(f'this needs {module}, which is not installed: pip install "tilecast[{extra}]"') from None
