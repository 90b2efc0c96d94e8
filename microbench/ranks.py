"""Ranks that measure as one: a process a GPU, a collective between them, and one answer.

Every time that a rank takes, and every decision that it makes by its clock, is agreed on over a group of its own on the
host (gloo), so that all ranks launch, capture and replay alike; a sample is the time of the slowest rank.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from microbench.case import Case
from microbench.supervisor import BenchWorker, CaseOutcome

#: Ranks of one job find each other within it: guards against hangs, chosen by hand, not from data.
_JOIN = timedelta(seconds=120)
#: A sample of a collective: long beside what ranks still begin apart. Chosen by hand, not from data.
SAMPLE_S = 5e-3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RankGroup(BenchWorker):
    """Workers, one a rank, that answer as one worker does."""

    def __init__(self, kind: str, entries: Sequence[str], threads: int, settings: dict[str, Any]) -> None:
        super().__init__(kind, entries[0], threads, settings)
        self.entries = tuple(entries)
        self._ranks: list[BenchWorker] = []

    @property
    def alive(self) -> bool:
        return bool(self._ranks) and all(rank.alive for rank in self._ranks)

    def spawn(self) -> None:
        port = free_port()
        self._ranks = []
        for number, entry in enumerate(self.entries):
            variables = {
                "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(len(self.entries)),
                "LOCAL_WORLD_SIZE": str(len(self.entries)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
            rank = BenchWorker(self.kind, entry, self.threads, self.settings, "microbench.rank_worker", variables)
            rank.spawn()
            self._ranks.append(rank)

    def wait_ready(self) -> dict[str, Any]:
        try:
            facts = [rank.wait_ready() for rank in self._ranks]
        except BaseException:
            self.stop()
            raise
        self.facts = facts[0]
        return self.facts

    def request(self, document: dict[str, Any], timeout_s: float) -> CaseOutcome:
        """The first rank's row, whose times are the slowest rank's; the first failure where there is one."""
        until = time.monotonic() + timeout_s
        for rank in self._ranks:
            rank.send(document)
        answers = []
        for rank in self._ranks:
            answers.append(rank.answer(max(0.1, until - time.monotonic())))
            if answers[-1].row is None:
                break
        failed = [answer for answer in answers if answer.row is None]
        if failed:  # the others may wait for the one that failed: none goes on
            self.stop()
            return replace(failed[0], dead=True)
        return answers[0]

    def kill(self) -> None:
        for rank in self._ranks:
            rank.kill()

    def stop(self) -> None:
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.stop()
        self._ranks = []


# ------------------------------------------------------------------------------------------------------- within a rank


class Control:
    """What the ranks agree on, over the host."""

    def __init__(self, kind: str) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.ranks_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks))
        dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=_JOIN)
        self.group = dist.new_group(backend="gloo", timeout=_JOIN)
        self.spreads: list[float] = []
        self._token: Any = None

    def most(self, value: float) -> float:
        """The largest of all ranks' values; how far apart they are is kept."""
        import torch

        pair = torch.tensor([value, -value], dtype=torch.float64)
        self._dist.all_reduce(pair, self._dist.ReduceOp.MAX, group=self.group)
        high, low = float(pair[0]), -float(pair[1])
        if low > 0:
            self.spreads.append(high / low - 1.0)
        return high

    def line_up(self) -> None:
        """Queues an all_reduce of one element on the device."""
        import torch

        if self._token is None:
            self._token = torch.ones(1, device="cuda")
        self._dist.all_reduce(self._token, self._dist.ReduceOp.MAX)

    def union(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted({name for each in self.every(list(names)) for name in each}))

    def every(self, value: Any) -> list[Any]:
        """What each rank says, in their order."""
        values: list[Any] = [None] * self.ranks
        self._dist.all_gather_object(values, value, group=self.group)
        return values

    def said(self, document: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """What the first rank says, on every rank."""
        box = [json.dumps(document) if self.rank == 0 else None]
        self._dist.broadcast_object_list(box, src=0, group=self.group)
        heard: dict[str, Any] | None = json.loads(str(box[0]))
        return heard


def agree(device: Any, control: Control) -> None:
    """Has ``device`` answer with what all ranks agree on, and begin every time with them: behind a spin of one length
    and an all_reduce of one element, which no rank leaves before the last has come."""
    batch, replays, cold, state, now = (
        device.time_batch, device.time_replays, device.time_cold, device.state, device.now
    )  # fmt: skip
    device.time_batch = lambda launch, launches: control.most(batch(launch, launches))
    device.time_replays = lambda replay, count: control.most(replays(replay, count))
    queue = device.queue_replays
    device.queue_replays = lambda replay, count: _agreed(queue(replay, count), control)
    device.time_cold = lambda launch, repeats: [control.most(seconds) for seconds in cold(launch, repeats)]
    device.now = lambda: control.most(now())
    if device.kind == "cuda":
        spin_s = device.head_start_s
        device.head_start_s, device.line_up = lambda: control.most(spin_s()), control.line_up

    def agreed() -> Any:
        measured = state()
        return replace(measured, throttled=control.union(measured.throttled))

    device.state = agreed


def _agreed(seconds: Callable[[], float], control: Control) -> Callable[[], float]:
    return lambda: control.most(seconds())


def _nccl() -> str:
    """ "2.27.3", as PyTorch was linked with; "unknown" for a build that does not say."""
    import torch

    try:
        version = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError):
        return "unknown"
    return ".".join(str(part) for part in version)


class RankMeasurer:
    """Measures a collective on this rank, in step with the others."""

    def __init__(self, device: Any, settings: Mapping[str, Any]) -> None:
        from microbench.measure import Measurer
        from microbench.timing import Settings

        self.control = Control(device.kind)
        global _control
        _control = self.control
        agree(device, self.control)
        self._measurer = Measurer(device, Settings(**{"sample_s": SAMPLE_S, **settings, "profile": False}))
        self._library = f"nccl {_nccl()}" if device.kind == "cuda" else "gloo"

    def measure(self, case: Case, samples_s: float | None = None) -> dict[str, Any]:
        self.control.spreads.clear()
        row = self._measurer.measure(case, samples_s, {}) | {"library": self._library}
        if self.control.spreads:
            row["rank_spread"] = statistics.median(self.control.spreads)
        return row


_control: Control | None = None


def control() -> Control | None:
    """The agreement of this process's ranks; None where it is no rank of any."""
    return _control
