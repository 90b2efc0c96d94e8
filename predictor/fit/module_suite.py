"""Forecasts of every module in a folder (`predictor.models.traced.module_files`), by board, against measurements."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from predictor.api import predict
from predictor.errors import RequestError, TilecastError, one_line
from predictor.files.read import read_table_text
from predictor.fit.scores import coverage, summarise
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.models.traced.model import TracedModel
from predictor.models.traced.module_files import model_of_file, with_tf32_convolutions

#: Columns of a forecast; ``note`` says why there is none.
COLUMNS = ("module", "gpu", "predicted_ms", "low_ms", "high_ms", "measured_ms", "error_pct", "note")
#: Columns of a table of measurements that are read.
MEASURED = ("module", "gpu", "measured_ms", "execution")
_FIGURES = ("predicted_ms", "low_ms", "high_ms", "measured_ms")


def forecasts(
    folder: Path, files: Sequence[Path], gpus: Sequence[GPUSpec], words: Mapping[str, Any],
    at: Callable[[int], None] = lambda done: None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A row a module and board, in order; ``words`` are those of `predictor.predict`. A module that cannot be traced,
    or forecast, has None and the reason. ``at`` is told how many files are done."""
    for done, path in enumerate(files):
        name = str(path.relative_to(folder).with_suffix(""))
        model: TracedModel | None = None
        reason = ""
        try:
            model = model_of_file(path)
        except TilecastError as error:
            reason = one_line(str(error))
        for gpu in gpus:
            row = dict.fromkeys(COLUMNS) | {"module": name, "gpu": gpu.id, "note": reason}
            yield row if model is None else row | _forecast(model, gpu, words)
        at(done + 1)


def _forecast(model: TracedModel, gpu: GPUSpec, words: Mapping[str, Any]) -> dict[str, Any]:
    tensor_cores = words.get("dtype") == "fp32" and ("matrix", "tf32") in gpu.peaks
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the module's own prints
            answer = predict(with_tf32_convolutions(model) if tensor_cores else model, gpu, **words)
    except TilecastError as error:
        return {"note": one_line(str(error))}
    low, high = (None, None) if answer.interval_s is None else (t * 1e3 for t in answer.interval_s)
    return {"predicted_ms": answer.latency_ms, "low_ms": low, "high_ms": high}


def read_measured(path: Path, execution: str) -> dict[tuple[str, str], float]:
    """(module, board's name in the catalogue) -> milliseconds, of a CSV file. Rows of another ``execution``, where it
    has such a column, are left out. RequestError, one line with the row, for cells that cannot be read."""
    text = read_table_text(path, "a CSV file with module, gpu and measured_ms", MEASURED)
    times: dict[tuple[str, str], float] = {}
    boards: dict[str, str] = {}
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), start=1):
        cells = {name.strip(): cell.strip() for name, cell in row.items()}
        where = f"{path}, row {number}"
        module, board = cells.get("module", ""), cells.get("gpu", "")
        if not module or not board:
            raise RequestError(f"{where}: no {'module' if not module else 'gpu'}; expected module, gpu and measured_ms")
        if cells.get("execution", execution) != execution:
            continue
        if board not in boards:
            boards[board] = load_gpu(board).id
        key = module.removesuffix(".py"), boards[board]
        if key in times:
            raise RequestError(f"{where}: {module} on {board} has a row before; expected each once")
        times[key] = _milliseconds(cells.get("measured_ms", ""), where)
    return times


def _milliseconds(cell: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise RequestError(f"{where}: measured_ms {cell!r}; expected milliseconds above 0")
    return value


def measure(rows: Sequence[dict[str, Any]], times: Mapping[tuple[str, str], float]) -> int:
    """Puts measurements and errors into ``rows``; returns how many measurements are of none of them.

    A measurement's module is a path below the folder, or ends in one, or is the name of one file alone.
    """
    places: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        for name in {row["module"], row["module"].rpartition("/")[2]}:
            places.setdefault((name, row["gpu"]), []).append(row)
    left = 0
    for (module, board), milliseconds in times.items():
        parts = module.split("/")
        tails = ("/".join(parts[i:]) for i in range(len(parts)))
        fit = next((places[tail, board] for tail in tails if (tail, board) in places), [])
        if len(fit) > 1:
            both = f"{fit[0]['module']} and {fit[1]['module']}"
            raise RequestError(f"measured module {module!r}: {both} fit; expected the path")
        left += not fit
        for row in fit:
            if row["measured_ms"] is not None:
                raise RequestError(f"measured module {module!r}: {row['module']} has another row; expected each once")
            row["measured_ms"] = milliseconds
            if row["predicted_ms"] is not None:
                row["error_pct"] = (row["predicted_ms"] / milliseconds - 1.0) * 100.0
    return left


def errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Errors of the rows that were measured, as `summarise` and `coverage` say them."""
    known = [row for row in rows if row["measured_ms"] is not None]
    columns = {name: np.array([row[name] for row in known], dtype=np.float64) for name in _FIGURES}
    return summarise(columns["measured_ms"], columns["predicted_ms"]) | coverage(columns)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The rows as a table."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
