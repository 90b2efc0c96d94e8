"""What importers of collectives share: the cells of a collective's rows, from a system of the catalogue."""

from __future__ import annotations

from typing import Any

from predictor.errors import TilecastError
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import SystemSpec, default_system
from predictor.ops.collective import over
from predictor.training.dataset import Frame
from predictor.training.extras import require

_LINK = ("link", "link_bandwidth", "link_latency_s", "in_switch", "net_bandwidth", "net_latency_s")


def collective_cells(system: SystemSpec, kinds: Frame, sizes: Frame, ranks: Frame, per_node: Frame) -> dict[str, Any]:
    """Columns of n collectives over ``system``: kind, full buffer in bytes, GPUs, GPUs in a node (series of length n).

    Where GPUs of several nodes take part and the system has no network, the network's columns are 0: not known.
    """
    pd = require("pandas")
    table = pd.DataFrame({"ranks": ranks, "ranks_per_node": per_node}).astype(int)
    links: dict[tuple[int, int], dict[str, Any]] = {}
    for n, local in table.drop_duplicates().itertuples(index=False):
        inside = n == local or system.network is None
        op = over(system, "all_reduce", "bf16", 2, local if inside else n, local) if local > 1 or not inside else None
        links[n, local] = {name: getattr(op, name) for name in _LINK} if op is not None else _one_each(system)
    pairs = list(table.itertuples(index=False, name=None))
    return {
        "op": "collective", "kind": kinds, "size": sizes, "ranks": ranks, "ranks_per_node": per_node,
        "system": system.id, **{name: pd.Series([links[pair][name] for pair in pairs]) for name in _LINK},
    }  # fmt: skip


def _one_each(system: SystemSpec) -> dict[str, Any]:
    """The link of GPUs that are alone in their node, in a system without a network."""
    link = system.within(1)
    return {
        "link": link.kind, "link_bandwidth": link.bandwidth, "link_latency_s": link.latency_s, "in_switch": False,
        "net_bandwidth": 0.0, "net_latency_s": 0.0,
    }  # fmt: skip


def fill_links(frame: Frame) -> Frame:
    """`frame` (schema columns) with the links of its collectives where a row names none: its GPU's default system.

    Rows of a GPU that the catalogue lacks, of more GPUs than a node has, of several nodes, or over another kind of link
    than the system's are left as they are.
    """
    pd = require("pandas")
    bandwidth = frame["link_bandwidth"] if "link_bandwidth" in frame else pd.Series(0.0, index=frame.index)
    here = ((frame["op"].astype(str) == "collective") & (bandwidth.fillna(0.0) <= 0.0)).to_numpy()
    if not here.any():
        return frame
    frame = frame.copy()
    link = frame["link"].astype(object).fillna("") if "link" in frame else pd.Series("", index=frame.index)
    node = frame["ranks_per_node"].fillna(0) if "ranks_per_node" in frame else pd.Series(0, index=frame.index)
    here = here & ((node <= 0) | (node == frame["ranks"])).fillna(False).to_numpy(dtype=bool)
    for gpu in sorted(set(frame.loc[here, "gpu"].astype(str))):
        try:
            system = default_system(load_gpu(gpu))
        except TilecastError:
            continue
        rows = here & (frame["gpu"].astype(str) == gpu).to_numpy() & (frame["ranks"] <= system.gpus_per_node).to_numpy()
        rows &= link.isin(["", system.link]).to_numpy()
        part = frame[rows]
        cells = collective_cells(system, part["kind"], part["size"], part["ranks"], part["ranks"])
        for name in (*_LINK, "system", "ranks_per_node"):
            values = cells[name]
            if name not in frame or str(frame[name].dtype) in ("category", "boolean", "bool"):
                frame[name] = frame[name].astype(object) if name in frame else None
            frame.loc[rows, name] = values.to_numpy() if hasattr(values, "to_numpy") else values
    return frame
