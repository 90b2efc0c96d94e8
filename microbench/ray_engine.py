"""Workers on the nodes of a Ray cluster, as workers of this machine are: the collector here writes, they measure.

An actor a board holds a worker process of its own, on whichever node Ray gives it a GPU. Where an actor is lost with
its process or its node, the case that it had is begun again by another: nothing is written by an actor.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from microbench.request import CollectionRequest
from microbench.supervisor import BenchWorker, CaseOutcome, WorkerError
from predictor.errors import RequestError

#: How long a cluster may take to give a worker its board: guards against waiting for ever, chosen by hand, not from
#: data.
_PLACED_S = 300.0
#: Beyond a case's own time, what an answer may take on its way. Chosen by hand, not from data.
_ON_THE_WAY_S = 30.0


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise RequestError("--engine ray: Ray is not installed: pip install ray") from None
    return ray


class Hand:
    """The actor: a worker process beside it, on its node. `begin` opens the device, `request` passes documents on."""

    def __init__(self, kind: str, threads: int, settings: dict[str, Any]) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0") if kind == "cuda" else ""
        self._worker = BenchWorker(kind, visible, threads, settings)

    def begin(self) -> dict[str, Any]:
        return self._worker.start()

    def request(self, document: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        answer = self._worker.request(document, timeout_s)
        return {"row": answer.row, "failure": answer.failure, "dead": answer.dead}


class RemoteWorker(BenchWorker):
    """A worker of the cluster, seen from here."""

    def __init__(self, request: CollectionRequest, number: int) -> None:
        super().__init__(request.device, f"of the cluster, number {number}", request.threads, dict(request.settings))
        self._actor: Any = None
        self._ready: Any = None

    @property
    def alive(self) -> bool:
        return self._actor is not None

    def spawn(self) -> None:
        ray = _ray()
        options = {"num_gpus": 1} if self.kind == "cuda" else {"num_cpus": max(1, self.threads)}
        self._actor = ray.remote(Hand).options(**options).remote(self.kind, self.threads, self.settings)
        self._ready = self._actor.begin.remote()

    def wait_ready(self) -> dict[str, Any]:
        ray = _ray()
        try:
            self.facts = ray.get(self._ready, timeout=_PLACED_S)
        except ray.exceptions.GetTimeoutError:
            self.stop()
            raise WorkerError(f"the cluster gave no {self.kind} within {_PLACED_S:.0f} s") from None
        except ray.exceptions.RayError as error:
            self.stop()
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise WorkerError(f"no worker {self.visible}: {lines[-1] if lines else type(error).__name__}") from None
        return self.facts

    def request(self, document: dict[str, Any], timeout_s: float) -> CaseOutcome:
        ray = _ray()
        if self._actor is None:
            return CaseOutcome(failure={"kind": "worker_died", "reason": "the worker was stopped"}, dead=True)
        try:
            outcome = ray.get(self._actor.request.remote(document, timeout_s), timeout=timeout_s + _ON_THE_WAY_S)
        except ray.exceptions.GetTimeoutError:
            self.stop()
            return CaseOutcome(failure={"kind": "timeout", "reason": f"no answer within {timeout_s:.0f} s"}, dead=True)
        except ray.exceptions.RayError as error:
            self.stop()
            why = f"the worker was lost with its node or process ({type(error).__name__})"
            return CaseOutcome(failure={"kind": "worker_died", "reason": why}, dead=True, lost=True)
        return CaseOutcome(**outcome)

    def kill(self) -> None:
        self.stop()

    def stop(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            _ray().kill(actor)


def remote_workers(request: CollectionRequest) -> list[BenchWorker]:
    """So many workers as are asked for, or as the cluster has boards. Raises RequestError where it has none."""
    ray = _ray()
    if not ray.is_initialized():
        ray.init(address=request.address, log_to_driver=False, include_dashboard=False, configure_logging=False)
    resources = ray.cluster_resources()
    room = int(resources.get("GPU", 0)) if request.device == "cuda" else int(resources.get("CPU", 0))
    count = request.workers or (room if request.device == "cuda" else 1)
    if count < 1 or count > room:
        what = "GPUs" if request.device == "cuda" else "processors"
        raise RequestError(f"--engine ray: the cluster has {room} {what}; expected {count or 'one'} or more")
    return [RemoteWorker(request, number) for number in range(count)]
