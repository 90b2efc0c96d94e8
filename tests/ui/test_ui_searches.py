"""The searches of the page: what is wrong with a word stands beside its field."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.cli.ui import searches
from predictor.errors import RequestError
from predictor.files.arguments import Parser
from predictor.request.options import OPTIONS
from predictor.ui.fields import Field, fields_of
from predictor.ui.searches import Kind, flag, found_by
from predictor.ui.state import State

NEEDED = {
    "plan": {"num_gpus": "2", "global_batch": "4"},
    "serve": {"num_gpus": "1", "isl": "64", "osl": "8", "ttft": "5s", "tpot": "1s"},
}
FIELDS = [(kind, field) for kind in searches() for field in kind.fields if not field.choices]


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=[field.name for _, field in FIELDS])
def test_nonsense_in_a_field_is_said_beside_it(kind: Kind, field: Field) -> None:
    found = searched(kind, field, "%nonsense%")
    assert found["field"] == field.name
    assert "%nonsense%" in found["line"]
    assert "expected" in found["line"]


def searched(kind: Kind, field: Field, text: str) -> dict[str, str]:
    """What is wrong with a search that has ``text`` in a field."""
    words = {f"{kind.name}.{word}": value for word, value in NEEDED[kind.name].items()} | {field.name: text}
    found = found_by(kind, "roofline", State("gpt2", "", ("h100",), {}, search=words))
    assert found["state"] == "failed", found
    (error,) = found["errors"]
    return error


def test_values_are_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No word of a search is an option, and none is a file that is read or written, whether it is there or not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.yaml").write_text("h100: secret\n", encoding="utf-8")
    (tmp_path / "there").write_text("secret 1 2 3\n", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    for kind in searches():
        for field in kind.fields:
            for text in ("--out=new.csv", "--json", f"--out={tmp_path}/new.csv"):
                assert searched(kind, field, text)["field"] in (field.name, f"{kind.name}."), (field.name, text)
            told = [
                searched(kind, field, text)["line"].replace(text, "?")
                for path in ("there.yaml", "gone.yaml", str(tmp_path / "there"), str(tmp_path / "gone"), "/etc/shadow")
                for text in (path, f"h100={path}", f"{path}=2.99", f"tp={path}")
            ]
            assert not any("secret" in line or "No such" in line or "cannot read" in line for line in told), field.name
            assert len(set(told)) <= 4, (field.name, told)
    for field in (one for kind in searches() for one in kind.fields if one.word in ("routing", "price", "system")):
        line = searched(next(k for k in searches() if field in k.fields), field, "there")["line"]
        assert "secret" not in line and "expected" in line
    assert sorted(tmp_path.iterdir()) == before


def test_words_that_may_be_files_elsewhere_have_a_form() -> None:
    """A word whose help names a file takes one of a list, or what its form says."""
    for field in (*(one for kind in searches() for one in kind.fields), *fields_of(OPTIONS.values())):
        if "file" in field.help.lower().replace("profile", ""):
            with pytest.raises(RequestError):
                field.read("there")


def test_a_parser_reads_a_structure_as_it_reads_a_line() -> None:
    for kind in searches():
        parser = Parser(add_help=False)
        kind.add(parser)
        texts = NEEDED[kind.name]
        values = {"model": "gpt2", "gpu": "h100", "json": True}
        line = ["--model", "gpt2", "--gpu", "h100", "--json"]
        line += [text for word, value in texts.items() for text in (flag(word), value)]
        assert parser.read(texts, values) == parser.parse_args(line)
        with pytest.raises(RequestError, match="expected a value"):
            parser.read({}, values)


def test_both_searches_have_their_words() -> None:
    names = {field.name for kind in searches() for field in kind.fields}
    assert {"plan.num_gpus", "plan.only", "plan.price", "serve.ttft", "serve.rate", "serve.disaggregated"} <= names
