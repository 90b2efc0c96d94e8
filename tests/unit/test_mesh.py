"""Meshes: which GPUs of a group share a node, and what does not fit a system."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.errors import RequestError
from predictor.hardware.gpu import load_gpu
from predictor.hardware.mesh import Mesh
from predictor.hardware.system import SystemSpec, default_system, load_system

NODES_OF_8 = default_system(load_gpu("h100"))


def members(mesh: Mesh, axis: str) -> list[list[int]]:
    """The groups along an axis, as numbers of GPUs, from the definition: all coordinates but one alike."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for gpu in range(mesh.gpus):
        rest, left = [], gpu
        for name, degree in mesh.axes:
            if name != axis:
                rest.append(left % degree)
            left //= degree
        groups.setdefault(tuple(rest), []).append(gpu)
    return list(groups.values())


@pytest.mark.parametrize(
    "axes",
    [
        (("tp", 8),), (("tp", 3),), (("tp", 2), ("dp", 4)), (("tp", 8), ("dp", 4)), (("tp", 4), ("dp", 4)),
        (("tp", 2), ("cp", 2), ("pp", 8), ("dp", 2)), (("tp", 16), ("dp", 2)), (("tp", 1), ("dp", 16)),
    ],
)  # fmt: skip
def test_ranks_per_node_are_those_that_share_one(axes: tuple[tuple[str, int], ...]) -> None:
    mesh = Mesh(axes, NODES_OF_8)
    for axis, degree in mesh.axes:
        for group in members(mesh, axis):
            assert len(group) == degree
            nodes = [gpu // NODES_OF_8.gpus_per_node for gpu in group]
            assert {nodes.count(node) for node in nodes} == {mesh.ranks_per_node(axis)}, (axis, group)


def test_axes_of_one_gpu_vanish() -> None:
    mesh = Mesh((("tp", 1), ("dp", 4), ("pp", 1)), NODES_OF_8)
    assert mesh == Mesh((("dp", 4),), NODES_OF_8)
    assert (mesh.degree("tp"), mesh.degree("dp"), mesh.degree("nosuch"), mesh.gpus) == (1, 4, 1, 4)
    assert Mesh((("tp", 1),), NODES_OF_8).axes == ()


def test_collectives_go_over_the_links_between_the_group() -> None:
    """tp within nodes, dp from node to node, where every GPU of the eight has its own card."""
    mesh = Mesh((("tp", 8), ("dp", 4)), NODES_OF_8)
    tp, dp = (mesh.collective("all_reduce", axis, "bf16", 1 << 20) for axis in ("tp", "dp"))
    assert (tp.ranks, tp.ranks_per_node, tp.net_bandwidth, tp.stream) == (8, 8, 0.0, tp.link)
    assert (dp.ranks, dp.ranks_per_node, dp.stream) == (4, 1, "network")
    assert dp.net_bandwidth == NODES_OF_8.nic_bandwidth
    assert dp.net_bytes() == 2 * (1 << 20) * 3 / 4


@pytest.mark.parametrize(
    ("axes", "system", "said"),
    [
        ((("tp", 3), ("dp", 4)), NODES_OF_8, ("tp 3 x dp 4", "nodes of 8", "multiple of 8")),
        ((("tp", 2), ("dp", 6)), NODES_OF_8, ("12 GPUs", "dgx-h100")),
        ((("tp", 2), ("tp", 2)), NODES_OF_8, ("every axis once",)),
        ((("tp", 0),), NODES_OF_8, ("degrees from 1 on",)),
        ((("tp", 16),), replace(load_system("pcie-gen4"), network=None), ("no network", "at most")),
    ],
)
def test_what_does_not_fit_is_one_line(
    axes: tuple[tuple[str, int], ...], system: SystemSpec, said: tuple[str, ...]
) -> None:
    with pytest.raises(RequestError) as caught:
        Mesh(axes, system)
    assert all(part in str(caught.value) for part in said), str(caught.value)
    assert "\n" not in str(caught.value)
