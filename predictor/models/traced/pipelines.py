"""Pipelines: several models one after the other, each so many times, as a YAML file says.

    unit: images
    sizes: {batch: 1, steps: 20, height: 1024, width: 1024}
    parts:
      denoiser:
        class: diffusers.PixArtTransformer2DModel     # or model: what `--model` takes
        config: {cross_attention_dim: 1152}
        inputs: ["hidden_states:float[2*batch,4,height/8/cp,width/8]", "timestep:int64[2*batch]"]
        times: steps

Sizes of inputs, and `times`, `batch` and `seq_len`, are whole numbers or sums, products and exact quotients of the
sizes, which a person sets with `--batch`, `--steps` and `--input "height=768"`. "/cp" marks the axis that context
parallelism splits; a part without one runs whole on every GPU. `method`: what of the class runs in place of forward;
`wide`: words in the names of parameters that stay in fp32; `dtype`: of the part, where it is not the run's; `mode`:
train, for a part that runs backward, too.

`unit` is what an entry of the batch is: images, videos, or samples, which is what it is where the file says nothing.

A part may be a list of operators in place of a model (`ops`, `predictor.models.traced.listed`): what one of `gpus`
does, a size that `--dp` sets.
"""

from __future__ import annotations

import ast
import importlib
import logging
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from predictor.errors import RequestError, SpecError, UnsupportedError, nearest, one_line
from predictor.files.records import dataclass, replace
from predictor.files.yaml_reader import read_yaml_file
from predictor.formats.dtypes import DTYPES
from predictor.graph.recording import Recording
from predictor.graph.samples import SAMPLES, TOKENS, UNITS
from predictor.models.base import Feature, Model, Part
from predictor.models.forms import model_of, pipeline_file
from predictor.models.step import Step
from predictor.models.traced.inputs import SPLIT, inputs_of
from predictor.models.traced.listed import Listed
from predictor.models.traced.model import Source, TracedModel
from predictor.models.traced.no_code import no_code
from predictor.models.traced.sources import Module, need_torch

EXPECTED = "a pipeline, with sizes and parts"
#: A size beyond this is a slip of the keyboard; chosen by hand, not from data.
_LARGEST = 2**40
#: What the batch of a pipeline may be made of.
_MADE = tuple(unit for unit in UNITS if unit != TOKENS)
_MODELS = ("class", "model", "ops")
#: How methods begin that read or write files, or that are not for others.
_NOT_FORWARD = ("_", "save", "push", "load", "from_", "register", "export")
_KEYS = frozenset((*_MODELS, "config", "method", "inputs", "times", "dtype", "wide", "batch", "seq_len", "mode"))


def of_pipeline(text: str, words: str | Sequence[str] | None) -> Pipeline:
    """The pipeline of a file, or of a name of `tilecast models`, with the sizes that ``words`` set."""
    path = pipeline_file(text)
    assert path is not None  # which is what makes ``text`` one of a pipeline
    data = read_yaml_file(path, EXPECTED)
    if not isinstance(data, Mapping) or not isinstance(data.get("parts"), Mapping) or not data["parts"]:
        raise SpecError(f"{path}: expected {EXPECTED}")
    sizes = data.get("sizes", {})
    if not isinstance(sizes, Mapping) or any(isinstance(v, bool) or not isinstance(v, int) for v in sizes.values()):
        raise SpecError(f"{path}: sizes: expected whole numbers by name")
    unit = data.get("unit", SAMPLES)
    if unit not in _MADE:
        raise SpecError(f"{path}: unit {str(unit)[:40]!r}: expected one of {', '.join(_MADE)}")
    for name, part in data["parts"].items():
        _check(f"{path}: part {name!r}", part)
    source = Steps(path, data["parts"], {"batch": 1, "gpus": 1, **sizes}, unit)
    return Pipeline(path.stem, source.sized(**_said(words, source.values)), "pipeline")


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline(TracedModel):
    """Several models one after the other, some of them at each of its steps. Its batch is that of all GPUs, whose
    number is the size "gpus"."""

    source: Steps

    @property
    def steps(self) -> int | None:
        return self.source.steps

    def parts(self) -> tuple[Part, ...]:
        return self.source.parts()

    def with_sizes(self, **sizes: int) -> Self:
        return replace(self, source=self.source.sized(**sizes)) if sizes else self

    def refusal(self, feature: Feature) -> str:
        # not super(): a dataclass with slots is another class than the one that this method was written in
        return "" if feature is Feature.REPLICAS_OF_A_PASS else TracedModel.refusal(self, feature)


class Steps(Source):
    """The parts of a file at some sizes: `predictor.models.traced.model.Source` of several models."""

    modes: tuple[str, ...] = ("forward",)
    dtype = ""

    def __init__(self, path: Path, spec: Mapping[str, Any], values: Mapping[str, int], unit: str = SAMPLES) -> None:
        self.made = unit
        self.path, self.spec, self.values = path, spec, dict(values)
        self.sizes: tuple[int, int] | None = (self.values["batch"], 1)
        self.splits = any(SPLIT in str(words) for part in spec.values() for words in part.get("inputs", ()))
        self.steps = self.values.get("steps", 1)
        self._parts: tuple[Part, ...] = ()

    def sized(self, **sizes: int) -> Steps:
        """The same with other sizes. RequestError for one that it has not, or that is no good."""
        for name, value in sizes.items():
            if name not in self.values:
                known = ", ".join(self.values)
                raise RequestError(f"{self.path.stem} has no size {name!r}; expected one of {known}")
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST:
                raise RequestError(f"{self.path.stem}: {name} {value!r}: expected a whole number, at least 1")
        return Steps(self.path, self.spec, self.values | sizes, self.made)

    def parts(self) -> tuple[Part, ...]:
        if not self._parts:
            self._parts = tuple(self._part(str(name), part) for name, part in self.spec.items())
        return self._parts

    def record(self, step: Step, accumulate: bool | None, tp: int = 1) -> Recording:
        raise UnsupportedError(f"{self.path.stem} is a pipeline; expected one of its parts")

    def parameters(self, tp: int = 1) -> int:
        return sum(part.model.parameters(tp) for part in self.parts())

    @property
    def unit(self) -> str:
        return self.made

    def planned(self, plan: Mapping[str, str]) -> Self:
        raise UnsupportedError(f"--tp-plan: {self.path.stem} is a pipeline, whose parts have plans of their own")

    def cache_bytes(self, batch: int, tokens: int, kv_dtype: str, tp: int = 1) -> float:
        return 0.0

    def _part(self, name: str, spec: Mapping[str, Any]) -> Part:
        where = f"{self.path.stem}: {name}"
        times, batch, seq_len = (
            self._size(spec.get(key, 1), f"{where}: {key}") for key in ("times", "batch", "seq_len")
        )
        words = [self._words(str(each), where) for each in spec.get("inputs", ())]
        if "model" in spec:
            named = str(spec["model"])
            beside = self.path.parent / named.split(":")[0]
            model: Model = model_of(str(self.path.parent / named) if beside.is_file() else named, words or None)
        elif "ops" in spec:
            model = TracedModel(name, Listed(name, spec["ops"], self.values["gpus"], self._size))
        else:
            cls, method = str(spec["class"]), str(spec.get("method", "forward"))
            about = [cls, spec.get("config", {}), method, spec.get("wide", [])]
            source = Module(where, lambda: _module(*about), inputs_of(words), made_of=(about, (cls.split(".")[0],)))
            model = TracedModel(name, source)
        return Part(name, model, times, str(spec.get("dtype", "")), batch, seq_len, str(spec.get("mode", "forward")))

    def _words(self, text: str, where: str) -> str:
        """An input with numbers for its sizes."""
        head, bracket, tail = text.partition("[")
        if not bracket or not tail.endswith("]"):
            raise SpecError(f"{where}: input {text!r}: expected name:dtype[sizes]")
        sizes = []
        for size in tail[:-1].split(","):
            bare = size.strip().removesuffix(SPLIT)
            sizes.append(f"{self._size(bare, where)}{SPLIT if bare != size.strip() else ''}")
        return f"{head}[{','.join(sizes)}]"

    def _size(self, said: Any, where: str) -> int:
        try:
            value = _value(ast.parse(str(said).strip(), mode="eval").body, self.values)
        except (SyntaxError, KeyError, ValueError, RecursionError) as error:
            reason = f"no size {error}" if isinstance(error, KeyError) else one_line(str(error))
            raise SpecError(
                f"{where}: {said!r}: {reason}; expected a sum, product or exact quotient of sizes"
            ) from None
        if not 0 < value <= _LARGEST:
            raise SpecError(f"{where}: {said!r} is {value:,}; expected 1 or more")
        return value


def _check(where: str, part: Any) -> None:
    """SpecError for a part that is none."""
    if not isinstance(part, Mapping) or sum(key in part for key in _MODELS) != 1:
        raise SpecError(f"{where}: expected a mapping with either class, model or ops")
    for key in part:
        if key not in _KEYS:
            close = nearest(str(key), _KEYS, 1)
            tail = f"; nearest: {close[0]}" if close else ""
            raise SpecError(f"{where}: unknown key {key!r}; expected some of {', '.join(sorted(_KEYS))}{tail}")
    for key, kind, words in (("config", Mapping, "a mapping"), ("inputs", list, "a list"), ("wide", list, "a list"),
                             ("ops", list, "a list")):  # fmt: skip
        if not isinstance(part.get(key, kind() if kind is list else {}), kind):
            raise SpecError(f"{where}: {key}: expected {words}")
    if part.get("mode", "forward") not in ("forward", "train"):
        raise SpecError(f"{where}: mode {part['mode']!r}: expected forward or train")
    if part.get("dtype", "bf16") not in DTYPES:
        raise SpecError(f"{where}: dtype {part['dtype']!r}: expected one of {', '.join(DTYPES)}")


def _said(words: str | Sequence[str] | None, known: Mapping[str, int]) -> dict[str, int]:
    """Sizes in words, "height=768 width=1360"."""
    sizes: dict[str, int] = {}
    for word in " ".join([words] if isinstance(words, str) else words or ()).replace(";", " ").split():
        name, equals, value = word.partition("=")
        if not equals or not value.isdigit():
            raise RequestError(f"--input {word!r}: expected sizes such as {next(iter(known))}=1 of a pipeline")
        sizes[name] = int(value)
    return sizes


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    """What an expression comes to: whole numbers, sizes by name, + - * and / without a rest."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return sizes[name]
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _value(left, sizes), _value(right, sizes)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div() if b and a % b == 0:
                    return a // b
                case ast.Div():
                    raise ValueError(f"{a} / {b} is no whole number")
    raise ValueError("neither a number nor a size")


@lru_cache(maxsize=16)
def _class(name: str) -> Any:
    """A class of an installed package, a torch.nn.Module; its package may be told to be loaded by `pip install`."""
    torch = need_torch()
    package, _, last = name.rpartition(".")
    if package.partition(".")[0] in sys.stdlib_module_names:  # importing some of them does something
        raise SpecError(f"class {name!r}: of the standard library; expected a torch.nn.Module of an installed package")
    logging.getLogger(package.partition(".")[0]).setLevel(logging.ERROR)  # what it says of weights is not of shapes
    try:
        cls = getattr(importlib.import_module(package or name), last, None)
    except ImportError as error:
        raise UnsupportedError(
            f"class {name}: {one_line(str(error))[:160]}; pip install {name.split('.')[0]}"
        ) from None
    if not isinstance(cls, type) or not issubclass(cls, torch.nn.Module):
        raise SpecError(f"class {name!r}: no torch.nn.Module of {package or name}")
    return cls


def _module(name: str, config: Mapping[str, Any], method: str, wide: Sequence[str]) -> Any:
    """The module of a class and its config, whose ``method`` runs as forward."""
    from predictor.models.traced.torch_trace import KEPT_WIDE

    cls = _class(name)
    if method.startswith(_NOT_FORWARD):
        raise SpecError(f"class {name}: method {method!r}; expected one that computes")
    with no_code():
        made = cls(cls.config_class(**config)) if getattr(cls, "config_class", None) is not None else cls(**config)
    setattr(made, KEPT_WIDE, tuple(wide))
    if method == "forward":
        return made
    if not callable(getattr(made, method, None)):
        raise SpecError(f"class {name}: no method {method!r}")
    return _calling(made, method)


def _calling(module: Any, method: str) -> Any:
    """A module whose forward is a ``method`` of ``module``."""
    torch = need_torch()

    class Called(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(self.inner, method)(*args, **kwargs)

    return Called()
