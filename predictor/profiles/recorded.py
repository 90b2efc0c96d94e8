"""What a trace recorded, in columns: kernels, the calls that launched them, operators, steps, modules, memory.

A column is an array of numbers; names and shapes, of which a trace repeats the same few, are kept once. So a trace
takes about 50 bytes an event. Times are microseconds, as the file has them.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.errors import SpecError
from predictor.profiles.calls import Signature
from predictor.profiles.events import EXPECTED, TraceFile

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

#: Events that are kept, and distinct names and shapes with the characters that they have: guards against a trace that
#: memory cannot hold, by hand. A step of a large model has some ten thousand operators.
MOST_EVENTS, MOST_TEXTS, MOST_CHARACTERS = 8_000_000, 300_000, 100_000_000
#: Microseconds, and numbers of events, by definition of what a double and a column hold.
_LATEST, _LARGEST = 1e17, 2**62
_ARGUMENTS = (
    "Input Dims", "Input type", "Input Strides", "Concrete Inputs", "Collective name", "dtype", "In msg nelems",
    "Out msg nelems", "Group size",
)  # fmt: skip
_ON_GPU = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_CALLS = frozenset(("cuda_runtime", "cuda_driver", "runtime", "driver", "xpu_runtime", "hip_runtime"))
_OPERATORS = frozenset(("cpu_op", "operator"))
_MODULE, STEP = "nn.Module: ", "ProfilerStep#"
#: `c10::DeviceType` of memory events: 1 is CUDA and 6, as boards of AMD have it, is HIP; source: c10/core/DeviceType.h.
_GPU_MEMORY = (1, 6)


class Texts:
    """Distinct texts by number."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}
        self._characters = 0

    def number(self, text: str) -> int:
        """The number of ``text``. OverflowError where there are more than any trace has."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.all)
            self.all.append(text)
            self._characters += len(text)
            if number >= MOST_TEXTS or self._characters > MOST_CHARACTERS:
                raise OverflowError
        return number


class Columns:
    """Events of one sort, by when they began: ``start`` and ``length`` in microseconds, ``name`` the number of a text
    or a shape, ``call`` the correlation and ``op`` the external id (-1: none), ``lane`` a stream or a thread, and
    ``size`` bytes of a copy."""

    def __init__(self) -> None:
        self._start, self._length = array("d"), array("d")
        self._whole = [array("q") for _ in range(5)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, start: float, length: float, *numbers: int) -> None:
        """One event: name, call, op, lane, size."""
        self._count += 1
        self._start.append(start)
        self._length.append(length)
        for column, number in zip(self._whole, numbers, strict=True):
            column.append(number)

    def close(self) -> None:
        """No more events come: the columns are arrays from here on, in order of time."""
        start = np.frombuffer(self._start, dtype=np.float64) if self._start else np.zeros(0)
        order = np.argsort(start, kind="stable")
        self.start: Floats = start[order]
        self.length: Floats = np.array(self._length, dtype=np.float64)[order]
        made: list[Whole] = [np.array(column, dtype=np.int64)[order] for column in self._whole]
        self.name, self.call, self.op, self.lane, self.size = made
        del self._start, self._length, self._whole

    @property
    def end(self) -> Floats:
        return self.start + self.length


class Span(NamedTuple):
    """A named stretch of time, in microseconds."""

    name: str
    start: float
    end: float


class Recorded:
    """A trace. ``kernels`` and ``calls`` (of the driver) have names of ``names``, ``operators`` those of
    ``signatures``, ``modules`` those of ``names``; ``spans`` are the annotations of the job."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.names, self._signatures = Texts(), Texts()
        self.kernels, self.calls, self.operators, self.modules = Columns(), Columns(), Columns(), Columns()
        self.spans: list[Span] = []
        self.capture: list[Span] = []
        self.peak_memory_bytes = 0
        self.left_out = 0
        self._lanes: dict[tuple[Any, Any], int] = {}
        self._devices: dict[int, int] = {}
        self._of_calls: dict[int, int] = {}
        self._read()
        self.signatures = [_signature(text) for text in self._signatures.all]

    @property
    def board(self) -> str:
        """What the profiler calls the board that most kernels ran on; "" where it says nothing."""
        listed = self._head.get("deviceProperties")
        boards = [b for b in listed if isinstance(b, dict)] if isinstance(listed, list) else []
        device = max(self._devices, key=lambda d: self._devices[d]) if self._devices else 0
        # A process may see one board alone, and number it by its place in the machine.
        of = next((b for b in boards if b.get("id") == device), boards[0] if boards else {})
        return str(of.get("name") or "")

    @property
    def kernel_of_call(self) -> Mapping[int, int]:
        """Correlation of a launch -> the number of the kernel's name, where the launch itself has it."""
        return self._of_calls

    def _read(self) -> None:
        file = TraceFile(self.path)
        takers: dict[str, Callable[[dict[str, Any], dict[str, Any], float, float], None]] = {
            **dict.fromkeys(_ON_GPU, self._kernel), **dict.fromkeys(_CALLS, self._call),
            **dict.fromkeys(_OPERATORS, self._operator), "python_function": self._module,
            "user_annotation": self._span,
        }  # fmt: skip
        kept = 0
        try:
            for event in file:
                kind = event.get("cat")
                taker = takers.get(kind.lower()) if isinstance(kind, str) and event.get("ph") == "X" else None
                if taker is None:
                    if kind == "cpu_instant_event":
                        self._memory(event)
                    continue
                start, length, args = event.get("ts"), event.get("dur", 0.0), event.get("args")
                if not (_is_time(start) and _is_time(length) and length >= 0 and isinstance(event.get("name"), str)):
                    self.left_out += 1
                    continue
                taker(event, args if isinstance(args, dict) else {}, float(start or 0.0), float(length))
                kept += 1
                if kept > MOST_EVENTS:
                    raise OverflowError
        except OverflowError:
            raise SpecError(
                f"cannot read {self.path}: has more events, names or shapes than fit memory (at most {MOST_EVENTS:,}"
                f" events); expected {EXPECTED} of fewer steps"
            ) from None
        self._head = file.head
        for columns in (self.kernels, self.calls, self.operators, self.modules):
            columns.close()
        self.spans.sort(key=lambda span: (span.start, -span.end))
        if not len(self.kernels) and not len(self.operators):
            raise SpecError(f"cannot read {self.path}: has no kernel and no operator; expected {EXPECTED}")

    def _lane(self, *of: Any) -> int:
        key = (str(of[0])[:40], str(of[1])[:40])
        return self._lanes.setdefault(key, len(self._lanes))

    def _kernel(self, event: dict[str, Any], args: dict[str, Any], start: float, length: float) -> None:
        lane = self._lane(event.get("pid"), args.get("stream", event.get("tid")))
        device = _number(args.get("device"))
        self._devices[device] = self._devices.get(device, 0) + 1
        name, of = self.names.number(event["name"]), _outer(args)
        self.kernels.add(start, length, name, _number(args.get("correlation")), of, lane, _number(args.get("bytes")))

    def _call(self, event: dict[str, Any], args: dict[str, Any], start: float, length: float) -> None:
        name = event["name"]
        low = name.lower()
        if low.endswith(("begincapture", "endcapture", "begincapture_v2")):
            self.capture.append(Span(name, start, start + length))
        if not any(word in low for word in ("launch", "memcpy", "memset", "synchronize", "event", "prefetch")):
            return
        call = _number(args.get("correlation"))
        if isinstance(args.get("kernel"), str) and call >= 0:
            self._of_calls[call] = self.names.number(args["kernel"])
        lane = self._lane(event.get("pid"), event.get("tid"))
        self.calls.add(start, length, self.names.number(name), call, _outer(args), lane, 0)

    def _operator(self, event: dict[str, Any], args: dict[str, Any], start: float, length: float) -> None:
        if event["name"].startswith(STEP):
            self._span(event, args, start, length)
            return
        text = json.dumps([event["name"], {key: args[key] for key in _ARGUMENTS if key in args}])
        lane = self._lane(event.get("pid"), event.get("tid"))
        self.operators.add(start, length, self._signatures.number(text), -1, _outer(args), lane, 0)

    def _module(self, event: dict[str, Any], args: dict[str, Any], start: float, length: float) -> None:
        if event["name"].startswith(_MODULE):
            name = event["name"].removeprefix(_MODULE)
            name = name.rpartition("_")[0] if name.rpartition("_")[2].isdigit() else name
            lane = self._lane(event.get("pid"), event.get("tid"))
            self.modules.add(start, length, self.names.number(name), -1, -1, lane, 0)

    def _span(self, event: dict[str, Any], args: dict[str, Any], start: float, length: float) -> None:
        if len(self.spans) < MOST_TEXTS:
            self.spans.append(Span(event["name"][:400], start, start + length))

    def _memory(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        if event.get("name") == "[memory]" and isinstance(args, dict) and args.get("Device Type") in _GPU_MEMORY:
            self.peak_memory_bytes = max(self.peak_memory_bytes, _number(args.get("Total Allocated")))


def _signature(text: str) -> Signature:
    name, arguments = json.loads(text)
    try:
        return Signature(name, arguments)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return Signature(name, {})


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < _LATEST  # type: ignore[arg-type]


def _number(value: object) -> int:
    """A number of an event; -1 where there is none."""
    return value if type(value) is int and 0 <= value < _LARGEST else -1


def _outer(args: Mapping[str, Any]) -> int:
    value = args.get("External id", args.get("external id"))
    return int(value) if isinstance(value, str) and value.isdigit() and len(value) < 18 else _number(value)
