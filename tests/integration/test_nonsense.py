"""Nonsense to every verb: one clear line on stderr, exit status 2, nothing on stdout, nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import predictor
from microbench.cli import main as microbench
from predictor.cli.main import main

PREDICT = "predict --model gpt2 --gpu h100"
GPU = (Path(predictor.__file__).parent / "hardware" / "gpus" / "h100-sxm.yaml").read_text(encoding="utf-8")
LLAMA = Path(predictor.__file__).parent / "models" / "built" / "configs" / "llama-3.1-8b.json"
COMPARE = "compare --model gpt2 --gpu"
#: Words -> what the line says of them. Files are those of the fixture.
PLAIN = [
    (f"{PREDICT} --batch -1", "--batch -1"),
    (f"{PREDICT} --batch 99999999999999999999", "--batch"),
    (f"{PREDICT} --seq-len 1025", "1025"),
    (f"{PREDICT} --seq-len 1e3", "1e3"),
    (f"{PREDICT} --tp 0", "--tp 0"),
    (f"{PREDICT} --tp 1000000", "--tp 1000000"),
    (f"{PREDICT} --launch-overhead 5", "unit"),
    (f"{PREDICT} --launch-overhead nan", "nan"),
    (f"{PREDICT} --prompt-lens 0", "--prompt-lens 0"),
    (f"{PREDICT} --prompt-lens 5 --batch 3", "--batch 3"),
    (f"{PREDICT} --mode generate --output-len 0", "--output-len 0"),
    (f"{PREDICT} --mode forward --context-len 4", "--context-len 4"),
    (f"{PREDICT} --mode train --batch 4 --micro-batch 3", "--micro-batch 3"),
    (f"{PREDICT} --html file/x.html", "--html"),
    (f"{PREDICT} --trace folder", "--trace"),
    (f"{PREDICT} --artifacts folder", "no estimators at 'folder'"),
    (f"{PREDICT} --artifacts models:/x", "models:/NAME/VERSION"),
    ("predict --model ñandú --gpu h100", "ñandú"),
    ("predict --model gpt2 --gpu H💥", "H💥"),
    ("predict --model folder --gpu h100", "config.json"),
    ("predict --model binary.json --gpu h100", "binary.json"),
    ("predict --model deep.json --gpu h100", "deep.json"),
    ("predict --model list.json --gpu h100", "object"),
    ("predict --model gpt2 --gpu binary.yaml", "binary.yaml"),
    ("predict --model gpt2 --gpu text.yaml", "text.yaml"),
    ("predict --model gpt2 --gpu deep.yaml", "deep.yaml"),
    ("predict --model gpt2 --gpu bomb.yaml", "bomb.yaml"),
    ("gpus folder", "folder"),
    ("models folder", "config.json"),
    (f"{COMPARE} a100,,h100", "one comma"),
    (f"{COMPARE} h100,h100", "twice"),
    (f"{COMPARE} h100 --price h100=-1", "-1"),
    (f"{COMPARE} h100 --price a100=2", "no price of a GPU"),
    (f"{COMPARE} h100 --price folder", "--price folder"),
    (f"{COMPARE} h100 --price binary.yaml", "--price binary.yaml"),
    (f"{COMPARE} p4,t4 --dtype fp8", "fp8"),
    ("compare --model gpt2,gpt3 --gpu a100,h100", "many of one"),
    (f"{PREDICT} --batch ٣", "'٣' is not a whole number"),
    (f"{PREDICT} --batch 1_000", "'1_000' is not a whole number"),
    (f"{PREDICT} --batch 1.0", "'1.0' is not a whole number"),
    (f"{PREDICT} --memory-fraction 1_0", "'1_0' is not a number; expected digits such as 0.5"),
    (f"{PREDICT} --memory-fraction nan", "'nan' is not a number"),
    (f"{PREDICT} --batch {'9' * 5000}", "not a whole number"),
    (f"{PREDICT} --batch -0", "--batch 0"),
    (f"{PREDICT} --tp ٢", "'٢'"),
    (f"{PREDICT} --prompt-lens 1,,2", "'1,,2'"),
    (f"{PREDICT} --prompt-lens ,1", "',1'"),
    (f"{PREDICT} --prompt-lens 1,", "'1,'"),
    (f"{PREDICT} --prompt-lens ٣", "'٣'"),
    (f"{PREDICT} --prompt-lens 1,2 --mode train", "--mode train"),
    (f"{PREDICT} --dtype fp17", "nearest: fp16"),
    (f"{PREDICT} --dtype checkpoint", "names no quantization"),
    (f"{PREDICT} --kv-dtype fp8", "only --mode prefill, decode, generate"),
    (f"{PREDICT} --mode decode --kv-dtype fp8", "--execution eager has no attention kernel"),
    (f"{PREDICT} --mode decode --kv-dtype int4", "expected one of auto, fp8, int8, bf16"),
    ("predict --model meta-llama/Llama-3.1-9B --gpu h100", "nearest of the catalogue: meta-llama/Llama-3.1-8B"),
    (f"{PREDICT} --dtype nvfp4", "h100-sxm has no nvfp4 peak"),
    (f"{PREDICT} --launch-overhead -3us", "'-3us'"),
    (f"{PREDICT} --step-overhead -1ms --mode decode", "'-1ms'"),
    (f"{PREDICT} --trace /dev/stdout", "/dev/stdout"),
    (f"{PREDICT} --html /dev/full", "/dev/full"),
    (f"{PREDICT} --html {'a/' * 3000}x", "cannot be written"),
    (f"{PREDICT} --artifacts {'a' * 5000}", "too long"),
    (f"predict --model {'g' * 5000} --gpu h100", "too long"),
    (f"predict --model gpt2 --gpu {'h' * 5000}", "unknown GPU"),
    ("predict --model ~nobody-of-that-name/m --gpu h100", "home"),
    ("predict --model gpt2 --gpu ~nobody-of-that-name/g.yaml", "home"),
    ("predict --model llama-3.1-8b --gpu h100 --tp 3", "nearest valid: 2"),
    ("predict --model llama-3.1-8b --gpu h100 --tp 2 --system gpu.yaml", "missing gpus_per_node"),
    (f"{COMPARE} a100,a100-sxm", "a100 and a100-sxm are one"),
    (f"{COMPARE} h100 --price h100=٣", "'٣' is no price"),
    (f"{COMPARE} h100 --price twice.yaml", "'h100' appears twice"),
    (f"{COMPARE} h100 --prompt-lens 1,,2", "'1,,2'"),
    ("completion ksh", "ksh"),
    ("runs nope", "nope"),
]
#: Line put in the place of a good GPU file's own, or added -> what the line says of it.
GPU_FILES = [
    ("sm_count: 0", "sm_count: '0' is not above zero"),
    ("sm_count: -5", "'-5'"),
    ("sm_count: 1.5", "whole number"),
    ("sm_count: true", "sm_count: 'True'"),
    ("sm_count: ٣", "sm_count: '٣'"),
    ("sm_count: [132]", "sm_count"),
    ("sm_count: 1" + "0" * 30, "out of range"),
    ("sm_count: " + "9" * 5000, "no number"),
    ("sm_count: 132\nsm_count: 144", "'sm_count' appears twice"),
    ("sm_count: 132\nnotes: {a: 1, a: 2}", "'a' appears twice"),
    ("memory_bandwidth: 3350", "'3350' has no unit"),
    ("memory_bandwidth: fast TB/s", "'fast TB/s' is not a quantity"),
    ("memory_bandwidth: 900 Gb/s", "'Gb/s'"),
    ("memory_bandwidth: 3.35 B/s", "out of range: expected 1 MB/s"),
    ("memory_bandwidth: 1e300 TB/s", "memory_bandwidth: '1e300 TB/s'"),
    ("memory_bandwidth: .nan", "'nan' is not a quantity"),
    ("memory_bandwidth: .inf", "'inf' is not a quantity"),
    ("memory_bandwidth: 2020-13-45", "no number or date"),
    ("id: ''", "id is not plain text"),
    ('id: "a\\nb"', "id is not plain text"),
    ("id: " + "x" * 5000, "id is not plain text"),
    ("id: [a]", "id is not plain text"),
    ("compute_capability: x.y", "'x.y'"),
    ("peak_flops: {vector: {fp32: 0 TFLOP/s}}", "not above zero"),
    ("peak_flops: {vector: {fp32: 1 FLOP/s}}", "out of range"),
    ("peak_flops: {vector: {fp31: 1 TFLOP/s}}", "nearest: fp32"),
    ("peak_flops: lots", "peak_flops is not a mapping"),
    ("smcount: 132", "nearest: sm_count"),
    ("notes: !!python/object/apply:os.getcwd []", "broken YAML"),
    ("launch_overhead: 5 s", "out of range"),
]
#: Key and value put into a good config.json -> what the line says of them; the value DROPPED takes the key away.
DROPPED = object()
CONFIGS: list[tuple[str, object, str]] = [
    ("hidden_size", DROPPED, "missing 'hidden_size'"),
    ("hidden_size", None, "missing 'hidden_size'"),
    ("hidden_size", True, "'hidden_size' is True"),
    ("hidden_size", float("nan"), "'hidden_size' is nan"),
    ("hidden_size", float("inf"), "'hidden_size' is inf"),
    ("hidden_size", 4096.5, "4096.5"),
    ("num_hidden_layers", "32", "'32'"),
    ("num_hidden_layers", 0, "at least 1"),
    ("num_hidden_layers", 10**12, "at most"),
    ("num_key_value_heads", 3, "not a multiple of 3"),
    ("num_key_value_heads", 0, "'num_key_value_heads' is 0"),
    ("head_dim", -1, "'head_dim' is -1"),
    ("hidden_act", 5, "'hidden_act' is 5"),
    ("model_type", ["llama"], "model_type"),
    ("model_type", 7, "model_type"),
    ("architectures", [None], "nearest: LlamaForCausalLM"),
    ("quantization_config", "fp8", "'quantization_config' is 'fp8'"),
    ("quantization_config", {"quant_method": "nobody"}, "expected one of fp8, fbgemm_fp8, ptpc_fp8"),
    ("quantization_config", {"quant_method": "awq", "group_size": {"a": 1}}, "4 bits in groups of {'a': 1}"),
    ("quantization_config", {"quant_method": "awq", "bits": 11}, "'11 bits in groups of 128' is not a known scheme"),
    ("quantization_config", {"quant_method": "fp8", "ignore": ["re:("]}, "no regular expression"),
    ("quantization_config", {"quant_method": "fp8", "ignore": ["re:(?=a)"]}, "expected literals, ., classes"),
    ("quantization_config", {"quant_method": "fp8", "ignore": "lm_head"}, "expected a list of names"),
    ("quantization_config", {"config_groups": []}, "expected an object of groups"),
    ("architectures", ["MistralForCausalLM"], "contradict each other"),
    ("tie_word_embeddings", "yes", "expected true or false"),
]
NEEDS_PANDAS = [
    ("dataset import neusight folder --out x.parquet", "no neusight data"),
    ("dataset import vidur file --out x.parquet", "not a folder"),
    *(
        (f"{verb} {name}{rest}", name)
        for name in ("missing.parquet", "empty.parquet", "binary.parquet", "folder")
        for verb, rest in (
            ("dataset describe", ""), ("evaluate kernels", ""), ("train --data", " --out new"),
            ("calibrate --gpu rtx-4090 --data", " --out new"),
        )
    ),
    *((f"evaluate workloads {name}", name) for name in ("missing.csv", "empty.csv", "binary.csv", "folder")),
    ("evaluate workloads head.csv", "no row"),
    ("train --data rows.parquet --out file", "--out 'file'"),
    ("train --data rows.parquet --out new --holdout nan", "--holdout: 'nan' is not a number"),
    ("train --data rows.parquet --out new --register lab", "--register lab"),
]  # fmt: skip


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of files that are not what they are taken for."""
    (tmp_path / "folder").mkdir()
    for name in ("file", "empty.csv", "empty.parquet"):
        (tmp_path / name).touch()
    for name in ("binary.json", "binary.yaml", "binary.csv", "binary.parquet"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00bin")
    (tmp_path / "text.yaml").write_text("only text\n", encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    (tmp_path / "deep.yaml").write_text("[" * 2000, encoding="utf-8")
    nested = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 6)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True))
    (tmp_path / "bomb.yaml").write_text(f"a: &a [x, x]\n{nested}", encoding="utf-8")
    head = "case,config,mode,gpu,dtype,seq_len,global_batch,measured_ms\n"
    (tmp_path / "head.csv").write_text(head, encoding="utf-8")
    (tmp_path / "gpu.yaml").write_text(GPU, encoding="utf-8")
    (tmp_path / "twice.yaml").write_text("h100: 1\nh100: 2\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILECAST_STATE", str(tmp_path / "state"))
    return tmp_path


def refused(words: str, said: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in world.rglob("*"))
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert sorted(path.name for path in world.rglob("*")) == before, "something was written"


@pytest.mark.parametrize(("words", "said"), PLAIN)
def test_nonsense_is_one_line(words: str, said: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(words, said, world, capsys)


@pytest.mark.parametrize(("line", "said"), GPU_FILES, ids=lambda text: text[:40])
def test_a_wrong_gpu_file_is_one_line(line: str, said: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    field = line.split(":")[0]
    rest = yaml.safe_dump({name: value for name, value in yaml.safe_load(GPU).items() if name != field})
    (world / "wrong.yaml").write_text(f"{rest}{line}\n", encoding="utf-8")
    refused("predict --model gpt2 --gpu wrong.yaml", said, world, capsys)
    refused("gpus wrong.yaml", said, world, capsys)


@pytest.mark.parametrize(("key", "value", "said"), CONFIGS)
def test_a_wrong_config_is_one_line(
    key: str, value: object, said: str, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads(LLAMA.read_text(encoding="utf-8"))
    if value is DROPPED:
        del config[key]
    else:
        config[key] = value
    (world / "wrong.json").write_text(json.dumps(config), encoding="utf-8")
    refused("predict --model wrong.json --gpu h100", said, world, capsys)


def test_the_good_files_that_wrong_ones_are_made_of(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--model", str(LLAMA), "--gpu", "gpu.yaml"]) == 0
    assert "llama-3.1-8b on h100-sxm" in capsys.readouterr().out


MICROBENCH = [
    (["colect"], "nearest: collect"),
    (["status", ""], "'' is not a path"),
    (["collect", "--device", "cpu", "--out", ""], "'' is not a path"),
    (["collect", "--device", "cpu", "--out", "new", "--budget", "٣s"], "'٣s' is no time"),
    (["collect", "--device", "cpu", "--out", "new", "--budget", "-1min"], "'-1min' is no time"),
    (["collect", "--device", "cpu", "--out", "new", "--noise", "nan"], "--noise: 'nan' is not a number"),
    (["plan", "--calibration", "--rows", "٣"], "'٣' is not a whole number"),
    (["plan", "--calibration", "--rows", "0"], "0 rows"),
    (["compare", "missing", "folder"], "missing is no folder"),
]


@pytest.mark.parametrize(("words", "said"), MICROBENCH)
def test_nonsense_to_microbench_is_one_line(
    words: list[str], said: str, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(world.rglob("*"))
    assert microbench(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert sorted(world.rglob("*")) == before, "something was written"


def run(words: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "predictor", *words.split()]
    return subprocess.run(command, text=True, check=False, stderr=subprocess.PIPE, **streams)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("words", [PREDICT, f"{PREDICT} --json", "gpus", "models --json"])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_full_disk_is_one_line_and_status_1(words: str, at_once: bool, world: Path) -> None:
    """Python writes at the end, or ``at_once`` (PYTHONUNBUFFERED)."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = run(words, stdout=full, env=usual | ({"PYTHONUNBUFFERED": "1"} if at_once else {}))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "No space left" in line


def test_a_closed_standard_output_is_one_line_and_status_1(world: Path) -> None:
    done = run(PREDICT, preexec_fn=lambda: os.close(1))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "standard output is closed" in line


@pytest.mark.parametrize(("words", "said"), NEEDS_PANDAS)
def test_nonsense_about_data_is_one_line(
    words: str, said: str, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas", reason="extra 'train'")
    refused(words, said, world, capsys)


def test_an_empty_name_is_unknown(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--model", "", "--gpu", "h100"]) == 2
    assert "unknown model ''" in capsys.readouterr().err
    assert main(["predict", "--model", "gpt2", "--gpu", ""]) == 2
    assert "unknown GPU ''" in capsys.readouterr().err
