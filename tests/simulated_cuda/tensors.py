"""Tensors that say they lie on the board: marks on their storages, and every operator on them a kernel.

The values are computed by the processor, at once; the time is the board's. Refused as by CUDA: operands of two places,
a wait amid a capture, a generator of one's own amid a capture, memory that is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from microbench.launchers.base import some_rows
from simulated_cuda.board import Kernel
from simulated_cuda.streams import Runtime

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
#: FLOP/s of the board by dtype (dense, at the highest clock): H100 SXM's data sheet.
RATES = {
    torch.float16: 989.4e12, torch.bfloat16: 989.4e12, torch.float8_e4m3fn: 1978.9e12, torch.float8_e5m2: 1978.9e12,
    torch.float8_e4m3fnuz: 1978.9e12,
    torch.int8: 1978.9e12, torch.float32: 66.9e12, torch.float64: 66.9e12,
}  # fmt: skip
TF32_RATE = 494.7e12
_LARGE_FLOP = 4e9
_WAITING = frozenset((
    "_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "unique_consecutive", "masked_select", "bincount",
    "equal", "is_nonzero", "repeat_interleave", "_assert_async", "histc",
))  # fmt: skip
_READING = frozenset(("tolist", "numpy", "__array__", "item", "__bool__", "__int__", "__float__", "__index__"))
_MIXING = frozenset(("copy_", "_to_copy", "index", "index_put_", "_index_put_impl_", "set_", "_pin_memory", "clone"))
_DEVICE_OF, _IS_CUDA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__


def storage_of(x: torch.Tensor) -> Any:
    """Where the values of ``x`` lie: those of a sparse matrix in rows, too."""
    return (x.values() if x.layout is torch.sparse_csr else x).untyped_storage()


def on_board(x: torch.Tensor) -> bool:
    return bool(getattr(storage_of(x), "_on_board", False))


def mark(x: torch.Tensor, there: bool = True) -> torch.Tensor:
    storage_of(x)._on_board = there
    return x


def _is_cuda(device: Any) -> bool | None:
    """Whether ``device`` names the board; None where it names no device."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str) and device.split(":")[0] in ("cuda", "cpu"):
        return device.startswith("cuda")
    return None


class Devices(TorchFunctionMode):
    """Words of devices on their way in and out: "cuda" is the processor with a mark."""

    def __init__(self, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func == _DEVICE_OF:
            return CUDA if on_board(args[0]) else CPU
        if func == _IS_CUDA:
            return on_board(args[0])
        if func is torch.device:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        there = any(on_board(x) for x in tensors)
        if name in ("to", "cpu", "cuda") and isinstance(args[0], torch.Tensor):
            return self._moved(func, name, args, kwargs)
        if name == "pin_memory":
            assert not there, "memory of the board cannot be pinned"
            pinned = args[0].clone()
            pinned.untyped_storage()._pinned = True
            return pinned
        if name == "is_pinned":
            return bool(getattr(args[0].untyped_storage(), "_pinned", False))
        if name in _READING and there:
            self.kernels.wait(name)
        named = _is_cuda(kwargs.get("device"))
        if named is not None:
            kwargs["device"] = CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        before = self.kernels.creating
        self.kernels.creating = named if named is not None else (there or (before and not tensors))
        try:
            return func(*args, **kwargs)
        finally:
            self.kernels.creating = before

    def _moved(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, rest = args[0], list(args[1:])
        wanted = {"cpu": False, "cuda": True}.get(name)
        if name == "cuda":
            return self._land(x, x, True, kwargs)
        for place, value in enumerate(rest):
            if (named := _is_cuda(value)) is not None:
                wanted, rest[place] = named, CPU
        if (named := _is_cuda(kwargs.get("device"))) is not None:
            wanted, kwargs["device"] = named, CPU
        return self._land(x, func(x, *rest, **kwargs), wanted, kwargs)

    def _land(self, x: torch.Tensor, out: torch.Tensor, wanted: bool | None, kwargs: dict[str, Any]) -> torch.Tensor:
        if wanted is None or wanted == on_board(out):
            return out
        pinned = getattr(x.untyped_storage(), "_pinned", False)
        if not (wanted and pinned and kwargs.get("non_blocking")):
            self.kernels.wait("a copy between host and device")
        with self.kernels.off():
            copied = out.clone()
        return mark(copied, wanted)


class Kernels(TorchDispatchMode):
    """Every operator on tensors of the board, those of autograd too, as a kernel in its time."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime
        self.creating = False
        self._off = False

    def off(self) -> _Off:
        return _Off(self)

    def wait(self, what: str) -> None:
        self.runtime.refuse_in_capture(what)
        self.runtime.board.synchronize()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._off:
            return func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        there = [on_board(x) for x in inputs]
        if not (any(there) or (self.creating and not inputs)):
            return func(*args, **kwargs)
        self.runtime.board.check()
        self._refuse(name, inputs, there, kwargs)
        if not inputs:
            self._room(args)
        out = _computed(func, name, args, kwargs)
        outputs = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        known = {storage_of(x)._cdata for x in inputs}
        fresh = [x for x in outputs if storage_of(x)._cdata not in known]
        for x in fresh:
            mark(x)
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
        if not fresh and not writes and outputs:
            return out  # a view
        if name in ("empty", "empty_strided", "empty_like", "new_empty", "detach", "resize_"):
            return out
        self.runtime.launch(self._kernel(func, name, args, kwargs, inputs, outputs, out))
        if name == "copy_" and not all(there):
            host = inputs[1] if there[0] else inputs[0]
            pinned = bool(getattr(host.untyped_storage(), "_pinned", False))
            if not (pinned and (kwargs.get("non_blocking") or args[-1] is True)):
                self.wait("a copy between host and device")
        elif name in _WAITING or (name == "index" and _by_mask(args[1])):
            self.wait(name)
        return out

    def _refuse(self, name: str, inputs: list[torch.Tensor], there: list[bool], kwargs: dict[str, Any]) -> None:
        elsewhere = any(not on and x.dim() > 0 for x, on in zip(inputs, there, strict=True))
        if elsewhere and name not in _MIXING and not name.startswith(("c10d", "allreduce", "_foreach_copy")):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu"
                f"! ({name})"
            )
        if name == "_scaled_mm":
            takes = torch.float8_e4m3fnuz if "gfx942" in self.runtime.board.gfx else torch.float8_e4m3fn
            if inputs[0].dtype != takes:
                raise RuntimeError(f"Expected operands of {takes}, but got {inputs[0].dtype}")
        if self.runtime.capturing:
            if elsewhere and name != "copy_":
                self.runtime.refuse_in_capture("an index on the host")
            if name in _WAITING:
                self.runtime.refuse_in_capture(name)
            if kwargs.get("generator") is not None:
                self.runtime.refuse_in_capture("a generator that was not registered with the graph")

    def _room(self, args: tuple[Any, ...]) -> None:
        sizes = args[0] if args and isinstance(args[0], list | tuple) else []
        if all(isinstance(size, int) for size in sizes) and math.prod(sizes) > self.runtime.board.memory_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {math.prod(sizes) / 2**30:.2f} GiB.")

    def _kernel(
        self, func: Any, name: str, args: Any, kwargs: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor],
        out: Any,
    ) -> Kernel:  # fmt: skip
        touched = {storage_of(x)._cdata: _bytes(x) for x in [*inputs, *outputs] if x.numel()}
        kind = next((x.dtype for x in inputs if x.is_floating_point()), torch.float32)
        rate = RATES.get(kind, 66.9e12)
        if kind == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
            rate = TF32_RATE
        rate *= self.runtime.board.rate
        return Kernel(f"simulated_{name}", _flops(func, name, args, kwargs, out), rate, tuple(touched.items()))


def _computed(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """The operator's result. Of a product that would take a processor seconds, the 32 rows that a check looks at."""
    if name == "_scaled_mm" and args[0].dtype == torch.float8_e4m3fnuz:  # which a processor's kernel lacks
        operands = [x.float().to(torch.float8_e4m3fn) for x in args[:2]]
        return _computed(func, name, (*operands, *args[2:]), kwargs)
    left = args[1] if name == "addmm" else args[0] if name in ("mm", "_scaled_mm") else None
    if left is None or 2.0 * left.numel() * args[2 if name == "addmm" else 1].shape[1] < _LARGE_FLOP:
        return func(*args, **kwargs)
    rows = some_rows(left.shape[0])
    told = list(args)
    told[1 if name == "addmm" else 0] = left.index_select(0, rows)
    some = func(*told, **kwargs)
    whole = some.new_zeros(left.shape[0], some.shape[1])
    return whole.index_copy_(0, rows, some)


class _Off:
    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    def __enter__(self) -> None:
        self.kernels._off = True

    def __exit__(self, *_: object) -> None:
        self.kernels._off = False


def _by_mask(indices: Any) -> bool:
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices)


def _bytes(x: torch.Tensor) -> int:
    size: int = storage_of(x).nbytes()
    return size if x.layout is torch.sparse_csr else min(x.numel() * x.element_size(), size)


def _flops(func: Any, name: str, args: Any, kwargs: Any, out: Any) -> float:
    count = flop_registry.get(func._overloadpacket)
    if count is not None:
        return float(count(*args, **kwargs, out_val=out))
    if name.startswith("_scaled_dot_product_flash_attention_for_cpu"):
        q, k = (args[1], args[2]) if "backward" in name else (args[0], args[1])
        causal = bool(kwargs.get("is_causal", args[4] if len(args) > 4 and args[4] is True else False))
        return 4.0 * q.numel() * k.shape[-2] * (2.5 if "backward" in name else 1.0) * (0.5 if causal else 1.0)
    if name == "_grouped_mm":
        return 2.0 * args[0].shape[0] * args[0].shape[1] * args[1].shape[-1]
    return 0.0
