"""Files of `tilecast sweep`, changed or damaged: their points are counted, or asked."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.fuzzing.case import Case, seed
from tests.fuzzing.kinds.gpus import text_of
from tests.fuzzing.targets import ask_words


@st.composite
def cases(draw: st.DrawFn) -> Case:
    content = text_of(draw, (seed("sweep.yaml").decode("utf-8"), seed("sweep-train.yaml").decode("utf-8")))
    out = draw(st.sampled_from(("--dry-run --json", "--out out.csv --jobs 1 --json", "--out out.csv --jobs 1 --json")))
    return Case("sweeps", {"s.yaml": content}, f"sweep s.yaml --artifacts roofline {out}".split())


ask = ask_words
