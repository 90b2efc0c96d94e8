"""LLMCompass' validation measurements (PrincetonUniversity/LLMCompass, BSD-3-Clause): fp16 on an A100 and an MI210.

CSV without a header, one operator and device a file: matmul "m, n, k, 0.1900ms, 101.7Tflops"; softmax and layernorm
"rows, columns, rate"; gelu "elements, rate". The rate is in 10^9 elements a second: elements / rate gives times that
are whole multiples of 2^-22 s, the resolution of the host's clock, which no other unit does, and 4 bytes an element
(one half read, one written) then come to 77 % of the A100's bandwidth at the largest size.

Timed by the host's clock around a call and a synchronization, so about 10 to 50 microseconds of launch stand in every
row. The A100 is the 80 GB SXM board: its GELU moves 1.56 TB/s, more than a 40 GB board's memory does, and its products
reach 293 TFLOP/s, more than a PCIe board sustains.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.data.dataset import Frame
from predictor.data.importers.base import Collector, ImportResult, collect, find, flag_below_bound, is_time, read_csv
from predictor.files.extras import require

EXPECTED = "ae/figure5/<figure>/real_hardware/<operator>_<device>.csv"

GPUS = {"A100": "a100-sxm-80gb", "MI210": "mi210"}
#: File name before the device -> number of values in a row, by definition of LLMCompass' files.
WIDTHS = {"matmul": 5, "softmax": 3, "layernorm": 3, "gelu": 2}
WHOLE_LAYERS = ("transformer", "transformerAR")


def run(root: Path) -> ImportResult:
    """Imports every operator table below `root`. Raises SpecError where there is none in this layout."""
    files = [path for path in find(root, ("**/*_*.csv",)) if path.stem.partition("_")[0] in (*WIDTHS, *WHOLE_LAYERS)]
    result = collect("llmcompass", root, files, EXPECTED, _import_file).result()
    flag_below_bound(result.frame)
    return result


def _import_file(into: Collector, path: Path) -> None:
    pd = require("pandas")
    operator, _, device = path.stem.partition("_")
    raw = read_csv(path, header=None, dtype=str, skipinitialspace=True)
    if operator in WHOLE_LAYERS:
        into.skip_file(path, len(raw), "time of a whole layer, without its shape")
        return
    if device not in GPUS:
        into.skip_file(path, len(raw), f"device {device!r} has no catalogue id here")
        return
    width = WIDTHS[operator]
    cells = raw.reindex(columns=range(width)).apply(lambda column: column.str.replace(r"(ms|Tflops)$", "", regex=True))
    numbers = cells.apply(pd.to_numeric, errors="coerce")
    bad = ~is_time(numbers.to_numpy(dtype=float)).all(axis=1)
    numbers = into.without(path, numbers, bad, f"not {width} numbers above zero")
    if not len(numbers):
        return
    shape, latency_ms = _shape(operator, numbers)
    into.add(path, numbers, {
        "gpu": GPUS[device], "framework": "pytorch", "kernel_source": "eager", "protocol": "host_clock",
        "cache_state": "unknown", "dtype": "fp16", "latency_ms": latency_ms, **shape,
    })  # fmt: skip


def _shape(operator: str, numbers: Frame) -> tuple[dict[str, Any], Any]:
    """The operator's cells and its times in ms."""
    if operator == "matmul":
        shape = {"op": "gemm", "kind": "linear", "layout": "nn", "bias": False, "batch": 1}
        return {**shape, "m": numbers[0], "n": numbers[1], "k": numbers[2]}, numbers[3]
    if operator == "gelu":
        return {"op": "elementwise", "fn": "gelu", "elements": numbers[0]}, numbers[0] / numbers[1] / 1e6
    kind = {"op": "softmax"} if operator == "softmax" else {"op": "norm", "kind": "layer"}
    shape = {**kind, "rows": numbers[0], "cols": numbers[1], "phase": "forward"}
    return shape, numbers[0] * numbers[1] / numbers[2] / 1e6
