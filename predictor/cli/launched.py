"""`--from`: the words of a launch command, or its file, ahead of those that a person typed beside it."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from predictor.errors import RequestError

FLAG = "--from"
#: Words of a server under load, which one pass has none of.
_LOAD = "tilecast serve simulate --from"


def with_launched(words: Sequence[str], simulates: bool) -> tuple[list[str], tuple[str, ...]]:
    """The words of a line with those of its ``--from`` as options, and sentences for the answer. What stands in the
    line goes before what the command says. ``simulates``: the line is one of `serve simulate`.

    RequestError, one line, for a command that cannot be read.
    """
    given = _given(words)
    texts = given.pop(FLAG.removeprefix("--"), None)
    if texts is None:
        return list(words), ()
    if len(texts) > 1:
        raise RequestError(f"{FLAG}: given twice; expected one command or file")
    from predictor.engines.launchers import launched

    read = launched(texts[0], {name: values[-1] for name, values in given.items()})
    said = dict(read.words)
    if said["mode"] == "train" and simulates:
        raise RequestError(f"{FLAG} {read.program}: trains; expected the command of a server, or `tilecast predict`")
    remarks = list(read.remarks)
    model = given.get("model", [str(said.get("model", ""))])[-1]
    if not model and read.sizes is not None:
        model = said["model"] = _model_of_sizes(read.sizes)
    if not model:
        raise RequestError(f"{FLAG} {read.program}: does not say which model; expected --model NAME beside it")
    if read.quantizes and "dtype" not in given and "dtype" not in said and not _quantized(model, read.quantizes):
        said["dtype"] = read.quantizes
    if read.chunks > 1 and not {"pp", "vpp", "stage_layers"} & given.keys():
        said |= _stages(model, read.chunks)
    if read.again_every and "recompute" not in given:
        said["recompute"] = _every(model, read.again_every)
    if simulates:
        said.pop("mode")
        said |= read.load
    else:
        limits = [f"--{name.replace('_', '-')} {value}" for name, value in read.load.items()]
        if limits:
            remarks.append(f"Of a server under load, which `{_LOAD}` forecasts: {', '.join(limits)}.")
        replicas = said.get("dp")
        if replicas and said["mode"] != "train" and not {"batch", "prompt_lens"} & given.keys():
            said["batch"] = replicas
    mode = given.get("mode", [str(said.get("mode", ""))])[-1]
    speculates = bool(read.speculates) and "acceptance" in given and mode != "prefill"
    if speculates:
        said |= read.speculates
    elif "acceptance" in given and "drafts" not in given:
        raise RequestError(
            f"--acceptance {given['acceptance'][-1]}: the command of {read.program} has no drafts that a forecast knows"
            f" in --mode {mode}; expected no --acceptance, or --drafts K beside it"
        )
    options: list[str] = []
    for name, value in said.items():
        flag = f"--{name.replace('_', '-')}"
        if name in given:
            if name != "mode" and given[name][-1] != str(value) and value is not True:
                remarks.append(f"{flag} {given[name][-1]} goes before the command's {value}.")
        elif value is True:
            options.append(flag)
        elif value:
            options += [flag, str(value)]
    if read.untold:
        remarks.append(f"Words of {read.program} that the forecast leaves out: {'; '.join(read.untold)}.")
    if read.speculation and not speculates:
        asked = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in read.speculates.items())
        hint = "" if mode == "prefill" else f"; --acceptance P beside it puts it in ({asked})"
        left_out = "; ".join(read.speculation)
        remarks.append(f"Words of {read.program} that the forecast leaves out: {left_out}{hint}.")
    if read.idle:
        remarks.append(f"Words of {read.program} that change nothing here: {', '.join(read.idle)}.")
    return [*_without(words), *options], tuple(remarks)


def _given(words: Sequence[str]) -> dict[str, list[str]]:
    """Long options of a line by the names of their words -> their values ("" for one without)."""
    read: dict[str, list[str]] = {}
    for at, word in enumerate(words):
        if not word.startswith("--") or word == "--":
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        follows = words[at + 1] if at + 1 < len(words) else ""
        text = value if equals else ("" if follows.startswith("--") else follows)
        read.setdefault(name.replace("-", "_"), []).append(text)
    return read


def _without(words: Sequence[str]) -> list[str]:
    """The words of a line without ``--from`` and its value."""
    left: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == FLAG:
            skip = True
        elif not word.startswith(f"{FLAG}="):
            left.append(word)
    return left


def _quantized(model: str, word: str) -> bool:
    """Whether a model's checkpoint has its weights in a format of the kind of ``word`` as it is."""
    from predictor.models.forms import model_of

    checkpoint = model_of(model).checkpoint
    return checkpoint is not None and checkpoint.scheme.startswith(word.partition("_")[0])


def _stages(model: str, chunks: int) -> dict[str, str | bool]:
    """Layers of each of so many chunks, the embedding and the head counting as a layer each, where they do not divide
    (torchtitan/distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part)."""
    from predictor.models.built.load import load_config

    layers = load_config(model).layers
    if layers % chunks == 0 or layers + 2 < 2 * chunks:
        return {}
    each, more = divmod(layers + 2, chunks)
    parts = [each + (n < more) for n in range(chunks)]
    parts[0], parts[-1] = parts[0] - 1, parts[-1] - 1
    return {"stage_layers": ",".join(map(str, parts))}


def _every(model: str, each: int) -> str:
    """Recomputation of a model's layers number ``each``, 2 ``each``, ..."""
    from predictor.models.forms import model_of

    layers = model_of(model).stack().layers
    some = layers // each
    return "full" if some == layers else f"full:{some}-of-{layers}" if some else "none"


def _model_of_sizes(sizes: Mapping[str, Any]) -> str:
    """The model of the catalogue that has these sizes; a config.json of them, for as long as this process runs, where
    none has."""
    from predictor.models.built.load import catalogue, load_config

    folder = Path(tempfile.mkdtemp(prefix="tilecast-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "config.json"
    file.write_text(json.dumps(dict(sizes)), encoding="utf-8")
    asked = _shape(load_config(file))
    return next((name for name in catalogue() if _shape(load_config(name)) == asked), str(file))


def _shape(config: Any) -> tuple[object, ...]:
    """What makes two models take as long, but for their vocabularies."""
    names = ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "gated", "norm", "experts", "top_k")
    return tuple(getattr(config, name, None) for name in names)
