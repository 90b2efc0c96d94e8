"""What a quantized checkpoint says of its numbers: in time, in memory, in the answer; and the KV cache's dtype."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from predictor.api import predict
from predictor.errors import RequestError, TilecastError, UnsupportedError
from predictor.graph import Graph
from predictor.hardware.gpu import load_gpu
from predictor.models.built import config_from_dict, kv_cache_bytes, load_config, weight_bytes
from predictor.models.built.load import CONFIGS
from predictor.ops import Attention, Gemm, MoE
from predictor.report.html import settings, settings_shown
from predictor.report.json_report import to_dict
from predictor.report.terminal import first_line, print_prediction
from predictor.request.precision import checkpoint_precision
from predictor.request.request import Request
from predictor.simulate.answer import Prediction
from predictor.simulate.lower import Lowering, lower
from predictor.simulate.plan import make_step
from tests.catalogue import MODELS

GIB = 2.0**30
V3: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
SERVED: dict[str, Any] = {"mode": "decode", "batch": 4, "context_len": 1000, "execution": "vllm"}


def raw(name: str, **more: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    return {**data, **more}


def quantized(name: str, **said: Any) -> Any:
    return config_from_dict(raw(name, quantization_config=said), name)


def graph_of(model: Any, gpu: str, rows: int = 4, **words: Any) -> Graph:
    point = Request(model, gpu, **{**SERVED, **words}).run()
    step = make_step(point.work, point.numbers, "decode", 1, 1000, rows)
    return lower(Lowering(point.config, step, formats=point.numbers.formats, engine=point.work.engine))


def formats(graph: Graph) -> dict[str, tuple[str, str]]:
    """Name of a product -> its dtype and scheme."""
    found = {}
    for node, _ in graph.nodes():
        if isinstance(node.op, MoE) or (isinstance(node.op, Gemm) and node.op.kind == "linear"):
            found[node.name] = (node.op.dtype, node.op.quant)
    return found


def attempt(path: Path) -> tuple[Prediction | None, str]:
    try:
        return predict(path, "b200", **SERVED), ""
    except TilecastError as error:
        return None, str(error)


def test_every_published_config_gives_a_forecast_or_one_line(data: Path) -> None:
    """Bytes of the weights, counted by hand from the sizes in the files; see also the next test."""
    embed, hidden, layers = 151936 * 4096, 4096, 94
    attention = hidden * (64 + 2 * 4) * 128 + 64 * 128 * hidden
    experts, router = 128 * 3 * hidden * 1536, 128 * hidden
    norms = 2 * hidden + 2 * 128
    block = 1 + 4 / 128**2
    moe_235b = layers * ((attention + experts) * block + 2 * (router + norms)) + 2 * (2 * embed + hidden)
    nvfp4_235b = layers * ((attention + experts) * 0.5625 + 2 * (router + norms)) + 2 * (2 * embed + hidden)
    width, deep = 8192, 80
    matrices = width * (64 + 16) * 128 + 64 * 128 * width + 3 * width * 28672
    fp8_70b = deep * (matrices + 2 * 2 * width) + 2 * (2 * 128256 * width + width)
    wanted = {
        "Qwen--Qwen3-235B-A22B-FP8": ("fp8_block", "", moe_235b),
        "nvidia--Qwen3-235B-A22B-NVFP4": ("nvfp4", "fp8", nvfp4_235b),
        "nvidia--Llama-3.1-70B-Instruct-FP8": ("fp8_static", "fp8", fp8_70b),
        "Qwen--Qwen3-32B-FP8": ("fp8_block", "", None),
        "Qwen--Qwen3-32B-FP8-Static-PerTensor": ("fp8_static", "fp8", None),
        "Qwen--Qwen3-30B-A3B-FP8": ("fp8_block", "", None),
        "deepseek-ai--DeepSeek-V3": ("fp8_block", "", None),
        "deepseek-ai--DeepSeek-R1": ("fp8_block", "", None),
        "nvidia--DeepSeek-V3.1-NVFP4": ("nvfp4", "fp8", None),
    }
    paths = [path for path in sorted((data / "hf_configs").glob("*_config.json")) if "hf_quant" not in path.name]
    assert len(paths) == 68
    forecast = 0
    for path in paths:
        name = path.name.removesuffix("_config.json")
        answer, line = attempt(path)
        if answer is None:
            assert "unknown model_type" in line and "\n" not in line, name
            continue
        forecast += 1
        work = answer.workload
        beside = path.with_name(f"{name}_hf_quant_config.json")
        is_quantized = "quantization_config" in path.read_text(encoding="utf-8") or beside.is_file()
        assert work.dtype_source == ("checkpoint" if is_quantized else "default"), name
        assert is_quantized or (work.dtype, work.serving.kv_dtype) == ("bf16", "bf16"), name
        if name in wanted:
            said, kv, size = wanted.pop(name)
            assert (work.dtype, work.serving.kv_dtype) == (said, kv or "bf16"), name
            assert size is None or answer.memory.weights == pytest.approx(size, rel=1e-9), name
    assert not wanted and forecast >= 21


def test_deepseek_v3_has_the_bytes_of_its_published_checkpoint() -> None:
    """The index of deepseek-ai/DeepSeek-V3 says total_size 688,586,727,753: that and a 62nd layer for the next token,
    with an embedding and a head of its own and eh_proj, which are left out here."""
    h, experts = 7168, 256
    attention = h * 1536 + 1536 * 128 * 192 + h * 576 + 512 * 128 * 256 + 128 * 128 * h
    moe = (experts + 1) * 3 * h * 2048
    spare = (attention + moe) * (1 + 4 / 128**2) + 2 * (experts * h + 2 * 129280 * h + 2 * h * h)
    mine = predict("deepseek-v3", "h200", **SERVED).memory.weights
    assert mine + spare == pytest.approx(688_586_727_753, rel=2e-4)
    assert mine / GIB == pytest.approx(626.9, abs=0.1)  # in bf16 it would be 1,250


def test_schemes_of_every_kind_of_file() -> None:
    def group(weights: dict[str, Any], inputs: Any = None, **more: Any) -> dict[str, Any]:
        return {"quant_method": "compressed-tensors", "ignore": ["lm_head"], **more,
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                              "input_activations": inputs}}}  # fmt: skip

    w8, w4 = {"num_bits": 8, "type": "float"}, {"num_bits": 4, "type": "float", "group_size": 16}
    for said, word in (
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "fp8_block"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8_static"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4_wo"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "int4_wo_row"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "int8_wo_g32"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128, "sym": False}, "int3_wo"),
        ({"quant_method": "gptq", "bits": 2, "group_size": 64, "sym": False}, "int2_wo_g64_zp"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}, "int4_wo_g32"),
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}, "int4_wo_g32_zp"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4_plain"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "nf4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        (
            {"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 64}},
            "int4_wo_g32",
        ),
        (
            {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}},
            "int8_wo",
        ),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "Float8DynamicActivationFloat8WeightConfig", "_data": {}}},
            },
            "fp8",
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {
                    "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32},
                    "input_tensors": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "is_dynamic": True},
                },
            },
            "mxfp4_mxfp4",
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {
                    "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
                    "input_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False},
                },
            },
            "fp8_static",
        ),
        (
            {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
            "int4_wo_g32",
        ),
        ({"quant_method": "quanto", "weights": "int8", "activations": None}, "int8_wo"),
        ({"quant_method": "eetq"}, "int8_wo"),
        ({"quant_method": "aqlm", "nbits_per_codebook": 16, "num_codebooks": 1, "in_group_size": 8}, "int2_wo_row"),
        ({"quant_algo": "W4A8_AWQ"}, "int4_fp8"),
        ({"quant_algo": "W4A8_MXFP4_FP8"}, "mxfp4_fp8"),
        (group({"num_bits": 4, "type": "int", "group_size": 128}, {"num_bits": 8, "type": "float"}), "int4_fp8"),
        (group({"num_bits": 3, "type": "int", "group_size": 64, "symmetric": False}), "int3_wo_g64_zp"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "int4_wo_g64"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8_static"),
        ({"quant_algo": "W4A16_AWQ"}, "int4_wo"),
        (group(w8, {"num_bits": 8, "type": "float"}), "fp8"),
        (group(w8, {"num_bits": 8, "type": "float", "dynamic": False}), "fp8_static"),
        (group({**w8, "strategy": "block", "block_structure": [128, 128]}, w8), "fp8_block"),
        (group(w8), "fp8_wo"),
        (group(w4, w4), "nvfp4"),
        (group(w4), "nvfp4_wo"),
        (group({"num_bits": 4, "type": "int", "group_size": 32}), "int4_wo_g32"),
        (group({"num_bits": 4, "type": "float", "group_size": 32}), "mxfp4"),
        (group({"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "int"}), "int8"),
    ):
        found = config_from_dict(raw("llama-3.1-8b", quantization_config=said)).checkpoint
        assert found is not None and (found.words, found.own, found.layers) == ((word,), (), ()), said
    int4 = quantized("llama-3.1-8b", quant_method="gptq", bits=4, group_size=32, lm_head=True)
    bf16 = 2 * (128256 * 4096 + (32 * 2 + 1) * 4096)  # embedding and norms
    linear = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336) + 128256 * 4096  # the head, too
    assert predict(int4, "h100", **SERVED).memory.weights == pytest.approx(bf16 + linear * (4.5 / 8), rel=1e-12)


def test_blocks_of_another_size_take_the_nearest_kernels_and_the_answer_says_so() -> None:
    said = {"quant_method": "fp8", "weight_block_size": [64, 64]}
    usual, other = (quantized("llama-3.1-8b", **{**said, "weight_block_size": size}) for size in ([128, 128], [64, 64]))
    answers = [predict(model, "h100", **SERVED) for model in (usual, other)]
    assert answers[0].latency_s == answers[1].latency_s
    lines = [[note for note in answer.notes if "blocks" in note] for answer in answers]
    assert lines == [[], ["The checkpoint's fp8 in blocks of 64 x 64 takes as long as blocks of 128 x 128."]]
    for size in ([1, 32], [0, 128], "wide", [128]):
        with pytest.raises(UnsupportedError, match=r"fp8 in blocks of .*nearest: fp8 in blocks"):
            predict(quantized("llama-3.1-8b", quant_method="fp8", weight_block_size=size), "h100", **SERVED)


def test_every_scheme_of_a_checkpoint_has_a_forecast_that_its_bytes_bound() -> None:
    """Fewer bits are fewer bytes and less time than the next format; 4-bit floats in either block take like times."""
    seconds = {}
    for bits in (8, 4, 3, 2):
        answer = predict(quantized("llama-3.1-8b", quant_method="gptq", bits=bits, group_size=128), "h100", **SERVED)
        seconds[bits] = answer.latency_s
        assert any(f"int{bits}_wo" in note and "was not measured" in note for note in answer.notes) == (bits != 4)
    assert seconds[2] < seconds[3] < seconds[4] < seconds[8]
    tensor = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "is_dynamic": True}
    quark = {"quant_method": "quark", "global_quant_config": {"weight": tensor, "input_tensors": tensor},
             "kv_cache_quant_config": {"*k_proj": {"output_tensors": {"dtype": "fp8_e4m3"}}}}  # fmt: skip
    mx = predict(quantized("llama-3.1-8b", **quark), "b200", **SERVED)
    nv = predict(quantized("llama-3.1-8b", quant_algo="NVFP4"), "b200", **SERVED)
    assert mx.workload.dtype == "mxfp4_mxfp4" and mx.workload.serving.kv_dtype == "fp8"
    linear = [sum(row.latency_s for row in answer.breakdown if row.op == "linear") for answer in (mx, nv)]
    assert linear[0] == pytest.approx(linear[1], rel=0.1)
    assert predict(quantized("llama-3.1-8b", **quark), "h100", **SERVED).workload.dtype == "mxfp4"


def test_bitsandbytes_unpacks_its_weights_ahead_of_every_product_of_several_rows() -> None:
    nf4 = quantized("llama-3.1-8b", quant_method="bitsandbytes", load_in_4bit=True)
    many, single = (graph_of(nf4, "h100", rows=rows) for rows in (16, 1))
    kernels = [node for node, _ in many.nodes() if node.name.endswith("dequantize")]
    assert {node.name.removesuffix(" dequantize") for node in kernels} >= {"attention qkv", "mlp down"}
    assert not [node for node, _ in single.nodes() if node.name.endswith("dequantize")]
    assert formats(many)["mlp down"] == ("bf16", "") and formats(single)["mlp down"] == ("bf16", "nf4_plain")
    answer = predict(nf4, "h100", **SERVED)
    linear = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    assert answer.memory.weights == pytest.approx(linear * 4.5 / 8 + 2 * (2 * 128256 * 4096 + 65 * 4096), rel=1e-9)


_DOWN, _ATTENTION = "model.layers.{}.mlp.down_proj", "model.layers.{}.self_attn"


@pytest.mark.parametrize(
    "said",
    [
        {"quant_method": "gptq", "bits": 4, "group_size": 128,
         "dynamic": {"+:.*mlp[.]down_proj": {"bits": 8, "group_size": -1}, "-:.*self_attn": {}}},
        {"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": {
            **{_DOWN.format(i): {"bits": 8, "group_size": -1} for i in range(32)},
            **{_ATTENTION.format(i): {"bits": 16} for i in range(32)}}},
        {"quant_method": "quark", "exclude": ["lm_head", "*self_attn*"],
         "global_quant_config": {"weight": {"dtype": "int4", "qscheme": "per_group", "group_size": 128}},
         "layer_quant_config": {"*mlp.down_proj": {"weight": {"dtype": "int8", "qscheme": "per_channel"}}}},
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "ModuleFqnToConfig", "_data": {
            "module_fqn_to_config": {
                "_default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 256}},
                "re:.*down_proj": {"_type": "Int8WeightOnlyConfig"}, "re:.*self_attn.*": None}}}}},
    ],
    ids=lambda said: said["quant_method"],
)  # fmt: skip
def test_mixtures_of_bits_by_pattern(said: dict[str, Any]) -> None:
    checkpoint = config_from_dict(raw("llama-3.1-8b", quantization_config=said)).checkpoint
    assert checkpoint is not None and checkpoint.scheme == "int4_wo" and not checkpoint.layers
    assert dict(checkpoint.own) == {"attention.qkv": "", "attention.out": "", "mlp.down": "int8_wo"}


@pytest.mark.parametrize(
    "said",
    [
        {"quant_method": "gptq", "bits": 7}, {"quant_method": "gptq", "bits": 4, "group_size": "x"},
        {"quant_method": "gptq", "dynamic": {"+:a": 3}}, {"quant_method": "gptq", "dynamic": [1]},
        {"quant_method": "bitsandbytes"}, {"quant_method": "torchao"}, {"quant_method": "torchao", "quant_type": 3},
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "FqnToConfig"}}}, {"quant_method": "quark"},
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp6"}}}, {"quant_method": "hqq"},
        {"quant_method": "quark", "global_quant_config": {"weight": []}}, {"quant_method": "aqlm", "in_group_size": 0},
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}, "kv_cache_quant_config": [1]},
        {"quant_method": "quanto", "weights": "int1"}, {"quant_method": "hqq", "quant_config": 4}, {"quant_method": []},
        {"quant_method": "auto-round", "bits": None}, {"quant_method": "torchao", "quant_type": "int4"},
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": 3}}},
        {"quant_method": "torchao", "quant_type": "int8_weight_only", "quant_type_kwargs": 3},
        {"quant_method": "gptq", "dynamic": {"+:(": {"bits": 8}}},
    ],
)  # fmt: skip
def test_odd_schemes_are_one_line(said: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        predict(quantized("llama-3.1-8b", **said), "h100", **SERVED)
    assert "\n" not in str(caught.value)


def test_modules_that_are_left_out_are_priced_in_16_bit_in_time_and_memory() -> None:
    """NVIDIA's NVFP4 of DeepSeek-V3.1 keeps the projections into attention, but not the one out of it."""
    kept = [f"model.layers.{i}.self_attn.{name}" for i in range(61)
            for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")]  # fmt: skip
    config = quantized("deepseek-v3", quant_algo="NVFP4", exclude_modules=["lm_head", *kept, "model.layers.61*"])
    found = formats(graph_of(config, "b200"))
    assert found["attention q_a kv_a"] == found["attention q_b"] == ("bf16", "")
    assert found["attention out"] == found["mlp down"] == found["shared experts gate_up"] == ("nvfp4", "")
    assert found["experts"] == ("nvfp4", "") and found["router"] == found["lm head"] == ("bf16", "")
    into = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256
    whole = predict(quantized("deepseek-v3", quant_algo="NVFP4"), "b200", **SERVED)
    part = predict(config, "b200", **SERVED)
    assert part.memory.weights - whole.memory.weights == pytest.approx(61 * into * (2 - 0.5625), rel=1e-9)
    assert part.flops == whole.flops
    # experts and nothing else, as gpt-oss has them; "gate" is the router and no gate_proj
    mx = formats(graph_of(quantized("qwen3-30b-a3b", quant_method="mxfp4"), "h100"))
    assert {name for name, (_, quant) in mx.items() if quant} == {"experts"}
    gate = formats(graph_of(quantized("qwen3-8b", quant_method="fp8", modules_to_not_convert=["gate"]), "h100"))
    assert gate["mlp gate_up"] == ("fp8", "")
    shared = quantized("deepseek-v3", quant_method="fp8", modules_to_not_convert=["re:.*shared_experts.*", "o_proj"])
    found = formats(graph_of(shared, "h100"))
    assert found["shared experts down"] == found["attention out"] == ("bf16", "")
    assert found["experts"] == ("fp8", "") and found["mlp down"] == ("fp8", "")  # one scale a tensor, experts too
    # modules of one product that differ: the engine keeps it whole
    half = formats(graph_of(quantized("qwen3-8b", quant_method="fp8", ignored_layers=["k_proj"]), "h100"))
    assert half["attention qkv"] == ("bf16", "") and half["attention out"] == ("fp8", "")
    glob = formats(graph_of(quantized("qwen3-8b", quant_method="fp8", ignore=["model.layers.*.self_attn"]), "h100"))
    assert glob["attention qkv"] == glob["attention out"] == ("bf16", "") and glob["mlp down"] == ("fp8", "")
    point = Request(config, "b200", mode="prefill", seq_len=64, execution="vllm").run()
    step = make_step(point.work, point.numbers, "prefill", 64, 0, 1)
    prefill = formats(lower(Lowering(point.config, step, formats=point.numbers.formats, engine=point.work.engine)))
    assert (prefill["attention kv_b"], prefill["attention out"]) == (("bf16", ""), ("nvfp4", ""))
    apart = formats(graph_of(quantized("deepseek-v3", quant_method="fp8", ignore=["q_a_proj"]), "h100"))
    assert (apart["attention q_a"], apart["attention kv_a"]) == (("bf16", ""), ("fp8", ""))


def test_layers_that_are_left_out_are_layers_of_their_own() -> None:
    """Meta's fp8 of Llama 3.1 405B keeps attention and the whole first and last layers."""
    names = ["self_attn", "model.layers.0", "model.layers.31"]
    config = quantized("llama-3.1-8b", quant_method="fbgemm_fp8", modules_to_not_convert=names)
    graph = graph_of(config, "h100")
    repeats = {block.name: block.repeat for block in graph.blocks}
    assert repeats == {"embedding": 1, "layer in other formats": 2, "layer": 30, "head": 1, "sampler": 1}
    one = {block.name: formats(Graph((block,))) for block in graph.blocks}
    assert one["layer"]["mlp down"] == ("fp8", "") and one["layer"]["attention qkv"] == ("bf16", "")
    assert one["layer in other formats"]["mlp down"] == ("bf16", "")
    mlp = 3 * 4096 * 14336
    plain = predict("llama-3.1-8b", "h100", **SERVED)
    assert plain.memory.weights - predict(config, "h100", **SERVED).memory.weights == 30 * mlp
    three = ("gate", "up", "down")
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {
        **{f"model.layers.{i}.mlp.{n}_proj": {"quant_algo": "NVFP4"} for i in range(32) for n in three},
        **{f"model.layers.{i}.self_attn.o_proj": {"quant_algo": "FP8"} for i in range(32)},
    }}  # fmt: skip
    answer = predict(quantized("llama-3.1-8b", **mixed), "b200", **SERVED)
    assert answer.workload.dtype == "nvfp4+fp8_static"
    assert plain.memory.weights - answer.memory.weights == 32 * (mlp * (2 - 0.5625) + 4096 * 4096 * (2 - 1))


def test_modelopt_says_it_in_a_file_beside(tmp_path: Path) -> None:
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    for config, beside in (("config.json", "hf_quant_config.json"), ("m_config.json", "m_hf_quant_config.json")):
        (tmp_path / config).write_text(json.dumps(raw("llama-3.1-8b")), encoding="utf-8")
        assert load_config(tmp_path / config).checkpoint is None
        (tmp_path / beside).write_text(json.dumps(said), encoding="utf-8")
        found = load_config(tmp_path / config).checkpoint
        assert found is not None and (found.scheme, found.kv) == ("fp8_static", "fp8"), config
        (tmp_path / beside).write_text('{"quantization": 1}', encoding="utf-8")
        with pytest.raises(RequestError, match="expected an object"):
            load_config(tmp_path / config)
    (tmp_path / "m.json").write_text(json.dumps(raw("llama-3.1-8b")), encoding="utf-8")
    assert load_config(tmp_path / "m.json").checkpoint is None


def test_a_gpu_without_the_units_unpacks_the_weights_or_says_so() -> None:
    fp8 = quantized("llama-3.1-8b", quant_method="fp8", weight_block_size=[128, 128])
    answer = predict(fp8, "a100", **SERVED)
    assert (answer.workload.dtype, answer.workload.dtype_source) == ("fp8_wo", "checkpoint")
    assert "a100-sxm-80gb does not compute in the checkpoint's fp8_block" in answer.notes[0]
    assert formats(graph_of(fp8, "a100"))["mlp down"] == ("bf16", "fp8_wo")
    bf16 = predict("llama-3.1-8b", "a100", **SERVED)
    assert answer.latency_s < bf16.latency_s and answer.memory.weights < 0.6 * bf16.memory.weights
    low, high = answer.interval_s or (0.0, 0.0)
    assert high / low > 1.5 and any("fp8_wo was not measured" in note for note in answer.notes)
    assert predict(quantized("llama-3.1-8b", quant_algo="NVFP4"), "h100", **SERVED).workload.dtype == "nvfp4_wo"
    with pytest.raises(UnsupportedError) as caught:
        predict(fp8, "a100", **{**SERVED, "execution": "tensorrt_llm"})
    line = str(caught.value)
    assert "fp8_block" in line and "has no fp8 peak; it has" in line and "--dtype overrides" in line
    old = SERVED | {"software": "vllm 0.19"}  # the last that runs on a V100
    for gpu, algo, served in (("h100", "MXFP8", SERVED), ("v100", "FP8", old), ("mi300x", "NVFP4", SERVED)):
        with pytest.raises(UnsupportedError, match="--dtype overrides"):  # Marlin: NVIDIA's from Ampere on
            predict(quantized("llama-3.1-8b", quant_algo=algo), gpu, **served)


def test_mxfp4_weights_have_the_activations_that_engine_and_board_choose() -> None:
    """TensorRT-LLM quantizes them on compute capability 10, vLLM where the word asks for it; other layers stay."""
    model = quantized("qwen3-30b-a3b", quant_method="mxfp4")

    def run(gpu: str, execution: str, dtype: str | None = None) -> Prediction:
        return predict(model, gpu, **{**SERVED, "execution": execution}, dtype=dtype)

    narrow = run("b200", "tensorrt_llm")
    assert narrow.workload.dtype == "mxfp4_mxfp8"
    assert "weights in the checkpoint's mxfp4 run with activations in mxfp8" in narrow.notes
    assert narrow.workload.dtype == run("b200", "vllm", "mxfp4_mxfp8").workload.dtype
    assert run("h200", "tensorrt_llm").workload.dtype == run("b200", "vllm").workload.dtype == "mxfp4"
    wide = run("b200", "vllm")
    assert run("b200", "vllm", "mxfp4_mxfp8").memory.weights == narrow.memory.weights == wide.memory.weights
    with pytest.raises(UnsupportedError, match="has no fp4 peak"):
        run("h200", "vllm", "mxfp4_mxfp8")


def test_dtype_overrides_the_checkpoint_with_a_note() -> None:
    fp8 = quantized("llama-3.1-8b", quant_method="fp8")
    answer, plain = predict(fp8, "h100", dtype="bf16", **SERVED), predict("llama-3.1-8b", "h100", **SERVED)
    assert answer.latency_s == plain.latency_s and answer.memory == plain.memory
    assert answer.notes[0] == "--dtype bf16 overrides the checkpoint's fp8 (fp8)"
    assert answer.workload.dtype_source == "asked" and plain.workload.dtype_source == "default"
    train = predict(fp8, "h100", mode="train", batch=1, seq_len=64)
    assert train.workload.dtype == "bf16" and "training runs in bf16" in train.notes[0]
    same = predict(fp8, "h100", dtype="checkpoint", **SERVED)
    assert same.workload.dtype == "fp8" and same.latency_s == predict(fp8, "h100", **SERVED).latency_s
    with pytest.raises(RequestError, match="names no quantization"):
        predict("llama-3.1-8b", "h100", dtype="checkpoint")
    unknown = quantized("llama-3.1-8b", quant_method="vptq")
    with pytest.raises(UnsupportedError) as caught:
        predict(unknown, "h100", **SERVED)
    for word in ("'vptq'", "gptq", "compressed-tensors", "--dtype overrides the checkpoint"):
        assert word in str(caught.value)
    assert predict(unknown, "h100", dtype="int4_wo", **SERVED).workload.dtype == "int4_wo"


def test_mfu_names_the_peak_that_it_is_of() -> None:
    for gpu, words, peak in (("h100", {"quant_method": "gptq", "bits": 4}, "16-bit"), ("h100", V3, "fp8"),
                             ("a100", V3, "16-bit"), ("b200", {"quant_algo": "NVFP4"}, "nvfp4")):  # fmt: skip
        answer = predict(quantized("llama-3.1-8b", **words), gpu, **SERVED)
        assert answer.mfu == answer.flops / answer.latency_s / load_gpu(gpu).peak_flops(peak.replace("16-bit", "bf16"))
        shown = StringIO()
        print_prediction(answer, Console(file=shown, width=200))
        assert f"of the {peak} peak" in shown.getvalue()


def test_the_answer_says_which_formats_it_took_and_from_where() -> None:
    fp8 = quantized("llama-3.1-8b", quant_algo="FP8", kv_cache_quant_algo="FP8")
    answer = predict(fp8, "h100", **SERVED)
    assert "dtype fp8_static (checkpoint), kv-dtype fp8 (checkpoint), execution vllm" in first_line(answer)
    data = to_dict(answer)
    shown = [data[key] for key in ("dtype", "dtype_source", "kv_dtype", "kv_dtype_source")]
    assert shown == ["fp8_static", "checkpoint", "fp8", "checkpoint"]
    assert dict(settings_shown(answer))["dtype"] == "fp8_static (checkpoint)"
    words = {name: value for name, value in settings(answer) if name in ("dtype", "kv_dtype")}
    assert predict(fp8, "h100", **SERVED, **words).latency_s == answer.latency_s  # the page's command
    run = Request(fp8, "h100", **SERVED).run()
    assert run.numbers.formats == checkpoint_precision(fp8.checkpoint, load_gpu("h100")).formats
    plain = predict("gpt2", "h100")
    assert "kv-dtype" not in first_line(plain) and to_dict(plain)["kv_dtype"] is None


# ---------------------------------------------------------------------------------------------------- the KV cache


def cache(answer: Prediction) -> float:
    return answer.memory.kv_cache


def test_an_eight_bit_cache_halves_its_bytes_and_attentions() -> None:
    words = {**SERVED, "batch": 64, "context_len": 4000}
    for model in ("llama-3.1-8b", "deepseek-v2-lite"):
        plain, fp8 = (predict(model, "h100", kv_dtype=kv, **words) for kv in (None, "fp8"))
        assert cache(plain) == 2 * cache(fp8) == kv_cache_bytes(load_config(model), 64, 4001, "bf16"), model
        assert plain.workload.serving.kv_dtype_source == "default" and fp8.workload.serving.kv_dtype_source == "asked"
        assert predict(model, "h100", kv_dtype="auto", **words).latency_s == plain.latency_s
        assert predict(model, "h100", kv_dtype="torch.float8_e5m2", **words).latency_s == fp8.latency_s
        ops = [node.op for node, _ in graph_of(model, "h100", kv_dtype="fp8").nodes() if isinstance(node.op, Attention)]
        assert ops and all(op.kv_dtype == "fp8" and op.dtype == "bf16" for op in ops), model
        assert fp8.memory.weights == plain.memory.weights
    attention = {row.op: row.latency_s for row in predict("llama-3.1-8b", "h100", kv_dtype="fp8", **words).breakdown}
    before = {row.op: row.latency_s for row in predict("llama-3.1-8b", "h100", **words).breakdown}
    assert 0.4 < attention["attention decode"] / before["attention decode"] < 0.8
    assert attention["linear"] == before["linear"]
    for model, gpu in (("llama-3.1-8b", "h100"), ("llama-3.1-8b", "a100-sxm-80gb")):  # integers need no fp8 units
        plain, int8 = (predict(model, gpu, kv_dtype=kv, **words) for kv in (None, "int8"))
        assert cache(plain) == 2 * cache(int8) and int8.latency_s < plain.latency_s
        assert any("int8 cache" in note for note in int8.notes)
    for more, said in (
        ({"execution": "sglang"}, "sglang .* has no attention kernel for it; expected one of vllm, newest release"),
        ({"software": "vllm 0.14"}, "vllm 0.14 has no attention kernel"), ({"attention": "math"}, "needs fused"),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match=f"--kv-dtype int8: .*{said}"):
            predict("llama-3.1-8b", "h100", kv_dtype="int8", **{**words, **more})
    with pytest.raises(UnsupportedError, match="latent attention has no kernel"):
        predict("deepseek-v2-lite", "h100", kv_dtype="int8", **words)
    # an engine whose attention does not write the cache itself appends fp8, too
    appended = [
        n.op for n, _ in graph_of("deepseek-v2-lite", "h100", kv_dtype="fp8").nodes() if n.name == "cache append"
    ]
    assert appended and all(op.bytes_written() == 4 * 576 for op in appended)


def test_a_kv_dtype_without_a_kernel_is_one_line() -> None:
    for gpu, words, said in (
        ("h100", {**SERVED, "kv_dtype": "fp9"}, "expected one of auto, fp8, int8, bf16, fp16, fp32; nearest: fp8"),
        ("h100", {**SERVED, "kv_dtype": "int4"}, "expected one of auto, fp8"),
        ("h100", {**SERVED, "kv_dtype": "fp16"}, "activations are bf16"),
        ("a100", {**SERVED, "kv_dtype": "fp8"}, "a100-sxm-80gb has no fp8 units"),
        ("h100", {**SERVED, "kv_dtype": "fp8", "execution": "eager"}, "--execution eager has no attention kernel"),
        (
            "h100",
            {**SERVED, "kv_dtype": "fp8", "execution": "fastertransformer"},
            "expected one of cuda_graph, sglang, tensorrt_llm, vllm",
        ),
        ("h100", {**SERVED, "kv_dtype": "fp8", "attention": "math"}, "--attention math has no kernel"),
        ("h100", {"kv_dtype": "fp8"}, "only --mode prefill, decode, generate"),
        ("h100", {"kv_dtype": "auto", "mode": "train"}, "only --mode prefill, decode, generate"),
    ):
        with pytest.raises(RequestError, match=re.escape(said)) as caught:
            predict("llama-3.1-8b", gpu, **words)
        assert "\n" not in str(caught.value) and "--kv-dtype" in str(caught.value)
    # what a checkpoint says and the run cannot do is a note
    said_fp8 = quantized("llama-3.1-8b", quant_algo="FP8", kv_cache_quant_algo="FP8")
    answer = predict(said_fp8, "h100", mode="decode", batch=1, context_len=100)
    assert answer.workload.serving.kv_dtype == "bf16" and "--execution eager has no attention kernel" in answer.notes[0]
    older = predict(said_fp8, "h100", **SERVED, software="vllm 0.6")
    assert (
        older.workload.serving.kv_dtype == "bf16" and "vllm 0.6 takes the format of the activations" in older.notes[0]
    )
    assert predict(said_fp8, "h100", **SERVED, software="vllm 0.14").workload.serving.kv_dtype == "fp8"
    nvfp4 = quantized("llama-3.1-8b", quant_algo="NVFP4", kv_cache_quant_algo="NVFP4")
    assert "KV cache in nvfp4, the run in bf16" in predict(nvfp4, "b200", **SERVED).notes[0]
    tensors = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"},
               "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}}  # fmt: skip
    assert predict(quantized("llama-3.1-8b", **tensors), "h100", **SERVED).workload.serving.kv_dtype == "fp8"


def test_a_suites_row_may_name_its_formats(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    from predictor.fit.suite import predict_case

    said = raw("llama-3.1-8b", quantization_config={"quant_method": "fp8"})
    (tmp_path / "m.json").write_text(json.dumps(said), encoding="utf-8")
    row = {"config": "m", "gpu": "h100", "mode": "decode", "global_batch": 64, "context_len": 4000, "measured_ms": 5.0,
           "execution": "vllm"}  # fmt: skip
    for words in ({}, {"dtype": "bf16"}, {"kv_dtype": "fp8"}, {"dtype": "bf16", "kv_dtype": "fp8"}):
        got = predict_case({**row, "dtype": "", **words}, tmp_path, None)
        asked = {key: value for key, value in words.items() if value}
        answer = predict(
            tmp_path / "m.json", "h100", mode="decode", batch=64, context_len=4000, execution="vllm", **asked
        )
        assert got["note"] == "" and got["predicted_ms"] == answer.latency_ms, words
        assert got["predicted_memory_gib"] == answer.memory.total / GIB
    assert "--kv-dtype 'fp9'" in predict_case({**row, "kv_dtype": "fp9"}, tmp_path, None)["note"]


def test_unquantized_weights_are_parameters_times_their_bytes() -> None:
    from predictor.formats.parts import plain
    from predictor.models.built import parameters

    for name in MODELS:
        config = load_config(name)
        assert weight_bytes(config, plain("bf16")) == 2 * parameters(config), name
        assert weight_bytes(config, plain("fp32")) == 4 * parameters(config), name


# ---------------------------------------------------------------------------------------------- fp8 under an engine


def test_fp8_is_what_the_engine_runs() -> None:
    """TensorRT-LLM runs NVIDIA's static checkpoints with their fp8 cache; vLLM and SGLang scale every token."""

    def asked(execution: str, model: str = "llama-3.1-70b", gpu: str = "h100", **more: Any) -> Prediction:
        return predict(model, gpu, **{**SERVED, "tp": 4, "dtype": "fp8", "execution": execution, **more})

    published = asked("tensorrt_llm")
    same = asked("tensorrt_llm", dtype="fp8_static", kv_dtype="fp8")
    assert published.latency_s == same.latency_s
    assert "dtype fp8_static (fp8 in tensorrt_llm: one scale a tensor, of the checkpoint)" in first_line(published)
    assert "kv-dtype fp8 (engine)" in first_line(published) and "kv-dtype bf16" in first_line(asked("vllm"))
    assert "kv-dtype bf16," in first_line(asked("tensorrt_llm", kv_dtype="auto"))
    for engine, said in (
        ("vllm", "a tensor, activations one a token"),
        ("sglang", "a column, activations one a token"),
    ):
        assert f"dtype fp8 (fp8 in {engine}: weights one scale {said})" in first_line(asked(engine))
    data = to_dict(published)
    assert (data["dtype"], data["dtype_source"], data["kv_dtype_source"]) == ("fp8_static", "asked", "engine")
    assert "tensorrt_llm" in data["dtype_recipe"] and to_dict(asked("vllm", dtype="bf16"))["dtype_recipe"] is None
    assert ("dtype", "fp8") in settings(published) and first_line(asked("eager")).count("(fp8 in") == 0


def test_fp8_of_a_board_without_it_is_unpacked_where_the_engine_does() -> None:
    words = {**SERVED, "tp": 4, "dtype": "fp8"}
    marlin = predict("llama-3.1-70b", "a100-sxm-80gb", **words)
    assert marlin.latency_s == predict("llama-3.1-70b", "a100-sxm-80gb", **{**words, "dtype": "fp8_wo"}).latency_s
    assert "(fp8 in vllm on a100-sxm-80gb: weights alone, unpacked to 16 bit)" in first_line(marlin)
    with pytest.raises(UnsupportedError, match="no fp8 peak"):
        predict("llama-3.1-70b", "a100-sxm-80gb", **{**words, "execution": "tensorrt_llm"})


def test_fp8_of_a_checkpoint_in_fp8_is_its_own() -> None:
    """DeepSeek's weights come in blocks: no engine makes others of them. Qwen has Qwen3 in blocks beside 16 bit; NVIDIA
    has it with static scales and an fp8 cache, for TensorRT-LLM, but has no GLM-5 in fp8."""
    asked = predict("deepseek-v3", "h200", **{**SERVED, "tp": 8, "dtype": "fp8", "execution": "sglang"})
    assert "dtype fp8_block (checkpoint)" in first_line(asked)
    experts = Request("mixtral-8x7b", "h100", **{**SERVED, "tp": 2, "dtype": "fp8"}).run().numbers.formats.of("experts")
    assert experts == ("fp8", ""), "16-bit experts get one scale a tensor"
    for model, engine, word, kv, said in (
        ("Qwen/Qwen3-32B", "sglang", "fp8_block", "bf16", "the publisher's checkpoint"),
        ("Qwen/Qwen3-32B", "tensorrt_llm", "fp8_static", "fp8", "one scale a tensor, of the checkpoint"),
        ("zai-org/GLM-5", "tensorrt_llm", "fp8_block", "bf16", "the publisher's checkpoint"),
    ):
        words = {**SERVED, "tp": 2 if "Qwen" in model else 8, "execution": engine}
        published = predict(model, "h200", **words, dtype="fp8")
        assert f"dtype {word} (fp8 in {engine}: {said}), kv-dtype {kv}" in first_line(published)
        assert published.latency_s == predict(model, "h200", **words, dtype=word, kv_dtype=kv).latency_s
