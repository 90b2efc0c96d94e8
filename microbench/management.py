"""The board's management library, whichever vendor's is there: NVML, or AMD's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from microbench import amd_smi, nvml

ManagedBoard: TypeAlias = nvml.Nvml | amd_smi.AmdBoard


def count() -> int:
    """GPUs of this machine; 0 without a driver."""
    return nvml.count() or len(amd_smi.boards())


def there() -> bool:
    """Whether a management library answers."""
    return nvml.load_library() is not None or bool(amd_smi.boards())


def open_board(pci_bus_id: str = "", uuid: str = "", index: int | None = None) -> ManagedBoard | None:
    """The board with that PCI bus id, UUID or driver index (which no variable renumbers)."""
    if nvml.load_library() is not None:
        return nvml.open_board(pci_bus_id, uuid, index)
    return amd_smi.open_board(pci_bus_id, uuid, index)


def entry_board(entry: str) -> ManagedBoard | None:
    """The board of an entry of CUDA_VISIBLE_DEVICES: an index or a UUID."""
    return open_board(index=int(entry)) if entry.isdigit() else open_board(uuid=entry)


def joined_by(boards: Sequence[ManagedBoard | None]) -> str:
    """The link of a node's boards, one of `predictor.hardware.system.LINKS`; "" where the driver does not tell.

    Boards that NVLinks (of AMD: Infinity Fabric) do not all reach, over others if need be, speak over PCIe.
    """
    known = [board for board in boards if board is not None]
    if len(known) < max(2, len(boards)):
        return ""
    reached, todo = {0}, [0]
    while todo:
        at = todo.pop()
        for other in set(range(len(known))) - {at}:
            joined = known[at].linked(known[other])  # type: ignore[arg-type]
            if joined is None:
                return ""
            if joined and other not in reached:
                reached.add(other)
                todo.append(other)
    if len(reached) < len(known):
        return "pcie"
    if all(board.on_switch() for board in known):
        return "nvswitch"
    return "pair" if len(known) == 2 else "mesh"
