"""The engines that there are: those of this folder, and those that somebody registered."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from pathlib import Path

from predictor.engines.base import Engine
from predictor.errors import RequestError, UnsupportedError, nearest
from predictor.hardware.gpu import GPUSpec

#: Modules of this folder that hold no engine.
_OTHERS = ("base", "memory", "registry")
#: Words that suites use and that are not built yet.
_LATER = ("megatron",)
_registered: dict[str, Engine] = {}


@lru_cache(maxsize=1)
def _built_in() -> dict[str, Engine]:
    found: dict[str, Engine] = {}
    modules = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    for name in sorted(modules, key=lambda name: (name != "pytorch", name)):  # PyTorch's own first
        if name not in _OTHERS:
            engines = importlib.import_module(f"{__package__}.{name}").ENGINES
            found |= {each.name: each for each in engines}
    return found


def names() -> tuple[str, ...]:
    """Words of ``--execution``."""
    return (*_built_in(), *_registered)


def engine(name: str) -> Engine:
    """The engine called ``name``. RequestError, one line with the nearest name, where there is none, UnsupportedError
    where it is not built yet."""
    if name in _LATER:
        raise UnsupportedError(f"--execution {name}: not built yet; expected one of {', '.join(names())}")
    found = _built_in().get(name) or _registered.get(name) if isinstance(name, str) else None
    if found is None:
        close = nearest(name, names()) if isinstance(name, str) else ()
        tail = f"; nearest: {close[0]}" if close else ""
        raise RequestError(f"--execution {name!r}: expected one of {', '.join(names())}{tail}")
    return found


def taken_elsewhere(library: str, gpu: GPUSpec) -> bool:
    """Whether engines that run ``library``'s kernels run another one's decode attention on ``gpu``."""
    capability = gpu.compute_capability or ""
    return any(capability in engine(name).decode_attention_of for name in names() if engine(name).kernels == library)


def register(added: Engine) -> None:
    """Adds an engine from outside the package. ValueError where its name is taken."""
    if added.name in names():
        raise ValueError(f"an engine called {added.name!r} exists")
    _registered[added.name] = added
