"""What every fuzzed input has to come to: an answer of finite, positive figures, or one line of the product's own.

Everything else is a failure: another exception, more than `Limits.seconds` of processor time, more than `Limits.bytes`
of memory, a file that is written outside of the case's folder, a process that is started, a connection, code of the
data that runs. An audit hook of the interpreter sees the last four; what a library of C opens by itself it does not
see (`strace -f -e trace=file` does).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictor.errors import TilecastError
from tests.fuzzing.case import Case

ANSWERED, REFUSED, FAILED = "answered", "refused", "FAILED"
_ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class Limits:
    """``seconds`` of the processor and ``waits`` of the clock (other work shares the machine); ``bytes`` resident."""

    seconds: float = 10.0
    waits: float = 60.0
    bytes: int = 2 * 2**30


@dataclass(frozen=True)
class Outcome:
    """``verdict``: of `ANSWERED`, `REFUSED`, `FAILED`; ``said``: the line, or the traceback of a failure; ``where``
    tells failures apart."""

    verdict: str
    said: str = ""
    where: str = ""
    seconds: float = 0.0
    peak: int = 0


class Fault(Exception):
    """A target's answer is none, or its refusal is not one line."""


class Stopped(BaseException):
    """Raised from outside of the product, which does not catch it: too long, or something that no input may do."""


# ------------------------------------------------------------------------------------------------------- what is done

#: Events of the interpreter that write a path: event -> the places of the paths among its arguments.
_WRITES = {
    "os.remove": (0,), "os.rename": (0, 1), "os.mkdir": (0,), "os.rmdir": (0,), "os.link": (0, 1), "os.symlink": (1,),
    "os.chmod": (0,), "os.chown": (0,), "os.truncate": (0,), "os.utime": (0,), "os.setxattr": (0,),
    "shutil.rmtree": (0,), "shutil.move": (0, 1), "shutil.copyfile": (1,), "shutil.copytree": (1,),
    "tempfile.mkstemp": (0,), "tempfile.mkdtemp": (0,), "sqlite3.connect": (0,),
}  # fmt: skip
_RUNS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn")
_TALKS = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "urllib.Request", "http.client.send")


class Guard:
    """Sees what the interpreter does while it is armed; nothing of it may reach out of ``folder``.

    ``blind``: not even reading a file in the folder is allowed, but for those that the guard's owner opens.
    """

    def __init__(self) -> None:
        self.folder = ""
        self.armed = self.blind = False
        self.seen = ""

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        fault = self._fault(event, arguments)
        if fault:
            self.seen = self.seen or fault
            raise Stopped(fault)

    def _fault(self, event: str, arguments: tuple[Any, ...]) -> str:
        if event == "open":
            path, mode, flags = arguments
            if isinstance(path, int):
                return ""
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)) if flags else False
            if writes or (isinstance(mode, str) and any(letter in mode for letter in "wax+")):
                return self._outside(event, path)
            inside = self._within(path)
            return f"reads {os.fsdecode(path)}" if self.blind and inside else ""
        if event in _WRITES:
            return next(filter(None, (self._outside(event, arguments[at]) for at in _WRITES[event])), "")
        if event in _RUNS or event in _TALKS:
            return f"{event} {arguments!r:.200}"
        if event == "pickle.find_class":
            return f"unpickles {arguments!r:.200}"
        if event == "exec":
            name = getattr(arguments[0], "co_filename", "")
            return f"runs code of {name}" if name and name[0] not in "<" and self._within(name) else ""
        return ""

    def _within(self, path: Any) -> bool:
        try:
            whole = os.path.realpath(os.fsdecode(path))
        except (TypeError, ValueError):
            return True  # no path: the system refuses it
        return whole == self.folder or whole.startswith(self.folder + os.sep)

    def _outside(self, event: str, path: Any) -> str:
        if path is None or isinstance(path, int) or self._within(path) or os.fsdecode(path) == os.devnull:
            return ""
        return f"{event} writes {os.fsdecode(path)}"

    @contextlib.contextmanager
    def arm(self, folder: Path, blind: bool) -> Iterator[None]:
        self.folder, self.seen, self.blind = os.path.realpath(folder), "", blind
        writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # a first import is no fault
        self.armed = True
        try:
            yield
        finally:
            self.armed = False
            sys.dont_write_bytecode = writes_bytecode


_GUARDS: list[Guard] = []


def guard() -> Guard:
    """The one guard of this process; a hook cannot be taken out again."""
    if not _GUARDS:
        _GUARDS.append(Guard())
        sys.addaudithook(_GUARDS[0].hook)
    return _GUARDS[0]


@contextlib.contextmanager
def _timed(limits: Limits) -> Iterator[None]:
    """`Stopped` in this thread, once the time is over."""

    def over(number: int, _: Any) -> None:
        kind = f"{limits.seconds:g} s of work" if number == signal.SIGPROF else f"{limits.waits:g} s of waiting"
        raise Stopped(f"no end after {kind}")

    before = [signal.signal(number, over) for number in (signal.SIGPROF, signal.SIGALRM)]
    # again after each second, should a `finally` or a library have swallowed the first
    signal.setitimer(signal.ITIMER_PROF, limits.seconds, 1.0)
    signal.setitimer(signal.ITIMER_REAL, limits.waits, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


def _forget_peak() -> None:
    """Peaks are counted from now on, where the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak() -> int:
    """Most bytes that this process had at a time since `_forget_peak`."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# ---------------------------------------------------------------------------------------------------------- the judge


def judge(
    case: Case, target: Callable[[Case], str | None], folder: Path, limits: Limits | None = None, blind: bool = False
) -> Outcome:
    """Asks ``target`` in ``folder``, where the case's files lie. It returns None for an answer that it found good, or
    the one line of a refusal; the product's errors (`TilecastError`) are refusals, too."""
    limits = limits or Limits()
    watch = guard()
    home = Path.cwd()
    os.chdir(folder)
    _forget_peak()
    resting = _peak()
    begin = time.process_time()
    outcome = Outcome(ANSWERED)
    try:
        with warnings.catch_warnings(), watch.arm(folder, blind):
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)  # an overflow on standard error is no one line
            try:
                with _timed(limits):
                    said = target(case)
            except TilecastError as error:
                said = str(error)
        if said is not None:
            fault = not_a_line(said)
            outcome = Outcome(FAILED, f"{fault}: {said!r}", fault) if fault else Outcome(REFUSED, said)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome = Outcome(FAILED, "".join(traceback.format_exception(error)), _where(error))
    finally:
        os.chdir(home)
    if watch.seen:  # also where the product took it for an error of its own
        outcome = Outcome(FAILED, f"{watch.seen}\n{outcome.said}", f"guard: {watch.seen.split(' ')[0]}")
    peak = _peak()
    if peak > resting + limits.bytes and outcome.verdict != FAILED:
        outcome = Outcome(FAILED, f"{peak / 2**30:.1f} GiB of memory at a time", "memory")
    return Outcome(outcome.verdict, outcome.said, outcome.where, time.process_time() - begin, peak)


def _where(error: BaseException) -> str:
    """What tells a failure apart: its kind and the last line of the product that it passed."""
    ours = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if f.filename.startswith(_ROOT) and "fuzzing" not in f.filename
    ]
    at = f"{Path(ours[-1].filename).relative_to(_ROOT)}:{ours[-1].name}" if ours else "outside of the product"
    kind = str(error).split(" after")[0] if isinstance(error, Stopped | Fault) else type(error).__name__
    return f"{kind[:60]} in {at}"


def not_a_line(said: str) -> str:
    """Why a refusal is not the product's one line; "" where it is."""
    if not said.strip():
        return "a refusal without a word"
    if len(said.splitlines()) > 1:
        return "a refusal of several lines"
    if "Traceback" in said:
        return "a refusal that is a traceback"
    return ""


def check_figures(value: Any, name: str = "") -> None:
    """Fault unless all numbers are finite, and times and rates of an answer above zero or 0."""
    if isinstance(value, dict):
        for key, each in value.items():
            check_figures(each, str(key))
    elif isinstance(value, list):
        for each in value:
            check_figures(each, name)
    elif isinstance(value, float) and not math.isfinite(value):
        raise Fault(f"{name} is {value}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if name.startswith("latency") and not value > 0.0:
            raise Fault(f"{name} is {value}")
        if name.endswith(("_s", "_ms", "_bytes", "_flops")) and value < 0.0 and not name.startswith("interval"):
            raise Fault(f"{name} is {value}")


def read_answer(text: str) -> Any:
    """The JSON of an answer, its figures checked; Fault where it is none."""

    def no_number(word: str) -> None:
        raise Fault(f"{word} in the JSON of the answer")

    try:
        found = json.loads(text, parse_constant=no_number)
    except ValueError as error:
        raise Fault(f"no JSON: {error}: {text[:200]!r}") from None
    check_figures(found)
    return found
