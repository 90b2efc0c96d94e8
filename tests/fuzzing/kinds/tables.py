"""A person's own table of measurements (`dataset import csv`), changed or damaged."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.fuzzing.case import Case, seed
from tests.fuzzing.changes import damaged_text
from tests.fuzzing.kinds.traces import _changed_rows
from tests.fuzzing.targets import ask_words

NEEDS = ("pandas", "pyarrow")
MORE = ("", "", "--op gemm", "--op prefill", "--op moe", "--op all_reduce", "--unit us", "--unit ns")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    text = seed(draw(st.sampled_from(("table-gemm.csv", "table-attention.csv")))).decode("utf-8")
    content = draw(damaged_text(text)) if not draw(st.integers(0, 2)) else _changed_rows(draw, "t.csv", text)
    out = draw(st.sampled_from(("out.csv", "out.parquet")))
    words = f"dataset import csv t.csv --gpu h100 --out {out} --json {draw(st.sampled_from(MORE))}"
    return Case("tables", {"t.csv": content}, words.split())


ask = ask_words
