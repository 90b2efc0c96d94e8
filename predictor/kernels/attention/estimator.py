"""Fused attention of serving frameworks: prefill (many queries) and decode (one query, a KV cache), cores apart.

A core of `predictor.kernels.attention.core`, corrected by boosted trees.
"""

from __future__ import annotations

from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.files.records import replace
from predictor.formats.dtypes import bytes_of
from predictor.formats.quantization import variant
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.attention import core as attention
from predictor.kernels.attention.core import Constants, Shapes, core_time, features
from predictor.kernels.base import Batch
from predictor.kernels.device import Device
from predictor.kernels.knots import Corners, Grid, together
from predictor.kernels.residual import ANY_GPU, Corrections, ServingEstimator
from predictor.ops.roofline import FloatArray

PREFILL, DECODE = "prefill", "decode"
#: Behind the phase, of kernels whose parts another kernel adds up (`shared_by`).
MERGED = "+merge"
#: Multi-head latent attention runs kernels of its own: expanded in prefill, absorbed in decode.
_LATENT = "mla_"

#: FLOP/s of the backward pass over those of the forward pass on the same shape: FlashAttention-2 (Dao, 2023,
#: section 4.1) reports up to 73 % of the peak forward and up to 63 % backward, mostly between 0.75 and 0.85 of it.
BACKWARD_OVER_FORWARD = 0.8

#: Fewest keys of a decode step in the tables. What they hold of one query and one key was run by prefill kernels (the
#: tables of prompts, at a length of 1): with TensorRT-LLM 2.5 times as slow (median) as decode kernels over two keys.
_FEWEST_DECODE_KEYS = 2.0


def sizes_of(shapes: Shapes, phase: str) -> dict[str, FloatArray]:
    """The columns that tables have on a grid; the prompts of decoders and of encoders are apart."""
    if is_decode(phase):
        return {"batch": shapes.batch, "kv_len": shapes.kv_len}
    causal = shapes.causal > 0
    return {"batch": shapes.batch, "prompt": shapes.q_len[causal], "patches": shapes.q_len[~causal]}


def corners_of(shapes: Shapes, phase: str, knots: Grid) -> Corners | None:
    """The measured sizes around ``shapes``, None without any; what came before a prompt stays as it is."""
    if is_decode(phase):
        known = {name: (values, knots[name]) for name, values in sizes_of(shapes, phase).items() if name in knots}
        return Corners.around(known) if known else None
    if not {"batch", "prompt"} <= knots.keys():
        return None
    causal = shapes.causal > 0
    groups = [(causal.nonzero()[0], "prompt"), ((~causal).nonzero()[0], "patches")]
    batch = shapes.batch, knots["batch"]
    corners = together([
        Corners.around({"batch": batch, "q_len": (shapes.q_len, knots.get(name, knots["prompt"]))}, rows)
        for rows, name in groups if rows.size
    ])  # fmt: skip
    kv = shapes.kv_len.take(corners.rows)
    before = kv - shapes.q_len.take(corners.rows)
    # Fewer keys than queries: attention over another sequence (a text's, say), whose length stays as it is.
    return replace(
        corners, sizes={**corners.sizes, "kv_len": np.where(before < 0, kv, corners.sizes["q_len"] + before)}
    )


def shared_by(library: str, phase: str, gpu: GPUSpec) -> tuple[str, int]:
    """(kernels whose constants GPUs that nobody measured share, their library's number in the trees' features).

    Decode kernels are of two kinds: some add up what the parts of a split cache gave themselves, others leave it to
    another kernel, and a block of theirs costs two to three times the cycles.
    """
    if not is_decode(phase):
        return phase, engines.answering(library).code
    runs = engines.library(engines.library(library).decodes_by(library, gpu))
    return phase + MERGED * runs.merges, engines.answering(runs.name).code


def is_decode(phase: str) -> bool:
    """Whether a phase of `phase_of` has one query a sequence."""
    return phase.endswith(DECODE)


def plain_phase(phase: str) -> str:
    """Prefill or decode, of the plain kernels or those of latent attention."""
    return phase.removeprefix(_LATENT)


def phase_of(
    decode: npt.NDArray[np.bool_], shared: npt.NDArray[np.bool_], heads: FloatArray, kv_heads: FloatArray,
    head_dim: FloatArray, value_dim: FloatArray,
) -> npt.NDArray[np.str_]:  # fmt: skip
    """The kernels that a call runs, all of shape (n,): prefill or decode, plain or of latent attention.

    Absorbed decode is that whose values are a slice of its keys; expanded prefill has keys wider than its values in
    every head (DeepSeek-V2: 192 and 128). One head tells nothing: plain kernels were measured at such widths, too.
    """
    latent = np.where(decode, shared, (heads == kv_heads) & (heads > 1) & (head_dim > value_dim))
    names = np.array([PREFILL, _LATENT + PREFILL, DECODE, _LATENT + DECODE])
    result: npt.NDArray[np.str_] = names[2 * decode.astype(np.int64) + latent.astype(np.int64)]
    return result


class ServingAttention(ServingEstimator):
    """Seconds of fused attention with serving kernels; backward as the forward pass times a published factor."""

    forms: ClassVar = (attention.PrefillConstants, attention.DecodeConstants)

    def __init__(self, name: str, corrections: Corrections) -> None:
        super().__init__(name, corrections)
        self._phases = {key.split("|")[2] for key in corrections.cores}

    def _answer(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        columns = batch.columns
        backward = columns["is_backward"] > 0
        shared = np.array([getattr(op, "shared_kv", False) for op in batch.ops])
        phases = phase_of(
            (columns["q_len"] == 1) & ~backward, shared, columns["heads"], columns["kv_heads"], columns["head_dim"],
            columns["value_dim"],
        )  # fmt: skip
        seconds = np.empty(len(batch.dtypes))
        groups: dict[tuple[str, str], list[int]] = {}
        for i, key in enumerate(zip(batch.dtypes, phases.tolist(), strict=True)):
            groups.setdefault(key, []).append(i)
        for (dtype, phase), members in groups.items():
            rows = np.array(members)
            seconds[rows] = self._seconds(batch, gpu, dtype, phase, rows, shared[rows].astype(np.float64))
        if backward.any():
            # FLOP of the backward pass over the forward's, from the operator's own counts (five products to two).
            head, value = batch.columns["head_dim"], batch.columns["value_dim"]
            ratio = (3 * head + 2 * value) / (head + value) / BACKWARD_OVER_FORWARD
            seconds = np.where(backward, seconds * ratio, seconds)
        return seconds

    def _seconds(
        self, batch: Batch, gpu: GPUSpec, dtype: str, phase: str, rows: npt.NDArray[np.int64], shared: FloatArray
    ) -> FloatArray:
        caches = [getattr(batch.ops[i], "kv_dtype", "") or dtype for i in rows]
        sizes = np.array([bytes_of(name) for name in caches])
        names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "value_dim", "causal", "window")
        columns = {name: batch.columns[name][rows] for name in names}
        if phase not in self._phases:
            phase = plain_phase(phase)  # a set that saw no latent attention answers with the plain kernels
        if phase == DECODE:
            columns["kv_len"] = np.maximum(columns["kv_len"], _FEWEST_DECODE_KEYS)
            if bytes_of(dtype) < 2:
                dtype = "bf16"  # no table has decode kernels with queries so narrow; the cache stays as it is
        library, kind = engines.answering(batch.kernels), variant(dtype)
        cold = np.full(len(rows), float(batch.cold and is_decode(phase)))
        shapes = Shapes.of(list(columns.values()), bytes_of(dtype), sizes, shared, cold).run_by(batch.kernels, gpu)
        kernel, code = shared_by(batch.kernels, phase, gpu)
        source, _, constants_of_path = self._corrections.resolve(gpu, library.name, phase, kind, kernel=kernel)
        constants = cast(Constants, constants_of_path)
        seconds = self._corrected(
            source, phase, gpu, dtype, shapes,
            lambda shapes, device: core_time(shapes, device, constants),
            lambda shapes, device, core: features(shapes, device, core, code if source == ANY_GPU else library.code),
            corners_of(shapes, phase, self._corrections.knots(f"{source}|{phase}")), others=(batch.kernels,),
        )  # fmt: skip
        if source == ANY_GPU and gpu.vendor == "nvidia" and gpu.exponentials_per_clock and not is_decode(phase):
            least = attention.softmax_floor(shapes, Device.of(gpu, dtype), gpu.exponentials_per_clock)
            return np.maximum(seconds, least)
        return seconds
