"""An AMD GPU as the device: PyTorch's CUDA interface over HIP, a flush sized by the last-level cache, amdsmi beside."""

from __future__ import annotations

from typing import Any

import torch

from microbench import rocm
from microbench.devices.cuda import CudaDevice
from predictor.hardware.gpu import list_gpus

#: Clocks of the spin by which its rate is told, and how often: PyTorch's spin kernel counts a clock that is the board's
#: on some generations and a fixed one on others. Chosen by hand, not from data.
_SPUN, _SPINS = 20_000, 3


class HipDevice(CudaDevice):
    """The one AMD GPU that this process sees."""

    def __init__(self) -> None:
        super().__init__()
        gfx = rocm.plain(str(getattr(self.properties, "gcnArchName", "")))
        if gfx not in rocm.INSTRUCTION_SETS:
            raise RuntimeError(f"{gfx or 'an unnamed board'}: expected one of {', '.join(rocm.INSTRUCTION_SETS)}")
        self.gfx, entry = gfx, rocm.INSTRUCTION_SETS[gfx]
        if self.id not in list_gpus():
            clock = None if self.board is None else self.board.max_clock_hz()
            units, memory = self.properties.multi_processor_count, float(self.properties.total_memory)
            spec = rocm.board(gfx, units, memory, clock)
            self.id = spec.id if spec is not None else f"{self.id}-{gfx}"
        self.cache_bytes = entry.last_level_bytes
        if entry.fp8:
            self.fp8 = getattr(torch, entry.fp8)
        self.clocks_a_second = self._spin_rate()

    def _spin_rate(self) -> float:
        """Clocks a second of PyTorch's spin, timed."""
        if self._sleep is None:
            return self.clocks_a_second
        sleep = self._sleep
        sleep(_SPUN)
        return _SPUN / min(self.time_batch(lambda: sleep(_SPUN), 1) for _ in range(_SPINS))

    def software(self) -> dict[str, Any]:
        return {"cuda_version": f"rocm {torch.version.hip}"}

    def facts(self) -> dict[str, Any]:
        """PyTorch calls the compute capability of gfx942 9.4: a number of CUDA's that it is not."""
        version = str(torch.version.hip).split("-")[0]
        torch_version = torch.__version__.split("+")[0]
        return super().facts() | {
            "capability": [0, 0], "gfx": self.gfx, "stack": f"torch-{torch_version}_rocm-{version}",
        }  # fmt: skip
