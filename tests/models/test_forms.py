"""What --model names: one table of forms, whose readers load when they are asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import predictor
from predictor.errors import RequestError
from predictor.models.forms import FORMS, Form, model_of

MODELS = Path(predictor.__file__).parent / "models"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.reader)
def test_every_form_has_a_reader_of_a_text_and_inputs(form: Form) -> None:
    module, _, function = form.reader.partition(":")
    source = (MODELS / f"{module.replace('.', '/')}.py").read_text()
    assert f"def {function}(text: str, words: str | Sequence[str] | None) ->" in source


@pytest.mark.parametrize(
    "text",
    ["net.py:build", "net.onnx", "net.pt2", "pipe.yaml", "SD3.5-Large", "vision:gpt2", "traced:gpt2", "graph.json"],
)
def test_each_form_fits_its_texts_alone(text: str) -> None:
    assert sum(form.fits(text) for form in FORMS) == 1


@pytest.mark.parametrize("text", ["gpt2", "openai-community/gpt2", "folder/config.json", "hf:folder"])
def test_a_config_is_no_form_of_the_table(text: str) -> None:
    assert not any(form.fits(text) for form in FORMS)


def test_a_built_model_loads_nothing_of_what_is_traced() -> None:
    code = (
        "import sys, predictor; predictor.predict('gpt2', 'h100', artifacts='roofline');"
        "print([name for name in sys.modules if name.startswith('predictor.models.traced')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_traced_model_has_the_names_of_a_built_one() -> None:
    pytest.importorskip("torch")
    assert model_of("traced:openai-community/gpt2").name == model_of("openai-community/gpt2").name == "gpt2"
    with pytest.raises(RequestError, match="unknown model 'gpt2-of-nobody': expected a name of `tilecast models`"):
        model_of("traced:gpt2-of-nobody")
