"""How every command ends: an exit status, and one line on stderr for whatever went wrong.

Exit status 0: done; 1: the work failed; 2: the request is wrong; 128 and its number: a signal ended the command.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from predictor.errors import RequestError, TilecastError, one_line

#: Objects after which the cycle collector looks at the young ones of a command, and collections after which it looks at
#: older ones. Chosen by timing, not from data: a command keeps what it makes, and the collector found little.
_COLLECTED = 50_000, 20, 20
#: A process that a signal ended has this exit status and the signal's number. Source: POSIX shells' custom.
_SIGNALLED = 128
#: What the system says of a path that nobody can read or write.
_BAD_PATH = (errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS)


class Terminated(KeyboardInterrupt):
    """SIGTERM came, as from `kill` or a scheduler: what runs ends as after Ctrl-C, its workers with it."""


def exit_status(command: Callable[[], int]) -> int:
    """The exit status of ``command``, which returns one or raises; an error is said in one line on stderr."""
    try:
        with _terminable():
            status = command()
        if sys.stdout is None:  # closed, as by `>&-`
            return _say("standard output is closed: nobody can read the answer", 1)
        sys.stdout.flush()
        return status
    except TilecastError as error:
        return _say(str(error), error.exit_status)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _say(f"{where}{error.strerror or error}", 2 if error.errno in _BAD_PATH else 1)
    except RecursionError:
        return _say("an input is nested too deep; expected files as docs/ shows them", 2)
    except RuntimeError as error:
        if "home directory" not in str(error):  # what `Path.expanduser` says of "~" without a home, of "~nobody"
            raise
        return _say("a path begins with ~, and there is no such home folder; expected the whole path", 2)
    except Terminated:
        return _say("terminated", _SIGNALLED + signal.SIGTERM)
    except KeyboardInterrupt:
        return _say("interrupted", _SIGNALLED + signal.SIGINT)


def whole_process(command: Callable[[], int]) -> NoReturn:
    """Run a command that is all that its process does, and end with its exit status.

    The process ends as soon as all exit handlers ran and what it said is out, and does not take its objects apart,
    which the system does at once: that is a sixth of a cold command's time.
    """
    ended: list[tuple[int, int]] = []
    atexit.register(_leave, ended)  # the first handler, which runs after those that others register
    gc.set_threshold(*_COLLECTED)
    status = command()
    ended.append((os.getpid(), status))
    sys.exit(status)


def _leave(ended: list[tuple[int, int]]) -> None:
    """End this process with the status of its command, if it came to an end here and its words are read."""
    if not ended or ended[0][0] != os.getpid():
        return
    status = ended[0][1]
    try:
        for stream in (sys.stderr, sys.stdout):
            if stream is not None:
                stream.flush()
    except OSError as error:  # which a status other than 0 has said
        if not status:
            os.write(2, f"error: {error.strerror or error}\n".encode())
        os._exit(status or 1)
    except ValueError:
        return  # Python says so
    os._exit(status)


def check_working_folder() -> None:
    """RequestError, one line, where the working folder was deleted: no process can be started from there."""
    try:
        Path.cwd()
    except OSError:
        raise RequestError("the working folder was deleted; expected to be started in one that exists") from None


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises `Terminated` here, unless whoever called Tilecast has a handler of their own or another thread."""
    threads = sys.modules.get("threading")  # which nobody loaded where there is one thread
    alone = threads is None or threads.current_thread() is threads.main_thread()
    if not alone or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: object) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _say(text: str, status: int) -> int:
    if sys.stderr is not None:  # closed, as by `2>&-`: `print` would take standard output
        print(f"error: {one_line(text)}", file=sys.stderr)
    return status
