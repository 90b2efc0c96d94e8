"""fp32 matrix products on the CUDA cores: the fastest of the kernels that a library may pick.

The time of a kernel is an analytic model of its tiles, waves and split-K factor (`cores.sgemm`), and shared by every
GPU. A GPU has two scalars: ``u``, the share of the best kernel's rate that it sustains, and the share of its memory
bandwidth that GEMM kernels reach. They are fitted where a GPU was measured. Elsewhere ``u`` follows from
the board's power: no more than its power limit pays for at the power per FLOP/s of its architecture
(`predictor.estimators.device`), and the bandwidth share is the median of those fitted.

cuBLAS picks a kernel by a cost model of its own. What it picks is imitated by the smallest time x penalty, with a
penalty for each tile and split factor that was fitted to the kernels that really ran (a multinomial logit). A GPU whose
library nobody measured gets the mean of the other libraries' kernels, each by how likely it is to be picked.

Arrays: n operators, c candidates; what depends on both is of shape (n, c).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.errors import SpecError
from predictor.estimators.base import Batch
from predictor.estimators.calibrated import Calibrated
from predictor.estimators.cores import sgemm
from predictor.estimators.cores.gemm import CoreTime, Shapes
from predictor.estimators.cores.sgemm import Candidates, Constants, IntArray
from predictor.estimators.device import Device, sustained_share
from predictor.estimators.eager import eager_seconds, overhead
from predictor.estimators.explanation import COUNT, SHARE, Explanation, rests_on, terms
from predictor.hardware.generation import generation
from predictor.hardware.gpu import GPUSpec
from predictor.roofline import FloatArray


class TileGemm:
    """The fp32 GEMM estimator. Built by `from_artifact`; immutable afterwards."""

    def __init__(
        self, const: Constants, boards: Mapping[str, tuple[float, float]], manifest: Mapping[str, Any],
        weights: Mapping[str, npt.NDArray[Any]],
    ) -> None:  # fmt: skip
        self.name = str(manifest["name"])
        self.const = const
        self._boards = dict(boards)
        self._need = {str(k): float(v) for k, v in manifest["power_need"].items()}
        self._bandwidth = float(np.median([bw for _, bw in boards.values()])) if boards else 1.0
        self._libraries = {str(k): sgemm.LIBRARIES.index(v) for k, v in manifest["libraries"].items()}
        self._overhead: dict[str, dict[str, list[float]]] = manifest["eager_overhead_s"]
        try:
            own = {str(g): Calibrated.from_manifest(entry, weights) for g, entry in manifest["calibrated"].items()}
        except (KeyError, ValueError) as error:
            raise SpecError(f"tile_gemm artifact: key 'calibrated' is incomplete ({error})") from None
        self._own: dict[str, Calibrated] = own
        self._tables: dict[tuple[int, int, str], Candidates] = {}

    @classmethod
    def from_artifact(cls, manifest: dict[str, Any], weights: dict[str, npt.NDArray[Any]]) -> TileGemm:
        """The estimator of a manifest and its arrays; SpecError where they were made for other tiles."""
        if tuple(manifest["tiles"]) != tuple(t.name for t in sgemm.TILES):
            raise SpecError(f"tile_gemm artifact has tiles {manifest['tiles']}, this version knows others")
        try:
            values: dict[str, Any] = {k: np.asarray(weights[k], dtype=np.float64) for k in sgemm.ARRAYS}
            values |= {k: float(weights[k]) for k in sgemm.SCALARS}
            table = np.asarray(weights["boards"], dtype=np.float64)
        except KeyError as error:
            raise SpecError(f"tile_gemm artifact lacks the array {error}") from None
        boards = {str(g): (float(u), float(bw)) for g, (u, bw) in zip(manifest["boards"], table, strict=True)}
        return cls(Constants(**values), boards, manifest, weights)

    def calibrated(self, gpu_id: str, own: Calibrated) -> TileGemm:
        """This estimator with another own side of one GPU."""
        result = copy(self)
        result._own = {**self._own, gpu_id: own}
        result._tables = {}
        return result

    def board(self, gpu: GPUSpec) -> tuple[float, float]:
        """(u, bandwidth share): fitted scalars where the GPU was measured, the data sheet's elsewhere."""
        known = self._own[gpu.id].board if gpu.id in self._own else self._boards.get(gpu.id)
        return (sustained_share(gpu, self._need), self._bandwidth) if known is None else known

    def library(self, gpu: GPUSpec) -> int:
        """The GPU's kernel library, or the nearest one (the newer of two) that was measured."""
        named = self._libraries.get(generation(gpu), sgemm.library_of(gpu))
        return sgemm.nearest_library(self.const.efficiency.max(axis=(1, 2)) > 0.0, named)

    def measured(self, gpu: GPUSpec) -> bool:
        """Whether rows of the GPU's generation tell what its library picks."""
        return gpu.id in self._own or generation(gpu) in self._libraries

    def _candidates(self, library: int, layout: int, own: str) -> Candidates:
        """Candidates of a library and layout (``len(LAYOUTS)`` stands for kernels of either), arrays of shape (c,).

        ``library`` `UNSEEN` stands for one that nobody measured: the kernels of all that were, at their mean rates.
        ``own`` is the id of a calibrated GPU, whose own tiles they are, or "".
        """
        key = (library, layout, own)
        if key not in self._tables:
            const = self.constants(own, library)
            tables = const.efficiency, const.penalty, const.split_penalty
            rates, *penalties = (
                sgemm.consensus(*tables) if library == sgemm.UNSEEN else (table[library] for table in tables)
            )
            either = layout == len(sgemm.LAYOUTS) or not rates[layout].any()
            rate = rates.max(axis=0) if either else rates[layout]
            tile_penalty, split_penalty = (p.min(axis=0) if either else p[layout] for p in penalties)
            tiles, splits = sgemm.all_candidates()
            keep = rate[tiles] > 0.0
            tiles, splits = tiles[keep], splits[keep]
            penalty = tile_penalty[tiles] * split_penalty[sgemm.split_indices(splits)]
            self._tables[key] = sgemm.candidates(const, rate[tiles], tiles, splits, penalty)
        return self._tables[key]

    def constants(self, own: str, library: int) -> Constants:
        """The shared constants, or those of the calibrated GPU ``own``, whose kernel library is ``library``."""
        return self._own[own].own(self.const, library) if own else self.const

    def kernel_seconds(self, columns: Mapping[str, FloatArray], layouts: IntArray, gpu: GPUSpec) -> FloatArray:
        """Time of the fastest candidate of n products on a busy GPU, shape (n,).

        ``columns`` has batch, m, n, k of shape (n,); ``layouts`` an index into `LAYOUTS`, or its length where a kernel
        of either serves (a linear layer whose weight is stored (k, n)).
        """
        out = np.empty(len(layouts))
        for layout in np.unique(layouts):
            rows = np.nonzero(layouts == layout)[0]
            shape = sgemm.products(*(columns[c][rows, None] for c in ("batch", "m", "n", "k")))
            out[rows] = self._chosen(shape, int(layout), gpu)
        if gpu.id in self._own:
            out *= self._own[gpu.id].factor(columns, layouts)
        return out

    def _chosen(self, shape: Shapes, layout: int, gpu: GPUSpec) -> FloatArray:
        _, seconds, score, unseen = self._scored(shape, layout, gpu)
        if unseen:
            return sgemm.expected_seconds(seconds, score, sgemm.UNSEEN_SHARPNESS)
        result: FloatArray = seconds[np.arange(len(score)), score.argmin(axis=1)]
        return result

    def _scored(self, shape: Shapes, layout: int, gpu: GPUSpec) -> tuple[Candidates, FloatArray, FloatArray, bool]:
        """(candidates, their times (n, c), what the library goes by (n, c), whether nobody measured the library)."""
        own = gpu.id if gpu.id in self._own else ""
        library, unseen = self.library(gpu), not self.measured(gpu)
        cand = self._candidates(sgemm.UNSEEN if unseen else library, layout, own)
        seconds = self.core_time(shape, cand, layout, gpu).total
        allowed = (cand.splits == 1.0) | (shape.k >= sgemm.MIN_SPLIT_K * cand.splits)
        return cand, seconds, np.where(allowed, seconds * cand.penalty, np.inf), unseen

    def core_time(self, shape: Shapes, cand: Candidates, layout: int, gpu: GPUSpec) -> CoreTime:
        """Time of every candidate on ``gpu`` before its smooth correction, and its parts, of shape (n, c)."""
        device, lib = Device.sheet(gpu, gpu.peak_flops("fp32")).sustaining(*self.board(gpu)), self.library(gpu)
        const = self.constants(gpu.id if gpu.id in self._own else "", lib)
        return sgemm.core_time(shape, device, const, cand, lib, float(layout == 0))

    def explain(self, batch: Batch, gpu: GPUSpec) -> Explanation:
        """The tile that the library would take for the only product of ``batch``, its waves and times."""
        from predictor.estimators.cores.gemm_explained import Tiled  # a forecast starts without it

        layout = int(sgemm.layout_indices(batch.ops)[0])
        shape = sgemm.products(*(batch.columns[c][:1, None] for c in ("batch", "m", "n", "k")))
        cand, _, score, unseen = self._scored(shape, layout, gpu)
        at = int(score.argmin())
        core = self.core_time(shape, cand, layout, gpu)
        compute_s, memory_s, core_s = (float(part[0, at]) for part in (core.compute, core.memory, core.total))
        const = self.constants(gpu.id if gpu.id in self._own else "", self.library(gpu))
        splits, k, kernel = float(cand.splits[at]), float(shape.k[0, 0]), float(self.seconds(batch, gpu)[0])
        tiled = Tiled.cut(shape, float(cand.tile_m[at]), float(cand.tile_n[at]), splits, float(gpu.sm_count))
        steps = float(np.ceil(k / (sgemm.K_STEP * splits)))
        found = tiled.grid_terms(f"{const.quantization:.0%} of the tail wave's rounding is felt")
        found += terms("one tile", [
            ("steps", steps, COUNT, f"K {k:.0f} / {sgemm.K_STEP:.0f} / splits"),
            ("prologue", float(cand.prologue[at]) / sgemm.K_STEP, COUNT, "steps that fill the pipeline and write out"),
            ("tile latency", compute_s / max(1.0, tiled.whole_waves), "s", "compute / waves"),
        ])  # fmt: skip
        found += terms("core", [
            ("compute", compute_s, "s", "waves x tile latency"),
            ("memory", memory_s, "s", "DRAM, with what later waves read again"),
            ("core", core_s, "s", f"p-norm, p = {const.norm:.3g}, write-out and fixed times"),
            ("factor", kernel / core_s, COUNT,
             "the mean of other libraries' kernels" if unseen else "a calibration's smooth correction"),
            ("kernel", kernel, "s", "core x factor"),
        ])  # fmt: skip
        beyond = 1.0 - k / (steps * sgemm.K_STEP * splits)
        found += tiled.padding_terms() + terms(
            "padding", [("k", beyond, SHARE, f"of the steps' depth is beyond k {k:.0f}")]
        )
        u, bandwidth = self.board(gpu)
        found += terms("constants", [
            ("u", u, SHARE, "of the best kernel's rate that the board sustains"),
            ("efficiency", float(cand.efficiency[at]), SHARE, "of the fp32 peak, for this tile"),
            ("bandwidth", bandwidth, SHARE, "of DRAM's bandwidth"),
        ])  # fmt: skip
        parts = {"compute": compute_s, "DRAM": memory_s, "launch": core_s - max(compute_s, memory_s)}
        rests = rests_on(gpu.id, self._own, self._boards, "u", "its power limit")
        return Explanation(tuple(found), max(parts, key=lambda name: parts[name]), rests)

    def core_seconds(
        self, shapes: Shapes, gpu: GPUSpec, dtype: str, kernels: str, prologue: float | None = None
    ) -> FloatArray:
        """Seconds of plain products of such sizes, shape (n,), for operators that are products in disguise."""
        columns = {"batch": shapes.batch, "m": shapes.m, "n": shapes.n, "k": shapes.k}
        return self.kernel_seconds(columns, np.ones(len(shapes.m), dtype=np.int64), gpu)

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time, shape (n,)."""
        return self.kernel_seconds(batch.columns, sgemm.layout_indices(batch.ops), gpu)

    def eager_seconds(self, seconds: FloatArray, gpu_id: str, layout: str = "tn") -> FloatArray:
        """What protocol "eager_events" reads for kernels of ``seconds``: max(host, launch + kernel), shape (n,).

        The two times are fitted by GPU and layout; the medians of the measured GPUs for another.
        """
        call = "tn" if layout == "tn" else "nn"
        own = self._own[gpu_id].overhead[call] if gpu_id in self._own else None
        return eager_seconds(seconds, *(own or overhead(self._overhead[call], gpu_id)))
