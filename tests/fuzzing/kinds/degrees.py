"""Degrees of parallelism and the words beside them, of models of every kind of network."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.fuzzing.case import Case
from tests.fuzzing.targets import ask_python

MODELS = ("gpt2", "llama-3.1-8b", "mixtral-8x7b", "t5-small", "bert-base", "qwen3-30b-a3b", "deepseek-v3",
          "switch-base-8",
          "gemma-2-9b", "opt-125m")  # fmt: skip
_DEGREE = st.sampled_from((1, 1, 1, 2, 2, 3, 4, 5, 6, 8, 12, 16, 64))
_ODD = st.sampled_from((0, -1, 7, 1000, 10**6, 10**7))
_WORDS: dict[str, st.SearchStrategy[Any]] = {
    "tp": _DEGREE, "pp": _DEGREE, "dp": _DEGREE, "cp": _DEGREE, "ep": _DEGREE, "vpp": _DEGREE, "etp": _DEGREE,
    "num_gpus": _DEGREE, "ulysses": _DEGREE, "micro_batch": _DEGREE, "sp": st.booleans(), "tp_overlap": st.booleans(),
    "ep_overlap": st.booleans(),
    "dp_overlap": st.sampled_from(("on", "off", "x")), "cp_comm": st.sampled_from(("ring", "all_to_all", "x")),
    "shard": st.sampled_from(("none", "zero1", "zero2", "zero3", "hsdp", "zero9")),
    "schedule": st.sampled_from(("gpipe", "1f1b", "interleaved", "breadth_first", "x")),
    "recompute": st.sampled_from(("none", "selective", "full", "full:1-of-2", "full:1-of-12")),
    "stage_layers": st.lists(st.integers(0, 12), max_size=5).map(lambda each: ",".join(map(str, each))),
    "seq_len": st.sampled_from((1, 7, 128, 1024)), "context_len": st.sampled_from((0, 1, 100)),
    "output_len": st.sampled_from((1, 2, 16)), "optimizer": st.sampled_from(("adam", "sgd", "none", "adam_8bit")),
    "dtype": st.sampled_from(("bf16", "fp16", "fp8", "fp32", "int4_wo")), "lora": st.sampled_from((0, 1, 8)),
    "offload_layers": st.sampled_from((0, 1, 99)), "system": st.sampled_from(("dgx-h100", "pcie-gen4", "gb200-nvl72")),
    "all_to_all": st.sampled_from(("nccl", "deepep", "x")), "capacity_factor": st.sampled_from((0.0, 1.0, 0.1, 1e9)),
    "attention": st.sampled_from(("math", "flash")),
}  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = draw(st.lists(st.sampled_from(sorted(_WORDS)), max_size=8, unique=True))
    asked: dict[str, Any] = {name: draw(_WORDS[name]) for name in names}
    if names and not draw(st.integers(0, 7)):
        asked[draw(st.sampled_from(names))] = draw(_ODD)
    asked |= {
        "model": draw(st.sampled_from(MODELS)), "gpu": draw(st.sampled_from(("h100", "a100", "t4", "mi300x", "gb200"))),
        "mode": draw(st.sampled_from(("train", "train", "forward", "prefill", "decode", "generate"))),
        "execution": draw(st.sampled_from(("eager", "compile", "megatron", "vllm", "sglang", "tensorrt_llm"))),
        "batch": draw(st.sampled_from((1, 2, 8, 12, 64, 96))), "artifacts": "roofline",
    }  # fmt: skip
    return Case("degrees", {}, asked)


ask = ask_python
