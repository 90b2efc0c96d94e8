"""What a pass of an engine finds in no cache, though the tables of its kernels were measured with it there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.hardware.gpu import GPUSpec
from predictor.ops.base import Op
from predictor.roofline import FloatArray


def cold_weights_s(ops: Sequence[Op], gpu: GPUSpec) -> FloatArray:
    """Time in which what a pass finds in no cache comes from DRAM at the data sheet's rate, (n,); 0 for other ops.

    That is the weights of linear layers and experts, and the KV cache of a decode step. A table's kernels come back to
    the same bytes: its GEMMs take turns between some copies of a weight, its decode attention reads one cache again and
    again. Where those fit L2 they are timed from there. A pass comes back to a layer's bytes after all the others of
    its model, which L2 does not hold (a model that fits L2 whole is taken for one that does not). Attention's cores
    count it, too: streams reach less than the data sheet's rate (`predictor.estimators.cores.attention`).
    """
    return np.array([op.cold_bytes() for op in ops]) / gpu.memory_bandwidth
