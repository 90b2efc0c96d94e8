"""The rows of some points: forecast together, and a point that cannot be forecast is a row with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from predictor.errors import TilecastError, one_line
from predictor.forecast.forecast import summaries
from predictor.kernels.artifact import load_artifacts
from predictor.request.request import Request, Runs
from predictor.request.run import Run
from predictor.simulate.answer import Prediction

Row = dict[str, Any]

#: What a row has beside its point and its words.
ANSWERS = (
    "num_gpus", "latency_ms", "mfu", "tokens_per_s", "tokens_per_s_per_gpu", "unit", "units_per_s", "memory_gib",
    "fits", "gpu_busy_ms", "between_kernels_ms", "forward_ms", "backward_ms", "optimizer_ms", "ttft_ms", "tpot_ms",
    "note",
)  # fmt: skip
#: How a note begins that is no answer to a wrong request, but a fault of Tilecast's or of the machine's.
FAILED = "failed: "
#: Words that a row says also where its point leaves them to their defaults.
FILLED = ("mode", "batch", "seq_len", "dtype", "execution")


def columns(words: Sequence[str]) -> tuple[str, ...]:
    """The columns of a sweep whose points have ``words``."""
    rest = [name for name in (*words, *FILLED) if name not in ANSWERS]
    return ("point", *dict.fromkeys(rest), *ANSWERS)


def answer(points: Sequence[Mapping[str, Any]], first: int, artifacts: str | Path | None) -> list[Row]:
    """A row for each of ``points``, numbered from ``first``; what goes wrong with one is its ``note``."""
    selector = load_artifacts(artifacts)
    rows: list[Row] = [{"point": first + i, **words, "note": ""} for i, words in enumerate(points)]
    runs: list[tuple[Row, Run]] = []
    checked = Runs(selector)
    for row, words in zip(rows, points, strict=True):
        try:
            runs.append((row, checked.run(Request(**words))))
        except Exception as error:  # whatever it is, the other points have answers
            row["note"] = _reason(error)
    _fill(runs)
    return rows


def _fill(runs: list[tuple[Row, Run]]) -> None:
    """Forecast runs together; where one of them fails, each half alone."""
    if not runs:
        return
    try:
        answers = [_numbers(each) for each in summaries([run for _, run in runs])]
    except Exception as error:
        if len(runs) == 1:
            runs[0][0]["note"] = _reason(error)
            return
        _fill(runs[: len(runs) // 2])
        _fill(runs[len(runs) // 2 :])
        return
    for (row, _), numbers in zip(runs, answers, strict=True):
        row |= {name: value for name, value in numbers.items() if name not in row or row[name] is None}


def _reason(error: Exception) -> str:
    text = one_line(str(error))
    return text if isinstance(error, TilecastError) else f"{FAILED}{type(error).__name__}: {text}"


def _numbers(prediction: Prediction) -> Row:
    """The words that were left to their defaults, and the answer; times in milliseconds."""
    work = prediction.workload
    phases = {f"{name}_ms": seconds * 1e3 for name, seconds in prediction.phases_s.items()}
    return {
        **{name: getattr(work, name) for name in FILLED},
        "num_gpus": work.parallelism.num_gpus,
        "latency_ms": prediction.latency_ms,
        "mfu": prediction.mfu,
        "tokens_per_s": prediction.tokens_per_s,
        "tokens_per_s_per_gpu": prediction.tokens_per_s_per_gpu,
        "unit": prediction.unit,
        "units_per_s": prediction.units_per_s,
        "memory_gib": prediction.memory.total / 2**30,
        "fits": prediction.memory.fits,
        "gpu_busy_ms": prediction.gpu_busy_s * 1e3,
        "between_kernels_ms": prediction.between_kernels_s * 1e3,
        **{name: value for name, value in phases.items() if name in ANSWERS},
    }
