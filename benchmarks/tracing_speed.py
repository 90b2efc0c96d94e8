#!/usr/bin/env python3
"""How long a saved traced graph takes to forecast: warm in one process, and cold, a process of its own from JSON.

    benchmarks/tracing_speed.py [--model llama-3.2-1b] [--gpu h100] [--mode forward] [--runs 7]

CPU time of one core, medians. Warm is the file read and `predictor.predict` of its graph, with estimators loaded; cold
is `predict --model FILE.json`, against `python -c "import numpy, yaml"`, in turns. Needs the extra torch to trace, the
forecasts themselves none.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

#: What the issue set: seconds of a warm forecast, and cold ones in units of the imports.
WARM_S, COLD = 0.020, 4.0


def spent(command: list[str], environment: dict[str, str]) -> float:
    """CPU seconds of a process, its threads and children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def warm(path: Path, gpu: str, mode: str, runs: int) -> list[float]:
    """CPU seconds of reading a graph and its forecast; the first, which loads the estimators, is left out."""
    import predictor
    from predictor.models.forms import model_of

    found: list[float] = []
    for _ in range(runs + 1):
        start = time.process_time()
        predictor.predict(model_of(path), gpu, mode=mode)
        found.append(time.process_time() - start)
    return found[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", default="llama-3.2-1b", help="a model of the catalogue, traced")
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--mode", default="forward", choices=("forward", "train"))
    parser.add_argument("--runs", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.json"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TILECAST_CACHE": folder, "OMP_NUM_THREADS": "1"}
        predict = [sys.executable, "-m", "predictor", "predict", "--gpu", asked.gpu, "--mode", asked.mode, "--json"]
        once = [*predict, "--model", f"traced:{asked.model}", "--save-graph", str(path)]
        traced = spent(once, environment)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
        environment["PYTHONPYCACHEPREFIX"] = folder
        commands = [sys.executable, "-c", "import numpy, yaml"], [*predict, "--model", str(path)]
        for command in commands:
            spent(command, environment)  # writes the bytecode
        cold, imports = [], []
        for _ in range(asked.runs):
            imports.append(spent(commands[0], environment))
            cold.append(spent(commands[1], environment))
        warm_s = statistics.median(warm(path, asked.gpu, asked.mode, asked.runs))
        size = path.stat().st_size
    cold_s, imports_s = statistics.median(cold), statistics.median(imports)
    print(f"{asked.model}, {asked.mode}, {asked.gpu}: a graph of {size / 1e3:,.0f} kB; medians of {asked.runs}")
    print(f"traced, torch and transformers imported, forecast, saved: {traced:.1f} s")
    print(f"warm: {warm_s * 1e3:.1f} ms (asked {WARM_S * 1e3:.0f})")
    times = cold_s / imports_s
    print(f"cold from JSON: {cold_s:.2f} s, {times:.1f} x the imports ({imports_s:.2f} s; asked {COLD:.0f} x)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
