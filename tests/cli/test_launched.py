"""`--from`: what a launch command says becomes the words of a forecast, and what it cannot say is named."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from predictor.cli.main import main
from predictor.engines.launchers import launched
from predictor.errors import RequestError

DATA = Path(os.environ.get("TILECAST_DATA", ""))


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def line(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1
    return said.err


# What a server's command says -> words (GPUs share attention tp ways, and have dp copies of it).
SERVERS = [
    ("vllm serve Qwen/Qwen3-32B -tp 4 --kv-cache-dtype fp8", {"tp": "4", "kv_dtype": "fp8", "execution": "vllm"}),
    ("vllm serve M --data-parallel-size 8 --enable-expert-parallel", {"dp": "8", "ep": "8"}),
    ("vllm serve M --tensor_parallel_size=2 --data-parallel-size=4 --enable-expert-parallel", {"tp": "2", "ep": "8"}),
    ("VLLM_ALL2ALL_BACKEND=deepep_low_latency vllm serve M -dp 16 -ep", {"all_to_all": "deepep", "ep": "16"}),
    ("python -m vllm.entrypoints.openai.api_server --model M --dtype half", {"dtype": "fp16", "model": "M"}),
    ("python3 -m sglang.launch_server --model-path M --tp 16 --dp 8 --enable-dp-attention", {"tp": "2", "dp": "8"}),
    ("sglang serve --model-path M --tp-size 8 --ep-size 8", {"tp": "8", "ep": "8"}),
    ("python -m sglang.launch_server --model M --tp 16 --moe-a2a-backend deepep", {"tp": "16", "ep": "16"}),
    ("python -m sglang.launch_server --model M --disaggregation-mode prefill", {"mode": "prefill"}),
    ("trtllm-serve M --tp_size=8 --ep_size 8 --kv_cache_free_gpu_memory_fraction 0.8", {"tp": "8", "ep": "8",
     "memory_fraction": "0.8"}),
]  # fmt: skip


@pytest.mark.parametrize(("command", "words"), SERVERS)
def test_a_servers_command(command: str, words: dict[str, str]) -> None:
    read = launched(command, {})
    assert {name: read.words.get(name) for name in words} == words


def test_limits_of_a_server_are_of_one_rank() -> None:
    """SGLang counts running requests and tokens of a step over all ranks of attention."""
    command = "python -m sglang.launch_server --model M --tp 8 --dp 4 --enable-dp-attention --max-running-requests 512"
    assert launched(f"{command} --chunked-prefill-size 8192", {}).load == {
        "max_num_seqs": "128", "max_num_batched_tokens": "2048"
    }  # fmt: skip
    assert launched("vllm serve M -dp 4 --max-num-seqs 512", {}).load == {"max_num_seqs": "512"}
    replicas = launched("python -m sglang.launch_server --model M --tp 2 --dp 4", {})
    assert replicas.load == {"replicas": "4"} and "dp" not in replicas.words and replicas.remarks
    every = launched("python -m sglang.launch_server --model M --scheduler-recv-interval 30", {})
    assert every.load == {"receive_every": "30"} and not every.untold


def test_a_file_of_options(tmp_path: Path) -> None:
    file = tmp_path / "options.yml"
    file.write_text(
        "enable_attention_dp: true\nkv_cache_config: {dtype: fp8, enable_block_reuse: false,"
        " free_gpu_memory_fraction: 0.75}\nmoe_config: {backend: CUTLASS}\nstream_interval: 10\n"
    )
    read = launched(f"trtllm-serve M --tp_size 8 --ep_size 8 --max_num_tokens 8320 --extra_llm_api_options {file}", {})
    assert {n: read.words.get(n) for n in ("tp", "dp", "ep", "kv_dtype", "memory_fraction")} == {
        "tp": None, "dp": "8", "ep": "8", "kv_dtype": "fp8", "memory_fraction": "0.75"
    }  # fmt: skip
    assert read.load == {"max_num_batched_tokens": "8320", "prefix_cache": "off"}
    assert any("CUTLASS" in each for each in read.untold)


def test_what_a_forecast_does_not_know_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    command = "vllm serve Qwen/Qwen3-8B --attention-backend FLASHINFER --port 9 --max-num-seqs 64"
    notes = answer(capsys, "predict", "--from", command, "--gpu", "h100")["notes"]
    assert "Words of vllm serve that the forecast leaves out: --attention-backend FLASHINFER." in notes
    assert "Words of vllm serve that change nothing here: --port 9." in notes
    assert any("--max-num-seqs 64" in note and "serve simulate" in note for note in notes)


def test_words_beside_a_command_go_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpu", "h100", "--mode", "decode", "--batch", "8", "--context-len", "512")
    read = answer(capsys, "predict", "--from", "vllm serve Qwen/Qwen3-8B -tp 4", "--tp", "2", *words)
    plain = answer(capsys, "predict", "--model", "qwen3-8b", "--execution", "vllm", "--tp", "2", *words)
    assert "--tp 2 goes before the command's 4." in read["notes"]
    assert read["latency_ms"] == plain["latency_ms"] and read["interval_ms"] == plain["interval_ms"]


def test_a_simulation_takes_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--gpu", "h100", "--concurrency", "16", "--isl", "200", "--osl", "20", "--requests", "40")
    read = answer(capsys, "serve", "simulate", "--from", "vllm serve Qwen/Qwen3-8B --max-num-seqs 4 --port 1", *load)
    plain = answer(capsys, "serve", "simulate", "--model", "qwen3-8b", "--max-num-seqs", "4", *load)
    assert read["ttft_ms"] == plain["ttft_ms"] and read["tpot_ms"] == plain["tpot_ms"]
    assert "Words of vllm serve that change nothing here: --port 1." in read["notes"]


def test_weights_that_the_checkpoint_has_are_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    serve = "vllm serve {} --quantization fp8"
    assert answer(capsys, "predict", "--from", serve.format("Qwen/Qwen3-8B"), "--gpu", "h100")["dtype"] == "fp8_dynamic"
    own = answer(capsys, "predict", "--from", serve.format("deepseek-ai/DeepSeek-R1") + " -tp 8", "--gpu", "h200")
    assert (own["dtype"], own["dtype_source"]) == ("fp8_block", "checkpoint")
    other = serve.format("deepseek-ai/DeepSeek-R1").replace("fp8", "modelopt_fp4") + " -tp 8"
    assert answer(capsys, "predict", "--from", other, "--gpu", "b200")["dtype"] == "nvfp4"


REFUSED = [
    ("vllm serve M --tensor-paralel-size 4", "--tensor-paralel-size"), ("vllm serve M -tp x", "tp 'x'"),
    ("vllm serve M --kv-cache-dtype fp9", "'fp9'; expected one of auto, fp8"), ("vllm serve", "names no model"),
    ("python -m sglang.launch_server --model M --tp 8 --dp 3 --enable-dp-attention", "dp 3 does not divide tp 8"),
    ("vllm serve 'M", "No closing quotation"), ("python train_me.py", "no launch command that is known"),
    ("torchrun pretrain_gpt.py --num-layer 3", "nearest: --num-layers"), ("", "no launch command"),
    ("torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 3", "nearest: 9 GPUs"),
    ("python -m torchtitan.train", "names no file"), ("python setup_experiment.py", "--model_recipe_name"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "said"), REFUSED)
def test_one_line_for_what_cannot_be_read(command: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        launched(command, {})
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_lines_of_the_verb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "required: --gpu" in line(capsys, "predict", "--from", "vllm serve Qwen/Qwen3-8B")
    assert "no option --from" in line(capsys, "plan", "--from", "x", "--gpu", "h100")
    assert "given twice" in line(capsys, "predict", "--from", "vllm serve M", "--from=vllm serve N", "--gpu", "h100")
    assert "cannot read" in line(capsys, "predict", "--from", str(tmp_path / "no.toml"), "--gpu", "h100")
    broken = tmp_path / "broken.toml"
    broken.write_text("[model\n")
    assert "broken TOML" in line(capsys, "predict", "--from", str(broken), "--gpu", "h100")
    simulated = (
        "serve",
        "simulate",
        "--from",
        "torchrun pretrain_gpt.py",
        "--gpu",
        "h100",
        "--rate",
        "1",
        "--isl",
        "9",
    )
    assert "trains" in line(capsys, *simulated, "--osl", "9")


TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "full"
[compile]
enable = true
"""


def test_a_toml_of_torchtitan(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text(TITAN)
    words = launched(str(file), {"num_gpus": "16"}).words
    want = {
        "mode": "train", "model": "llama-3.1-8b", "tp": "2", "dp": "8", "sp": True, "shard": "zero3", "batch": "16",
        "micro_batch": "2", "seq_len": "8192", "recompute": "full", "execution": "compile", "dtype": "bf16",
    }  # fmt: skip
    assert {name: words.get(name) for name in want} == want
    command = f"torchrun --nnodes 2 --nproc_per_node=8 -m torchtitan.train --job.config_file {file}"
    more = f"{command} --parallelism.pipeline_parallel_degree 4 --training.global_batch_size=64 --compile.enable=false"
    words = launched(more, {}).words
    assert (words["pp"], words["dp"], words["batch"], words["micro_batch"]) == ("4", "2", "64", "1")
    assert (words["shard"], words["schedule"], words["execution"]) == ("zero2", "1f1b", "eager")
    float8 = launched(f"{command} --model.converters quantize.linear.float8", {})
    assert float8.words["dtype"] == "fp8"
    by_rows = launched(f"{command} --model.converters float8 --float8.recipe_name rowwise", {})
    assert by_rows.words["dtype"] == "fp8_row" and not by_rows.untold
    with pytest.raises(RequestError, match="not a multiple of the 2 of tp 2"):
        launched(str(file), {"num_gpus": "9"})


@pytest.mark.parametrize(
    ("option", "said"), [('"op"', "selective"), ('"2"', "full:16-of-32"), ('"1"', "full"), ('"40"', "none")]
)
def test_torchtitan_saves_products_or_every_nth_layer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, said: str
) -> None:
    file = tmp_path / "train.toml"
    file.write_text(TITAN.replace('mode = "full"', f'mode = "selective"\nselective_ac_option = {option}'))
    assert answer(capsys, "predict", "--from", str(file), "--gpu", "h100", "--num-gpus", "2")["recompute"] == said


def test_layers_that_do_not_divide_go_to_stages_as_torchtitan_has_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Embedding and head count as a layer each: 32 + 2 over 3 stages are 12, 11, 11, less one at both ends."""
    file = tmp_path / "train.toml"
    file.write_text(TITAN.replace("tensor_parallel_degree = 2", "pipeline_parallel_degree = 3"))
    read = answer(capsys, "predict", "--from", str(file), "--gpu", "h100", "--num-gpus", "3")
    assert read["stage_layers"] == [11, 11, 10]


MEGATRON = (
    "torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336"
    " --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm"
    " --num-experts 8 --moe-router-topk 2 --seq-length 4096 --micro-batch-size 1 --global-batch-size 256 --bf16"
    " --untie-embeddings-and-output-weights --pipeline-model-parallel-size 4 --expert-model-parallel-size 8"
    " --use-distributed-optimizer --overlap-grad-reduce --lr 1e-4"
)


def test_flags_of_megatron(capsys: pytest.CaptureFixture[str]) -> None:
    read = answer(capsys, "predict", "--from", MEGATRON, "--gpu", "h100")
    degrees = {name: read[name] for name in ("num_gpus", "pp", "dp", "ep", "batch", "seq_len", "shard", "dp_overlap")}
    assert degrees == {
        "num_gpus": 64, "pp": 4, "dp": 16, "ep": 8, "batch": 256, "seq_len": 4096, "shard": "zero1", "dp_overlap": "on"
    }  # fmt: skip
    assert read["model"] == "mixtral-8x7b" and read["execution"] == "megatron"


def test_sizes_that_no_model_has_are_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    read = answer(
        capsys, "predict", "--from", MEGATRON.replace("--hidden-size 4096", "--hidden-size 2048"), "--gpu", "h100"
    )
    experts = 32 * 8 * 3 * 2048 * 14336
    attention = 32 * 2048 * (2 * 2048 + 2 * 2048 // 4)
    assert read["parameters"] == pytest.approx(experts + attention + 2 * 32000 * 2048, rel=1e-3)


FP8 = [
    ("--fp8-format hybrid", "fp8"), ("--fp8-format e4m3 --fp8-recipe blockwise", "fp8_block"),
    ("--fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"), ("--fp16", "fp16"), ("", "fp32"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "dtype"), FP8)
def test_number_formats_of_megatron(flags: str, dtype: str) -> None:
    assert launched(f"torchrun pretrain_gpt.py {flags}", {}).words["dtype"] == dtype


def test_recompute_of_megatron() -> None:
    head = "torchrun pretrain_gpt.py --num-layers 32 --pipeline-model-parallel-size 4"
    block = "--recompute-granularity full --recompute-method block --recompute-num-layers"
    assert launched(f"{head} {block} 2", {}).words["recompute"] == "full:8-of-32"
    assert launched(f"{head} {block} 8", {}).words["recompute"] == "full"
    assert launched(f"{head} --recompute-activations", {}).words["recompute"] == "selective"


def test_a_file_of_nemo(tmp_path: Path) -> None:
    file = tmp_path / "gpt3.yaml"
    file.write_text(
        "trainer: {num_nodes: 2, devices: 8, precision: bf16}\nmodel: {tensor_model_parallel_size: 4, hidden_size: 64,"
        " pipeline_model_parallel_size: 2, num_layers: 8, num_attention_heads: 4, micro_batch_size: 1,"
        " virtual_pipeline_model_parallel_size: 2, encoder_seq_length: 2048, global_batch_size: 8,"
        " ffn_hidden_size: '${multiply:4, ${.hidden_size}}', sequence_parallel: true,"
        " optim: {name: mcore_distributed_optim}}\n"
    )
    read = launched(str(file), {})
    want = {"tp": "4", "pp": "2", "dp": "2", "vpp": "2", "sp": True, "shard": "zero1", "seq_len": "2048"}
    assert {name: read.words.get(name) for name in want} == want
    assert read.sizes is not None and read.sizes["n_inner"] == 256


@pytest.mark.skipif(not (DATA / "launch_commands").is_dir(), reason="needs TILECAST_DATA with launch_commands")
def test_published_commands_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Degrees of each, by what its source says of it."""
    monkeypatch.chdir(tmp_path)
    checked = 0
    for row in csv.DictReader((DATA / "launch_commands" / "commands.csv").open(encoding="utf-8")):
        says = dict(part.strip().split("=", 1) for part in row["meaning"].split(";") if "=" in part)
        if "attention_tp" not in says:
            continue
        command = row["command"]
        for flag in ("--extra_llm_api_options", "--config"):
            if row["extra_yaml"] and flag in command:
                name = command.split(flag)[1].lstrip("= ").split()[0]
                (tmp_path / name).write_text(row["extra_yaml"])
        words = launched(command, {}).words
        tp, dp, ep = (int(words.get(name, 1)) for name in ("tp", "dp", "ep"))
        assert (tp, dp) == (int(says["attention_tp"]), int(says.get("attention_dp", 1))), row["id"]
        if "moe_ep" in says:
            assert ep == int(says["moe_ep"].split()[0]), row["id"]
        checked += 1
    assert checked >= 24


@pytest.mark.parametrize(
    ("layout", "layers"),
    [
        ("E,t*9|(t*8|)*2,t*7,L", "9,8,8,7"),
        ("Et*3|(t*4|)*6,t*5|L", "3,4,4,4,4,4,4,5,0"),
        ("E|(tt|)*16L", f"0{16 * ',2'},0"),
    ],
)
def test_a_layout_of_megatron_gives_every_stage_its_layers(layout: str, layers: str) -> None:
    """Written out by hand from the rule: t is a layer, "|" ends a chunk, x*n is n of x."""
    stages = layers.count(",") + 1
    command = MEGATRON.replace("--pipeline-model-parallel-size 4", f"--pipeline-model-parallel-size {stages}")
    command = command.replace("--nnodes 8", f"--nnodes {stages}")
    words = launched(f"{command} --pipeline-model-parallel-layout {layout}", {}).words
    assert words["stage_layers"] == layers and "vpp" not in words


def test_a_layout_of_several_chunks_a_stage_is_interleaved(capsys: pytest.CaptureFixture[str]) -> None:
    said = f"{MEGATRON} --pipeline-model-parallel-layout Et*3|(t*4|)*6t*5L"
    assert launched(said, {}).words["vpp"] == "2"
    assert answer(capsys, "predict", "--from", said, "--gpu", "h100")["stage_layers"] == [3, 4, 4, 4, 4, 4, 4, 5]
    drafted = launched(f"{MEGATRON} --pipeline-model-parallel-layout Et*8|t*8|t*8|t*8mL", {})
    assert any("m of --pipeline-model-parallel-layout" in each for each in drafted.untold)
    for wrong in ("Et*8|t*8|t*16L", "t*8|t*8|t*8|t*8", "Ex*8|t|t|tL"):
        with pytest.raises(RequestError, match="expected E, t, m and L in 4 x N chunks"):
            launched(f"{MEGATRON} --pipeline-model-parallel-layout {wrong}", {})


# Speculation in a command -> words with --acceptance beside it; {}: named as not in the forecast.
SPECULATES = [
    ("""vllm serve M --speculative-config '{"method":"mtp","num_speculative_tokens":2}'""", {"drafts": "2"}),
    ("""vllm serve M --speculative-config '{"method":"glm4_moe_mtp","num_speculative_tokens":1}'""", {"drafts": "1"}),
    ("vllm serve M --speculative-config.method mtp --speculative_config.num_speculative_tokens 3", {"drafts": "3"}),
    ("""vllm serve M --speculative-config '{"model":"D","num_speculative_tokens":5}'""", {"drafts": "5",
     "draft_model": "D"}),
    ("vllm serve M --speculative-model D --num-speculative-tokens 5", {"drafts": "5", "draft_model": "D"}),
    ("""vllm serve M --speculative-config '{"method":"eagle3","model":"D","num_speculative_tokens":3}'""", {}),
    ("""vllm serve M --speculative-config '{"model":"org/EAGLE-M","num_speculative_tokens":3}'""", {}),
    ("""vllm serve M --speculative-config '{"method":"ngram","num_speculative_tokens":3}'""", {}),
    ("vllm serve M --speculative-model [ngram] --num-speculative-tokens 5", {}),
    ("sglang serve --model M --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1"
     " --speculative-num-draft-tokens 4", {"drafts": "3"}),
    ("sglang serve --model M --speculative-algorithm NEXTN --speculative-num-steps 1 --speculative-eagle-topk 1",
     {"drafts": "1"}),
    ("sglang serve --model M --speculative-algorithm STANDALONE --speculative-draft-model-path D"
     " --speculative-num-steps 4", {"drafts": "4", "draft_model": "D"}),
    ("sglang serve --model M --speculative-algorithm EAGLE3 --speculative-draft-model-path D --speculative-num-steps 3"
     " --speculative-eagle-topk 4 --speculative-num-draft-tokens 16", {}),
    ("sglang serve --model M --speculative-algorithm EAGLE --speculative-num-steps 5 --speculative-eagle-topk 4", {}),
    ("sglang serve --model M --speculative-algorithm EAGLE", {}),  # how many depends on the model
]  # fmt: skip


@pytest.mark.parametrize(("command", "words"), SPECULATES)
def test_speculation_of_a_command(command: str, words: dict[str, str]) -> None:
    read = launched(command, {})
    assert read.speculates == words
    flags = read.speculation if words else read.untold
    assert flags and all("speculative" in flag for flag in flags)
    assert not (read.untold if words else read.speculation)


def test_speculation_of_a_file_and_what_it_says_beyond(tmp_path: Path) -> None:
    file = tmp_path / "options.yml"
    file.write_text(
        "speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 3, use_relaxed_acceptance_for_thinking:"
        " true}\n"
    )
    read = launched(f"trtllm-serve M --tp_size 8 --extra_llm_api_options {file}", {})
    assert read.speculates == {"drafts": "3"}
    assert read.untold == ("--speculative-config use-relaxed-acceptance-for-thinking true",)
    file.write_text("speculative_config: {decoding_type: Eagle, max_draft_len: 3, speculative_model_dir: D}\n")
    eagle = launched(f"trtllm-serve M --extra_llm_api_options {file}", {})
    assert eagle.speculates == {} and "Eagle" in eagle.untold[0]


@pytest.mark.parametrize("config", ["'{method'", "'[1]'", "3"])
def test_a_speculation_that_is_no_object_is_one_line(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = line(capsys, "predict", "--gpu", "h200", "--from", f"vllm serve M --speculative-config {config}")
    assert "expected a JSON object" in said
    said = line(capsys, "predict", "--gpu", "h200", "--from", f"vllm serve M --speculative-config {config}.5")
    assert "expected" in said


def test_a_command_speculates_where_an_acceptance_stands_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The command never says how many drafts are right; without that its flags are named."""
    command = """vllm serve qwen3-8b --speculative-config '{"model":"qwen3-0.6b","num_speculative_tokens":3}'"""
    words = ("predict", "--gpu", "h200", "--seq-len", "100", "--output-len", "50", "--from", command)
    alone, beside = answer(capsys, *words), answer(capsys, *words, "--acceptance", "0.8")
    by_hand = answer(
        capsys, "predict", "--model", "qwen3-8b", "--execution", "vllm", "--mode", "generate", *words[1:7],
        "--drafts", "3", "--draft-model", "qwen3-0.6b", "--acceptance", "0.8",
    )  # fmt: skip
    assert beside["latency_ms"] == by_hand["latency_ms"] < alone["latency_ms"]
    assert any("--speculative-config" in note and "--acceptance P" in note for note in alone["notes"])
    assert not any("--speculative-config" in note for note in beside["notes"])
    other = answer(capsys, *words, "--acceptance", "0.8", "--drafts", "1")
    assert any("--drafts 1 goes before the command's 3" in note for note in other["notes"])
    load = ("serve", "simulate", "--gpu", "h200", "--rate", "1", "--requests", "20", "--isl", "100", "--osl", "50")
    plain = answer(capsys, *load, "--from", command)
    assert answer(capsys, *load, "--from", command, "--acceptance", "0.8")["tpot_ms"] != plain["tpot_ms"]


@pytest.mark.parametrize("config", ['{"method":"eagle3","model":"D","num_speculative_tokens":3}', '{"method":"ngram"}'])
def test_an_acceptance_of_drafts_that_no_forecast_has_is_one_line(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"vllm serve meta-llama/Llama-3.1-8B --speculative-config '{config}'"
    words = ["predict", "--from", said, "--gpu", "h100", "--mode", "decode", "--acceptance", "0.7"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "--acceptance 0.7: the command of vllm serve has no drafts that a forecast knows" in error
    assert "expected no --acceptance, or --drafts K beside it" in error and error.count("\n") == 1
