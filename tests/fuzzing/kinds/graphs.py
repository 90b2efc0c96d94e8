"""Saved graphs (`predict --save-graph`), with a place changed or the text damaged."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from tests.fuzzing.case import Case, seed
from tests.fuzzing.changes import as_json, changed_tree, damaged_text
from tests.fuzzing.targets import ask_words

MORE = (
    "",
    "",
    "",
    "--mode train",
    "--mode train",
    "--top 5",
    "--execution compile",
    "--tp 2",
    "--dtype fp8",
    "--batch 8",
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    text = seed(draw(st.sampled_from(("graph-forward.json", "graph-train.json", "graph-recorded.json")))).decode(
        "utf-8"
    )
    if draw(st.integers(0, 5)):
        content = as_json(draw(changed_tree(json.loads(text), most=1)))
    else:
        content = draw(damaged_text(text))
    words = f"predict --model graph.json --gpu h100 --artifacts roofline --json {draw(st.sampled_from(MORE))}"
    return Case("graphs", {"graph.json": content}, words.split())


ask = ask_words
