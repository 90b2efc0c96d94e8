"""Files of requests: Tilecast's own, and those of the formats that are read, changed or damaged."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from hypothesis import strategies as st

from tests.fuzzing.case import Case, seed
from tests.fuzzing.changes import ODD, changed_tree, damaged_text
from tests.fuzzing.targets import ask_words

SEEDS = ("tilecast.csv", "azure.csv", "burstgpt.csv", "vidur.csv", "mooncake.jsonl", "aiperf.jsonl", "autobench.jsonl",
         "sharegpt.json")  # fmt: skip
WORDS = "serve simulate --model llama-3.2-1b --gpu h100 --artifacts roofline --requests 8 --json"
MORE = ("", "", "--prefix-cache off", "--replicas 2", "--max-num-seqs 2", "--execution sglang",
        "--execution tensorrt_llm",
        "--ttft 1s --tpot 10ms")  # fmt: skip


def _changed_rows(draw: st.DrawFn, name: str, text: str) -> bytes:
    """The rows as trees, changed, and written in the same form again."""
    if name.endswith(".csv"):
        rows: Any = list(csv.reader(io.StringIO(text)))
        rows = draw(changed_tree(rows))
        out = io.StringIO()
        for row in rows if isinstance(rows, list) else []:
            csv.writer(out).writerow(row if isinstance(row, list) else [row])
        return out.getvalue().encode("utf-8", "replace")
    if name.endswith(".jsonl"):
        rows = draw(changed_tree([json.loads(line) for line in text.splitlines()], values=ODD))
        return "".join(json.dumps(row) + "\n" for row in rows).encode("utf-8", "replace")
    return json.dumps(draw(changed_tree(json.loads(text)))).encode("utf-8", "replace")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(SEEDS))
    text = seed(name).decode("utf-8")
    content = draw(damaged_text(text)) if not draw(st.integers(0, 2)) else _changed_rows(draw, name, text)
    target = f"trace.{name.split('.')[-1]}"
    timed = draw(
        st.sampled_from((f"--trace {target}", f"--lengths {target} --rate 2", f"--lengths {target} --concurrency 4"))
    )
    words = f"{WORDS} {timed} {draw(st.sampled_from(MORE))}".split()
    return Case("traces", {target: content}, words)


ask = ask_words
