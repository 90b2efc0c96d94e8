"""Rows of aiconfigurator that show the host: all calls of a kernel take the same long time until the work is large."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data.dataset import Frame

#: No kernel takes so long for the smallest shape of a table: where the fastest row does, the rows show the host. Chosen
#: by looking at block-scaled products: vLLM's take 55 us and more, all others 3 to 12. Of latent attention vLLM's take
#: 100 to 300, those of the others 9 to 17.
HOST_FLOOR_MS = 0.04
#: Calls up to so many times the floor may still be the host's: its spikes reach 1.7 times (vLLM, MLA decode on H100).
_SPIKES = 2.0


def of_products(raw: Frame) -> Any:
    """The flag of block-scaled products of kernels whose fastest row takes longer than `HOST_FLOOR_MS`."""
    blocked = raw["gemm_dtype"].astype(str) == "fp8_block"
    fastest = raw["latency"].groupby([raw["kernel_source"].astype(str), blocked]).transform("min")
    return (blocked & (fastest > HOST_FLOOR_MS)).map({True: "host_bound", False: ""})


def of_latent_attention(raw: Frame) -> Any:
    """The flag of calls of latent attention that end at the floor of their kernel, or are smaller than one that does.

    The floor is the lower quartile of a kernel's times: at least a third of each table lies there. More work takes no
    less time, so a call is the host's, however long it took, where one with as many sequences, heads, queries and keys
    ended within twice the floor.
    """
    bound = np.zeros(len(raw), dtype=bool)
    latency = raw["latency"].to_numpy(dtype=float)
    sizes = np.stack([raw[name].to_numpy(dtype=float) for name in ("batch_size", "num_heads", "isl", "step")])
    kernels = raw.groupby(["kernel_source", "kv_cache_dtype"], observed=True).indices
    for rows in kernels.values():
        if latency[rows].min() > HOST_FLOOR_MS:
            floor = np.quantile(latency[rows], 0.25)
            bound[rows] = _within(sizes[:, rows], sizes[:, rows[latency[rows] < _SPIKES * floor]])
    return raw["latency"].where(bound).notna().map({True: "host_bound", False: ""})


def _within(sizes: npt.NDArray[np.float64], larger: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """(n,) True for each of ``sizes`` (d, n) that no size of one of ``larger`` (d, m) falls below."""
    pairs = [mine[:, None] <= theirs[None, :] for mine, theirs in zip(sizes, larger, strict=True)]
    return np.asarray(np.logical_and.reduce(pairs).any(axis=1), dtype=bool)
