"""Tile probes teach the GEMM core of a board: rows made by a law of their own, written out here, with noise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')
pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')


from microbench import sweep  # noqa: E402
from microbench.capability import gpu_target  # noqa: E402
from predictor.cli.main import main  # noqa: E402
from predictor.data import dataset  # noqa: E402
from predictor.hardware.gpu import GPUSpec, load_gpu  # noqa: E402
from predictor.kernels.artifact import default_artifacts  # noqa: E402
from predictor.kernels.base import make_batch  # noqa: E402
from predictor.kernels.device import fed_share  # noqa: E402
from predictor.kernels.fitting import serving as fit_serving  # noqa: E402
from predictor.kernels.fitting.calibrate_serving import calibrate_gemm, gemm_rows  # noqa: E402
from predictor.kernels.gemm.core import Constants  # noqa: E402
from predictor.kernels.gemm.estimator import TensorCoreGemm  # noqa: E402
from predictor.kernels.gemm.fit_tiles import add_tiles, fit_tiles  # noqa: E402
from predictor.kernels.gemm.tiles import TAUGHT, is_probe, teach, tile_parts  # noqa: E402
from predictor.ops import Gemm, Op  # noqa: E402

BASE = load_gpu("a100-sxm-80gb")
FAST = {kind: 3.0 * peak for kind, peak in BASE.peaks.items()}
#: Three boards: their SMs, clocks and peaks differ.
BOARDS = {
    "small": replace(BASE, id="small", sm_count=46, boost_clock_hz=1.9e9, memory_bandwidth=5e11, l2_bytes=36e6),
    "middle": replace(BASE, id="middle", sm_count=108, boost_clock_hz=1.41e9),
    "large": replace(
        BASE,
        id="large",
        sm_count=160,
        boost_clock_hz=2.1e9,
        memory_bandwidth=6e12,
        l2_bytes=8e7,
        peaks=FAST,
        power_limit_w=1e3,
    ),
}
LAW = {
    "small": Constants(0.62, 0.88, 3.1e10, 4200.0, 11.0, 260.0, 0.13, 1500.0, 1024.0, 3e3, 1e3, 1.0),
    "middle": Constants(0.85, 0.72, 4.5e10, 6500.0, 6.0, 330.0, 0.13, 1500.0, 1024.0, 3e3, 1e3, 1.0),
    "large": Constants(0.74, 0.65, 6.0e10, 9000.0, 15.0, 210.0, 0.13, 1500.0, 1024.0, 3e3, 1e3, 1.0),
}
START = Constants(0.9, 0.77, 1.45e10, 4800.0, 12.0, 160.0, 0.13, 1500.0, 1024.0, 3e3, 1e3, 1.0)
TILES = (
    (256, 128),
    (128, 256),
    (128, 128),
    (128, 64),
    (64, 128),
    (64, 64),
    (64, 256),
    (32, 64),
    (64, 32),
    (16, 64),
    (16, 128),
)


def peak(gpu: GPUSpec) -> float:
    from predictor.kernels.device import Device

    return Device.of(gpu, "bf16").peak_flops


def compute(gpu: GPUSpec, c: Constants, op: Gemm, tile: tuple[int, int], deep: float, splits: int = 1) -> float:
    """Seconds of the arithmetic of one kernel with a tile, ``deep`` elements of K a turn: the law in plain words."""
    tm, tn = tile
    blocks = op.batch * math.ceil(op.m / tm) * math.ceil(op.n / tn) * splits
    waves = math.ceil(blocks / gpu.sm_count)
    rate = c.compute_efficiency / (1 + c.tile_penalty * (1 / tm + 1 / tn)) * peak(gpu) / gpu.sm_count
    step = max(2 * 64 * tm * tn / rate, 64 / deep * c.step_cycles / gpu.boost_clock_hz)
    return waves * step * (op.k / 64 / splits + 2) + c.split_cycles / gpu.boost_clock_hz * math.log2(splits)


def memory(gpu: GPUSpec, c: Constants, op: Gemm, share: float) -> float:
    weights, others = 2.0 * op.n * op.k, 2.0 * op.m * (op.k + op.n)
    dram = c.dram_efficiency * fed_share(gpu) * gpu.memory_bandwidth
    l2 = max(dram, gpu.sm_count * c.l2_bytes_per_s_per_sm)
    held = 1 / (1 + (weights / (share * gpu.l2_bytes)) ** 4)
    return max(
        weights * (1 - held) / dram + (weights * held + others) / l2, (weights + others - gpu.l2_bytes / 2) / dram
    )


def total(gpu: GPUSpec, c: Constants, compute_s: float, memory_s: float) -> float:
    return (compute_s**3 + memory_s**3) ** (1 / 3) + c.overhead_cycles / gpu.boost_clock_hz


def probed(gpu: GPUSpec, c: Constants, op: Gemm, tile: tuple[int, int, int], slower: float = 1.0) -> float:
    """What a probe's kernel takes that runs at 1 / ``slower`` of the library's rate."""
    own = replace(c, compute_efficiency=c.compute_efficiency / slower)
    return total(gpu, c, compute(gpu, own, op, tile[:2], tile[2]), memory(gpu, c, op, 0.5))


def served(gpu: GPUSpec, c: Constants, op: Gemm) -> float:
    """What a library takes, which picks the fastest tile and split of K."""
    fastest = min(
        compute(gpu, c, op, tile, 64.0, splits)
        for tile in TILES for splits in (1, 2, 4, 8) if splits == 1 or op.k >= 256 * splits
    )  # fmt: skip
    return total(gpu, c, fastest, memory(gpu, c, op, c.resident_share))


def probe_rows(name: str, noise: float, seed: int = 0, slower: float = 1.0, count: int = 10_000) -> Any:
    """Rows of the tiles that the harness would probe on a board."""
    gpu, law = BOARDS[name], LAW[name]
    rng = np.random.default_rng(seed)
    rows = []
    for case in sweep.build(gpu_target(gpu), ("tile",), ("bf16",)).cases[:count]:
        assert isinstance(case.op, Gemm)
        tile = tuple(int(part) for part in str(case.option("tile")).split("x"))
        seconds = probed(gpu, law, case.op, tile, slower) * math.exp(rng.normal(0.0, noise))  # type: ignore[arg-type]
        shape = {f: getattr(case.op, f) for f in Gemm.__dataclass_fields__}
        rows.append(
            shape | dict(zip(("tile_m", "tile_n", "tile_k"), tile, strict=True)) | {"latency_ms": seconds * 1e3}
        )
    about = {"gpu": name, "framework": "pytorch", "kernel_source": "triton_tile", "op": "gemm", "flag": "tile_probe"}
    return pd.DataFrame(rows).assign(**about)


def library_rows(name: str, ops: list[Gemm], noise: float, seed: int = 0) -> Any:
    gpu, law, rng = BOARDS[name], LAW[name], np.random.default_rng(seed)
    rows = [
        {f: getattr(op, f) for f in Gemm.__dataclass_fields__}
        | {"latency_ms": served(gpu, law, op) * 1e3 * math.exp(rng.normal(0.0, noise))}
        for op in ops
    ]
    return pd.DataFrame(rows).assign(gpu=name, framework="vllm", op="gemm", quant="", flag="", kernel_source="cublas")


def shapes(seed: int, count: int) -> list[Gemm]:
    rng = np.random.default_rng(seed)
    m, n, k = (rng.integers(low, 8192, count).tolist() for low in (1, 256, 256))
    few = np.exp2(rng.uniform(0, 13, count)).astype(int).tolist()
    return [Gemm("bf16", a if i % 2 else b, c, d) for i, (a, b, c, d) in enumerate(zip(few, m, n, k, strict=True))]


@pytest.mark.parametrize(
    ("name", "noise", "limit"),
    [(name, noise, limit) for name in BOARDS for noise, limit in ((0.02, 0.05), (0.05, 0.12))],
)
def test_constants_come_back(name: str, noise: float, limit: float) -> None:
    """Within 5 % at 2 % of noise. At 5 % what few rows feel, a tile's edges and L2, comes back within 12 %."""
    (part,) = tile_parts(probe_rows(name, noise), BOARDS)
    found = teach(part, START).constants
    for constant in TAUGHT:
        near = limit if constant in ("tile_penalty", "l2_bytes_per_s_per_sm") else 0.05
        assert getattr(found, constant) == pytest.approx(getattr(LAW[name], constant), rel=near), constant
    step = [(1 + c.tile_penalty / 64) / c.compute_efficiency for c in (found, LAW[name])]
    assert step[0] == pytest.approx(step[1], rel=0.01)  # of a tile of 128 x 128: what both constants make together


def test_what_probes_cannot_tell_stays() -> None:
    (part,) = tile_parts(probe_rows("small", 0.02), BOARDS)
    found = teach(part, START).constants
    for constant in Constants.names():
        assert (getattr(found, constant) == getattr(START, constant)) is (constant not in TAUGHT)


@pytest.fixture(scope="module")
def fitted() -> Any:
    """Estimators of two boards, by the rows of a library."""
    pytest.importorskip("lightgbm", reason='LightGBM is not installed: pip install "tilecast[train]"')
    frame = pd.concat([library_rows(name, shapes(1, 250), 0.02) for name in ("small", "large")], ignore_index=True)
    return fit_serving.fit_gemm(frame, BOARDS, 0)


def error(files: Any, name: str) -> float:
    """Median error of forecasts of shapes that no row had."""
    ops: list[Op] = [*shapes(7, 200)]
    seconds = TensorCoreGemm.from_artifact(*files).seconds(make_batch("gemm", ops, "vllm"), BOARDS[name])
    true = np.array([served(BOARDS[name], LAW[name], op) for op in ops])  # type: ignore[arg-type]
    return float(np.median(np.abs(seconds / true - 1.0)))


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_tile_probes_alone_forecast_a_library(fitted: Any, noise: float) -> None:
    found = calibrate_gemm(probe_rows("middle", noise), BOARDS["middle"], *fitted)
    files = found.manifest, found.weights
    assert error(fitted, "middle") > 0.08
    assert error(files, "middle") < 0.03
    assert found.after < 0.5 * found.before
    assert error(files, "small") == error(fitted, "small")
    again = calibrate_gemm(probe_rows("middle", noise), BOARDS["middle"], *files)  # what was calibrated is replaced
    assert again.manifest == found.manifest


def test_a_few_products_tell_how_fast_a_librarys_kernel_is_beside_the_probes(fitted: Any) -> None:
    """A probe's kernel at two thirds of the library's rate: alone it is taken for it, a few rows tell them apart."""
    probes, few = probe_rows("middle", 0.02, slower=1.5), library_rows("middle", shapes(3, 24), 0.02)
    rows = pd.concat([few, probes], ignore_index=True)
    alone = calibrate_gemm(probes, BOARDS["middle"], *fitted)
    both = calibrate_gemm(rows, BOARDS["middle"], *fitted)
    assert both.manifest["probes"]["middle|bf16"]["rate"] == pytest.approx(1 / 1.5, rel=0.05)
    assert error((both.manifest, both.weights), "middle") < 0.03 < error((alone.manifest, alone.weights), "middle")
    # and the next board, which has probes alone, knows of it
    BOARDS["next"], LAW["next"] = replace(BOARDS["small"], id="next"), LAW["small"]
    try:
        known = both.manifest, both.weights
        third = calibrate_gemm(probe_rows("next", 0.02, slower=1.5), BOARDS["next"], *known)
        assert error((third.manifest, third.weights), "next") < 0.03
    finally:
        del BOARDS["next"], LAW["next"]


def test_training_takes_probes_of_boards_without_other_rows(fitted: Any) -> None:
    """Of a board that has both, they say how fast the probe's kernel is; the libraries' trees and constants stay."""
    probes = pd.concat([probe_rows("small", 0.02, slower=1.25), probe_rows("middle", 0.02, slower=1.25)])
    files = add_tiles(fitted, probes.reset_index(drop=True), BOARDS)
    manifest = files[0]
    assert manifest["probes"]["small|bf16"]["rate"] == pytest.approx(0.8, rel=0.05)
    assert error(files, "middle") < 0.03
    assert all(manifest["cores"][key] == values for key, values in fitted[0]["cores"].items())
    assert error(files, "large") == error(fitted, "large")


def test_probes_alone_make_an_estimator() -> None:
    manifest, weights = fit_tiles(probe_rows("large", 0.02), BOARDS, 0)
    assert set(manifest["cores"]) == {"large|vllm|bf16", "*|vllm|bf16"}
    assert error((manifest, weights), "large") < 0.05  # what a split of K costs is the usual, not this law's
    few = probe_rows("large", 0.02).iloc[:10]
    assert not fit_tiles(few, BOARDS, 0)[0]["cores"]


def schema_rows(gpu: str, count: int) -> Any:
    """Rows of probes as a data file has them."""
    rng = np.random.default_rng(0)
    m, n, k = (np.exp2(rng.integers(7, 13, count)) for _ in range(3))
    common = {
        "source": "made-up", "source_file": "none", "source_row": np.arange(count), "gpu": gpu, "framework": "pytorch",
        "framework_version": "0", "kernel_source": "triton_tile", "protocol": "cuda_graph", "cache_state": "warm",
        "dtype": "bf16", "quant": "", "flag": "tile_probe", "op": "gemm", "batch": 1, "kind": "linear", "bias": False,
        "layout": "tn", "m": m, "n": n, "k": k, "tile_m": 128, "tile_n": 128, "tile_k": 64,
        "latency_ms": 2e3 * m * n * k / 1e14 + 8e-3,
    }  # fmt: skip
    return dataset.to_frame(common, count)


@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
def test_the_command_takes_probes_beside_rows_that_tell_nothing_of_them(
    dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of vLLM in another dtype, and eager calls of PyTorch: the probes alone tell the constants of bf16."""
    from predictor.cli.main import main

    probes, others = schema_rows("rtx-4090", 60), schema_rows("rtx-4090", 260)
    framework, cache = ("vllm", "rotating") if dtype == "fp8" else ("pytorch", "warm")
    others = others.assign(flag="", dtype=dtype, framework=framework, cache_state=cache, source_file="other",
                           tile_m=np.nan, tile_n=np.nan, tile_k=np.nan)  # fmt: skip
    dataset.write(dataset.concat([probes, others]), tmp_path / "rows.parquet")
    words = ["train", "--data", str(tmp_path / "rows.parquet"), "--out", str(tmp_path / "set"), "--no-intervals"]
    assert main([*words, "--estimators", "gemm"]) == 0
    manifest = json.loads((tmp_path / "set" / "gemm" / "manifest.json").read_text(encoding="utf-8"))
    assert "rtx-4090|vllm|bf16" in manifest["cores"] and "rtx-4090|bf16" in manifest["probes"]


@pytest.mark.skipif(not (default_artifacts() / "manifest.json").is_file(), reason="no shipped estimators here")
def test_the_command_takes_probes_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for gpu, status in (("rtx-4090", 0), ("h100-sxm", 2)):
        file, out = tmp_path / f"{gpu}.parquet", tmp_path / gpu
        dataset.write(schema_rows(gpu, 300), file)  # more than a library's rows may be
        assert main(["calibrate", "--gpu", gpu, "--data", str(file), "--out", str(out)]) == status
    assert "was measured with its libraries, expected rows of them" in capsys.readouterr().err
    words = ["predict", "--model", "gpt2", "--gpu", "rtx-4090", "--explain", "mlp up", "--json"]
    assert main([*words, "--artifacts", str(tmp_path / "rtx-4090")]) == 0
    answer = json.loads(capsys.readouterr().out)["explain"]
    assert answer["rests_on"].startswith("300 tile probes of rtx-4090")
    assert answer["estimator"] == "gemm"


def test_a_librarys_rows_are_fitted_without_tile_probes(fitted: Any) -> None:
    """A probe is no example of a library's kernel: the trees and the constants of measured boards are the same."""
    frame = pd.concat([library_rows(name, shapes(1, 250), 0.02) for name in ("small", "large")], ignore_index=True)
    assert not is_probe(frame).any()
    mixed = pd.concat([frame, probe_rows("small", 0.02)], ignore_index=True)
    assert is_probe(mixed).sum() == len(mixed) - len(frame)
    assert not gemm_rows(probe_rows("small", 0.02).assign(flag="tile_probe;beats_roofline"), BOARDS["small"]).any()
