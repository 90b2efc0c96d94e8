"""A module of PyTorch -> a recording: forward, the real backward pass, the optimizer's step, on the meta device.

No GPU, no weights, no memory: what a module is made of is moved to the meta device, inputs are made there by shape, and
what PyTorch dispatches is written down (`predictor.models.traced.recorder`).
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from predictor.errors import RequestError, nearest, one_line
from predictor.graph.fold import folded
from predictor.graph.graph import OPTIMIZER, Block, Graph
from predictor.graph.recording import Recording
from predictor.models.traced.aten import joined_losses
from predictor.models.traced.inputs import Input
from predictor.models.traced.recorder import Recorder, dtype_name
from predictor.models.traced.substitutes import Substitutes, as_on_a_gpu

TORCH = {
    "fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
    "int64": torch.int64, "int32": torch.int32, "int8": torch.int8, "bool": torch.bool,
}  # fmt: skip
#: Operators whose results are as large as the numbers say.
_SIZED_BY_DATA = tuple(
    f"aten.{name}."
    for name in ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave")
)
#: What PyTorch says where an operator asks for numbers that the meta device does not have.
_DATA = ("meta tensor", "Meta tensor", "Cannot copy out of meta", "data-dependent", "nonzero", "data_ptr", ".item()")


#: Attribute of a module: words in the names of parameters that stay in fp32.
KEPT_WIDE = "tilecast_kept_wide"


def on_meta(module: nn.Module, dtype: str) -> nn.Module:
    """``module`` on the meta device; parameters and buffers of floats in ``dtype`` ("": as they are)."""
    module = module.to(device="meta")
    if not dtype:
        return module
    module = module.to(TORCH[dtype])
    for part in module.modules():
        kept = getattr(part, KEPT_WIDE, ())
        for name, parameter in part.named_parameters() if kept else ():
            if any(word in name.split(".") for word in kept):
                parameter.data = parameter.data.float()
    return module


def tensors_of(asked: Sequence[Input], dtype: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments and keywords of forward on the meta device; floats in ``dtype`` unless another is named."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for given in asked:
        made = torch.empty(given.shape, dtype=TORCH[dtype if given.dtype == "float" else given.dtype], device="meta")
        name, _, place = given.name.partition(".")
        if not name:
            args.append(made)
        else:
            kwargs[name] = (*kwargs.get(name, ()), made) if place else made
    return args, kwargs


def inputs_in(
    asked: Sequence[Input], args: Sequence[Any], kwargs: Mapping[str, Any], dtype: str
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with floats in ``dtype``, but for those that were asked for in a dtype of their own."""
    if asked:
        return tensors_of(asked, dtype)

    def cast(value: Any) -> Any:
        return value.to(TORCH[dtype]) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    return [cast(a) for a in args], {k: cast(v) for k, v in kwargs.items()}


def record(
    module: nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, name: str = "model",
    mode: str = "forward", dtype: str = "fp32", fused_attention: bool = True, accumulate: bool = False,
    optimizer: Callable[[Any], Any] | None = None, batch: int | None = None, tokens: int | None = None,
    loss: Callable[[Any], Any] | None = None,
) -> Recording:  # fmt: skip
    """One pass of ``module``, which is on the meta device, over ``args`` and ``kwargs``.

    With mode "train": forward, the backward pass of its loss (``loss`` of the outputs, an attribute ``loss`` of theirs,
    a scalar, else every float among them), gradients added to those that are there with ``accumulate``, and the step of
    ``optimizer`` (a function of the parameters), where one is given.
    Raises RequestError, one line with the module's path, for what cannot be traced.
    """
    kwargs = dict(kwargs or {})
    train = mode == "train"
    with contextlib.suppress(NotImplementedError):  # an exported module has one mode
        module.train(train)
    _check_arguments(module, name, args, kwargs)
    if accumulate:
        for p in module.parameters():
            p.grad = torch.empty_like(p) if p.requires_grad else None
    recorder = Recorder(module)
    with _failing_in_one_line(name, recorder, module), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with as_on_a_gpu(), recorder.following(), torch.set_grad_enabled(train), recorder:
            with Substitutes(recorder, fused_attention):
                out = module(*args, **kwargs)
                heads = _losses(loss(out) if loss is not None else out) if train else []
            if train:
                _backward(heads, recorder, fused_attention)
        with as_on_a_gpu():
            update = _update(module, optimizer, recorder) if train and optimizer is not None else Graph(())
    graph = folded(joined_losses(recorder.nodes))
    every = dict.fromkeys(module.parameters())
    shape: tuple[int, ...] = next(
        (tuple(t.shape) for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)), ()
    )
    for p in every:
        p.grad = None
    return Recording(
        name=name, mode=mode, dtype=dtype, graph=graph,
        parameters=sum(p.numel() for p in every), trained=sum(p.numel() for p in every if p.requires_grad),
        weight_bytes=float(sum(p.numel() * p.element_size() for p in every)),
        state_bytes=float(sum(b.numel() * b.element_size() for b in dict.fromkeys(module.buffers()))),
        update=update,
        inputs=tuple(_words(n, t) for n, t in (*(("", a) for a in args), *kwargs.items())
                     if isinstance(t, torch.Tensor)),
        batch=batch if batch is not None else (int(shape[0]) if shape else 1),
        tokens=tokens if tokens is not None else (int(shape[1]) if len(shape) == 2 else 1),
        attention="flash" if fused_attention else "math", unknown=tuple(recorder.unknown),
        source=f"torch {torch.__version__}",
    )  # fmt: skip


def _words(name: str, t: torch.Tensor) -> str:
    return str(Input(name, dtype_name(t.dtype), tuple(t.shape)))


def _check_arguments(module: nn.Module, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """RequestError where forward takes no such argument, or wants one that is not there."""
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return
    known = [p.name for p in signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    anything = any(p.kind == p.VAR_KEYWORD for p in signature.parameters.values())
    for word in kwargs:
        if word not in known and not anything:
            close = nearest(word, known, 1)
            tail = f"; nearest: {close[0]}" if close else ""
            raise RequestError(f"{name}: forward takes no input {word!r}: expected some of {', '.join(known)}{tail}")
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join(kwargs) or f"{len(args)} by position"
        raise RequestError(
            f"{name}: {error} ({given} given); expected --input with all of {', '.join(known)} that have no default"
        ) from None


def _losses(out: Any) -> list[torch.Tensor]:
    """What the backward pass starts from."""
    of_output = getattr(out, "loss", None)
    if isinstance(of_output, torch.Tensor):
        return [of_output]
    losses: list[torch.Tensor] = []
    waiting = [out]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, torch.Tensor):
            if value.requires_grad and not any(value is t for t in losses):
                losses.append(value)
        elif isinstance(value, Mapping):
            waiting += list(value.values())
        elif isinstance(value, list | tuple):
            waiting += list(value)
    return losses


def _backward(heads: list[torch.Tensor], recorder: Recorder, fused: bool) -> None:
    if not heads:
        raise RequestError("no output depends on a parameter that is trained; expected one, or --mode forward")
    with recorder.quiet():
        starts = [torch.empty_like(t) for t in heads]
    with Substitutes(recorder, fused):
        torch.autograd.backward(heads, starts)


def _update(module: nn.Module, optimizer: Callable[[Any], Any], recorder: Recorder) -> Graph:
    """The step of an optimizer, its state made in a step before it."""
    trained = [p for p in module.parameters() if p.requires_grad]
    for p in trained:
        p.grad = torch.empty_like(p)
    stepping = optimizer(trained)
    stepping.step()
    step = Recorder(module)
    with step, contextlib.suppress(AttributeError):
        stepping.step()
    recorder.unknown.update(step.unknown)
    nodes = tuple(replace(node, phase=OPTIMIZER) for node in step.nodes)
    return Graph((Block("optimizer", nodes),)) if nodes else Graph(())


@contextlib.contextmanager
def _failing_in_one_line(name: str, recorder: Recorder, module: nn.Module) -> Iterator[None]:
    """Any error as one line: the model, the module's path, what went wrong."""
    try:
        yield
    except RequestError as error:
        text = str(error)
        raise RequestError(text if text.startswith(f"{name}:") else f"{name}: {text}") from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        where, func = recorder.failed
        path = _innermost(error, module) or where
        said = one_line(str(error).split("\n")[0])[:300] or type(error).__name__
        place = f" in module {path!r}" if path else ""
        at = f" ({func})" if func else ""
        if func.startswith(_SIZED_BY_DATA) or "nonzero" in str(error):
            reason = f"how large a result is depends on numbers that a trace does not have{at}"
        elif isinstance(error, NotImplementedError) and ("Meta" in str(error) or "meta" in str(error)):
            reason = f"an operator that has no shapes of its own (no meta kernel){at}: {said}"
        elif any(word in str(error) for word in _DATA):
            reason = f"what it does depends on numbers that a trace does not have{at}: {said}"
        else:
            reason = f"{type(error).__name__}: {said}"
        raise RequestError(f"{name}: cannot be traced{place}: {reason}") from None


def _innermost(error: BaseException, module: nn.Module) -> str:
    """The path of the module whose forward was running when the error came."""
    names = {id(m): n for n, m in module.named_modules()}
    place, frame = "", error.__traceback__
    while frame is not None:
        owner = frame.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            place = names[id(owner)] or type(owner).__name__
        frame = frame.tb_next
    return place
