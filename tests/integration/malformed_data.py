"""Malformed measurements, suites and collections: files -> words -> what the line says. `test_malformed` runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping

#: A good file of measurements: eight linear layers of vllm on an H100, and its sidecar.
GOOD = {
    "source": "made-up", "source_file": "bench.csv", "split": "", "gpu": "h100-sxm", "framework": "vllm",
    "framework_version": "0.24", "kernel_source": "", "protocol": "cuda_graph", "cache_state": "warm", "op": "gemm",
    "dtype": "bf16", "quant": "", "m": "4096", "k": "4096", "bias": "False", "batch": "1", "flag": "",
}  # fmt: skip
SIDECAR = json.dumps({"schema_version": 1})
_BOUND_MS = 2 * 4096**3 / 989.5e12 * 1e3  # of the first row, from the data sheet's bf16 peak


def rows(changes: Mapping[str, str] | None = None, *, row: int = 3, every: bool = False, of: float = 1.6) -> str:
    """The CSV text, with ``changes`` in one row (1 = the first) or in every; latencies are ``of`` times the bound."""
    lines = []
    for number in range(1, 9):
        n = 4096 * number
        cells = GOOD | {"n": str(n), "source_row": str(number), "latency_ms": repr(of * _BOUND_MS * number)}
        lines.append(cells | dict(changes or {} if every or number == row else {}))
    header = list(dict.fromkeys(name for cells in lines for name in cells))
    return "\n".join([",".join(header), *(",".join(c.get(name, "") for name in header) for c in lines)]) + "\n"


def data(text: str | bytes, sidecar: str = SIDECAR) -> dict[str, str | bytes]:
    return {"rows.csv": text, "rows.csv.meta.json": sidecar}


TRAIN = "train --data rows.csv --out new"
#: One cell of row 3 -> what the line says: file, row, value, expected.
CELLS = [
    ({"m": "-5"}, "rows.csv, row 3 (bench.csv row 3): m is -5: expected a whole number from 1"),
    ({"m": "0"}, "m is 0"),
    ({"m": "1e18"}, "m is 1e+18: expected a whole number from 1 to 1e+13"),
    ({"m": "1.5"}, "m is 1.5: expected a whole number"),
    ({"m": "inf"}, "m is inf"),
    ({"m": "1e12"}, "times the memory of h100-sxm: expected a shape that fits"),
    ({"m": ""}, "has no m"),
    ({"m": "many"}, "many"),
    ({"batch": "-1"}, "batch is -1"),
    ({"bias": "perhaps"}, "'perhaps', expected True, False"),
    ({"latency_ms": "-1"}, "row 3 (bench.csv row 3): latency_ms is -1: expected a finite number above zero"),
    ({"latency_ms": "0"}, "latency_ms is 0"),
    ({"latency_ms": "nan"}, "latency_ms"),
    ({"latency_ms": "inf"}, "latency_ms is inf"),
    ({"latency_ms": "1e300"}, "latency_ms is 1e+300"),
    ({"latency_ms": ""}, "without latency_ms"),
    ({"latency_min_ms": "-2"}, "latency_min_ms is -2"),
    ({"samples": "0"}, "samples is 0"),
    ({"grid_x": "-7"}, "grid_x is -7"),
    ({"op": "gem"}, "nearest: gemm"),
    ({"dtype": "bf61"}, "dtype is 'bf61'"),
    ({"protocol": "stopwatch"}, "protocol is 'stopwatch': expected one of eager_events"),
    ({"cache_state": "hot"}, "cache_state is 'hot'"),
    ({"split": "tset"}, "split is 'tset': expected one of train, test; nearest: test"),
    ({"gpu": "h1000"}, "unknown GPU 'h1000'"),
    ({"gpu": "\x1b[31mred"}, r"gpu is '\x1b[31mred': expected text without control characters"),
    ({"framework": "a\u202eb"}, r"framework is 'a\u202eb'"),
    ({"source_row": "x"}, "x"),
    ({"note": "my own"}, "columns outside the schema: note"),
    ({"kind": "liner"}, "kind"),
]
