"""CHANGELOG.md: a section a version, the newest that of the code, and a short line a change."""

from __future__ import annotations

import re
from pathlib import Path

import predictor

TEXT = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
#: Characters of a line: what a reader takes in at a glance. Chosen by hand.
WIDTH = 160


def test_the_newest_version_is_that_of_the_code() -> None:
    heads = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", TEXT, re.M)
    assert heads[0] == ("Unreleased", "")
    assert heads[1][0] == predictor.__version__
    assert all(date for _, date in heads[1:])


def test_a_change_is_one_short_line() -> None:
    body = TEXT[TEXT.index("## [Unreleased]") :].splitlines()
    assert [line for line in body if not re.match(r"$|## |### |- |The ", line)] == []
    assert [line for line in body if len(line) > WIDTH] == []
    assert len([line for line in body if line.startswith("- ")]) > 80
