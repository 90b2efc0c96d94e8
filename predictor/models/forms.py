"""What ``--model`` names: the forms of a name in one table, each with its reader, which loads when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from predictor.errors import RequestError, SpecError, UnknownModelTypeError, UnsupportedError, printable
from predictor.models.base import Model
from predictor.models.built.load import load_config

#: Inputs in words, as ``--input`` gives them.
Inputs = str | Sequence[str] | None
#: Pipelines that come with Tilecast.
PIPELINES = Path(__file__).parent / "traced" / "pipelines"
#: Before the name of a model that is to be traced though Tilecast can build it; before that of a model that sees
#: images, for the part that the images pass.
TRACED, VISION = "traced:", "vision:"


class Form(NamedTuple):
    """A form of a name: ``fits`` says whether a text has it, ``reader`` ("module:function" in `predictor.models`) makes
    the model of a text and its inputs."""

    fits: Callable[[str], bool]
    reader: str


#: The first form that fits counts. Any other text is a name of the catalogue, or a config.json.
FORMS = (
    Form(lambda text: ".py:" in text, "traced.sources:of_file"),
    Form(lambda text: text.endswith(".onnx"), "traced.onnx_graph:of_onnx"),
    Form(lambda text: text.endswith(".pt2"), "traced.sources:of_exported"),
    Form(lambda text: pipeline_file(text) is not None, "traced.pipelines:of_pipeline"),
    Form(lambda text: text.startswith(VISION), "traced.vision:of_tower"),
    Form(lambda text: text.startswith(TRACED), "traced.huggingface:of_config"),
    Form(lambda text: text.endswith(".json") and not text.endswith("config.json"), "traced.sources:of_json"),
)


def model_of(name: str | Path, inputs: Inputs = None) -> Model:
    """The model that ``name`` stands for; ``inputs`` are those of a model that is traced.

    A name of the catalogue, a config.json, or a folder that holds one; "hf:FOLDER", a snapshot of a Hugging Face
    repository; "file.py:function"; an .onnx file; an archive of torch.export (.pt2); a saved graph (.json); a pipeline
    (.yaml), or the name of one that comes with Tilecast; "traced:NAME" and "vision:NAME". A config.json whose
    model_type Tilecast cannot build is traced. Raises RequestError, or one of its kinds.
    """
    text = str(name)
    for form in FORMS:
        if form.fits(text):
            return reader_of(form)(text, inputs)
    return config_of(text, inputs)


def reader_of(form: Form) -> Callable[[str, Inputs], Model]:
    """The function that reads a form; its module loads now."""
    module, _, function = form.reader.partition(":")
    reader: Callable[[str, Inputs], Model] = getattr(importlib.import_module(f"{__package__}.{module}"), function)
    return reader


def config_of(text: str, inputs: Inputs) -> Model:
    """The model of a name of the catalogue, or of a config.json: built, or traced where its type cannot be built; of a
    type that nobody knows the nearest that its keys describe."""
    no_inputs(inputs)
    named = str(snapshot(text.removeprefix("hf:"))) if text.startswith("hf:") else text
    try:
        return load_config(named)
    except UnknownModelTypeError as error:
        if find_spec("torch") is None or find_spec("transformers") is None:
            raise UnknownModelTypeError(f"{error}; or pip install 'tilecast[torch]', with which it is traced") from None
        try:
            return model_of(TRACED + named)
        except UnknownModelTypeError as unknown:
            try:
                return reader_of(Form(bool, "traced.huggingface:of_unknown"))(named, inputs)
            except UnsupportedError as why:
                raise UnsupportedError(f"{unknown}; {why}") from None


def pipeline_file(text: str) -> Path | None:
    """The file of a pipeline, or of the name of one; None for any other text."""
    if text.endswith((".yaml", ".yml")):
        return Path(text).expanduser()
    path = PIPELINES / f"{text.strip().lower()}.yaml"
    return path if "/" not in text and path.is_file() else None


def snapshot(text: str) -> Path:
    """The config.json of a folder: of a repository as it was downloaded, or of the cache of huggingface_hub
    (models--ORG--NAME, whose newest snapshot counts)."""
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise SpecError(f"model 'hf:{printable(text)}': no such folder; expected a local snapshot with a config.json")
    paths = [folder / "config.json", *(folder / "snapshots").glob("*/config.json")]
    configs = [path for path in paths if path.is_file()]
    if not configs:
        raise SpecError(f"model 'hf:{printable(text)}': no config.json in this folder, nor in snapshots/ below it")
    return max(configs, key=lambda path: path.stat().st_mtime_ns)


def no_inputs(inputs: Inputs, why: str = "only a model that is traced takes it (file.py:function)") -> None:
    """RequestError, one line, for inputs of a model that takes none."""
    if inputs:
        several = isinstance(inputs, Iterable) and not isinstance(inputs, str)
        shown = " ".join(map(str, inputs)) if several else str(inputs)
        raise RequestError(f"--input {printable(shown)}: {why}; leave it out")
