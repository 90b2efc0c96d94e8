"""Gradient-boosted regression trees as plain arrays, walked in NumPy: no boosting library on the way of a prediction.

All trees of all rows go down one level at a time, so a forecast is D steps of a few gathers whatever the number of
trees. The nodes of all trees stand in one list, level by level: first the roots, then the two children of every node
that has any, side by side, in the order of their parents. So the list of splits alone tells where children are.
Decisions are made on distinct (feature, threshold) pairs ("splits"), each compared once a row; a node holds a split's
number. Split 0, "feature 0 > +inf", is never true: it marks a leaf, which is its own child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.errors import SpecError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Rows that go down the trees together, chosen by timing: more of them leave the processor's cache, and take a third
#: longer each.
_ROWS_AT_ONCE = 128
#: Levels after which trees that have ended are left behind, and paths for which that is worth its own cost: half of the
#: paths have ended after eight levels. Chosen by timing.
_LEFT_BEHIND, _PATHS = (8, 11), 10_000
#: Bits of a node that number its split; those above number its first child. By definition those of 16-bit splits.
_SPLIT_BITS = 16
_SPLIT = (1 << _SPLIT_BITS) - 1

_LEAF_LEVELS = 32767  # by definition the largest int16: leaf values are stored as 16-bit multiples of the largest


class Trees:
    """A sum of regression trees; ``predict`` maps features of shape (n, f) to values of shape (n,)."""

    __slots__ = (
        "_children_and_splits", "_nodes", "_values", "depth", "features", "split_feature", "split_threshold", "trees",
    )  # fmt: skip

    def __init__(
        self,
        split_feature: IntArray,
        split_threshold: FloatArray,
        nodes: IntArray,
        leaves: FloatArray,
        sizes: tuple[int, int, int],
    ) -> None:
        """``nodes`` are split numbers level by level, ``leaves`` the values of those that are 0, in their order.

        ``sizes`` are (trees, depth, features). ValueError where the counts do not fit.
        """
        self.trees, self.depth, self.features = sizes
        inner = nodes > 0
        at_leaves = np.flatnonzero(~inner)
        if len(nodes) != self.trees + 2 * (len(nodes) - len(at_leaves)) or len(leaves) != len(at_leaves):
            raise ValueError("counts of nodes and leaves do not fit")
        if nodes.max(initial=0) >= len(split_feature) or len(split_feature) != len(split_threshold):
            raise ValueError("a node of a split that is not there")
        if split_feature.max(initial=0) >= self.features:
            raise ValueError("a split of a feature that is not there")
        self.split_feature, self.split_threshold = split_feature, split_threshold
        self._nodes = nodes
        # In place: a booster has half a million nodes.
        children: IntArray = np.cumsum(inner, dtype=np.int64)
        children *= 2
        children += self.trees - 2
        children[at_leaves] = at_leaves
        children <<= _SPLIT_BITS
        children |= nodes
        self._children_and_splits = children
        self._values = np.zeros(len(nodes))
        self._values[at_leaves] = leaves

    def predict(self, x: FloatArray) -> FloatArray:
        """Sum over the trees for features ``x`` of shape (n, f), without missing values; shape (n,)."""
        if len(x) <= _ROWS_AT_ONCE:
            return self._walk(x)
        return np.concatenate([self._walk(x[i : i + _ROWS_AT_ONCE]) for i in range(0, len(x), _ROWS_AT_ONCE)])

    def _walk(self, x: FloatArray) -> FloatArray:
        rows, splits = x.shape[0], len(self.split_feature)
        # True where the value lies above the threshold, for every row and split: (n, splits).
        above = x.take(self.split_feature, axis=1) > self.split_threshold
        roots = self._children_and_splits[: self.trees]
        at: IntArray = above.take(roots & _SPLIT, axis=1) + (roots >> _SPLIT_BITS)
        if self.depth > 1:
            above, first = above.ravel(), np.repeat(np.arange(0, rows * splits, splits, dtype=np.int64), self.trees)
            self._down(at.reshape(-1), first, above, 1)
        result: FloatArray = self._values.take(at).sum(axis=1)
        return result

    def _down(self, at: IntArray, first: IntArray, above: npt.NDArray[np.bool_], level: int) -> None:
        """Takes paths that are ``at`` nodes of a level (paths,) to their leaves, in place; ``first``: where what is
        ``above`` of their rows begins."""
        node = at
        for below in range(level, self.depth):
            if below in _LEFT_BEHIND and below > level and len(node) > _PATHS:
                at[:] = node
                alive = self._nodes.take(node).nonzero()[0]
                rest = node.take(alive)
                self._down(rest, first.take(alive), above, below)
                at[alive] = rest
                return
            node = self._children_and_splits.take(node)
            split = node & _SPLIT
            split += first
            node >>= _SPLIT_BITS
            node += above.take(split)
        at[:] = node

    # ------------------------------------------------------------------------------------------------ on disk

    def pack(self, prefix: str = "") -> dict[str, npt.NDArray[Any]]:
        """Two compact arrays: whole numbers in 16 bit (splits' features, nodes, leaves) and 64-bit thresholds.

        Leaves are rounded to 1/32767 of the largest, which moves a sum of 300 trees by about 1e-5.
        """
        values = self._values[self._nodes == 0]
        scale = float(np.abs(values).max(initial=0.0)) / _LEAF_LEVELS or 1.0
        sizes = [self.trees, self.depth, self.features, len(self.split_feature)]
        leaves = np.round(values / scale).astype(np.int16).view(np.uint16)
        numbers = (sizes, self.split_feature, self._nodes)
        return {
            prefix + "nodes": np.concatenate([*(np.asarray(part).astype(np.uint16) for part in numbers), leaves]),
            prefix + "thresholds": np.append(scale, self.split_threshold),
        }

    @classmethod
    def unpack(cls, weights: Mapping[str, npt.NDArray[Any]], prefix: str = "") -> Trees:
        """The trees that ``pack`` wrote under ``prefix``; SpecError where an array is missing or cut off."""
        try:
            numbers, thresholds = weights[prefix + "nodes"], weights[prefix + "thresholds"]
            trees, depth, features, splits = (int(v) for v in numbers[:4])
            # Every inner node has two children, so that the nodes number trees + 2 inner = 2 leaves - trees.
            rest = numbers[4 + splits :]
            count = (2 * len(rest) - trees) // 3
            leaves = np.multiply(rest[count:].view(np.int16), thresholds[0], dtype=np.float64)
            feature, nodes = numbers[4 : 4 + splits].astype(np.int64), rest[:count].astype(np.int64)
            return cls(feature, thresholds[1:], nodes, leaves, (trees, depth, features))
        except (KeyError, ValueError, IndexError) as error:
            raise SpecError(f"tree arrays {prefix!r} cannot be read ({error}): written by another version?") from None

    # ------------------------------------------------------------------------------------------------ from a dump

    @classmethod
    def from_nested(cls, roots: Sequence[Mapping[str, Any]], features: int) -> Trees:
        """Trees of nested mappings as LightGBM dumps them ("split_feature", "threshold", "left_child", "leaf_value").

        Only numeric splits "<=" without missing values; SpecError for others.
        """
        numbers: dict[tuple[int, float], int] = {(0, float("inf")): 0}
        nodes: list[int] = []
        leaves: list[float] = []
        level, depth = list(roots), -1
        while level:
            depth += 1
            below: list[Mapping[str, Any]] = []
            for node in level:
                if "split_feature" not in node:
                    nodes.append(0)
                    leaves.append(float(node["leaf_value"]))
                    continue
                if node.get("decision_type", "<=") != "<=":
                    raise SpecError(f"a split of type {node['decision_type']!r}: expected '<='")
                key = (int(node["split_feature"]), float(node["threshold"]))
                nodes.append(numbers.setdefault(key, len(numbers)))
                below += (node["left_child"], node["right_child"])
            level = below
        pairs = list(numbers)
        return cls(
            np.array([feature for feature, _ in pairs], dtype=np.int64),
            np.array([threshold for _, threshold in pairs]),
            np.array(nodes, dtype=np.int64),
            np.array(leaves),
            (len(roots), max(depth, 0), features),
        )
