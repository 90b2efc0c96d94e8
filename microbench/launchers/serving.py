"""Kernels of serving libraries, where they are installed (`microbench.libraries`): the option ``kernel`` names one.

Before a kernel is timed its result is held against a reference of PyTorch's, on a small shape of the same form: a call
with a wrong layout or scale is fast, and worth nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from microbench import libraries
from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from microbench.libraries.base import BenchLibrary, Kernel, LibraryCall

#: Sizes that a check takes at most; windows, groups of heads, blocks of scales stay. Chosen by hand, not from data: a
#: reference of a processor's second.
_SMALL = {
    "batch": 2, "q_len": 48, "kv_len": 160, "m": 128, "n": 256, "k": 512, "rows": 8, "cols": 4096, "tokens": 16,
    "experts": 8, "intermediate": 256, "hidden": 256, "vocab": 4096, "window": 8,
}  # fmt: skip


def prepare(case: Case, device: BenchDevice) -> Prepared:
    library, kernel = libraries.find(str(case.option("kernel")))
    call = _made(library, kernel, case.op, device)
    small = smaller(case.op)

    def check() -> float:
        got, want = (call if small == case.op else _made(library, kernel, small, device)).pair()
        return relative_error(got, want)

    columns = library.columns(kernel)
    return Prepared(call.launch, check, kernel_source=columns.pop("kernel_source"), extra=columns, form=form(case.op),
                    held=call.held)  # fmt: skip


def form(op: Any) -> tuple[object, ...]:
    """What of a shape decides how its kernel is called: prefill, paged, decode, windows, residuals, latent caches."""
    q, kv = getattr(op, "q_len", 0), getattr(op, "kv_len", 0)
    return (q == 1, q == kv, *(bool(getattr(op, name, 0)) for name in ("window", "residual", "latent")))


def smaller(op: Any) -> Any:
    """``op`` at a size that a reference can be worked out for; of the same form."""
    cut = {name: min(getattr(op, name), most) for name, most in _SMALL.items() if getattr(op, name, 0) > 0}
    if "q_len" in cut and op.q_len == op.kv_len:
        cut["q_len"] = cut["kv_len"]
    if "top_k" in type(op).__slots__ and "experts" in cut:
        cut["top_k"] = min(op.top_k, cut["experts"])
    return replace(op, **cut)


def _made(library: BenchLibrary, kernel: Kernel, op: Any, device: BenchDevice) -> LibraryCall:
    """The call, run once. What the installed release does not take is the case's fault, in one line."""
    try:
        call = kernel.make(op, device)
        call.launch()
    except (ImportError, AttributeError, TypeError, AssertionError, NotImplementedError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise IllegalCase(
            f"{library.name} {library.version()} (written for {library.read}): {type(error).__name__}: {text[:300]}"
        ) from error
    return call
