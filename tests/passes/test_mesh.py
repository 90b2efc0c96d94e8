"""Meshes: which GPUs of a group share a node, and what does not fit a system."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from predictor import predict
from predictor.cli.main import main
from predictor.errors import RequestError
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import SystemSpec, default_system, load_system
from predictor.passes.mesh import Mesh
from predictor.request.request import Request
from predictor.simulate.lower import mesh_of

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


RACK = load_system("gb200-nvl72")


@pytest.mark.parametrize(
    ("gpus", "tp", "cards"), [(128, 8, 64), (256, 8, 64), (512, 8, 64), (128, 64, 64), (96, 1, 48), (144, 8, 72)]
)
def test_a_job_takes_part_of_a_rack(gpus: int, tp: int, cards: int) -> None:
    """As many GPUs of every rack: what lies within one uses its links, what does not the network, with a card each."""
    run = Request(
        "llama-3.1-70b", "gb200", mode="train", tp=tp, dp=gpus // tp, batch=gpus // tp, execution="megatron"
    ).run()
    system = run.work.system
    assert system is not None and (system.gpus_per_node, system.nics_per_node) == (cards, cards)
    mesh = mesh_of(run.work)
    assert mesh is not None and mesh.ranks_per_node("tp") == min(tp, cards)
    for axis, _ in mesh.axes:
        for group in members(mesh, axis):
            nodes = [gpu // cards for gpu in group]
            assert {nodes.count(node) for node in nodes} == {mesh.ranks_per_node(axis)}
    over = mesh.collective("all_reduce", "dp", "bf16", 1 << 20)
    assert over.net_bandwidth == mesh.ranks_per_node("dp") * RACK.nic_bandwidth


def test_whole_nodes_stay_whole() -> None:
    """What fits one node, or fills nodes, is as it was; so is a system that was shared before."""
    assert RACK.shared_by((8, 64)) is RACK and RACK.shared_by((8, 72, 144)) is RACK
    part = RACK.shared_by((8, 128))
    assert part.whole is RACK and part.shared_by((8, 128)) == part and part.shared_by((8, 144)) is RACK
    assert NODES_OF_8.shared_by((4, 12)).gpus_per_node == 4 and NODES_OF_8.shared_by((1, 12)).gpus_per_node == 6
    assert NODES_OF_8.shared_by((2, 24), (6,)).gpus_per_node == 8, "whole nodes before parts that experts fit"
    assert RACK.shared_by((1, 192), (96,)).gpus_per_node == 48 and RACK.shared_by((1, 192)).gpus_per_node == 64


@pytest.mark.parametrize(("groups", "said"), [
    ((1, 11), "11 GPUs: no equal part of nodes of 8 (dgx-h100) holds them; nearest that fit: 10 GPUs"),
    ((3, 33), "33 GPUs in groups of 3: no equal part of nodes of 8 (dgx-h100) holds them; nearest that fit: 30 GPUs"),
])  # fmt: skip
def test_a_part_that_leaves_nodes_idle_is_refused(groups: tuple[int, ...], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        NODES_OF_8.shared_by(groups)
    assert str(caught.value) == said


def test_more_racks_move_more_over_the_network() -> None:
    """A step on 128 GPUs of two racks exchanges as much as on one, part of it over the network: never faster."""
    words = {"mode": "train", "tp": 8, "batch": 32, "micro_batch": 1, "execution": "megatron", "artifacts": "roofline"}
    found = predict("llama-3.1-70b", "gb200", dp=16, **words)
    joined = predict("llama-3.1-70b", "gb200", dp=16, system=replace(RACK, gpus_per_node=128), **words)
    assert found.flops == joined.flops and found.latency_s >= joined.latency_s
    assert found.memory == joined.memory


def test_the_answer_says_the_part(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["predict", "--model", "gpt2", "--gpu", "h100", "--mode", "train", "--dp", "12", "--batch", "12"]
    flags += ["--execution", "megatron", "--artifacts", "roofline"]
    assert main(flags) == 0
    assert "12 GPUs of dgx-h100 (6 of the 8 of each node)" in " ".join(capsys.readouterr().out.split())
    assert main([*flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus_per_node"] == 6


def test_what_is_within_an_axis() -> None:
    mesh = Mesh((("tp", 2), ("dp", 4), ("pp", 2)), NODES_OF_8, ep=8)
    assert mesh.within("pp") == Mesh((("tp", 2), ("dp", 4)), NODES_OF_8, ep=8)
    assert mesh.within("cp") is mesh and Mesh((("pp", 2),), NODES_OF_8).within("pp") is None
