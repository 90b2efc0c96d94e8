"""The GPU catalogue. Parametrised over the folder: a new file is tested by existing."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from predictor import predict
from predictor.errors import RequestError, SpecError, UnknownNameError, UnsupportedError
from predictor.files.yaml_reader import parse_yaml
from predictor.formats.dtypes import DTYPES
from predictor.hardware.gpu import GPU_DIR, QUANTITIES, GPUSpec, all_names, list_gpus, load_gpu
from predictor.kernels.device import Device

IDS = list_gpus()
GIB = 2**30

# fp32 CUDA cores in a streaming multiprocessor, by compute capability (CUDA C++ Programming Guide).
CORES_PER_SM = {"6.0": 64, "6.1": 128, "7.0": 64, "7.5": 64, "8.0": 64} | dict.fromkeys(
    ("8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "10.7", "11.0", "12.0", "12.1"), 128
)
# GB/s that boards with such memory have, from the narrowest to the widest.
BANDWIDTH_GB_S = {
    "GDDR5": (80, 500),
    "GDDR5X": (300, 600),
    "GDDR6": (190, 1000),
    "GDDR6X": (500, 1100),
    "GDDR7": (280, 2000),
    "LPDDR5": (60, 210),
    "LPDDR5X": (200, 300),
    "HBM2": (600, 1600),
    "HBM2e": (1200, 3300),
    "HBM3": (2500, 5500),
    "HBM3e": (4500, 8200),
    "HBM4": (13000, 24000),
}
SHARED_MEMORY = ("jetson", "gb10", "strix-halo")  # boards on a chip with their CPU: no PCIe between them
# First architecture with the dtype on the matrix unit.
ARCHITECTURES = {
    "nvidia": ("pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "rubin"),
    "amd": ("cdna", "cdna2", "cdna3", "cdna4", "cdna5", "rdna3", "rdna3.5", "rdna4"),
    "intel": ("xe-hpc", "xe2"),
}
FIRST_WITH = {"fp16": "volta", "int8": "turing", "bf16": "ampere", "tf32": "ampere", "fp8": "ada", "fp4": "blackwell"}
ALIASES = {
    "p100": "p100-pcie-16gb",
    "v100": "v100-sxm-32gb",
    "a100": "a100-sxm-80gb",
    "h20": "h20-sxm",
    "h100": "h100-sxm",
    "h800": "h800-sxm",
    "h200": "h200-sxm",
    "b200": "b200-sxm",
    "b300": "b300-sxm",
}
# Data-sheet values by hand, apart from the files: (vector fp32, matrix fp16 or bf16, GB/s, W); None: not checked here.
KNOWN = {
    "p4": (5.5e12, None, 192, 75),
    "p100-pcie-16gb": (9.3e12, None, 732, 250),
    "v100-pcie-32gb": (14e12, 112e12, 900, 250),
    "v100-sxm-16gb": (15.7e12, 125e12, 900, 300),
    "t4": (8.1e12, 65e12, 320, 70),
    "a100-sxm-80gb": (19.5e12, 312e12, 2039, 400),
    "a100-pcie-40gb": (19.5e12, 312e12, 1555, 250),
    "l4": (30.3e12, 121e12, 300, 72),
    "l40s": (91.6e12, 362e12, 864, 350),
    "rtx-4090": (82.6e12, 165e12, 1008, 450),
    "h100-sxm": (66.9e12, 989e12, 3350, 700),
    "h100-pcie": (51.2e12, 756e12, 2000, 350),
    "h200-sxm": (66.9e12, 989e12, 4800, 700),
    "h20-sxm": (None, 148e12, 4000, 500),
    "b200-sxm": (75e12, 2250e12, 7700, 1000),
    "mi300x": (163.4e12, 1307e12, 5300, 750),
    "mi308x": (43e12, 344e12, 5300, 650),
    "rtx-pro-6000-server": (117e12, 467.8e12, 1597, 600),
    "b60": (12.28e12, 98.3e12, 456, 200),
}
MINIMAL = """\
id: mine
vendor: nvidia
architecture: hopper
sm_count: "100"
boost_clock: "1500 MHz"
memory_bandwidth: "2 TB/s"
memory_capacity: {value: "64 GiB", source: "my own board"}
l2: "40 MiB"
power_limit: "500 W"
peak_flops:
  vector: {fp32: "38.4 TFLOP/s"}
"""


@cache
def document(gpu_id: str) -> dict[str, Any]:
    loaded = parse_yaml((GPU_DIR / f"{gpu_id}.yaml").read_text(encoding="utf-8"), gpu_id)
    assert isinstance(loaded, dict)
    return loaded


def peak_notes(gpu_id: str, unit: str) -> dict[str, str]:
    """Dtype -> the note of its peak, in the board's file or in that of its base."""
    doc = document(gpu_id)
    notes = peak_notes(doc["base"], unit) if "base" in doc else {}
    rates = doc.get("peak_flops", {}).get(unit, {})
    return notes | {dtype: entry["note"] for dtype, entry in rates.items() if "note" in entry}


def entries(doc: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Field path -> {value, source, ...} of every measured-in-units field of a file."""
    found = {field: doc[field] for field in (*QUANTITIES, "memory_type", "ecc") if field in doc}
    for unit, rates in doc.get("peak_flops", {}).items():
        found |= {f"peak_flops.{unit}.{dtype}": entry for dtype, entry in rates.items()}
    return found


over_gpus = pytest.mark.parametrize("gpu", [load_gpu(name) for name in IDS], ids=lambda gpu: gpu.id)


@over_gpus
def test_first_two_lines_are_id_and_aliases(gpu: GPUSpec) -> None:
    first, second = gpu.path.read_text(encoding="utf-8").splitlines()[:2]
    assert first == f"id: {gpu.path.stem}" == f"id: {gpu.id}"
    assert second == f"aliases: [{', '.join(gpu.aliases)}]"


@over_gpus
def test_every_value_has_a_unit_and_a_source(gpu: GPUSpec) -> None:
    doc = document(gpu.id)
    assert {"sm_count", "boost_clock", "memory_bandwidth", "l2", "power_limit"} <= set(gpu.sources)
    assert all(len(source) > 8 and source != "not stated" for source in gpu.sources.values())
    for field, entry in entries(doc).items():
        assert isinstance(entry, dict), field
        assert isinstance(entry["value"], str), field
        assert gpu.sources[field] != "not stated", field
        if entry["source"] == "unverified":
            assert entry["document"] in doc["documents"], f"{field}: unverified names a document to check it against"
        for other in entry.get("others", []):
            assert {"value", "source"} <= set(other), field


@over_gpus
def test_names_are_lower_case_and_known(gpu: GPUSpec) -> None:
    assert gpu.architecture in ARCHITECTURES[gpu.vendor]
    assert gpu.path.is_relative_to(GPU_DIR)
    assert (gpu.compute_capability in CORES_PER_SM) == (gpu.vendor == "nvidia")
    for name in (gpu.id, gpu.id.upper(), gpu.id.replace("-", "_"), *gpu.aliases):
        assert load_gpu(name) == gpu


@over_gpus
def test_vector_fp32_is_cores_times_clock(gpu: GPUSpec) -> None:
    if gpu.vendor != "nvidia":
        lanes_flops = {"amd": (128, 256), "intel": (256,)}[gpu.vendor]  # FLOP a clock and unit, packed or not
    else:
        assert gpu.compute_capability is not None
        lanes_flops = (CORES_PER_SM[gpu.compute_capability] * 2,)
    physics = [gpu.sm_count * each * gpu.boost_clock_hz for each in lanes_flops]
    stated = gpu.peak_flops("fp32", "vector")
    explained = "fp32" in peak_notes(gpu.id, "vector")
    assert any(abs(stated / rate - 1) < 0.03 for rate in physics) or (explained and stated > min(physics))


@over_gpus
def test_narrower_matrix_dtypes_are_faster(gpu: GPUSpec) -> None:
    peaks = {dtype: rate for (unit, dtype), rate in gpu.peaks.items() if unit == "matrix"}
    notes = peak_notes(gpu.id, "matrix")
    if "fp16" in peaks and "bf16" in peaks and "half of fp16" not in notes.get("bf16", ""):
        assert peaks["fp16"] == pytest.approx(peaks["bf16"], rel=0.01)
    if "fp16" in peaks and "int8" in peaks:
        assert peaks["int8"] >= 0.999 * peaks["fp16"] or "int8 stands below" in notes["int8"]
    for wide, narrow in (("bf16", "fp8"), ("tf32", "bf16")):
        if wide in peaks and narrow in peaks and "more than twice" not in notes.get(narrow, ""):
            assert peaks[narrow] / peaks[wide] == pytest.approx(2, rel=0.03)
    if "fp4" in peaks:
        assert 1.9 * peaks["fp8"] < peaks["fp4"] < 4.1 * peaks["fp8"]  # 4: GeForce halves fp8 that adds up in fp32
    for dtype, rate in peaks.items():
        assert rate >= gpu.peaks.get(("vector", dtype), 0.0), dtype


@over_gpus
def test_no_dtype_before_its_architecture(gpu: GPUSpec) -> None:
    if gpu.vendor == "nvidia":
        order = ARCHITECTURES["nvidia"]
        for unit, dtype in gpu.peaks:
            if unit == "matrix" and dtype in FIRST_WITH:
                assert order.index(gpu.architecture) >= order.index(FIRST_WITH[dtype]), dtype
        assert ("matrix", "fp32") not in gpu.peaks, "fp32 runs on the CUDA cores; tensor cores take tf32"


@over_gpus
def test_values_are_plausible(gpu: GPUSpec) -> None:
    assert gpu.memory_type is not None
    low, high = BANDWIDTH_GB_S[gpu.memory_type]
    assert low <= gpu.memory_bandwidth / 1e9 <= high
    assert 6 * 1e9 <= gpu.memory_capacity <= 432e9
    assert 1.4 * 2**20 <= gpu.l2_bytes <= 408 * 2**20
    assert 8 <= gpu.sm_count <= 512
    assert 0.6e9 <= gpu.boost_clock_hz <= 3.2e9
    assert 15 <= gpu.power_limit_w <= 2800
    expected = (None,) if gpu.id.startswith(SHARED_MEMORY) else (16e9, 32e9, 64e9, 128e9)
    assert gpu.pcie_bandwidth in expected
    assert gpu.nvlink_bandwidth is None or 50e9 <= gpu.nvlink_bandwidth <= 1800e9
    assert gpu.l2_bandwidth == gpu.sm_count * 64 * gpu.boost_clock_hz
    assert gpu.l2_bandwidth > gpu.memory_bandwidth
    if gpu.vendor == "nvidia":
        assert gpu.registers_per_sm == 65536
        assert gpu.max_threads_per_sm in (1024, 1536, 2048)
        assert gpu.shared_memory_per_sm_bytes is not None
        assert 64 * 2**10 <= gpu.shared_memory_per_sm_bytes <= 228 * 2**10


@over_gpus
def test_integers_are_integers_and_every_peak_has_a_dtype(gpu: GPUSpec) -> None:
    for field in ("sm_count", "memory_capacity", "l2_bytes"):
        assert type(getattr(gpu, field)) is int
    assert set(gpu.dtypes) <= set(DTYPES)
    assert list(gpu.dtypes) == sorted(gpu.dtypes)
    for dtype in gpu.dtypes:
        assert gpu.supports(dtype)
        assert gpu.peak_flops(dtype) > 0
    assert gpu.vector_flops("fp32") == gpu.peaks["vector", "fp32"]
    assert gpu.vector_flops("bf16") >= gpu.vector_flops("fp32")


@over_gpus
def test_hashable_and_can_be_sent_to_a_process(gpu: GPUSpec) -> None:
    again = pickle.loads(pickle.dumps(gpu))
    assert again == gpu
    assert len({gpu, again}) == 1


@pytest.mark.parametrize("gpu_id", KNOWN)
def test_data_sheet_values(gpu_id: str) -> None:
    spec = load_gpu(gpu_id)
    fp32, half, bandwidth, watts = KNOWN[gpu_id]
    if fp32 is not None:
        assert spec.peak_flops("fp32", "vector") == pytest.approx(fp32, rel=0.01)
    if half is not None:
        assert spec.peak_flops("fp16", "matrix") == pytest.approx(half, rel=0.01)
    assert spec.memory_bandwidth == pytest.approx(bandwidth * 1e9, rel=0.01)
    assert spec.power_limit_w == watts


def test_aliases_lead_to_the_board_they_name() -> None:
    assert {alias: load_gpu(alias).id for alias in ALIASES} == ALIASES
    taken = [name for gpu_id in IDS for name in (gpu_id, *load_gpu(gpu_id).aliases)]
    assert len(taken) == len(set(taken)), "an alias belongs to one board"
    assert sorted(taken) == list(all_names())


def test_loaded_once() -> None:
    assert load_gpu("h100-sxm") is load_gpu("h100-sxm")
    assert load_gpu("H100") is load_gpu("h100-sxm")


def test_peak_lookup() -> None:
    h100, mi300x, v100 = load_gpu("h100"), load_gpu("mi300x"), load_gpu("v100")
    assert h100.peak_flops("fp32") == h100.peaks["vector", "fp32"]
    assert h100.peak_flops("bfloat16") == h100.peaks["matrix", "bf16"]
    assert h100.peak_flops("mxfp8") == h100.peaks["matrix", "fp8"]
    assert mi300x.peak_flops("fp32") == mi300x.peaks["matrix", "fp32"]
    assert v100.vector_flops("fp16") == v100.peaks["vector", "fp16"]
    assert h100.vector_flops("fp8") == h100.peaks["vector", "fp32"]
    assert not v100.supports("bf16")
    with pytest.raises(UnsupportedError, match=r"v100-sxm-32gb has no peak for 'bf16': expected one of fp16, fp32"):
        v100.peak_flops("bf16")
    with pytest.raises(UnsupportedError, match="on its matrix unit: expected one of none"):
        load_gpu("p4").peak_flops("fp32", "matrix")
    with pytest.raises(UnsupportedError, match="b60 has no peak for 'fp64'"):
        load_gpu("b60").vector_flops("fp64")
    with pytest.raises(RequestError, match="unknown unit 'tensor': expected one of vector, matrix"):
        h100.peak_flops("bf16", "tensor")


def test_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'h10': expected a name of .*; nearest: .*h100") as error:
        load_gpu("h10")
    assert "\n" not in str(error.value)


def test_own_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL)
    spec = load_gpu(str(path))
    assert spec == load_gpu(path)
    assert (spec.id, spec.name, spec.aliases, spec.path) == ("mine", "mine", (), path)
    assert (spec.nvlink_bandwidth, spec.memory_type, spec.registers_per_sm) == (None, None, None)
    assert spec.sources["memory_capacity"] == "my own board"
    assert spec.sources["l2"] == "not stated"
    path.write_text(MINIMAL.replace("2 TB/s", "3 TB/s"))
    assert load_gpu(path).memory_bandwidth == 3e12, "a file is read at every call"


def own_file_error(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as error:
        load_gpu(path)
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_one_line_names_everything_missing_or_wrong(tmp_path: Path) -> None:
    message = own_file_error(
        tmp_path, "id: mine\nboost_clok: '1 GHz'\nl2: '40'\npeak_flops: {matrix: {bf61: '1 TFLOP/s'}}"
    )
    for field in ("vendor", "architecture", "sm_count", "memory_bandwidth", "power_limit", "peak_flops.vector.fp32"):
        assert field in message
    assert "l2: '40' has no unit" in message
    assert "unknown field 'boost_clok' (nearest: boost_clock)" in message
    assert "peak_flops.matrix.bf61: unknown dtype (nearest: bf16)" in message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"1500 MHz"', "1500", "boost_clock: '1500' has no unit"),
        ('"40 MiB"', '"40 MHz"', "l2: '40 MHz' has the unit 'MHz'"),
        ("{fp32: ", "{fp32: {source: me}, fp16: ", "missing peak_flops.vector.fp32"),
        ("vector:", "tensor:", "peak_flops.tensor"),
        ("id: mine", "id: mine\naliases: h1", "aliases is not a list"),
        ("vendor: nvidia", "vendor: [nvidia]", "vendor is not plain text"),
    ],
)
def test_wrong_values(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert said in own_file_error(tmp_path, MINIMAL.replace(old, new))


def test_broken_yaml_names_the_line(tmp_path: Path) -> None:
    assert "line 3: broken YAML" in own_file_error(tmp_path, "id: mine\naliases: []\nname: a: b\n")
    assert "found list" in own_file_error(tmp_path, "- id: mine\n")
    assert "found nothing" in own_file_error(tmp_path, "")


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"cannot read GPU file .*nowhere\.yaml.*: No such file") as error:
        load_gpu(tmp_path / "nowhere.yaml")
    assert "\n" not in str(error.value)
    with pytest.raises(RequestError, match="cannot read GPU file"):
        load_gpu(f"{tmp_path}/h100")


def test_a_word_for_ecc_that_is_none_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL + 'ecc: "on"\n', encoding="utf-8")
    with pytest.raises(SpecError, match="ecc is 'on': expected one of inline, apart, off"):
        load_gpu(path)


def test_boards_whose_driver_shows_15_of_16_parts_keep_check_bits_inline() -> None:
    for gpu in (load_gpu(name) for name in IDS):
        if gpu.ecc and "MiB" in str(document(gpu.id).get("memory_capacity")):
            chips = 8 * GIB  # boards of GDDR6 have a multiple of it
            share = gpu.memory_capacity / (-(-gpu.memory_capacity // chips) * chips)
            assert (share < 0.95) == (gpu.ecc == "inline"), gpu.id


def test_streams_of_a_board_without_ecc_reach_16_of_15() -> None:
    off, inline = (replace(load_gpu("rtx-a6000"), ecc=word) for word in ("off", "inline"))
    assert Device.of(off, "bf16").bandwidth == pytest.approx(Device.of(inline, "bf16").bandwidth * 16 / 15)
    words: dict[str, Any] = {"mode": "decode", "batch": 8, "context_len": 100, "execution": "vllm"}
    fast, slow = (predict("llama-3.1-8b", gpu, **words).latency_s for gpu in (off, inline))
    assert 1.02 < slow / fast < 16 / 15
