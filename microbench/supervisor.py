"""A worker process seen from outside: started, asked, timed out, buried, and why it died."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microbench.case import Case
from predictor.errors import TilecastError
from predictor.files.commands import check_working_folder

#: How long a worker may take to end, and to begin (torch on a busy machine, CUDA's first touch): guards against hangs,
#: chosen by hand, not from data.
_END_S = 60.0
_START_S = 180.0


class WorkerError(TilecastError):
    """No worker can be started on this device."""


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """What became of a case: a row, or a failure (`kind`, `reason`), and whether the worker must be replaced; ``lost``
    where the machine that it ran on went, which says nothing of the case."""

    row: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    dead: bool = False
    lost: bool = False


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """Ends a worker and what it started, compilers above all: they are of its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class BenchWorker:
    """One worker. `start` waits until its device is open; `ask` never raises for what a case does to the worker."""

    def __init__(
        self, kind: str, visible: str, threads: int, settings: dict[str, Any], module: str = "microbench.worker",
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.variables = variables
        self.kind, self.visible, self.threads, self.settings = kind, visible, threads, settings
        self.module = module
        self.facts: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the worker

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> dict[str, Any]:
        """Starts the process and returns the facts of its device. Raises WorkerError, one line."""
        self.spawn()
        return self.wait_ready()

    def spawn(self) -> None:
        """Starts the process. It ends with the thread that called this (Linux, PR_SET_PDEATHSIG)."""
        check_working_folder()
        environment = {**os.environ, **self.variables}
        root = str(Path(__file__).resolve().parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(p for p in (root, environment.get("PYTHONPATH", "")) if p)
        if self.kind == "cuda":
            for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):  # HIP's own goes before CUDA's
                environment[name] = self.visible
            environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # indices mean what NVML and nvidia-smi mean
        command = [
            sys.executable, "-m", self.module, "--device", self.kind, "--threads", str(self.threads),
            "--settings", json.dumps(self.settings), "--parent", str(os.getpid()),
        ]  # fmt: skip
        self._log.seek(0)
        self._log.truncate()
        self._buffer = b""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )

    def wait_ready(self) -> dict[str, Any]:
        """The facts of the device, once it is open. Raises WorkerError, one line."""
        reply = self._read(_START_S)
        if reply is None or "ready" not in reply:
            why = (reply or {}).get("broken") or self._epitaph(_START_S)
            self.stop()
            raise WorkerError(f"no worker for {f'{self.kind} {self.visible}'.strip()}: {why}")
        self.facts = reply["ready"]
        return self.facts

    def ask(
        self, case: Case, timeout_s: float, samples_s: float | None = None, kernel: Mapping[str, Any] | None = None
    ) -> CaseOutcome:
        """Has ``case`` measured, with samples of ``samples_s`` at most. A worker that died or did not answer in time is
        stopped, and the case has failed. ``kernel``: what is known of its kernels."""
        told = None if kernel is None else dict(kernel)
        return self.request({"case": case.to_json(), "samples_s": samples_s, "kernel": told}, timeout_s)

    def request(self, document: dict[str, Any], timeout_s: float) -> CaseOutcome:
        """`ask` for a document of any kind."""
        self.send(document)
        return self.answer(timeout_s)

    def send(self, document: dict[str, Any]) -> None:
        """Asks; `answer` says what came of it."""
        process = self._process
        assert process is not None and process.stdin is not None
        with contextlib.suppress(OSError):  # it died before: `answer` says how
            process.stdin.write(json.dumps(document).encode() + b"\n")
            process.stdin.flush()

    def answer(self, timeout_s: float) -> CaseOutcome:
        """The answer to what was sent."""
        process = self._process
        assert process is not None
        reply = self._read(timeout_s)
        if reply is None:
            why = self._epitaph(timeout_s)
            kind = "timeout" if process.poll() is None else "worker_died"
            self.stop()
            return CaseOutcome(failure={"kind": kind, "reason": why}, dead=True)
        if "row" in reply:
            return CaseOutcome(row=reply["row"])
        return CaseOutcome(failure=reply["failure"], dead=bool(reply.get("poisoned")))

    def kill(self) -> None:
        """Ends the process from another thread; a pending `ask` returns."""
        process = self._process
        if process is not None and process.poll() is None:
            _end_all(process)

    def stop(self) -> None:
        """Ends the process, at once."""
        process = self._process
        if process is None:
            return
        _end_all(process)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver that does not let go of it: left behind
            process.wait(_END_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue
        self._process = None

    def _read(self, timeout_s: float) -> dict[str, Any] | None:
        """The next reply, or None where the process ended or the time is over."""
        process = self._process
        assert process is not None and process.stdout is not None
        handle = process.stdout.fileno()
        until = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                return None
            chunk = os.read(handle, 65536)
            if not chunk:
                process.wait()
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _epitaph(self, timeout_s: float) -> str:
        """How the process ended, with the last line that it wrote."""
        process = self._process
        assert process is not None
        status = process.poll()
        if status is None:
            return f"no answer within {timeout_s:.0f} s"
        if status < 0:
            name = signal.Signals(-status).name
            how = f"the worker was ended by {name}"
            if name == "SIGKILL":
                how += " (perhaps for want of memory)"
        else:
            how = f"the worker ended with status {status}"
        return how + self._last_words()

    def _last_words(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1][:300]}" if lines else ""
