"""The engines and libraries of kernels that there are: those of the folders here, and those that somebody
registered."""

from __future__ import annotations

import importlib
from functools import lru_cache
from pathlib import Path

from predictor.engines.base import Engine
from predictor.engines.library import Library
from predictor.engines.pytorch.engine import EAGER, ENGINES, LIBRARIES, PYTORCH
from predictor.engines.releases import is_version
from predictor.errors import RequestError, UnsupportedError, nearest
from predictor.hardware.gpu import GPUSpec

#: What serves where nobody says: chosen by hand, not from data.
USUAL_SERVER = "vllm"
#: PyTorch's: a question for them loads no other folder.
_ENGINES = {each.name: each for each in ENGINES}
_LIBRARIES = {each.name: each for each in LIBRARIES}
_registered: dict[str, Engine] = {}
_libraries: dict[str, Library] = {}


@lru_cache(maxsize=1)
def _built_in() -> tuple[dict[str, Engine], dict[str, Library]]:
    engines: dict[str, Engine] = {}
    libraries: dict[str, Library] = {}
    folder = Path(__file__).parent
    modules = {
        name: f"{__package__}.{name}.engine" for name in _names_in(folder) if (folder / name / "engine.py").is_file()
    }
    modules |= {name: f"{__package__}.kernel_libraries.{name}" for name in _names_in(folder / "kernel_libraries")}
    for name in sorted(modules, key=lambda name: (name != "pytorch", name)):  # PyTorch's own first
        module = importlib.import_module(modules[name])
        engines |= {each.name: each for each in getattr(module, "ENGINES", ())}
        libraries |= {each.name: each for each in getattr(module, "LIBRARIES", ())}
    return engines, libraries


@lru_cache(maxsize=64)
def _near(name: str) -> Library | None:
    """The library called ``name`` of PyTorch, or of the engine's folder that has its name, which alone is loaded; None
    where it is elsewhere, or there is none."""
    known = _LIBRARIES
    if name not in known and name.isidentifier() and (Path(__file__).parent / name / "engine.py").is_file():
        module = importlib.import_module(f"{__package__}.{name}.engine")
        known = {each.name: each for each in getattr(module, "LIBRARIES", ())}
    return known.get(name)


def _names_in(folder: Path) -> list[str]:
    modules = (path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file())
    return sorted(path.stem for path in modules if path.stem != "__init__")


def names() -> tuple[str, ...]:
    """Words of ``--execution``."""
    return (*_built_in()[0], *_registered)


def engine(name: str) -> Engine:
    """The engine called ``name``, in any case and by what its software is called where that is one engine's ("trtllm").

    RequestError, one line with the nearest name, where there is none.
    """
    engine_of_name = None
    if isinstance(name, str):
        engine_of_name = _ENGINES.get(name) or _built_in()[0].get(name) or _registered.get(name) or _spelled(name)
    if engine_of_name is None:
        close = nearest(name, names()) if isinstance(name, str) else ()
        tail = f"; nearest: {close[0]}" if close else ""
        raise RequestError(f"--execution {name!r}: expected one of {', '.join(names())}{tail}")
    return engine_of_name


def _spelled(name: str) -> Engine | None:
    word = name.strip().lower().replace("-", "_")
    every = [*_built_in()[0].values(), *_registered.values()]
    called = [each for each in every if word in (each.name, *(spelling.replace("-", "_") for spelling in each.called))]
    return called[0] if len(called) == 1 else None


def check_board(asked: Engine, gpu: GPUSpec, version: str = "") -> None:
    """UnsupportedError, one line with the engines that do, where ``version`` of ``asked`` does not run on ``gpu``."""
    reason = asked.refuses(gpu, version)
    if not reason:
        return
    alike = [
        each.name
        for each in map(engine, names())
        if (each.serves, each.trains) == (asked.serves, asked.trains)
        and each.name != asked.name
        and not each.refuses(gpu)
    ]
    tail = f"; on {gpu.id} run {', '.join(alike)}" if alike else f"; on {gpu.id} runs {EAGER.name}"
    raise UnsupportedError(f"--execution {asked.name}: does not run on {gpu.id}; expected {reason}{tail}")


def taken_elsewhere(library: str, gpu: GPUSpec) -> bool:
    """Whether engines that run ``library``'s kernels run another one's decode attention on ``gpu``."""
    capability = gpu.compute_capability or ""
    return any(capability in engine(name).decode_attention_of for name in names() if engine(name).kernels == library)


def libraries() -> tuple[str, ...]:
    """Names of the libraries of kernels that are described, as tables and engines (`Engine.kernels`) say them."""
    return (*_built_in()[1], *_libraries)


def library(name: str) -> Library:
    """The library called ``name``, in a release of it where one is named behind ("sglang 0.5.9"); PyTorch's kernels for
    a name that rows use and that is described nowhere."""
    library_of_name = _near(name) or _built_in()[1].get(name) or _libraries.get(name)
    if library_of_name is None and is_version(version := name.rpartition(" ")[2]):
        return library(name.rpartition(" ")[0]).as_of(version)
    return library_of_name or PYTORCH


def measured() -> tuple[Library, ...]:
    """The libraries that estimators were trained on, in the order in which they answer for others (`Library.turn`)."""
    known = (library(name) for name in libraries())
    return tuple(sorted((each for each in known if each.code >= 0), key=lambda each: each.turn))


def answering(name: str) -> Library:
    """The measured library whose constants and trees answer for the kernels of ``name``."""
    asked = library(name)
    if asked.code >= 0:
        return asked
    return library(asked.runs) if asked.runs else measured()[0]


def register(added: Engine | Library) -> None:
    """Adds an engine, or a library of kernels, from outside the package.

    ValueError where its name is taken, or it runs kernels of a library that is described nowhere.
    """
    if isinstance(added, Library):
        _check(added.name, libraries(), "a library", added.runs)
        _libraries[added.name] = added
    else:
        _check(added.name, names(), "an engine", added.kernels)
        _registered[added.name] = added


def _check(name: str, taken: tuple[str, ...], kind: str, runs: str) -> None:
    if name in taken:
        raise ValueError(f"{kind} called {name!r} exists")
    if runs and runs not in libraries():
        raise ValueError(f"{name!r} runs kernels of {runs!r}: expected one of {', '.join(libraries())}")


#: Tokens to all GPUs, sums back, which needs no library of its own and is vLLM's default (config/parallel.py:152 of
#: 0.14.1, `allgather_reducescatter`).
ALL_GATHER = "allgather"


def sends_rows(exchange: str) -> bool:
    """Whether ``exchange`` is a library of kernels for experts (`Library.exchanges`)."""
    return exchange not in ("", ALL_GATHER) and library(exchange).exchanges is not None


def exchanges() -> tuple[str, ...]:
    """The ways: an all_gather, or the all_to_all of a library (`Library.sends_tokens`)."""
    return (ALL_GATHER, *(name for name in libraries() if library(name).sends_tokens))


def copying() -> str:
    """The library whose all_to_all of copies brings tokens to experts where nobody asks for kernels that do."""
    return next(name for name in exchanges()[1:] if library(name).exchanges is None)
