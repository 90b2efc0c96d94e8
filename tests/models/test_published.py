"""Published checkpoints by name: what each resolves to, how large it is, and how little a name costs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from predictor.errors import UnknownNameError
from predictor.files.read import read_json
from predictor.files.records import replace
from predictor.models.built import catalogue, load_config, parameters
from predictor.models.built.load import CONFIGS, PUBLISHED, aliases, catalogue_name

NAMES = sorted(path.stem for path in PUBLISHED.glob("*.json"))


def public_files(data: Path) -> list[Path]:
    files = sorted((data / "hf_configs").glob("*--*_config.json"))
    return [path for path in files if not path.name.endswith("_hf_quant_config.json")]


def test_every_public_config_is_forecast_by_its_name_as_by_its_file(data: Path) -> None:
    """By name without what the file has beside sizes; DeepSeek-V3 is the catalogue's, without its stretched
    positions."""
    files = public_files(data)
    if not files:
        pytest.skip("no hf_configs beside the data")
    for path in files:
        name = path.name.removesuffix("_config.json").replace("--", "/")
        by_name, by_path = load_config(name.swapcase()), load_config(path)
        assert by_name.ignored == () and parameters(by_name) == parameters(by_path), name
        if by_name.name in NAMES:
            renamed = tuple(replace(kind, name=by_path.name) for kind in by_name.variants)
            assert replace(by_name, name=by_path.name, variants=renamed) == replace(by_path, ignored=()), name
        else:
            assert replace(by_name, name="", scaled_positions=0, assumed=()) == replace(
                by_path, name="", scaled_positions=0, ignored=(), assumed=()
            ), name


@pytest.mark.parametrize("name", NAMES)
def test_a_published_config_says_its_source_and_sizes_alone(name: str) -> None:
    data = read_json(PUBLISHED / f"{name}.json")
    assert re.fullmatch(r"config\.json of [\w.-]+/[\w.-]+ as published, .*@[0-9a-f]{7}, Apache-2\.0\)", data["_note"])
    assert not {"auto_map", "torch_dtype", "transformers_version", "bos_token_id"} & data.keys()
    assert load_config(name).ignored == () and not (CONFIGS / f"{name}.json").exists()
    assert any(other == name and "/" in alias for alias, other in aliases().items())


@pytest.mark.parametrize("name", [name for name in NAMES if re.search(r"\d+b(?:-|$)", name)])
def test_parameters_are_those_that_the_name_says(name: str) -> None:
    """Of a model that sees images without its tower; DeepSeek and others say no size in their names."""
    billions = float(re.search(r"-(\d+)b(?:-|$)", name)[1])  # type: ignore[index]
    if "llama-4" in name:  # 17b are the active ones: 109B and 400B in all, by the model cards
        billions = 400 if "maverick" in name else 109
    counted = parameters(load_config(name)) / 1e9
    # names round, and leave out or count embeddings; small ones round most; a tower of images has 0.4B to 1.5B
    assert abs(counted - billions) <= max(0.05 * billions, 1.6 if billions > 20 else 0.7), counted


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("deepseek-ai/DeepSeek-R1", "deepseek-r1"), ("DeepSeek-R1", "deepseek-r1"), ("deepseek_r1", "deepseek-r1"),
        ("OPENAI/GPT-OSS-120B", "gpt-oss-120b"), ("gptoss-120b", "gpt-oss-120b"), ("llama3.1:8b", "llama-3.1-8b"),
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"), ("llama3-8b", "llama-3-8b"), ("qwen3.5-397b", "qwen3.5-397b-a17b"),
        ("llama-4-scout", "llama-4-scout-17b-16e"), ("Qwen2.5-7B-Instruct", "qwen2.5-7b"), ("kimi-k2", "kimi-k2"),
        ("nemotron-3-nano", "nemotron-3-nano-30b-a3b"), ("gpt2", "gpt2"), ("deepseek-v3", "deepseek-v3"),
    ],
)  # fmt: skip
def test_spellings_of_a_name(text: str, name: str) -> None:
    assert catalogue_name(text) == load_config(text).name == name


def test_a_family_of_several_lists_them_and_other_words_name_nothing() -> None:
    with pytest.raises(UnknownNameError, match=r"'gpt-oss' is a family: expected one of gpt-oss-120b, gpt-oss-20b$"):
        load_config("gpt-oss")
    with pytest.raises(UnknownNameError, match=r"'qwen3' is a family: .* and \d+ more$"):
        load_config("qwen3")
    for text in ("", "-", "gpt", "llam", "nobody/gpt2", "kimi-k2.7", "8b"):
        assert text == "gpt" or catalogue_name(text) is None, text


def test_no_two_models_have_a_spelling_in_common() -> None:
    spelt: dict[str, str] = {}
    for name in catalogue():
        assert spelt.setdefault(re.sub(r"[-_: ]", "", name), name) == name
        assert catalogue_name(name) == name
    for alias, name in aliases().items():
        assert catalogue_name(alias) == name


def test_one_name_reads_one_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many models there are: a name of the catalogue opens its file, and no table of names."""
    from predictor.models.built import load

    opened: list[str] = []
    monkeypatch.setattr(load, "read_json", lambda path: opened.append(path.name) or read_json(path))
    for cached in (load._read_config, load.aliases, load._lower, load._short):
        cached.cache_clear()
    load_config("deepseek-r1")
    assert opened == ["deepseek-r1.json"]
    load_config("moonshotai/Kimi-K2.5")
    assert opened == ["deepseek-r1.json", "aliases.json", "kimi-k2.5.json"]
