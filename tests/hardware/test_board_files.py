"""Files that rest on another board (`base:`), and peaks that follow from a compute capability (`tensor_cores:`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.errors import RequestError, SpecError
from predictor.hardware.gpu import GPUSpec, load_gpu, parse_gpu
from predictor.hardware.what_if import with_values
from predictor.ui.boards import board_of


def own(tmp_path: Path, text: str, name: str = "mine.yaml") -> GPUSpec:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load_gpu(path)


def test_a_base_gives_what_a_file_does_not_say(tmp_path: Path) -> None:
    h100 = load_gpu("h100")
    spec = own(tmp_path, 'id: mine\nbase: h100\nmemory_bandwidth: {value: "2.4 TB/s", source: "ours"}\n')
    assert (spec.id, spec.memory_bandwidth, spec.sources["memory_bandwidth"]) == ("mine", 2.4e12, "ours")
    assert spec.peaks == h100.peaks and spec.sm_count == 132 and spec.compute_capability == "9.0"
    assert spec.sources["l2"] == h100.sources["l2"] and spec.matrix_tile_rows == 64


def test_peaks_follow_sms_and_clock_as_with_set(tmp_path: Path) -> None:
    spec = own(tmp_path, 'id: half\nbase: h100\nsm_count: "66"\nboost_clock: "990 MHz"\npower_limit: "700 W"\n')
    by_set = with_values(load_gpu("h100"), "sm_count=66 boost_clock=990MHz power_limit=700W")
    assert spec.peaks == pytest.approx(by_set.peaks) and spec.power_limit_w == by_set.power_limit_w
    assert "scaled with sm_count and boost_clock" in spec.sources["peak_flops.matrix.bf16"]
    peaks = 'peak_flops: {matrix: {bf16: "800 TFLOP/s", int8: {value: none}}}'
    spec = own(tmp_path, f'id: half\nbase: h100\nsm_count: "66"\n{peaks}\n')
    assert spec.peak_flops("bf16") == 800e12 and ("matrix", "int8") not in spec.peaks
    assert spec.peak_flops("fp8") == pytest.approx(load_gpu("h100").peak_flops("fp8") / 2)


def test_a_base_may_be_a_file_beside_it(tmp_path: Path) -> None:
    own(tmp_path, 'id: one\nbase: l4\nl2: "40 MiB"\n', "one.yaml")
    assert own(tmp_path, 'id: two\nbase: ./one.yaml\npower_limit: "60 W"\n', "two.yaml").l2_bytes == 40 * 2**20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id: mine\nbase: h10\n", "unknown GPU 'h10'"),
        ("id: mine\nbase: ./nowhere.yaml\n", "cannot read GPU file"),
        ("id: mine\nbase: ./mine.yaml\n", "expected a base without a ring"),
        ("id: mine\nbase: [h100]\n", "base is not the name"),
        ('id: mine\nbase: h100\nsm_count: "-3"\n', "sm_count"),
        ('id: mine\nbase: h100\nmemory_bandwidth: "2.4 GB/s"\n', "was probably meant"),
        (
            "id: mine\nbase: h100\ntensor_cores: quarter\n",
            "tensor_cores is 'quarter': expected one of full, half, none",
        ),
        ("base: h100\n", "missing id"),
    ],
)
def test_a_wrong_base_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        own(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_pasted_text_reads_no_file() -> None:
    assert board_of("id: mine\nbase: h100\n").spec.sm_count == 132
    with pytest.raises(SpecError, match="expected a name of the catalogue, not a file"):
        board_of("id: mine\nbase: /etc/secret.yaml\n")


def test_peaks_of_a_compute_capability_by_hand() -> None:
    """Data sheets and white papers, apart from the files: RTX 3060, RTX A4000, GTX 1660 Ti, Orin, MI355X."""
    tera = {
        ("rtx-3060", "vector", "fp32"): 12.74, ("rtx-3060", "matrix", "bf16"): 25.5,
        ("rtx-3060", "matrix", "int8"): 101.9, ("rtx-3060", "matrix", "tf32"): 12.74,
        ("rtx-a4000", "matrix", "fp16"): 76.7, ("gtx-1660-ti", "vector", "fp16"): 10.87,
        ("jetson-agx-orin", "matrix", "int8"): 85.2, ("jetson-agx-orin", "matrix", "fp16"): 42.6,
        ("mi355x", "matrix", "fp8"): 5033.2, ("mi355x", "matrix", "fp4"): 10066.3,
        ("mi350x", "matrix", "bf16"): 2306.9, ("rtx-5080", "matrix", "fp4"): 900.4,
        ("rtx-5080", "matrix", "fp8"): 225.1, ("titan-rtx", "matrix", "fp16"): 130.5,
        ("mi250", "matrix", "fp16"): 362.0, ("rtx-4090-d", "matrix", "bf16"): 147.1,
        ("b580", "matrix", "int8"): 218.7,
    }  # fmt: skip
    for (name, unit, dtype), expected in tera.items():
        assert load_gpu(name).peak_flops(dtype, unit) / 1e12 == pytest.approx(expected, rel=0.004), (name, dtype)


def test_what_a_chip_lacks_is_no_peak() -> None:
    assert not any(unit == "matrix" for unit, _ in load_gpu("gtx-1660-ti").peaks)
    assert not load_gpu("gtx-1080-ti").supports("fp16") and not load_gpu("rtx-2080-ti").supports("bf16")
    assert not load_gpu("rx-7900-xtx").supports("fp8")


def test_peaks_that_a_file_states_go_before_those_that_follow(tmp_path: Path) -> None:
    text = """
id: mine
vendor: nvidia
architecture: ampere
compute_capability: "8.6"
sm_count: "28"
boost_clock: "1777 MHz"
memory_bandwidth: "360 GB/s"
memory_capacity: "12 GiB"
l2: "3 MiB"
power_limit: "170 W"
tensor_cores: half
peak_flops: {matrix: {bf16: "20 TFLOP/s", int8: {value: none, source: "ours"}}}
"""
    spec = parse_gpu(text, Path("mine.yaml"))
    assert spec.peak_flops("bf16") == 20e12 and not spec.supports("int8")
    assert spec.peak_flops("fp16") == pytest.approx(28 * 1777e6 * 512)
    assert "half of the generation's rate" in spec.sources["peak_flops.matrix.fp16"]
    unknown = text.replace('"8.6"', '"8.8"')
    with pytest.raises(SpecError, match="tensor_cores: expected a compute capability"):
        parse_gpu(unknown, Path("mine.yaml"))


@pytest.mark.parametrize("document", ["{a: b}", "[a]"])
def test_a_document_that_is_no_key_is_one_line(tmp_path: Path, document: str) -> None:
    said = f"{{value: '66', source: unverified, document: {document}}}"
    text = f"id: mine\nbase: h100\ndocuments: {{a: A}}\nsm_count: {said}\n"
    with pytest.raises(SpecError, match=r"sm_count: document is .*; expected a key of documents") as caught:
        own(tmp_path, text)
    assert "\n" not in str(caught.value)
