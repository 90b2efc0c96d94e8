"""Malformed measurements and suites: files -> what the line says of them. `test_malformed` runs them."""

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
    ({"m": ""}, "row 3 (bench.csv row 3): gemm has no m; expected every field of its shape"),
    ({"m": "many"}, "row 3: m is 'many', not a number"),
    ({"batch": "-1"}, "batch is -1"),
    ({"bias": "perhaps"}, "'perhaps', expected True, False"),
    ({"latency_ms": "-1"}, "row 3 (bench.csv row 3): latency_ms is -1: expected a finite number above zero"),
    ({"latency_ms": "0"}, "latency_ms is 0"),
    ({"latency_ms": "nan"}, "row 3: latency_ms is 'nan', not a number"),
    ({"latency_ms": "inf"}, "latency_ms is inf"),
    ({"latency_ms": "1e300"}, "latency_ms is 1e+300"),
    ({"latency_ms": ""}, "row 3 (bench.csv row 3): no latency_ms; expected a value"),
    ({"latency_min_ms": "-2"}, "latency_min_ms is -2"),
    ({"samples": "0"}, "samples is 0"),
    ({"grid_x": "-7"}, "grid_x is -7"),
    ({"op": "gem"}, "row 3 (bench.csv row 3): unknown operator 'gem'"),
    ({"dtype": "bf61"}, "dtype is 'bf61'"),
    ({"protocol": "stopwatch"}, "protocol is 'stopwatch': expected one of eager_events"),
    ({"cache_state": "hot"}, "cache_state is 'hot'"),
    ({"split": "tset"}, "split is 'tset': expected one of train, test; nearest: test"),
    ({"gpu": "h1000"}, "row 3 (bench.csv row 3): unknown GPU 'h1000'"),
    ({"gpu": "\x1b[31mred"}, r"gpu is '\x1b[31mred': expected text without control characters"),
    ({"framework": "a\u202eb"}, r"framework is 'a\u202eb'"),
    ({"source_row": "x"}, "row 3: source_row is 'x', not a number"),
    ({"note": "my own"}, "columns outside the schema: note"),
    ({"kind": "liner"}, "kind is 'liner': expected one of linear, bmm, grouped; nearest: linear"),
    ({"layout": "nnn"}, "layout is 'nnn': expected one of tn, nn, nt, tt"),
]
#: Files of measurements -> words -> what the line says.
DATA: list[tuple[dict[str, str | bytes], str, str]] = [
    (data(rows(of=1600)), TRAIN, "expected milliseconds, these look like microseconds"),
    (data(rows(of=1.6e6)), TRAIN, "these look like nanoseconds"),
    (data(rows(of=1.6e-3)), TRAIN, "8 rows are impossible: expected milliseconds, these look like seconds"),
    (data(rows(of=1600)), "evaluate kernels rows.csv", "these look like microseconds"),
    (data(rows(of=1.6e-3)), "calibrate --gpu h100 --data rows.csv --out new", "these look like seconds"),
    (data(rows()), "train --data rows.csv rows.csv --out new", "stands in rows.csv, row 1, too, as 8 rows do"),
    (
        data(rows()) | {"b.csv": rows({"latency_ms": "0.6"}), "b.csv.meta.json": SIDECAR},
        "train --data rows.csv b.csv --out new",
        "--data b.csv, row 1: stands in rows.csv, row 1, too, as 7 rows do",
    ),
    ({"rows.csv": rows()}, TRAIN, "rows.csv has no schema version in its sidecar rows.csv.meta.json"),
    (data(rows(), '{"schema_version": 1, "schema_version": 1}'), TRAIN, "key 'schema_version' appears twice"),
    (data(rows(), '{"schema_version": 9}'), TRAIN, "schema version 9: expected 1"),
    (data(rows(), "[1]"), TRAIN, "no schema version"),
    (data(rows(), "[" * 100_000), TRAIN, "nested too deep"),
    (data(rows(), '{"schema_version": 1, "devices": "x"}'), TRAIN, "'devices' of the metadata: expected YAML texts"),
    (data(rows(), '{"schema_version": 1, "devices": {"x": 5}}'), TRAIN, "'devices' of the metadata"),
    (data(rows(), '{"schema_version": 1, "devices": {"x": "id: y"}}'), TRAIN, "GPU file 'x.yaml': missing vendor"),
    (data(rows().replace("\n", ",7\n").replace(",7\n", "\n", 1)), TRAIN, "row 1 has not as many cells as the header"),
    (data(rows().replace("split,", "m,", 1)), TRAIN, "column 'm' appears twice"),
    (data(""), TRAIN, "No columns"),
    (data("a,b\n1,2\n"), TRAIN, "columns outside the schema: a, b"),
    (data(rows().encode("utf-16")), TRAIN, "can't decode byte 0xff"),
    ({"rows.parquet": rows()}, "train --data rows.parquet --out new", "not a parquet file"),
    ({"rows.parquet": b"PAR1" + b"\0" * 100 + b"PAR1"}, "dataset describe rows.parquet", "thrift"),
    ({"rows.txt": rows()}, "dataset describe rows.txt", "suffix '.txt': expected .parquet or .csv"),
    (data(rows()), f"{TRAIN} --only-gpu v100", "--only-gpu v100-sxm-32gb: the data has no row of it"),
    (data(rows()), f"{TRAIN} --exclude-gpu h100", "no rows are left to fit on"),
    (data(rows()), f"{TRAIN} --holdout 1", "--holdout 1.0: expected a fraction"),
    (data(rows()), f"{TRAIN} --holdout x", "'x'"),
    (data(rows()), f"{TRAIN} --holdout-by dogs", "'dogs': expected shapes or models"),
    (data(rows()), f"{TRAIN} --seed -1", "--seed: '-1': expected 0 to 2,147,483,647"),
    (data(rows()), f"{TRAIN} --estimators gem", "unknown estimator 'gem'"),
    (data(rows()), f"{TRAIN} --name \x1b[31mred", r"--name '\x1b[31mred': expected text without"),
    (
        data(rows()),
        "train --data rows.csv --out /dev/null",
        "--out '/dev/null': exists and is not a folder",
    ),
    (data(rows({"m": "-5"})), "dataset describe rows.csv", "m is -5"),
    (data(rows()), "calibrate --gpu v100 --data rows.csv --out new", "has no row of v100"),
    (data(rows()), "calibrate --gpu h100 --data rows.csv --out new --artifacts folder", "no estimators at 'folder'"),
    (data(rows()), "evaluate kernels rows.csv --worst -1", "--worst -1: expected 0 or more"),
    (data(rows()), "evaluate kernels rows.csv --by gpu,gpu", "named twice"),
    (data(rows()), "evaluate kernels rows.csv --by gup", "unknown column 'gup'"),
    (
        data(rows()),
        "evaluate kernels rows.csv --out rows.csv",
        "this command reads it (rows.csv)",
    ),
    (data(rows()), "evaluate kernels rows.csv --out x.txt", "expected a .csv or .parquet file"),
    (data(rows()), "evaluate kernels rows.csv --only-gpu v100", "no row is left to evaluate"),
    (data(rows()), "evaluate kernels rows.csv --artifacts folder", "no estimators at 'folder'"),
]
_HEAD = "case,config,mode,gpu,dtype,seq_len,global_batch,measured_ms\n"
_ROW = "a,gpt2,forward,h100,bf16,128,1,5.0\n"
SUITE = _HEAD + _ROW
#: Suites that are refused -> what the line says.
SUITES: list[tuple[str | bytes, str]] = [
    (SUITE.replace("seq_len", "dtype"), "column 'dtype' appears twice"),
    (SUITE.replace("seq_len", "seqlen"), "unknown column 'seqlen'; nearest: seq_len"),
    (SUITE.replace("mode", "way"), "column(s) missing: mode"),
    (SUITE.replace("5.0", "5.0,6"), "row 1: 9 cells; expected 8"),
    (SUITE.replace(",5.0", ""), "row 1: 7 cells; expected 8"),
    (SUITE.encode("utf-16"), "UTF-16 or UTF-32, not UTF-8 text"),
    ("\n\n\n", "found an empty file"),
    ('"' * 1001, "EOF inside string"),
]
#: Cells of the only row of a suite -> the note, with which `evaluate` leaves with status 1.
NOTES: list[tuple[str, str]] = [
    (SUITE.replace("gpt2", "nope"), "no config 'configs/nope.json'"),
    (SUITE.replace("5.0", "-5"), "measured_ms -5: expected a latency above 0"),
    (SUITE.replace("5.0", "x"), "measured_ms 'x': expected a number"),
    (SUITE.replace("128", "nan"), "seq_len 'nan': expected a number"),
    (SUITE.replace("128", "-1"), "seq_len -1: expected a whole number of at least 0"),
    (SUITE.replace("128", "1e30"), "expected at most 100,000,000"),
    (SUITE.replace("forward", "forwrad"), "nearest: forward"),
    (SUITE.replace("bf16", "bf61"), "unknown dtype 'bf61'"),
    (SUITE.replace("h100", "h1000"), "unknown GPU 'h1000'"),
    (SUITE.replace("h100", ""), "gpu is empty; expected a value"),
    (SUITE.replace("forward", "generate"), "generate needs at least 1 token"),
]
