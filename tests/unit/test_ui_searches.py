"""The searches of the page: what is wrong with a word stands beside its field."""

from __future__ import annotations

import pytest

from predictor.cli import main
from predictor.commands.ui import searches
from predictor.ui.fields import Field
from predictor.ui.searches import Kind, error_beside, flag

NEEDED = {
    "plan": {"num_gpus": "2", "global_batch": "4"},
    "serve": {"num_gpus": "1", "isl": "64", "osl": "8", "ttft": "5s", "tpot": "1s"},
}
FIELDS = [(kind, field) for kind in searches() for field in kind.fields if not field.choices]


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=[field.name for _, field in FIELDS])
def test_nonsense_in_a_field_is_said_beside_it(kind: Kind, field: Field, capsys: pytest.CaptureFixture[str]) -> None:
    values = NEEDED[kind.name] | {field.word: "%nonsense%"}
    typed = [text for word, value in values.items() for text in (flag(word), value)]
    assert main([*kind.verb, "--model", "gpt2", "--gpu", "h100", *typed, "--json"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    found = error_beside(kind, said.err, 2)
    assert found["field"] == field.name
    assert "%nonsense%" in found["line"]
    assert "expected" in found["line"]


def test_both_searches_have_their_words() -> None:
    names = {field.name for _, field in FIELDS}
    assert {"plan.num_gpus", "plan.only", "plan.price", "serve.ttft", "serve.rate", "serve.disaggregated"} <= names
