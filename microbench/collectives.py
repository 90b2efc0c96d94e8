"""Collectives: which cases there are between so many ranks, over which links, and the processes that measure them.

Within a node `RankGroup` starts a process a board. Over several nodes torchrun starts them, and `microbench
collectives` is what each of them runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from microbench import management, sweep
from microbench.capability import Target, target_of
from microbench.case import Case
from microbench.lane import Lane
from microbench.ranks import RankGroup
from microbench.request import CollectionRequest
from predictor.errors import RequestError
from predictor.ops import Collective

#: Bits of a byte, and of a Gbit, by definition.
_GBIT_BYTES = 1e9 / 8
_ACTIVE = "ACTIVE"  # of a port's state file


@dataclass(frozen=True, slots=True)
class Links:
    """What joins ranks: the link within a node, ranks of a node (0: all), what joins nodes and gives them, bytes/s."""

    link: str
    ranks_per_node: int = 0
    network: str = ""
    net_bandwidth: float = 0.0

    def on(self, case: Case) -> Case:
        """``case`` over these links: another link is another case."""
        assert isinstance(case.op, Collective)
        op = replace(
            case.op, link=self.link, ranks_per_node=self.ranks_per_node, net_bandwidth=self.net_bandwidth
        )  # fmt: skip
        return replace(case, op=op)


def network(cards: Path = Path("/sys/class/infiniband")) -> tuple[str, float]:
    """Names of the InfiniBand and RoCE ports that are up, and bytes/s in one direction of all; ("", 0.0) for none."""
    ports, total = [], 0.0
    for port in sorted(cards.glob("*/ports/*")):
        try:
            up = _ACTIVE in (port / "state").read_text()
            gbit = float((port / "rate").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            continue
        if up:
            ports.append(f"{port.parent.parent.name} {gbit:g} Gbit/s")
            total += gbit * _GBIT_BYTES
    return ", ".join(ports), total


def between(
    target: Target, ranks: int, links: Links, sweeps: Path, dtypes: Sequence[str] | None = None
) -> list[Case]:  # fmt: skip
    """The sweep's cases for so many ranks over ``links``; of a number that it does not name, all its shapes."""
    every = sweep.build(replace(target, gpus=2**20), ("collective",), dtypes, sweeps).cases
    of_size = [case for case in every if getattr(case.op, "ranks", 0) == ranks] or every
    made = (links.on(replace(case, op=replace(case.op, ranks=ranks))) for case in of_size)  # type: ignore[call-arg]
    return list({case.id: case for case in made}.values())


def in_node(request: CollectionRequest, lanes: Sequence[Lane]) -> list[Lane]:
    """A lane of as many ranks for 2, 4 and 8 of the boards of ``lanes``, with the cases that it has to measure.

    Raises RequestError where the driver does not say how the boards are joined.
    """
    first, made = lanes[0], []
    entries = [lane.worker.visible for lane in lanes]
    boards = [management.entry_board(entry) for entry in entries]
    for ranks in (n for n in (2, 4, 8) if n <= len(entries)):
        link = management.joined_by(boards[:ranks])
        if not link:
            raise RequestError("collectives are left out: the driver does not say how the boards are joined")
        cases = between(target_of(first.facts, len(lanes)), ranks, Links(link), request.sweeps, request.dtypes)
        missing = deque(c for c in cases if first.store.wants(c, request.retry_failures) and request.takes(c))
        if missing:
            made.append(
                Lane(RankGroup("cuda", entries[:ranks], 0, request.settings), first.facts, first.store, missing)
            )
    return made
