"""Constants of a core by name: a frozen dataclass of numbers, what a manifest keeps of it, and logarithms for a fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, field, fields
from functools import cache
from typing import Any, Self

import numpy as np

from predictor.errors import SpecError
from predictor.ops.roofline import FloatArray

#: Compute and memory time join as a p-norm in every core of serving kernels: softer than the larger, harder than the
#: sum. Chosen by hand, not from data.
NORM = 3.0


def p_norm(a: FloatArray, b: FloatArray, p: float) -> FloatArray:
    """(a^p + b^p)^(1/p) of two times, element by element."""
    larger = np.maximum(np.maximum(a, b), 1e-12)
    result: FloatArray = larger * (1.0 + (np.minimum(a, b) / larger) ** p) ** (1.0 / p)
    return result


#: Names along the axes of a constant that is an array.
Axes = tuple[tuple[str, ...], ...]


def constant(unit: str, meaning: str, *axes: tuple[str, ...]) -> Any:
    """A field of constants; an explanation prints its unit and meaning. An array has a name for every place along each
    of its ``axes``."""
    return field(metadata={"unit": unit, "meaning": meaning, "axes": axes})


def _written(value: Any, axes: Axes) -> Any:
    """A number rounded so that the same fit gives the same text everywhere; an array as such, by its names."""
    if axes:
        return {name: _written(part, axes[1:]) for name, part in zip(axes[0], value, strict=True)}
    return math.exp(round(math.log(value), 9)) if value > 0.0 else 0.0


def _read(value: Any, axes: Axes) -> Any:
    """What `_written` wrote; ValueError where the names are others."""
    if not axes:
        return float(value)
    if not isinstance(value, Mapping) or set(value) != set(axes[0]):
        raise ValueError(f"{', '.join(value) if isinstance(value, Mapping) else value}; expected {', '.join(axes[0])}")
    return np.array([_read(value[name], axes[1:]) for name in axes[0]])


class Named:
    """What the constants of every core share; a subclass is a dataclass whose fields are numbers above zero, or arrays
    of them by name (`constant`), in which 0 stands for what there is not."""

    __slots__ = ()

    @classmethod
    @cache
    def names(cls) -> tuple[str, ...]:
        """Names of the constants, in the order of a fit's logarithms."""
        return tuple(field.name for field in fields(cls))  # type: ignore[arg-type]

    @classmethod
    def from_logs(cls, logs: FloatArray) -> Self:
        """The constants whose logarithms these are, (names,)."""
        return cls(*np.exp(logs).tolist())

    def logs(self) -> FloatArray:
        """Logarithms of the constants, (names,)."""
        result: FloatArray = np.log(np.array(astuple(self)))  # type: ignore[call-overload]
        return result

    @classmethod
    def from_manifest(cls, values: Mapping[str, Any], key: str) -> Self:
        """What `to_manifest` wrote under ``key``; SpecError, one line, where the names are not exactly the fields."""
        if not cls.reads(values):
            keys = ", ".join(values) if isinstance(values, Mapping) else f"{values!r:.40}"
            raise SpecError(f"constants of {key!r} are {keys or 'none'}; expected {', '.join(cls.names())}")
        try:
            return cls(**{name: _read(values[name], axes) for name, axes in cls._axes().items()})
        except ValueError as error:
            raise SpecError(f"constants of {key!r}: {error}") from None

    @classmethod
    def reads(cls, values: Mapping[str, Any]) -> bool:
        """Whether the names are exactly the fields."""
        return isinstance(values, Mapping) and set(values) == set(cls.names())

    def to_manifest(self) -> dict[str, Any]:
        """The constants by name, rounded so that the same fit gives the same text everywhere."""
        return {name: _written(getattr(self, name), axes) for name, axes in self._axes().items()}

    @classmethod
    @cache
    def _axes(cls) -> dict[str, Axes]:
        return {field.name: field.metadata.get("axes", ()) for field in fields(cls)}  # type: ignore[arg-type]


def of_a_form(values: Mapping[str, Any], forms: Sequence[type[Named]], key: str) -> Named:
    """Constants of the form whose names they have; SpecError, one line, where it is none of ``forms``."""
    return next((form for form in forms if form.reads(values)), forms[0]).from_manifest(values, key)
