"""YAML files of systems: one of the catalogue's, with fields changed, or its text damaged."""

from __future__ import annotations

from functools import cache

from hypothesis import strategies as st

from predictor.hardware.system import SYSTEM_DIR
from tests.fuzzing.case import Case
from tests.fuzzing.kinds.gpus import text_of
from tests.fuzzing.targets import ask_words

WORDS = (
    "predict --model llama-3.2-1b --gpu h100 --mode prefill --execution vllm --tp 2 --system s.yaml --json",
    "predict --model llama-3.2-1b --gpu h100 --mode decode --execution sglang --tp 8 --dp 4 --system s.yaml --json",
    "predict --model gpt2 --gpu a100 --mode train --dp 16 --batch 16 --shard zero3 --system s.yaml --json",
    "predict --model gpt2 --gpu v100 --mode train --tp 4 --pp 3 --batch 8 --dtype fp16 --system s.yaml --json",
    "predict --model gpt2 --gpu a100 --system s.yaml --json",
)


@cache
def systems() -> tuple[str, ...]:
    """The files of the catalogue."""
    return tuple(path.read_text(encoding="utf-8") for path in sorted(SYSTEM_DIR.glob("*.yaml")))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    content = text_of(draw, systems())
    return Case("systems", {"s.yaml": content}, draw(st.sampled_from(WORDS)).split())


ask = ask_words
