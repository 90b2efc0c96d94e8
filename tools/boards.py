#!/usr/bin/env python3
"""The GPU catalogue as docs/reference/boards.md: every board, what it can do, and what nobody states of it.

python tools/boards.py > docs/reference/boards.md
"""

from __future__ import annotations

import argparse
from collections import Counter

from predictor.hardware.gpu import GPUSpec, list_gpus, load_gpu
from predictor.hardware.known_names import KNOWN_NAMES

#: Of the table's columns.
HEADS = (
    "name", "board", "architecture", "SMs", "GiB", "GB/s", "16-bit TFLOP/s", "fp8 TFLOP/s", "W", "known",
)  # fmt: skip
INTRO = """# Boards

{count} boards: `tilecast gpus` lists them, and `tilecast gpus NAME` says the source of every value. Peaks are dense, on
tensor or matrix cores where there are any. The last column: *announced*, where the vendor published figures before the
board; *assumed*, with the values that nobody states, which every forecast of the board names, too.

Beside these names, {names} that drivers, engines, benchmarks and clouds use lead to a board: `--gpu "NVIDIA GeForce RTX
3060"`, `--gpu p5.48xlarge` (8 GPUs). A board that is not here is [a file](../how-to/adding-a-gpu.md), most shortly one
with `base:`. Written by `tools/boards.py`.
"""


def page() -> str:
    """The page, boards by vendor, architecture and name."""
    boards = [load_gpu(name) for name in list_gpus()]
    names = sum(row.gpus >= 1 for row in KNOWN_NAMES.rows.values())
    lines = [INTRO.format(count=len(boards), names=names)]
    vendors = Counter(board.vendor for board in boards)
    for vendor, _ in vendors.most_common():
        lines += [f"## {_VENDORS[vendor]}", "", f"|{'|'.join(HEADS)}|", "|" + "---|" * len(HEADS)]
        of_vendor = sorted((b for b in boards if b.vendor == vendor), key=_age)
        lines += [f"|{'|'.join(_row(board))}|" for board in of_vendor] + [""]
    return "\n".join(lines).rstrip() + "\n"


def _age(gpu: GPUSpec) -> tuple[float, str, str]:
    return float(gpu.compute_capability or 0), gpu.architecture, gpu.id


_VENDORS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}


def _row(gpu: GPUSpec) -> tuple[str, ...]:
    half = next((dtype for dtype in ("bf16", "fp16") if gpu.supports(dtype)), None)
    architecture = f"{gpu.architecture} {gpu.compute_capability}" if gpu.compute_capability else gpu.architecture
    return (
        f"`{gpu.id}`", gpu.name.removeprefix(f"{_VENDORS[gpu.vendor]} "), architecture, str(gpu.sm_count),
        f"{gpu.memory_capacity / 2**30:.4g}", f"{gpu.memory_bandwidth / 1e9:.4g}",
        f"{gpu.peak_flops(half) / 1e12:.4g}" if half else "-",
        f"{gpu.peak_flops('fp8') / 1e12:.4g}" if gpu.supports("fp8") else "-", f"{gpu.power_limit_w:g}", _known(gpu),
    )  # fmt: skip


def _known(gpu: GPUSpec) -> str:
    assumed = [name.removeprefix("peak_flops.") for name in gpu.assumed]
    return "; ".join(["announced"] * gpu.announced + [f"assumed: {', '.join(assumed)}"] * bool(assumed))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(page(), end="")
