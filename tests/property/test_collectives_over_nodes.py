"""Collectives over nodes: bounded, and longer for more bytes, more ranks and narrower networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import default_system, list_systems, load_system
from predictor.kernels.base import make_batch
from predictor.kernels.collective.core import CollectiveCalls, Constants, seconds
from predictor.kernels.device import Device
from predictor.ops.collective import KINDS, Collective, over
from predictor.ops.roofline import roofline

GPU = load_gpu("h100-sxm")
NETWORKED = [name for name in list_systems() if load_system(name).network is not None]
SIZES = [2**i for i in range(8, 33, 2)]


def times(ops: list[Collective], gpu: str = "h100-sxm") -> np.ndarray:
    return seconds(CollectiveCalls.of(make_batch("collective", ops).columns), Device.sheet(load_gpu(gpu)), Constants())


@pytest.mark.parametrize("name", NETWORKED)
@pytest.mark.parametrize("kind", KINDS)
def test_more_bytes_more_nodes_and_a_narrower_network_cost_more(name: str, kind: str) -> None:
    """An all_to_all for the same bytes a peer: of the same bytes in all, more peers get less each, at the same time."""
    system = load_system(name)
    for local in sorted({1, 2, system.gpus_per_node}):
        peers = {nodes: local * nodes if kind == "all_to_all" else 1 for nodes in (2, 4, 16, 64)}
        found = np.array([
            times([over(system, kind, "bf16", size * each, local * nodes, local) for size in SIZES])
            for nodes, each in peers.items()
        ])  # fmt: skip
        assert np.isfinite(found).all() and (found > 0).all()
        assert (np.diff(found, axis=1) >= -1e-12).all(), "bytes"
        assert (np.diff(found, axis=0) >= -1e-12).all(), "nodes"
        ops = [over(system, kind, "bf16", size, local * 4, local) for size in SIZES]
        narrow = times([replace(op, net_bandwidth=op.net_bandwidth / 100) for op in ops])
        far = times([replace(op, net_latency_s=op.net_latency_s * 2) for op in ops])
        whole = times(ops)
        assert (narrow >= whole - 1e-12).all() and narrow[-1] > 2.0 * whole[-1] and (far > whole).all()
        assert (whole >= roofline(ops, GPU).lower_bound_s).all()


@pytest.mark.parametrize("name", NETWORKED)
def test_a_node_alone_is_no_slower_than_the_same_gpus_over_nodes(name: str) -> None:
    system = load_system(name)
    n = system.gpus_per_node
    for kind in KINDS:
        near = times([over(system, kind, "bf16", size, n) for size in SIZES])
        far = times([over(system, kind, "bf16", size, n, n // 2) for size in SIZES])
        wide = system.within(n).bandwidth >= system.across(n // 2)[0]  # else cards carry more than what joins boards
        assert not wide or (far >= near - 1e-12).all(), kind


def test_what_collectives_over_nodes_cannot_exceed() -> None:
    """A large one: its bytes at a third of the links; a small all_reduce: a tree, far from 64 times as long over 64
    times the nodes.
    """
    system = load_system("dgx-h100")
    for kind in KINDS:
        ops = [over(system, kind, "bf16", 1 << 32, 8 * nodes) for nodes in (2, 8, 64)]
        assert (times(ops) < 3.5 * roofline(ops, GPU).lower_bound_s).all(), kind
    small = times([over(system, "all_reduce", "bf16", 4096, 8 * nodes) for nodes in (2, 128)])
    assert small[1] < 6.4 * small[0]
    assert times([over(system, "all_reduce", "bf16", 4096, 1024)])[0] < 1e-3


def test_a_rack_of_72_on_one_network_beats_nodes_of_eight() -> None:
    """GB200 NVL72 against nine DGX B200: every collective of all 72, small and large."""
    rack, nodes = load_system("gb200-nvl72"), load_system("dgx-b200")
    assert default_system(load_gpu("gb200")) == rack
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for size in (1 << 14, 1 << 22, 1 << 30):
            one, nine = (times([over(system, kind, "bf16", size, 72)], "gb200")[0] for system in (rack, nodes))
            assert one < nine, (kind, size)


def test_a_ring_over_nodes_by_hand() -> None:
    """Two nodes of two: a gather's three hops, of which one crosses the network; alone in their nodes, all do."""
    k = Constants(widening=1e-9, knee=1e-9, local=1e-9)
    gpu = Device.sheet(GPU)
    system = load_system("dgx-h100")
    crossing = over(system, "all_gather", "bf16", 4, 4, 2)
    handling = k.launch_trips * gpu.memory_latency_s + 3 * k.hop_trips_ll * gpu.memory_latency_s
    expected = handling + 2 * system.link_latency_s + (system.network_latency_s or 0.0)
    links = CollectiveCalls.of(make_batch("collective", [crossing]).columns)
    assert seconds(links, gpu, k)[0] == pytest.approx(expected, rel=1e-3)
    alone = CollectiveCalls.of(make_batch("collective", [over(system, "all_gather", "bf16", 4, 4, 1)]).columns)
    assert seconds(alone, gpu, k)[0] == pytest.approx(handling + 3 * (system.network_latency_s or 0.0), rel=1e-3)
