#!/usr/bin/env python3
"""The waterfalls of docs/explanation/between-kernels.md, from forecasts; it writes them into the page."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import predictor

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "between-kernels.md"
#: What the page shows: a decode step by release, and a training step, each by its command line.
STEP: dict[str, Any] = {"mode": "decode", "batch": 16, "context_len": 1024, "execution": "vllm"}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "decode": ("llama-3.1-8b", "h100", STEP),
    "decode 0.3": ("llama-3.1-8b", "h100", STEP | {"software": "0.3"}),
    "decode 2023": ("llama-3.1-8b", "h100", STEP | {"software": "2023"}),
    "train": ("gpt2", "a100", {"mode": "train", "batch": 8, "seq_len": 1024, "dtype": "bf16"}),
    "train small": ("gpt2", "a100", {"mode": "train", "batch": 1, "seq_len": 256, "dtype": "bf16"}),
}
#: Characters of a bar, chosen by hand for the page's width.
BAR = 40


def command(model: str, gpu: str, words: dict[str, Any]) -> str:
    """The command line of a run."""
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in words.items()]
    return " ".join(["predict", "--model", model, "--gpu", gpu, *flags])


def parts(answer: predictor.Prediction) -> list[tuple[str, float]]:
    """What a step is made of, in seconds: kernels by class and phase, the sampler, then what is between them."""
    sampled = sum(row.latency_s for row in answer.nodes if row.name.startswith("sampler "))
    found: dict[str, float] = {}
    train = answer.workload.mode == "train"
    for row in answer.breakdown:
        small = row.op not in ("linear", "attention decode", "attention", "optimizer", "cross-entropy")
        name = "norms, activations, other small kernels" if small else row.op
        name = f"{row.phase}: {name}" if train and row.op != "optimizer" else name
        found[name] = found.get(name, 0.0) + row.latency_s
    if sampled:
        found["norms, activations, other small kernels"] -= sampled
        found["sampler"] = sampled
    return [*found.items(), *((name, seconds) for name, seconds in answer.between_s.items() if seconds)]


def waterfall(name: str) -> str:
    """One run as text: where each part begins and ends."""
    model, gpu, words = RUNS[name]
    answer = predictor.predict(model, gpu, top=999, **words)
    lines, at, whole = [f"$ {command(model, gpu, words)}"], 0.0, answer.latency_s
    for part, seconds in parts(answer):
        first, last = round(at / whole * BAR), round((at + seconds) / whole * BAR)
        bar = " " * first + "#" * max(1, last - first)
        lines.append(f"{part:<51}{seconds * 1e3:8.3f} ms  |{bar[:BAR]:<{BAR}}|")
        at += seconds
    between = f"between kernels {answer.between_kernels_s * 1e3:.3f} ms"
    return "\n".join([*lines, f"{'in all':<51}{whole * 1e3:8.3f} ms  {between}"])


def page(text: str) -> str:
    """The page with its waterfalls as forecasts are now."""

    def fresh(found: re.Match[str]) -> str:
        return f"<!-- waterfall: {found[1]} -->\n```text\n{waterfall(found[1])}\n```\n<!-- end -->"

    return re.sub(r"<!-- waterfall: (.*?) -->\n.*?<!-- end -->", fresh, text, flags=re.DOTALL)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
