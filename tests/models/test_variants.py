"""Names of quantized twins, where no hub answers: the sizes of a model of the catalogue in the format of the suffix."""

from __future__ import annotations

import pytest

from predictor import predict
from predictor.errors import NoHubError, SpecError
from predictor.models.built import hub, load_config


def _no_hub(repository: str) -> None:
    raise NoHubError(f"model {repository!r}: no hub")


@pytest.mark.parametrize(
    ("name", "base", "words", "kv"),
    [
        ("nvidia/DeepSeek-R1-0528-FP4-V2", "deepseek-r1", ("nvfp4",), "fp8"),
        ("Qwen/Qwen3.5-397B-A17B-FP8", "qwen3.5-397b-a17b", ("fp8_block",), ""),
        ("zai-org/GLM-5.1-Base-FP8", "glm-5.1", ("fp8_block",), ""),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b", ("fp8",), ""),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b", ("fp8_static",), ""),
        ("amd/Llama-3.1-70B-Instruct-FP8-KV", "llama-3.1-70b", ("fp8_static",), "fp8"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b", ("nf4",), ""),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b", ("int4_wo",), ""),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b", ("int4_wo",), ""),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "qwen2.5-7b", ("int8_wo_g128",), ""),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b", ("int4_wo",), ""),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "llama-3.1-8b", ("int8",), ""),
        ("amd/DeepSeek-R1-MXFP4", "deepseek-r1", ("mxfp4_mxfp4",), ""),
        ("unsloth/DeepSeek-R1-BF16", "deepseek-r1", (), ""),
        ("moonshotai/Kimi-K2.6", "kimi-k2.6-nvfp4", ("int4_wo_g32",), ""),
    ],
)
def test_a_suffix_is_a_format(
    name: str, base: str, words: tuple[str, ...], kv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "fetch", _no_hub)
    config, sizes = load_config(name), load_config(base)
    assert config.parameters() == sizes.parameters()
    assert ((config.checkpoint.words, config.checkpoint.kv) if config.checkpoint else ((), "")) == (words, kv)
    in_words = "+".join(words) or "16 bit"
    assert any(f"{name} is not here: it is forecast with the sizes of {base}, in {in_words}" in n for n in config.notes)


def test_an_answer_says_whose_sizes_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fetch", _no_hub)
    answer = predict("Qwen/Qwen2.5-7B-Instruct-AWQ", "h100", mode="decode", execution="vllm")
    assert answer.model == "qwen2.5-7b-instruct-awq" and any("is not here" in note for note in answer.notes)
    assert load_config("deepseek-ai/DeepSeek-V3.1") is load_config("deepseek-v3"), "the same sizes and blocks"


def test_a_base_that_nobody_knows_and_a_name_that_the_hub_denies_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fetch", _no_hub)
    with pytest.raises(NoHubError, match="no hub"):
        load_config("somebody/Unheard-7B-AWQ")

    def denied(repository: str) -> None:
        raise SpecError(f"model {repository!r}: no such repository")

    monkeypatch.setattr(hub, "fetch", denied)
    with pytest.raises(SpecError, match="no such repository"):
        load_config("Qwen/Qwen2.5-7B-Instruct-AWQ")
