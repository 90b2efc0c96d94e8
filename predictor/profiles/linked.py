"""Which operator launched a kernel, and what it is here: kernel -> launch -> call of PyTorch -> operators of the house.

A kernel and its launch share a correlation; a launch, or the kernel itself, has the external id of the innermost call
around it. Of that call and those around it the first that has operators here is the kernel's. The kernels of a replayed
graph have the launch of the graph alone: their calls are those of its capture, in the same order.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from predictor.errors import RequestError
from predictor.ops.base import Op
from predictor.profiles.calls import Around, copied, operators
from predictor.profiles.kernel_names import class_of, dtype_of
from predictor.profiles.recorded import Columns, Recorded, Span, Whole

#: The part of a step that decodes, as profiles of serving engines call it: sequences, and sums of queries and keys.
_DECODING = re.compile(r"generation_(\d{1,6})\(sq(\d{1,9})sk(\d{1,12})")
#: Kernels of a replay that must have the names of its capture, where both say names: chosen by hand, not from data.
_ALIKE = 0.95


class Work(NamedTuple):
    """What a kernel did: the number of its call among those of the trace (of a replay, of its capture; -1: not known),
    the call's name, its operators here (none: unmapped), and its class."""

    call: int
    name: str
    ops: tuple[Op, ...]
    kind: str


class Linked:
    """A trace with the work of every kernel: ``work[i]`` is that of kernel i, ``launch[i]`` its launch (-1: none)."""

    def __init__(self, trace: Recorded, capture: Recorded | None = None) -> None:
        self.trace = trace
        #: Whether no kernel was recorded: then calls that compute stand for kernels, each as long as it took.
        self.of_cpu = not len(trace.kernels)
        self._around = Around(_usual_dtype(trace), *_decoding(trace.spans))
        self._calls = _Calls(trace)
        if self.of_cpu:
            self._calls.stand_for_kernels(self._around)
        self.launch = _matched(trace.kernels.call, trace.calls.call)
        self.replayed = 0
        self.work: list[Work] = self._each()
        if capture is not None:
            self._replay(capture)

    def _each(self) -> list[Work]:
        kernels, names = self.trace.kernels, self.trace.names.all
        outer = np.where(
            kernels.op >= 0, kernels.op, np.where(self.launch >= 0, self.trace.calls.op[self.launch], -1)
        ) if len(self.trace.calls) else kernels.op  # fmt: skip
        place = _matched(outer, self.trace.operators.op)
        known: dict[tuple[int, int], Work] = {}
        work = []
        rows = (kernels.name.tolist(), place.tolist(), self.launch.tolist(), kernels.size.tolist())
        for name, call, launch, size in zip(*rows, strict=True):
            if call < 0 and launch >= 0:
                call = self._calls.around(launch)
            if names[name].startswith("Memcpy") and size > 0 and "DtoD" not in names[name]:
                work.append(
                    Work(call, names[name].partition(" (")[0], copied(names[name], size), class_of(names[name]))
                )
                continue
            key = (call, name)
            if key not in known:
                known[key] = self._work(names[name], call)
            work.append(known[key])
        return work

    def _work(self, name: str, call: int, calls: _Calls | None = None) -> Work:
        calls = calls or self._calls
        around = self._around._replace(dtype=dtype_of(name) or self._around.dtype)
        at, first = call, calls.name(call)
        while at >= 0:
            ops = calls.operators(at, around)
            if ops:
                return Work(at, calls.name(at), ops, _label(ops))
            at = calls.parent(at)
        return Work(call, first, (), f"{class_of(name)} (unmapped)")

    def _replay(self, capture: Recorded) -> None:
        """Gives kernels of replayed graphs the calls of ``capture``. RequestError where it is of other graphs."""
        trace, calls = self.trace, _Calls(capture)
        sequence = _launched(capture)
        replays = self.replays()
        if not replays:
            raise RequestError(f"--capture {capture.path}: {trace.path} has no replay of a graph; expected none")
        for rows in replays:
            pairs = _aligned([trace.names.all[trace.kernels.name[row]] for row in rows], sequence)
            for row, (launch, _) in zip(rows, pairs, strict=False) if pairs else ():
                place = int(_matched(capture.calls.op[[launch]], capture.operators.op)[0])
                call = place if place >= 0 else calls.around(launch)
                self.work[row] = self._work(trace.names.all[trace.kernels.name[row]], call, calls)
            self.replayed += bool(pairs)
        if not self.replayed:
            raise RequestError(
                f"--capture {capture.path}: its {len(sequence):,} launches are not those of the"
                f" {len(replays[0]):,} kernels that {trace.path} replays; expected the trace of that graph's capture"
            )

    def replays(self) -> list[list[int]]:
        """Kernels of each replay of a graph, in order."""
        names = self.trace.names.all
        graph = {i for i, name in enumerate(names) if "graphlaunch" in name.lower()}
        rows: dict[int, list[int]] = defaultdict(list)
        for row, launch in enumerate(self.launch.tolist()):
            if launch >= 0 and int(self.trace.calls.name[launch]) in graph:
                rows[launch].append(row)
        return list(rows.values())


class _Calls:
    """The calls of a trace: which is around which, and what each is here."""

    def __init__(self, trace: Recorded) -> None:
        self.trace = trace
        self._parents = _parents(trace)
        self._known: dict[tuple[int, Around], tuple[Op, ...]] = {}

    def name(self, call: int) -> str:
        return self.trace.signatures[self.trace.operators.name[call]].whole if call >= 0 else ""

    def parent(self, call: int) -> int:
        return int(self._parents[call])

    def operators(self, call: int, around: Around) -> tuple[Op, ...]:
        key = (int(self.trace.operators.name[call]), around)
        if key not in self._known:
            self._known[key] = operators(self.trace.signatures[key[0]], around)
        return self._known[key]

    def stand_for_kernels(self, around: Around) -> None:
        """The innermost calls that have operators here become the kernels of a trace that has none."""
        ops = self.trace.operators
        inner = {call for call in range(len(ops)) if self.operators(call, around)}
        for call in list(inner):
            at = self.parent(call)
            while at >= 0:
                inner.discard(at)
                at = self.parent(at)
        kernels = Columns()
        for call in sorted(inner):
            name = self.trace.names.number(self.name(call))
            kernels.add(ops.start[call], ops.length[call], name, -1, int(ops.op[call]), int(ops.lane[call]), -1)
        kernels.close()
        self.trace.kernels = kernels

    def around(self, launch: int) -> int:
        """The innermost call that runs when a launch begins, on its thread; -1 where none does."""
        ops, calls = self.trace.operators, self.trace.calls
        at = int(np.searchsorted(ops.start, calls.start[launch], side="right")) - 1
        looked = 0
        while at >= 0 and ops.lane[at] != calls.lane[launch] and looked < _NEAR:
            at, looked = at - 1, looked + 1
        while at >= 0 and ops.end[at] < calls.start[launch]:
            at = int(self._parents[at])
        return at if at >= 0 and ops.lane[at] == calls.lane[launch] else -1


#: Calls of other threads that are passed over in looking for one: chosen by hand, not from data.
_NEAR = 200


def _parents(trace: Recorded) -> Whole:
    """The call around each call, -1 for none: the stack of each thread, in order of time."""
    ops = trace.operators
    parents = np.full(len(ops), -1, dtype=np.int64)
    stacks: dict[int, list[tuple[float, int]]] = defaultdict(list)
    order = np.lexsort((-ops.length, ops.start))
    for i, lane, start, end in zip(
        order.tolist(), ops.lane[order].tolist(), ops.start[order].tolist(), ops.end[order].tolist(), strict=True
    ):
        stack = stacks[lane]
        while stack and stack[-1][0] <= start:
            stack.pop()
        if stack:
            parents[i] = stack[-1][1]
        stack.append((end, i))
    return parents


def _matched(asked: Whole, keys: Whole) -> Whole:
    """The place in ``keys`` of each of ``asked``, -1 where it is none (or is below 0); of equal keys the first."""
    if not len(keys):
        return np.full(len(asked), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], asked), len(keys) - 1)
    place = order[at]
    return np.where((asked >= 0) & (keys[place] == asked), place, -1)


def _usual_dtype(trace: Recorded) -> str:
    """The float dtype of most operands."""
    counts: Counter[str] = Counter()
    used = np.bincount(trace.operators.name, minlength=len(trace.signatures)) if len(trace.operators) else ()
    for signature, count in zip(trace.signatures, used, strict=False):
        counts.update({x.dtype: int(count) for x in signature.tensors if x.dtype in ("bf16", "fp16", "fp32")})
    return counts.most_common(1)[0][0] if counts else "fp32"


def _decoding(spans: Sequence[Span]) -> tuple[int, int]:
    """Sequences that decode, and keys of all of them, as the first step that says so has them; 0, 0 where none does."""
    match = next((m for span in spans if (m := _DECODING.search(span.name)) and int(m[1])), None)
    return (int(match[1]), int(match[3])) if match else (0, 0)


def _launched(capture: Recorded) -> list[tuple[int, str]]:
    """The launches that a capture recorded, in order, with their kernels' names ("" where they do not say)."""
    bounds = [span.start for span in capture.capture]
    start, end = (bounds[0], bounds[-1]) if len(bounds) > 1 else (-np.inf, np.inf)
    names, calls = capture.names.all, capture.calls
    return [
        (i, names[capture.kernel_of_call[call]] if call in capture.kernel_of_call else "")
        for i, (name, call, at) in enumerate(
            zip(calls.name.tolist(), calls.call.tolist(), calls.start.tolist(), strict=True)
        )
        if start <= at <= end and "launch" in names[name].lower() and "graph" not in names[name].lower()
    ]


def _aligned(names: Sequence[str], sequence: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The launch of each kernel of a replay; empty where the capture is of another graph."""
    if len(names) == len(sequence):
        said = [(a, b) for a, (_, b) in zip(names, sequence, strict=True) if b]
        if sum(a == b for a, b in said) >= _ALIKE * len(said):
            return list(sequence)
    return []


def _label(ops: Sequence[Op]) -> str:
    """The class of a call: that of the operator that does most."""
    return max(ops, key=lambda op: op.flops() + op.bytes_moved()).label
