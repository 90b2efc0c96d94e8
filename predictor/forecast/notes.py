"""Lines of an answer beside its figures: of the board, of the model, and of a step that more sequences make faster."""

from __future__ import annotations

import numpy as np

from predictor.files.records import replace
from predictor.hardware.gpu import LINKS, GPUSpec
from predictor.kernels.base import predict_kernels
from predictor.ops import Gemm
from predictor.request.run import Run
from predictor.simulate.times import TimedStage

#: How many times the rows are looked at; chosen by hand, not from data: what a person would try next.
_MORE = (2, 4, 8)
#: By what share fewer rows are slower before it is said; chosen by hand, not from data: what a person would notice.
_FALLS = 0.05


def board_notes(gpu: GPUSpec, num_gpus: int) -> tuple[str, ...]:
    """A line where values of the board are assumed, and where it is announced; values that were set are known."""
    assumed = [name for name in gpu.assumed if num_gpus > 1 or name not in LINKS]
    lines = []
    if gpu.announced:
        lines.append(f"{gpu.id} is announced: the forecast rests on figures that its vendor published beforehand.")
    if assumed:
        peaks = [name for name in assumed if name.startswith("peak_flops")]
        named = [name for name in assumed if name not in peaks] + ["peak_flops"] * bool(peaks)
        lines.append(f"Nobody states {', '.join(named)} of {gpu.id}: assumed, as `tilecast gpus {gpu.id}` says.")
    return tuple(lines)


def model_notes(run: Run) -> tuple[str, ...]:
    """What is said of the model; with images, not that they are left out."""
    notes = run.config.notes
    if run.work.serving is None or run.work.serving.images is None:
        return notes
    from predictor.models.built.stand_in import LANGUAGE_ALONE  # few runs have images

    return tuple(note for note in notes if note != LANGUAGE_ALONE.format(run.config.name))


def falling_notes(run: Run, step: TimedStage) -> tuple[str, ...]:
    """A line where the linear layers of a decode ``step`` would be faster with more sequences; else none.

    A table of measured kernels may have more rows faster than fewer, where a library has another kernel for them. A
    forecast follows its board's table (docs/explanation/limits.md, Between measured sizes), so the answer says it.
    """
    if run.work.mode != "decode":
        return ()
    products = [(item, item.op) for item in step.op_times() if isinstance(item.op, Gemm) and item.op.kind == "linear"]
    if not products:
        return ()
    ops = [replace(op, m=op.m * more) for more in _MORE for _, op in products]
    engine = run.work.engine
    larger = predict_kernels(ops, run.gpu, run.selector, engine.kernels, engine.library_of(run.gpu), engine.serves)
    times = np.array([item.times for item, _ in products])
    now_s = float(sum(item.times * step.table.latency_s[item.index] for item, _ in products))
    more_s = larger.latency_s.reshape(len(_MORE), -1) @ times
    best = int(np.argmin(more_s))
    if now_s <= (1.0 + _FALLS) * more_s[best]:
        return ()
    return (
        f"Linear layers take {now_s / more_s[best]:.2f} times as long as with {_MORE[best]} times the batch, as"
        " measured on this GPU or a similar one: a larger batch may be faster.",
    )
