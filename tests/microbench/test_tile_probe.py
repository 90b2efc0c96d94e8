"""The processor's tile probe: a blocked product whose result is checked, however its waves lie on the grid."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="extra 'torch'")

from microbench import sweep  # noqa: E402
from microbench.capability import cpu_target, refusal  # noqa: E402
from microbench.case import Case  # noqa: E402
from microbench.devices.cpu import CpuDevice  # noqa: E402
from microbench.launchers.base import TOLERANCE, IllegalCase  # noqa: E402
from microbench.launchers.tile import prepare  # noqa: E402
from predictor.data.schema import TILE_PROBE  # noqa: E402
from predictor.ops import Gemm  # noqa: E402

CPU = cpu_target(4, 16e9)


@pytest.fixture
def threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("units", "dtype"), [(1, "fp32"), (2, "fp32"), (3, "fp32"), (5, "bf16")])
def test_the_product_is_right(units: int, dtype: str, threads: object) -> None:
    device = CpuDevice(units)
    for m, n, k, tile in ((32, 96, 64, "16x32x32"), (48, 48, 32, "16x16x16"), (16, 160, 96, "16x32x96")):
        prepared = prepare(Case("tile", Gemm(dtype, m, n, k), (("tile", tile),)), device)
        assert prepared.check is not None
        error = prepared.check()
        assert error is not None and error <= TOLERANCE[dtype], (units, tile)
        assert (prepared.flag, prepared.kernel_source) == (TILE_PROBE, "blocked")
        assert prepared.extra == dict(zip(("tile_m", "tile_n", "tile_k"), map(int, tile.split("x")), strict=True))


def test_sizes_are_whole_tiles() -> None:
    for op in (Gemm("fp32", 33, 32, 32), Gemm("fp32", 32, 32, 33)):
        with pytest.raises(IllegalCase, match="multiple"):
            prepare(Case("tile", op, (("tile", "16x16x16"),)), CpuDevice(1))


def test_a_processor_is_offered_probes_that_are_quick() -> None:
    cases = sweep.build(CPU, ("tile",)).cases
    assert {case.op.dtype for case in cases} == {"fp32", "bf16"}
    assert len(cases) > 60 and not any(refusal(case, CPU) for case in cases)
    assert max(CPU.seconds(case) for case in cases) <= 0.02
    one_row = [case for case in cases if isinstance(case.op, Gemm) and case.op.m == 16 and case.op.n >= 2048]
    assert one_row  # a wide B, for what bytes cost
    without = replace(CPU, kind="cuda", triton=False, capability=(9, 0), protocols=("cuda_graph", "eager_events"))
    assert "Triton" in refusal(replace(cases[0], protocol="cuda_graph"), without)
