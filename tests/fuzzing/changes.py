"""Changes of valid inputs, as strategies: odd values in a tree, damaged text, damaged bytes."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

#: Values that no field has: of other kinds, beyond what counts, and those that break sums.
ODD = st.sampled_from(
    (-1, 0, 1, 2, 3, 7, 64, 1000, 2**31, 2**63, 10**20, -(10**20), 0.5, -0.5, 1e-300, 1e300, True, False, None, "",
     " ", "nonsense", "1", "-1", "1e9", "nan", "inf", "\x1b[31m", "a\nb", "٣", "0x10", [], {}, [[]], [0], [None],
     {"": 1}, {"value": 1}, ["a", "b"], "é" * 40, "../../up", "/dev/zero")
) | st.sampled_from((math.nan, math.inf, -math.inf)) | st.integers(-5, 200) | st.text(max_size=8)  # fmt: skip


def places(tree: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values of a tree, but for the tree itself."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    ways = []
    for key, value in inside:
        ways += [(*before, key), *places(value, (*before, key))]
    return ways


def _at(tree: Any, way: Sequence[Any]) -> Any:
    for key in way:
        tree = tree[key]
    return tree


@st.composite
def changed_tree(draw: st.DrawFn, tree: Any, most: int = 3, values: st.SearchStrategy[Any] = ODD) -> Any:
    """The tree with up to ``most`` of its values changed, left out, moved or doubled."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, most))):
        ways = places(tree)
        if not ways:
            return tree
        way = draw(st.sampled_from(ways))
        holder, key = _at(tree, way[:-1]), way[-1]
        value = holder[key]
        what = draw(st.sampled_from(("put", "put", "put", "scale", "drop", "move", "add")))
        if what == "drop":
            del holder[key]
        elif what == "move":
            holder[key] = copy.deepcopy(_at(tree, draw(st.sampled_from(ways))))
        elif what == "add" and isinstance(holder, list):
            holder.insert(draw(st.integers(0, len(holder))), copy.deepcopy(value))
        elif what == "add":
            holder[draw(st.text(min_size=1, max_size=6))] = copy.deepcopy(draw(values))
        elif what == "scale" and isinstance(value, int | float) and not isinstance(value, bool):
            holder[key] = draw(st.sampled_from((-value, value * 2, value * 1000, value + 1, value - 1, value / 3)))
        else:
            holder[key] = copy.deepcopy(draw(values))
    return tree


def as_json(tree: Any) -> bytes:
    """A tree as JSON (NaN and lone surrogates, too, as Python writes them)."""
    return json.dumps(tree, indent=1).encode("utf-8", "replace")


@st.composite
def damaged_text(draw: st.DrawFn, text: str) -> bytes:
    """Text with a line cut, doubled, swapped or cut short, a character changed, or another encoding."""
    lines = text.split("\n")
    at = draw(st.integers(0, max(0, len(lines) - 1)))
    what = draw(st.sampled_from(("cut", "double", "swap", "short", "character", "insert", "encoding")))
    if what == "cut":
        del lines[at]
    elif what == "double":
        lines.insert(at, lines[at])
    elif what == "swap":
        other = draw(st.integers(0, len(lines) - 1))
        lines[at], lines[other] = lines[other], lines[at]
    text = "\n".join(lines)
    place = draw(st.integers(0, len(text)))
    if what == "short":
        text = text[:place]
    elif what == "character":
        text = text[:place] + draw(st.text(max_size=2)) + text[place + 1 :]
    elif what == "insert":
        odd = st.sampled_from(
            ("\x00", "\x1b[31m", "\t", ": ", "- ", ",", '"', "&a ", "*a", "[" * 200, "\r", "\u2028", "#", "1e999")
        )
        text = text[:place] + draw(odd) + text[place:]
    if what == "encoding":
        return text.encode(draw(st.sampled_from(("utf-16", "utf-8-sig", "latin-1", "utf-32"))), "replace")
    return text.encode("utf-8", "replace")


@st.composite
def damaged_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes cut short, flipped in places, or with a piece doubled or blank."""
    what = draw(st.sampled_from(("short", "flip", "flip", "double", "blank", "tail")))
    at = draw(st.integers(0, max(0, len(data) - 1)))
    size = draw(st.integers(1, 64))
    if what == "short":
        return data[:at]
    if what == "double":
        return data[:at] + data[at : at + size] * 2 + data[at + size :]
    if what == "blank":
        return data[:at] + bytes(len(data[at : at + size])) + data[at + size :]
    if what == "tail":
        return data + draw(st.binary(max_size=64))
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 8))):
        if changed:
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)
