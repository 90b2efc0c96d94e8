"""Gradient-boosted regression trees as plain arrays, walked in NumPy: no boosting library on the way of a prediction.

Every tree sits in a heap of one depth D: node p has the children 2p + 1 (value <= threshold) and 2p + 2. All trees of
all rows go down one level at a time, so a forecast is D steps of a few gathers whatever the number of trees. Decisions
are made on distinct (feature, threshold) pairs ("splits"), each compared once a row; a node holds a split's number.
A leaf above the last level is found by going left: the split "feature 0 > +inf" is never true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.errors import SpecError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_LEAF_LEVELS = 32767  # leaf values are stored as 16-bit multiples of the largest


class Trees:
    """A sum of regression trees; ``predict`` maps features of shape (n, f) to values of shape (n,)."""

    __slots__ = ("_leaves", "_levels", "_offsets", "depth", "features", "split_feature", "split_threshold", "trees")

    def __init__(
        self, split_feature: IntArray, split_threshold: FloatArray, nodes: IntArray, leaves: FloatArray, features: int
    ) -> None:
        """``nodes`` (trees, 2^D - 1) holds split numbers, ``leaves`` (trees, 2^D) values; split 0 is never true."""
        self.trees, slots = leaves.shape
        self.depth = slots.bit_length() - 1
        self.features = features
        self.split_feature = split_feature
        self.split_threshold = split_threshold
        self._levels = tuple(
            np.ascontiguousarray(nodes[:, 2**level - 1 : 2 ** (level + 1) - 1]).ravel() for level in range(self.depth)
        )
        self._leaves = np.ascontiguousarray(leaves).ravel()
        self._offsets = np.arange(self.trees, dtype=np.int64)[:, None]

    def predict(self, x: FloatArray) -> FloatArray:
        """Sum over the trees for features ``x`` of shape (n, f), without missing values; shape (n,)."""
        rows = x.shape[0]
        # True where the value lies above the threshold, for every split and row: (splits, n), flattened.
        above = (x.T.take(self.split_feature, axis=0) > self.split_threshold[:, None]).ravel()
        row = np.arange(rows, dtype=np.int64)
        at = np.repeat(self._offsets, rows, axis=1)  # position within the level, counted over all trees
        for level in self._levels:
            split = level.take(at)
            split *= rows
            split += row
            at += at
            at += above.take(split)
        result: FloatArray = self._leaves.take(at).sum(axis=0)
        return result

    # ------------------------------------------------------------------------------------------------ on disk

    def pack(self, prefix: str = "") -> dict[str, npt.NDArray[Any]]:
        """Two compact arrays: whole numbers in 16 bit (used nodes, their heap positions, leaves) and 64-bit thresholds.

        Leaves are rounded to 1/32767 of the largest, which moves a sum of 300 trees by about 1e-5.
        """
        nodes = np.concatenate([level.reshape(self.trees, -1) for level in self._levels], axis=1)
        used = nodes > 0
        values = self._leaves.reshape(self.trees, -1)[_leaf_mask(used)]
        scale = float(np.abs(values).max(initial=0.0)) / _LEAF_LEVELS or 1.0
        sizes = [self.trees, self.depth, self.features, len(self.split_feature)]
        numbers = (sizes, self.split_feature, used.sum(axis=1), np.nonzero(used)[1], nodes[used])
        leaves = np.round(values / scale).astype(np.int16).view(np.uint16)
        return {
            prefix + "numbers": np.concatenate([*(np.asarray(part).astype(np.uint16) for part in numbers), leaves]),
            prefix + "thresholds": np.append(scale, self.split_threshold),
        }

    @classmethod
    def unpack(cls, weights: Mapping[str, npt.NDArray[Any]], prefix: str = "") -> Trees:
        """The trees that ``pack`` wrote under ``prefix``; SpecError where an array is missing or cut off."""
        try:
            numbers, thresholds = weights[prefix + "numbers"], weights[prefix + "thresholds"]
            trees, depth, features, splits = (int(v) for v in numbers[:4])
            split_feature, counts, rest = np.split(numbers[4:], (splits, splits + trees))
            total = int(counts.sum())
            positions, nodes, leaves = np.split(rest, (total, 2 * total))
            heap = np.zeros((trees, 2**depth - 1), dtype=np.int64)
            heap[np.repeat(np.arange(trees), counts.astype(np.int64)), positions] = nodes
            values = np.zeros((trees, 2**depth))
            values[_leaf_mask(heap > 0)] = leaves.view(np.int16) * float(thresholds[0])
        except (KeyError, ValueError, IndexError) as error:
            raise SpecError(f"tree arrays {prefix!r} cannot be read ({error}): written by another version?") from None
        return cls(split_feature.astype(np.int64), thresholds[1:], heap, values, features)

    # ------------------------------------------------------------------------------------------------ from a dump

    @classmethod
    def from_nested(cls, roots: Sequence[Mapping[str, Any]], features: int) -> Trees:
        """Trees of nested mappings as LightGBM dumps them ("split_feature", "threshold", "left_child", "leaf_value").

        Only numeric splits "<=" without missing values; SpecError for others.
        """
        depth = max(1, max((_depth(root) for root in roots), default=1))
        numbers: dict[tuple[int, float], int] = {(0, float("inf")): 0}
        nodes = np.zeros((len(roots), 2**depth - 1), dtype=np.int64)
        leaves = np.zeros((len(roots), 2**depth))
        for tree, root in enumerate(roots):
            for position, level, node in _walk(root, 0, 0):
                if "split_feature" not in node:
                    leaves[tree, (position + 1) * 2 ** (depth - level) - 2**depth] = node["leaf_value"]
                    continue
                if node.get("decision_type", "<=") != "<=":
                    raise SpecError(f"a split of type {node['decision_type']!r}: expected '<='")
                key = (int(node["split_feature"]), float(node["threshold"]))
                nodes[tree, position] = numbers.setdefault(key, len(numbers))
        pairs = list(numbers)
        return cls(
            np.array([feature for feature, _ in pairs], dtype=np.int64),
            np.array([threshold for _, threshold in pairs]),
            nodes,
            leaves,
            features,
        )


def _leaf_mask(used: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """(trees, 2^D) True at the slot of every leaf, given which of the (trees, 2^D - 1) nodes are splits."""
    trees, count = used.shape
    slots = count + 1
    mask = np.zeros((trees, slots), dtype=np.bool_)
    live = np.ones((trees, 1), dtype=np.bool_)  # whether a node of this level exists
    width = 1
    while width < slots:
        split = used[:, width - 1 : 2 * width - 1]
        mask[:, :: slots // width] |= live & ~split
        live = np.repeat(split, 2, axis=1)
        width *= 2
    mask |= live
    return mask


def _depth(node: Mapping[str, Any]) -> int:
    if "split_feature" not in node:
        return 0
    return 1 + max(_depth(node["left_child"]), _depth(node["right_child"]))


def _walk(node: Mapping[str, Any], position: int, level: int) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    yield position, level, node
    if "split_feature" in node:
        yield from _walk(node["left_child"], 2 * position + 1, level + 1)
        yield from _walk(node["right_child"], 2 * position + 2, level + 1)
