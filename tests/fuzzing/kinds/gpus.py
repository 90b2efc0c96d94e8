"""YAML files of GPUs: one of the catalogue's, with fields changed, or its text damaged."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml
from hypothesis import strategies as st

from predictor.hardware.gpu import list_gpus, load_gpu
from tests.fuzzing.case import Case
from tests.fuzzing.changes import ODD, changed_tree, damaged_text
from tests.fuzzing.targets import ask_words

#: Quantities as people write them, and nearly so.
QUANTITY = st.builds(
    lambda number, unit: f"{number}{unit}",
    st.sampled_from(("1", "0", "-1", "1e3", "1e-9", "1e300", "3.5", "1,000", "nan", "½", "", "00", "1_0")),
    st.sampled_from(("", " GB/s", " TB/s", " TFLOPS", " GB", " MiB", " MHz", " GHz", " us", " W", "x", " %", " GB GB")),
)
WORDS = (
    "gpus g.yaml --json", "gpus g.yaml", "predict --model gpt2 --gpu g.yaml --json --batch 2",
    "predict --model gpt2 --gpu g.yaml --json --mode train --execution compile",
    "predict --model llama-3.2-1b --gpu g.yaml --json --mode decode --execution vllm --tp 2",
    "compare --model gpt2 --gpu g.yaml,h100 --json", "predict --model gpt2 --gpu g.yaml --json --force",
    "predict --model gpt2 --gpu g.yaml --json --set l2=1MB",
)  # fmt: skip


@cache
def boards() -> tuple[str, ...]:
    """The files of the catalogue."""
    return tuple(load_gpu(name).path.read_text(encoding="utf-8") for name in list_gpus())


def text_of(draw: st.DrawFn, texts: tuple[str, ...]) -> bytes:
    """One of the texts, its tree changed or its lines damaged."""
    text = draw(st.sampled_from(texts))
    if not draw(st.integers(0, 2)):
        return draw(damaged_text(text))
    tree: Any = draw(changed_tree(yaml.safe_load(text), values=ODD | QUANTITY))
    return yaml.safe_dump(tree, allow_unicode=True, sort_keys=False).encode("utf-8", "replace")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    content = text_of(draw, boards())
    return Case("gpus", {"g.yaml": content}, draw(st.sampled_from(WORDS)).split())


ask = ask_words
