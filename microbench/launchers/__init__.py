"""Launchers, one module an operator: each has `prepare(case, device) -> Prepared`. Imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from predictor.errors import unknown_name

#: Launcher -> what it measures. The sweep of the same name in `sweeps/` says which shapes.
LAUNCHERS: dict[str, str] = {
    "gemm": "matrix products: linear, bmm, grouped; NN, NT, TN; fp8 by torch._scaled_mm",
    "attention": "scaled_dot_product_attention: flash, efficient, cudnn, math; forward, backward, decode",
    "softmax": "softmax over rows, forward and backward",
    "norm": "layer norm and RMS norm, forward and backward",
    "elementwise": "unary and binary functions, casts, fused chains, gradients of activations",
    "reduce": "sums over rows or columns",
    "rotary": "rotary position embedding of q and k",
    "embedding": "table look-up and its backward pass",
    "cross_entropy": "cross-entropy over a vocabulary, forward and backward",
    "dropout": "dropout",
    "optimizer": "one step of Adam (foreach, fused) or SGD",
    "copy": "copies within the device and to and from the host",
    "convolution": "convolutions of 1 to 3 dimensions: grouped, depthwise, transposed, channels last; all passes",
    "channel_norm": "batch norm and group norm, forward and backward",
    "pool": "max and average pooling, forward and backward",
    "embedding_bag": "sums of bags of rows of a table, and the gradient of the table",
    "aggregate": "message passing over a graph, as a sparse product (SpMM)",
    "index": "rows gathered from a table, scattered and added into one",
    "scan": "sums up to every element",
    "sort": "rows sorted, or their largest elements",
    "routing": "router scores to the top k experts",
    "moe": "expert layers of a mixture of experts",
    "serving": "kernels of serving libraries where they are installed: vLLM, sgl_kernel, FlashInfer, DeepGEMM, ...",
    "tile": "GEMM of our own with the tile fixed: the latency of one tile and of one wave (a GPU's in Triton)",
    "collective": "collectives over the GPUs of this machine (two or more)",
    "ceiling": "what the device sustains: FLOP/s, bandwidth of memory and cache, launch and dispatch time",
}


def load(name: str) -> Any:
    """The launcher module `name`. Raises UnknownNameError."""
    if name not in LAUNCHERS:
        raise unknown_name("operator", name, LAUNCHERS)
    return importlib.import_module(f"microbench.launchers.{name}")
