"""Memory-bound operators: element-wise chains, softmax, norms, embeddings, losses, rotary, copies, optimizers.

The core is `predictor.kernels.memory_bound.core`, with nothing on top. A GPU that was never measured takes the medians
of its memory type (a Pascal board those of Pascal) and architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.errors import SpecError
from predictor.files.records import replace
from predictor.hardware.generation import l2_is_whole
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.what_if import as_filed
from predictor.kernels.base import Batch, Launched
from predictor.kernels.device import Device
from predictor.kernels.explanation import COUNT, SHARE, Explanation, rests_on, terms
from predictor.kernels.memory_bound.core import SMALLEST_S, Constants, kernel_seconds, traffic_of
from predictor.ops.roofline import FloatArray

FAMILIES = (
    "elementwise", "softmax", "norm", "embedding", "cross_entropy", "rotary", "optimizer", "copy", "routing",
)  # fmt: skip
DTYPES = ("*",)

#: Memory types in the order of the artifact's fallback shares.
MEMORY_TYPES = ("HBM2", "HBM2e", "HBM3", "HBM3e", "GDDR5", "GDDR6", "GDDR6X", "GDDR7")


class MemoryBound(Launched):
    """The estimator of memory-bound operators. Built by `from_artifact`; immutable afterwards."""

    def __init__(
        self, const: Constants, boards: Mapping[str, tuple[float, float]], manifest: Mapping[str, Any]
    ) -> None:
        self.name = str(manifest["name"])
        self.const = const
        self._boards = dict(boards)
        self._share_by_type: dict[str, float] = manifest["share_by_memory_type"]
        self._share_by_architecture: dict[str, float] = manifest["share_by_architecture"]
        self._hold_by_architecture: dict[str, float] = manifest["hold_by_architecture"]
        self._own: dict[str, Any] = manifest["calibrated"]
        self._calls = manifest["eager_overhead_s"]
        self._own_calls = {gpu: about["eager_overhead_s"] for gpu, about in self._own.items()}
        ordered = np.sort(np.array(list(boards.values())), axis=0)  # np.median loads numpy.ma, which is felt at a start
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2.0
        self._median = tuple(float(v) for v in middle)

    @classmethod
    def from_artifact(cls, manifest: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]]) -> MemoryBound:
        """The estimator of a manifest and its arrays; SpecError where one is missing."""
        try:
            const = Constants.from_manifest(manifest["constants"], "constants")
            rows = np.asarray(weights["boards"], dtype=np.float64)
            named = zip(manifest["boards"], rows, strict=True)
            boards = {str(g): (float(share), float(hold)) for g, (share, hold) in named}
            return cls(const, boards, manifest)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SpecError(f"memory_bound artifact is incomplete: {error}") from None

    def board(self, gpu: GPUSpec) -> tuple[float, float]:
        """(share of the bandwidth, share of L2): fitted where the GPU was measured, else by memory and architecture."""
        known = self._own[gpu.id]["board"] if gpu.id in self._own else self._boards.get(gpu.id)
        if known is None:
            of_type = self._share_by_type.get(gpu.memory_type or "", self._median[0])
            share = self._share_by_architecture.get(gpu.architecture, of_type)
            known = share, self._hold_by_architecture.get(gpu.architecture, self._median[1])
        share, hold = known
        return share, hold

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time on a busy GPU, shape (n,); a variant has the rows in flight of the board that it is one of."""
        share, hold = self.board(gpu)
        device = Device.sheet(gpu, gpu.vector_flops("fp32")).sustaining(bandwidth=share)
        parts = 1.0 if l2_is_whole(gpu) else 2.0
        return kernel_seconds(traffic_of(batch, as_filed(gpu)), device, hold, self._on(gpu), parts)

    def _on(self, gpu: GPUSpec) -> Constants:
        """The constants on a board."""
        smallest = SMALLEST_S.get(gpu.warp_threads or 0)
        return self.const if smallest is None else replace(self.const, fixed_s=smallest)

    def explain(self, batch: Batch, gpu: GPUSpec) -> Explanation:
        """Bytes, rates and fixed times of the only operator of ``batch``."""
        traffic, (share, _) = traffic_of(batch, gpu), self.board(gpu)
        const = self._on(gpu)
        fixed = const.fixed_s * float(traffic.kernels[0])
        kernel = float(self.seconds(batch, gpu)[0])
        parts = terms("bytes", [
            ("once", float(traffic.once[0]), "bytes", "every operand once for each kernel"),
            ("again", float(traffic.reread[0]), "bytes", "read a second time, from L2 where they fit"),
            ("places", float(traffic.offsets[0]) / (gpu.sm_count * gpu.boost_clock_hz), "s",
             "to work out where each element of unlike operands lies; 0 where all lie alike"),
            ("kernels", float(traffic.kernels[0]), COUNT, f"{const.fixed_s * 1e6:.3g} us each"),
            ("fixed", fixed, "s", "kernels x their fixed time"),
            ("kernel", kernel, "s", "bytes at their rates, or the time of the rows, plus the fixed time"),
        ])  # fmt: skip
        parts += terms("constants", [
            ("bandwidth", share, SHARE, "of DRAM's bandwidth that a stream reaches"),
            ("L2", self.const.l2_share, SHARE, "of L2's bandwidth"),
        ])  # fmt: skip
        rests = rests_on(gpu.id, self._own, self._boards, "the bandwidth share", "its memory and architecture")
        return Explanation(tuple(parts), "launch" if fixed > 0.5 * kernel else "bytes", rests)
