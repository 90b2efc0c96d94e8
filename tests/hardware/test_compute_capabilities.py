"""What an instruction set fixes, by compute capability: one table, and every board's peaks against it."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_gpus import MINIMAL

from predictor.errors import SpecError
from predictor.hardware.capability import capabilities, of_capability
from predictor.hardware.gpu import BY_CAPABILITY, list_gpus, load_gpu, parse_gpu


def with_lines(*lines: str) -> str:
    return MINIMAL + "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("name", capabilities())
def test_every_value_is_a_field_with_a_source(name: str) -> None:
    found = of_capability(name, "")
    assert set(found) <= {*BY_CAPABILITY, "matrix_rates", "vector_rates"}
    assert all(len(entry["source"]) > 5 for entry in found.values())
    assert {"warp_threads", "lanes_per_sm", "max_threads_per_sm", "registers_per_sm", "shared_memory_per_sm"} <= set(
        found
    )


@pytest.mark.parametrize("name", list_gpus())
def test_a_board_multiplies_no_faster_than_its_instruction_set(name: str) -> None:
    """Boards reach their generation's dense rate at boost clock or, cut down as GeForce and H20 are, less of it."""
    gpu = load_gpu(name)
    for dtype, rate in gpu.matrix_rates.items():
        if ("matrix", dtype) in gpu.peaks:
            share = gpu.peaks["matrix", dtype] / (gpu.sm_count * gpu.boost_clock_hz * rate)
            assert (share > 0.1 or dtype == "fp64") and share < 1.06, (
                f"{dtype}: {share:.2f} of the rate that its instruction set has"
            )
    if gpu.vendor == "nvidia":
        assert gpu.lanes_per_sm and gpu.warp_threads and gpu.registers_per_sm and gpu.max_blocks_per_sm
        lanes = gpu.peaks["vector", "fp32"] / (2 * gpu.sm_count * gpu.boost_clock_hz)
        assert lanes == pytest.approx(gpu.lanes_per_sm, rel=0.13), "fp32 multiply-adds a clock"
        assert gpu.max_threads_per_sm == gpu.warp_threads * round(gpu.max_threads_per_sm / gpu.warp_threads)


def test_values_that_published_tables_print() -> None:
    """Of the CUDA Programming Guide's compute capabilities and AMD's CDNA 3 documents, by hand."""
    found = {
        name: (g.max_blocks_per_sm, g.max_threads_per_sm, g.exponentials_per_clock, g.warp_threads, g.matrix_tile_rows)
        for name in ("t4", "a100", "l40s", "h100", "b200", "b300", "rtx-pro-6000", "mi300x")
        for g in (load_gpu(name),)
    }
    assert found == {
        "t4": (16, 1024, 16, 32, 16), "a100": (32, 2048, 16, 32, 16), "l40s": (24, 1536, 16, 32, 16),
        "h100": (32, 2048, 16, 32, 64), "b200": (32, 2048, 16, 32, 128), "b300": (32, 2048, 32, 32, 128),
        "rtx-pro-6000": (24, 1536, 16, 32, 16), "mi300x": (None, 2048, 16, 64, 16),
    }  # fmt: skip
    ultra, b200 = load_gpu("gb300").matrix_rates, load_gpu("gb200").matrix_rates
    assert ultra["fp4"] == 1.5 * b200["fp4"] and ultra["int8"] < b200["int8"] / 20
    assert load_gpu("b200").tensor_memory_per_sm_bytes == 256 * 1024
    assert load_gpu("h100").tensor_memory_per_sm_bytes is None


def test_a_file_of_ones_own_takes_them_and_may_say_otherwise() -> None:
    plain = parse_gpu(MINIMAL, Path("mine.yaml"))
    assert plain.matrix_tile_rows is None and plain.matrix_rates == {}
    nine = parse_gpu(with_lines('compute_capability: "9.0"'), Path("mine.yaml"))
    assert (nine.matrix_tile_rows, nine.matrix_rates["bf16"]) == (64, 4096.0)
    assert "PTX" in nine.sources["matrix_tile_rows"] and "xla" in nine.sources["matrix_rates"]
    own = with_lines('compute_capability: "9.0"', 'matrix_tile_rows: {value: "32", source: "made up"}')
    assert parse_gpu(own, Path("mine.yaml")).matrix_tile_rows == 32
    assert parse_gpu(own, Path("mine.yaml")).sources["matrix_tile_rows"] == "made up"
    unheard = parse_gpu(with_lines('compute_capability: "9.9"'), Path("mine.yaml"))
    assert unheard.warp_threads is None
    with pytest.raises(SpecError, match="max_blocks_per_sm: '0' is not above zero"):
        parse_gpu(with_lines('max_blocks_per_sm: "0"'), Path("mine.yaml"))
