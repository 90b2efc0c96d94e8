"""The public interface, pinned: what a user's code and scripts may rely on.

tests/golden/public_api.txt lists it, one promise a line. Where a change is meant, write the list again and say so in
the changelog:

    PYTHONPATH=. python tests/repository/test_public_api.py > tests/golden/public_api.txt
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.resources
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import predictor
import tilecast
from microbench.cli import build_parser as harness_parser
from predictor.cli.main import build_parser
from predictor.report.json_report import to_dict
from predictor.request.serving import Serving
from predictor.request.training import Training
from predictor.request.workload import Workload
from predictor.simulate.answer import ClassTime, NodeTime, Prediction
from predictor.simulate.memory import Memory

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "public_api.txt"
TYPES = (
    Prediction, ClassTime, NodeTime, Memory, Workload, Training, Serving, predictor.GPUSpec, predictor.SystemSpec
)  # fmt: skip
FUNCTIONS = ("predict", "predict_many", "trace", "load_gpu", "load_config", "load_system")


def surface() -> list[str]:
    """Every promise as one line, sorted within its kind."""
    lines = [f"export {name}" for name in sorted(predictor.__all__)]
    for name in FUNCTIONS:
        signature = inspect.signature(getattr(predictor, name))
        for parameter in signature.parameters.values():
            named = "by name, " if parameter.kind is parameter.KEYWORD_ONLY else ""
            lines.append(f"{name}({named}{parameter})")
        lines.append(f"{name} -> {signature.return_annotation}")
    for kind in TYPES:
        lines += _members(kind)
    lines += [f"predict --json: {key}" for key in to_dict(predictor.predict("gpt2", "h100"))]
    for words, parser in (*_parsers("tilecast", build_parser()), *_parsers("microbench", harness_parser())):
        lines += [f"{words} {option}" for option in sorted(_options(parser))]
    return lines


def _members(kind: type) -> Iterator[str]:
    for entry in dataclasses.fields(kind):
        yield f"{kind.__name__}.{entry.name}: {entry.type}"
    for name, value in sorted(vars(kind).items()):
        if isinstance(value, property) and not name.startswith("_"):
            yield f"{kind.__name__}.{name} -> {value.fget.__annotations__['return']}"  # type: ignore[union-attr]


def _parsers(words: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser and those of its verbs, each with what a person types to reach it."""
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _parsers(f"{words} {name}", inner)


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if type(action) is argparse._HelpAction or isinstance(action, argparse._SubParsersAction):
            continue
        name = "/".join(action.option_strings) or f"<{action.dest}>"
        parts = [name, "required" if action.required and action.option_strings else ""]
        if action.nargs == 0:
            parts.append("flag")
        elif action.nargs is not None:
            parts.append(f"nargs {action.nargs}")
        if action.nargs != 0 and action.default not in (None, "", argparse.SUPPRESS):
            parts.append(f"default {action.default}".replace(f"{ROOT}/", ""))
        yield " ".join(part for part in parts if part)


def test_the_public_surface_is_the_one_that_is_pinned() -> None:
    pinned = GOLDEN.read_text(encoding="utf-8").splitlines()
    found = surface()
    added, removed = [line for line in found if line not in pinned], [line for line in pinned if line not in found]
    assert found == pinned, f"added {added}; gone {removed}: if that is meant, see the top of {Path(__file__).name}"


def test_every_public_name_is_there_and_loads_late() -> None:
    for name in predictor.__all__:
        assert getattr(predictor, name) is not None
    assert set(predictor.__all__) <= set(dir(predictor))
    code = "import sys, predictor; print(sorted({'numpy', 'yaml', 'rich', 'predictor.api'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_tilecast_has_the_same_public_names() -> None:
    """`import tilecast` is the documented name: the objects of `predictor`, loaded as late, and none beside them."""
    assert tilecast.__all__ == predictor.__all__
    for name in tilecast.__all__:
        assert getattr(tilecast, name) is getattr(predictor, name), name
    assert set(tilecast.__all__) <= set(dir(tilecast))
    with pytest.raises(AttributeError, match="module 'tilecast' has no attribute 'forecast'"):
        tilecast.forecast  # noqa: B018
    code = "import sys, tilecast; print(sorted({'numpy', 'yaml', 'rich', 'predictor.api'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    done = subprocess.run([sys.executable, "-m", "tilecast", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tilecast {tilecast.__version__}\n"


def test_the_command_line_takes_every_word_of_predict() -> None:
    """A word of `predictor.predict` is a flag of `predict` and of `compare`, with the same default."""
    own = {"model", "gpu"}
    for verb, less in (("predict", own), ("compare", own | {"top", "explain"})):
        parsed = build_parser(verb).parse_args([verb, "--model", "m", "--gpu", "g"])
        for name, parameter in inspect.signature(predictor.predict).parameters.items():
            if name in less:
                continue
            assert getattr(parsed, name) == parameter.default, name


@pytest.mark.parametrize("own", [{"artifacts": "roofline"}, {"top": 3}])
def test_many_requests_share_their_artifacts(own: dict[str, object]) -> None:
    """A word of `predict` that `predict_many` would have to ignore is refused."""
    with pytest.raises(predictor.RequestError, match="expected artifacts once, for all of them"):
        predictor.predict_many([{"model": "gpt2", "gpu": "h100"}, {"model": "gpt2", "gpu": "h100", **own}])


USER = """
from typing import assert_type
import NAME
answer = NAME.predict("gpt2", "h100", batch=2)
assert_type(answer, NAME.Prediction)
assert_type(answer.latency_s, float)
assert_type(NAME.load_gpu("h100").peak_flops("bf16"), float)
NAME.predict("gpt2", "h100", batch="two")
"""


def test_a_user_has_types_through_the_names_that_load_late(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="types are checked by mypy")
    for name in ("tilecast", "predictor"):
        assert importlib.resources.files(name).joinpath("py.typed").is_file()
        (tmp_path / f"use_{name}.py").write_text(USER.replace("NAME", name), encoding="utf-8")
    files = ["use_tilecast.py", "use_predictor.py"]
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", *files]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"MYPYPATH": str(ROOT)}
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert sorted(error.partition(": ")[0] for error in errors) == ["use_predictor.py:8", "use_tilecast.py:8"]
    assert all('expected "int | None"' in error for error in errors)


if __name__ == "__main__":
    print("\n".join(surface()))
