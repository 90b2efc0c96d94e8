"""Child processes of the tests that need not load PyTorch: forked from a process that has loaded it.

A process of the harness spends two CPU seconds on the import of PyTorch, often more than on what it is asked for, and
the tests start hundreds. A *nursery* is a process that has loaded the libraries and nothing of the project; `Popen`,
in the place of `subprocess.Popen` (`install`), has it fork for `python -m microbench ...` and its workers. The child is
a process as any other: its parent is whoever asked (clone(2), CLONE_PARENT), its standard streams, environment, working
folder, command line, signals and exit status are its own, and it loads the project's modules itself. All else starts
as ever: other commands, other variables for the interpreter, a library that PYTHONPATH hides, other systems than Linux.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import importlib.util
import inspect
import io
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

#: Modules, with those below them, that run in a child of the nursery.
MODULES = ("microbench", "torch.distributed.run")
#: What the nursery loads, and of PyTorch also what a worker or torchrun loads late.
LIBRARIES = ("numpy", "yaml", "torch", "torch.distributed.run", "torch.profiler")
#: Variables that count when an interpreter or a library starts: a child with others is started as ever.
_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "OMP_", "MKL_", "MALLOC_", "GLIBC_")
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())  # number of the system call: linux/unistd.h
_CLONE_PARENT = 0x8000  # linux/sched.h
_ROOM = 4096  # bytes of a command line that a child may write over its own
_Plain = subprocess.Popen


class Nursery:
    """The parent's side: a nursery that is forked (``fork``) or started anew, and asked for children."""

    def __init__(self, fork: bool = False) -> None:
        self._lock = threading.Lock()
        self.variables = _at_start(os.environ)
        mine, theirs = socket.socketpair()
        self._socket = mine
        if fork:
            if os.fork() == 0:
                mine.close()
                serve(theirs)
        else:
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            words = [sys.executable, "-P", __file__, str(theirs.fileno()), "-" * _ROOM]
            self._process = _Plain(words, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()

    def child(self, request: Mapping[str, Any], streams: Sequence[int]) -> int | None:
        """The process id of a new child; None where there is none to be had."""
        text = json.dumps(request).encode()
        with self._lock:
            try:
                socket.send_fds(self._socket, [len(text).to_bytes(8, "little")], streams)
                self._socket.sendall(text)
                pid = int.from_bytes(_read(self._socket, 8), "little", signed=True)
            except OSError:
                return None
        return pid if pid > 0 else None

    def close(self) -> None:
        self._socket.close()


class _State:
    nursery: Nursery | None = None


class Popen(_Plain):  # type: ignore[type-arg]
    """`subprocess.Popen`, with a child of the nursery where the command is one of `MODULES`."""

    def _execute_child(self, *given: Any) -> None:
        asked = inspect.signature(super()._execute_child).bind(*given).arguments
        pid = None if (request := _request(asked)) is None else self._born(request, asked)
        if pid is None:
            super()._execute_child(*given)
            return
        self.pid, self._child_created = pid, True
        self._close_pipe_fds(*(asked[name] for name in (
            "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"
        )))  # fmt: skip

    def _born(self, request: Mapping[str, Any], asked: Mapping[str, Any]) -> int | None:
        if _State.nursery is None:
            _State.nursery = Nursery()
            atexit.register(_State.nursery.close)
        if _State.nursery.variables != _at_start(request["environment"]):
            return None
        ends = ("p2cread", "c2pwrite", "errwrite")
        streams = [number if asked[end] == -1 else asked[end] for number, end in enumerate(ends)]
        return _State.nursery.child(request, streams)


def install() -> None:
    """Puts `Popen` in the place of `subprocess.Popen`, where there can be a nursery."""
    torch = importlib.util.find_spec("torch")
    if sys.platform == "linux" and _CLONE is not None and torch is not None:
        subprocess.Popen = Popen  # type: ignore[misc]


def _request(asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the nursery is asked for; None where the command is none for it."""
    args, env = asked["args"], os.environ if asked["env"] is None else asked["env"]
    plain = ("preexec_fn", "executable", "shell", "pass_fds", "gid", "gids", "uid")
    if isinstance(args, str | bytes | os.PathLike) or any(asked[name] for name in plain) or asked["umask"] >= 0:
        return None
    words = [os.fsdecode(word) for word in args]
    if words[:1] == [sys.executable] and words[1:2] == ["-u"]:
        del words[1]
    if len(words) < 3 or words[:2] != [sys.executable, "-m"]:
        return None
    if not any(words[2] == module or words[2].startswith(f"{module}.") for module in MODULES):
        return None
    hidden = [name.split(".")[0] for name in LIBRARIES]
    paths = [Path(path) for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    if any((path / f"{name}.py").exists() or (path / name).is_dir() for path in paths for name in hidden):
        return None
    folder = None if asked["cwd"] is None else os.fsdecode(asked["cwd"])
    if folder is not None and not Path(folder).is_dir():
        return None
    session, group = asked["start_new_session"], asked["process_group"]
    return {"words": words[2:], "environment": dict(env), "folder": folder or str(Path.cwd()), "session": session,
            "group": group}  # fmt: skip


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_AT_START) and name not in ("PYTHONPATH", "PYTHONUNBUFFERED")
    }


# ------------------------------------------------------------------------------------------------- within the nursery


def serve(asks: socket.socket) -> NoReturn:
    """Forks a child for every request, until whoever asks is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: it is for the tests
    paths = list(sys.path)
    while True:
        try:
            head, streams, _, _ = socket.recv_fds(asks, 8, 3)
            if not head:
                os._exit(0)
            request = json.loads(_read(asks, int.from_bytes(head, "little")))
        except OSError:
            os._exit(0)
        pid = _sibling() if len(list(Path("/proc/self/task").iterdir())) == 1 else -1
        if pid == 0:
            asks.close()
            _run(request, streams, paths)
        for stream in streams:
            os.close(stream)
        asks.sendall(pid.to_bytes(8, "little", signed=True))


def _sibling() -> int:
    """`os.fork`, with a child of this process's own parent."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = int(ctypes.PyDLL(None).syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    python.PyOS_AfterFork_Parent() if pid else python.PyOS_AfterFork_Child()
    return pid


def _run(request: Mapping[str, Any], streams: Sequence[int], paths: Sequence[str]) -> NoReturn:
    """Becomes the process that was asked for, and ends as it does."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        if stream > 2:
            os.close(stream)
    if request["session"]:
        os.setsid()
    if request["group"] >= 0:
        os.setpgid(0, request["group"])
    module, *words = request["words"]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    _name([sys.executable, "-m", module, *words])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        buffer = io.open(("stdin", "stdout", "stderr").index(name), f"{mode}b", closefd=False)  # noqa: UP020, SIM115
        errors = "backslashreplace" if name == "stderr" else "surrogateescape"
        lines = name == "stderr" or bool(os.environ.get("PYTHONUNBUFFERED"))
        stream = io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, line_buffering=lines)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    more = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [request["folder"], *more, *paths]
    importlib.invalidate_caches()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    _State.nursery = None
    subprocess.Popen = Popen  # type: ignore[misc]
    if not module.endswith("worker"):  # what starts workers has a nursery of its own, whose children are its children
        _State.nursery = Nursery(fork=True)
    sys.argv[:] = [module, *words]
    status = 0
    try:
        if any((Path(path) / "sitecustomize.py").is_file() for path in more):
            sys.modules.pop("sitecustomize", None)
            importlib.import_module("sitecustomize")
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status & 0xFF)


def _name(words: Sequence[str]) -> None:
    """Writes ``words`` where the kernel reads this process's command line (proc(5), arg_start and arg_end)."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _read(stream: socket.socket, count: int) -> bytes:
    data = array.array("B")
    while len(data) < count:
        part = stream.recv(count - len(data))
        if not part:
            raise ConnectionError("the other side is gone")
        data.frombytes(part)
    return data.tobytes()


def _main() -> NoReturn:
    import gc

    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    _main()
