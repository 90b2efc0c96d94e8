"""FlashAttention-2 (`flash_attn`) and FlashAttention-3 for Hopper (`flash_attn_interface`): prefill beside cuDNN's.

Read in the source distribution of flash-attn 2.8.3.post2: flash_attn/flash_attn_interface.py, and
hopper/flash_attn_interface.py, which is installed from that folder by hand.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from microbench.libraries.base import BenchLibrary, Kernel, LibraryCall

if TYPE_CHECKING:
    from predictor.ops import Attention

_HOPPER = "flash_attn_interface"


def varlen(call: Any, op: Attention, device: Any) -> LibraryCall:
    """``call`` over sequences of one length, as `flash_attn_varlen_func` of both releases takes them."""
    from microbench.libraries import operands

    x = operands.Ragged.of(op, device)
    options = {"softmax_scale": op.head_dim**-0.5, "causal": op.causal, "window_size": operands.window(op)}

    def launch() -> Any:
        return call(x.q, x.k, x.v, x.q_starts, x.k_starts, op.q_len, op.kv_len, **options)

    return LibraryCall(launch, lambda: (launch(), x.reference(op)))


def _two(op: Attention, device: Any) -> LibraryCall:
    return varlen(LIBRARY.load().flash_attn_varlen_func, op, device)


def _three(op: Attention, device: Any) -> LibraryCall:
    if importlib.util.find_spec(_HOPPER) is None:
        raise ImportError(f"{_HOPPER} is not installed: its folder is hopper/ of flash-attn's sources")
    return varlen(importlib.import_module(_HOPPER).flash_attn_varlen_func, op, device)


#: Compute capabilities. Source: the sources read, see above; what they leave open is the instructions' own.
LIBRARY = BenchLibrary(
    "flash_attn", ("flash_attn", _HOPPER), ("vllm", "sglang"), ("flash_attn", "flash_attn_3", "flash-attn-3"),
    "pip install flash-attn; FlashAttention-3 from its folder hopper/", "2.8.3.post2",
    kernels={
        "fa2": Kernel(_two, {"vllm": "vllm_flash_attn_fa2", "sglang": "flash_attention"}),
        "fa3": Kernel(_three, {"vllm": "vllm_flash_attn_fa3", "sglang": "fa3"}, (9, 0), (10, 0)),
    },
)  # fmt: skip
