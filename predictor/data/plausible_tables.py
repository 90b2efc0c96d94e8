"""Measured tables against each other: what no single row shows, a slow machine or a timer that held more than a kernel.

A row is judged by its roofline (`predictor.data.plausible`), which a machine that ran at half its speed passes. Its
table is judged by what cannot be in physics: that a product of fewer rows takes longer than one of more, which the
library could run in its place; that a board takes longer than a lesser one of its chip with the same kernels; and that
boards exchange data at a small part of what the same link gives elsewhere. Tables are judged by medians, so that a
kernel that a library picks badly stays: that is how the library is. A table of attention of which a large part shows
the host has the host's time in the rest, too. A row alone is judged by rows of its table that have more of every size
and take a small part of its time: its kernel could have done their work. Where its kin with less work are as slow, that
is how the library is, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data.frame import Frame
from predictor.data.plausible import add_flag
from predictor.data.schema import OP_COLUMNS
from predictor.errors import UnsupportedError
from predictor.hardware.generation import chip
from predictor.hardware.gpu import GPUSpec

BoolArray = npt.NDArray[np.bool_]

FEWER_SLOWER, LESSER_FASTER, LINK_SLOW = "slower_than_more_rows", "slower_than_lesser_board", "far_below_its_link"
HOST_BOUND, HOST_WITHIN = "host_bound", "host_within"
FAR_SLOWER = "far_above_its_kin"
#: What the rules below flag rows with.
TABLE_FLAGS = (FEWER_SLOWER, LESSER_FASTER, LINK_SLOW, HOST_WITHIN, FAR_SLOWER)
#: A size of a table is a fault where its products take so many times those of the next size, in the median. Chosen by
#: looking at all public tables of products: vLLM's fp8 with one row has 2.2 (B200) and 2.8 (GB200), with a constant 12
#: us on top; the next is 1.3.
_FEWER = 1.5
#: The same of a board against a lesser one, over an octave of times, and of a row in such a table. Chosen by looking at
#: the same tables: vLLM's bf16 on GB200 takes 1.2 to 1.4 times B200's in every octave from 1 ms on; of the others the
#: largest is 1.06 (H200 against H100, whose clock its faster memory holds back).
_LESSER = 1.1
#: Octaves before the first such one in which rows are looked at by themselves: chosen by looking at the same table,
#: where 1 in 10 rows from a quarter of a millisecond on is as slow.
_BEFORE = 2
#: Largest collectives reach their share of a link's rate; a system's is a fault below half of the least share of the
#: other systems of the same link, and a quarter of the link. Chosen by looking at all public tables: L40S over PCIe has
#: 0.04 to 0.16 from four boards on, RTX PRO 6000 0.3 to 0.5; no other system is below two thirds of its kin's least.
_OF_OTHERS, _OF_LINK = 0.5, 0.25
#: A table of attention is the host's where more than this share of its rows is `HOST_BOUND`. Chosen by looking at all
#: public tables: vLLM's latent ones have 0.48 (prefill on A100) to 0.83 (decode on H200), the others none. What such a
#: table has above the floor is TensorRT-LLM's time and 0.08 to 0.3 ms on top (H100, H200, bf16, up to 4 ms).
_OF_HOST = 1 / 3
#: Pairs of rows that a median is taken of at least: chosen by hand, not from data.
_FEWEST = 30
_LARGE_BYTES = 2.0**24  # what counts as large: chosen by hand, not from data
#: A row takes too long from so many times on what its kin take (`above_kin`). Chosen by looking at all public tables:
#: 65 of 6.6 million rows are beyond it, up to 191 times, in aiconfigurator's attention and experts.
_ALONE = 8.0
#: Kin on each side, and rows of the next sizes among which they are looked for, which bounds the time: chosen by hand,
#: not from data. One that is itself too fast says nothing of a row, as the other must be faster, too.
_KIN, _NEXT = 2, 48
_SIZES = (
    "batch", "m", "n", "k", "q_len", "kv_len", "tokens", "elements", "rows", "cols", "width", "parameters",
)  # fmt: skip
_ABOUT = ("gpu", "framework", "framework_version", "kernel_source", "protocol", "cache_state", "op", "dtype", "quant")
_TABLE = ("gpu", "framework", "framework_version", "dtype", "quant")


def keep_tables_apart(
    frame: Frame, gpus: Mapping[str, GPUSpec], say: Callable[[str], None] = lambda text: None
) -> None:
    """Flags the rows of tables that cannot be so, in place, and says which they are; flagged rows stay as they are."""
    for flag, judged in (
        (FEWER_SLOWER, _fewer_rows), (LESSER_FASTER, _lesser_boards), (LINK_SLOW, _links), (HOST_WITHIN, _hosts),
        (FAR_SLOWER, _lone_rows),
    ):  # fmt: skip
        for name, rows in judged(frame, gpus):
            add_flag(frame, rows, flag)
            say(f"{name}: {int(rows.sum()):,} rows kept apart ({flag})")


def _free(frame: Frame, op: str) -> npt.NDArray[np.int64]:
    rows = ((frame["op"].astype(str) == op) & (frame["flag"].astype(str) == "")).to_numpy()
    return np.flatnonzero(rows)


def _marked(frame: Frame, index: Any) -> BoolArray:
    rows = np.zeros(len(frame), dtype=bool)
    rows[index] = True
    return rows


def _tables(frame: Frame, index: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(values of ``keys``, places in the frame) of the rows at ``index``, by table."""
    for name, at in frame.iloc[index].groupby(list(keys), observed=True, sort=True).indices.items():
        yield tuple(map(str, name)), index[at]


def _fewer_rows(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[tuple[str, BoolArray]]:
    """Products of few rows (m) that take longer than those of the next larger m, and as many columns and K."""
    for name, at in _tables(frame, _free(frame, "gemm"), _TABLE):
        rows = frame.iloc[at]
        columns = [rows[c].to_numpy(dtype=float) for c in ("m", "k", "n", "batch")]
        order = np.lexsort(columns)
        m, k, n, batch = (column[order] for column in columns)
        logs = np.log(rows["latency_ms"].to_numpy(dtype=float)[order])
        same = (k[1:] == k[:-1]) & (n[1:] == n[:-1]) & (batch[1:] == batch[:-1]) & (m[1:] > m[:-1])
        gap, size = (logs[:-1] - logs[1:])[same], m[:-1][same]
        slow = [s for s in np.unique(size) if _middle(gap[size == s]) > math.log(_FEWER)]
        for s in slow:
            yield f"{' '.join(name)}, m {s:.0f}", _marked(frame, at[rows["m"].to_numpy(dtype=float) == s])


def _middle(values: Any) -> float:
    return float(np.median(values)) if len(values) >= _FEWEST else -math.inf


def _lesser_boards(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[tuple[str, BoolArray]]:
    """Products of a board that take longer than those of one of the same chip that has less of everything."""
    index = _free(frame, "gemm")
    keys = ("framework", "dtype", "quant")
    tables = dict(_tables(frame, index, ("gpu", *keys)))
    for greater, lesser in permutations(sorted({name[0] for name in tables} & set(gpus)), 2):
        for name, at in tables.items():
            other = tables.get((lesser, *name[1:]))
            if name[0] != greater or other is None or not _outdoes(gpus[greater], gpus[lesser], name[2]):
                continue
            shape = ["batch", "m", "n", "k", "quantized"] if "quantized" in frame else ["batch", "m", "n", "k"]
            ours, theirs = (frame.iloc[x][[*shape, "latency_ms"]].assign(at=x) for x in (at, other))
            both = ours.merge(theirs.groupby(shape, dropna=False)["latency_ms"].median().reset_index(), on=shape)
            gap = np.log(both["latency_ms_x"].to_numpy(float) / both["latency_ms_y"].to_numpy(float))
            octave = np.floor(np.log2(both["latency_ms_y"].to_numpy(dtype=float)))
            first = _slow_from(octave, gap)
            if first is not None:
                faulty = (octave >= first) | ((octave >= first - _BEFORE) & (gap > math.log(_LESSER)))
                yield f"{' '.join(name)} against {lesser}", _marked(frame, both["at"].to_numpy()[faulty])


def _slow_from(octave: Any, gap: Any) -> float | None:
    """The octave from which on every one with rows enough is a fault; None where the longest is none."""
    first = None
    for o in np.unique(octave)[::-1]:
        middle = _middle(gap[octave == o])
        if math.isfinite(middle):
            if middle <= math.log(_LESSER):
                break
            first = float(o)
    return first


def _outdoes(greater: GPUSpec, lesser: GPUSpec, dtype: str) -> bool:
    """Whether a board has no less of anything than another of its chip, and more of something."""
    if chip(greater.compute_capability) != chip(lesser.compute_capability) or not greater.compute_capability:
        return False
    try:
        pairs = [(gpu.peak_flops(dtype), gpu.sm_count, gpu.boost_clock_hz, gpu.memory_bandwidth, gpu.l2_bytes,
                  gpu.power_limit_w) for gpu in (greater, lesser)]  # fmt: skip
    except UnsupportedError:
        return False
    return pairs[0] != pairs[1] and all(more >= less for more, less in zip(*pairs, strict=True))


def _links(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[tuple[str, BoolArray]]:
    """Collectives of a system and number of GPUs whose largest buffers reach a small part of the link's rate."""
    index = _free(frame, "collective")
    rows = frame.iloc[index]
    if not len(rows):
        return
    n, size = rows["ranks"].to_numpy(float), rows["size"].to_numpy(float)
    near = n == rows["ranks_per_node"].to_numpy(float)
    rounds = np.where(rows["kind"].astype(str) == "all_reduce", 2.0, 1.0)
    seconds = rows["latency_ms"].to_numpy(float) / 1e3
    share = rounds * size * (n - 1.0) / n / seconds / rows["link_bandwidth"].to_numpy(float)
    large = near & (size >= _LARGE_BYTES) & np.isfinite(share)
    reached: dict[tuple[str, str, str], tuple[float, Any]] = {}
    keys = ("gpu", "system", "link", "ranks") if "system" in frame else ("gpu", "gpu", "link", "ranks")
    for (_, system, link, ranks), at in _tables(frame, index[near], keys):
        told = np.isin(index, at) & large
        if told.any():
            reached[(system, link, ranks)] = float(np.median(share[told])), at
    for (system, link, ranks), (middle, at) in reached.items():
        others = [
            v for (name, of, count), (v, _) in reached.items() if of == link and count == ranks and name != system
        ]
        if others and middle < _OF_OTHERS * min(others) and middle < _OF_LINK:
            yield f"{system}, {float(ranks):.0f} GPUs over {link}", _marked(frame, at)


def _hosts(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[tuple[str, BoolArray]]:
    """Prompts, or decode steps, of a kernel of attention a large part of which shows the host: what is left of them."""
    index = np.flatnonzero((frame["op"].astype(str) == "attention").to_numpy())
    if not len(index) or "kernel_source" not in frame:
        return
    flags = frame["flag"].astype(str).iloc[index].to_numpy()
    bound, free = np.array([HOST_BOUND in flag.split(";") for flag in flags], dtype=bool), flags == ""
    if not bound.any():
        return
    names = ["gpu", "framework", "framework_version", "kernel_source", "dtype", "kv_dtype"]
    table = frame.iloc[index][[name for name in names if name in frame]].astype(str)
    table["phase"] = np.where(frame["q_len"].iloc[index].to_numpy(dtype=float) == 1, "decode", "prefill")
    for name, at in table.groupby(list(table.columns), observed=True, sort=True).indices.items():
        if bound[at].mean() > _OF_HOST and free[at].any():
            yield " ".join(name), _marked(frame, index[at[free[at]]])


def _lone_rows(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[tuple[str, BoolArray]]:
    """Rows that take many times as long as the nearest rows of the same kernel with more work, and with less."""
    free = (frame["flag"].astype(str) == "").to_numpy() & (frame["op"].astype(str) != "collective").to_numpy()
    index = np.flatnonzero(free)
    if len(index) < 2:
        return
    order, gap = above_kin(frame.iloc[index])
    slow = index[order[gap > math.log(_ALONE)]]
    names = frame[["gpu", "framework", "op", "dtype"]].iloc[slow].astype(str).agg(" ".join, axis=1).to_numpy()
    for name in sorted(set(names)):
        yield name, _marked(frame, slow[names == name])


def above_kin(rows: Frame) -> tuple[Any, Any]:
    """(places of the rows in order, (n,) log of a row's time over the most that its kin take) where kin are the two
    nearest rows of the same kernel with no less of any size, and the two nearest with no more, of which there may be
    fewer. Where there are not two with more the log is minus infinity: nothing says how long the row may take."""
    sizes = [name for name in _SIZES if name in rows]
    same = [name for name in (*_ABOUT, *(c.name for c in OP_COLUMNS)) if name in rows and name not in sizes]
    table = rows.groupby(same, observed=True, dropna=False, sort=False).ngroup().to_numpy()
    size = rows[sizes].to_numpy(dtype=float, na_value=0.0)
    order = np.lexsort((np.log(np.maximum(size, 1.0)).sum(axis=1), table))
    table, size, logs = table[order], size[order], np.log(rows["latency_ms"].to_numpy(dtype=float)[order])
    count, longest = np.zeros((2, len(order)), dtype=int), np.full((2, len(order)), -np.inf)
    for step in range(1, min(_NEXT, len(order) - 1) + 1):
        fits = (table[step:] == table[:-step]) & (size[step:] >= size[:-step]).all(axis=1)
        before, after = slice(None, -step), slice(step, None)
        for side, near_side, other in ((0, before, after), (1, after, before)):
            use = fits & (count[side, near_side] < _KIN)
            longest[side, near_side] = np.where(
                use, np.maximum(longest[side, near_side], logs[other]), longest[side, near_side]
            )
            count[side, near_side] += use
    return order, np.where(count[0] == _KIN, logs - longest.max(axis=0), -np.inf)
