"""Graphs as templates: made once on sizes that record what is worked out from them, then written as a function that
makes the operators for other sizes, so that builders and passes cost nothing at the points of a sweep.

What a graph is made of is `given` by name: sizes (batch, tokens), and objects that are read (a system of GPUs). While
it is made, each of them is a `RecordedSize`, which passes for what it holds and records arithmetic, attributes and
calls. What cannot be recorded (an index, a hash, text) ends the attempt.
Every comparison is a guard: a template answers for values that compare as those did that it was made from.

For many points at once sizes are arrays, and the same lines make one graph, whose operators hold columns; a guard is a
mask then, and takes out the points that compare otherwise.

The function has two halves. The ``early`` one has all that does not depend on the last of the given values, and what it
makes is remembered: steps that differ in nothing but the last are made of the same nodes and blocks.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.graph.graph import Graph
from predictor.graph.tensor import Tensor

BoolArray = npt.NDArray[np.bool_]

#: When a line of the function is run: once, when the values before the last are known, when the last is;
#: numbered by definition.
ONCE, EARLY, LATE = range(3)
#: Types of what stands in the function's source as it is.
_PLAIN = {int, float, str, bool, type(None)}
#: Results of the early half that a template remembers: guards against memory without end, chosen by hand, not from
#: data.
REMEMBERED = 64


class Untraceable(Exception):
    """Something was asked of a `RecordedSize` that cannot be recorded."""


class Line(NamedTuple):
    """One line of the function: what ``name`` stands for, or a guard ("" as name).

    ``needs``: the names in its text; ``when``: one of ONCE, EARLY, LATE.
    """

    name: str
    text: str
    needs: tuple[str, ...]
    when: int


class Trace:
    """Everything that is worked out while a graph is made, in order, each once."""

    def __init__(self, given: Mapping[str, object]) -> None:
        self.given = tuple(given)
        self.lines: list[Line] = []
        self.names: dict[str, Any] = {"UNBOUND": UNBOUND}
        self.columns = ""
        self._sizes: dict[str, RecordedSize] = {}
        self._asked: set[str] = set()
        self._made_of: dict[str, Line] = {}
        self.sizes = {
            name: RecordedSize(self, value, name, LATE if name == self.given[-1] else EARLY)
            for name, value in given.items()
        }

    def size(self, text: str, operands: Sequence[RecordedSize], work: Callable[[], object]) -> RecordedSize:
        """What ``text`` works out of ``operands``; ``work`` gives its value."""
        recorded = self._sizes.get(text)
        if recorded is None:
            line = self._line(text, [each._name for each in operands], max(each._when for each in operands))
            recorded = self._sizes[text] = RecordedSize(self, work(), line.name, line.when)
        return recorded

    def guard(self, text: str, operands: Sequence[RecordedSize], outcome: bool) -> bool:
        """Records how a question came out."""
        text = f"not ({text})" if outcome else text
        if text not in self._asked:
            self._asked.add(text)
            names = tuple(each._name for each in operands)
            self.lines.append(Line("", text, names, max(each._when for each in operands)))
        return outcome

    def text(self, value: Any, operands: list[RecordedSize]) -> str:
        """A number or the like in the function's source; a size is added to ``operands``."""
        kind = type(value)
        if kind is RecordedSize:
            operands.append(value)
            return str(value._name)
        if kind is int or (kind is float and math.isfinite(value)):
            return repr(value) if value >= 0 else f"({value!r})"
        if kind is str or kind is bool or value is None:
            return repr(value)
        raise Untraceable(f"a {kind.__name__}")

    def _line(self, text: str, needs: Sequence[str], when: int) -> Line:
        line = Line(f"v{len(self.lines)}", text, tuple(needs), when)
        self.lines.append(line)
        return line

    def _constant(self, value: object) -> str:
        """The name of a value that is the same in all graphs of the structure."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def _part(self, value: Any, needs: list[Line | RecordedSize]) -> str:
        """Part of a graph in the function's source; what that refers to is added to ``needs``."""
        kind = type(value)
        if kind in _PLAIN or kind is RecordedSize:
            operands: list[RecordedSize] = []
            text = self.text(value, operands)
            needs.extend(operands)
            return text
        if kind is tuple:
            if value and isinstance(value[0], Tensor):
                return "UNBOUND"
            if value and all(type(item) is int for item in value):
                return self._constant(value)
            return f"({''.join([f'{self._part(item, needs)}, ' for item in value])})"
        line = self._made(value)
        needs.append(line)
        return line.name

    def _made(self, value: Any) -> Line:
        """The line that makes a dataclass: an operator, a node, a block, the graph."""
        kind: Any = type(value)
        names, defaults = _arguments(kind)
        if self.names.setdefault(kind.__name__, kind) is not kind:
            raise Untraceable(f"two classes called {kind.__name__}")
        values = [getattr(value, name) for name in names]
        while values and _alike(values[-1], defaults[len(values) - 1]):
            values.pop()
        needs: list[Line | RecordedSize] = []
        text = f"{kind.__name__}({', '.join([self._part(item, needs) for item in values])})"
        line = self._made_of.get(text)
        if line is None:
            operands, when = [], ONCE
            for each in needs:
                name, known = (each._name, each._when) if type(each) is RecordedSize else (each.name, each.when)
                operands.append(name)
                when = max(when, known)
            line = self._made_of[text] = self._line(text, operands, when)
        return line

    def source(self, graph: Graph) -> str:
        """The function that makes ``graph``, or None where a guard fails, in two halves; ``columns`` becomes that which
        makes one graph of many points."""
        result = self._made(graph).name
        needed, live = {result}, []
        for line in reversed(self.lines):
            if not line.name or line.name in needed:
                needed.update(line.needs)
                live.append(line)
        live.reverse()
        self.columns = "\n".join(
            [
                f"def columns(ok, {', '.join(self.given)}):",
                *_in_columns(live),
                f"    return {result}, ok",
            ]
        )
        late = {name for line in live if line.when == LATE for name in line.needs} | {result}
        held = [line.name for line in live if line.when == EARLY and line.name in late]
        names = ", ".join(self.given)
        return "\n".join(
            [
                *_written(live, ONCE, ""),
                f"def early({', '.join(self.given[:-1])}):",
                *_written(live, EARLY, "    "),
                f"    return ({''.join(f'{name}, ' for name in held)})",
                f"def late(held, {names}):",
                f"    ({''.join(f'{name}, ' for name in held)}) = held",
                *_written(live, LATE, "    "),
                f"    return {result}",
            ]
        )


@lru_cache(maxsize=256)
def _arguments(kind: Any) -> tuple[tuple[str, ...], tuple[object, ...]]:
    """The fields of a dataclass in the order in which it takes them, and their defaults, MISSING for none."""
    if not is_dataclass(kind) or not all(item.init and not item.kw_only for item in fields(kind)):
        raise Untraceable(f"how a {kind.__name__} is made")
    return tuple(item.name for item in fields(kind)), tuple(item.default for item in fields(kind))


def _alike(value: object, default: object) -> bool:
    """Whether a field has its default, which needs not be said."""
    return value is default or (type(value) in _PLAIN and type(value) is type(default) and value == default)


def _written(lines: list[Line], when: int, indent: str) -> Iterator[str]:
    """The lines that are run at a time."""
    for line in lines:
        if line.when == when:
            yield f"{indent}{line.name} = {line.text}" if line.name else f"{indent}if {line.text}: return None"


def _in_columns(lines: list[Line]) -> Iterator[str]:
    """The lines for sizes that are arrays, those that are run once apart: a guard takes out the points that fail it."""
    for line in lines:
        if line.name:
            if line.when != ONCE:
                yield f"    {line.name} = {line.text}"
        elif line.text.startswith("not ("):
            yield f"    ok = passed(ok, {line.text.removeprefix('not ')})"
        else:
            yield f"    ok = failed(ok, {line.text})"


def passed(ok: BoolArray, condition: Any) -> BoolArray:
    """The points of ``ok`` for which a condition holds."""
    result: BoolArray = ok & (condition != 0 if isinstance(condition, np.ndarray) else bool(condition))
    return result


def failed(ok: BoolArray, condition: Any) -> BoolArray:
    """The points of ``ok`` for which a condition does not hold."""
    result: BoolArray = ok & (condition == 0 if isinstance(condition, np.ndarray) else not condition)
    return result


def rounded(value: Any) -> Any:
    """``round`` of a number, and of each of a column: the even one of two whole numbers."""
    if not isinstance(value, np.ndarray):
        return round(value)
    return np.array([round(each) for each in value.tolist()], dtype=object)


def _plain(value: Any) -> Any:
    """What a size holds; any other value as it is."""
    return value._value if type(value) is RecordedSize else value


Method = Callable[["RecordedSize", object], Any]


def _operator(symbol: str, work: Callable[[Any, Any], Any], either: bool = False) -> tuple[Method, Method]:
    """The methods of a binary operator with the size on its left, and on its right; ``either`` gives the same."""

    def ahead(self: RecordedSize, other: object) -> Any:
        if symbol == "*" and type(other) in (int, float):
            if other == 0:
                return self._value * other * 0  # sizes are finite
            if other == 1 and type(other) is type(self._value):
                return self
        operands = [self]
        text = f"{self._name} {symbol} {self._trace.text(other, operands)}"
        return self._trace.size(text, operands, lambda: work(self._value, _plain(other)))

    def behind(self: RecordedSize, other: object) -> Any:
        operands = [self]
        text = f"{self._trace.text(other, operands)} {symbol} {self._name}"
        return self._trace.size(text, operands, lambda: work(_plain(other), self._value))

    return ahead, ahead if either else behind


def _question(symbol: str, work: Callable[[Any, Any], Any]) -> Callable[[RecordedSize, object], bool]:
    """The method of a comparison."""

    def asked(self: RecordedSize, other: object) -> bool:
        operands = [self]
        text = f"{self._name} {symbol} {self._trace.text(other, operands)}"
        return self._trace.guard(text, operands, bool(work(self._value, _plain(other))))

    return asked


def _call(name: str, work: Callable[[Any], Any]) -> Callable[[RecordedSize], Any]:
    """The method of a function of one value."""

    def called(self: RecordedSize) -> RecordedSize:
        return self._trace.size(f"{name}({self._name})", (self,), lambda: work(self._value))

    return called


def _refused(self: object, *_: object) -> Any:
    raise Untraceable("a value as an index, a key, a machine number or text")


class RecordedSize:
    """A number or an object whose use is recorded; it passes for what it holds, but for C code that wants a number."""

    __slots__ = ("_name", "_trace", "_value", "_when")

    def __init__(self, trace: Trace, value: Any, name: str, when: int) -> None:
        self._trace = trace
        self._value = value
        self._name = name
        self._when = when

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._value)

    def __getattr__(self, name: str) -> Any:
        """An attribute of an object; None itself where it is None, which is a guard."""
        if name.startswith("__"):
            raise AttributeError(name)
        value, text = getattr(self._value, name), f"{self._name}.{name}"
        if not callable(value) and self._trace.guard(f"{text} is None", (self,), value is None):
            return None
        return self._trace.size(text, (self,), lambda: value)

    def __call__(self, *values: object) -> RecordedSize:
        """A method of an object, which has to answer alike whenever it is asked."""
        operands = [self]
        words = ", ".join(self._trace.text(value, operands) for value in values)
        return self._trace.size(f"{self._name}({words})", operands, lambda: self._value(*map(_plain, values)))

    def __bool__(self) -> bool:
        return self._trace.guard(self._name, (self,), bool(self._value))

    __add__, __radd__ = _operator("+", operator.add, either=True)
    __sub__, __rsub__ = _operator("-", operator.sub)
    __mul__, __rmul__ = _operator("*", operator.mul, either=True)
    __truediv__, __rtruediv__ = _operator("/", operator.truediv)
    __floordiv__, __rfloordiv__ = _operator("//", operator.floordiv)
    __mod__, __rmod__ = _operator("%", operator.mod)
    __lt__, __le__ = _question("<", operator.lt), _question("<=", operator.le)
    __gt__, __ge__ = _question(">", operator.gt), _question(">=", operator.ge)
    __eq__, __ne__ = _question("==", operator.eq), _question("!=", operator.ne)
    __neg__, __abs__, __round__ = _call("-", operator.neg), _call("abs", abs), _call("round", round)
    __hash__ = __index__ = __int__ = __float__ = __complex__ = __trunc__ = __ceil__ = __floor__ = _refused
    __str__ = __repr__ = __format__ = _refused
    __iter__ = __len__ = __getitem__ = __contains__ = __pow__ = __rpow__ = __divmod__ = __rdivmod__ = _refused


class _Unbound(tuple[Any, ...]):
    """Stands for the tensors of a bound graph, which has operators alone: who wants them makes the graph directly."""

    def _missing(self, *_: object) -> Any:
        raise RuntimeError("a graph bound from a template has no tensors: make it directly (predictor.simulate.lower)")

    __iter__ = __len__ = __getitem__ = __contains__ = __bool__ = _missing


UNBOUND = _Unbound()


@lru_cache(maxsize=256)
def _compiled(source: str) -> CodeType:
    """Structures that differ in nothing that the function says share it: engines, for one."""
    return compile(source, "<template>", "exec")


class Template:
    """What makes the operators of one structure for other values: ``early`` and ``late`` are the halves of the
    function, ``source`` its text, ``in_columns`` that of the function for many points."""

    def __init__(self, source: str, names: dict[str, Any], in_columns: str) -> None:
        self.source = source
        self._in_columns, self._names = in_columns, names
        exec(_compiled(source), names)  # source that `Trace` wrote, of numbers, names and classes
        self.early: Callable[..., tuple[object, ...] | None] = lru_cache(maxsize=REMEMBERED)(names["early"])
        self.late: Callable[..., Graph | None] = names["late"]

    def graph(self, values: tuple[Any, ...]) -> Graph | None:
        """The graph for ``values``, in the order in which they were given; None where it has to be made directly, as a
        guard or an operator does not take them."""
        try:
            held = self.early(*values[:-1])
            return None if held is None else self.late(held, *values)
        except Exception:  # whoever makes it directly is told
            return None

    def columns(self, values: tuple[Any, ...], count: int) -> tuple[Graph, BoolArray]:
        """One graph of ``count`` points, whose sizes are arrays of shape (count,), and for which of them it holds.

        The others' guards fail. Columns hold Python's own numbers, which do not overflow: a rank's part of a tensor is
        worked out of products of two tensors' elements. Raises whatever arithmetic on them raises.
        """
        numbers = (value.astype(object) if isinstance(value, np.ndarray) else value for value in values)
        return self._of_columns(np.ones(count, dtype=bool), *numbers)

    @cached_property
    def _of_columns(self) -> Callable[..., tuple[Graph, BoolArray]]:
        names = {**self._names, "passed": passed, "failed": failed, "round": rounded}
        exec(_compiled(self._in_columns), names)  # source that `Trace` wrote, too
        made: Callable[..., tuple[Graph, BoolArray]] = names["columns"]
        return made


def template_of(make: Callable[..., Graph], given: Mapping[str, object]) -> Template:
    """The template of the graph that ``make`` makes of what is ``given``, whose names it takes.

    Untraceable where something in it cannot be recorded.
    """
    trace = Trace(given)
    source = trace.source(make(**trace.sizes))
    return Template(source, trace.names, trace.columns)
