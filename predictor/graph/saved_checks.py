"""What a saved graph may say: whole counts, finite numbers, places that there are, operators of sizes that can be.

Each raises ValueError, of one line, for what no recording holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from predictor.formats.dtypes import DTYPES
from predictor.graph.graph import Graph
from predictor.ops import Gemm, Op

_T = TypeVar("_T")
#: A number beyond these is no size, count, bytes or FLOPs of any machine; chosen by hand, not from data.
_LARGEST = 2**63
_LARGEST_WORK = 1e30
#: Characters of a name, and views of views: guards, chosen by hand, not from data.
_LONGEST = 10_000
DEEPEST_VIEW = 256
#: Dtypes of tensors that no operator computes in.
NO_NUMBERS = ("bool", "complex64", "complex128")


def whole(value: Any, name: str, least: int = 0) -> int:
    """``value``, a whole number from ``least`` on: no fraction, no truth value."""
    if type(value) is not int or not least <= value < _LARGEST:
        raise ValueError(f"{name} is {value!r:.40}; expected a whole number, at least {least}")
    return value


def number(value: Any, name: str, least: float = 0.0, most: float = _LARGEST_WORK) -> float:
    """``value``, a finite number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r:.40}; expected a number from {least:g} to {most:g}")
    return value


def text(value: Any, name: str) -> str:
    """``value``, a text that is not too long."""
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ValueError(f"{name} is {value!r:.40}; expected a text")
    return value


def at(values: Sequence[_T], place: Any) -> _T:
    """What stands at a place of a list; no list is read from its end."""
    if type(place) is not int or not 0 <= place < len(values):
        raise ValueError(f"place {place!r:.40} of {len(values)}")
    return values[place]


def checked_op(op: Op) -> Op:
    """``op``, whose fields are of their types, sizes at least 1, none below 0 but its default, and names known."""
    for field in fields(op):
        value, name = getattr(op, field.name), f"{field.name} of {type(op).__name__}"
        if field.default is not MISSING and value == field.default and type(value) is type(field.default):
            continue
        if field.type == "int":
            whole(value, name, least=int(field.default is MISSING))  # a size; flags and places may be 0
        elif field.type == "float":
            number(value, name)
        elif field.type == "bool":
            if not isinstance(value, bool):
                raise ValueError(f"{name} is {value!r:.40}; expected true or false")
        elif text(value, name) and field.name == "dtype" and value not in (*DTYPES, *NO_NUMBERS):
            raise ValueError(f"{name} is {value!r:.40}; expected one of {', '.join(DTYPES)}")
    try:
        op.flops(), op.bytes_moved()
    except KeyError as error:  # a function, a kind of optimizer, by name
        raise ValueError(f"{type(op).__name__} has no {error}") from None
    return op


def check_order(graph: Graph) -> None:
    """A node reads what a node before it made, or what was there: ValueError for a graph that goes in a circle."""
    first: dict[int, int] = {}
    nodes = [node for block in graph.blocks for node in block.nodes]
    for place, node in enumerate(nodes):
        for tensor in node.outputs:
            first.setdefault(id(tensor.storage), place)
    carried = {id(t.storage) for b in graph.blocks for pair in (b.carried, *b.running) if pair for t in pair}
    for place, node in enumerate(nodes):
        for tensor in node.inputs:
            made = first.get(id(tensor.storage), -1)
            if made > place and id(tensor.storage) not in carried:
                raise ValueError(f"node {node.name!r} reads {tensor.name!r}, which {nodes[made].name!r} makes later")


def check_operands(graph: Graph) -> None:
    """Every node of a built graph makes something else than it reads, a product of two: ValueError for another."""
    for node in (node for block in graph.blocks for node in block.nodes):
        if not node.outputs:
            raise ValueError(f"node {node.name!r} makes no tensor; expected at least one")
        made = {id(tensor.storage) for tensor in node.outputs}
        if any(id(tensor.storage) in made for tensor in node.inputs):
            raise ValueError(f"node {node.name!r} reads what it makes itself")
        if isinstance(node.op, Gemm) and len(node.inputs) < 2:
            raise ValueError(f"node {node.name!r}, a product, reads {len(node.inputs)}; expected two tensors")
