#!/usr/bin/env python3
"""How much longer a product takes between its like in a captured graph than by a profiler: two tables of one board.

    benchmarks/kernel_gap.py              # needs pandas and datasets/

AIConfigurator replays a graph of calls, so that a kernel's time has the gap to the next one in it; Vidur's rows are a
profiler's, in whole microseconds. Products with up to 64 rows, by the size of their weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

DATA = Path(__file__).parent.parent / "datasets"
SHAPE = ["m", "n", "k"]
#: MiB of weights: what L2 holds, more or less, and what comes from DRAM. Chosen by hand, for the table's sake.
SIZES = [0, 10, 40, 80, 200]


def products(path: Path, dtype: str) -> pd.DataFrame:
    """Median microseconds of every product of few rows, by framework."""
    rows = pd.read_parquet(path, columns=["op", "dtype", "framework", *SHAPE, "latency_ms"])
    few = rows[(rows["op"] == "gemm") & (rows["dtype"] == dtype) & (rows["m"] <= 64)]
    found = few.groupby(["framework", *SHAPE], observed=True)["latency_ms"].median() * 1e3
    return found.reset_index()


def main() -> None:
    """The table, in microseconds."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for gpu in ("a100-sxm-80gb", "h100-sxm"):
        graph = products(DATA / "aiconfigurator" / f"{gpu}.parquet", "bf16")
        alone = products(DATA / "vidur" / f"{gpu}.parquet", "fp16").drop(columns="framework")
        both = graph.merge(alone, on=SHAPE, suffixes=("_graph", "_alone"))
        both["more"] = both["latency_ms_graph"] - both["latency_ms_alone"]
        both["MiB"] = pd.cut(both["n"] * both["k"] * 2 / 2**20, SIZES)
        found = both.groupby(["framework", "MiB"], observed=True)["more"].quantile([0.25, 0.5, 0.75]).unstack()
        print(f"{gpu}: us longer in a graph, quartiles\n{found.round(2)}\n")


if __name__ == "__main__":
    main()
