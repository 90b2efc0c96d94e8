"""Data classes as ``dataclasses`` makes them, in a tenth of the time: a cold command defines over a hundred of them.

``dataclass`` and ``replace`` take those words of the standard library's that this package uses, and keep their meaning;
``fields``, ``asdict``, ``is_dataclass``, ``copy`` and ``inspect.signature`` work on what they make. Three things save
the time: comparison, hash and text are plain functions over one ``attrgetter``, where the standard library compiles
six methods a class; ``__init__`` is compiled when the first object is made; ``dataclasses.Field`` objects are made when
somebody asks for them. Objects of frozen classes are made in a third of the time, too (`_open_to`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, Field, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass", "replace"]

#: Objects of a class that are made before its `__init__` is compiled. Chosen by timing: compiling takes as long as 32.
_BEFORE_COMPILED = 32

if TYPE_CHECKING:  # type checkers know these two by their names
    from dataclasses import dataclass, replace
else:

    def dataclass(cls=None, /, *, eq=True, frozen=False, slots=False):
        """A class whose annotations are its fields: ``dataclasses.dataclass(eq=, frozen=, slots=)``."""

        def make(cls):
            if _needs_library(cls):
                return dataclasses.dataclass(eq=eq, frozen=frozen, slots=slots)(cls)
            return _made(cls, eq, frozen, slots)

        return make if cls is None else make(cls)

    def replace(record, /, **changes):
        """A copy of ``record`` with other values in the fields that ``changes`` names, made and checked by its class.

        Raises TypeError for a name that is no field.
        """
        plan = type(record).__dict__.get("__plan__")
        if plan is None:  # the standard library made it
            return dataclasses.replace(record, **changes)
        values = list(plan.values(record))
        for name, value in changes.items():
            try:
                values[plan.places[name]] = value
            except KeyError:
                raise TypeError(f"{type(record).__name__} has no field {name!r}") from None
        if plan.by_word:
            return type(record)(**dict(zip(plan.names, values, strict=True)))
        return type(record)(*values)


class _Factory:
    """Default of an argument whose value a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


class _Plan:
    """Fields of a class in order: name -> default, a ``Field``, or MISSING; and which of them come by word alone."""

    __slots__ = ("by_word", "cls", "defaults", "eq", "frozen", "key", "names", "places", "values")

    def __init__(self, cls: type, defaults: dict[str, Any], by_word: frozenset[str], eq: bool, frozen: bool) -> None:
        self.cls = cls
        self.defaults = defaults
        self.by_word = by_word
        self.eq = eq
        self.frozen = frozen
        self.names = tuple(defaults)
        self.places = {name: place for place, name in enumerate(self.names)}
        self.values = _getter(self.names)
        compared = tuple(name for name, value in defaults.items() if not isinstance(value, Field) or value.compare)
        self.key = self.values if compared == self.names else _getter(compared)

    def init(self) -> Callable[..., None]:
        """``__init__`` of the class, compiled from its fields."""
        cls: Any = self.cls
        scope: dict[str, Any] = {"_FACTORY": _FACTORY, "_set": object.__setattr__}
        words: list[str] = []
        lines: list[str] = []
        open_cls = _open_to(cls) if self.frozen else None
        by_name = not self.frozen or open_cls is not None
        by_place = [name for name in self.names if name not in self.by_word]
        for name in (*by_place, *(name for name in self.names if name in self.by_word)):
            value = self.defaults[name]
            if len(words) == len(by_place) and self.by_word:
                words.append("*")
            default, factory = (value.default, value.default_factory) if isinstance(value, Field) else (value, MISSING)
            given = name
            if factory is not MISSING:
                scope[f"_factory_{name}"] = factory
                words.append(f"{name}=_FACTORY")
                given = f"_factory_{name}() if {name} is _FACTORY else {name}"
            elif default is not MISSING:
                scope[f"_default_{name}"] = default
                words.append(f"{name}=_default_{name}")
            else:
                words.append(name)
            lines.append(f" self.{name} = {given}" if by_name else f" _set(self, {name!r}, {given})")
        if open_cls is not None:
            scope |= {"_Frozen": cls, "_Open": open_cls, "_set_each": self.set_each}
            of_subclass = (
                f" if self.__class__ is not _Frozen: return _set_each(self, ({''.join(f'{n}, ' for n in self.names)}))"
            )
            lines = [of_subclass, ' _set(self, "__class__", _Open)', *lines, " self.__class__ = _Frozen"]
        if hasattr(cls, "__post_init__"):
            lines.append(" self.__post_init__()")
        exec(f"def __init__(self, {', '.join(words)}):\n" + ("\n".join(lines) or " pass"), scope)
        init: Callable[..., None] = scope["__init__"]
        init.__qualname__ = f"{cls.__qualname__}.__init__"
        init.__module__ = cls.__module__
        init.__annotations__ = {**self.kinds(), "return": None}
        return init

    def set_each(self, record: Any, values: tuple[Any, ...]) -> None:
        """Sets the fields of an object of a subclass, and has it check itself."""
        for name, value in zip(self.names, values, strict=True):
            object.__setattr__(record, name, self.defaults[name].default_factory() if value is _FACTORY else value)
        if hasattr(record, "__post_init__"):
            record.__post_init__()

    def bound(self, args: tuple[Any, ...], words: dict[str, Any]) -> dict[str, Any] | None:
        """Field -> value of an object of these arguments; None where one is missing, unknown, or there twice."""
        by_place = [name for name in self.names if name not in self.by_word] if self.by_word else self.names
        given = dict(zip(by_place, args, strict=False))
        if len(args) > len(by_place) or not words.keys() <= self.places.keys() or given.keys() & words.keys():
            return None
        given |= words
        values: dict[str, Any] = {}
        for name, value in self.defaults.items():
            if name in given:
                values[name] = given[name]
                continue
            default = value
            if isinstance(value, Field):
                default = value.default if value.default_factory is MISSING else value.default_factory()
            if default is MISSING:
                return None
            values[name] = default
        return values

    def kinds(self) -> dict[str, Any]:
        """What the class and its bases annotate: field -> type."""
        kinds: dict[str, Any] = {}
        for base in reversed(self.cls.__mro__):
            kinds |= _annotations(base)
        return {name: kinds[name] for name in self.names}


class _Signature:
    """``__signature__`` of a class whose ``__init__`` may not be compiled yet."""

    def __get__(self, record: object, cls: Any) -> Any:
        import inspect

        owner = next(kind for kind in cls.__mro__ if "__init__" in kind.__dict__)
        if "__plan__" not in owner.__dict__:
            raise AttributeError("__signature__")
        whole = inspect.signature(owner.__dict__["__plan__"].init())
        return whole.replace(parameters=list(whole.parameters.values())[1:])


class _OfLibrary:
    """An attribute that the standard library gives its data classes, such as their fields, made when asked for."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, record: object, cls: type) -> Any:
        owner = next(kind for kind in cls.__mro__ if kind.__dict__.get(self.name) is self)
        plan = owner.__dict__["__plan__"]
        body = {name: value for name, value in plan.defaults.items() if value is not MISSING}
        body |= {"__annotations__": plan.kinds(), "__module__": owner.__module__}
        body["__doc__"] = owner.__name__  # without one the library writes the signature, which takes milliseconds
        told = {"eq": plan.eq, "frozen": plan.frozen} if self.name == "__dataclass_params__" else {"eq": False}
        like: Any = dataclasses.dataclass(init=False, repr=False, **told)(type(owner.__name__, (), body))
        made = getattr(like, self.name)
        if self.name == "__dataclass_fields__":
            for name in plan.by_word:
                made[name].kw_only = True
        setattr(owner, self.name, made)
        return made


def _annotations(cls: type) -> dict[str, Any]:
    """What the class's own body annotates."""
    kinds: dict[str, Any] = cls.__dict__.get("__annotations__", {})  # noqa: RUF063 - inspect's way imports inspect
    return kinds


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Values of ``names`` in an object, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda record: (getattr(record, names[0]),)) if names else (lambda record: ())


def _open_to(cls: type) -> type | None:
    """A class laid out as the frozen ``cls``, whose attributes can be set: an object is one while `__init__` fills it,
    which takes a third of the time of ``object.__setattr__`` for each field. None where objects have a dictionary,
    which they would lose their quick way to, and where a base counts its subclasses."""
    if cls.__dictoffset__ or any("__init_subclass__" in base.__dict__ for base in cls.__mro__[:-1]):
        return None
    body = {"__slots__": cls.__dict__.get("__slots__", ()), "__setattr__": object.__setattr__}
    return type(cls)(cls.__name__, cls.__bases__, body)


def _needs_library(cls: type) -> bool:
    """Whether the class has a base that the standard library made."""
    return any("__dataclass_fields__" in base.__dict__ and "__plan__" not in base.__dict__ for base in cls.__mro__[1:])


def _made(cls: type, eq: bool, frozen: bool, slots: bool) -> type:
    """``cls`` with the methods of a data class: itself, or a new class of its name where it has slots."""
    defaults: dict[str, Any] = {}
    by_word: set[str] = set()
    for base in cls.__mro__[-1:0:-1]:
        if "__plan__" in base.__dict__:
            defaults |= base.__dict__["__plan__"].defaults
            by_word |= base.__dict__["__plan__"].by_word
    inherited = set(defaults)
    body = dict(cls.__dict__)
    words_follow = False
    for name, kind in _annotations(cls).items():
        if kind is KW_ONLY or kind in ("KW_ONLY", "dataclasses.KW_ONLY"):
            words_follow = True
        elif not str(kind).startswith(("ClassVar", "typing.ClassVar")):
            (by_word.add if words_follow else by_word.discard)(name)
            defaults[name] = body.pop(name, MISSING) if slots else body.get(name, MISSING)
    if slots:
        body.pop("__dict__", None)
        body.pop("__weakref__", None)
        body["__slots__"] = tuple(name for name in defaults if name not in inherited)
        made = type(cls)(cls.__name__, cls.__bases__, body)
        made.__qualname__ = cls.__qualname__
    else:
        made = cls
        for name, value in defaults.items():
            if isinstance(value, Field):
                delattr(made, name) if value.default is MISSING else setattr(made, name, value.default)
    plan = _Plan(made, defaults, frozenset(by_word), eq, frozen)
    added: dict[str, Any] = {
        "__plan__": plan,
        "__dataclass_fields__": _OfLibrary("__dataclass_fields__"),
        "__dataclass_params__": _OfLibrary("__dataclass_params__"),
        "__match_args__": tuple(name for name in plan.names if name not in by_word),
        "__signature__": _Signature(),
        "__repr__": _repr,
        "__init__": _first_init(plan),
    }
    if eq:
        added |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
    if frozen:
        added |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
        if slots:
            added |= {"__getstate__": _get_state, "__setstate__": _set_state}
    if body.get("__hash__", added) is None and "__eq__" in body:
        del body["__hash__"]  # Python put it there beside the class's __eq__
    for name, value in added.items():
        if name not in body:
            setattr(made, name, value)
    return made


def _first_init(plan: _Plan) -> Callable[..., None]:
    """``__init__`` of the first objects of a class. It sets field by field; for more objects, and for arguments that do
    not fit, which the class's own names as Python does, that is compiled: it takes as long as thirty objects here."""
    left = _BEFORE_COMPILED

    def __init__(self: Any, *args: Any, **words: Any) -> None:
        nonlocal left
        left -= 1
        values = plan.bound(args, words) if left > 0 else None
        if values is None:
            init = plan.init()
            plan.cls.__init__ = init  # type: ignore[misc]
            init(self, *args, **words)
            return
        for name, value in values.items():
            object.__setattr__(self, name, value)
        checks = getattr(self, "__post_init__", None)
        if checks is not None:
            checks()

    return __init__


def _repr(self: Any) -> str:
    pairs = zip(self.__plan__.names, self.__plan__.values(self), strict=True)
    return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in pairs)})"


def _eq(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    key = self.__plan__.key
    return key(self) == key(other)


def _hash(self: Any) -> int:
    return hash(self.__plan__.key(self))


def _refuse_set(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> tuple[Any, ...]:
    values: tuple[Any, ...] = self.__plan__.values(self)
    return values


def _set_state(self: Any, state: tuple[Any, ...]) -> None:
    for name, value in zip(self.__plan__.names, state, strict=True):
        object.__setattr__(self, name, value)
