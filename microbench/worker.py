"""The process that owns one device: reads cases from stdin, one JSON line each, and answers on a pipe of its own.

    <- {"case": {...}, "samples_s": 0.4}  -> {"row": {...}} or {"failure": {...}, "poisoned": false}
    <- {"case": {...}, "build": true}     -> the same, the row empty: what it compiles is there
    first of all                          -> {"ready": {facts}} or {"broken": "why"}

It ends at the end of its input, and with its parent, however that ended. Whatever libraries print goes to stderr.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from microbench import faults
from microbench.case import Case

#: The profiler would write two lines a case.
_VARIABLES = {"KINETO_LOG_LEVEL": "99"}
#: torch.compile would start a pool of processes, which take time of the processor and outlive a SIGKILL.
_VARIABLES["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
Handler = Callable[[dict[str, Any]], dict[str, Any]]
Opener = Callable[[Any, dict[str, Any]], Handler]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(parent: int) -> None:
    """Asks Linux for a SIGKILL when the parent ends; elsewhere the end of the input does it, after the present case."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if parent and os.getppid() != parent:  # it ended before the request
        os._exit(1)


def classify(error: BaseException) -> str:
    """The kind of a failure: out_of_memory, illegal, wrong_result, not_captured, cuda_error or error."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text.lower():
        return "out_of_memory"
    name = type(error).__name__
    if name in ("IllegalCase", "OutOfResources"):  # the latter is Triton's: a tile too large for shared memory
        return "illegal"
    if name == "WrongResult":
        return "wrong_result"
    if "capture failed" in text:
        return "not_captured"
    if "CUDA error" in text or "CUDA graph" in text:
        return "cuda_error"
    return "error"


def reason(error: BaseException) -> str:
    """The first line of an error, with its type where the text alone would not tell."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    return text if type(error).__name__ in ("IllegalCase", "WrongResult") else f"{type(error).__name__}: {text}"[:500]


def open_measurer(device: Any, settings: dict[str, Any]) -> Handler:
    """What answers a request of `collect`: {"case": ...} -> a row."""
    from microbench.measure import Measurer
    from microbench.timing import Settings

    measurer = Measurer(device, Settings(**settings))
    count = 0

    def handle(document: dict[str, Any]) -> dict[str, Any]:
        nonlocal count
        count += 1
        case = Case.from_json(document["case"])
        faults.inject(count, case.id)
        if document.get("build"):
            return measurer.build(case)
        row: dict[str, Any] = measurer.measure(case, document.get("samples_s"), document.get("kernel"))
        return row

    return handle


def answer(device: Any, handle: Handler, document: dict[str, Any]) -> dict[str, Any]:
    """What is sent back for one request."""
    try:
        return {"row": handle(document)}
    except Exception as error:  # whatever a kernel does is data
        kind = classify(error)
        if kind == "error":
            traceback.print_exc(file=sys.stderr)
        return {"failure": {"kind": kind, "reason": reason(error)}, "poisoned": device.poisoned_by(error)}


def serve(requests: TextIO, replies: TextIO, arguments: argparse.Namespace, open_handler: Opener) -> int:
    """Opens the device and answers until the input ends."""

    def send(document: dict[str, Any]) -> None:
        replies.write(json.dumps(document) + "\n")
        replies.flush()

    try:
        from microbench.devices import open_device

        device = open_device(arguments.device, arguments.threads)
        handle = open_handler(device, json.loads(arguments.settings))
    except ModuleNotFoundError as error:
        send({"broken": f"{error.name} is not installed: pip install {error.name}"})
        return 1
    except (ImportError, RuntimeError, OSError, TypeError) as error:
        send({"broken": reason(error)})
        return 1
    send({"ready": device.facts() | {"environment": device.environment()}})
    gc.collect()
    gc.freeze()  # what PyTorch allocated at import is garbage never: graph capture collects before every capture
    for line in requests:
        send(answer(device, handle, json.loads(line)))
        try:
            device.release()
        except RuntimeError as error:  # an asynchronous error of the request before: the next answer would be its
            print(error, file=sys.stderr)
            return 4
    return 0


def main(open_handler: Opener = open_measurer) -> int:
    """Runs a worker; ``open_handler`` makes what answers its requests."""
    parser = argparse.ArgumentParser(prog="microbench.worker")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--settings", default="{}")
    parser.add_argument("--parent", type=int, default=0)
    arguments = parser.parse_args()
    end_with_parent(arguments.parent)
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return serve(sys.stdin, replies, arguments, open_handler)


if __name__ == "__main__":
    sys.exit(main())
