"""Model types that no reader knows are traced from their classes; built and traced graphs agree where both exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor.errors import RequestError
from predictor.fit.suite import case_forecast
from predictor.models.built import Step, config_from_dict
from predictor.models.traced.huggingface import traced_config
from predictor.ops import Attention, CrossEntropy, Gemm
from tests.model_types import small

pytest.importorskip("torch", reason="the extra torch is not installed")
pytest.importorskip("transformers", reason="the extra torch is not installed")

SMALL = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": 8000, "num_hidden_layers": 4, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SMALL}
#: A type that is in no list of readers, and keeps being none: its layers share their weights.
UNKNOWN = {
    "model_type": "xglm", "architectures": ["XGLMForCausalLM"], "d_model": 64, "ffn_dim": 128, "num_layers": 3,
    "attention_heads": 4, "vocab_size": 300, "max_position_embeddings": 256,
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def written(tmp_path: Path, data: dict[str, Any]) -> Path:
    path = tmp_path / "model" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_built_and_traced_graphs_agree(tmp_path: Path) -> None:
    """FLOPs within 0.5 %, bytes within 5 %, parameters exactly, GPU time within 3 %, in every mode."""
    path = written(tmp_path, LLAMA)
    for mode, words in (
        ("forward", {"seq_len": 256}),
        ("train", {"seq_len": 256}),
        ("prefill", {"seq_len": 256}),
        ("decode", {"context_len": 256}),
    ):
        built, traced = (
            predictor.predict(name, "h100", mode=mode, batch=4, **words)  # type: ignore[arg-type]
            for name in (path, f"traced:{path}")
        )
        assert traced.parameters == built.parameters, mode
        assert traced.flops == pytest.approx(built.flops, rel=0.005), mode
        assert traced.memory.weights == built.memory.weights and traced.memory.kv_cache == built.memory.kv_cache, mode
        assert traced.memory.activations == pytest.approx(built.memory.activations, rel=0.05), mode
        assert traced.gpu_busy_s == pytest.approx(built.gpu_busy_s, rel=0.03), mode
        assert traced.cpu_busy_s == pytest.approx(built.cpu_busy_s, rel=0.1), mode
        assert not traced.unknown, mode


def test_a_suite_names_a_TracedModel(tmp_path: Path) -> None:
    """A config "traced:NAME" of a row is the same file, traced: another graph, and about the same time."""
    written(tmp_path, LLAMA).rename(tmp_path / "small.json")
    row = {"config": "small", "mode": "forward", "gpu": "a100-pcie-40gb", "dtype": "fp16", "seq_len": 256}
    row |= {"global_batch": 2, "measured_ms": 1.0}
    built, traced = (case_forecast(row | {"config": f"{p}small"}, tmp_path, None) for p in ("", "traced:"))
    assert traced.run.config.model_type == "llama" and traced.prediction.latency_s != built.prediction.latency_s
    assert traced.prediction.latency_s == pytest.approx(built.prediction.latency_s, rel=0.1)
    with pytest.raises(RequestError, match="no config"):
        case_forecast(row | {"config": "traced:smaller"}, tmp_path, None)


def test_a_type_that_no_reader_knows_is_traced(tmp_path: Path) -> None:
    import transformers

    with pytest.raises(RequestError, match="unknown model_type 'xglm'"):
        config_from_dict(UNKNOWN)
    answer = predictor.predict(written(tmp_path, UNKNOWN), "h100", mode="generate", batch=2, seq_len=32, output_len=4)
    config = transformers.XGLMConfig(**{k: v for k, v in UNKNOWN.items() if k not in ("architectures", "model_type")})
    real = sum(p.numel() for p in transformers.XGLMForCausalLM(config).parameters())
    assert answer.parameters == real
    assert answer.memory.kv_cache == 2 * (32 + 3) * 3 * 2 * 64 * 2  # sequences, tokens, layers, k and v, width, bytes
    assert answer.ttft_s is not None and answer.tpot_s is not None


@pytest.mark.parametrize("mode", ["forward", "train", "prefill", "decode"])
@pytest.mark.parametrize("model_type", ["qwen3_vl_text", "qwen3_vl_moe_text"])
def test_the_text_of_a_model_of_images_has_its_head(model_type: str, mode: str, tmp_path: Path) -> None:
    """transformers has a class of these layers alone: the head is that of the whole model, which is left out."""
    data = small(model_type)
    source = traced_config(data, "text", "config.json").source
    lengths = {"context_len": 32} if mode == "decode" else {"seq_len": 32}
    cached = mode in ("prefill", "decode")
    step = Step(mode, 2, **lengths, act_dtype="bf16", attention="flash", training=mode == "train",
                logits="last" if cached else "all")  # fmt: skip
    recorded = source.record(step, False if mode == "train" else None)
    ops = [node.op for node, _ in recorded.graph.nodes() if node.phase == "forward"]
    heads = [op for op in ops if isinstance(op, Gemm) and op.n == data["vocab_size"]]
    assert [op.m for op in heads] == [2 if cached else 64]
    assert sum(isinstance(op, CrossEntropy) for op in ops) == (mode == "train")
    assert recorded.parameters == config_from_dict(data, "text").parameters()
    assert (recorded.cache_per_token > 0.0) == cached
    joined = sum(times for node, times in recorded.graph.nodes() if re.search(r"self_attn cat$", node.name))
    assert joined == data["num_hidden_layers"] * (4 if cached else 2)  # rotary q and k; keys and values of a cache


def test_texts_beside_images_are_both_read() -> None:
    tower = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    data = {
        "model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": 32,
        "text_config": {**tower, "vocab_size": 1000, "max_position_embeddings": 16},
        "vision_config": {**tower, "image_size": 32, "patch_size": 8},
    }  # fmt: skip
    found = traced_config(data, "small", "config.json").source
    nodes = found.record(Step("forward", 3, 16, act_dtype="bf16", attention="flash"), None).graph.nodes()
    cores = [n.op for n, times in nodes for _ in range(int(times)) if isinstance(n.op, Attention)]
    assert sorted((op.batch, op.q_len) for op in cores) == [(3, 16)] * 2 + [(3, 17)] * 2  # 16 patches and a class token


def test_a_decode_step_reads_the_cache_that_a_prefill_left() -> None:
    source = traced_config(LLAMA, "small", "config.json").source
    found = source.record(Step("decode", 2, 1, 100, "bf16", attention="flash", logits="last"), None)
    (attention,) = {node.op for node, _ in found.graph.nodes() if isinstance(node.op, Attention)}
    assert (attention.q_len, attention.kv_len, attention.kv_heads) == (1, 101, 2)
    assert source.cache_bytes(2, 100, "bf16") == 2 * 100 * 4 * 2 * 2 * 64 * 2


def test_what_a_token_keeps_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prefills say it, whatever the step; those of other ranks are others."""
    from predictor.models.traced import huggingface_passes

    source, looked = traced_config(LLAMA, "small", "config.json").source, []
    sizes = huggingface_passes._cache_sizes
    monkeypatch.setattr(huggingface_passes, "_cache_sizes", lambda *words: looked.append(words) or sizes(*words))
    for mode, context, ranks in (("prefill", 0, 1), ("decode", 60, 1), ("decode", 100, 1), ("decode", 100, 2)):
        tokens = 1 if mode == "decode" else 16
        step = Step(mode, 2, tokens, context, "bf16", attention="flash", logits="last")
        recorded = source.record(step, None, ranks)
        assert (recorded.cache_fixed, recorded.cache_per_token) == (0.0, 4 * 2 * (2 // ranks) * 64 * 2)
    assert len(looked) == 2


def test_a_pass_that_is_not_recorded_takes_shapes_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from predictor.models.traced import recorder

    known: dict[Any, Any] = {}
    monkeypatch.setattr(recorder, "_KNOWN", known)
    x, y = torch.empty(3, 4, device="meta"), torch.empty(4, 5, device="meta")
    watching = recorder.Recorder(torch.nn.Linear(2, 2, device="meta"))
    with watching, watching.quiet():
        first, second = x @ y, x @ y
    assert len(known) == 1
    assert (first.shape, first.stride()) == (second.shape, second.stride()) == ((3, 5), (5, 1))
    assert watching.nodes == []


def test_a_second_forecast_needs_no_torch(tmp_path: Path, cache: Path) -> None:
    """What was recorded is kept by a hash of the config: another process reads it, without torch or transformers."""
    path = written(tmp_path, UNKNOWN)
    first = predictor.predict(path, "h100", seq_len=32)
    assert len(list(cache.glob("xglm-*.json"))) == 1
    code = (
        "import sys, predictor\n"
        f"print(predictor.predict({str(path)!r}, 'h100', seq_len=32).latency_s)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "TILECAST_CACHE": str(cache)}
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == first.latency_s


def test_a_snapshot_is_a_folder(tmp_path: Path) -> None:
    """A folder with a config.json, and the layout of huggingface_hub's cache."""
    hub = tmp_path / "models--someone--small" / "snapshots" / "abc"
    hub.mkdir(parents=True)
    (hub / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    plain = predictor.predict(hub / "config.json", "h100", seq_len=64)
    for name in (f"hf:{hub}", f"hf:{hub.parents[1]}"):
        assert predictor.predict(name, "h100", seq_len=64).latency_s == plain.latency_s
    with pytest.raises(RequestError, match=r"no config\.json in this folder"):
        predictor.predict(f"hf:{tmp_path}", "h100")


def test_what_transformers_has_not_is_one_line(tmp_path: Path) -> None:
    unknown = {"model_type": "never_heard_of", "architectures": ["NeverForCausalLM"]}
    for change, said in ((unknown, "is no class of transformers"), ({"num_layers": "x"}, "")):
        with pytest.raises(RequestError) as error:
            predictor.predict(written(tmp_path, {**UNKNOWN, **change}), "h100", seq_len=32)
        assert said in str(error.value) and "\n" not in str(error.value)


def test_a_known_type_without_torch_is_one_line_with_the_command(tmp_path: Path, cache: Path) -> None:
    """A reader knows the type, so that torch is missed only where the class is recorded."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from predictor.cli.main import main\n"
        f"sys.exit(main(['predict', '--model', 'traced:{written(tmp_path, LLAMA)}', '--gpu', 'h100']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "pip install 'tilecast[torch]'" in done.stderr


VIT = {
    "model_type": "vit", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
WHISPER = {
    "model_type": "whisper", "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 300,
    "max_source_positions": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
SPEECH = {
    "model_type": "wav2vec2", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 128,
}  # fmt: skip


@pytest.mark.parametrize("data", [VIT, WHISPER, SPEECH, UNKNOWN], ids=lambda data: str(data["model_type"]))
def test_a_length_that_changes_no_input_is_refused(tmp_path: Path, data: dict[str, Any]) -> None:
    """Inputs of two lengths tell whether --seq-len changes anything."""
    from predictor.models.traced.huggingface import made
    from predictor.models.traced.huggingface_passes import inputs_of

    module = made(data, "eager", "config.json")
    short, long = ({name: tuple(x.shape) for name, x in inputs_of(module, 1, n, "bf16").items()} for n in (8, 16))
    model = traced_config(data, "small", "config.json")
    assert model.reads_length == (short != long)
    if short == long:
        with pytest.raises(RequestError, match=r"--seq-len 64: .* leave it out"):
            predictor.predict(written(tmp_path, data), "h100", seq_len=64)


def test_a_class_says_by_itself_why_it_cannot_run() -> None:
    """Sparse attention reads a mask, which the fused attention of a trace has not: the error is that of the class with
    attention of its own (here a router that picks two experts of groups that have one)."""
    from tests.model_types import small

    step = Step("forward", 1, 16, act_dtype="bf16", attention="flash")
    data = {**small("deepseek_v32"), "num_hidden_layers": 3}
    assert traced_config(data, "small", "config.json").source.record(step, None).graph.blocks
    with pytest.raises(RequestError, match=r"in module 'model\.layers\.2\.mlp\.gate': RuntimeError: k not in range"):
        traced_config(data | {"n_group": 8}, "small", "config.json").source.record(step, None)


def test_a_saved_graph_says_the_mode_to_add(tmp_path: Path) -> None:
    from predictor.graph.saved_graph import save_recording

    step = Step("train", 1, 16, act_dtype="bf16", attention="flash")
    recording = traced_config(LLAMA, "small", "config.json").source.record(step, False)
    save_recording(recording, path := tmp_path / "graph.json")
    with pytest.raises(RequestError, match=r"--mode forward: small was recorded in mode train alone; add --mode train"):
        predictor.predict(path, "h100")
    with pytest.raises(RequestError, match=r"--batch 4: the inputs of small have 1; expected 1, as it was recorded"):
        predictor.predict(path, "h100", mode="train", batch=4)
    assert predictor.predict(path, "h100", mode="train").latency_s > 0.0
