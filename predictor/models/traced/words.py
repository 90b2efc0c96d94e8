"""What `--model` names: a model of the catalogue or a config.json, or what is traced or was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from predictor.errors import RequestError, SpecError, UnknownModelTypeError, printable
from predictor.files.read import read_json, read_text
from predictor.files.yaml_reader import parse_yaml
from predictor.graph.saved_graph import from_json, is_recording
from predictor.models.base import Feature, Model
from predictor.models.built.load import CONFIGS, data_of, load_config, stamped
from predictor.models.traced.model import CLASS_PLAN, TracedModel

#: Pipelines that come with the house.
PIPELINES = Path(__file__).parent / "pipelines"
#: Before the name of a model that a reader knows: it is traced in place of being built; of one that sees images: the
#: part that they pass is.
TRACED, VISION = "traced:", "vision:"


def model_of(name: str | Path, inputs: str | Sequence[str] | None = None) -> Model:
    """The model that ``name`` stands for; ``inputs`` are those of one that is traced.

    A name of the catalogue, a config.json, a folder with one; a pipeline (.yaml), or the name of one of the house's;
    "hf:FOLDER", a snapshot of a Hugging Face repository; "file.py:function"; a saved graph (.json); an .onnx file; an
    archive of torch.export (.pt2).
    A config.json of a model_type that no reader knows is traced, and so is any as "traced:NAME"; "vision:NAME" is the
    part of a model that images pass. Raises RequestError, or one of its kinds.
    """
    text = str(name)
    if ".py:" in text:
        from predictor.models.traced.sources import of_file  # a built model starts without it

        return of_file(text, inputs)
    if text.endswith(".onnx"):
        from predictor.models.traced.onnx_graph import of_onnx

        return of_onnx(text, inputs)
    if text.endswith(".pt2"):
        from predictor.models.traced.sources import of_exported

        return of_exported(text, inputs)
    if text.endswith(".json") and Path(text).expanduser().is_file() and not text.endswith("config.json"):
        data = read_json(Path(text).expanduser())
        if is_recording(data):
            from predictor.models.traced.sources import Saved

            found = from_json(data, text)
            _no_inputs(inputs, "a saved graph has its inputs")
            return TracedModel(found.name, Saved(found))
    pipeline = _pipeline(text)
    if pipeline is not None:
        from predictor.models.traced.pipelines import of_pipeline  # any other model starts without it

        return of_pipeline(pipeline, inputs, model_of)
    if text.startswith(VISION):
        from predictor.models.traced.vision import of_tower

        path = _config_file(text.removeprefix(VISION), VISION)
        return of_tower(read_json(path), _name_of(path), str(path), inputs)
    _no_inputs(inputs, "only a model that is traced takes it (file.py:function)")
    if text.startswith(TRACED):
        return _traced(_config_file(text.removeprefix(TRACED)))
    named: str | Path = snapshot(text.removeprefix("hf:")) if text.startswith("hf:") else name
    try:
        return load_config(named)
    except UnknownModelTypeError as error:
        import importlib.util

        if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
            raise UnknownModelTypeError(f"{error}; or pip install 'tilecast[torch]', with which it is traced") from None
        return _traced(_config_file(str(named)))


def _pipeline(text: str) -> Path | None:
    """The file of a pipeline, or of a name of one; None for what is none."""
    if text.endswith((".yaml", ".yml")):
        return Path(text).expanduser()
    named = PIPELINES / f"{text.strip().lower()}.yaml"
    return named if "/" not in text and named.is_file() else None


def snapshot(text: str) -> Path:
    """The config.json of a folder: one of a repository as it was downloaded, or of the cache of huggingface_hub
    (models--ORG--NAME, whose newest snapshot counts)."""
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise SpecError(f"model 'hf:{printable(text)}': no such folder; expected a local snapshot with a config.json")
    found = [folder / "config.json", *(folder / "snapshots").glob("*/config.json")]
    there = [path for path in found if path.is_file()]
    if not there:
        raise SpecError(f"model 'hf:{printable(text)}': no config.json in this folder, nor in snapshots/ below it")
    return max(there, key=lambda path: path.stat().st_mtime_ns)


def _config_file(text: str, kind: str = TRACED) -> Path:
    """The config.json of a name of the catalogue, or of a path, which stood behind the word ``kind``."""
    named = CONFIGS / f"{text.strip().lower()}.json"
    path = named if "/" not in text and named.is_file() else Path(text).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        load_config(text)  # an alias, or the error that says what there is
        raise SpecError(f"model '{kind}{printable(text)}': expected a name of `tilecast models` or a config.json")
    return path


def _traced(path: Path) -> TracedModel:
    return _read(path, *stamped(path, path.stat()))


@lru_cache(maxsize=64)
def _read(path: Path, beside: Path | None, stamp: tuple[int, ...]) -> TracedModel:
    from predictor.models.traced.huggingface import traced_config

    return traced_config(data_of(path, beside), _name_of(path), str(path))


def _name_of(path: Path) -> str:
    return printable(path.parent.name if path.stem == "config" and path.parent.name else path.stem)


def _no_inputs(inputs: str | Sequence[str] | None, why: str) -> None:
    if inputs:
        several = isinstance(inputs, Iterable) and not isinstance(inputs, str)
        said = " ".join(map(str, inputs)) if several else str(inputs)
        raise RequestError(f"--input {printable(said)}: {why}; leave it out")


def with_plan(model: Model, given: str | Path | Mapping[str, str] | None) -> Model:
    """A traced model whose layers are shared out by the user's table: a YAML file, or patterns of paths -> styles;
    "class" for the plan that its class brings.

    Raises RequestError (or one of its kinds), one line, for a table that is none and for a model that is built.
    """
    if given is None:
        return model
    where = f"--tp-plan {printable(str(given))}" if isinstance(given, str | Path) else "--tp-plan"
    reason = model.refusal(Feature.PLAN)
    if reason:
        raise RequestError(f"{where}: {reason}")
    if given == CLASS_PLAN:
        return model
    table: Any = given
    if isinstance(given, str | Path):
        path = Path(given).expanduser()
        table = parse_yaml(read_text(path, "a YAML table of patterns and styles", where), str(path))
    if not isinstance(table, Mapping) or not table or not all(isinstance(v, str) for one in table.items() for v in one):
        raise SpecError(f"{where}: expected lines of a module's path, with * for numbers: a style (colwise, rowwise)")
    return model.planned(table)
