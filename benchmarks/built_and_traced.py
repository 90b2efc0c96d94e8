#!/usr/bin/env python3
"""Built graphs against traced ones, for architectures of the catalogue: FLOPs, bytes, parameters, memory, forecast.

    benchmarks/built_and_traced.py [NAME ...] [--mode forward] [--gpu h100] [--markdown]
    benchmarks/built_and_traced.py --mode prefill decode --engine eager vllm --tp 1 4 8 --dtype bf16 fp8 int4_wo
    --layers 4

Each model is built by its reader and traced from the class of transformers, of as many layers and as wide as its config
says (``--layers``: of so many); a table of both, and the differences in percent. ``--class``: the class's own operators
in engines, too, with the rules for types that no reader knows. Needs the extra torch.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from predictor.errors import TilecastError
from predictor.forecast.forecast import Forecast, forecast
from predictor.models.built import ModelConfig
from predictor.models.built.load import CONFIGS
from predictor.models.forms import model_of
from predictor.models.traced.model import TracedModel
from predictor.request.request import Request

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


#: Keys of a config.json that say how many layers there are.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")
#: Differences in percent that count as agreement: FLOPs, bytes, memory, forecast.
WITHIN = (0.5, 5.0, 3.0, 3.0)


def work_of(found: Forecast) -> tuple[float, float]:
    """FLOPs and bytes of the first stage's products, attention and the rest, of one pass."""
    graph = found.plan.stages[0].graph
    return graph.flops(), sum(node.op.bytes_moved() * times for node, times in graph.nodes())


def models_of(name: str, layers: int, whole_class: bool, folder: Path) -> tuple[str, str | ModelConfig]:
    """The built and the traced model of a name of the catalogue, of so many ``layers`` (0: its own)."""
    path = CONFIGS / f"{name}.json"
    if layers:
        data = json.loads(path.read_text(encoding="utf-8"))
        data |= {key: layers for key in LAYERS if key in data}
        if "layer_types" in data:
            data["layer_types"] = data["layer_types"][:layers]
        path = folder / name / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(data), encoding="utf-8")
    traced: str | ModelConfig = f"traced:{path}"
    if whole_class:
        model = model_of(str(traced))
        assert isinstance(model, TracedModel)
        source = copy.copy(model.source)
        source.built = None
        traced = replace(model, source=source)
    return str(path), traced


class RefusedError(Exception):
    """What the built and the traced model were refused with, "" where one was not."""

    def __init__(self, built: str, traced: str) -> None:
        super().__init__(built, traced)
        self.built, self.traced = built, traced


def answer(model: str | ModelConfig, gpu: str, words: dict[str, object]) -> Forecast | str:
    """The forecast, or the line of a refusal."""
    try:
        return forecast(Request(model, gpu, **words).run())  # type: ignore[arg-type]
    except TilecastError as error:
        return str(error)


def row(built: str, traced: str | ModelConfig, gpu: str, words: dict[str, object]) -> tuple[float, ...]:
    """Differences: of parameters, and in percent of FLOPs, bytes, memory, GPU time and forecast; the share of operators
    that are unknown, and the seconds that tracing took. RefusedError where one of them is."""
    a = answer(built, gpu, words)
    start = time.process_time()
    b = answer(traced, gpu, words)
    seconds = time.process_time() - start
    if isinstance(a, str) or isinstance(b, str):
        raise RefusedError(*(text if isinstance(text, str) else "" for text in (a, b)))
    one, other = a.summary(), b.summary()
    pairs = (*zip(work_of(a), work_of(b), strict=True), (a.memory.total, b.memory.total),
             (one.gpu_busy_s, other.gpu_busy_s), (one.latency_s, other.latency_s))  # fmt: skip
    off = [100.0 * (theirs / ours - 1.0) for ours, theirs in pairs]
    return (other.parameters - one.parameters, *off, sum(b.prediction.unknown.values()), seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help="models of the catalogue")
    parser.add_argument("--mode", nargs="+", default=("forward", "train"), help="default forward train")
    parser.add_argument("--engine", nargs="+", default=("eager",), help="words of --execution (default eager)")
    parser.add_argument("--tp", nargs="+", type=int, default=(1,), help="degrees (default 1)")
    parser.add_argument("--dtype", nargs="+", default=("bf16",), help="default bf16 (a checkpoint may have another)")
    parser.add_argument("--layers", type=int, default=0, help="of every model (default: its own)")
    parser.add_argument("--class", dest="whole_class", action="store_true", help="trace the class in engines, too")
    parser.add_argument("--gpu", default="h100", help="default h100")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--attention")
    parser.add_argument("--markdown", action="store_true", help="a table for the docs")
    parser.add_argument("--out", action="store_true", help="rows that are out of what counts as agreement alone")
    asked = parser.parse_args()
    os.environ.setdefault("TILECAST_CACHE", tempfile.mkdtemp())
    folder = Path(tempfile.mkdtemp())
    head = ("model", "mode", "engine", "tp", "dtype", "parameters", "FLOPs %", "bytes %", "memory %", "GPU time %",
            "forecast %", "unknown", "s to trace")  # fmt: skip
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head) if asked.markdown else "  ".join(head))
    within, rows, refused = [0] * 5, 0, 0
    for name in asked.names:
        built, traced = models_of(name, asked.layers, asked.whole_class, folder)
        for mode, engine, tp, dtype in product(asked.mode, asked.engine, asked.tp, asked.dtype):
            math = "math" if name.startswith(WRITTEN_OUT) else asked.attention
            words: dict[str, object] = {"mode": mode, "execution": engine, "tp": tp, "batch": asked.batch,
                                        "dtype": dtype, "attention": math}  # fmt: skip
            words |= {"context_len": asked.seq_len} if mode == "decode" else {"seq_len": asked.seq_len}
            case = (name, mode, engine, str(tp), dtype)
            try:
                found = row(built, traced, asked.gpu, words)
            except RefusedError as error:
                refused += 1
                if bool(error.built) != bool(error.traced):
                    side = "built" if error.built else "traced"
                    text = f"{side} alone refused: {error.built or error.traced}"
                    print("| " + " | ".join((*case, text)) + " |" if asked.markdown else f"{' '.join(case)}: {text}")
                continue
            rows += 1
            more, flops, moved, memory, _, latency, _, _ = found
            near = [abs(value) <= limit for value, limit in zip((flops, moved, memory, latency), WITHIN, strict=True)]
            for i, good in enumerate((more == 0, *near)):
                within[i] += good
            if asked.out and near[2] and near[3]:
                continue
            texts = [*case, f"{more:.0f}", *(f"{v:.2f}" for v in found[1:])]
            print("| " + " | ".join(texts) + " |" if asked.markdown else "  ".join(texts), flush=True)
    print(f"\n{rows} rows, {refused} refused: parameters exact {within[0]}, FLOPs within 0.5 % {within[1]}, bytes"
          f" within 5 % {within[2]}, memory within 3 % {within[3]}, forecast within 3 % {within[4]}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
