"""`tilecast models [NAME]`: the model catalogue, and one model's sizes."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from predictor.errors import SpecError
from predictor.files.yaml_reader import read_yaml_file
from predictor.models.built import ModelConfig, catalogue, load_config, parameters
from predictor.models.forms import PIPELINES, pipeline_file
from predictor.report.wording import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `models`."""
    parser.epilog = "example: tilecast models llama-3.1-8b"
    parser.add_argument("name", nargs="?", help="a model's name, org/name of Hugging Face, or a config.json")
    parser.add_argument("--support", action="store_true", help="the modes, engines and parallelism of each model type")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the catalogue or one entry."""
    from predictor.files.terminal import screen
    from predictor.report.table import Column, print_table, say

    if arguments.support:
        return _support(arguments)
    if arguments.name is not None:
        path = pipeline_file(arguments.name)
        facts = to_dict(load_config(arguments.name)) if path is None else _pipeline(path)
        if arguments.json:
            print(json.dumps(facts, indent=2))
        else:
            console = screen()
            for name, value in facts.items():
                say(console, str(value), f"{name:24} ")
        return 0
    configs = [load_config(name) for name in catalogue()]
    if arguments.json:
        print(json.dumps([to_dict(config) for config in configs], indent=2))
        return 0
    heads = ("name", "type", "parameters", "layers", "hidden", "heads", "KV heads", "vocabulary")
    columns = [Column(head, right=head not in ("name", "type"), key=head == "name") for head in heads]
    rows = [
        (config.name, config.model_type, count(parameters(config)), str(config.layers), str(config.hidden),
         str(config.heads), str(config.kv_heads), str(config.vocab))
        for config in configs
    ]  # fmt: skip
    console = screen()
    print_table(console, columns, rows)
    say(console, f"pipelines of several models: {', '.join(sorted(path.stem for path in PIPELINES.glob('*.yaml')))}")
    return 0


def _pipeline(path: Path) -> dict[str, Any]:
    """The sizes of a pipeline and the classes of its parts, as its file says them."""
    data = read_yaml_file(path, "a pipeline, with sizes and parts")
    if not isinstance(data, dict) or not isinstance(data.get("parts"), dict):
        raise SpecError(f"{path}: expected a pipeline, with sizes and parts")
    parts = {name: part for name, part in data["parts"].items() if isinstance(part, dict)}
    runs = {name: part.get("class") or part.get("model") or "operators" for name, part in parts.items()}
    return {"name": path.stem, "unit": data.get("unit", "samples"), "sizes": data.get("sizes", {}), "parts": runs}


def _support(arguments: argparse.Namespace) -> int:
    """Print which forecasts there are of every model type, or of the one that is named."""
    from predictor.errors import unknown_name
    from predictor.forecast.support import table

    answers = table()
    if arguments.name is not None:
        if arguments.name not in answers:
            raise unknown_name("model type", arguments.name, answers, "a model_type of `tilecast models --support`")
        answers = {arguments.name: answers[arguments.name]}
    if arguments.json:
        print(json.dumps(answers, indent=2))
        return 0
    for kind, said in answers.items():
        print(f"{kind}: {', '.join(case for case, reason in said.items() if not reason)}")
        for reason in dict.fromkeys(reason for reason in said.values() if reason):
            print(f"    not {', '.join(case for case, why in said.items() if why == reason)}: {reason}")
    return 0


def to_dict(config: ModelConfig) -> dict[str, Any]:
    """One model as JSON: its normalised sizes and its number of parameters."""
    facts = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    facts["variants"] = len(config.variants)  # kinds of layers; which one each layer is stands in "pattern"
    facts["checkpoint"] = None if config.checkpoint is None else "+".join(config.checkpoint.words) or "unknown"
    facts["parameters"] = parameters(config)
    return json.loads(json.dumps(facts, default=str))  # type: ignore[no-any-return]
