#!/usr/bin/env python3
"""Built graphs against traced ones, for architectures of the catalogue: FLOPs, bytes, parameters, forecast.

    scripts/built_and_traced.py [NAME ...] [--mode forward] [--gpu h100] [--markdown]

Each model is built by its reader and traced from the class of transformers, of as many layers and as wide as its config
says; a table of both, and the differences in percent. Needs the extra torch.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from predictor.errors import TilecastError
from predictor.forecast import Forecast, forecast
from predictor.request import Request

#: One model of each kind of graph that the catalogue has.
NAMES = (
    "gpt2-large", "bert-large", "opt-1.3b", "opt-350m", "bloom-3b", "llama-3.1-8b", "mistral-7b", "qwen2.5-7b",
    "qwen3-8b",
    "gemma-2-9b", "gemma-3-4b", "phi-3-mini", "mpt-7b", "t5-large", "flan-t5-large", "mixtral-8x7b", "qwen3-30b-a3b",
    "deepseek-v2-lite", "deepseek-v3", "switch-base-8",
)  # fmt: skip
#: Classes of transformers that write attention out whatever is asked (their alibi is added to the scores): both sides
#: are compared so.
WRITTEN_OUT = ("bloom", "mpt")


def work_of(found: Forecast) -> tuple[float, float]:
    """FLOPs and bytes of the first stage's products, attention and the rest, of one pass."""
    graph = found.plan.stages[0].graph
    return graph.flops(), sum(node.op.bytes_moved() * times for node, times in graph.nodes())


def row(name: str, mode: str, gpu: str, words: dict[str, object]) -> tuple[object, ...]:
    built = forecast(Request(name, gpu, mode=mode, **words).run())  # type: ignore[arg-type]
    start = time.process_time()
    traced = forecast(Request(f"traced:{name}", gpu, mode=mode, **words).run())  # type: ignore[arg-type]
    seconds = time.process_time() - start
    (flops, moved), (flops_, moved_) = work_of(built), work_of(traced)
    a, b = built.summary(), traced.summary()
    off = [100.0 * (theirs / ours - 1.0) for ours, theirs in (
        (flops, flops_), (moved, moved_), (a.gpu_busy_s, b.gpu_busy_s), (a.latency_s, b.latency_s))]  # fmt: skip
    unknown = sum(traced.prediction.unknown.values())
    return name, mode, b.parameters - a.parameters, *off, unknown, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help="models of the catalogue")
    parser.add_argument("--mode", action="append", help="forward, train, prefill, decode (default forward and train)")
    parser.add_argument("--gpu", default="h100", help="default h100")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--dtype", default="bf16", help="default bf16, of both (a checkpoint may have another)")
    parser.add_argument("--attention")
    parser.add_argument("--markdown", action="store_true", help="a table for the docs")
    asked = parser.parse_args()
    os.environ.setdefault("TILECAST_CACHE", tempfile.mkdtemp())
    head = ("model", "mode", "parameters", "FLOPs %", "bytes %", "GPU time %", "forecast %", "unknown", "s to trace")
    line = "| " + " | ".join(head) + " |\n|" + "---|" * len(head)
    print(line if asked.markdown else "  ".join(head))
    within = [0, 0, 0, 0]
    rows = 0
    for name in asked.names:
        for mode in asked.mode or ("forward", "train"):
            math = "math" if name.startswith(WRITTEN_OUT) else asked.attention
            words = {"batch": asked.batch, "dtype": asked.dtype, "attention": math}
            words |= {"context_len": asked.seq_len} if mode == "decode" else {"seq_len": asked.seq_len}
            try:
                found = row(name, mode, asked.gpu, words)
            except TilecastError as error:
                print(f"| {name} | {mode} | {error} |" if asked.markdown else f"{name} {mode}: {error}", flush=True)
                continue
            rows += 1
            _, _, more, flops, moved, _, latency, _, _ = found
            for i, good in enumerate((more == 0, abs(flops) <= 0.5, abs(moved) <= 5, abs(latency) <= 3)):  # type: ignore[arg-type]
                within[i] += good
            texts = [f"{v:.2f}" if isinstance(v, float) else str(v) for v in found]
            print("| " + " | ".join(texts) + " |" if asked.markdown else "  ".join(texts), flush=True)
    print(f"\n{rows} rows: parameters exact {within[0]}, FLOPs within 0.5 % {within[1]}, bytes within 5 % {within[2]},"
          f" forecast within 3 % {within[3]}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
