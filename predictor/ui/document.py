"""The page: its template with the fields of the form, and the names that fields complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from predictor import __version__
from predictor.hardware.gpu import all_names
from predictor.hardware.what_if import PARAMETERS
from predictor.models.built.load import aliases, catalogue
from predictor.report.pages import environment
from predictor.ui.fields import Field
from predictor.ui.searches import Kind

TEMPLATES = Path(__file__).parent / "templates"
#: What the page opens with, where the link says nothing.
MODEL, BOARDS = "llama-3.1-8b", ("h100", "a100")


def document(fields: Sequence[Field], kinds: Sequence[Kind]) -> str:
    """The whole page."""
    return environment(TEMPLATES).get_template("ui.html").render(
        version=__version__, model=MODEL, boards=BOARDS, kinds=kinds, parameters=PARAMETERS,
        first=[field for field in fields if field.common],
        rest=[field for field in fields if not field.common],
        lists=(("models", sorted({*catalogue(), *aliases()})), ("gpus", all_names())),
    ).lstrip()  # fmt: skip
