"""Files of pipelines, changed or damaged: lists of operators, and parts that are traced from classes of torch."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.fuzzing.case import Case, seed
from tests.fuzzing.kinds.gpus import text_of
from tests.fuzzing.targets import ask_words

NEEDS = ("torch",)
LOADS = ("torch.fx.experimental.proxy_tensor",)
MORE = ("", "", "--batch 4", "--steps 2", "--execution compile", "--tp 2", "--dtype fp16", "--mode train", "--cp 2")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    texts = tuple(
        seed(name).decode("utf-8") for name in ("pipeline-ops.yaml", "pipeline-ops.yaml", "pipeline-class.yaml")
    )
    content = text_of(draw, texts)
    words = f"predict --model pipe.yaml --gpu h100 --artifacts roofline --json {draw(st.sampled_from(MORE))}"
    return Case("pipelines", {"pipe.yaml": content}, words.split())


ask = ask_words
