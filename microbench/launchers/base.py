"""What a launcher makes: the call to time, and a check of what it computes.

Set-up is apart from the launch: `prepare(case, device)` of a launcher module allocates and fills everything, and what
it returns as `launch` holds the call alone.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from microbench.capability import copies, held_bytes
from microbench.devices.base import BenchDevice, Launch
from predictor.ops import Op

#: Largest error, over the largest value of the reference, that a result of a dtype may have. A product of k terms in
#: fp32 is off by about sqrt(k) 2^-24; 16-bit results are rounded once to 2^-11 or 2^-8 and their sums are fp32. Results
#: of 8-bit products are written in bf16; those of 4 bits are held against operands of 16. Backward passes round more
#: than once. A few times these bounds, chosen by hand, not from data.
TOLERANCE: dict[str, float] = {
    "fp64": 1e-9, "fp32": 1e-4, "tf32": 1e-2, "fp16": 1e-2, "bf16": 4e-2, "fp8": 6e-2, "int8": 1e-6, "int32": 0.0,
    "int64": 0.0, "bool": 0.0, "nvfp4": 2.5e-1,
}  # fmt: skip


class IllegalCase(Exception):
    """The case cannot run on this device with this software; the text is the reason in failures.jsonl."""


@dataclass(slots=True)
class Prepared:
    """`launch` is what is timed. `check` returns the largest relative error of its result, None where it cannot.

    `kernel_source` names the code path (eager, sdpa_flash, triton, ...), `flag` why the row is kept apart. Of
    a launcher that calls one kernel in several ways ``form`` tells them apart: each is checked.
    ``held``: weights or a cache, the arguments of ``launch`` that stand for themselves, of which a rotation has copies.
    """

    launch: Callable[..., object]
    check: Callable[[], float | None] | None = None
    kernel_source: str = "eager"
    flag: str = ""
    extra: Mapping[str, Any] | None = None
    form: tuple[object, ...] = ()
    held: tuple[torch.Tensor, ...] = ()

    def rotation(self, op: Op, cache_bytes: float) -> Rotation:
        """The call of ``op`` over copies of what is held, as a pass of a model finds its weights. Raises IllegalCase
        where it holds nothing."""
        read = held_bytes(op)
        if not self.held or not read:
            raise IllegalCase("nothing to rotate: the call has no weights and no cache of its own")
        count = copies(read, cache_bytes)
        others = [tuple(x.clone() for x in self.held) for _ in range(count - 1)]
        return Rotation([self.launch, *(functools.partial(self.launch, *other) for other in others)])


class Rotation:
    """Calls that take turns, one a call: each copy is read again after more than twice the L2 cache of others was."""

    def __init__(self, calls: Sequence[Launch]) -> None:
        self.calls, self._at = calls, 0

    def __call__(self) -> object:
        call = self.calls[self._at]
        self._at = (self._at + 1) % len(self.calls)
        return call()


@functools.lru_cache(maxsize=64)
def compiled(function: Callable[..., torch.Tensor], sizes: tuple[int, ...]) -> Callable[..., torch.Tensor]:
    """``function`` through torch.compile, for operands of ``sizes`` alone: sizes that are constants of the kernel, as a
    model's are. Every size is a copy of its own, so that no call looks through the guards of the others."""
    copied = types.FunctionType(
        function.__code__.replace(co_name=f"{function.__name__}_{'_'.join(map(str, sizes))}"), function.__globals__
    )
    copied.__kwdefaults__, copied.__defaults__ = function.__kwdefaults__, function.__defaults__
    return torch.compile(copied, dynamic=False)


def allow_tf32(allowed: bool, device: BenchDevice) -> None:
    """fp32 products on the CUDA cores, or on the tensor cores in TF32 where the case says so."""
    if device.kind == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """max |result - reference| / max |reference|, in float64; infinite where the result is not finite."""
    got = result.detach().double().cpu()
    want = reference.detach().double().cpu()
    if got.shape != want.shape:
        return float("inf")
    if not bool(torch.isfinite(got).all()):
        return float("inf") if bool(torch.isfinite(want).all()) else 0.0
    if got.numel() == 0:
        return 0.0
    scale = float(want.abs().max())
    return float((got - want).abs().max()) / (scale or 1.0)


def some_rows(count: int, limit: int = 32) -> torch.Tensor:
    """Up to ``limit`` row indices spread over ``count`` rows, the first and the last among them."""
    return torch.linspace(0, count - 1, min(count, limit)).round().long().unique()
