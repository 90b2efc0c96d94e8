"""Tokens on their way to experts on other GPUs (dispatch), and what experts made of them on its way back (combine).

n GPUs share the experts, ``ranks_per_node`` of them in every node; each GPU has T tokens, every one of which picks k
experts. Two ways to send them, whose bytes a GPU are

direct     a copy of the token for each expert that it picks, T k (local - 1) / n rows over the links of its node and
           T k (n - local) / n over the network
forwarded  once to each node that has one of its experts, over the network, and there once to each GPU that has one,
           over the links: with E[x] different ones of x when k experts fall on x places alike, x (1 - (1 - 1 / x)^k),
           those are T E[n] (local - 1) / local and T E[nodes] (nodes - 1) / nodes rows

Routing that is limited to some groups of neighbouring experts (DeepSeek-V3, arXiv:2412.19437, section 2.1.2: 4 of 8)
reaches that share of the GPUs and nodes alone: x is less.

An all_to_all of a library such as NCCL sends copies, too: that is `Collective`. Here are libraries of kernels for
experts alone (`predictor.engines.library.Exchanges`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from predictor.files.records import dataclass
from predictor.ops.base import Piece
from predictor.ops.collective import Collective

if TYPE_CHECKING:
    from predictor.hardware.system import SystemSpec

WAYS = DIRECT, FORWARDED = "direct", "forwarded"


@dataclass(frozen=True, slots=True)
class Exchange(Collective):
    """One dispatch or combine of ``library``, in one of `WAYS`.

    ``link_size`` and ``net_size``: bytes that one GPU sends over the links of its node, and over its share of the
    network; ``size`` both.
    """

    library: str = ""
    way: str = DIRECT
    link_size: int = 0
    net_size: int = 0

    columns: ClassVar[tuple[str, ...]] = (*Collective.columns, "link_size", "net_size", "forwards")

    @property
    def label(self) -> str:
        return "expert exchange"

    @property
    def forwards(self) -> float:
        """1 where it is forwarded, 0 where it is direct."""
        return float(self.way == FORWARDED)

    def bytes_read(self) -> float:
        return float(self.size)

    def bytes_written(self) -> float:
        return float(self.size)

    def link_bytes(self) -> float:
        return float(self.link_size)

    def net_bytes(self) -> float:
        return float(self.net_size * self.local_ranks)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Exchange:
        """Itself: its numbers are those of a rank."""
        return self


def rows_sent(way: str, tokens: float, top_k: int, ranks: int, local: int, reach: float = 1.0) -> tuple[float, float]:
    """Rows that one GPU sends over the links of its node, and over the network, for ``tokens`` tokens of its own, each
    of which picks from a share ``reach`` of the experts.

    >>> rows_sent(DIRECT, 128, 8, 8, 8), rows_sent(DIRECT, 128, 8, 64, 8)
    ((896.0, 0.0), (112.0, 896.0))
    """
    nodes = ranks // local
    if way == DIRECT:
        rows = tokens * top_k / ranks
        return rows * (local - 1), rows * (ranks - local)
    near = tokens * _different(ranks * reach, top_k) * (local - 1) / local
    return near, tokens * _different(nodes * reach, top_k) * (nodes - 1) / nodes


def _different(places: float, picks: int) -> float:
    """Expected number of different ones of ``places``, or of the one that there is, when ``picks`` fall on them
    alike."""
    places = max(1.0, places)
    return places * (1.0 - (1.0 - 1.0 / places) ** picks)


def exchange(
    system: SystemSpec, library: str, way: str, dtype: str, row_bytes: float, tokens: float, top_k: int, ranks: int,
    ranks_per_node: int, skew: float = 1.0, reach: float = 1.0,
) -> Exchange:  # fmt: skip
    """The exchange of ``tokens`` a GPU, rows of ``row_bytes``, over ``ranks`` GPUs of ``system``.

    ``skew``: rows of the busiest GPU over those of the mean, as the GPU that gets most is what all wait for.
    ``reach``: the share of the experts that one token picks from.
    """
    rows = rows_sent(way, tokens, top_k, ranks, ranks_per_node, reach)
    near, far = (round(each * row_bytes * skew) for each in rows)
    link = system.within(ranks_per_node)
    net_bandwidth, net_latency = system.across(ranks_per_node) if ranks > ranks_per_node else (0.0, 0.0)
    return Exchange(
        dtype, "all_to_all", near + far, ranks, ranks_per_node, link.kind, link.bandwidth, link.latency_s,
        False, net_bandwidth, net_latency, system.id, False, library, way, near, far,
    )  # fmt: skip
