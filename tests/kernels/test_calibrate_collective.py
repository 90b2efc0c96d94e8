"""Collectives of a PCIe system adapted by a few of its rows, made up with the formula and factors that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')
pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')

from predictor.data.schema import from_op  # noqa: E402
from predictor.hardware.gpu import load_gpu  # noqa: E402
from predictor.hardware.system import load_system  # noqa: E402
from predictor.kernels.base import make_batch  # noqa: E402
from predictor.kernels.collective.calibrate import calibrate_collective, collective_rows  # noqa: E402
from predictor.kernels.collective.core import OWN, CollectiveCalls, Constants, seconds  # noqa: E402
from predictor.kernels.collective.estimator import Collectives  # noqa: E402
from predictor.kernels.device import Device  # noqa: E402
from predictor.ops import Op  # noqa: E402
from predictor.ops.collective import over  # noqa: E402
from predictor.ops.roofline import roofline  # noqa: E402

GPU = load_gpu("l40s")
CONSTANT = Constants()
OWN_FACTORS = np.log([1.3, 0.9, 0.6, 0.5])
MANIFEST: dict[str, Any] = {
    "kind": "collective", "name": "collective", "constants": CONSTANT.to_manifest(), "host_s": {}, "calibrated": {},
    "systems": {"dgx-a100": dict.fromkeys(OWN, 1.0)},
}  # fmt: skip
WEIGHTS: dict[str, Any] = {}


def _ops(system: str, sizes: range) -> list[Op]:
    found = load_system(system)
    return [over(found, "all_reduce", "bf16", float(2**size), ranks) for ranks in (2, 4, 8) for size in sizes]


def _frame(system: str, sizes: range) -> Any:
    ops = _ops(system, sizes)
    links = CollectiveCalls.of(make_batch("collective", ops).columns)
    own = np.tile(OWN_FACTORS, (len(ops), 1))
    taken = seconds(links, Device.sheet(GPU), CONSTANT, own)
    rows = [from_op(op) | {"latency_ms": s * 1e3} for op, s in zip(ops, taken, strict=True)]
    head = {"gpu": GPU.id, "framework": "pytorch", "source": "made-up", "protocol": "cuda_graph"}
    return pd.DataFrame(rows).assign(**head, kernel_source="nccl")


def _forecast(manifest: Any, weights: Any, ops: list[Op]) -> Any:
    seconds = Collectives.from_artifact(manifest, weights).seconds(make_batch("collective", ops), GPU)
    return np.maximum(roofline(ops, GPU).lower_bound_s, seconds)


def test_rows_of_a_pcie_system_bring_its_error_down_and_leave_others() -> None:
    frame = _frame("l40s-pcie", range(12, 30, 4))
    assert collective_rows(frame, GPU).all()
    found = calibrate_collective(frame, GPU, MANIFEST, WEIGHTS)
    assert found.after < 0.2 * found.before
    test = _frame("l40s-pcie", range(13, 29, 3))
    measured, ops = test["latency_ms"].to_numpy() * 1e-3, _ops("l40s-pcie", range(13, 29, 3))
    old, new = _forecast(MANIFEST, WEIGHTS, ops), _forecast(found.manifest, found.weights, ops)
    assert np.abs(new / measured - 1).mean() < 0.2 * np.abs(old / measured - 1).mean()
    assert found.scalars["l40s-pcie"]["bandwidth_8"] == pytest.approx(0.5, rel=0.2)
    others = _ops("dgx-a100", range(12, 30, 4))
    np.testing.assert_array_equal(
        _forecast(MANIFEST, WEIGHTS, others), _forecast(found.manifest, found.weights, others)
    )
    again = calibrate_collective(frame, GPU, found.manifest, found.weights)
    assert again.manifest == found.manifest


def test_what_is_not_read() -> None:
    frame = _frame("l40s-pcie", range(12, 30, 4))
    assert not collective_rows(_frame("dgx-a100", range(12, 30, 4)), GPU).any()  # NVLink: its data sheet says it
    assert not collective_rows(frame.iloc[:7], GPU).any()
    assert not collective_rows(frame.assign(framework="other"), GPU).any()
    assert not collective_rows(frame.drop(columns="link"), GPU).any()
