"""What a file of `microbench.libraries` says of its library and of each kernel. No torch here."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class LibraryCall:
    """``launch`` is what is timed; ``pair`` runs it anew and returns (what it gave, what it has to give). ``held``:
    weights or a cache, arguments of ``launch`` that stand for themselves: a rotation gives copies of them."""

    launch: Callable[..., object]
    pair: Callable[[], tuple[Any, Any]]
    held: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: ``make(op, device)`` gives its `LibraryCall`.

    ``source``: its name in rows, that of AIConfigurator's tables where they have it, by engine where that differs.
    Compute capabilities from ``since`` up to, not including, ``before``. ``capture`` False: it cannot be in a graph.
    """

    make: Callable[[Any, Any], LibraryCall]
    source: str | Mapping[str, str]
    since: tuple[int, int] = (8, 0)  # by definition: bf16 begins there
    before: tuple[int, int] = (99, 0)  # by definition: later than any there is


@dataclass(frozen=True, slots=True)
class BenchLibrary:
    """One library.

    ``modules``: what it may be imported as, the first that is found counts. ``engines``: whose kernels its rows are, as
    measured tables name frameworks, the likeliest first. ``read``: the release whose sources the calls were read from;
    ``recalled``: what could not be read there. ``built_by``: of a library that compiles at a call, what of an operator
    another build is for. ``packages``: its distributions, for its version.
    """

    name: str
    modules: tuple[str, ...]
    engines: tuple[str, ...]
    packages: tuple[str, ...]
    install: str
    read: str
    recalled: str = ""
    built_by: Callable[[Any], tuple[Any, ...]] | None = None
    kernels: Mapping[str, Kernel] = field(default_factory=dict)

    def module(self) -> str:
        """The module that is there, "" for none."""
        for name in self.modules:
            try:
                if importlib.util.find_spec(name) is not None:
                    return name
            except (ImportError, ValueError):  # a package above it is absent
                continue
        return ""

    def load(self, part: str = "") -> Any:
        """The library's module, or ``part`` of it. Raises ImportError."""
        name = self.module()
        return importlib.import_module(f"{name}.{part}" if part else name)

    def version(self) -> str:
        """Its version without importing it; "" where it is not installed."""
        if not self.module():
            return ""
        return _version(self.packages) or "unknown"

    def columns(self, kernel: Kernel) -> dict[str, str]:
        """Whose kernel a row is: the engine that is installed here, else the likeliest, then with this version."""
        versions = {engine: _version((engine,)) for engine in self.engines}
        there = [engine for engine, version in versions.items() if version]
        engine = there[0] if there else self.engines[0]
        source = kernel.source if isinstance(kernel.source, str) else kernel.source[engine]
        library = f"{self.name} {self.version()}"
        return {
            "framework": engine, "framework_version": versions[engine] if there else library, "kernel_source": source,
            "library": library,
        }  # fmt: skip


def _version(packages: tuple[str, ...]) -> str:
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""
