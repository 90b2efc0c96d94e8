"""Engines: how a model is run, a file an engine. Every module of this folder that has ``ENGINES`` is one.

`engine("vllm")` gives one by its name, `names()` lists them, `register` adds one of your own.
"""

from predictor.engines.base import CALLS, CAPTURED, DECODE, HOSTS, LAUNCHES, PREFILL, Engine
from predictor.engines.pytorch import EAGER
from predictor.engines.registry import engine, names, register, taken_elsewhere

__all__ = [
    "CALLS", "CAPTURED", "DECODE", "EAGER", "HOSTS", "LAUNCHES", "PREFILL", "Engine", "engine", "names", "register",
    "taken_elsewhere",
]  # fmt: skip
