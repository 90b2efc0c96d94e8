"""fp32 matrix products on the CUDA cores: the fastest of the kernels that a library may pick.

The core (`predictor.kernels.gemm_fp32.core`) is of known tiles, waves and split-K factors, not of candidates alone as
that of tensor cores is: rows name the kernel that ran, of one of three generations of libraries. What all boards of a
library share are its constants. A board has two numbers: the share of the best kernel's rate that it sustains, and the
share of its memory bandwidth that GEMM kernels reach. They are fitted where a GPU was measured. Elsewhere, and where
power holds a board below its peak, the first follows from the board's power: no more than its power limit pays for at
the power per FLOP/s of its architecture (`predictor.kernels.device`). Elsewhere the bandwidth share is the median of
those fitted.

cuBLAS picks a kernel by a cost model of its own. What it picks is imitated by the smallest time x penalty, with a
penalty for each tile and split factor that was fitted to the kernels that really ran (a multinomial logit). A GPU whose
library nobody measured gets the mean of the other libraries' kernels, each by how likely it is to be picked.

On top is what a calibration's rows say, as in every estimator of serving kernels; no trees. Products with few rows are
streamed where that is faster (`sgemm.streamed_seconds`).

Arrays: n operators, c candidates; what depends on both is of shape (n, c).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt

from predictor.engines import EAGER
from predictor.errors import SpecError
from predictor.files.records import replace
from predictor.hardware.generation import generation
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.what_if import as_filed
from predictor.kernels.base import Batch, Launched
from predictor.kernels.device import Device, read_share, sustained_share
from predictor.kernels.explanation import COUNT, SHARE, Explanation, rests_on, terms
from predictor.kernels.gemm.core import CoreTime, Shapes
from predictor.kernels.gemm_fp32 import core as sgemm
from predictor.kernels.gemm_fp32.core import LIBRARIES, BoardConstants, Candidates, Constants, IntArray
from predictor.kernels.residual import ANY_GPU, Corrections, ServingEstimator
from predictor.ops.roofline import FloatArray

#: The last word of its keys.
FP32 = "fp32"


class Fp32Gemm(Launched, ServingEstimator):
    """The fp32 GEMM estimator. Built by `from_artifact`; immutable afterwards."""

    forms: ClassVar = (Constants,)

    def __init__(self, name: str, corrections: Corrections, manifest: Mapping[str, Any]) -> None:
        super().__init__(name, corrections)
        cores, calibrated = corrections.cores, manifest["calibrated"]
        keys = [f"{ANY_GPU}|{library}|{FP32}" for library in LIBRARIES]
        known = {i: cast(Constants, cores[key]) for i, key in enumerate(keys) if key in cores}
        self._shared = {i: const for i, const in known.items() if const.efficiency.any()}
        if not self._shared:
            raise SpecError(f"the artifact has no constants for any of {', '.join(keys)}")
        self._measured = {gpu: BoardConstants.from_manifest(values, gpu) for gpu, values in manifest["boards"].items()}
        self._calibrated = {gpu: BoardConstants.from_manifest(about["board"], gpu) for gpu, about in calibrated.items()}
        self._bandwidth = float(np.median([board.bandwidth for board in self._measured.values()] or [1.0]))
        self._need = {str(k): float(v) for k, v in manifest["power_need"].items()}
        self._libraries = {str(k): LIBRARIES.index(v) for k, v in manifest["libraries"].items()}
        self._calls = manifest["eager_overhead_s"]
        self._own_calls = {gpu: about["eager_overhead_s"] for gpu, about in calibrated.items()}
        self._tables: dict[tuple[str, int, bool, int], tuple[Constants, Candidates]] = {}

    @classmethod
    def from_artifact(cls, manifest: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]]) -> Self:
        """From an artifact's two files; SpecError where a key is missing, or constants are of other tiles."""
        return cls(str(manifest["name"]), Corrections(manifest, weights, cls.forms), manifest)

    def board(self, gpu: GPUSpec) -> BoardConstants:
        """Fitted numbers where the GPU was measured or calibrated, the data sheet's elsewhere."""
        known = self._calibrated.get(gpu.id, self._measured.get(gpu.id))
        return BoardConstants(sustained_share(gpu, self._need), self._bandwidth) if known is None else known

    def library(self, gpu: GPUSpec) -> int:
        """The GPU's kernel library, or the nearest one (the newer of two) that was measured."""
        measured = np.array([i in self._shared for i in range(len(LIBRARIES))])
        return sgemm.nearest_library(measured, self._libraries.get(generation(gpu), sgemm.library_of(gpu)))

    def measured(self, gpu: GPUSpec) -> bool:
        """Whether rows of the GPU's generation tell what its library picks."""
        return gpu.id in self._calibrated or generation(gpu) in self._libraries

    def library_constants(self) -> list[Constants]:
        """Those of every measured library, in order."""
        return list(self._shared.values())

    def constants(self, gpu: GPUSpec) -> tuple[str, Constants]:
        """(whose they are, constants): a calibrated GPU's own, or its library's."""
        library = LIBRARIES[self.library(gpu)]
        source, _, constants = self._corrections.resolve(gpu, EAGER.kernels, FP32, kernel=library)
        return source, cast(Constants, constants)

    def _picking(self, gpu: GPUSpec, layout: int) -> tuple[Constants, Candidates]:
        """The constants of a GPU, and what its library picks among in a layout."""
        (source, constants), measured = self.constants(gpu), self.measured(gpu)
        key = (source, self.library(gpu), measured, layout)
        if key not in self._tables:
            const = constants if measured else sgemm.consensus(self.library_constants(), constants)
            self._tables[key] = const, sgemm.of_library(const, layout)
        return self._tables[key]

    def kernel_seconds(self, columns: Mapping[str, FloatArray], layouts: IntArray, gpu: GPUSpec) -> FloatArray:
        """Time of the fastest candidate of n products on a busy GPU, shape (n,).

        ``columns`` has batch, m, n, k of shape (n,); ``layouts`` an index into `LAYOUTS`, or its length where a kernel
        of either serves (a linear layer whose weight is stored (k, n)).
        """
        out = np.empty(len(layouts))
        for layout in np.unique(layouts).tolist():
            rows = np.nonzero(layouts == layout)[0]
            out[rows] = self._in_layout({c: columns[c][rows] for c in ("batch", "m", "n", "k")}, layout, gpu)
        return out

    def _in_layout(self, columns: Mapping[str, FloatArray], layout: int, gpu: GPUSpec) -> FloatArray:
        source, _ = self.constants(gpu)

        def core(shape: Shapes, device: Device) -> CoreTime:
            return self._picked(shape, device, gpu, layout)

        def features(shape: Shapes, device: Device, core: CoreTime) -> FloatArray:
            return sgemm.features(columns, np.full(len(core.total), layout))

        shape = sgemm.products(*(size[:, None] for size in columns.values()))
        tiled = self._corrected(source, FP32, gpu, FP32, shape, core, features)
        return np.minimum(tiled, self._streamed(shape, gpu, layout)[:, 0])

    def _streamed(self, shape: Shapes, gpu: GPUSpec, layout: int) -> FloatArray:
        """Seconds of a kernel that streams, (n, 1), inf where none does."""
        _, const = self.constants(gpu)
        device = replace(Device.sheet(gpu), fed=read_share(gpu))
        return sgemm.streamed_seconds(shape, device, const.fixed_s, layout == 0)

    def _device(self, source: str, gpu: GPUSpec, dtype: str) -> Device:
        board = self.board(gpu)
        return Device.sheet(gpu, gpu.peak_flops(dtype)).sustaining(board.sustained, board.bandwidth)

    def _times(self, shape: Shapes, device: Device, gpu: GPUSpec, layout: int) -> tuple[CoreTime, FloatArray]:
        """Times of all candidates (n, c), and what the library goes by, inf where it does not allow one."""
        const, cand = self._picking(gpu, layout)
        core = sgemm.core_time(shape, device, const, cand, float(layout == 0))
        return core, np.where(sgemm.allowed(shape, cand.splits), core.total * cand.penalty, np.inf)

    def _picked(self, shape: Shapes, device: Device, gpu: GPUSpec, layout: int) -> CoreTime:
        """Times of the candidates that the library picks, (n,): on a variant, those of the board that it is one of."""
        core, score = self._times(shape, device, gpu, layout)
        filed = as_filed(gpu)
        if filed is not gpu:
            _, score = self._times(shape, self._device("", filed, FP32), filed, layout)
        at = np.arange(len(score)), score.argmin(axis=1)
        total, compute, memory = (part[at] for part in (core.total, core.compute, core.memory))
        if not self.measured(gpu):
            total = sgemm.expected_seconds(core.total, score, sgemm.UNSEEN_SHARPNESS)
        return CoreTime(total, compute, memory)

    def explain(self, batch: Batch, gpu: GPUSpec) -> Explanation:
        """The tile that the library would take for the only product of ``batch``, its waves and times."""
        from predictor.kernels.gemm.explain import Tiled  # a forecast starts without it

        layout = int(sgemm.layout_indices(batch.ops)[0])
        shape = sgemm.products(*(batch.columns[c][:1, None] for c in ("batch", "m", "n", "k")))
        (const, cand), board, unseen = self._picking(gpu, layout), self.board(gpu), not self.measured(gpu)
        core, score = self._times(shape, self._device("", gpu, FP32), gpu, layout)
        at = int(score.argmin())
        compute_s, memory_s, core_s = (float(part[0, at]) for part in (core.compute, core.memory, core.total))
        splits, k, kernel = float(cand.splits[at]), float(shape.k[0, 0]), float(self.seconds(batch, gpu)[0])
        tiled = Tiled.cut(shape, float(cand.tile_m[at]), float(cand.tile_n[at]), splits, float(gpu.sm_count))
        steps = float(np.ceil(k / (sgemm.K_STEP * splits)))
        parts_of_time = tiled.grid_terms(f"{const.quantization:.0%} of the rounding to whole waves counts")
        parts_of_time += terms("one tile", [
            ("steps", steps, COUNT, f"K {k:.0f} / {sgemm.K_STEP:.0f} / splits"),
            ("prologue", float(cand.prologue[at]) / sgemm.K_STEP, COUNT, "steps that fill and drain the pipeline"),
            ("tile latency", compute_s / max(1.0, tiled.whole_waves), "s", "compute / waves"),
        ])  # fmt: skip
        parts_of_time += terms("core", [
            ("compute", compute_s, "s", "waves x tile latency"),
            ("memory", memory_s, "s", "DRAM, with what later waves reread"),
            ("core", core_s, "s", f"p-norm, p = {const.norm:.3g}, write-out and fixed times"),
            ("factor", kernel / core_s, COUNT,
             "the mean of other libraries' kernels" if unseen else "a calibration's smooth correction"),
            ("kernel", kernel, "s", "core x factor"),
        ])  # fmt: skip
        beyond = 1.0 - k / (steps * sgemm.K_STEP * splits)
        parts_of_time += tiled.padding_terms() + terms(
            "padding", [("k", beyond, SHARE, f"of the steps' depth is beyond k {k:.0f}")]
        )
        parts_of_time += terms("constants", [
            ("u", board.sustained, SHARE, "of the best kernel's rate that the board sustains"),
            ("efficiency", float(cand.efficiency[at]), SHARE, "of the fp32 peak, for this tile"),
            ("bandwidth", board.bandwidth, SHARE, "of DRAM's bandwidth"),
        ])  # fmt: skip
        streamed = float(self._streamed(shape, gpu, layout)[0, 0])
        if kernel == streamed:
            parts_of_time += terms("stream", [
                ("streamed", streamed, "s", "few rows: streaming the matrix is faster than tiles"),
                ("bandwidth", read_share(gpu), SHARE, "of DRAM's bandwidth that a stream reaches"),
            ])  # fmt: skip
            return Explanation(tuple(parts_of_time), "DRAM", "the data sheet: no measurement of streamed products")
        parts = {"compute": compute_s, "DRAM": memory_s, "launch": core_s - max(compute_s, memory_s)}
        rests = rests_on(gpu.id, self._calibrated, self._measured, "u", "its power limit")
        return Explanation(tuple(parts_of_time), max(parts, key=lambda name: parts[name]), rests)

    def core_seconds(
        self, shapes: Shapes, gpu: GPUSpec, dtype: str, kernels: str, prologue: float | None = None
    ) -> FloatArray:
        """Seconds of plain products of such sizes, shape (n,), for operators that are products in disguise."""
        columns = {"batch": shapes.batch, "m": shapes.m, "n": shapes.n, "k": shapes.k}
        return self.kernel_seconds(columns, np.ones(len(shapes.m), dtype=np.int64), gpu)

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time, shape (n,)."""
        return self.kernel_seconds(batch.columns, sgemm.layout_indices(batch.ops), gpu)

    def eager_seconds(self, seconds: FloatArray, gpu_id: str, call: str = "tn") -> FloatArray:
        """As `Launched` has it: a linear layer forward ("tn") is another call than any other product."""
        return super().eager_seconds(seconds, gpu_id, call if call in self._calls else "nn")
