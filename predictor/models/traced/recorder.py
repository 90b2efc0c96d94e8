"""What PyTorch dispatches below autograd, kernel by kernel, as nodes of the house.

A module runs on the meta device: shapes, dtypes and strides, no numbers and no memory. Every call of an aten operator
comes here, forward and backward; the table (`predictor.models.traced.aten`) says which operators it is. A storage is
one tensor of the graph; what writes into it in place makes another one. A backward call belongs to the module whose
forward call made its autograd node, told by the node's sequence number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from predictor.graph.graph import Node
from predictor.graph.tensor import ACTIVATION, GRADIENT, INDEX, STATE, WEIGHT, Tensor
from predictor.models.traced import aten
from predictor.models.traced.aten_shapes import suggests_last
from predictor.models.traced.inputs import Call, Operand
from predictor.ops.base import BACKWARD, FORWARD, Op

#: torch's dtypes by the house's names; of those that have none, one of as many bytes.
DTYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int64: "int64",
    torch.int32: "int32", torch.int16: "fp16", torch.int8: "int8", torch.uint8: "int8", torch.bool: "bool",
    torch.complex64: "int64", torch.complex32: "int32", torch.complex128: "int64", torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8", torch.uint16: "fp16", torch.uint32: "int32", torch.uint64: "int64",
}  # fmt: skip
_FLOATS = frozenset({"fp64", "fp32", "fp16", "bf16", "fp8"})
#: Names of the axes of tensors of rank 0 and more, by definition.
_AXES = tuple(tuple(f"d{i}" for i in range(rank)) for rank in range(16))
#: Operators that PyTorch runs as one kernel where the model calls two or more, noted by their substitutes.
ATTENTION, ATTENTION_BACKWARD = "fused_attention", "fused_attention_backward"


def dtype_name(dtype: torch.dtype) -> str:
    """The house's name of a torch dtype."""
    return DTYPES.get(dtype, "int8")


#: Convolutions, and their operands that say how channels lie.
_CONVOLUTIONS = {"aten::convolution": (0, 1), "aten::convolution_backward": (0, 1, 2)}


def _laid_out(name: str, args: Any, out: Any) -> Any:
    """The results of a convolution as cuDNN lays them out, channels last where an operand has them so: on the meta
    device they never are (PyTorch 2.13 `_meta_registrations.py`, meta_conv)."""
    places = _CONVOLUTIONS.get(name)
    if places is None:
        return out
    of = [args[i] for i in places if isinstance(args[i], torch.Tensor)]
    last = next((_LAST[t.dim()] for t in of if suggests_last(t.shape, t.stride())), None)
    if last is None:
        return out

    def turned(t: Any) -> Any:
        whole = isinstance(t, torch.Tensor) and t.dim() == of[0].dim()
        return torch.empty_like(t, memory_format=last) if whole else t

    return turned(out) if isinstance(out, torch.Tensor) else type(out)(turned(t) for t in out)


#: What autograd puts into zeros that it has made, in place but where a dispatch mode is on. Source: PyTorch 2.13,
#: areAnyTensorSubclassLike in aten/src/ATen/native/TensorAdvancedIndexing.cpp and ReduceOpsUtils.h.
_PUT_IN_PLACE = frozenset({"index_put", "scatter", "scatter_add", "index_add"})

#: Dimensions -> the layout with channels last; by definition of PyTorch's memory formats.
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


#: Results of calls by what was called with what: shapes, strides and dtypes. PyTorch works most of them out in Python,
#: which is most of the time of a trace, and models call the same again and again. How many are kept is a guard against
#: memory without end, chosen by hand, not from data.
_KNOWN: dict[Any, tuple[Any, ...]] = {}
_MOST_KNOWN = 50_000


def _result(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What a call gives on the meta device: of one that makes new tensors, or writes into its first operand, as it gave
    before."""
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    in_place = _in_place(func)
    if not in_place and not _makes_new(func):
        return func(*args, **kwargs)
    try:
        key = (func, _described(args), _described(tuple(kwargs.items())))
        known = _KNOWN.get(key)
    except TypeError:  # an argument that is no key
        return func(*args, **kwargs)
    if in_place:
        if known is None:
            func(*args, **kwargs)
            _KNOWN[key] = (False, ())
        return args[0] if func._schema.returns else None
    if known is None:
        out = func(*args, **kwargs)
        each = out if isinstance(out, tuple) else (out,)
        if all(isinstance(t, torch.Tensor) and t.device.type == "meta" for t in each):
            read = {t.untyped_storage()._cdata for t in _tensors((*args, *kwargs.values()))}
            if any(t.untyped_storage()._cdata in read for t in each):  # a view that says nothing of it (_unsafe_view)
                return out
            _KNOWN[key] = (isinstance(out, tuple), tuple((t.shape, t.stride(), t.dtype) for t in each))
        return out
    several, sizes = known
    made = tuple(torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in sizes)
    return made if several else made[0]


@lru_cache(maxsize=4096)
def _makes_new(func: Any) -> bool:
    """Whether an operator neither writes to its operands nor gives views of them, and gives tensors alone. Some views
    (_unsafe_view) do not say that they are any."""
    schema = func._schema
    if schema.name.partition("::")[2] in aten.FREE:
        return False
    new = all(value.alias_info is None for value in (*schema.arguments, *schema.returns))
    return bool(schema.returns) and new and all(str(value.type) == "Tensor" for value in schema.returns)


@lru_cache(maxsize=4096)
def _in_place(func: Any) -> bool:
    """Whether an operator writes into its first operand, of which its shape stays, and gives that or nothing."""
    schema = func._schema
    if torch.Tag.inplace_view in func.tags or len(schema.returns) > 1 or not schema.name.endswith("_"):
        return False
    written = [value.alias_info is not None and value.alias_info.is_write for value in schema.arguments]
    return schema.name.partition("::")[2] not in aten.FREE and bool(written) and written[0]


def _described(value: Any) -> Any:
    """An argument as part of a key. TypeError for what is none."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "meta" or value.is_sparse:
            raise TypeError
        return value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple(_described(each) for each in value)
    return type(value), value


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Collects the ``nodes`` of all that runs while it is entered; a node's ``scope`` is the path of its module.

    ``failed``: the module and the operator that the last error came from. ``unknown``: operators without an entry.
    """

    #: those that are entered, the innermost last
    active: ClassVar[list[Recorder]] = []

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.unknown: dict[str, None] = {}
        self.failed = ("", "")
        self.stack: list[str] = []
        self._names = {id(m): name for name, m in reversed(list(module.named_modules()))}
        self._tensors: dict[int, Tensor] = {}
        self._parts: dict[tuple[Any, ...], Tensor] = {}
        self._alive: list[Any] = []  # a storage that is gone would give its place to another
        self._ops: dict[Op, Op] = {}
        self._answers: dict[Any, tuple[Op, ...]] = {}  # of the table, by calls without the places of their memory
        self._scopes: dict[int, str] = {}
        self._last = ""
        self._calls = 0
        self._quiet = 0
        for name, p in module.named_parameters():
            self._hold(p, name, WEIGHT)
            if p.grad is not None:
                self._hold(p.grad, name, GRADIENT)
        for name, b in module.named_buffers():
            self._hold(b, name, STATE)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: the word costs two calls of Python for every operator, and nothing here is compiled."""
        return False

    def __enter__(self) -> Recorder:
        Recorder.active.append(self)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        Recorder.active.pop()
        super().__exit__(*error)

    # -- modules -------------------------------------------------------------------------------------------------------

    @contextmanager
    def following(self) -> Iterator[None]:
        """Keeps the stack of modules that are running."""
        hooks = torch.nn.modules.module
        before = hooks.register_module_forward_pre_hook(self._enter)
        after = hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self.stack.append(self._names.get(id(module), self.stack[-1] if self.stack else ""))

    def _leave(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        if self.stack:
            self.stack.pop()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """What runs meanwhile is not noted: a substitute makes its results, and notes itself."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    # -- calls ---------------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._quiet:
            return _result(func, args, kwargs)
        args, kwargs, seen = _on_one_device(args, kwargs)
        try:
            out = _result(func, args, kwargs)
        except Exception:
            self.failed = (self._scope(None)[0], str(func))
            raise
        out = _laid_out(func._schema.name, args, out)
        if seen or _on_meta(out):
            space, _, name = func._schema.name.partition("::")
            name = name if space in ("aten", "prims", "profiler") else func._schema.name
            if name in aten.FREE:
                self.mark()
            else:
                self.note(name, args, kwargs, out)
        return out

    def note(self, name: str, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """Writes down the kernels of one call, its tensors and its results."""
        if self._quiet:
            return
        scope, phase, gradient = self._scope(torch._C._current_autograd_node())
        read: list[torch.Tensor] = []
        name = f"{name}_" if gradient and name in _PUT_IN_PLACE else name
        told = Call(
            name, tuple(self._told(a, read) for a in args), {k: self._told(v, read) for k, v in kwargs.items()},
            tuple(self._operand(t) for t in _tensors(out)),
        )  # fmt: skip
        if name in ("_to_copy", "copy_") and any(t.device.type == "cpu" and t.dim() for t in read):
            told.kwargs["from_host"] = True
        ops = self._operators(told)
        if not ops:
            self.mark()
            return
        inputs = tuple(self._tensor(t) for t in read if t.device.type == "meta" and t.numel())
        made: list[Tensor] = []
        for place, t in enumerate(_tensors(out)):
            result = self._made(t, name, gradient, read)
            if result is not None and not (place and any(result is m for m in made)):
                made.append(result)
        calls = 1 if gradient else 1 + self._calls
        self._calls = 0
        title = f"{scope} {name}".strip()
        for i, op in enumerate(ops):
            if aten.is_unknown(op):
                self.unknown[name] = None
            outputs = tuple(made)
            if i < len(ops) - 1:
                like = told.outs[0]
                outputs = (Tensor(name, _AXES[len(like.shape)], like.shape, like.dtype, self._role(like, gradient)),)
            self.nodes.append(Node(op, title, inputs, outputs, 1, phase, calls, 1.0, "", scope))
            inputs, calls = (*inputs, *(t for t in outputs if i < len(ops) - 1)), int(gradient)
        self.mark(0)

    def _operators(self, call: Call) -> tuple[Op, ...]:
        """What the table says of a call, each operator one object; layers alike make the same calls again and again."""
        try:
            key = _sizes_of((call.name, call.args, call.kwargs, call.outs), {})
            known = self._answers.get(key)
        except TypeError:  # an argument that is no key
            key, known = None, None
        if known is None:
            known = tuple(self._ops.setdefault(op, op) for op in aten.operators(call))
            if key is not None:
                self._answers[key] = known
        return known

    def _scope(self, node: Any) -> tuple[str, str, bool]:
        """The module that a call belongs to, its phase, and whether it works on gradients: what a backward pass runs of
        the forward pass again does not."""
        if node is None:
            return (self.stack[-1] if self.stack else ""), FORWARD, False
        if self.stack:
            return self.stack[-1], BACKWARD, False
        self._last = self._scopes.get(node._sequence_nr(), self._last)
        return self._last, BACKWARD, True

    def mark(self, calls: int = 1) -> None:
        """The autograd node that was made last belongs to the module that is running; ``calls`` of the host come with
        the next kernel."""
        if self.stack or not self._scopes:
            number = torch.autograd._get_sequence_nr() - 1
            self._scopes.setdefault(number, self.stack[-1] if self.stack else "")
        self._calls += calls

    # -- tensors -------------------------------------------------------------------------------------------------------

    def _hold(self, t: torch.Tensor, name: str, role: str) -> Tensor:
        storage = t.untyped_storage()
        made = Tensor(name, _AXES[t.dim()], tuple(t.shape), dtype_name(t.dtype), role)
        self._alive.append(storage)
        self._tensors[storage._cdata] = made
        return made

    def _tensor(self, t: torch.Tensor) -> Tensor:
        """The tensor of the graph that a torch tensor is, or that it is a part of."""
        held = self._tensors.get(t.untyped_storage()._cdata)
        if held is None:
            whole = t.untyped_storage().nbytes() // t.element_size()
            with self.quiet():  # its first reader may see a part of it
                like = t if whole <= t.numel() else t.as_strided((whole,), (1,), 0)
            held = self._hold(like, "input", ACTIVATION if dtype_name(t.dtype) in _FLOATS else INDEX)
        if t.numel() >= held.elements:
            return held
        key = (id(held), t.storage_offset(), t.shape, t.stride())
        if key not in self._parts:
            self._parts[key] = held.view(_AXES[t.dim()], tuple(t.shape), part=True)
        return self._parts[key]

    def _made(self, t: torch.Tensor, name: str, gradient: bool, read: list[torch.Tensor]) -> Tensor | None:
        """The tensor of a result; None where it is one that was there before the pass (a buffer)."""
        before = self._tensors.get(t.untyped_storage()._cdata)
        if before is None:
            return self._hold(t, name, self._role(self._operand(t), gradient))
        if before.role in (WEIGHT, STATE):
            return None
        role = before.role if before.role != INDEX else self._role(self._operand(t), gradient)
        made = Tensor(name, before.axes, before.shape, before.dtype, role)
        self._tensors[t.untyped_storage()._cdata] = made
        return made

    @staticmethod
    def _role(x: Operand, gradient: bool) -> str:
        if x.dtype not in _FLOATS:
            return INDEX
        return GRADIENT if gradient else ACTIVATION

    def _operand(self, t: torch.Tensor) -> Operand:
        known = self._tensors.get(t.untyped_storage()._cdata)
        role = known.role if known is not None else ACTIVATION
        key = t.untyped_storage()._cdata + t.storage_offset()
        return Operand(tuple(t.shape), tuple(t.stride()), dtype_name(t.dtype), role, key)

    def _told(self, value: Any, read: list[torch.Tensor]) -> Any:
        """An argument with operands in place of tensors, which are added to ``read``."""
        if isinstance(value, torch.Tensor):
            read.append(value)
            return self._operand(value)
        if isinstance(value, list | tuple):
            return [self._told(v, read) for v in value]
        return value


def _sizes_of(value: Any, places: dict[int, int]) -> Any:
    """A part of a call as part of a key: the memory of operands is told apart, and which it is does not count."""
    if isinstance(value, Operand):
        place = places.setdefault(value.key, len(places) + 1) if value.key else 0
        return value.shape, value.stride, value.dtype, value.role, place
    if isinstance(value, list | tuple):
        return tuple(_sizes_of(each, places) for each in value)
    if isinstance(value, dict):
        return tuple((name, _sizes_of(each, places)) for name, each in value.items())
    hash(value)
    return type(value), value


def _tensors(out: Any) -> Iterator[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        yield out
    elif isinstance(out, list | tuple):
        for each in out:
            yield from _tensors(each)


def _on_meta(out: Any) -> bool:
    return any(t.device.type == "meta" for t in _tensors(out))


def _on_one_device(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any], bool]:
    """The arguments with tensors of the host on the meta device, where others are there; and whether any is there."""
    tensors = list(_tensors((*args, *kwargs.values())))
    there = any(t.device.type == "meta" for t in tensors)
    if not there or not any(t.device.type != "meta" and t.dim() for t in tensors):
        return args, kwargs, there
    return _moved(args), {k: _moved(v) for k, v in kwargs.items()}, True


def _moved(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.device.type != "meta" and value.dim():
        return torch.empty_like(value, device="meta")
    if isinstance(value, list | tuple):
        return type(value)(_moved(v) for v in value) if type(value) in (list, tuple) else value
    return value
