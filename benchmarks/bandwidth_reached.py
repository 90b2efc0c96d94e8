#!/usr/bin/env python
"""Each board's memory bandwidth in the catalogue against the best that a row of datasets/ reaches.

usage: benchmarks/bandwidth_reached.py [--data datasets] [--caches 4]

A row counts where its operands, each read or written once, are ``--caches`` times L2 or more, so that little of them
can lie there from the call before; experts' rows do not, as which of them run is drawn, nor do flagged ones. Rows that
are flagged for their speed alone are counted where they pass the catalogue: it is too low there, or the rows are wrong.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from predictor.data import dataset
from predictor.data.importers.base import FLAG
from predictor.data.sources import SOURCES_FILE
from predictor.files.extras import require
from predictor.hardware.gpu import load_gpu

#: Rows of a board and operator whose bytes are counted by the operator, the fastest by a count of their operands alone.
CANDIDATES = 300
_ITEM = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "fp4": 0.5}


def operand_bytes(frame: dataset.Frame, op: str) -> np.ndarray:
    """About the bytes of the rows' operands, (n,)."""
    columns = {
        name: frame[name].to_numpy(dtype=float, na_value=0.0) for name in frame if frame[name].dtype.kind in "iuf"
    }
    item = np.array([_ITEM.get(dtype, 2.0) for dtype in frame["dtype"].astype(str)])
    c = columns.get
    if op == "gemm":
        m, n, k = columns["m"], columns["n"], columns["k"]
        return columns["batch"] * (item * (m * k + n * k) + 2.0 * m * n)
    if op == "attention":
        return 2.0 * item * columns["batch"] * columns["kv_len"] * columns["kv_heads"] * columns["head_dim"]
    if op == "elementwise":
        return 2.0 * item * columns["elements"]
    return 2.0 * item * (c("rows", 0.0) * c("cols", 0.0))


def best_of(path: Path, caches: float) -> list[tuple[str, float, str]]:
    """(board, bytes/s, row) of the fastest rows of each operator of a shard, of those not flagged but for speed."""
    pd = require("pandas")
    frame = pd.read_parquet(path)
    frame = frame[frame["flag"].astype(str).isin(("", FLAG)).to_numpy()]
    frame = frame[frame["op"].astype(str).isin(("gemm", "attention", "elementwise", "norm", "softmax")).to_numpy()]
    found = []
    for (name, op), rows in frame.groupby([frame["gpu"].astype(str), frame["op"].astype(str)]):
        gpu = load_gpu(name)
        about = operand_bytes(rows, op)
        seconds = rows["latency_ms"].to_numpy(dtype=float) / 1e3
        rate = np.where(about > 0.5 * caches * gpu.l2_bytes, about / seconds, 0.0)
        some = rows.iloc[np.argsort(-rate, kind="stable")[:CANDIDATES]]
        for row, operator in zip(some.itertuples(), dataset.ops_of(some), strict=True):
            moved = operator.bytes_read() + operator.bytes_written()
            if moved >= caches * gpu.l2_bytes:
                told = f"{row.framework} {operator.dtype} {op} {row.source}:{row.source_file}:{row.source_row}"
                found.append((name, moved / row.latency_ms * 1e3, f"{told} {row.flag}".strip()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SOURCES_FILE.parent, help="shards (default datasets/)")
    parser.add_argument("--caches", type=float, default=4.0, help="operands, in times L2 (default 4)")
    arguments = parser.parse_args()
    best: dict[str, tuple[float, str]] = {}
    passing: Counter[str] = Counter()
    for path in sorted(arguments.data.glob("*/*.parquet")):
        for name, rate, told in best_of(path, arguments.caches):
            passing[name] += rate > load_gpu(name).memory_bandwidth
            if not told.endswith(FLAG) and rate > best.get(name, (0.0, ""))[0]:
                best[name] = (rate, told)
    print("| board | catalogue, GB/s | best reached | share | rows that pass it | row |")
    print("| --- | --: | --: | --: | --: | --- |")
    for name, (rate, told) in sorted(best.items()):
        own = load_gpu(name).memory_bandwidth
        print(f"| {name} | {own / 1e9:,.0f} | {rate / 1e9:,.0f} | {rate / own:.0%} | {passing[name]} | {told} |")


if __name__ == "__main__":
    main()
