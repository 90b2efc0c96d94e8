"""One system: how the GPUs of a node, and the nodes, are joined. Read from one YAML file, as a GPU is.

`load_system("dgx-h100")` reads a file of the catalogue (`systems/`), `load_system("mine.yaml")` a file of your own;
`default_system(gpu)` is the node that a GPU most often comes in. Every bandwidth is bytes/s in one direction: of all
links of one GPU, or of one network card.

Links within a node:

nvswitch   every GPU has its full bandwidth to every other, through switches; with `in_switch_reduction` the switches
           add and multicast (NVLink SHARP)
mesh       direct links, so that the bandwidth depends on how many GPUs take part (`by_ranks`): the hybrid cube mesh
           of V100 nodes, the full mesh of Infinity Fabric
pair       a bridge joins the `link_group` boards of a pair; a ring over more passes the boards of a pair one after the
           other, so that PCIe is what limits it, and every board's PCIe link sends or receives, not both
pcie       no links but PCIe
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from predictor.errors import RequestError
from predictor.files.records import dataclass, replace
from predictor.hardware.catalogue import Catalogue, Document
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.plausible import system_problems

SYSTEM_DIR = Path(__file__).parent / "systems"
LINKS = ("nvswitch", "mesh", "pair", "pcie")
NETWORKS = ("infiniband", "roce", "ethernet")

#: Time of one hop where nobody measured it: what NCCL's tuning model takes for its LL protocol, over a network that of
#: its tree, 2.7 us for a ring (src/graph/tuning.cc of 5067397c).
LATENCY_S: Mapping[str, float] = {"nvlink": 0.6e-6, "pcie": 1.0e-6, "network": 5.0e-6}

#: Nodes that a job is spread over at most, over the fewest that have as many GPUs. Chosen by hand, not from data:
#: schedulers give whole nodes, of which nobody leaves more than half idle.
_MOST_NODES = 2

# Field of the file -> (field of SystemSpec, dimension).
_QUANTITIES: Mapping[str, tuple[str, str]] = {
    "gpus_per_node": ("gpus_per_node", "count"),
    "gpus_per_host": ("gpus_per_host", "count"),
    "link_bandwidth": ("link_bandwidth", "bandwidth"),
    "link_latency": ("link_latency_s", "time"),
    "link_group": ("link_group", "count"),
    "pcie_bandwidth": ("pcie_bandwidth", "bandwidth"),
    "pcie_latency": ("pcie_latency_s", "time"),
    "nics_per_node": ("nics_per_node", "count"),
    "nic_bandwidth": ("nic_bandwidth", "bandwidth"),
    "network_latency": ("network_latency_s", "time"),
}
_REQUIRED = ("gpus_per_node", "link_bandwidth", "link_latency")
_OF_A_PAIR = ("link_group", "pcie_bandwidth", "pcie_latency")
_OF_A_NETWORK = ("nics_per_node", "nic_bandwidth", "network_latency")
_OTHER = ("id", "aliases", "gpus", "name", "link", "in_switch_reduction", "by_ranks", "network", "documents", "notes")


@dataclass(frozen=True, slots=True)
class Link:
    """What joins a group of GPUs of one node: kind of link, bytes/s in one direction per GPU, seconds a hop."""

    kind: str
    bandwidth: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """GPUs and links. Made by `load_system` or `default_system`; for a what-if, `dataclasses.replace` one.

    id, name, aliases    the file's stem, what people call it, short names
    gpus                 GPU ids that this is the default system of
    gpus_per_node        GPUs of a node: those that one kind of link joins, a rack's where it joins a rack
    gpus_per_host        GPUs of one of its hosts, where a node is a rack of several; None where it is one host
    link                 one of `LINKS`;  in_switch_reduction: whether the switches reduce and multicast
    link_bandwidth       bytes/s in one direction per GPU over all of its links;  link_latency_s  seconds of one hop
    by_ranks             mesh: GPUs that take part -> bytes/s per GPU that their links give
    link_group           GPUs that the link joins (a pair's two); beyond it pcie_bandwidth and pcie_latency_s hold
    network              one of `NETWORKS`, None for a single node; nics_per_node cards of nic_bandwidth bytes/s in one
                         direction, network_latency_s seconds of one hop
    sources              field -> where the value is from
    whole                the system with all GPUs of its nodes, where a job takes ``gpus_per_node`` of each
                         (`shared_by`)

    Equality compares every field; the hash is that of the id.
    """

    id: str
    name: str
    gpus_per_node: int
    link: str
    link_bandwidth: float
    link_latency_s: float
    in_switch_reduction: bool = False
    by_ranks: Mapping[int, float] = field(default_factory=dict)
    link_group: int | None = None
    pcie_bandwidth: float | None = None
    pcie_latency_s: float | None = None
    network: str | None = None
    nics_per_node: int | None = None
    nic_bandwidth: float | None = None
    network_latency_s: float | None = None
    aliases: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    whole: SystemSpec | None = None
    gpus_per_host: int | None = None

    def __hash__(self) -> int:
        return hash(self.id)

    def shared_by(self, groups: Sequence[int], better: Sequence[int] = ()) -> SystemSpec:
        """What a job takes of the system whose ``groups`` have so many GPUs, numbered side by side, the largest all of
        them: as many GPUs of every node, so that each group lies within nodes or fills them, and all do alike.

        One node where all fit it; whole nodes where groups fit these; else the largest part of a node that they fit,
        one that groups of ``better`` fit, too, before others, with as large a part of its network cards. RequestError,
        one line with the nearest number of GPUs, where the parts would need more than `_MOST_NODES` as many nodes.
        """
        entire = self.whole or self
        total, per_node = max(groups), entire.gpus_per_node
        if total <= per_node or entire.network is None:
            return entire
        least = -(-total // per_node)

        def parts(total: int, groups: Sequence[int]) -> list[int]:
            sizes = range(per_node, max(0, -(-total // (_MOST_NODES * least)) - 1), -1)
            return [n for n in sizes if total % n == 0 and all(g % n == 0 or n % g == 0 for g in groups)]

        divided = parts(total, groups)
        if not divided:
            inner = sorted({g for g in groups if 1 < g < total})
            step = max(inner, default=1)
            near = [n for n in range(step, total + per_node + 1, step) if n <= per_node or parts(n, [*inner, n])]
            fit = min(near, key=lambda n: (abs(n - total), n)) if near else per_node
            of = f" in groups of {', '.join(map(str, inner))}" if inner else ""
            raise RequestError(
                f"{total} GPUs{of}: no equal part of nodes of {per_node} ({entire.id}) holds them; nearest that fit:"
                f" {fit} GPUs"
            )
        if divided[0] == per_node:
            return entire
        part = next((n for n in divided if all(g % n == 0 or n % g == 0 for g in better)), divided[0])
        cards = None if entire.nics_per_node is None else max(1, entire.nics_per_node * part // per_node)
        return replace(entire, gpus_per_node=part, nics_per_node=cards, whole=entire)

    def within(self, ranks: int) -> Link:
        """What joins `ranks` GPUs of one node. RequestError where a node has fewer."""
        if not 1 <= ranks <= self.gpus_per_node:
            raise RequestError(f"{ranks} GPUs in one node of {self.id}: expected 1 to {self.gpus_per_node}")
        if self.link == "pair" and ranks > (self.link_group or 2):
            return Link("pair", self.pcie_bandwidth or 0.0, self.pcie_latency_s or 0.0)
        known = [n for n in sorted(self.by_ranks) if n >= ranks]
        bandwidth = self.by_ranks[known[0]] if known else self.link_bandwidth
        return Link(self.link, bandwidth, self.link_latency_s)

    def adds_within(self, ranks: int) -> bool:
        """Whether what joins `ranks` GPUs of one node adds what they send."""
        return self.in_switch_reduction and self.within(ranks).kind == "nvswitch"

    def across(self, ranks_per_node: int) -> tuple[float, float]:
        """(bytes/s in one direction that a node gives to `ranks_per_node` of its GPUs, seconds of one hop).

        Cards are shared evenly: a GPU has its own where there is one for each. RequestError where there is no network.
        """
        if self.network is None or not self.nics_per_node or not self.nic_bandwidth:
            raise RequestError(f"{self.id} has no network: expected at most {self.gpus_per_node} GPUs, or a system")
        cards = max(1.0, self.nics_per_node * min(1.0, ranks_per_node / self.gpus_per_node))
        return cards * self.nic_bandwidth, self.network_latency_s or 0.0


# ---------------------------------------------------------------------------------------------------- the catalogue


def list_systems() -> tuple[str, ...]:
    """The ids of the catalogue, sorted."""
    return _CATALOGUE.ids()


def load_system(name_or_path: str | Path) -> SystemSpec:
    """The system of a catalogue name (a file's stem or an alias, in any case) or of a YAML file.

    What ends in .yaml or .yml or holds a path separator is a file. Raises UnknownNameError (with the nearest names),
    RequestError for a file that is not there, and SpecError, one line that names everything wrong in it.
    """
    return _CATALOGUE.load(name_or_path, "a name of " + ", ".join(list_systems()) + " or a YAML file")


def default_system(gpu: GPUSpec) -> SystemSpec:
    """The system that lists `gpu`; for a GPU that none lists, a node of eight, made from its own link bandwidths.

    Such a node has an NVSwitch (without reduction) where the GPU has links, else PCIe; a card of 50 GB/s for each GPU.
    Raises RequestError where the GPU's file has neither `nvlink_bandwidth` nor `pcie_bandwidth`.
    """
    stem = _CATALOGUE.listed("gpus").get(gpu.id)
    if stem is not None:
        return _CATALOGUE.load(stem)
    bandwidth = gpu.nvlink_bandwidth or gpu.pcie_bandwidth
    if bandwidth is None:
        raise RequestError(f"{gpu.id} has no system: its file has neither nvlink_bandwidth nor pcie_bandwidth")
    kind = "nvlink" if gpu.nvlink_bandwidth else "pcie"
    return SystemSpec(
        id=f"{gpu.id}-node", name=f"node of eight {gpu.name}", gpus_per_node=8,
        link="nvswitch" if gpu.nvlink_bandwidth else "pcie", link_bandwidth=bandwidth, link_latency_s=LATENCY_S[kind],
        network="infiniband", nics_per_node=8, nic_bandwidth=50e9, network_latency_s=LATENCY_S["network"],
        gpus=(gpu.id,), sources={"link_bandwidth": f"{gpu.id}; the rest is assumed"},
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- reading a file


def parse_system(text: str, path: Path) -> SystemSpec:
    """The system of a YAML text; `path` names it in errors. Raises SpecError, one line that names everything wrong."""
    document = Document("system", text, path, such_as="link: nvswitch")
    link = _choice(document, "link", LINKS)
    network = _choice(document, "network", NETWORKS, needed=False)
    needed = {*_REQUIRED, *(_OF_A_PAIR if link == "pair" else ()), *(_OF_A_NETWORK if network else ())}
    values: dict[str, Any] = {
        target: document.quantity(name, dimension, name in needed) for name, (target, dimension) in _QUANTITIES.items()
    }
    by_ranks = _by_ranks(document, link)
    document.problems += system_problems(
        {name: values[target] for name, (target, _) in _QUANTITIES.items()}, link, by_ranks
    )
    in_switch = document.fields.get("in_switch_reduction", False)
    if not isinstance(in_switch, bool) or (in_switch and link != "nvswitch"):
        document.problems.append("in_switch_reduction: expected true or false, and true only for link nvswitch")
    identity = document.fields.get("id")
    if not isinstance(identity, str) or not identity.strip():
        document.missing.append("id")
    for shown in ("id", "name"):
        text = document.fields.get(shown) or ""
        if not (isinstance(text, str) and text.isprintable() and len(text) <= 100):
            document.problems.append(f"{shown} is not plain text of 1 to 100 characters")
    aliases, gpus = _names(document, "aliases"), _names(document, "gpus")
    document.unknown_fields((*_OTHER, *_QUANTITIES))
    document.raise_problems()
    return SystemSpec(
        id=str(identity), name=str(document.fields.get("name") or identity), link=str(link), network=network,
        in_switch_reduction=bool(in_switch), by_ranks=by_ranks, aliases=aliases,
        gpus=gpus, sources=document.sources, **values,
    )  # fmt: skip


def _choice(document: Document, name: str, choices: tuple[str, ...], needed: bool = True) -> str | None:
    value = document.fields.get(name)
    if (isinstance(value, str) and value in choices) or (value is None and not needed):
        return None if value is None else str(value)
    document.problems.append(f"{name} is {value!r}: expected one of {', '.join(choices)}")
    return None


def _names(document: Document, name: str) -> tuple[str, ...]:
    value = document.fields.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) and item.isprintable() for item in value):
        document.problems.append(f"{name} is not a list of plain names such as [h100-sxm]")
        return ()
    return tuple(value)


def _by_ranks(document: Document, link: str | None) -> dict[int, float]:
    table = document.fields.get("by_ranks") or {}
    if not isinstance(table, dict) or (table and link != "mesh"):
        document.problems.append("by_ranks: expected a mapping such as {2: ..., 4: ...}, for link mesh alone")
        return {}
    by_ranks: dict[int, float] = {}
    for ranks, raw in table.items():
        if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 2:
            document.problems.append(f"by_ranks.{ranks}: expected a number of GPUs from 2 on")
        elif (value := document.number(f"by_ranks.{ranks}", raw, "bandwidth")) is not None:
            by_ranks[ranks] = value
    return by_ranks


_CATALOGUE = Catalogue("system", SYSTEM_DIR, parse_system)
