"""Quantities, dtypes and the error lines that name a wrong one."""

from __future__ import annotations

import pytest

from predictor.errors import (
    RequestError,
    SpecError,
    TilecastError,
    UnknownNameError,
    UnsupportedError,
    nearest,
    unknown_name,
)
from predictor.files.units import parse_quantity
from predictor.formats.dtypes import ALIASES, DTYPES, bytes_of, canonical


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("3.35 TB/s", "bandwidth", 3.35e12),
        ("900GB/s", "bandwidth", 900e9),
        ("80 GiB", "bytes", 80 * 2**30),
        ("80 GB", "bytes", 80e9),
        ("50 MiB", "bytes", 50 * 2**20),
        ("228 KiB", "bytes", 228 * 2**10),
        ("64 kB", "bytes", 64e3),
        ("16 B", "bytes", 16.0),
        ("989 TFLOP/s", "rate", 989e12),
        ("2.25 PFLOP/s", "rate", 2.25e15),
        ("1979 TOP/s", "rate", 1979e12),
        ("1980 MHz", "frequency", 1.98e9),
        ("1.98 GHz", "frequency", 1.98e9),
        ("700 W", "power", 700.0),
        ("3 us", "time", 3e-6),
        ("2.5 ms", "time", 2.5e-3),
        ("132", "count", 132.0),
        ("65536", "count", 65536.0),
        ("1e3 GB/s", "bandwidth", 1e12),
    ],
)
def test_quantity(text: str, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "dimension", "said"),
    [
        ("3.35", "bandwidth", ["'3.35'", "no unit", "TB/s"]),
        ("80", "bytes", ["no unit", "GiB"]),
        ("80 GiB", "bandwidth", ["'80 GiB'", "unit 'GiB'", "TB/s"]),
        ("3.35 TB/s", "bytes", ["GiB"]),
        ("989 TFLOPS", "rate", ["'TFLOPS'", "TFLOP/s"]),
        ("989 TiFLOP/s", "rate", ["TFLOP/s"]),
        ("700 mW", "power", ["700 W"]),
        ("132.5", "count", ["whole number"]),
        ("132 SMs", "count", ["132"]),
        ("0 GB", "bytes", ["above zero"]),
        ("-3 GB", "bytes", ["not a quantity"]),
        ("fast", "bandwidth", ["not a quantity", "TB/s"]),
        ("", "count", ["not a quantity"]),
        ("1", "furlongs", ["unknown dimension"]),
    ],
)
def test_wrong_quantity_is_one_line(text: str, dimension: str, said: list[str]) -> None:
    with pytest.raises(RequestError) as error:
        parse_quantity(text, dimension)
    assert "\n" not in str(error.value)
    for part in said:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *[("fp64", 8), ("fp32", 4), ("tf32", 4), ("fp16", 2), ("bf16", 2), ("fp8", 1), ("int8", 1), ("int4", 0.5)],
        *[("fp4", 0.5), ("int32", 4), ("int64", 8), ("bool", 1), ("mxfp8", 33 / 32), ("nvfp4", 9 / 16)],
    ],
)
def test_bytes_of(name: str, size: float) -> None:
    assert bytes_of(name) == size


def test_dtypes_name_themselves_and_compute_as_a_dtype() -> None:
    for name, dtype in DTYPES.items():
        assert dtype.name == name
        assert dtype.compute in DTYPES
        assert canonical(name) == name
    assert not set(ALIASES) & set(DTYPES)
    assert set(ALIASES.values()) <= set(DTYPES)


@pytest.mark.parametrize(
    ("alias", "name"), [("float32", "fp32"), ("BFloat16", "bf16"), ("half", "fp16"), ("torch.bfloat16", "bf16")]
)
def test_dtype_aliases(alias: str, name: str) -> None:
    assert canonical(alias) == name
    assert bytes_of(alias) == bytes_of(name)


def test_unknown_dtype_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown dtype 'bf61': expected one of fp64, .*; nearest: bf16"):
        canonical("bf61")


def test_error_tree_and_exit_status() -> None:
    assert TilecastError("x").exit_status == 1
    for kind in (RequestError, UnknownNameError, UnsupportedError, SpecError):
        assert issubclass(kind, TilecastError)
        assert kind("x").exit_status == 2


def test_unknown_name_line() -> None:
    error = unknown_name("GPU", "h10", ["h100", "h20", "mi300x"])
    assert str(error) == "unknown GPU 'h10': expected a name of `tilecast gpus` or a YAML file; nearest: h100, h20"
    assert str(unknown_name("op", "zzz", ["gemm"])) == "unknown op 'zzz': expected one of gemm"
    assert nearest("h100", ["h100-sxm", "h100-pcie", "p4"]) == ("h100-sxm", "h100-pcie")
    assert nearest("", ["gemm"]) == ()
