"""Collectives by what the libraries do: rings and trees in three protocols, in-switch reduction, pairwise exchange,
one- and two-shot.

    t = the shortest over algorithms of  launch + hops x hop + wire bytes / (link bandwidth x efficiency)  + local work

NCCL's ring runs 2 (n - 1) hops for an all_reduce and n - 1 for a gather or scatter, and sends 2 (n - 1) / n or
(n - 1) / n of the buffer S over every link; its tree, over nodes, passes log2 of the nodes up and down. It has three
protocols, which trade latency for bandwidth: LL (a flag beside every four bytes: half the bandwidth), LL128 (a flag in
128 bytes) and Simple (full bandwidth, a fence a step). Their lower envelope is the bend ("knee") of measured bandwidth
over size. Switches that reduce (NVLink SHARP) need S (1 + 1 / n) a GPU: every rank's vector goes up once and the sum
comes down once, a shard of it twice.

What a small collective waits for is memory: a kernel's start is a chain of dependent loads (its arguments, the
channel, the peers), and a hop ends in a poll of what a peer has written. So launch and hops are counted in trips, one
dependent load from device memory (`hardware.generation.memory_latency_s`), beside the link's own latency: in trips,
generations agree (2.9 a hop on A100 and B200), in clocks they do not (1,370 and 2,450). A buffer that fills more than
one channel's threads starts more blocks, and all of these waits grow by ``widening``. ``local`` is the work on a rank's
own shard, which no link hides: bytes / memory bandwidth.

Serving libraries reduce small buffers by kernels of their own (`Library.all_reduces`): one that pushes writes its
vector into every peer's buffer, and that is one hop; one that pulls waits at a barrier, reads, and waits again. In one
shot (n - 1) S pass a link, in two (a shard, then the sums) 2 (n - 1) / n S, and a fence over the whole system between
them counts among ``own_two_shot_hops``. Which of both runs is the library's rule, where somebody read it.

Constants are shared by all systems of a kind of link. A system that was measured has scalars of its own beside them:
a factor on latency, and one on bandwidth for 2, 4 and 8 GPUs (what PCIe switches and sockets share is nobody's
data sheet).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.files.records import dataclass, replace
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.system import LINKS, default_system
from predictor.kernels.device import Device
from predictor.kernels.named import Named
from predictor.ops.collective import KINDS
from predictor.ops.roofline import FloatArray

#: Bytes a rank that fill the threads of one channel, before NCCL takes another: 512 of 8 bytes
#: (unverified: NCCL_LL_MAX_NTHREADS x NCCL_LL_THREAD_THRESHOLD of src/include/device.h and comm.h, as recalled).
CHANNEL_BYTES = 4096.0
#: Bandwidth of NCCL's tree beside its ring's (src/graph/tuning.cc of 5067397c).
TREE_SHARE = 0.92


@dataclass(frozen=True, slots=True)
class Constants(Named):
    """Constants that all systems share, and the start of each, toward which the fit pulls it."""

    # Round numbers, chosen by hand, not from data, but for LL and NVLS, which are from NCCL's tuning model
    # (src/graph/tuning.cc of 5067397c): LL half the bandwidth; NVLS 25 microseconds (100 trips of a Hopper), and 0.85
    # (Hopper; Blackwell 0.74) x 5/6 of the ring's bandwidth for S bytes, which is 0.8 for the 9/8 S that eight GPUs
    # send; three bytes a clock are its largest LL bandwidth of a Hopper, 141 GB/s, over 24 channels.
    launch_trips: float = 20.0
    hop_trips_ll: float = 2.0
    hop_trips_ll128: float = 4.0
    hop_trips_simple: float = 10.0
    start_trips_simple: float = 20.0
    widening: float = 0.2
    knee: float = 1.0
    share_ll: float = 0.5
    share_ll128: float = 0.7
    channel_ll: float = 3.0
    efficiency_nvswitch: float = 0.8
    efficiency_mesh: float = 0.9
    efficiency_pair: float = 0.8
    efficiency_pcie: float = 0.65
    share_pcie_many: float = 0.5
    efficiency_net: float = 0.8
    local: float = 3.0
    local_exchange: float = 3.0
    share_nvls: float = 0.8
    nvls_trips: float = 100.0
    exchange_trips: float = 2.0
    share_exchange: float = 0.9
    share_scatter: float = 1.0
    own_launch_trips: float = 7.0
    own_hop_trips: float = 2.0
    own_two_shot_hops: float = 5.0
    share_own: float = 0.6


@dataclass(frozen=True, slots=True)
class Own(Named):
    """Factors of a measured system: on latency, and on bandwidth for 2, 4 and 8 GPUs of a node (and more)."""

    latency: float
    bandwidth_2: float
    bandwidth_4: float
    bandwidth_8: float


OWN = Own.names()
_OWN_RANKS = np.log2([2.0, 4.0, 8.0])  # by definition: the numbers in the names of `OWN`

_NVSWITCH, _MESH, _PAIR, _PCIE = (LINKS.index(name) for name in ("nvswitch", "mesh", "pair", "pcie"))
_ALL_REDUCE = KINDS.index("all_reduce")
_EXCHANGES = tuple(KINDS.index(name) for name in ("all_to_all", "send_recv"))
_SCATTERS = tuple(KINDS.index(name) for name in ("all_gather", "reduce_scatter"))
_SEND = KINDS.index("send_recv")
#: Hops of a ring in units of n - 1, and wire bytes in units of S (n - 1) / n, by kind.
_ROUNDS = np.array([2.0, 1.0, 1.0, 1.0, 1.0, 1.0])


@dataclass(frozen=True, slots=True)
class CollectiveCalls:
    """n collectives as the formula needs them, each of shape (n,); seconds, bytes, bytes/s."""

    kind: npt.NDArray[np.int64]
    size: FloatArray
    ranks: FloatArray
    local: FloatArray  # GPUs of one node
    link: npt.NDArray[np.int64]
    bandwidth: FloatArray
    latency: FloatArray
    in_switch: npt.NDArray[np.bool_]
    net_bandwidth: FloatArray
    net_latency: FloatArray

    @classmethod
    def of(cls, columns: Mapping[str, FloatArray]) -> CollectiveCalls:
        """From the columns of `predictor.ops.Collective`."""
        c = columns
        return cls(
            c["kind_code"].astype(np.int64), c["size"], c["ranks"], c["local_ranks"], c["link_code"].astype(np.int64),
            c["link_bandwidth"], c["link_latency_s"], c["in_switch"] > 0, c["net_bandwidth"], c["net_latency_s"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OwnKernels:
    """What the libraries of n collectives have of their own for all_reduce; each of shape (n,).

    ``limit``: the largest buffer that it takes, bytes, negative where there is none; ``pushes``: over NVLink it writes
    into its peers' buffers; ``linked_from``: so many GPUs or more need NVLink; ``two_from``: bytes from which it takes
    two shots, NaN where it takes the faster.
    """

    limit: FloatArray
    pushes: npt.NDArray[np.bool_]
    linked_from: FloatArray
    two_from: FloatArray

    @classmethod
    def of(cls, libraries: Sequence[str], ranks: FloatArray) -> OwnKernels:
        """Of the libraries called so, (n,), over so many GPUs; "sglang 0.5.9" is one as it was."""
        n = len(ranks)
        limit, pushes, linked_from = np.full(n, -1.0), np.zeros(n, dtype=np.bool_), np.full(n, 2.0)
        two_from = np.full(n, np.nan)
        for library in dict.fromkeys(libraries):
            all_reduce = engines.library(library).all_reduce()
            if all_reduce is not None:
                rows = np.array([name == library for name in libraries])
                limit[rows], pushes[rows], linked_from[rows] = (
                    all_reduce.limit(ranks[rows]),
                    all_reduce.pushes,
                    all_reduce.linked_from,
                )
                two_from[rows] = all_reduce.shots_from(ranks[rows])
        return cls(limit, pushes, linked_from, two_from)


def seconds(
    links: CollectiveCalls,
    device: Device,
    k: Constants,
    scalars: FloatArray | None = None,
    kernels: OwnKernels | None = None,
) -> FloatArray:
    """Latency (n,) in seconds. ``scalars``: (n, 4), logarithms of `Own`, for systems that were measured; ``kernels``:
    None where NCCL runs alone.
    """
    slower, wider = _own_factors(links, scalars)
    rate = links.bandwidth * _efficiency(links, k) * wider
    rate = rate * np.where(np.isin(links.kind, _SCATTERS), k.share_scatter, 1.0)
    net = np.maximum(links.net_bandwidth, 1.0) * k.efficiency_net
    total = np.where(
        np.isin(links.kind, _EXCHANGES),
        _exchange(links, device, k, rate, net, slower),
        _rings(links, device, k, rate, net, slower),
    )
    return total if kernels is None else _with_own_kernels(links, device, k, rate, slower, total, kernels)


def _rings(
    links: CollectiveCalls, device: Device, k: Constants, rate: FloatArray, net: FloatArray, slower: FloatArray
) -> FloatArray:
    """Rings, trees over nodes and in-switch reduction, (n,)."""
    spread = links.ranks > links.local
    rounds, n, size = _ROUNDS[links.kind], links.ranks, links.size
    nodes = n / links.local
    wire = rounds * size * np.where(links.kind >= _SEND, 1.0, (n - 1.0) / n)
    slowest = wire * np.maximum(1.0 / rate, np.where(spread, 1.0 / net, 0.0))
    tree = spread & (links.kind == _ALL_REDUCE)
    branches = 2.0 * size * np.maximum(1.0 / rate, 1.0 / net) / TREE_SHARE
    wide = 1.0 + k.widening * size / (size + n * CHANNEL_BYTES)
    best = np.full(len(size), np.inf)
    for name in ("ll", "ll128", "simple"):
        handling = getattr(k, f"hop_trips_{name}") * device.memory_latency_s
        near, far = links.latency + handling, links.net_latency + handling
        start = (k.launch_trips + getattr(k, f"start_trips_{name}", 0.0)) * device.memory_latency_s
        around = rounds * ((n - nodes) * near + (nodes - 1.0) * far)
        up_and_down = 2.0 * ((links.local - 1.0) * near + np.log2(nodes) * far)
        for hops, moved, runs in ((around, slowest, True), (up_and_down, branches, tree)):
            waits = (start + hops) * wide * slower
            moved = moved / getattr(k, f"share_{name}", 1.0)
            if name == "simple":
                moved = moved + 2.0 * k.knee * np.sqrt(moved * waits)
            best = np.where(runs, np.minimum(best, waits + moved), best)
    best = best + k.local * size / n / device.bandwidth
    switched = links.in_switch & (links.kind == _ALL_REDUCE) & ~spread
    nvls = size * (1.0 + 1.0 / n) / (rate * k.share_nvls)
    wait = k.nvls_trips * device.memory_latency_s * slower
    nvls = k.launch_trips * device.memory_latency_s * wide * slower + nvls + wait + 2.0 * k.knee * np.sqrt(nvls * wait)
    return np.where(switched, np.minimum(best, nvls), best)


def _own_factors(links: CollectiveCalls, scalars: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Factors on latency and on bandwidth, (n,) each: a system's own, interpolated over log2 of its GPUs in a node."""
    if scalars is None:
        return np.ones(len(links.size)), np.ones(len(links.size))
    place = np.clip(np.log2(np.maximum(links.local, 2.0)), 1.0, 3.0)
    weights = np.maximum(0.0, 1.0 - np.abs(place[:, None] - _OWN_RANKS[None, :]))
    return np.exp(scalars[:, 0]), np.exp((weights * scalars[:, 1:]).sum(axis=1))


def _efficiency(links: CollectiveCalls, k: Constants) -> FloatArray:
    """Share of the link bandwidth that large transfers reach, (n,)."""
    by_link = np.array([getattr(k, f"efficiency_{name}") for name in LINKS])
    shared = (links.link == _PCIE) & (links.local > 2)  # boards share the uplinks of PCIe switches and sockets
    result: FloatArray = by_link[links.link] * np.where(shared, k.share_pcie_many, 1.0)
    return result


def _exchange(
    links: CollectiveCalls, device: Device, k: Constants, rate: FloatArray, net: FloatArray, slower: FloatArray
) -> FloatArray:
    """all_to_all and send_recv, (n,): every pair for itself, so one hop, and each peer costs some trips.

    In LL a peer has one channel, whose threads pack and unpack so many bytes a clock.
    """
    sends = links.kind == _SEND
    n, local = links.ranks, links.local
    inside = links.size * np.where(sends, np.where(local > 1, 1.0, 0.0), (local - 1.0) / n)
    inside = np.where(
        links.link == _PCIE, links.size * np.where(sends, 1.0, (n - 1.0) / n), inside
    )  # cards hang there, too
    outside = np.where(n > local, links.size * np.where(sends, 1.0, local * (n - local) / n), 0.0)
    peers = np.where(sends, 1.0, n - 1.0)
    hop = np.where(n > local, links.net_latency, links.latency)
    packed = links.size / np.where(sends, 1.0, n) / (k.channel_ll * device.clock_hz)
    best = np.full(len(n), np.inf)
    for name in ("ll", "simple"):
        trips = getattr(k, f"hop_trips_{name}") + getattr(k, f"start_trips_{name}", 0.0) + k.exchange_trips * peers
        waits = hop + (k.launch_trips + trips) * device.memory_latency_s
        moved = np.maximum(inside / rate, outside / net) / (getattr(k, f"share_{name}", 1.0) * k.share_exchange)
        best = np.minimum(best, waits * slower + (np.maximum(moved, packed) if name == "ll" else moved))
    return best + np.where(sends, 0.0, k.local_exchange * links.size / n / device.bandwidth)


def _with_own_kernels(
    links: CollectiveCalls,
    device: Device,
    k: Constants,
    rate: FloatArray,
    slower: FloatArray,
    nccl: FloatArray,
    kernels: OwnKernels,
) -> FloatArray:
    """NCCL's time, or that of the library's own all_reduce where it runs and is shorter, (n,).

    It runs for small buffers in one node. Pushed, one shot is one hop; pulled, a barrier, a read and a barrier; two
    shots are a barrier and a read, twice.
    """
    linked = (links.link == _NVSWITCH) | (links.link == _MESH) | ((links.link == _PAIR) & (links.ranks == 2))
    near = (links.ranks == links.local) & (linked | (links.ranks < kernels.linked_from))
    runs = (links.kind == _ALL_REDUCE) & near & (links.size <= kernels.limit)
    if not runs.any():
        return nccl
    n, size = links.ranks, links.size
    speed = rate * k.share_own
    step = (links.latency + k.own_hop_trips * device.memory_latency_s) * slower
    once = step * np.where(kernels.pushes & linked, 1.0, 3.0) + (n - 1.0) * size / speed
    twice = k.own_two_shot_hops * step + 2.0 * (n - 1.0) / n * size / speed
    faster = np.isnan(kernels.two_from)
    shots = np.where(faster, np.minimum(once, twice), np.where(size < kernels.two_from, once, twice))
    ours = k.own_launch_trips * device.memory_latency_s * slower + shots
    return np.where(runs, np.minimum(nccl, ours), nccl)


def with_links(links: CollectiveCalls, gpu: GPUSpec) -> CollectiveCalls:
    """The links, those of collectives that name none filled in from the GPU's default system."""
    unknown = np.flatnonzero(links.bandwidth <= 0.0)
    if not len(unknown):
        return links
    system = default_system(gpu)
    tiers = [system.within(min(int(n), system.gpus_per_node)) for n in links.local[unknown]]
    kind, bandwidth, latency = links.link.copy(), links.bandwidth.copy(), links.latency.copy()
    kind[unknown] = [LINKS.index(link.kind) for link in tiers]
    bandwidth[unknown] = [link.bandwidth for link in tiers]
    latency[unknown] = [link.latency_s for link in tiers]
    switch = links.in_switch.copy()
    switch[unknown] = system.in_switch_reduction
    return replace(links, link=kind, bandwidth=bandwidth, latency=latency, in_switch=switch)


def exchange_seconds(columns: Mapping[str, FloatArray], libraries: Sequence[str]) -> FloatArray:
    """Seconds (n,) of n exchanges, from the columns of `predictor.ops.exchange.Exchange` and each one's library."""
    total = np.empty(len(libraries))
    for name in dict.fromkeys(libraries):
        k = engines.library(name).exchanges
        assert k is not None, name
        rows = np.array([each == name for each in libraries])
        c = {column: values[rows] for column, values in columns.items()}
        forwards = c["forwards"] > 0
        near = np.where(forwards, k.share_link_forwarded, k.share_link_direct) * np.maximum(c["link_bandwidth"], 1.0)
        far = np.where(forwards, k.share_net_forwarded, k.share_net_direct) * c["net_bandwidth"] / c["local_ranks"]
        moved = np.maximum(c["link_size"] / near, c["net_size"] / np.maximum(far, 1.0))
        hop = np.where(c["ranks"] > c["local_ranks"], c["net_latency_s"], c["link_latency_s"])
        total[rows] = np.maximum(k.start_s, hop) + moved
    return total


#: Standard deviation of the time at which a rank comes where each is launched by its own process, one call at a time,
#: seconds. Vidur's all_reduces over two A100 (NVSwitch or a bridge) up to 64 KiB, whose times spread by 12 to 15
#: microseconds within a size (`latency_std_ms` of datasets/vidur), while the transfer takes 7 to 10: chosen by looking
#: at these rows. Eight ranks of the same source spread less (0 to 12). Nobody has published what it is in a captured
#: graph, where ranks keep step from collective to collective: 0 until somebody measures it.
LAUNCHED_DEVIATION_S = 12e-6


def late_rank_s(ranks: float, deviation_s: float = LAUNCHED_DEVIATION_S) -> float:
    """Seconds that the last of ``ranks`` comes after their mean, where each comes with ``deviation_s`` of a normal law.

    The mean of the largest of n normal draws, by Blom's approximation (1958): the quantile of (n - 0.375) / (n + 0.25).

    >>> round(late_rank_s(8, 1e-6) * 1e6, 2), late_rank_s(1)
    (1.43, 0.0)
    """
    if ranks <= 1:
        return 0.0
    from statistics import NormalDist  # a run of one GPU starts without it

    return deviation_s * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
