"""Faults on demand, for the tests and for a rehearsal before a long collection.

MICROBENCH_FAULT=KIND@N makes a worker fail at every N-th case that it is given (KIND@ID: at the case whose id begins
so): segfault (SIGSEGV), kill (SIGKILL, what the out-of-memory killer sends), exit (leaves with status 3), hang (never
answers), oom (a MemoryError), raise (a RuntimeError), poison (an error after which the device cannot be used).
"""

from __future__ import annotations

import os
import signal
import time

VARIABLE = "MICROBENCH_FAULT"


def inject(number: int, case_id: str) -> None:
    """Does what the environment asks for at case ``number`` (1 for the first of this worker)."""
    kind, _, place = os.environ.get(VARIABLE, "").partition("@")
    if not kind or not place:
        return
    if place.isdigit() and len(place) < 6:
        if number % int(place):
            return
    elif not case_id.startswith(place):
        return
    if kind in ("segfault", "kill"):
        os.kill(os.getpid(), signal.SIGSEGV if kind == "segfault" else signal.SIGKILL)
    elif kind == "exit":
        os._exit(3)
    elif kind == "hang":
        time.sleep(3600)
    elif kind == "oom":
        raise MemoryError("injected: out of memory")
    elif kind == "poison":
        raise RuntimeError("CUDA error: injected: an illegal memory access was encountered")
    raise RuntimeError("injected failure")
