#!/usr/bin/env python3
"""What a forecast costs: cold (a new process) and warm (one process, models that share nothing with the last one).

usage: scripts/benchmark.py [--runs 9] [--models 100] [--sweep 10000] [--json]

Cold: `predict --model gpt3 --gpu h100 --json` against `python -c "import numpy, yaml"`, in turn; the medians and their
ratio. Warm: dense transformers of random sizes, each forecast once on a GPU, so that nothing is shared but code and
loaded estimators; the median over the models. Sweep: random serving points (a model, a GPU, tp, batch, lengths of
prompt and output; mode generate: each is a prefill and decode steps with a growing cache) through `predict_many`; the
time of all of them, requests included, over their number.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PREDICT = [sys.executable, "-m", "predictor", "predict", "--model", "gpt3", "--gpu", "h100", "--json"]
BASE = [sys.executable, "-c", "import numpy, yaml"]


def wall(command: list[str]) -> float:
    """Wall time of one process, seconds."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return time.perf_counter() - start


def cold(runs: int) -> dict[str, float]:
    """Medians over ``runs`` pairs, after one of each that is not counted."""
    wall(BASE), wall(PREDICT)
    pairs = [(wall(BASE), wall(PREDICT)) for _ in range(runs)]
    base = statistics.median(b for b, _ in pairs)
    ours = statistics.median(p for _, p in pairs)
    return {"import_numpy_yaml_s": base, "predict_s": ours, "ratio": ours / base}


def warm(count: int) -> dict[str, float]:
    """Median and 90th percentile of the time of one forecast, milliseconds."""
    from predictor.api import predict
    from predictor.hardware.gpu import load_gpu
    from predictor.networks import config_from_dict

    rng = random.Random(0)
    gpu = load_gpu("h100")
    times = []
    for i in range(count + 5):
        heads = rng.randrange(4, 96)
        data = {
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64 * heads, "n_head": heads,
            "n_layer": rng.randrange(2, 96), "vocab_size": rng.randrange(20_000, 150_000), "n_positions": 2048,
            "activation_function": "gelu_new",
        }  # fmt: skip
        config = config_from_dict(data, f"random-{i}")
        seq_len, batch = rng.randrange(64, 2048), rng.randrange(1, 33)
        start = time.perf_counter()
        predict(config, gpu, batch=batch, seq_len=seq_len)
        times.append(time.perf_counter() - start)
    times = sorted(times[5:])  # the first forecasts load the estimators
    return {"median_ms": statistics.median(times) * 1e3, "p90_ms": times[int(0.9 * len(times))] * 1e3, "models": count}


SERVED = ("llama-3.1-8b", "llama-3.1-70b", "qwen2.5-14b", "qwen3-32b", "mistral-7b", "mixtral-8x7b", "gemma-2-9b")
GPUS = ("a100", "h100", "h200", "l40s", "b200", "rtx-pro-6000-server")


def points(count: int, seed: int = 0) -> list[dict[str, object]]:
    """``count`` random serving requests."""
    rng = random.Random(seed)
    return [
        {
            "model": rng.choice(SERVED), "gpu": rng.choice(GPUS), "tp": rng.choice((1, 2, 4, 8)),
            "batch": rng.choice((1, 2, 4, 8, 16, 32, 64, 128, 256)), "seq_len": rng.randrange(16, 8193),
            "output_len": rng.randrange(1, 1025), "mode": "generate",
            "execution": rng.choice(("vllm", "sglang", "tensorrt_llm")),
        }
        for _ in range(count)
    ]  # fmt: skip


def sweep(count: int) -> dict[str, float]:
    """Milliseconds a point: wall time, and time of this process's CPU (on a busy machine the wall is longer)."""
    from predictor.api import predict_many

    predict_many(points(20, seed=1))  # loads the estimators
    requests = points(count)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    predict_many(requests)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return {"points": count, "wall_ms": wall_s / count * 1e3, "cpu_ms": cpu_s / count * 1e3}


def main() -> int:
    """Print all three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--sweep", type=int, default=10_000, metavar="POINTS")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    result = {"cold": cold(arguments.runs), "warm": warm(arguments.models), "sweep": sweep(arguments.sweep)}
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    c, w = result["cold"], result["warm"]
    print(f"cold: predict {c['predict_s'] * 1e3:.0f} ms, import numpy, yaml {c['import_numpy_yaml_s'] * 1e3:.0f} ms,")
    print(f"      ratio {c['ratio']:.2f} (medians of {arguments.runs} in turn)")
    print(f"warm: {w['median_ms']:.2f} ms a forecast (median of {w['models']:.0f} models), p90 {w['p90_ms']:.2f} ms")
    s = result["sweep"]
    print(f"sweep: {s['wall_ms']:.2f} ms a point, {s['cpu_ms']:.2f} ms of CPU ({s['points']:,.0f} serving points)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
