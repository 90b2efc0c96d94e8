#!/usr/bin/env python3
"""What a forecast costs: cold (a new process) and warm (one process, models that share nothing with the last one).

usage: benchmarks/speed.py [--runs 9] [--models 100] [--sweep 10000] [--grid 2000] [--many 100000] [--users 10]
                           [--seconds 8] [--cold] [--searches [3]] [--simulate] [--trace] [--json]

Cold: `predict --model gpt3 --gpu h100` into a pipe against `python -c "import numpy, yaml"`, in turn: CPU time of each
process, wall time and peak memory; the medians, and those of the ratios. `--cold` measures this alone. Warm: dense
transformers of random sizes, each forecast once on a GPU, so that nothing is shared but code and loaded estimators; the
median over the models. Sweep: random serving points (a model, a GPU, tp, batch, lengths of prompt and output; mode
generate: each is a prefill and decode steps with a growing cache) through `predict_many`; the time of all of them,
requests included, over their number. Grid: prompts and decode steps of one model on one GPU, over batch, length and tp,
with their intervals. Many: one call of `predict_many` with so many points of such a grid, in a process of its own: its
CPU time and its peak memory. Page: what an answer of `tilecast ui` costs the process that gives it, of the questions of
benchmarks/ui_load.py, and how many answers a second so many users get from a server on loopback (needs the extra "ui").
Searches (`--searches`, these alone): `plan` and `serve plan` as new processes, each in turn with
the yardstick of a cold command; the least CPU time of so many runs, and its ratio to the least of the yardstick.

`--simulate`: `serve simulate` of 10,000 requests at 20 a second, alone. `--trace`: the first forecast of a large class
of transformers (DeepSeek-V4 with its default config), forward and decode, alone; needs the extra "torch". Both are cold
commands beside the imports, as `--cold`, of ``--runs`` pairs.

A time holds on one machine. So each stands beside a yardstick, a fixed loop of Python and numpy (`yardstick`) that is
timed in turn with it, and its multiple of that: the ratio of times of this process's CPU, which other work on the
machine disturbs less than it does the wall clock.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PREDICT = [sys.executable, "-m", "predictor", "predict", "--model", "gpt3", "--gpu", "h100"]
BASE = [sys.executable, "-c", "import numpy, yaml"]
SIMULATE = [
    sys.executable, "-m", "predictor", "serve", "simulate", "--model", "llama-3.1-8b", "--gpu", "h100", "--rate", "20",
    "--isl", "1000", "--osl", "250", "--requests", "10000", "--json",
]  # fmt: skip
#: A class of transformers with a long graph, by its model type.
TRACED = "deepseek_v4"
#: Python keeps compiled modules, as it does for a user: an installed numpy has its own either way.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def process(command: list[str], environment: dict[str, str] = ENVIRONMENT) -> tuple[float, float, float]:
    """(CPU seconds, wall seconds, MiB at its peak) of one process. RuntimeError where it fails."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment) as running:
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit status {running.returncode}")
    kib = used.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return used.ru_utime + used.ru_stime, time.perf_counter() - start, kib / 1024


def cold(runs: int) -> dict[str, float]:
    """Medians over ``runs`` pairs, after one of each that is not counted."""
    process(BASE), process(PREDICT)
    pairs = [(process(BASE), process(PREDICT)) for _ in range(runs)]
    of = {name: [p[1][i] for p in pairs] for i, name in enumerate(("predict_cpu_s", "predict_s", "peak_mib"))}
    of["import_numpy_yaml_cpu_s"] = [base[0] for base, _ in pairs]
    of["cpu_ratio"] = [ours[0] / base[0] for base, ours in pairs]
    of["wall_ratio"] = [ours[1] / base[1] for base, ours in pairs]
    return {name: statistics.median(figures) for name, figures in of.items()}


def against_imports(runs: int, run: Callable[[], tuple[float, float, float]]) -> dict[str, float]:
    """As `cold`, of ``run``, which starts a process."""
    process(BASE), run()
    pairs = [(process(BASE), run()) for _ in range(runs)]
    of = {name: [ours[i] for _, ours in pairs] for i, name in enumerate(("cpu_s", "wall_s", "peak_mib"))}
    of["cpu_ratio"] = [ours[0] / base[0] for base, ours in pairs]
    return {name: statistics.median(figures) for name, figures in of.items()}


def first_trace(mode: str, config: Path) -> tuple[float, float, float]:
    """A forecast that traces the class of a config.json, with an empty folder of recordings."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*PREDICT[:4], "--model", f"traced:{config}", "--gpu", "h100", "--mode", mode, "--json"]
        return process(command, {**ENVIRONMENT, "TILECAST_CACHE": folder})


def traces(runs: int) -> dict[str, dict[str, float]]:
    """First traces of `TRACED`, by mode."""
    write = f"from transformers import AutoConfig as A; A.for_model({TRACED!r}).save_pretrained(sys.argv[1])"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", f"import sys; {write}", folder], check=True)
        config = Path(folder) / "config.json"
        return {mode: against_imports(runs, partial(first_trace, mode, config)) for mode in ("forward", "decode")}


def alone(arguments: argparse.Namespace) -> int:
    """Print what `--simulate` and `--trace` ask for."""
    result: dict[str, Any] = {"machine": machine()}
    if arguments.simulate:
        result["simulate"] = against_imports(arguments.runs, partial(process, SIMULATE))
    if arguments.trace:
        result |= {f"trace {mode}": figures for mode, figures in traces(arguments.runs).items()}
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"machine: {result.pop('machine')}")
    for name, figures in result.items():
        print(f"{name}: {figures['cpu_s']:.2f} s of CPU, {figures['cpu_ratio']:.0f} times the imports;", end=" ")
        print(f"{figures['wall_s']:.1f} s, {figures['peak_mib']:.0f} MiB at its peak (medians of {arguments.runs})")
    return 0


def yardstick() -> float:
    """A fixed loop, a millisecond or so: of Python's objects, and of numpy's calls on small arrays, as a forecast."""
    import numpy

    found: dict[int, float] = {}
    for i in range(4000):
        key = (i * 7919) % 257
        found[key] = found.get(key, 0.0) + i / (key + 1.0)
    values = numpy.arange(64, dtype=float)
    for _ in range(250):
        values = numpy.maximum(values * 0.5, 1.0) + numpy.sqrt(values)
    return sum(found.values()) + float(values.sum())


class Pair:
    """Times of what is measured and of the yardstick, taken in turn."""

    def __init__(self) -> None:
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []
        self.yard_wall_s: list[float] = []
        self.yard_cpu_s: list[float] = []

    def time(self, call: Callable[[], object], yards: int = 1) -> None:
        """Times ``call`` once, and the yardstick ``yards`` times after it."""
        for work, count, wall_s, cpu_s in (
            (call, 1, self.wall_s, self.cpu_s), (yardstick, yards, self.yard_wall_s, self.yard_cpu_s),
        ):  # fmt: skip
            for _ in range(count):
                begin, cpu = time.perf_counter(), time.process_time()
                work()
                wall_s.append(time.perf_counter() - begin)
                cpu_s.append(time.process_time() - cpu)

    def figures(self, each: int = 1) -> dict[str, float]:
        """The yardstick in milliseconds (median), and the multiple of it that one of ``each`` parts of a call takes."""
        multiple = statistics.median(self.cpu_s) / each / statistics.median(self.yard_cpu_s)
        return {"yardstick_ms": statistics.median(self.yard_wall_s) * 1e3, "yardsticks": multiple}


def machine() -> str:
    """The processor's name and its cores as this process may use them."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    numpy_version = importlib.metadata.version("numpy")
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {cores} cores, Python {platform.python_version()}, numpy {numpy_version}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def warm(count: int) -> dict[str, float]:
    """Median and 90th percentile of the time of one forecast, milliseconds."""
    from predictor.api import predict
    from predictor.hardware.gpu import load_gpu
    from predictor.models.built import config_from_dict

    rng = random.Random(0)
    gpu = load_gpu("h100")
    pair = Pair()
    for i in range(count + 5):
        heads = rng.randrange(4, 96)
        data = {
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64 * heads, "n_head": heads,
            "n_layer": rng.randrange(2, 96), "vocab_size": rng.randrange(20_000, 150_000), "n_positions": 2048,
            "activation_function": "gelu_new",
        }  # fmt: skip
        config = config_from_dict(data, f"random-{i}")
        seq_len, batch = rng.randrange(64, 2048), rng.randrange(1, 33)
        if i == 5:  # the first forecasts load the estimators
            pair = Pair()
        pair.time(partial(predict, config, gpu, batch=batch, seq_len=seq_len))
    times = sorted(pair.wall_s)
    p90 = times[int(0.9 * len(times))]
    return {
        "median_ms": statistics.median(times) * 1e3,
        "p90_ms": p90 * 1e3,
        "cpu_ms": statistics.median(pair.cpu_s) * 1e3,
        "models": count,
    } | pair.figures()


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
    """Milliseconds a point, wall and CPU, over calls of up to 1,000 points each."""
    from predictor.api import predict_many

    predict_many(points(20, seed=1))  # loads the estimators
    requests = points(count)
    size = min(count, 1000)
    pair = Pair()
    for first in range(0, count - size + 1, size):
        pair.time(partial(predict_many, requests[first : first + size]), yards=20)
    wall_ms, cpu_ms = (statistics.mean(times) / size * 1e3 for times in (pair.wall_s, pair.cpu_s))
    return {"points": len(pair.wall_s) * size, "wall_ms": wall_ms, "cpu_ms": cpu_ms} | pair.figures(size)


def grid_points(count: int, step: int = 128) -> list[dict[str, object]]:
    """``count`` prompts and decode steps of a model on a board, of lengths ``step`` tokens apart."""
    rng = random.Random(0)
    axes = [(batch, tokens, tp) for batch in range(1, 257) for tokens in range(step, 8193, step) for tp in (1, 2, 4, 8)]
    requests: list[dict[str, object]] = []
    for i, (batch, tokens, tp) in enumerate(rng.sample(axes, count)):
        length = {"mode": "decode", "context_len": tokens} if i % 2 else {"mode": "prefill", "seq_len": tokens}
        words = {"model": "llama-3.1-8b", "gpu": "h100", "execution": "vllm", "batch": batch, "tp": tp}
        requests.append({**words, **length})
    return requests


def grid(count: int) -> dict[str, float]:
    """Milliseconds a point of a grid over batch, length and tp, wall and CPU: the median of seven calls."""
    from predictor.api import predict_many

    requests = grid_points(count)
    predict_many(requests)  # loads the estimators
    pair = Pair()
    for _ in range(7):
        pair.time(partial(predict_many, requests), yards=20)
    wall_ms, cpu_ms = (statistics.median(times) / count * 1e3 for times in (pair.wall_s, pair.cpu_s))
    return {"points": count, "wall_ms": wall_ms, "cpu_ms": cpu_ms} | pair.figures(count)


def many(count: int) -> dict[str, float]:
    """One `predict_many` of ``count`` points in a process of its own: CPU and wall seconds, MiB at its peak."""
    code = f"import speed; speed.predict_points({count})"
    pair, used = Pair(), (0.0, 0.0, 0.0)

    def run() -> None:
        nonlocal used
        used = process([sys.executable, "-c", f"import sys; sys.path[:0] = ['.', 'benchmarks']; {code}"])

    pair.time(run, yards=50)
    cpu_s, wall_s, peak_mib = used
    multiple = cpu_s / count / statistics.median(pair.yard_cpu_s)
    return {"points": count, "cpu_s": cpu_s, "wall_s": wall_s, "peak_mib": peak_mib, "yardsticks": multiple}


def predict_points(count: int) -> None:
    """What `many` runs."""
    from predictor.api import predict_many

    answers = predict_many(grid_points(count, step=64))
    assert len(answers) == count
    assert all(answer.interval_s is not None for answer in answers)


def answers(count: int) -> dict[str, float]:
    """Milliseconds of CPU that an answer of the page takes in the process that gives it."""
    import ui_load

    from predictor.request.options import OPTIONS
    from predictor.ui.desk import reply
    from predictor.ui.fields import fields_of

    fields, draw, pair = tuple(fields_of(OPTIONS.values())), random.Random(0), Pair()
    for i in range(count + 100):
        body = json.dumps(ui_load.state(draw)).encode()
        if i == 100:  # the first answers load the estimators, and make templates
            pair = Pair()
        pair.time(partial(reply, fields, {}, None, ("answer", body)))
    return {"answers": count, "cpu_ms": statistics.median(pair.cpu_s) * 1e3} | pair.figures()


def page(users: int, seconds: float) -> dict[str, float]:
    """What an answer of the page costs, and how many a second ``users`` get on loopback in so many seconds."""
    import ui_load

    times = ui_load.load(users, seconds)
    return answers(300) | {
        "users": users,
        "a_second": len(times) / seconds,
        "median_ms": statistics.median(times) * 1e3,
    }


_SERVED = "serve plan --isl 4000 --osl 1000 --ttft 1s --tpot 20ms"
#: What is searched for, and seconds of a processor that are asked of it.
SEARCHES = {
    "plan gpt3, 1,024 A100": ("plan --model gpt3 --gpu a100 --num-gpus 1024 --global-batch 1536", 1.2),
    "serve plan qwen3-32b, 8 H200, one engine": (
        f"{_SERVED} --model qwen3-32b --gpu h200 --num-gpus 8 --execution vllm", 0.8,
    ),
    "serve plan deepseek-v3, 72 GB200": (f"{_SERVED} --model deepseek-v3 --gpu gb200 --num-gpus 72", 10.0),
}  # fmt: skip


def searches(runs: int) -> dict[str, dict[str, float]]:
    """CPU seconds of each search, of its yardstick, and their ratio: the least of ``runs`` in turn, after one that is
    not counted."""
    process(BASE)
    rows = {}
    for name, (words, asked_s) in SEARCHES.items():
        command = [sys.executable, "-m", "predictor", *words.split(), "--json"]
        process(command) if runs > 1 else None
        pairs = [(process(BASE)[0], process(command)[0]) for _ in range(runs)]
        base_s, cpu_s = (min(side) for side in zip(*pairs, strict=True))
        rows[name] = {"cpu_s": cpu_s, "import_numpy_yaml_cpu_s": base_s, "ratio": cpu_s / base_s, "asked_s": asked_s}
    return rows


def show(result: dict[str, Any], runs: int) -> None:
    """Print what was measured, in words; ``runs`` pairs of cold commands."""
    c = result["cold"]
    print(f"machine: {result['machine']}")
    print(f"cold: predict {c['predict_cpu_s'] * 1e3:.0f} ms of CPU, import numpy, yaml", end=" ")
    print(f"{c['import_numpy_yaml_cpu_s'] * 1e3:.0f} ms: ratio {c['cpu_ratio']:.2f}, of wall time", end=" ")
    print(f"{c['wall_ratio']:.2f}; {c['peak_mib']:.0f} MiB at its peak (medians of {runs} in turn)")
    if "warm" not in result:
        return
    w, s = result["warm"], result["sweep"]
    print(f"warm: {w['median_ms']:.2f} ms a forecast (median of {w['models']:.0f} models), p90 {w['p90_ms']:.2f} ms,")
    print(f"      {w['cpu_ms']:.2f} ms of CPU; {w['yardsticks']:.2f} yardsticks of {w['yardstick_ms']:.2f} ms")
    print(f"sweep: {s['wall_ms']:.2f} ms a point, {s['cpu_ms']:.2f} ms of CPU ({s['points']:,.0f} serving points);")
    print(f"      {s['yardsticks']:.2f} yardsticks of {s['yardstick_ms']:.2f} ms")
    g = result["grid"]
    print(
        f"grid: {g['wall_ms']:.3f} ms a point with its interval, {g['cpu_ms']:.3f} ms of CPU; {g['points']:,.0f} points"
    )
    print(f"      of batch x length x tp; {g['yardsticks']:.3f} yardsticks of {g['yardstick_ms']:.2f} ms")
    m, p = result["many"], result["page"]
    print(
        f"many: {m['points']:,.0f} points in {m['wall_s']:.1f} s, {m['cpu_s']:.1f} s of CPU, {m['peak_mib']:.0f} MiB at"
    )
    print(f"      its peak; {m['yardsticks']:.3f} yardsticks a point")
    print(f"page: {p['a_second']:.0f} answers a second for {p['users']:.0f} users, median {p['median_ms']:.0f} ms;")
    print(
        f"      {p['cpu_ms']:.2f} ms of CPU an answer, {p['yardsticks']:.2f} yardsticks of {p['yardstick_ms']:.2f} ms"
    )


def main() -> int:
    """Print all of them, or the searches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--sweep", type=int, default=10_000, metavar="POINTS")
    parser.add_argument("--grid", type=int, default=2000, metavar="POINTS")
    parser.add_argument("--many", type=int, default=100_000, metavar="POINTS")
    parser.add_argument("--users", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=8.0, help="for how long the users ask")
    parser.add_argument("--cold", action="store_true", help="the cold command alone")
    parser.add_argument("--searches", type=int, nargs="?", const=3, metavar="RUNS", help="the searches alone")
    parser.add_argument("--simulate", action="store_true", help="10,000 requests under load alone")
    parser.add_argument("--trace", action="store_true", help="first traces of a large class alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.simulate or arguments.trace:
        return alone(arguments)
    sys.path.insert(0, str(ROOT))
    if arguments.searches:
        rows = searches(arguments.searches)
        if arguments.json:
            print(json.dumps({"machine": machine(), "searches": rows}, indent=2))
            return 0
        print(f"machine: {machine()}")
        for name, row in rows.items():
            print(f"{name}: {row['cpu_s']:.2f} s of CPU (asked: {row['asked_s']:g} s), import numpy, yaml", end=" ")
            print(f"{row['import_numpy_yaml_cpu_s']:.3f} s: ratio {row['ratio']:.1f} (least of {arguments.searches})")
        return 0
    result: dict[str, Any] = {"machine": machine(), "cold": cold(arguments.runs)}
    if not arguments.cold:
        result |= {"many": many(arguments.many)}  # before this process grows: whom it starts counts its peak, too
        result |= {"warm": warm(arguments.models), "sweep": sweep(arguments.sweep), "grid": grid(arguments.grid)}
        result |= {"page": page(arguments.users, arguments.seconds)}
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    show(result, arguments.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
