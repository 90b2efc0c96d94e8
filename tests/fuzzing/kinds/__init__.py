"""The kinds of input that are fuzzed, a module each.

A module has ``cases()``, the strategy of its `Case`s, and ``ask(case)``, its target for `judge`; and where they differ
from nothing, ``NEEDS`` (modules without which there is nothing to ask), ``LOADS`` (modules that are loaded before the
first case, where they are installed: how long a library takes to load is not the input's fault) and ``BLIND`` (the
case's own files must not be read).
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

NAMES = (
    "archives", "artifacts", "command_lines", "configs", "degrees", "gpus", "graphs", "onnx_models", "page",
    "pipelines", "rows", "suites", "sweeps", "systems", "tables", "traces",
)  # fmt: skip


def kind(name: str) -> ModuleType:
    """The module of a kind."""
    return importlib.import_module(f"tests.fuzzing.kinds.{name}")


def load(name: str) -> None:
    """Loads what the cases of a kind may load."""
    for module in (*getattr(kind(name), "LOADS", ()), *getattr(kind(name), "NEEDS", ())):
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            importlib.import_module(module)


def missing(name: str) -> str:
    """The module that a kind needs and that is not installed; "" where all is there."""
    needed: tuple[str, ...] = getattr(kind(name), "NEEDS", ())
    return next((module for module in needed if importlib.util.find_spec(module) is None), "")
