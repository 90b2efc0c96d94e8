"""Fits quantization, causal convolutions and the delta rule (`predictor.kernels.blocks.estimator`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from predictor import engines
from predictor.data import dataset
from predictor.data.frame import Frame
from predictor.files.records import replace
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.blocks import core as blocks
from predictor.kernels.blocks.estimator import DTYPE, runner
from predictor.kernels.device import Device
from predictor.kernels.fitting.boosting import BoosterSettings
from predictor.kernels.fitting.serving import Family, fit_family
from predictor.kernels.fitting.serving_rows import VariantRows


def block_parts(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[VariantRows]:
    """Parts of rows with op quantize, causal_conv1d and delta_rule, by GPU, framework and kernel."""
    ops = np.array([*dataset.ops_of(frame), None], dtype=object)[:-1]
    logs = np.log(frame["latency_ms"].to_numpy(dtype=np.float64) * 1e-3)
    keys = {name: frame[name].astype(str).to_numpy() for name in ("gpu", "framework")}
    kinds = np.array([blocks.kind_of(op) for op in ops], dtype=object)
    measured = {library.name for library in engines.measured()}
    groups = type(frame)({**keys, "kind": kinds}).groupby(["gpu", "framework", "kind"], sort=True).indices
    for (gpu, framework, kind), rows in sorted(groups.items()):
        if framework in measured and gpu in gpus:
            library, rows = engines.library(framework), np.sort(rows)
            shapes = blocks.shapes_of(ops[rows], library, gpus[gpu])
            device = Device.of(gpus[gpu], DTYPE)
            yield VariantRows(gpu, f"{framework}|{kind}|{DTYPE}", kind, device, shapes, library.code, logs[rows], DTYPE)


def parts_by_kernel(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[VariantRows]:
    """The parts of `block_parts`, by the kernels that GPUs share constants of."""
    for part in block_parts(frame, gpus):
        framework = part.path.split("|")[0]
        name = runner(engines.library(framework), part.kind, gpus[part.gpu])
        yield replace(part, path=f"{name}|{part.kind}|{DTYPE}")


#: Where constants start and rows a booster were chosen by hand, not from data; trees, clips and shrinks by looking at
#: shapes and GPUs left out (benchmarks/results/accuracy-2026-11-23.md).
BLOCKS = Family(
    kind="serving_blocks",
    start=lambda kind: blocks.Constants(0.8, 16.0, 0.6, 4e3, 500.0, 500.0, 8.0, 1.0, 3.0),
    features=blocks.FEATURES,
    parts=block_parts,
    core=lambda part, x: blocks.core_time(part.shapes, part.device, x),
    describe=lambda part, core: blocks.features(part.shapes, part.device, core, part.framework),
    measured=BoosterSettings(rounds=150, leaves=63, depth=9),
    unseen=BoosterSettings(rounds=100, leaves=31, depth=7, rows_a_leaf=60),
    rows_a_booster=30_000,
    unseen_shrink=lambda kind: 0.7,
    alike_shrink=0.7,
    unseen_clip=0.5,
    by_kernel=parts_by_kernel,
)
fit_blocks = partial(fit_family, BLOCKS)
