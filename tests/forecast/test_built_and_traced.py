"""Built and traced forecasts of one model agree: by engine, mode, number format and degree of tensor parallelism."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor.errors import RequestError, TilecastError
from predictor.files.records import replace
from predictor.forecast.forecast import Forecast, forecast
from predictor.models.built.load import CONFIGS
from predictor.models.traced.model import TracedModel
from predictor.request.request import Request
from tests.model_types import TYPES, small

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
pytest.importorskip("transformers", reason="the extra torch is not installed")

#: Wide enough that kernels, not launches, are the time; three layers, so that one stands alone and two repeat.
SIZES: dict[str, Any] = {
    "hidden_size": 2048, "num_hidden_layers": 3, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 8192, "vocab_size": 32000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    "pad_token_id": None, "hidden_act": "silu",
}  # fmt: skip
MIXTURE = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 1024}
#: Of the catalogue, a type each that `TYPES` has not.
NAMES = (
    "gpt2", "opt-125m", "bloom-560m", "mpt-7b", "t5-small", "phi-3-mini", "deepseek-v2-lite", "gemma-2-2b",
    "mixtral-8x7b", "qwen3-0.6b", "switch-base-8",
)  # fmt: skip
#: Words of a prompt and of a step.
STEPS = {"prefill": {"seq_len": 512}, "decode": {"context_len": 1024}, "forward": {"seq_len": 512}}
FORMATS = ("bf16", "fp8", "int8", "int4_wo", "nvfp4_wo", "fp8_block")
ENGINES = ("compile", "cuda_graph", "vllm", "sglang", "tensorrt_llm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where configs are written; recordings are kept beside them, for this module's tests alone."""
    made = tmp_path_factory.mktemp("configs")
    patch = pytest.MonkeyPatch()
    patch.setenv("TILECAST_CACHE", str(made / "cache"))
    yield made
    patch.undo()


def config(folder: Path, model_type: str, **more: Any) -> str:
    """The file of a config of these sizes."""
    path = folder / f"{model_type}-{abs(hash(json.dumps(more, sort_keys=True, default=str)))}" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(SIZES | {"model_type": model_type} | more), encoding="utf-8")
    return str(path)


def asked(model: Any, mode: str, **words: Any) -> Forecast:
    return forecast(Request(model, "h100", mode=mode, batch=16, **STEPS[mode], **words).run())


def check_alike(built: Forecast, traced: Forecast, what: object) -> None:
    """Time within 3 %, memory of weights and cache within 1 %."""
    a, b = built.prediction, traced.prediction
    assert b.latency_s == pytest.approx(a.latency_s, rel=0.03), what
    assert b.memory.weights == pytest.approx(a.memory.weights, rel=0.01), what
    assert b.memory.kv_cache == pytest.approx(a.memory.kv_cache, rel=0.01), what


def test_every_type_in_every_engine_format_and_degree(folder: Path) -> None:
    """A type that a reader knows runs as it is built where its class does not run: engines and degrees in turn."""
    paths = [str(CONFIGS / f"{name}.json") for name in NAMES]
    for name in TYPES:
        path = folder / name / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps(small(name)), encoding="utf-8")
        paths.append(str(path))
    every = list(product(ENGINES, (1, 4, 8), FORMATS, ("prefill", "decode", "generate", "forward")))
    words = cycle(every[i * 11 % len(every)] for i in range(len(every)))  # 11 shares no factor with 360
    compared = 0
    for path in paths:
        for _ in range(4):
            engine, tp, dtype, mode = next(words)
            asked_for = {"mode": mode, "execution": engine, "tp": tp, "dtype": dtype, "batch": 2, "attention": "math"}
            asked_for |= {"context_len": 64} if mode == "decode" else {"seq_len": 64}
            asked_for |= {"output_len": 4} if mode == "generate" else {}
            answers = [_answer(model, asked_for) for model in (path, f"traced:{path}")]
            assert answers[0] == answers[1], (path, asked_for)
            compared += not isinstance(answers[0], str)
    assert compared > 100


#: A type and a run of it that the built model answers: an engine, a degree, what the config or the mode says.
ANSWERED_AS_BUILT = (
    ("granite", {"mode": "decode", "execution": "vllm"}), ("qwen2_moe", {"mode": "train", "execution": "megatron"}),
    ("gpt_oss", {"mode": "prefill", "execution": "eager", "tp": 2}), ("qwen3_next", {"mode": "forward"}),
    ("deepseek_v32", {"mode": "prefill", "dtype": "fp8"}),
)  # fmt: skip


@pytest.mark.parametrize(("model_type", "words"), ANSWERED_AS_BUILT, ids=[name for name, _ in ANSWERED_AS_BUILT])
def test_a_traced_name_that_the_built_model_answers_is_the_same_run(
    model_type: str, words: dict[str, Any], folder: Path
) -> None:
    """Equal but for the note that says so: what follows from a run is equal, too. A class's own run is another."""
    path = folder / f"equal-{model_type}" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(small(model_type)), encoding="utf-8")

    built, traced = (Request(name, "h100", batch=2, **words).run() for name in (str(path), f"traced:{path}"))
    (*notes, said) = traced.numbers.notes
    assert "is forecast from its config, not from its class" in said and built != traced
    traced = replace(traced, numbers=replace(traced.numbers, notes=tuple(notes)))
    assert built == traced
    assert forecast(built).summary() == forecast(traced).summary()


def test_a_run_of_the_class_is_not_that_of_the_built_model(folder: Path) -> None:
    path = config(folder, "llama")
    built, traced = (Request(name, "h100", mode="forward").run() for name in (path, f"traced:{path}"))
    assert built != traced and isinstance(traced.config, TracedModel)
    assert not any("not from its class" in note for note in traced.numbers.notes)


def _answer(model: str, words: dict[str, Any]) -> tuple[float, float] | str:
    """Time and memory, or the line of a refusal."""
    try:
        found = predictor.predict(model, "h100", **words)
    except TilecastError as error:
        return str(error)
    return found.latency_s, found.memory.total


#: Types whose classes differ in what they call and in the kernels that they launch, and what their configs have beside.
CALLS = {
    "bloom": {"n_layer": 2, "n_head": 8}, "mpt": {"d_model": 256, "n_heads": 8, "n_layers": 2, "max_seq_len": 512},
    "phi3": {}, "glm4": {"head_dim": 32}, "cohere": {},
}  # fmt: skip


def test_an_eager_class_calls_the_host_as_often_as_the_built_model(folder: Path) -> None:
    """Small layers, whose calls are the time; of each type one of the modes that need no other pass, in turn."""
    modes = cycle(("prefill", "forward", "decode"))
    for model_type, more in CALLS.items():
        of = small(model_type) if model_type in TYPES else small("granite") | {"model_type": model_type}
        path = folder / f"calls-{model_type}" / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps(of | {"num_hidden_layers": 2} | more), encoding="utf-8")
        mode = next(modes)
        asked_for = {"mode": mode, "batch": 2, "attention": "math" if model_type in ("bloom", "mpt") else None}
        asked_for |= {"context_len": 64} if mode == "decode" else {"seq_len": 64}
        built, traced = (forecast(Request(model, "h100", **asked_for).run()) for model in (str(path), f"traced:{path}"))
        calls = [sum(n.host_calls * times for n, times in f.plan.stages[0].graph.nodes()) for f in (built, traced)]
        assert calls[1] == pytest.approx(calls[0], rel=0.03), (model_type, mode)
        check_alike(built, traced, (model_type, mode))


def test_linear_attention_runs_the_kernels_of_its_libraries(folder: Path) -> None:
    """A class without them writes the recurrence out; so does one of sparse attention with all scores."""
    for model_type, said in (("qwen3_next", "kernels of its libraries"), ("glm_moe_dsa", "keys that it picks")):
        path = config(folder, model_type, **{k: v for k, v in small(model_type).items() if k != "model_type"})
        built, traced = (predictor.predict(model, "h100", seq_len=64) for model in (path, f"traced:{path}"))
        assert traced.latency_s == built.latency_s and any(said in note for note in traced.notes)


def test_a_class_in_eager_pytorch_is_the_built_model(folder: Path) -> None:
    for model_type, more in (("llama", {}), ("qwen3_moe", MIXTURE)):
        path = config(folder, model_type, **more)
        for mode, dtype in product(("prefill", "decode"), FORMATS if not more else ("fp8", "int4_wo")):
            built, traced = (asked(model, mode, dtype=dtype) for model in (path, f"traced:{path}"))
            check_alike(built, traced, (model_type, mode, dtype))


def test_a_class_that_no_reader_knows_is_served_as_one_that_is_alike(folder: Path) -> None:
    """Seed-OSS is Qwen 2 by its operators, Helium and Ernie are Llama, rotated in other ways: their traced classes get
    the kernels of the built model."""
    alike = (
        ("qwen2", "seed_oss", {"attention_bias": True, "attention_out_bias": False}), ("llama", "ernie4_5", {}),
    )  # fmt: skip
    for known, other, more in alike:
        for mode, engine, dtype in product(("prefill", "decode"), ("vllm", "tensorrt_llm"), ("bf16", "fp8", "int4_wo")):
            built = asked(config(folder, known), mode, execution=engine, dtype=dtype)
            traced = asked(config(folder, other, **more), mode, execution=engine, dtype=dtype)
            check_alike(built, traced, (other, mode, engine, dtype))
            assert any("which Tilecast does not know" in note for note in traced.prediction.notes)


def test_a_narrow_format_changes_time_and_memory_of_any_module(folder: Path) -> None:
    """Half the bytes in 8 bits, and less than a third in 4 with their scales; all linear layers of a module without
    layers in numbers."""

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4096, 16384, bias=False), torch.nn.Linear(16384, 4096, bias=False)

        def forward(self, x: Any) -> Any:
            return self.second(torch.nn.functional.relu(self.first(x)))

    model = predictor.trace(Net, "float[16,4096]")
    wide, eight, four = (predictor.predict(model, "h100", dtype=dtype, execution="compile")
                         for dtype in ("bf16", "fp8", "int4_wo"))  # fmt: skip
    assert eight.latency_s < 0.75 * wide.latency_s and four.latency_s < 0.75 * wide.latency_s
    assert eight.memory.weights == pytest.approx(wide.memory.weights / 2)
    assert four.memory.weights < wide.memory.weights / 3


def test_a_model_without_a_linear_layer_refuses_a_narrow_format() -> None:
    model = predictor.trace(lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()), "float[1,3,32,32]")
    assert predictor.predict(model, "h100", dtype="fp16").latency_s > 0
    with pytest.raises(RequestError, match="no linear layer that can be in fp8; expected bf16"):
        predictor.predict(model, "h100", dtype="fp8")


def test_what_a_checkpoint_says_of_its_numbers_counts(folder: Path) -> None:
    """Of a class that a reader knows, and of one that none does."""
    for model_type, more in (("llama", {}), ("seed_oss", {"attention_out_bias": False})):
        said = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
        plain, quantized = (
            config(folder, model_type, **more, **extra) for extra in ({}, {"quantization_config": said})
        )
        for engine in ("eager", "vllm"):
            wide, own, named = (
                asked(f"traced:{path}", "decode", execution=engine, dtype=dtype).prediction
                for path, dtype in ((plain, None), (quantized, None), (plain, "fp8_block"))
            )
            assert (own.latency_s, own.memory.weights) == (named.latency_s, named.memory.weights)
            assert own.memory.weights < 0.75 * wide.memory.weights
            assert asked(f"traced:{quantized}", "decode", execution=engine).run.work.dtype_source == "checkpoint"
    some = {"config_groups": {"a": {"targets": ["re:.*linear_attn.*"], "weights": {"type": "int", "num_bits": 4}}}}
    path = config(folder, "seed_oss", attention_out_bias=False, quantization_config=some)
    with pytest.raises(RequestError, match=r"some layers have formats of their own.*--dtype overrides"):
        asked(f"traced:{path}", "decode")


@pytest.mark.parametrize("prefix", ["model.layers", "model.language_model.layers"])
def test_formats_by_part_and_by_layer_count_in_traced_types(prefix: str, folder: Path) -> None:
    """The same layers as those of Llama: feed-forwards in 4 bits, of the first layer in 8, attention as it was."""

    def said(layers: str) -> dict[str, Any]:
        eight, four = ({"type": "int", "num_bits": bits} for bits in (8, 4))
        first = {"targets": [f"re:{layers}.0.mlp.*"], "weights": eight}
        return {"config_groups": {"a": first, "b": {"targets": ["re:.*mlp.*"], "weights": four}}}

    llama = config(folder, "llama", quantization_config=said("model.layers"))
    plain = {"attention_bias": False, "attention_out_bias": False}
    other = config(folder, "seed_oss", **plain, quantization_config=said(prefix))
    built, traced = (asked(name, "decode", execution="vllm").prediction for name in (llama, f"traced:{other}"))
    assert traced.memory.weights == pytest.approx(built.memory.weights, rel=1e-3)
    assert traced.latency_s == pytest.approx(built.latency_s, rel=0.1)


def test_both_refuse_alike(folder: Path) -> None:
    path = config(folder, "llama")
    for words in ({"dtype": "nvfp4"}, {"dtype": "nf4"}, {"dtype": "mxfp8"}, {"dtype": "fp8_row"}, {"kv_dtype": "fp8"}):
        lines = [_answer(model, {"mode": "decode", "context_len": 64, **words}) for model in (path, f"traced:{path}")]
        assert isinstance(lines[0], str) and lines[0] == lines[1], words


def test_a_plan_of_the_class_is_taken_where_it_is_named(folder: Path) -> None:
    """Without one, layers are shared out as those of the built model; what a class does not run is one line."""
    path = config(folder, "llama")
    built, traced = (asked(model, "decode", tp=4) for model in (path, f"traced:{path}"))
    assert traced.prediction.latency_s == built.prediction.latency_s
    assert any("as Megatron-LM does" in note for note in traced.prediction.notes)
    own = asked(f"traced:{path}", "decode", tp=4, tp_plan="class")
    assert own.plan.first.recorded and not any("Megatron" in note for note in own.prediction.notes)
    few = config(folder, "llama", num_key_value_heads=4)
    copied = asked(f"traced:{few}", "decode", tp=8, tp_plan="class").prediction
    assert copied.latency_s == pytest.approx(asked(few, "decode", tp=8).prediction.latency_s, rel=0.03)
    with pytest.raises(RequestError, match=r"--tp 7: does not divide"):
        asked(f"traced:{few}", "decode", tp=7, tp_plan="class")


def test_steps_that_a_class_runs_otherwise_are_the_built_models() -> None:
    for name, modes, said in (("deepseek-v2-lite", ("decode",), "latent vectors"),
                              ("switch-base-8", ("prefill", "decode"), "logits of the last token")):  # fmt: skip
        path = str(CONFIGS / f"{name}.json")
        for mode in modes:
            words = {"dtype": "fp8", "attention": "math"}
            built, traced = (asked(model, mode, **words).prediction for model in (path, f"traced:{path}"))
            assert (traced.latency_s, traced.memory.total) == (built.latency_s, built.memory.total)
            assert any(said in note for note in traced.notes)


def test_a_class_trains_in_eight_bits_as_the_built_model(folder: Path) -> None:
    """Gradients of experts' products have their dtype, and no scales in blocks, as builders have them."""
    path = config(folder, "qwen3_moe", **MIXTURE)
    words = {"mode": "train", "batch": 2, "seq_len": 256, "dtype": "fp8", "optimizer": "none"}
    built, traced = (predictor.predict(model, "h100", **words) for model in (path, f"traced:{path}"))
    assert traced.latency_s == pytest.approx(built.latency_s, rel=0.03)
    assert traced.memory.weights == built.memory.weights


def test_a_source_says_nothing_of_a_reader_by_default() -> None:
    source = predictor.trace(torch.nn.Linear(8, 8), "float[2,8]").source
    assert source.built is None and TracedModel("x", source).checkpoint is None
