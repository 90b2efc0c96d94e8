"""What an engine's pass differs by from the tables of its kernels: whose attention runs, and cold weights.

An engine has several attention backends and picks one by GPU; a table of its kernels holds the one that was asked for.
SGLang (`server_args.py`, as we understand it, 0.4 to 0.5) takes FlashAttention-3 on Hopper and FlashInfer on Ampere and
Ada. The tables have FlashInfer under its name on L40S and RTX PRO 6000, but on A100 "flash_attention", that is
FlashAttention-3 built for sm80, which no default takes there. It decodes at 0.5 to 1.2 TB/s, where vLLM's
FlashAttention-2, which splits the cache as FlashInfer does, reaches 0.8 to 1.6. On the boards that have rows of both,
decode calls above 50 us take vLLM's kernels 1.12 (L40S) and 1.05 (RTX PRO 6000) times as long as FlashInfer (medians
over grouped queries, heads of 128). So vLLM's rows come nearer. In prefill the two tables differ on A100 as vLLM and
FlashInfer do elsewhere (1.17, 1.12 and 1.23): what was measured stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from predictor.hardware.gpu import GPUSpec
from predictor.ops.attention import Attention
from predictor.ops.base import Op
from predictor.ops.gemm import Gemm
from predictor.ops.moe import MoE
from predictor.quantization import weight_bytes
from predictor.roofline import FloatArray

#: (engine's kernels, compute capability) -> whose decode attention comes nearest to what the engine runs there.
DECODE_OF: Mapping[tuple[str, str], str] = {("sglang", "8.0"): "vllm"}


def kernels_by_op(kernels: str, gpu: GPUSpec) -> Callable[[Op], str] | None:
    """Framework of an operator's kernels in an engine that runs ``kernels`` on ``gpu``; None: ``kernels`` for all."""
    decode = DECODE_OF.get((kernels, gpu.compute_capability or ""))
    if decode is None:
        return None

    def choose(op: Op) -> str:
        one = isinstance(op, Attention) and op.is_decode and not op.shared_kv
        return decode if one else kernels

    return choose


def cold_weights_s(ops: Sequence[Op], gpu: GPUSpec) -> FloatArray:
    """Time in which what a pass finds in no cache comes from DRAM at the data sheet's rate, (n,); 0 for other ops.

    That is the weights of linear layers and experts, and the KV cache of a decode step. A table's kernels come back to
    the same bytes: its GEMMs take turns between some copies of a weight, its decode attention reads one cache again and
    again. Where those fit L2 they are timed from there. A pass comes back to a layer's bytes after all the others of
    its model, which L2 does not hold (a model that fits L2 whole is taken for one that does not).
    """
    return np.array([_cold_bytes(op) for op in ops]) / gpu.memory_bandwidth


def _cold_bytes(op: Op) -> float:
    if isinstance(op, Gemm):
        return op.n * op.k * weight_bytes(op.dtype, op.quant) if op.kind == "linear" else 0.0
    if isinstance(op, MoE) or (isinstance(op, Attention) and op.is_decode):
        return op.bytes_read()
    return 0.0
