"""Sources of recordings: a saved graph, and a module that a function builds (torch loads when it records)."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any, Self, TypeVar

from predictor import __version__
from predictor.errors import RequestError, SpecError, UnsupportedError, nearest, one_line
from predictor.files.read import atomic_write, read_json, user_folder
from predictor.graph.recording import Recording
from predictor.graph.samples import unit_of
from predictor.graph.saved_graph import VERSION, from_json, is_recording, load_recording, save_recording
from predictor.models.base import Model
from predictor.models.forms import config_of, no_inputs
from predictor.models.step import Step
from predictor.models.traced.inputs import Input, inputs_of
from predictor.models.traced.model import Alone, Source, TracedModel

Kept = TypeVar("Kept")
#: Characters of a name in that of a file, below what file systems take: chosen by hand, not from data.
_LONGEST = 80


def cache_folder() -> Path:
    """Where recordings are kept: $TILECAST_CACHE, else `tilecast` in the user's cache folder (XDG)."""
    said = os.environ.get("TILECAST_CACHE")
    if said:
        return Path(said)
    return user_folder("XDG_CACHE_HOME", ".cache") / "tilecast" / "graphs"


def kept_or(make: Callable[[], Recording], name: str, key: Sequence[Any], packages: Sequence[str]) -> Recording:
    """The recording that ``make`` gives, or gave for this ``key`` with these versions of ``packages``, of torch, and of
    what records here."""
    return _kept(make, load_recording, save_recording, name, key, packages)


def kept_object(
    make: Callable[[], dict[str, Any]], name: str, key: Sequence[Any], packages: Sequence[str]
) -> dict[str, Any]:
    """As `kept_or`, of an object that JSON can hold."""

    def save(made: dict[str, Any], path: Path) -> None:
        atomic_write(path, json.dumps(made).encode())

    return _kept(make, read_json, save, name, key, packages)


def _kept(
    make: Callable[[], Kept], load: Callable[[Path], Kept], save: Callable[[Kept, Path], None], name: str,
    key: Sequence[Any], packages: Sequence[str],
) -> Kept:  # fmt: skip
    versions = [_version(each) for each in ("torch", *packages)]
    text = json.dumps([*key, versions, VERSION, __version__, _recorder()], sort_keys=True, default=str)
    plain = re.sub(r"[^\w.-]+", "_", name)[:_LONGEST]  # a file of a pipeline chooses the name of a part
    try:
        folder = cache_folder()
    except RequestError:  # a user without a home: every run makes it
        return make()
    path = folder / f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    try:
        if path.is_file():
            return load(path)
    except (RequestError, OSError):
        pass  # none that can be read
    made = make()
    with contextlib.suppress(OSError):  # a folder that cannot be written: the next run makes it again
        save(made, path)
    return made


@lru_cache(maxsize=1)
def _recorder() -> str:
    """Tells the code that records from that of other versions: its files, and those that fold what it records."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted((*package.glob("*.py"), *(package.parent / "graph").glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


FLOATS = ("fp64", "fp32", "tf32", "fp16", "bf16")


class Saved(Alone, Source):
    """One recording, whatever the step: it has to be of the recording's mode, dtype and ranks."""

    def __init__(self, recording: Recording) -> None:
        self.name = recording.name
        self.recording = recording
        self.sizes: tuple[int, int] | None = (recording.batch, recording.tokens)
        self.dtype = recording.dtype
        self.modes: tuple[str, ...] = (recording.mode,)

    def record(self, step: Step, accumulate: bool | None, tp: int = 1) -> Recording:
        self.check_whole(tp, self.recording.tp)
        return self.recording

    def parameters(self, tp: int = 1) -> int:
        return self.recording.parameters_of(tp)

    @property
    def unit(self) -> str:
        return self.recording.unit

    def cache_bytes(self, batch: int, tokens: int, kv_dtype: str, tp: int = 1) -> float:
        return 0.0


class Module(Source):
    """A module over inputs of fixed sizes, recorded when a step asks for it.

    ``build`` makes the module, or (module, inputs), on the meta device; it is called once. ``made_of``: what it follows
    from, and the packages whose versions count, where recordings are to be kept between runs (`kept`).
    """

    modes: tuple[str, ...] = ("forward", "train")
    dtype = ""

    def __init__(
        self, name: str, build: Callable[[], Any], inputs: Sequence[Input] = (),
        optimizer: Callable[[Any], Any] | None = None, loss: Callable[[Any], Any] | None = None,
        made_of: tuple[Any, Sequence[str]] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.optimizer = optimizer
        self.loss = loss
        self.plan: Mapping[str, str] | None = None
        self.made_of = made_of
        self._recordings: dict[tuple[Any, ...], Recording] = {}
        self._parts: dict[int, Module] = {}
        self._module, self._args, self._kwargs = _built(name, build, inputs)
        self._inputs = tuple(inputs)
        self.splits = any(each.split >= 0 for each in self._inputs)
        self._dtypes = [p.dtype for p in self._module.parameters()]
        first = next((t for t in (*self._args, *self._kwargs.values()) if hasattr(t, "shape")), None)
        shape = tuple(first.shape) if first is not None else ()
        self.sizes: tuple[int, int] | None = (int(shape[0]) if shape else 1, int(shape[1]) if len(shape) == 2 else 1)

    def planned(self, plan: Mapping[str, str]) -> Self:
        source = copy(self)
        source.plan, source._recordings, source._parts = plan, {}, {}
        return source

    def record(self, step: Step, accumulate: bool | None, tp: int = 1) -> Recording:
        key = (step.mode, step.act_dtype, step.attention, accumulate, tp)
        if key not in self._recordings and self.made_of is not None:
            about, packages = self.made_of
            asked = [str(each) for each in self._inputs]
            self._recordings[key] = kept_or(
                lambda: self._recorded(step, accumulate, tp), self.name, [about, asked, key, self.plan], packages
            )
        elif key not in self._recordings:
            self._recordings[key] = self._recorded(step, accumulate, tp)
        return self._recordings[key]

    def part(self, cp: int) -> Module | None:
        """The same over what one of ``cp`` ranks has of its inputs; None where none of them says how it is split."""
        if not self.splits:
            return None
        if cp not in self._parts:
            inputs = [each.part(cp) for each in self._inputs]
            self._parts[cp] = Module(self.name, lambda: self._module, inputs, made_of=self.made_of)
            self._parts[cp].plan = self.plan
        return self._parts[cp]

    def _recorded(self, step: Step, accumulate: bool | None, tp: int) -> Recording:
        from predictor.models.traced import torch_trace
        from predictor.models.traced.tensor_plan import of_one_rank

        dtype = step.act_dtype if step.act_dtype in FLOATS else "bf16"
        module = torch_trace.on_meta(self._module, dtype)
        args, kwargs = torch_trace.inputs_in(self._inputs, self._args, self._kwargs, dtype)
        assert self.sizes is not None
        return of_one_rank(module, self.plan, tp, self.name, partial(
            torch_trace.record,
            module, args, kwargs, name=self.name, mode="train" if step.mode == "train" else "forward",
            dtype=step.act_dtype, fused_attention=step.attention == "flash", accumulate=bool(accumulate),
            optimizer=self.optimizer, batch=self.sizes[0], tokens=self.sizes[1], loss=self.loss,
        ), trains=step.mode == "train")  # fmt: skip

    def parameters(self, tp: int = 1) -> int:
        if (recording := next((r for r in self._recordings.values() if r.tp == tp > 1), None)) is not None:
            return recording.parameters_of(tp)
        return sum(p.numel() for p in dict.fromkeys(self._module.parameters()))

    @property
    def unit(self) -> str:
        known = (*self._recordings.values(), *(r for part in self._parts.values() for r in part._recordings.values()))
        return known[0].unit if known else unit_of([str(each) for each in self._inputs], ())

    def cache_bytes(self, batch: int, tokens: int, kv_dtype: str, tp: int = 1) -> float:
        return 0.0


def _built(name: str, build: Callable[[], Any], asked: Sequence[Input]) -> tuple[Any, list[Any], dict[str, Any]]:
    """The module on the meta device and its arguments: those asked for, else what ``build`` gives beside it."""
    torch = need_torch()
    from predictor.models.traced import torch_trace
    from predictor.models.traced.substitutes import Unfilled

    try:
        with torch.device("meta"), Unfilled():
            made = build()
    except RequestError:
        raise
    except Exception as error:
        raise RequestError(
            f"{name}: building it failed: {type(error).__name__}: {one_line(str(error))[:300]}"
        ) from None
    module, given = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise RequestError(f"{name}: built a {type(module).__name__}; expected a torch.nn.Module, or (module, inputs)")
    module = torch_trace.on_meta(module, "")
    if asked or given is None:
        args, kwargs = torch_trace.tensors_of(asked, "fp32")
        return module, args, kwargs
    both = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict) and isinstance(given[0], list)
    args, kwargs = given if both else ([], dict(given)) if isinstance(given, Mapping) else (
        list(given) if isinstance(given, list | tuple) else [given], {}
    )  # fmt: skip
    return module, [_to_meta(a) for a in args], {k: _to_meta(v) for k, v in kwargs.items()}


def _to_meta(value: Any) -> Any:
    return value.to("meta") if hasattr(value, "untyped_storage") else value


def need_torch() -> Any:
    """torch, or the command that installs it."""
    try:
        import torch
    except ImportError:
        raise UnsupportedError(
            "tracing a model needs torch: install it with pip install 'tilecast[torch]'; a saved graph needs none"
        ) from None
    from predictor.models.traced.torchvision_operators import ready

    ready()
    return torch


def of_file(text: str, words: str | Sequence[str] | None) -> TracedModel:
    """``text`` is "file.py:name", a function without arguments, or a class, that makes a module."""
    path_text, _, name = text.rpartition(":")
    path = Path(path_text).expanduser()
    asked = inputs_of(words)
    if not path.is_file():
        raise SpecError(f"model {text!r}: no file {path_text!r}; expected file.py:function")
    need_torch()
    title = f"{path.stem}:{name}"
    module = _imported(path, text)
    maker = getattr(module, name, None)
    if maker is None:
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        close = nearest(name, names)
        tail = f"; nearest: {', '.join(close)}" if close else f"; it has {', '.join(names[:8]) or 'none'}"
        raise RequestError(
            f"model {text!r}: {path.name} has no {name!r}; expected a function that makes a module{tail}"
        )
    build = maker if callable(maker) and not _is_module(maker) else lambda: maker
    return TracedModel(title, Module(title, build, asked, getattr(maker, "optimizer", None)))


def of_json(text: str, words: str | Sequence[str] | None) -> Model:
    """A saved graph, or a config.json of another name."""
    path = Path(text).expanduser()
    data = read_json(path) if path.is_file() else {}
    if not is_recording(data):
        return config_of(text, words)
    no_inputs(words, "a saved graph has its inputs")
    recording = from_json(data, text)
    return TracedModel(recording.name, Saved(recording))


def of_exported(text: str, words: str | Sequence[str] | None) -> TracedModel:
    """An archive of torch.export over the inputs that it was exported with (or others, where its sizes are open)."""
    path = Path(text).expanduser()
    if not path.is_file():
        raise SpecError(f"model {text!r}: no such file; expected an archive of torch.export")
    need_torch()
    from predictor.models.traced.exported import exported

    asked = inputs_of(words)
    module, given = exported(path, asked)
    model = TracedModel(path.stem, Module(path.stem, lambda: (module, (given, {})), asked))
    model.source.modes = ("forward",)  # what was exported is one mode of the module
    return model


def _is_module(thing: Any) -> bool:
    import torch

    return isinstance(thing, torch.nn.Module)


def _imported(path: Path, text: str) -> Any:
    """The user's file as a module; what it imports beside it is found."""
    spec = importlib.util.spec_from_file_location(f"tilecast_model_{abs(hash(str(path.resolve())))}", path)
    if spec is None or spec.loader is None:
        raise SpecError(f"model {text!r}: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        said = one_line(f"{type(error).__name__}: {error}")[:300]
        raise RequestError(f"model {text!r}: {path.name} cannot be imported: {said}") from None
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def of_module(
    module: Any, inputs: Any = None, *, name: str = "", optimizer: Callable[[Any], Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
) -> TracedModel:  # fmt: skip
    """A module (or a function that makes one), and its inputs in words or as tensors, whose numbers are not read."""
    need_torch()
    title = name or (type(module).__name__ if _is_module(module) else getattr(module, "__name__", "model"))
    make: Callable[[], Any] = (lambda: module) if _is_module(module) else module
    if inputs is None or isinstance(inputs, str) or _all_text(inputs):
        asked = inputs_of(inputs)
        return TracedModel(title, Module(title, make, asked, optimizer, loss))
    return TracedModel(title, Module(title, lambda: (make(), inputs), (), optimizer, loss))


def _all_text(inputs: Any) -> bool:
    return isinstance(inputs, list | tuple) and bool(inputs) and all(isinstance(each, str) for each in inputs)
