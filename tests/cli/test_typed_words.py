"""What a person types at the first try: names that tools print, dtypes as frameworks spell them, slips, repetitions."""

from __future__ import annotations

import dataclasses
import re

import pytest

import predictor
from predictor.cli.main import build_parser, main
from predictor.cli.prices import read_prices
from predictor.engines import engine
from predictor.errors import RequestError, TilecastError, UnknownNameError
from predictor.files.arguments import Parser
from predictor.hardware.gpu import GPUSpec, list_gpus, load_gpu
from predictor.request.request import Request

#: Names as drivers, vLLM's files of tuned kernels, Kubernetes, MLPerf and clouds print them -> the board. Sources:
#: NVIDIA/open-gpu-kernel-modules README (driver 595.45.04), vLLM's fused_moe/configs, MLCommons' results.
PRINTED = {
    "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA-H100-80GB-HBM3": "h100-sxm", "NVIDIA_H100_80GB_HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie", "NVIDIA H100 NVL": "h100-nvl", "NVIDIA H100": "h100-sxm", "H100SXM": "h100-sxm",
    "nvidia-h100-80gb": "h100-sxm", "NVIDIA H100-SXM-80GB": "h100-sxm", "H100 SXM5": "h100-sxm",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb", "A100-80GB": "a100-sxm-80gb", "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb", "A100-PCIe-40GB": "a100-pcie-40gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb", "NVIDIA H200": "h200-sxm", "NVIDIA H200-SXM-141GB": "h200-sxm",
    "NVIDIA B300 SXM6 AC": "b300-sxm", "NVIDIA B200-SXM-180GB": "b200-sxm", "B200 192GB": "b200-sxm",
    "GB200-NVL-186GB": "gb200", "NVIDIA GB300": "gb300", "rtx4090": "rtx-4090", "RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 3090": "rtx-3090", "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server", "NVIDIA RTX A6000": "rtx-a6000",
    "Tesla T4": "t4", "nvidia-tesla-t4": "t4", "NVIDIA L4-PCIe-24GB": "l4", "NVIDIA L40S": "l40s",
    "Tesla V100-SXM2-16GB": "v100-sxm-16gb", "V100-16GB": "v100-sxm-16gb", "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "AMD Instinct MI300X VF": "mi300x", "AMD Instinct MI300X 192GB HBM3": "mi300x", "AMD_Instinct_MI300X": "mi300x",
    "Intel(R) Arc(TM) Pro B60 Graphics": "b60", "Intel(R)_Arc(TM)_Pro_B60_Graphics": "b60",
}  # fmt: skip
#: Boards that read like one of the catalogue and are another: an answer for the wrong one would say nothing.
OTHERS = (
    "NVIDIA A100-SXM-64GB", "NVIDIA H200 NVL", "NVIDIA H20-3e", "NVIDIA GeForce RTX 4090 D", "RTX 4090 Laptop GPU",
    "Tesla V100-PCIE-16GB", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA T4G",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "NVIDIA", "H100 80GB GDDR6", "NVIDIA A10G",
    "H100 SXM 64GB", "NVIDIA_H200_SXM_80GB", "L40S 80GB",
)  # fmt: skip


def test_names_that_tools_print() -> None:
    read = {name: load_gpu(name).id for name in PRINTED if PRINTED[name] in list_gpus()}
    assert read == {name: board for name, board in PRINTED.items() if board in list_gpus()}
    assert len(read) > 35


def load_or_none(name: str) -> GPUSpec | None:
    try:
        return load_gpu(name)
    except UnknownNameError:
        return None


def test_a_name_that_is_another_boards_is_refused() -> None:
    for name in OTHERS:
        if load_or_none(name) is not None:  # the catalogue grew
            assert load_gpu(name).id not in PRINTED.values(), name
    with pytest.raises(UnknownNameError, match="unknown GPU 'NVIDIA': expected a name of `tilecast gpus`"):
        load_gpu("NVIDIA")


def test_a_name_of_two_boards_names_both() -> None:
    with pytest.raises(UnknownNameError, match="'A800 40GB' may be a800-pcie-40gb or a800-sxm-40gb: expected one of"):
        load_gpu("A800 40GB")


@pytest.mark.parametrize("gpu", list_gpus())
def test_what_a_file_calls_its_board_resolves_to_it(gpu: str) -> None:
    name = re.sub(r"\(.*\)", "", load_gpu(gpu).name)
    assert load_gpu(name).id == gpu


#: Spelling -> the word it stands for.
DTYPES = {
    "BF16": "bf16", "bfloat16": "bf16", "torch.bfloat16": "bf16", "float16": "fp16", "half": "fp16", "FP8": "fp8",
    "fp8_e4m3": "fp8", "fp8-e4m3": "fp8", "float32": "fp32", "INT8": "int8", "int4-wo": "int4_wo",
    "FP8_Block": "fp8_block",
}  # fmt: skip


def test_dtypes_as_frameworks_spell_them() -> None:
    for text, word in DTYPES.items():
        assert Request("gpt2", "h100", dtype=text, artifacts="roofline").run().work.dtype == word, text


@pytest.mark.parametrize(
    ("text", "close"),
    [("int4", "int4_wo"), ("w4a16", "int4_wo"), ("AWQ", "int4_wo"), ("gptq", "int4_wo"), ("fp4", "nvfp4, mxfp4"),
     ("w8a8", "int8, fp8"), ("w8a16", "int8_wo, fp8_wo"), ("bf17", "bf16")],
)  # fmt: skip
def test_a_format_of_another_name_is_answered_with_the_nearest(text: str, close: str) -> None:
    with pytest.raises(RequestError, match=f"unknown dtype '{text}': .*; nearest: {close}$"):
        Request("gpt2", "h100", dtype=text, artifacts="roofline").run()


def test_engines_in_any_case_and_by_their_softwares_name() -> None:
    assert engine("vLLM") is engine("vllm")
    assert engine("trtllm") is engine("TensorRT-LLM") is engine("tensorrt_llm")
    with pytest.raises(RequestError, match="nearest: sglang"):
        engine("sglng")


def read(words: str) -> str:
    """The line that refuses the words."""
    with pytest.raises(RequestError) as caught:
        build_parser(words.split()[0]).parse_args(words.split())
    return str(caught.value)


SERVE_PLAN = "serve plan --model gpt2 --gpu h100 --num-gpus 1 --isl 8 --osl 8"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("compare --model gpt2 --gpu h100 --out a.svg --out b.svg", "--out: given twice, as a.svg and b.svg"),
        ("predict --model gpt2 --gpu h100 --batch 2 --batch=4", "--batch: given twice, as 2 and 4; expected once"),
        ("predict --model gpt2 --model gpt3 --gpu h100", "--model: given twice, as gpt2 and gpt3; expected once"),
        (SERVE_PLAN + " --dtype fp8 --dtype bf16", "--dtype: given twice, as fp8 and bf16; expected once"),
        ("evaluate kernels x --out a --out b", "--out: given twice, as a and b; expected once"),
        ("sweep s.yaml --out a --out b", "--out: given twice, as a and b; expected once"),
        ("predict --model gpt2 --gpu h100 --mod decode", "no option --mod; nearest: --mode, --model"),
        ("predict --modl gpt3 --gpu h100", "no option --modl; nearest: --model, --mode"),
        ("predict --model gpt2 --gpu h100 --top-k=4", "no option --top-k; nearest: --top"),
        ("gpus --jsn", "tilecast gpus: no option --jsn; nearest: --json"),
        ("--versio predict", "tilecast: no option --versio; nearest: --version"),
    ],
)
def test_an_option_given_twice_or_misspelled_is_one_line(words: str, said: str) -> None:
    assert said in read(words)


def test_an_option_may_come_again_in_the_next_line() -> None:
    parser = Parser()
    parser.add_argument("--batch", type=int)
    assert [parser.parse_args(["--batch", text]).batch for text in "12"] == [1, 2]
    assert parser.parse_args([]).batch is None


def test_every_verb_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("--version", "predict --version", "serve plan --version", "gpus --version"):
        with pytest.raises(SystemExit) as left:
            main(words.split())
        assert left.value.code == 0
        assert capsys.readouterr().out.startswith("tilecast ")


def test_prices_come_again_and_a_number_is_that_of_one_board() -> None:
    h100, a100 = load_gpu("h100"), load_gpu("a100")
    both = {"h100-sxm": 2.5, "a100-sxm-80gb": 1.0}
    assert read_prices(["h100=2.5", "a100=1"], [h100, a100]) == read_prices(["h100=2.5,a100=1"], [h100, a100]) == both
    assert read_prices(["2.99"], [h100]) == {"h100-sxm": 2.99}
    with pytest.raises(RequestError, match=r"--price 2.99: of which of 2 GPUs\? expected GPU=USD, such as h100-sxm="):
        read_prices(["2.99"], [h100, a100])
    with pytest.raises(RequestError, match="two prices"):
        read_prices(["2.99", "h100=3"], [h100])
    with pytest.raises(RequestError, match="dollars an hour of one GPU above 0"):
        read_prices(["-1"], [h100])


@pytest.mark.parametrize("text", ["500", "0.5"])
def test_a_time_without_a_unit_is_asked_for_one(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SERVE_PLAN.split(), "--ttft", text]) == 2
    said = f"error: --ttft {text}: in which unit? expected a time such as {text}ms or {text}s\n"
    assert capsys.readouterr().err == said


#: What a call of Python may have in a word's place.
ODD: tuple[object, ...] = (
    5, -1, 1.5, True, None, "", [], {}, [1], {"a": 1}, float("nan"), object(), b"x", ("a",), 10**30, "x\ny",
)  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Request)])
def test_a_word_of_another_kind_in_python_is_one_line_or_answered(name: str) -> None:
    words: dict[str, object] = {"model": "gpt2", "gpu": "h100", "mode": "train", "artifacts": "roofline"}
    for value in ODD:
        said = "answered"
        try:
            assert predictor.predict(**words | {name: value}).latency_s > 0.0  # type: ignore[arg-type]
        except TilecastError as error:
            said = str(error)
        assert said and "\n" not in said, value
