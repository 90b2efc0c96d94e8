#!/usr/bin/env python3
"""Architectures of transformers, each traced forward and in training: what docs/reference/architectures.md lists.

    tools/architectures.py [MODEL_TYPE ...] [--markdown FILE] [--gpu h100]

Each is the default config of a model type, traced in a process of its own (a fork); parameters are held against the
sum over the class's own tensors. Seconds are of CPU time, GiB the process's largest. Needs the extra torch.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

#: Limits that the issue set: seconds and GiB of each, and the share of time of unknown operators.
SECONDS, GIB, UNKNOWN = 30.0, 4.0, 0.01
#: CPU seconds after which a type is given up.
LONGEST = 60
#: Model types of transformers 5: text first, then images, speech, and several of these.
TYPES = """
    llama mistral qwen2 qwen3 gemma gemma2 phi phi3 olmo olmo2 smollm3 starcoder2 stablelm granite glm glm4
    cohere cohere2 gpt2 gpt_neo gpt_neox gptj gpt_bigcode opt bloom falcon mpt codegen persimmon xglm biogpt
    ernie4_5 exaone4 helium arcee seed_oss bert roberta distilbert albert electra modernbert xlm-roberta mpnet
    camembert convbert t5 mt5 bart mbart pegasus m2m_100 blenderbot marian vit deit beit swin swinv2 convnext
    convnextv2 resnet regnet dinov2 segformer mobilenet_v2 poolformer clip whisper wav2vec2 mixtral qwen2_moe
    olmoe
""".split()  # noqa: SIM905


def measured(kind: str, mode: str, gpu: str, batch: int, tokens: int) -> dict[str, object]:
    """What one pass of one type gives; runs in a process of its own."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from predictor.forecast.forecast import forecast
    from predictor.models.traced.huggingface import HuggingFace, traced_config
    from predictor.request.request import Request

    config = CONFIG_MAPPING[kind]()
    model = traced_config({**config.to_diff_dict(), "model_type": kind}, kind, kind)
    start = time.process_time()
    positions = getattr(config, "max_position_embeddings", 0) or tokens
    found = forecast(Request(model, gpu, mode=mode, batch=batch, seq_len=min(tokens, positions)).run())
    seconds, answer, source = time.process_time() - start, found.prediction, model.source
    assert isinstance(source, HuggingFace)
    module = source.module
    real = sum(p.numel() for p in dict.fromkeys(module.parameters()))
    return {
        "class": type(module).__name__, "parameters": answer.parameters, "exact": real == answer.parameters,
        "ms": answer.latency_ms, "unknown": sum(answer.unknown.values()), "names": list(answer.unknown),
        "seconds": seconds, "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }  # fmt: skip


def traced(kind: str, mode: str, gpu: str, batch: int, tokens: int) -> dict[str, object]:
    """The same from a fork, which has what was imported here; {"error": line} where it fails or takes too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (LONGEST, LONGEST))
        try:
            found = measured(kind, mode, gpu, batch, tokens)
        except Exception as error:
            found = {"error": " ".join(str(error).split())[:160] or type(error).__name__}
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        text = file.read()
    os.waitpid(child, 0)
    return dict(json.loads(text)) if text else {"error": f"more than {LONGEST} s"}


def within(row: dict[str, object]) -> bool:
    """Whether a row is within every limit."""
    return "error" not in row and bool(row["exact"]) and float(str(row["seconds"])) <= SECONDS and (
        float(str(row["gib"])) <= GIB and float(str(row["unknown"])) <= UNKNOWN
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("types", nargs="*", default=TYPES, metavar="MODEL_TYPE")
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--markdown", metavar="FILE", help="also write the page")
    asked = parser.parse_args()
    from predictor.models.traced.sources import need_torch

    need_torch()
    import transformers

    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    os.environ["TILECAST_CACHE"] = tempfile.mkdtemp()
    lines, good, forecasts = [], 0, 0
    for kind in asked.types:
        rows = {mode: traced(kind, mode, asked.gpu, asked.batch, asked.tokens) for mode in ("forward", "train")}
        fits = all(map(within, rows.values()))
        good += fits
        forecasts += all("error" not in row for row in rows.values())
        lines.append(line_of(kind, rows, fits))
        print(lines[-1], flush=True)
    total = len(asked.types)
    said = f"{forecasts} of {total} are forecast forward and in training, {good} within every limit."
    print(said)
    if asked.markdown:
        Path(asked.markdown).write_text(page(lines, said, asked.batch, asked.tokens, asked.gpu), encoding="utf-8")
    return 0


def line_of(kind: str, rows: dict[str, dict[str, object]], fits: bool) -> str:
    """A row of the table."""
    first, second = rows["forward"], rows["train"]
    bad = next((row["error"] for row in (first, second) if "error" in row), None)
    if "error" in first:
        return f"| {kind} | | | | | | {bad} |"
    notes = [] if bad is None else [f"train: {bad}"]
    names = sorted({str(n) for row in (first, second) for n in row.get("names", ())})  # type: ignore[attr-defined]
    notes += [f"unknown: {', '.join(names)}"] if names else []
    notes += [] if first["exact"] else ["parameters differ"]
    train = "" if "error" in second else f"{float(str(second['ms'])):.2f}"
    spent = max(float(str(row.get("seconds", 0.0))) for row in rows.values())
    gib = max(float(str(row.get("gib", 0.0))) for row in rows.values())
    millions = float(str(first["parameters"])) / 1e6
    cells = [kind, first["class"], f"{millions:,.1f}", f"{float(str(first['ms'])):.2f}", train]
    cells += [f"{spent:.1f}, {gib:.1f}", "; ".join(notes) or ("" if fits else "slow")]
    return f"| {' | '.join(map(str, cells))} |"


def page(lines: list[str], said: str, batch: int, tokens: int, gpu: str) -> str:
    """docs/reference/architectures.md."""
    import transformers

    head = "| model type | class | parameters (M) | forward (ms) | train (ms) | CPU s, GiB | |"
    about = [
        f"Default configs of model types of transformers {transformers.__version__}, traced as",
        "[tracing](../how-to/tracing.md) does it,",
        f"batch {batch}, {tokens} tokens, {gpu}. {said}",
        f"The limits: parameters as the class counts them, {SECONDS:.0f} s of CPU time and {GIB:.0f} GiB for each,",
        f"{UNKNOWN:.0%} of the time on operators without an entry. Written by `tools/architectures.py --markdown`.",
    ]
    rule = "|---|---|---|---|---|---|---|"
    return "\n".join(["# Architectures that are traced", "", *about, "", head, rule, *lines, ""])


if __name__ == "__main__":
    sys.exit(main())
