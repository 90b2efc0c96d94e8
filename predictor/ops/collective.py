"""Collectives: what GPUs say to each other, with the links they say it over.

``size`` is bytes of the full buffer, S; n GPUs take part, ``ranks_per_node`` of them in every node (0: all in one):

all_reduce       S is the vector; every GPU holds the sum of n of them afterwards
all_gather       S is the gathered vector; a GPU brings S / n
reduce_scatter   S is the vector that is summed; a GPU keeps S / n
all_to_all       S is what a GPU sends (and gets): S / n to every GPU, itself included
send_recv        S is the message, from one GPU to one other
broadcast        S is the message

The link's numbers stand in the operator itself, so that it can be timed by itself: `over` fills them in from a system.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from predictor.errors import RequestError, unknown_name
from predictor.files.records import dataclass, replace
from predictor.ops.base import Gradient, Op, Piece

if TYPE_CHECKING:
    from predictor.hardware.system import SystemSpec

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast")


@dataclass(frozen=True, slots=True)
class Collective(Op):
    """One collective. ``link`` is a kind of link (`predictor.hardware.system.LINKS`).

    ``link_bandwidth``: bytes/s in one direction per GPU within a node; 0: not known, and no bound.
    ``net_bandwidth``: bytes/s in one direction that a node gives to its ``ranks_per_node`` GPUs together.
    ``in_switch``: the switches of the node add and multicast. ``system`` names where the links are from.
    ``in_pieces``: it moves a piece at a time, beside the product that makes or reads what it moves.
    """

    kind: str
    size: int
    ranks: int
    ranks_per_node: int = 0
    link: str = "pcie"
    link_bandwidth: float = 0.0
    link_latency_s: float = 0.0
    in_switch: bool = False
    net_bandwidth: float = 0.0
    net_latency_s: float = 0.0
    system: str = ""
    in_pieces: bool = False

    family: ClassVar[str] = "collective"
    columns: ClassVar[tuple[str, ...]] = (
        "kind_code", "size", "ranks", "local_ranks", "link_code", "link_bandwidth", "link_latency_s", "in_switch",
        "net_bandwidth", "net_latency_s",
    )  # fmt: skip

    @property
    def label(self) -> str:
        return self.kind

    @property
    def stream(self) -> str:
        """The links within a node, or what joins nodes, "network"."""
        return self.link if self.local_ranks == self.ranks else "network"

    @property
    def kind_code(self) -> int:
        """Place of the kind in `KINDS`."""
        return KINDS.index(self.kind)

    @property
    def link_code(self) -> int:
        """Place of the link in `predictor.hardware.system.LINKS`."""
        from predictor.hardware.system import LINKS  # a forecast of one GPU starts without it

        return LINKS.index(self.link)

    @property
    def local_ranks(self) -> int:
        """GPUs of one node that take part."""
        return min(self.ranks_per_node, self.ranks) or self.ranks

    @property
    def nodes(self) -> float:
        """Nodes that take part."""
        return self.ranks / self.local_ranks

    def flops(self) -> float:
        """Zero: the additions are done on the way, by the switch or while data arrives."""
        return 0.0

    def bytes_read(self) -> float:
        if self.kind == "broadcast":
            return 0.0
        return self.size / (self.ranks if self.kind == "all_gather" else 1)

    def bytes_written(self) -> float:
        if self.kind == "send_recv":
            return 0.0
        return self.size / (self.ranks if self.kind == "reduce_scatter" else 1)

    def link_bytes(self) -> float:
        """Bytes that must pass the links of one GPU within its node, in the busier direction.

        Patarasuk and Yuan (2009) for all_reduce without help from the switch; a switch that adds and multicasts takes
        every GPU's vector once and gives the sum back once.
        """
        local = self.local_ranks
        if local == 1:
            return 0.0
        if self.kind == "all_reduce":
            return self.size * (1.0 if self.in_switch else 2.0 * (local - 1) / local)
        if self.kind == "all_to_all":
            return self.size * (local - 1) / self.ranks
        if self.kind in ("send_recv", "broadcast"):
            return float(self.size)
        return self.size * (local - 1) / local

    def net_bytes(self) -> float:
        """Bytes that must leave one node, or reach it, where more than one takes part."""
        nodes = self.nodes
        if nodes <= 1:
            return 0.0
        if self.kind == "all_reduce":
            return 2.0 * self.size * (nodes - 1) / nodes
        if self.kind == "all_to_all":
            return self.size * self.local_ranks * (nodes - 1) / nodes
        if self.kind in ("send_recv", "broadcast"):
            return float(self.size)
        return self.size * (nodes - 1) / nodes

    def backward(self) -> tuple[Op, ...]:
        """Of what an all_to_all brought, the gradients go back the same way."""
        return (self,) if self.kind == "all_to_all" else ()

    def gradients(self) -> tuple[Gradient, ...]:
        return (Gradient((0,)),) if self.kind == "all_to_all" else ()

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Collective:
        """The same GPUs on part of the buffer, where another axis of a mesh splits it."""
        return replace(self, size=outputs[0].share(self.size))

    def link_seconds(self) -> float:
        link = self.link_bytes() / self.link_bandwidth if self.link_bandwidth else 0.0
        net = self.net_bytes() / self.net_bandwidth if self.net_bandwidth else 0.0
        return max(link, net)


def over(
    system: SystemSpec, kind: str, dtype: str, size: int, ranks: int, ranks_per_node: int | None = None
) -> Collective:
    """The collective of ``ranks`` GPUs of ``system``; ``ranks_per_node`` fills nodes up where it is not given.

    Raises UnknownNameError for an unknown kind and RequestError, one line, for a number of GPUs that the system or the
    collective cannot have.
    """
    if kind not in KINDS:
        raise unknown_name("collective", kind, KINDS)
    if ranks < 2:
        raise RequestError(f"{kind} over {ranks} GPU(s): expected 2 or more")
    local = ranks_per_node or min(ranks, system.gpus_per_node)
    if ranks % local:
        raise RequestError(f"{ranks} GPUs with {local} in a node: expected a multiple of {local}")
    link = system.within(local)
    net_bandwidth, net_latency = system.across(local) if ranks > local else (0.0, 0.0)
    return Collective(
        dtype, kind, size, ranks, local, link.kind, link.bandwidth, link.latency_s,
        system.adds_within(local), net_bandwidth, net_latency, system.id,
    )  # fmt: skip
