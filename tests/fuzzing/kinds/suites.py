"""Suites of measured workloads (`evaluate workloads`), changed or damaged."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.fuzzing.case import Case, seed
from tests.fuzzing.changes import damaged_text
from tests.fuzzing.kinds.traces import _changed_rows
from tests.fuzzing.targets import ask_words

NEEDS = ("pandas",)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    text = seed("suite.csv").decode("utf-8")
    content = draw(damaged_text(text)) if not draw(st.integers(0, 2)) else _changed_rows(draw, "s.csv", text)
    files = {"s.csv": content, "configs/gpt2.json": seed("gpt2.json")}
    return Case("suites", files, ["evaluate", "workloads", "s.csv", "--artifacts", "roofline", "--json"])


ask = ask_words
