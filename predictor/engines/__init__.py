"""Engines, a folder each, and the libraries whose kernels they run, a file each in `kernel_libraries`.

An engine's `engine.py` has ``ENGINES`` or ``LIBRARIES``; beside it stand its releases, scheduler, kernels and
launcher. `engine("vllm")` gives an engine by its name, `library("vllm")` a library of kernels by the name that
measured tables have for it; `names()` and `libraries()` list them, `register` adds one of your own.
"""

from predictor.engines.base import (
    CALLS,
    CAPTURED,
    DECODE,
    GREEDY,
    HOSTS,
    LAUNCHES,
    PENALTIES,
    PIECES,
    PREFILL,
    SAMPLINGS,
    Engine,
)
from predictor.engines.library import Library
from predictor.engines.pytorch.engine import EAGER
from predictor.engines.registry import (
    USUAL_SERVER,
    answering,
    check_board,
    engine,
    libraries,
    library,
    measured,
    names,
    register,
    taken_elsewhere,
)
from predictor.engines.software import running, version_asked

__all__ = [
    "CALLS", "CAPTURED", "DECODE", "EAGER", "GREEDY", "HOSTS", "LAUNCHES", "PENALTIES", "PIECES", "PREFILL",
    "SAMPLINGS", "USUAL_SERVER", "Engine", "Library", "answering", "check_board", "engine", "libraries", "library",
    "measured", "names", "register", "running", "taken_elsewhere", "version_asked",
]  # fmt: skip
