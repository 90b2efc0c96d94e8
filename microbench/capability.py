"""Which cases a device can run at all, told without torch, so that `plan` needs none. The rest stays a plan's footnote.

What is let through and fails all the same is a row of failures.jsonl: nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from microbench import libraries, rocm
from microbench.case import Case
from microbench.environment import versions
from predictor.data.schema import CUDA_GRAPH, ROTATING, SUSTAINED
from predictor.errors import RequestError, TilecastError
from predictor.hardware.capability import of_capability
from predictor.hardware.derived import derived_peaks
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.ops import Gemm, Op

_CPU_DTYPES = frozenset(("fp64", "fp32", "bf16", "fp16", "int8", "int32", "int64", "bool"))
# First compute capability whose PyTorch kernels take the dtype on tensor cores. Source: CUDA Programming Guide, table
# of input types of the tensor cores.
BF16 = (8, 0)
_FIRST: dict[str, tuple[int, int]] = {"bf16": BF16, "tf32": (8, 0), "fp8": (8, 9), "nvfp4": (10, 0)}

#: Width of a head that cuDNN's attention takes on every GPU that has it. Source: cuDNN's developer guide, scaled dot
#: product attention; newer releases take more on Hopper.
_CUDNN_HEAD = 128


#: First release of PyTorch whose grouped_mm runs on other boards than Hopper (source: its Blas.cpp, 2.8 and 2.9), and
#: one later than any, by definition.
_GROUPED_ELSEWHERE, _NEWEST = (2, 9), (99, 0)
#: Bytes/s of a board whose driver tells nothing of its memory: of a small one. Chosen by hand, not from data.
_SMALL_BANDWIDTH = 5e11
#: Copies of weights or of a cache that take turns, at most: guards against operands so small that a call waits for
#: nothing but its launch. Chosen by hand, not from data.
MOST_COPIES = 1000


def copies(held_bytes: float, cache_bytes: float) -> int:
    """Copies of ``held_bytes`` that take turns so that more than twice the L2 cache is read before one comes again."""
    return 2 + int(2 * cache_bytes // held_bytes)


def held_bytes(op: Op) -> float:
    """Bytes of weights, of experts or of a KV cache that a call reads: a pass of a model finds them in DRAM. The
    activations, of which it reads about as much as it writes, are those of the call before."""
    if isinstance(op, Gemm):
        weights = replace(op, batch=1, kind="linear").cold_bytes()
        return weights * op.batch if op.kind in ("linear", "grouped") else 0.0
    return max(1.0, op.bytes_read() - op.bytes_written()) if op.cold_bytes() else 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """A device as far as planning goes: rates are nominal (FLOP/s, bytes/s), good for an estimate and no more."""

    kind: str
    id: str
    memory_bytes: float
    bandwidth: float
    flops: Mapping[str, float]
    capability: tuple[int, int] = (0, 0)
    gpus: int = 1
    triton: bool = True
    protocols: tuple[str, ...] = ("eager_events",)
    libraries: frozenset[str] = frozenset()  # of serving kernels, installed there
    units: int = 1  # streaming multiprocessors, or threads
    cache_bytes: float = 0.0  # L2 of a GPU
    torch: tuple[int, int] = _NEWEST  # its release there
    gfx: str = ""  # AMD's instruction set; its boards have no compute capability

    @property
    def has_bf16(self) -> bool:
        """Whether its matrix units take bf16."""
        return bool(self.gfx) or self.capability >= BF16

    def rate(self, dtype: str) -> float:
        return self.flops.get(dtype) or self.flops["fp32"]

    def seconds(self, case: Case) -> float:
        """A rough time of one call: the larger of its FLOP and its bytes at half of the nominal rates."""
        op = case.op
        return 2.0 * max(op.flops() / self.rate(op.dtype), op.bytes_moved() / self.bandwidth) + 5e-6


def cpu_target(units: int, memory_bytes: float, name: str = "cpu") -> Target:
    """A processor with ``units`` threads: 32 FLOP a clock at 2.5 GHz each, 10 GB/s each; the same on every machine, so
    that the cases are, too."""
    fp32 = 8e10 * units
    return Target(
        "cpu",
        name,
        memory_bytes,
        1e10 * units,
        {"fp32": fp32, "bf16": fp32 / 2, "fp16": fp32 / 8, "fp64": fp32 / 2},
        units=units,
    )


def gpu_target(spec: GPUSpec, gpus: int = 1, triton: bool = True) -> Target:
    """A board of the catalogue or of a YAML file. RequestError for one that has no CUDA compute capability and is none
    of AMD's that `microbench.rocm` knows."""
    gfx = rocm.of_architecture(spec.architecture) if spec.compute_capability is None else ""
    if spec.compute_capability is None and not gfx:
        raise RequestError(
            f"{spec.id} has no CUDA compute capability: the harness measures CUDA boards, AMD's of"
            f" {', '.join(rocm.INSTRUCTION_SETS)}, and processors"
        )
    flops = {dtype: spec.peak_flops(dtype) for dtype in spec.dtypes}
    major, _, minor = (spec.compute_capability or "0.0").partition(".")
    protocols = (CUDA_GRAPH, "eager_events", SUSTAINED)
    return Target(
        "cuda", spec.id, spec.memory_capacity, spec.memory_bandwidth, flops, (int(major), int(minor or 0)), gpus,
        triton, protocols, frozenset(libraries.installed()), spec.sm_count,
        rocm.INSTRUCTION_SETS[gfx].last_level_bytes if gfx else spec.l2_bytes,
        release(versions().get("torch", "")) if "torch" in versions() else _NEWEST, gfx,
    )  # fmt: skip


def target_of(facts: Mapping[str, Any], gpus: int = 1) -> Target:
    """The target of a worker's facts: rates of the catalogue where it has the board, else those of a small one."""
    if facts["kind"] == "cpu":
        return cpu_target(int(facts["units"]), float(facts["memory_bytes"]), str(facts["id"]))
    capability = tuple(facts["capability"])
    assert len(capability) == 2
    try:
        base = gpu_target(load_gpu(str(facts["id"])), gpus, bool(facts["triton"]))
        rates, bandwidth = base.flops, base.bandwidth
    except TilecastError:
        rates, bandwidth = _rates(facts), float(facts.get("bandwidth") or _SMALL_BANDWIDTH)
    return Target(
        "cuda", str(facts["id"]), float(facts["memory_bytes"]), bandwidth, rates, capability, gpus,
        bool(facts["triton"]), tuple(facts["protocols"]), frozenset(facts.get("libraries", ())), int(facts["units"]),
        float(facts["cache_bytes"]), release(str(facts.get("torch", ""))), str(facts.get("gfx", "")),
    )  # fmt: skip


def refusal(case: Case, target: Target) -> str:
    """Why ``target`` cannot run ``case``, "" where it can as far as is known beforehand."""
    dtype = case.op.dtype
    if target.kind == "cpu":
        if dtype not in _CPU_DTYPES:
            return f"a processor has no {dtype}"
    elif target.gfx:
        if why := rocm.refusal(dtype, case.launcher, target.gfx):
            return why
    elif target.capability < _FIRST.get(dtype, (0, 0)):
        return f"compute capability {target.capability[0]}.{target.capability[1]} has no {dtype}"
    if case.protocol not in target.protocols:
        return f"a {target.kind} device has no protocol {case.protocol}"
    if case.cache == ROTATING:
        held = held_bytes(case.op)
        if target.kind == "cpu" or not held:
            return "nothing to rotate: no weights and no cache" if not held else "a processor's rows are not rotated"
        if copies(held, target.cache_bytes) > MOST_COPIES:
            return f"more than {MOST_COPIES} copies of its weights would have to take turns"
    return _launcher_refusal(case, target)


def _launcher_refusal(case: Case, target: Target) -> str:
    implementation = case.option("impl", "")
    if case.launcher == "serving":
        if target.kind != "cuda":
            return "kernels of serving libraries need a GPU"
        if target.gfx:
            return f"calls of serving libraries are those of their CUDA builds, not of {target.gfx}"
        return libraries.refusal(str(case.option("kernel")), target.libraries, target.capability)
    if case.launcher == "tile" and target.kind == "cuda" and not target.triton:
        return "a GPU's tile probes need Triton"
    if case.launcher == "tile" and target.gfx:
        sides = [int(side) for side in str(case.option("tile")).split("x")]
        if not rocm.stages((sides[0], sides[1], sides[2]), case.op.itemsize, target.gfx):
            return f"the tile does not fit the local data share of {target.gfx}"
    if case.launcher == "tile" and getattr(case.op, "k", 0) % int(str(case.option("tile")).split("x")[2]):
        return "k is no multiple of the tile's depth"
    if case.launcher == "collective" and getattr(case.op, "ranks", 2) > target.gpus:
        return "collectives need as many GPUs as they have ranks"
    if case.launcher == "rotary" and target.kind == "cpu" and case.op.dtype != "fp32":
        return "the rotary embedding of a processor is fp32"
    if case.launcher == "attention" and implementation in ("efficient", "cudnn") and target.kind == "cpu":
        return f"a processor has no {implementation} attention"
    if case.launcher == "attention" and implementation in ("flash", "cudnn") and target.kind == "cuda":
        if case.op.dtype not in ("bf16", "fp16"):
            return f"{implementation} attention is 16 bit"
        if implementation == "cudnn" and target.gfx:
            return f"{target.gfx} has no cuDNN"
        if not target.has_bf16:
            return f"{implementation} attention needs compute capability 8.0"
    if case.launcher == "attention" and implementation == "cudnn" and getattr(case.op, "head_dim", 0) > _CUDNN_HEAD:
        return f"cuDNN's attention takes heads of {_CUDNN_HEAD} at most"
    return _grouped_refusal(case, target) if implementation == "grouped_mm" else ""


def _grouped_refusal(case: Case, target: Target) -> str:
    """PyTorch's grouped_mm: one kernel where it has one; later releases loop over the groups elsewhere, which waits for
    the host and cannot be in a graph. Source: aten/src/ATen/native/cuda/Blas.cpp and GroupedBlas.cpp, 2.8 to 2.10."""
    if target.kind != "cuda":
        return "grouped_mm needs a GPU"
    if target.gfx and case.protocol in (CUDA_GRAPH, SUSTAINED):
        return f"grouped_mm on {target.gfx} waits for the host: it cannot be in a graph"
    if target.torch < _GROUPED_ELSEWHERE and target.capability != (9, 0):
        return "grouped_mm of PyTorch up to 2.8 runs on compute capability 9.0 alone"
    if not target.has_bf16:
        return "grouped_mm needs compute capability 8.0"
    if target.capability not in ((9, 0), (10, 0)) and case.protocol in (CUDA_GRAPH, SUSTAINED):
        major, minor = target.capability
        return f"grouped_mm on compute capability {major}.{minor} waits for the host: it cannot be in a graph"
    return ""


def release(version: str) -> tuple[int, int]:
    """ "2.9.1+cu128" -> (2, 9); (0, 0) for what is no version."""
    parts = version.split("+")[0].split(".")[:2]
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(part.isdigit() for part in parts) else (0, 0)


def _rates(facts: Mapping[str, Any]) -> dict[str, float]:
    """FLOP/s of a board that the catalogue lacks: SMs x clock x what its compute capability does a clock; those of a
    small board where the driver does not tell the clock, or nobody knows the capability's rates."""
    gfx = str(facts.get("gfx", ""))
    capability = "" if gfx else ".".join(str(part) for part in facts["capability"])
    fixed = of_capability(capability, rocm.INSTRUCTION_SETS[gfx].architecture if gfx else "")
    if not fixed or not facts.get("clock_hz"):
        return {"fp32": 1e13, "fp16": 5e13, "bf16": 5e13, "tf32": 2.5e13, "fp8": 1e14, "fp64": 5e11}
    rates: dict[str, float] = {}
    for (_, dtype), rate, _ in derived_peaks(fixed, "full", int(facts["units"]), float(facts["clock_hz"])):
        rates[dtype] = max(rate, rates.get(dtype, 0.0))
    return rates
