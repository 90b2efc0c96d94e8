"""Modules that are called with shapes like those of an earlier call, in passes of which only shapes are looked at.

Layers of a model are alike: their parts have the same class, sizes and settings, and get tensors of the same shapes. A
part that reads and changes nothing but its arguments gives the same shapes then, so that one of them runs for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, slice, torch.Size)
#: Attributes of every module, which `_Signatures` looks at by themselves.
_OF_EVERY = frozenset(vars(nn.Module()))


class _NoKeyError(TypeError):
    """What cannot be told by its shape and its settings."""


def _shape(t: torch.Tensor) -> tuple[Any, ...]:
    if t.device.type != "meta" or t.layout is not torch.strided:
        raise _NoKeyError
    return t.shape, t.stride(), t.dtype, t.requires_grad


def _argument(value: Any) -> Any:
    """An argument as part of a key. _NoKeyError for an object that a call may change (a cache, a list)."""
    if isinstance(value, torch.Tensor):
        return _shape(value)
    if type(value) is tuple:
        return tuple, tuple(_argument(each) for each in value)
    if isinstance(value, _PLAIN):
        return type(value), value
    raise _NoKeyError


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _tensors(each)


def _result(value: Any, held: set[int]) -> Any:
    """A result as what `_again` makes another of. _NoKeyError where it shares memory with ``held``, to which its own is
    added."""
    if isinstance(value, torch.Tensor):
        place = value.untyped_storage()._cdata
        if type(value) is not torch.Tensor or place in held:
            raise _NoKeyError
        held.add(place)
        return _shape(value)
    if type(value) in (list, tuple):
        return type(value), tuple(_result(each, held) for each in value)
    if isinstance(value, _PLAIN):
        return None, value
    raise _NoKeyError


def _again(made: Any) -> Any:
    """A result like an earlier one, in memory of its own."""
    if len(made) == 4:
        shape, stride, dtype, _ = made
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    kind, values = made
    return values if kind is None else kind(_again(each) for each in values)


class _Signatures:
    """What tells a module's results, given shapes: classes, settings and sizes of all its parts."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[nn.Module, int]] = {}  # with the module, whose id no other has meanwhile
        self._numbers: dict[Any, int] = {}

    def of(self, module: nn.Module) -> int:
        """A number that modules alike share; 0 for a module with an attribute that a call may change unseen."""
        known = self._known.get(id(module))
        if known is None:
            with torch._C.DisableTorchFunction():
                known = self._known[id(module)] = module, self.now(module)
        return known[1]

    def now(self, module: nn.Module, fresh: bool = False) -> int:
        """As `of`; with ``fresh``, of what the module and its parts have become."""
        try:
            return self._numbers.setdefault(self._read(module, fresh), len(self._numbers) + 1)
        except TypeError:
            return 0

    def _read(self, module: nn.Module, fresh: bool) -> tuple[Any, ...]:
        settings = [(name, self._setting(value)) for name, value in vars(module).items() if name not in _OF_EVERY]
        held = [
            (n, None if t is None else _shape(t)) for n, t in (*module._parameters.items(), *module._buffers.items())
        ]
        parts = [(name, self._part(part, fresh)) for name, part in module._modules.items() if part is not None]
        return type(module), module.training, tuple(settings), tuple(held), tuple(parts)

    def _part(self, module: nn.Module, fresh: bool) -> int:
        number = self.now(module, fresh) if fresh else self.of(module)
        if not number:
            raise _NoKeyError
        return number

    def _setting(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor | nn.Module):
            raise _NoKeyError
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, list | tuple | set | frozenset):
            return type(value), tuple(self._setting(each) for each in value)
        if isinstance(value, Mapping):
            return type(value), tuple((name, self._setting(each)) for name, each in value.items())
        if callable(value) or hasattr(value, "model_type"):  # a function; the config, which layers share
            return id(value)
        raise _NoKeyError


@contextmanager
def once_for_all_alike() -> Iterator[None]:
    """Meanwhile, one of several modules alike runs for all: the others give tensors of the same shapes.

    Runs are those on the meta device, without gradients. What takes a cache, has hooks, shares its result's memory with
    an argument, or changes an attribute of its own, runs every time, and its parts are looked at one by one.
    """
    signatures = _Signatures()
    known: dict[Any, Any] = {}
    run = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        signature = 0 if module._forward_hooks or module._forward_pre_hooks else signatures.of(module)
        if not signature or torch.is_grad_enabled():
            return run(module, *args, **kwargs)
        try:
            with torch._C.DisableTorchFunction():
                key = signature, _argument(args), _argument((*kwargs.items(),))
            made = known.get(key)
        except TypeError:
            return run(module, *args, **kwargs)
        if made:
            with torch._C.DisableTorchFunction():
                return _again(made)
        out = run(module, *args, **kwargs)
        if made is None:
            try:
                if signatures.now(module, fresh=True) != signature:
                    raise _NoKeyError
                given = (*_tensors((*args, *kwargs.values())), *module.parameters(), *module.buffers())
                known[key] = _result(out, {t.untyped_storage()._cdata for t in given})
            except TypeError:
                known[key] = ()
        return out

    nn.Module.__call__ = call
    try:
        yield
    finally:
        nn.Module.__call__ = run
