"""Files of a suite of modules, as KernelBench has them: `class Model`, `get_init_inputs()` and `get_inputs()`.

Such modules are timed as they are made: in training mode, without gradients, so that batch norms take the batch's
statistics. PyTorch multiplies fp32 matrices in fp32 and convolves in TF32 from Ampere on
(torch.backends.cudnn.allow_tf32 is True by default: docs/source/notes/cuda.rst).
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from copy import copy
from pathlib import Path
from typing import Any

from predictor.errors import RequestError, one_line
from predictor.files.records import replace
from predictor.graph.recording import Recording
from predictor.models.step import Step
from predictor.models.traced.model import TracedModel
from predictor.models.traced.sources import Module, need_torch
from predictor.ops.convolution import Convolution
from predictor.ops.recurrent import Recurrence

_NEEDED = ("Model", "get_init_inputs", "get_inputs")


def module_files(folder: Path) -> list[Path]:
    """Python files of a folder and of those in it, sorted, but for those that begin with a dot or an underscore.

    RequestError, one line, where it is no folder or has none."""
    if not folder.is_dir():
        raise RequestError(f"{folder}: no such folder; expected one of Python files with class Model")
    files = [path.relative_to(folder) for path in folder.rglob("*.py") if path.is_file()]
    files = [path for path in files if not any(part.startswith((".", "_")) for part in path.parts)]
    if not files:
        raise RequestError(f"{folder}: no Python file; expected files with class Model, get_init_inputs and get_inputs")
    return [folder / path for path in sorted(files)]


def model_of_file(path: Path) -> TracedModel:
    """The traced model of a file, whose code is run; what it prints goes to stderr. RequestError, one line, where the
    file fails or lacks a name."""
    torch = need_torch()

    class InTraining(torch.nn.Module):  # type: ignore[misc, name-defined]
        """A module that stays in training mode."""

        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

        def train(self, mode: bool = True) -> Any:
            return super().train(True)

        def forward(self, *args: Any) -> Any:
            return self.module(*args)

    def build() -> Any:
        code = _run(path)
        return InTraining(code.Model(*code.get_init_inputs())), list(code.get_inputs())

    try:
        with contextlib.redirect_stdout(sys.stderr):
            return TracedModel(path.stem, Module(path.stem, build))
    except SystemExit as error:
        raise RequestError(f"{path.name}: its code ends Python (exit {error.code})") from None


def with_tf32_convolutions(model: TracedModel) -> TracedModel:
    """``model``, whose convolutions and recurrent layers in fp32 run on tensor cores, as cuDNN's switch has both."""
    source: Any = copy(model.source)
    source.record = _Recorded(model.source)
    return TracedModel(model.name, source)


class _Recorded:
    """What a source records, its convolutions in TF32."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __call__(self, step: Step, accumulate: bool | None, tp: int = 1) -> Recording:
        whole: Recording = self._source.record(step, accumulate, tp)
        blocks = []
        for block in whole.graph.blocks:
            nodes = [
                replace(node, op=replace(node.op, dtype="tf32"))
                if isinstance(node.op, Convolution | Recurrence) and node.op.dtype == "fp32" else node
                for node in block.nodes
            ]  # fmt: skip
            blocks.append(replace(block, nodes=tuple(nodes)))
        return replace(whole, graph=replace(whole.graph, blocks=tuple(blocks)))


def _run(path: Path) -> Any:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(f"tilecast_module_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise RequestError(f"{path}: no such module; expected a Python file")
    code = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(code)
    except Exception as error:
        said = one_line(f"{type(error).__name__}: {error}")[:300]
        raise RequestError(f"{path.name} cannot be imported: {said}") from None
    missing = [name for name in _NEEDED if not callable(getattr(code, name, None))]
    if missing:
        raise RequestError(f"{path.name} has no {missing[0]}; expected class Model, get_init_inputs and get_inputs")
    return code
