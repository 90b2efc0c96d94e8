"""Expressions of files: they mean what `re` says, and take time linear in the text."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path

import pytest

from predictor.cli.main import main
from predictor.errors import RequestError, SpecError, UnsupportedError
from predictor.files.patterns import Pattern
from predictor.files.units import parse_quantity
from predictor.models.built.load import CONFIGS, load_config

ATOMS = (
    "a", "b", ".", "[ab]", "[^a]", r"\.", r"\d", "(a|b)", "(ab)", "(?:a*)", "(?P<x>a)", "^", "$", "a{2}", "(b{1,2})",
    "(a|)", "[]a]", "{", "{,}", "x{,1}",
)  # fmt: skip
REPEATS = ("", "", "*", "+", "?", "{0,2}", "*?")


def test_means_what_re_says() -> None:
    """1,500 made expressions: both refuse the same, and match the same texts."""
    draw, asked = random.Random(7), 0
    for _ in range(1_500):
        text = "".join(draw.choice(ATOMS) + draw.choice(REPEATS) for _ in range(draw.randint(1, 5)))
        if draw.random() < 0.3:
            text = f"({text}){draw.choice(('', '*', '+', '|a'))}"
        if text.count("?P<") > 1 or re.search(r"\{[\d,]+\}\+", text):
            continue  # a name that appears twice, and what gives nothing back
        try:
            expected = re.compile(text)
        except re.error:
            with pytest.raises(SpecError):
                Pattern(text)
            continue
        mine = Pattern(text)
        for _ in range(5):
            name = "".join(draw.choice("ab.1{x") for _ in range(draw.randint(0, 7)))
            assert mine.match(name) == bool(expected.match(name)), (text, name)
            asked += 1
    assert asked > 2_000


SLOW = ("(a|a)*b", "(.*)*x", "(a+)+$b", "((.*)*)*y", ".*.*.*.*.*.*.*.*z", "(a?){30}a{30}b", "(a|aa)+$b", "([a-z]+)*0")


@pytest.mark.parametrize("text", SLOW)
def test_takes_no_more_than_a_look_at_each_character(text: str) -> None:
    began = time.process_time()
    assert not Pattern(text).match("a" * 5_000)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    "text", ["(?!a)b", "(?<=a)b", r"(a)\1", "(?i)a", r"a\b", "a{9999}", "(" * 40 + "a" + ")" * 40, "a" * 2_000]
)
def test_what_is_not_read_is_one_line(text: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        Pattern(text)
    assert "expected" in str(caught.value) or "places" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert text[:20] in str(caught.value).replace("\\\\", "\\")


def quantized(ignore: str, **more: object) -> dict[str, object]:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    said = {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights": weights,
            "input_activations": {"num_bits": 8, "type": "float", "dynamic": True}}}, "ignore": [ignore]}  # fmt: skip
    return {**json.loads((CONFIGS / "llama-3.1-8b.json").read_text(encoding="utf-8")), "quantization_config": said}


def test_no_config_makes_a_forecast_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Overlapping choices within a repeat passed the look for repeats of repeats, and took `re` for ever."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(quantized("re:(m|mo|o|d|de|e|l|.|[a-z])*#")), encoding="utf-8")
    began = time.process_time()
    assert main(["predict", "--model", str(path), "--gpu", "h100", "--artifacts", "roofline"]) == 0
    assert time.process_time() - began < 5.0
    path.write_text(json.dumps(quantized("re:^(?!.*mlp).*")), encoding="utf-8")
    capsys.readouterr()
    assert main(["predict", "--model", str(path), "--gpu", "h100", "--artifacts", "roofline"]) == 2
    said = capsys.readouterr().err
    assert "'^(?!.*mlp).*' has '(?!.'; expected literals" in said and said.count("\n") == 1
    assert main(["predict", "--model", str(path), "--gpu", "h100", "--artifacts", "roofline", "--dtype", "bf16"]) == 0


def test_a_list_of_modules_is_kept_by_its_expression(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(quantized(r"re:.*\.layers\.\d+\.mlp\.(gate|up|down)_proj$")), encoding="utf-8")
    checkpoint = load_config(path).checkpoint
    assert checkpoint is not None
    assert dict(checkpoint.own) == {"mlp.up": "", "mlp.down": ""}


def test_a_quantity_of_many_blanks_takes_no_time() -> None:
    began = time.process_time()
    with pytest.raises(RequestError):
        parse_quantity("1 a" + " " * 200_000 + "b", "time")
    assert time.process_time() - began < 1.0
