"""Libraries of serving kernels, a file each: vLLM, sgl_kernel, FlashInfer, DeepGEMM, FlashMLA, FlashAttention, Marlin.

A file names its library, the release that its calls were written against, and its kernels; torch and the library
itself are imported when a kernel is prepared. Where a library is not installed its cases are left out, with one reason.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from microbench.libraries.base import BenchLibrary, Kernel
from predictor.errors import unknown_name

#: Modules of this package that hold a `LIBRARY`.
FILES = ("vllm", "sgl_kernel", "flashinfer", "deep_gemm", "flash_mla", "flash_attn", "marlin")


@functools.cache
def libraries() -> dict[str, BenchLibrary]:
    """Name -> library, all that there is a file for."""
    loaded = (importlib.import_module(f"{__name__}.{name}").LIBRARY for name in FILES)
    return {library.name: library for library in loaded}


def installed() -> dict[str, str]:
    """Name -> version of those that this Python can import; nothing is imported."""
    versions = {name: library.version() for name, library in libraries().items()}
    return {name: version for name, version in versions.items() if version}


@functools.cache
def find(name: str) -> tuple[BenchLibrary, Kernel]:
    """The kernel that the option ``kernel`` of a case names, "vllm.fa3". Raises UnknownNameError."""
    every = {f"{library.name}.{kernel}": library for library in libraries().values() for kernel in library.kernels}
    if name not in every:
        raise unknown_name("kernel", name, every)
    return every[name], every[name].kernels[name.partition(".")[2]]


def build(case: Any) -> tuple[Any, ...] | None:
    """What the first call of a serving case has to compile, as a key; None where nothing is."""
    if case.launcher != "serving":
        return None
    name = str(case.option("kernel"))
    library, _ = find(name)
    return None if library.built_by is None else (name, case.op.dtype, *library.built_by(case.op))


def refusal(name: str, there: frozenset[str], capability: tuple[int, int]) -> str:
    """Why a kernel cannot run on a board of ``capability`` with the libraries ``there``; "" where it can."""
    library, kernel = find(name)
    if library.name not in there:
        return f"{library.name} is not installed: {library.install}"
    if not kernel.since <= capability < kernel.before:
        return f"{name} is not for compute capability {capability[0]}.{capability[1]}"
    return ""
