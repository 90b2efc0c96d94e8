"""What kernels draw: the one place that says watts and joules of operators.

    W of a kernel = running + (bytes of DRAM x J + bytes through L2 x J + FLOPs x J + bytes of links x J) / seconds

never above the board's power limit, nor below what it draws idle. ``running`` is what clocks take while kernels run,
whatever these do: the static part of the law that holds clocks (`predictor.kernels.power`), and the joules of a FLOP of
the tensor cores are the rest of it at full rate. Its watts for boards that it does not know, too, and so what they draw
here, follow the law of the need (`device.NEED_EXPONENT`), scaled to the boards that it knows. A FLOP of the CUDA cores
takes what boards need to hold their clock in fp32. The rest, bits and idle watts, is published
(`predictor/hardware/energy.json`, a source each).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from predictor.errors import TilecastError
from predictor.files.read import read_json
from predictor.formats.dtypes import bytes_of
from predictor.formats.quantization import weight_bytes
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.hardware.what_if import as_filed
from predictor.kernels.device import LANE_NEED, MMA_ROWS, POWER_NEED, STATIC, tensor_need
from predictor.kernels.power import CLOCK_WATTS, EFFICIENCY, need, told_by
from predictor.ops.attention import Attention
from predictor.ops.base import HOST, Op
from predictor.ops.collective import Collective
from predictor.ops.gemm import Gemm
from predictor.ops.moe import MoE
from predictor.ops.roofline import FloatArray

CONSTANTS = Path(__file__).parents[1] / "hardware" / "energy.json"
#: What takes energy beside the clocks, in the order of the columns of `work_j`.
PARTS = MEMORY, PATH, TENSOR, VECTOR, LINKS = "DRAM", "data paths", "tensor cores", "CUDA cores", "links"
_BITS = 8.0  # of a byte, by definition
_PJ = 1e-12  # J, by definition
#: pJ of a bit between DRAM's pins and registers: memory controllers, L2, the crossbar, L1. Median over the boards whose
#: power was read beside a stream (`streams` of energy.json): what is left of its watts without clocks and DRAM, over
#: its bits. Source: RRZE-HPC/gpu-benches gpu-roofline.
PATH_PJ = 8.8
#: FLOPs whose energy the unpacking of a weight takes: a multiply-add's, as packed instructions for two elements each
#: pick, shift and scale them. Source: Frantar et al., MARLIN, 2024, arXiv:2408.11743.
_FLOPS_TO_UNPACK = 2.0
#: Weights of a format that products compute in have no scales beside them that make up a tenth. By definition.
_NARROWER = 0.9
#: Boards that tell what their tensor cores draw at full rate, by compute capability of `CLOCK_WATTS`: those that it was
#: solved for. Source: predictor/kernels/power.py.
_TOLD = {"8.0": "a100-sxm-80gb", "9.0": "h100-sxm"}
#: Memory that no source tells of -> the kind that stands for it: the one before it, or the family's.
_STANDS_FOR = {"GDDR5X": "GDDR5", "LPDDR5": "LPDDR5X", "DDR4": "DDR5"}


class Rates(NamedTuple):
    """What a board draws, in watts, and what moving a byte takes, in joules.

    ``idle_w``: without a process; ``waiting_w``: with one whose kernels are yet to come; ``running_w``: what clocks
    take while kernels run; ``limit_w``. ``tensor_w``: the whole board at the best product's rate and boost clock, if
    nothing held it, ``tensor_known`` where its generation was measured. ``vector_w``: in fp32. ``assumed``: in words,
    what no source tells of this board.
    """

    idle_w: float
    waiting_w: float
    running_w: float
    limit_w: float
    tensor_w: float
    tensor_known: bool
    vector_w: float
    memory_j: float
    path_j: float
    nvlink_j: float
    pcie_j: float
    assumed: tuple[str, ...]


@cache
def _constants() -> Mapping[str, Any]:
    return read_json(CONSTANTS)


@cache
def _share_of_limit(name: str) -> float:
    """Median share of its power limit that a board of a table draws, for boards that it lacks."""
    return statistics.median(watts / load_gpu(board).power_limit_w for board, (watts, _) in _constants()[name].items())


@cache
def _scale() -> float:
    """What the best products draw over the law of the need, the geometric mean of the boards that were measured."""
    logs = []
    for capability, board in _TOLD.items():
        gpu = load_gpu(board)
        watts, at_hz = CLOCK_WATTS[capability, 16]
        logs.append(math.log(watts * gpu.sm_count * at_hz * 1e-9 * gpu.boost_clock_hz / at_hz / tensor_need(gpu)))
    return math.exp(sum(logs) / len(logs))


@lru_cache(maxsize=256)
def rates(gpu: GPUSpec) -> Rates:
    """The rates of a board.

    >>> known = rates(load_gpu("h100"))
    >>> round(known.idle_w), round(known.running_w), round(known.limit_w)
    (70, 187, 700)
    """
    constants, filed = _constants(), as_filed(gpu)
    assumed: list[str] = []
    limit, whole = gpu.power_limit_w, filed.power_limit_w

    def listed(name: str, what: str) -> float:
        if gpu.id in constants[name]:
            return float(constants[name][gpu.id][0])
        share = _share_of_limit(name)
        assumed.append(f"{what} {share * whole:,.0f} W, {share:.0%} of the power limit as on other boards")
        return share * whole

    idle = min(listed("idle_w", "idle power"), limit)
    waiting = min(idle + listed("context_w", "power of an open context"), limit)
    tensor_w, known = _tensor_w(gpu)
    if tensor_w and not known:
        assumed.append(f"tensor cores {tensor_w:,.0f} W at full rate, by the law of other boards")
    if capability := told_by(gpu):
        assumed.append(f"tensor cores {tensor_w:,.0f} W at full rate, as boards of compute capability {capability}")
    vector_w = _vector_w(gpu, whole)
    running = min(max(waiting, STATIC * max(tensor_w, vector_w)), limit)
    table = constants["dram_pj_per_bit"]
    kind = gpu.memory_type or ""
    if kind not in table:
        taken = _STANDS_FOR.get(kind, "GDDR6" if kind.startswith("GDDR") else "HBM3")
        assumed.append(f"energy of {kind or 'its memory'} a bit, that of {taken}")
        kind = taken
    link = constants["link_pj_per_bit"]
    return Rates(
        idle, waiting, running, limit, tensor_w, known, vector_w,
        _byte_j(table[kind][0]), _byte_j(PATH_PJ), _byte_j(link["nvlink"][0]), _byte_j(link["pcie"][0]), tuple(assumed),
    )  # fmt: skip


def _byte_j(pj_per_bit: float) -> float:
    return pj_per_bit * _BITS * _PJ


def _tensor_w(gpu: GPUSpec, bits: int = 16) -> tuple[float, bool]:
    """Watts of the board at the best product's rate, at its boost clock, and whether its generation was measured."""
    known = need(gpu, bits)
    if known is not None:
        watts, at_hz = known
        return watts * gpu.boost_clock_hz / at_hz, True
    return _scale() * tensor_need(gpu), False


def _vector_w(gpu: GPUSpec, limit_w: float) -> float:
    """Watts at the fp32 rate of the CUDA cores: as the law of fp32 products has it, else the power limit as filed."""
    tflops = gpu.vector_flops("fp32") / 1e12
    for table in (LANE_NEED, POWER_NEED):
        by_tflops = table.get(gpu.compute_capability or "", table.get(gpu.architecture, 0.0))
        if by_tflops:
            return by_tflops * tflops
    return limit_w


@lru_cache(maxsize=4096)
def flop_j(gpu: GPUSpec, unit: str, dtype: str) -> tuple[str, float]:
    """The part of `PARTS` that does a dtype's FLOPs, and joules of one.

    >>> part, joules = flop_j(load_gpu("h100"), "matrix", "bf16")
    >>> part, round(joules * 1e12, 2)
    ('tensor cores', 0.8)
    """
    known = rates(gpu)
    peak = _matrix_peak(gpu, dtype) if unit == "matrix" else 0.0
    if not peak:
        return VECTOR, (1.0 - STATIC) * known.vector_w / gpu.vector_flops("fp32")
    bits = 8 if bytes_of(dtype) <= 1.0 else 16
    watts = _tensor_w(gpu, bits)[0] if known.tensor_known and need(gpu, bits) is not None else known.tensor_w
    return TENSOR, (1.0 - STATIC) * watts / (EFFICIENCY * peak)


def _matrix_peak(gpu: GPUSpec, dtype: str) -> float:
    """The tensor cores' peak of a dtype; 0 where they have none."""
    try:
        return gpu.peak_flops(dtype, "matrix")
    except TilecastError:
        return 0.0


def work_j(ops: Sequence[Op], gpu: GPUSpec) -> FloatArray:
    """Joules of one call of each operator beside what clocks take, (n, `PARTS`)."""
    known = rates(gpu)
    joules = np.zeros((len(ops), len(PARTS)))
    for row, op in zip(joules, ops, strict=True):
        moved = op.bytes_moved()
        if op.stream == HOST:
            row[PARTS.index(LINKS)] = moved * known.pcie_j
            row[PARTS.index(MEMORY)] = moved * known.memory_j
            continue
        row[PARTS.index(MEMORY)] = dram_bytes(op, gpu.l2_bytes) * known.memory_j
        row[PARTS.index(PATH)] = moved * known.path_j
        if op.flops():
            part, each = flop_j(gpu, op.unit, op.dtype)
            row[PARTS.index(part)] += op.flops() * (issued(op) if part == TENSOR else 1.0) * each
        row[PARTS.index(VECTOR)] += unpacked(op) * _FLOPS_TO_UNPACK * flop_j(gpu, "vector", "fp32")[1]
        if isinstance(op, Collective):
            per_byte = known.pcie_j if op.link == "pcie" else known.nvlink_j
            row[PARTS.index(LINKS)] = op.link_bytes() * per_byte + op.net_bytes() / op.local_ranks * known.pcie_j
    return joules


def issued(op: Op) -> float:
    """FLOPs that tensor cores run of a product over those that it asks for: its shorter side fills whole rows of
    their instruction; each expert that sees a token has such a side of its own."""
    if isinstance(op, Gemm):
        rows = float(min(op.m, op.n))
    elif isinstance(op, MoE):
        rows = op.expert_rows / op.active_experts
    elif isinstance(op, Attention) and op.is_decode:
        rows = float(op.heads) / max(1, op.kv_heads)
    else:
        return 1.0
    return math.ceil(rows / MMA_ROWS) * MMA_ROWS / rows if rows else 1.0


def unpacked(op: Op) -> float:
    """Weights of one call that CUDA cores make wider before tensor cores take them."""
    if not isinstance(op, Gemm | MoE) or (isinstance(op, Gemm) and op.kind == "bmm"):
        return 0.0
    each = weight_bytes(op.dtype, op.quant)
    return op.cold_bytes() / each if each < _NARROWER * bytes_of(op.dtype) else 0.0


def dram_bytes(op: Op, l2_bytes: float) -> float:
    """Bytes of one call that come from DRAM or go there: weights and caches, and of the rest what L2 does not hold."""
    cold = min(op.cold_bytes(), op.bytes_moved())
    return cold + max(0.0, op.bytes_moved() - cold - l2_bytes) + op.missed_bytes(l2_bytes)


def held_j(joules: FloatArray, seconds: FloatArray, gpu: GPUSpec) -> FloatArray:
    """`work_j` of calls that take ``seconds`` (n,), as far as the power limit lets them: (n, parts)."""
    known = rates(gpu)
    room = (known.limit_w - known.running_w) * seconds
    total = joules.sum(axis=1)
    kept: FloatArray = joules * np.minimum(1.0, room / np.maximum(total, 1e-30))[:, None]
    return kept
