"""The support matrix: what it says is forecast is forecast, what it refuses is refused, and it is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor.cli.main import main
from predictor.forecast.support import as_markdown, ask, cases, specimen, table
from predictor.models.built.type_reader import FAMILIES

ROOT = Path(__file__).resolve().parents[2]


def test_every_model_type_is_in_the_table_and_the_table_on_its_page() -> None:
    answers = table()
    assert set(answers) == set(FAMILIES)
    heads = [f"{case.group} {case.name}" for case in cases()]
    assert all(set(said) == set(heads) for said in answers.values())
    page = (ROOT / "docs" / "reference" / "support.md").read_text(encoding="utf-8")
    assert as_markdown(answers) in page


def test_the_table_says_what_is_answered() -> None:
    """Each type in every mode, and in a few of the other columns, another few for each."""
    answers, wrong = table(), []
    columns = cases()
    for place, model_type in enumerate(sorted(FAMILIES)):
        config = specimen(model_type)
        for i, case in enumerate(columns):
            if case.group == "mode" or i % 7 == place % 7:
                said = answers[model_type][f"{case.group} {case.name}"]
                now = ask(config, case)
                if bool(said) != bool(now):
                    wrong.append(f"{model_type}, {case.group} {case.name}: {said or 'yes'!r}, now {now or 'yes'!r}")
    assert not wrong, "run tools/support_matrix.py:\n" + "\n".join(wrong)


def test_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--support", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(FAMILIES)
    assert main(["models", "bert", "--support"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("bert: mode forward, mode train")
    assert "not mode decode" in out
    assert main(["models", "berd", "--support"]) == 2
    assert "nearest: bert" in capsys.readouterr().err
