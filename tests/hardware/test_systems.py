"""Systems: the catalogue, files of one's own, and what joins a group of GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from predictor.errors import RequestError, SpecError, UnknownNameError
from predictor.hardware.gpu import list_gpus, load_gpu
from predictor.hardware.system import LINKS, default_system, list_systems, load_system, parse_system

GOOD = """
id: mine
gpus_per_node: {value: "4", source: here}
link: pair
link_group: {value: "2", source: here}
link_bandwidth: {value: "100 GB/s", source: here}
link_latency: {value: "1 us", source: here}
pcie_bandwidth: {value: "20 GB/s", source: here}
pcie_latency: {value: "2 us", source: here}
"""


@pytest.mark.parametrize("name", list_systems())
def test_every_file_says_where_its_values_are_from(name: str) -> None:
    spec = load_system(name)
    assert spec.id == name and spec.link in LINKS
    assert all(source not in ("", "not stated") for source in spec.sources.values())
    assert {"gpus_per_node", "link_bandwidth", "link_latency"} <= set(spec.sources)
    for alias in spec.aliases:
        assert load_system(alias) == spec
    assert {load_gpu(gpu).id for gpu in spec.gpus} == set(spec.gpus)


@pytest.mark.parametrize("name", list_gpus())
def test_every_gpu_has_a_system(name: str) -> None:
    gpu = load_gpu(name)
    if gpu.pcie_bandwidth is None:  # on a chip with its CPU
        with pytest.raises(RequestError, match=f"{name} has no system"):
            default_system(gpu)
        return
    system = default_system(gpu)
    most = system.within(system.gpus_per_node).bandwidth
    assert 0 < most <= system.within(2).bandwidth or system.link == "mesh"
    links = (gpu.nvlink_bandwidth, gpu.pcie_bandwidth)
    assert system.link_bandwidth in links, f"{system.id} has {system.link_bandwidth}, {name} has {links}"


def test_a_gpu_is_the_default_of_one_system_at_most() -> None:
    named = [gpu for name in list_systems() for gpu in load_system(name).gpus]
    assert len(named) == len(set(named))


def test_a_gpu_that_no_system_lists_gets_a_node_of_its_own_links() -> None:
    linked = replace(load_gpu("h100-sxm"), id="mine", nvlink_bandwidth=1e12)
    assert default_system(linked).within(8).bandwidth == 1e12
    assert default_system(linked).link == "nvswitch" and not default_system(linked).in_switch_reduction
    plain = replace(linked, nvlink_bandwidth=None)
    assert default_system(plain).link == "pcie" and default_system(plain).link_bandwidth == plain.pcie_bandwidth
    with pytest.raises(RequestError, match="mine has no system"):
        default_system(replace(plain, pcie_bandwidth=None))


def test_what_joins_gpus_depends_on_how_many_take_part() -> None:
    cube = load_system("dgx-1-v100")
    assert [cube.within(n).bandwidth for n in (2, 3, 4, 8)] == [25e9, 100e9, 100e9, 150e9]
    pairs = parse_system(GOOD, Path("mine.yaml"))
    assert (pairs.within(2).bandwidth, pairs.within(4).bandwidth) == (100e9, 20e9)
    assert (pairs.within(2).latency_s, pairs.within(3).latency_s) == (1e-6, 2e-6)
    with pytest.raises(RequestError, match="5 GPUs in one node of mine: expected 1 to 4"):
        pairs.within(5)
    with pytest.raises(RequestError, match="mine has no network"):
        pairs.across(4)


def test_network_cards_are_shared_by_the_gpus_of_a_node() -> None:
    dgx = load_system("dgx-h100")
    assert dgx.across(8)[0] == 8 * 50e9 and dgx.across(1)[0] == 50e9
    four_cards = load_system("dgx-1-v100")  # eight GPUs share four
    assert four_cards.across(1)[0] == 12.5e9 == four_cards.across(2)[0]


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    assert load_system(path) == load_system(str(path))
    assert load_system(path).gpus_per_node == 4


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("link: pair", "link: wire", "link is 'wire': expected one of nvswitch, mesh, pair, pcie"),
        ('"100 GB/s"', '"100"', "link_bandwidth: '100' has no unit"),
        ('link_group: {value: "2", source: here}', "", "missing link_group"),
        ("id: mine", "name: mine", "missing id"),
        ("id: mine", "id: mine\nlinks: 3", "unknown field 'links' (nearest: link)"),
        ("id: mine", "id: mine\nnetwork: infiniband", "missing nics_per_node, nic_bandwidth"),
        ("id: mine", "id: mine\nin_switch_reduction: true", "true only for link nvswitch"),
        ("id: mine", "id: mine\nby_ranks: {2: 3}", "by_ranks"),
        ("id: mine", "id: [mine", "broken YAML"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(SpecError) as caught:
        load_system(path)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_unknown_names_and_missing_files() -> None:
    with pytest.raises(UnknownNameError, match="nearest: dgx-h100"):
        load_system("dgx-h10")
    with pytest.raises(RequestError, match="cannot read system file"):
        load_system("/nowhere/mine.yaml")
