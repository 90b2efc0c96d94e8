"""Dispatch and combine of a library of kernels for experts: a call, and its bytes over the links or over the network.

    t = start + max(link bytes / (link bandwidth x share), network bytes / (network bandwidth x share))

Rows over NVLink and rows over the network are on their way at the same time. ``start`` and the shares are the library's
(`predictor.engines.library.Exchanges`), published by its authors, not fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictor import engines
from predictor.roofline import FloatArray


def exchange_seconds(columns: Mapping[str, FloatArray], libraries: Sequence[str]) -> FloatArray:
    """Seconds (n,) of n exchanges, from the columns of `predictor.ops.exchange.Exchange` and each one's library."""
    total = np.empty(len(libraries))
    for name in dict.fromkeys(libraries):
        k = engines.library(name).exchanges
        assert k is not None, name
        rows = np.array([each == name for each in libraries])
        c = {column: values[rows] for column, values in columns.items()}
        forwards = c["forwards"] > 0
        near = np.where(forwards, k.share_link_forwarded, k.share_link_direct) * np.maximum(c["link_bandwidth"], 1.0)
        far = np.where(forwards, k.share_net_forwarded, k.share_net_direct) * c["net_bandwidth"] / c["local_ranks"]
        moved = np.maximum(c["link_size"] / near, c["net_size"] / np.maximum(far, 1.0))
        hop = np.where(c["ranks"] > c["local_ranks"], c["net_latency_s"], c["link_latency_s"])
        total[rows] = np.maximum(k.start_s, hop) + moved
    return total
