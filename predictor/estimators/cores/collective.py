"""Collectives by what the libraries do: protocols of a ring, in-switch reduction, pairwise exchange, one- and two-shot.

    t = launch + the shortest over algorithms of  hops x hop + wire bytes / (link bandwidth x efficiency)  + local work

NCCL's ring runs 2 (n - 1) hops for an all_reduce and n - 1 for a gather or scatter, and sends 2 (n - 1) / n or
(n - 1) / n of the buffer S over every link. It has three protocols, which trade latency for bandwidth: LL (a flag
beside every four bytes: half the bandwidth), LL128 (a flag in 128 bytes) and Simple (full bandwidth, a fence a step).
Their lower envelope is the bend ("knee") of measured bandwidth over size. Switches that reduce (NVLink SHARP) need
S (1 + 1 / n) a GPU: every rank's vector goes up once and the sum comes down once, a shard of it twice.

A hop takes the link's own latency and some cycles of the GPU's clock: A100 and H100, RTX PRO 6000 and L40S differ in
small collectives as their clocks do. ``local`` is the work on a rank's own shard, which no link hides: bytes / memory
bandwidth.

Serving libraries reduce small buffers by kernels of their own (`Library.all_reduce`), which read the peers' memory: all
of it at once (one shot, (n - 1) S) or a shard and then the sums (two shots, 2 (n - 1) / n S), where NVLink joins the
GPUs.

Constants are shared by all systems of a kind of link. A system that was measured has scalars of its own beside them:
a factor on latency, and one on bandwidth for 2, 4 and 8 GPUs (what PCIe switches and sockets share is nobody's
data sheet).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.estimators.device import Device
from predictor.estimators.named import Named
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.system import LINKS, default_system
from predictor.ops.collective import KINDS
from predictor.roofline import FloatArray

#: Libraries whose own all_reduce has a fitted launch, in the order of their constants.
LAUNCHED: tuple[str, ...] = tuple(
    name
    for _, name in sorted(
        (one.all_reduce.place, one.name)
        for one in map(engines.library, engines.libraries())
        if one.all_reduce is not None and one.all_reduce.place is not None
    )
)


@dataclass(frozen=True, slots=True)
class Constants(Named):
    """Constants that all systems share, and the start of each, toward which the fit pulls it."""

    # Round numbers, chosen by hand, not from data, but for LL and NVLS, which are from NCCL's tuning model
    # (src/graph/tuning.cc of 5067397c): LL half the bandwidth; NVLS 25 microseconds (at 2 GHz), and 0.85 (Hopper;
    # Blackwell 0.74) x 5/6 of the ring's bandwidth for S bytes, which is 0.8 for the 9/8 S that eight GPUs send.
    launch_cycles: float = 9e3
    hop_cycles_ll: float = 8e2
    hop_cycles_ll128: float = 2e3
    hop_cycles_simple: float = 5e3
    start_cycles_simple: float = 1e4
    knee: float = 1.0
    share_ll: float = 0.5
    share_ll128: float = 0.7
    efficiency_nvswitch: float = 0.8
    efficiency_mesh: float = 0.9
    efficiency_pair: float = 0.8
    efficiency_pcie: float = 0.65
    share_pcie_many: float = 0.5
    efficiency_net: float = 0.8
    local: float = 3.0
    local_exchange: float = 3.0
    share_nvls: float = 0.8
    nvls_cycles: float = 5e4
    exchange_cycles: float = 1e3
    share_exchange: float = 0.9
    share_scatter: float = 1.0
    launch_cycles_vllm: float = 6e3
    launch_cycles_sglang: float = 6e3
    launch_cycles_trtllm: float = 6e3
    own_hop_cycles: float = 1e3
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

_NVSWITCH, _MESH, _PCIE = (LINKS.index(name) for name in ("nvswitch", "mesh", "pcie"))
_ALL_REDUCE = KINDS.index("all_reduce")
_EXCHANGES = tuple(KINDS.index(name) for name in ("all_to_all", "send_recv"))
_SCATTERS = tuple(KINDS.index(name) for name in ("all_gather", "reduce_scatter"))
_SEND = KINDS.index("send_recv")
#: Hops of a ring in units of n - 1, and wire bytes in units of S (n - 1) / n, by kind.
_ROUNDS = np.array([2.0, 1.0, 1.0, 1.0, 1.0, 1.0])


@dataclass(frozen=True, slots=True)
class Links:
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
    def of(cls, columns: Mapping[str, FloatArray]) -> Links:
        """From the columns of `predictor.ops.Collective`."""
        c = columns
        return cls(
            c["kind_code"].astype(np.int64), c["size"], c["ranks"], c["local_ranks"], c["link_code"].astype(np.int64),
            c["link_bandwidth"], c["link_latency_s"], c["in_switch"] > 0, c["net_bandwidth"], c["net_latency_s"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OwnKernels:
    """What the libraries of n collectives have of their own for all_reduce; each of shape (n,).

    ``launch``: place in `LAUNCHED` of the constant of its launch; ``limit``: the largest buffer that it takes, bytes,
    negative where there is none.
    """

    launch: npt.NDArray[np.int64]
    limit: FloatArray

    @classmethod
    def of(cls, libraries: Sequence[str], ranks: FloatArray) -> OwnKernels:
        """Of the libraries called so, (n,), over so many GPUs; one without a fitted launch has its stand-in's."""
        launch, limit = np.zeros(len(ranks), dtype=np.int64), np.full(len(ranks), -1.0)
        for name in dict.fromkeys(libraries):
            own = engines.library(name).all_reduce
            if own is not None:
                rows = np.array([library == name for library in libraries])
                fitted = (LAUNCHED.index(one) for one in (name, engines.answering(name).name) if one in LAUNCHED)
                launch[rows] = next(fitted, 0)
                limit[rows] = own.limit(ranks[rows])
        return cls(launch, limit)


def seconds(
    links: Links,
    device: Device,
    k: Constants,
    own: FloatArray | None = None,
    kernels: OwnKernels | None = None,
) -> FloatArray:
    """Latency (n,) in seconds. ``own``: (n, 4), logarithms of `Own`, for systems that were measured; ``kernels``: None
    where NCCL runs alone.
    """
    slower, wider = _own_factors(links, own)
    rate = links.bandwidth * _efficiency(links, k) * wider
    rate = rate * np.where(np.isin(links.kind, _SCATTERS), k.share_scatter, 1.0)
    net = np.maximum(links.net_bandwidth, 1.0) * k.efficiency_net
    spread = links.ranks > links.local
    launch = k.launch_cycles / device.clock_hz
    rounds = _ROUNDS[links.kind]
    n, size = links.ranks, links.size
    wire = rounds * size * np.where(links.kind >= _SEND, 1.0, (n - 1.0) / n)
    shard = k.local * size / n / device.bandwidth
    hops_net = np.where(spread, rounds * n / links.local, 0.0)
    hops = rounds * (n - 1.0) - hops_net
    best = np.full(len(size), np.inf)
    for name in ("ll", "ll128", "simple"):
        share = getattr(k, f"share_{name}", 1.0)
        cycles = getattr(k, f"hop_cycles_{name}") / device.clock_hz
        slowest = wire * np.maximum(1.0 / rate, np.where(spread, 1.0 / net, 0.0)) / share
        waits = hops * (links.latency + cycles) + hops_net * (links.net_latency + cycles)
        waits = waits + getattr(k, f"start_cycles_{name}", 0.0) / device.clock_hz
        if name == "simple":
            slowest = slowest + 2.0 * k.knee * np.sqrt(slowest * waits * slower)
        best = np.minimum(best, waits * slower + slowest)
    ring = best + shard
    switched = links.in_switch & (links.kind == _ALL_REDUCE) & ~spread
    nvls = size * (1.0 + 1.0 / n) / (rate * k.share_nvls)
    wait = k.nvls_cycles / device.clock_hz * slower
    nvls = nvls + wait + 2.0 * k.knee * np.sqrt(nvls * wait)
    total = launch * slower + np.where(switched, np.minimum(ring, nvls), ring)
    exchange = np.isin(links.kind, _EXCHANGES)
    if exchange.any():
        total = np.where(exchange, launch * slower + _exchange(links, device, k, rate, net, slower), total)
    return total if kernels is None else _with_own_kernels(links, device, k, rate, slower, total, kernels)


def _own_factors(links: Links, own: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Factors on latency and on bandwidth, (n,) each: a system's own, interpolated over log2 of its GPUs in a node."""
    if own is None:
        return np.ones(len(links.size)), np.ones(len(links.size))
    place = np.clip(np.log2(np.maximum(links.local, 2.0)), 1.0, 3.0)
    weights = np.maximum(0.0, 1.0 - np.abs(place[:, None] - _OWN_RANKS[None, :]))
    return np.exp(own[:, 0]), np.exp((weights * own[:, 1:]).sum(axis=1))


def _efficiency(links: Links, k: Constants) -> FloatArray:
    """Share of the link bandwidth that large transfers reach, (n,)."""
    by_link = np.array([getattr(k, f"efficiency_{name}") for name in LINKS])
    shared = (links.link == _PCIE) & (links.local > 2)  # boards share the uplinks of PCIe switches and sockets
    result: FloatArray = by_link[links.link] * np.where(shared, k.share_pcie_many, 1.0)
    return result


def _exchange(
    links: Links, device: Device, k: Constants, rate: FloatArray, net: FloatArray, slower: FloatArray
) -> FloatArray:
    """all_to_all and send_recv, (n,): every pair for itself, so one hop, and each peer costs some cycles."""
    one = links.kind == _SEND
    n, local = links.ranks, links.local
    inside = links.size * np.where(one, np.where(local > 1, 1.0, 0.0), (local - 1.0) / n)
    outside = np.where(n > local, links.size * np.where(one, 1.0, local * (n - local) / n), 0.0)
    peers = np.where(one, 1.0, n - 1.0)
    hop = np.where(n > local, links.net_latency, links.latency)
    best = np.full(len(n), np.inf)
    for name in ("ll", "simple"):
        share = getattr(k, f"share_{name}", 1.0) * k.share_exchange
        cycles = getattr(k, f"hop_cycles_{name}") + getattr(k, f"start_cycles_{name}", 0.0) + k.exchange_cycles * peers
        waits = hop + cycles / device.clock_hz
        best = np.minimum(best, waits * slower + np.maximum(inside / rate, outside / net) / share)
    return best + np.where(one, 0.0, k.local_exchange * links.size / n / device.bandwidth)


def _with_own_kernels(
    links: Links,
    device: Device,
    k: Constants,
    rate: FloatArray,
    slower: FloatArray,
    nccl: FloatArray,
    kernels: OwnKernels,
) -> FloatArray:
    """NCCL's time, or that of the framework's own all_reduce where it runs and is shorter, (n,).

    It runs for small buffers in one node, over NVLink or between two GPUs.
    """
    near = (links.ranks == links.local) & ((links.link == _NVSWITCH) | (links.link == _MESH) | (links.ranks == 2))
    runs = (links.kind == _ALL_REDUCE) & near & (links.size <= kernels.limit)
    if not runs.any():
        return nccl
    n, size = links.ranks, links.size
    launches = np.array([getattr(k, f"launch_cycles_{name}") for name in LAUNCHED])[kernels.launch]
    hop = links.latency + k.own_hop_cycles / device.clock_hz
    speed = rate * k.share_own
    once = hop + (n - 1.0) * size / speed
    twice = 2.0 * hop + 2.0 * (n - 1.0) / n * size / speed
    ours = launches / device.clock_hz * slower + np.minimum(once, twice)
    return np.where(runs, np.minimum(nccl, ours), nccl)


def with_links(links: Links, gpu: GPUSpec) -> Links:
    """The links, those of collectives that name none filled in from the GPU's default system."""
    unknown = np.flatnonzero(links.bandwidth <= 0.0)
    if not len(unknown):
        return links
    system = default_system(gpu)
    found = [system.within(min(int(n), system.gpus_per_node)) for n in links.local[unknown]]
    kind, bandwidth, latency = links.link.copy(), links.bandwidth.copy(), links.latency.copy()
    kind[unknown] = [LINKS.index(link.kind) for link in found]
    bandwidth[unknown] = [link.bandwidth for link in found]
    latency[unknown] = [link.latency_s for link in found]
    switch = links.in_switch.copy()
    switch[unknown] = system.in_switch_reduction
    return replace(links, link=kind, bandwidth=bandwidth, latency=latency, in_switch=switch)
