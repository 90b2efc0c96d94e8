"""Command lines: verbs with options of theirs, valid values and others, files of the corpus and files that are none.

Left out is what goes out of the process by design: `ui` (a server), `microbench` (a process of its own), `dataset
fetch` (the network), and the verbs that fit for minutes.
"""

from __future__ import annotations

import argparse
from functools import cache

from hypothesis import strategies as st

from predictor.cli.main import build_parser
from tests.fuzzing.case import Case, seed
from tests.fuzzing.targets import ask_words

LOADS = ("torch", "torch.fx.experimental.proxy_tensor", "transformers", "transformers.modeling_utils")
VERBS = ("predict", "predict", "predict", "serve simulate", "serve plan", "compare", "plan", "sweep", "gpus", "models",
         "dataset describe", "dataset import", "evaluate kernels", "evaluate workloads", "evaluate served", "calibrate",
         "train", "runs", "completion")  # fmt: skip
FILES = {name: seed(name) for name in (
    "tilecast.csv", "mooncake.jsonl", "graph-forward.json", "rows.csv", "suite.csv", "sweep.yaml", "pipeline-ops.yaml",
    "gpt2.json",
)}  # fmt: skip
_NUMBERS = ("0", "1", "2", "3", "8", "64", "-1", "1.5", "1e3", "x", "", "99999999999", "٣", "0x10", "nan", "inf")
_NAMES: dict[str, tuple[str, ...]] = {
    "model": ("gpt2", "llama-3.2-1b", "t5-small", "bert-base", "gpt2.json", "graph-forward.json",
              "nope", "gpt2,bert-base"),
    "gpu": ("h100", "t4", "mi300x", "nope", "h100,t4", "rtx-4090"),
    "mode": ("train", "decode", "prefill", "generate", "x"),
    "execution": ("eager", "compile", "vllm", "sglang", "tensorrt_llm", "megatron", "cuda_graph", "x"),
    "dtype": ("fp32", "bf16", "fp16", "fp8", "int4_wo", "x"), "system": ("dgx-h100", "pcie-gen4", "x"),
    "artifacts": ("roofline", "nope", "."), "software": ("vllm 0.24", "vllm 2023", "2024-05", "x"),
    "gpu_set": ("l2=1MB", "sms=3", "clock=1GHz", "x", "=", "power_limit=1W", "memory_bandwidth=nan GB/s"),
    "price": ("h100=2", "h100=nan", "x"), "routing": ("random", "balanced", "zipf:1.2", "x"),
    "sampling": ("greedy", "top_p", "x"), "only": ("tp=2", "tp=", "x=1"), "op": ("gemm", "x"),
    "trace": ("tilecast.csv", "mooncake.jsonl", "gpt2.json", "t.json"), "lengths": ("tilecast.csv", "gpt2.json"),
    "data": ("rows.csv", "gpt2.json", "nope"),
}  # fmt: skip
_FILES = (
    *FILES,
    "nope",
    ".",
    "/dev/null",
    "new.json",
    "new.html",
    "new.csv",
    "new.parquet",
    "a/b/new.csv",
    "\x1b[31m",
    "",
)
#: Options that go to a server by design.
_OUT = ("tracking_uri", "register")
_TIMES = ("5us", "1ms", "0", "-1us", "1h", "x", "500ms", "20ms", "1s")


@cache
def actions(verb: str) -> tuple[argparse.Action, ...]:
    """What the parser of a verb takes."""
    first, *rest = verb.split()
    parser = build_parser(first)
    for word in (first, *rest):
        choosers = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        parser = choosers[0].choices[word]
    return tuple(
        each
        for each in parser._actions
        if not isinstance(each, argparse._HelpAction | argparse._VersionAction) and each.dest not in _OUT
    )


def _value(draw: st.DrawFn, action: argparse.Action) -> str:
    pool = _NAMES.get(action.dest, ())
    if draw(st.integers(0, 3)) and (pool or action.choices):
        return str(draw(st.sampled_from(pool or tuple(map(str, action.choices or ())))))
    return draw(st.sampled_from((*_NUMBERS, *_FILES, *_TIMES)) | st.text(max_size=6))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    verb = draw(st.sampled_from(VERBS))
    words = verb.split()
    taken = actions(verb)
    options = [each for each in taken if each.option_strings]
    needed = [each for each in options if each.required and draw(st.integers(0, 9))]
    some = draw(st.lists(st.sampled_from(options), max_size=5, unique_by=id)) if options else []
    for action in taken:
        if not action.option_strings and draw(st.integers(0, 9)):
            words.append(_value(draw, action))
    for action in [*needed, *(each for each in some if each not in needed)]:
        words.append(action.option_strings[-1])
        if action.nargs != 0:
            words.append(_value(draw, action))
    if verb in ("plan", "serve plan", "calibrate", "train"):  # whole searches and fits take minutes by design
        words += ["--artifacts", "nope"] if verb in ("plan", "serve plan") else []
    if not draw(st.integers(0, 9)):
        words.insert(
            draw(st.integers(0, len(words))), draw(st.sampled_from((*_FILES, "--", "--nope", "-x", "=", "--json")))
        )
    return Case("command_lines", FILES, [word.replace("\x00", "") for word in words])


ask = ask_words
