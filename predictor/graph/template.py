"""Graphs as templates: made once on sizes that record what is worked out from them, then written as a function that
makes the operators for other sizes, so that builders and passes cost nothing at the points of a sweep.

What a graph is made of is `given` by name: sizes (batch, tokens), and objects that are read (a system of GPUs). While
it is made, each of them is a `Size`, which passes for what it holds and records arithmetic, attributes and calls. What
cannot be recorded (an index, a hash, text) ends the attempt: such graphs are made directly, as all are the first time.
Every comparison is a guard: a template answers for values that compare as those did that it was made from.

The function has two halves. The ``early`` one has all that does not depend on the last of the given values, and what it
makes is remembered: steps that differ in nothing but the last are made of the same nodes and blocks.
"""

from __future__ import annotations

import math
import operator
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from predictor.graph.graph import Graph
from predictor.graph.tensor import Tensor

#: When a line of the function is run: once, when the values before the last are known, when the last is.
ONCE, EARLY, LATE = range(3)
#: Results of the early half that a template remembers.
REMEMBERED = 64
#: Templates of one structure: one for each way in which its guards may go.
VARIANTS = 8
#: How often a structure has come when its template is made, which costs about as much as making it five times.
AGAIN = 2


class Untraceable(Exception):
    """Something was asked of a `Size` that cannot be recorded."""


@dataclass(frozen=True, slots=True)
class Line:
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
        self._known: dict[str, Line] = {}
        self._when = dict.fromkeys(given, EARLY) | {self.given[-1]: LATE}
        self.sizes = {name: Size(self, value, name) for name, value in given.items()}

    def line(self, text: str, needs: Sequence[str]) -> str:
        """The name of what ``text`` works out."""
        known = self._known.get(text)
        if known is None:
            when = max((self._when[name] for name in needs), default=ONCE)
            known = self._known[text] = Line(f"v{len(self._known)}", text, tuple(needs), when)
            self._when[known.name] = when
            self.lines.append(known)
        return known.name

    def guard(self, text: str, needs: Sequence[str], outcome: bool) -> bool:
        """Records how a question came out."""
        text = f"not ({text})" if outcome else text
        if text not in self._known:
            line = self._known[text] = Line("", text, tuple(needs), max(self._when[name] for name in needs))
            self.lines.append(line)
        return outcome

    def text(self, value: object, needs: list[str]) -> str:
        """``value`` in the function's source; the names in that are added to ``needs``."""
        kind = type(value)
        if kind is Size:
            needs.append(_name(value))
            return needs[-1]
        if value is None or kind in (int, bool, str) or (kind is float and math.isfinite(value)):  # type: ignore[arg-type]
            return f"({value!r})" if kind in (int, float) and value < 0 else repr(value)  # type: ignore[operator]
        if kind is tuple:
            if value and any(isinstance(item, Tensor) for item in value):  # type: ignore[attr-defined]
                return "UNBOUND"
            if all(type(item) is int for item in value):  # type: ignore[attr-defined]
                return self._constant(value)
            return f"({''.join(f'{self.text(item, needs)}, ' for item in value)})"  # type: ignore[attr-defined]
        if is_dataclass(kind):
            return self._made(value, needs)
        raise Untraceable(f"a {kind.__name__}")

    def _constant(self, value: object) -> str:
        """The name of a value that is the same in all graphs of the structure."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def _made(self, value: object, needs: list[str]) -> str:
        """A dataclass of operators, nodes, blocks, as the name of a line that makes it."""
        kind = type(value)
        if self.names.setdefault(kind.__name__, kind) is not kind:
            raise Untraceable(f"two classes called {kind.__name__}")
        own: list[str] = []
        names, defaults = _arguments(kind)
        values = [getattr(value, name) for name in names]
        while (
            values and type(values[-1]) is type(defaults[len(values) - 1]) and values[-1] == defaults[len(values) - 1]
        ):
            values.pop()
        parts = [self.text(item, own) for item in values]
        needs.append(self.line(f"{kind.__name__}({', '.join(parts)})", own))
        return needs[-1]

    def source(self, graph: Graph) -> str:
        """The function that makes ``graph``, or None where a guard fails, in two halves."""
        result = self.text(graph, [])
        wanted, live = {result}, []
        for line in reversed(self.lines):
            if not line.name or line.name in wanted:
                wanted.update(line.needs)
                live.append(line)
        live.reverse()
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
    if not all(item.init and not item.kw_only for item in fields(kind)):
        raise Untraceable(f"how a {kind.__name__} is made")
    return tuple(item.name for item in fields(kind)), tuple(item.default for item in fields(kind))


def _written(lines: list[Line], when: int, indent: str) -> Iterator[str]:
    """The lines that are run at a time."""
    for line in lines:
        if line.when == when:
            yield f"{indent}{line.name} = {line.text}" if line.name else f"{indent}if {line.text}: return None"


def _plain(value: object) -> Any:
    """What a size holds; any other value as it is."""
    return object.__getattribute__(value, "_value") if type(value) is Size else value


def _name(value: object) -> str:
    """What a size is called in the function."""
    return str(object.__getattribute__(value, "_name"))


Method = Callable[["Size", object], "Size"]


def _operator(symbol: str, work: Callable[[Any, Any], Any], either: bool = False) -> tuple[Method, Method]:
    """The methods of a binary operator with the size on its left, and on its right; ``either`` gives the same."""

    def ahead(self: Size, other: object) -> Any:
        if symbol == "*" and type(other) in (int, float):
            if other == 0:
                return work(_plain(self), other) * 0  # sizes are finite
            if type(other) is int and other == 1 and type(_plain(self)) is int:
                return self
        needs: list[str] = []
        text = f"{self._trace.text(self, needs)} {symbol} {self._trace.text(other, needs)}"
        return Size(self._trace, work(_plain(self), _plain(other)), self._trace.line(text, needs))

    def behind(self: Size, other: object) -> Size:
        needs: list[str] = []
        text = f"{self._trace.text(other, needs)} {symbol} {self._trace.text(self, needs)}"
        return Size(self._trace, work(_plain(other), _plain(self)), self._trace.line(text, needs))

    return ahead, ahead if either else behind


def _question(symbol: str, work: Callable[[Any, Any], Any]) -> Callable[[Size, object], bool]:
    """The method of a comparison."""

    def asked(self: Size, other: object) -> bool:
        needs: list[str] = []
        text = f"{self._trace.text(self, needs)} {symbol} {self._trace.text(other, needs)}"
        return self._trace.guard(text, needs, bool(work(_plain(self), _plain(other))))

    return asked


def _call(name: str, work: Callable[[Any], Any]) -> Callable[[Size], Any]:
    """The method of a function of one value."""

    def called(self: Size) -> Size:
        needs: list[str] = []
        return Size(
            self._trace, work(_plain(self)), self._trace.line(f"{name}({self._trace.text(self, needs)})", needs)
        )

    return called


def _refused(self: object, *_: object) -> Any:
    raise Untraceable("a value as an index, a key, a machine number or text")


class Size:
    """A number or an object whose use is recorded; it passes for what it holds, but for C code that wants a number."""

    __slots__ = ("_name", "_trace", "_value")

    def __init__(self, trace: Trace, value: object, name: str) -> None:
        self._trace = trace
        self._value = value
        self._name = name

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._value)

    def __getattr__(self, name: str) -> Any:
        """An attribute of an object; None itself where it is None, which is a guard."""
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._value, name)
        needs: list[str] = []
        text = f"{self._trace.text(self, needs)}.{name}"
        if not callable(value) and self._trace.guard(f"{text} is None", needs, value is None):
            return None
        return Size(self._trace, value, self._trace.line(text, needs))

    def __call__(self, *values: object) -> Size:
        """A method of an object, which has to answer alike whenever it is asked."""
        needs: list[str] = []
        words = ", ".join(self._trace.text(value, needs) for value in values)
        text = f"{self._trace.text(self, needs)}({words})"
        return Size(self._trace, self._value(*map(_plain, values)), self._trace.line(text, needs))  # type: ignore[operator]

    def __bool__(self) -> bool:
        needs: list[str] = []
        return self._trace.guard(self._trace.text(self, needs), needs, bool(self._value))

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
    function, ``source`` its text."""

    def __init__(self, source: str, names: dict[str, Any]) -> None:
        self.source = source
        exec(_compiled(source), names)  # source that `Trace` wrote, of numbers, names and classes
        self.early: Callable[..., tuple[object, ...] | None] = lru_cache(maxsize=REMEMBERED)(names["early"])
        self.late: Callable[..., Graph | None] = names["late"]

    def graph(self, values: tuple[Any, ...]) -> Graph | None:
        """The graph for ``values``, in the order in which they were given; None where a guard fails."""
        try:
            held = self.early(*values[:-1])
            return None if held is None else self.late(held, *values)
        except (ArithmeticError, AttributeError):  # beyond what a guard would have kept out
            return None


def template_of(make: Callable[..., Graph], given: Mapping[str, object]) -> Template:
    """The template of the graph that ``make`` makes of what is ``given``, whose names it takes.

    Untraceable where something in it cannot be recorded.
    """
    trace = Trace(given)
    return Template(trace.source(make(**trace.sizes)), trace.names)


@dataclass(slots=True)
class _Seen:
    """A structure: the templates that it has, and how often none fitted since the last was made."""

    templates: list[Template] = field(default_factory=list)
    missed: int = 0
    closed: bool = False


class Templates:
    """Templates by structure, the ``most`` that were used last.

    One is made when a structure comes again: what comes once is made directly, and costs no more than that.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._seen: OrderedDict[Hashable, _Seen] = OrderedDict()

    def graphs(
        self, structure: Hashable, names: tuple[str, ...], points: Sequence[tuple[Any, ...]], make: Callable[..., Graph]
    ) -> list[Graph] | None:
        """The graphs of ``structure`` for each of ``points``, values for ``names``; None where they are to be made
        directly. ``structure`` has to name all that ``make`` reads beside them."""
        seen = self._seen.get(structure)
        if seen is None:
            seen = self._seen[structure] = _Seen()
            if len(self._seen) > self.most:
                self._seen.popitem(last=False)
        else:
            self._seen.move_to_end(structure)
        found = [_fitting(seen, values) for values in points]
        if None not in found:
            return found  # type: ignore[return-value]
        seen.missed += 1
        if seen.missed < AGAIN or seen.closed:
            return None
        seen.missed = 0
        try:
            seen.templates.append(template_of(make, dict(zip(names, points[found.index(None)], strict=True))))
        except Exception:  # whatever it is: making it directly is what says so
            seen.closed = True
            return None
        seen.closed = len(seen.templates) >= VARIANTS
        found = [graph or _fitting(seen, values) for graph, values in zip(found, points, strict=True)]
        return None if None in found else found  # type: ignore[return-value]


def _fitting(seen: _Seen, values: tuple[Any, ...]) -> Graph | None:
    for template in seen.templates:
        graph = template.graph(values)
        if graph is not None:
            return graph
    return None
