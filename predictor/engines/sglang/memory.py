"""SGLang's sizes by the GPU's memory: prefill chunks, CUDA graphs, and the share of memory that follows from them."""

from __future__ import annotations

from predictor.engines.memory import MemoryRule


def _sglang_0_4(memory_mib: float, tp: int) -> float:
    """By the tensor-parallel degree alone."""
    return 0.79 if tp >= 16 else 0.81 if tp >= 8 else 0.85 if tp >= 4 else 0.87 if tp >= 2 else 0.88


def prefill_chunk(memory_gib: float) -> int:
    """Tokens of a prefill chunk from 0.5.9 on, by the GPU's memory in GiB."""
    return 2048 if memory_gib < 35 else 4096 if memory_gib < 60 else 8192 if memory_gib < 160 else 16384


def largest_graph(memory_gib: float, tp: int) -> int:
    """Sequences of the largest CUDA graph from 0.5.9 on, by the GPU's memory in GiB and the tensor-parallel degree."""
    return 24 if memory_gib < 35 else 32 if memory_gib < 60 else 256 if tp < 4 else 512


def _sglang_0_5(memory_mib: float, tp: int) -> float:
    """1 - reserved / memory: 512 MB, 1.5 MB a token of a prefill chunk, 2 MB a sequence of the largest CUDA graph, and
    128 MB a rank, where chunk and graph are chosen by the GPU's memory."""
    gib = memory_mib / 1024
    reserved = 512 + 1.5 * prefill_chunk(gib) + 2 * largest_graph(gib, tp) + 128 * tp
    return max(0.0, round(1.0 - reserved / memory_mib, 3))


def _sglang_0_5_1(memory_mib: float, tp: int) -> float:
    """1 - reserved / memory, by the GPU's memory: GiB, and so many more a rank."""
    gib = memory_mib / 1024
    if gib < 35:
        reserved = 2.8 + tp / 10
    elif gib < 160:
        reserved = (9.5 if gib < 90 else 12.0) + tp / 2
    else:
        reserved = 32.0
    return max(0.0, round(1.0 - reserved / gib, 3))


MEMORY = (
    MemoryRule("SGLang", "0.4", "mem_fraction_static", "static", _sglang_0_4, "SGLang 0.4.0 server_args.py:158-168"),
    MemoryRule(
        "SGLang", "0.5", "mem_fraction_static", "static", _sglang_0_5_1, "SGLang 0.5.1.post1 server_args.py:354-393"
    ),
    MemoryRule(
        "SGLang", "0.5.8", "mem_fraction_static", "static", _sglang_0_5,
        "SGLang 0.5.9 server_args.py:1020-1066, 935-1000",
    ),
)  # fmt: skip
