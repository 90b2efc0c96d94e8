#!/usr/bin/env python3
"""Where does the bottleneck move when one parameter of a GPU changes?

usage: python examples/what_if.py --gpu examples/hypothetical-gpu.yaml --model llama-3.1-8b --mode decode --batch 64 \\
           --parameter memory_bandwidth --out what-if.png

Multiplies one parameter by 1/4 to 4, forecasts the model on each of these GPUs, and splits its time by what bounds the
operators: compute, memory, or latency (launches, pipelines and tails). Prints the table. What was learned of kernels is
asked about the board as its file has it; what a parameter changes, the formulas say. With --out it draws the table,
which needs matplotlib (pip install matplotlib).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from predictor.errors import TilecastError
from predictor.hardware.gpu import load_gpu
from predictor.hardware.what_if import PARAMETERS, vary
from tilecast import predict

BOUNDS = ("compute", "memory", "latency")
ALL_OPERATORS = 1_000_000


def split_by_bound(model: str, gpu: object, words: dict[str, object]) -> dict[str, float]:
    """Milliseconds of GPU time by what bounds the operators, and "waiting": the time that the GPU waits for the CPU."""
    answer = predict(model, gpu, top=ALL_OPERATORS, **words)  # type: ignore[arg-type]
    times = dict.fromkeys(BOUNDS, 0.0)
    for node in answer.nodes:
        times[node.bound] += node.latency_s * 1e3
    times["waiting"] = max(0.0, answer.latency_ms - sum(times.values()))
    return times


def draw(factors: list[float], rows: list[dict[str, float]], title: str, out: Path) -> None:
    """A stacked area: factor on the parameter across, milliseconds up."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("what_if.py --out needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # words stay words
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullLocator

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    kinds = list(rows[0])
    colours = dict(zip((*BOUNDS, "waiting"), ("#3b6fb6", "#e08b2c", "#7d7d7d", "#c7c7c7"), strict=True))
    axes.stackplot(factors, [[row[k] for row in rows] for k in kinds], labels=kinds, colors=[colours[k] for k in kinds])
    axes.set_xscale("log", base=2)
    axes.set_xticks(factors[::4])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"x{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(title=title, xlabel=title.rsplit(": ", 1)[-1], ylabel="time (ms)", xlim=(factors[0], factors[-1]))
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.legend(title="bound by", loc="upper right")
    figure.savefig(out, dpi=150)


def main() -> int:
    """Forecast, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default=str(Path(__file__).parent / "hypothetical-gpu.yaml"))
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--mode", default="decode")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=2048, help="prompt; in decode the tokens in the KV cache")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--execution", default="cuda_graph")
    parser.add_argument("--parameter", default="memory_bandwidth", choices=list(PARAMETERS))
    parser.add_argument("--out", type=Path, help="picture to write (.png, .svg, .pdf)")
    arguments = parser.parse_args()
    length = "context_len" if arguments.mode == "decode" else "seq_len"
    words: dict[str, object] = {
        "mode": arguments.mode, "batch": arguments.batch, length: arguments.seq_len, "dtype": arguments.dtype,
        "execution": arguments.execution,
    }  # fmt: skip
    factors = [2 ** (step / 4) for step in range(-8, 9)]
    try:
        base = load_gpu(arguments.gpu)
        rows = [split_by_bound(arguments.model, vary(base, arguments.parameter, f), words) for f in factors]
    except TilecastError as error:
        print(f"what_if.py: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.model}, {arguments.mode}, batch {arguments.batch} on {base.name}: {arguments.parameter}")
    print(f"{'factor':>8}" + "".join(f"{kind + ' ms':>14}" for kind in rows[0]) + f"{'total ms':>12}")
    for factor, row in zip(factors, rows, strict=True):
        print(f"{factor:8.2f}" + "".join(f"{row[kind]:14.3f}" for kind in row) + f"{sum(row.values()):12.3f}")
    if arguments.out:
        title = f"{arguments.model} {arguments.mode} on {base.id}: {arguments.parameter}"
        draw(factors, rows, title, arguments.out)
        print(f"written: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
