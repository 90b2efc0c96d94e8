"""What would change the answer: the forecast once more, with one thing about the GPU, the host or the batch changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from predictor.engines import CAPTURED
from predictor.errors import RequestError
from predictor.files.records import dataclass, replace
from predictor.forecast.forecast import Forecast, forecast
from predictor.hardware.what_if import vary
from predictor.kernels.device import NEED_EXPONENT
from predictor.request.run import Run
from predictor.request.workload import Workload
from predictor.simulate.plan import plan_of

#: Factors of each change: the question that is asked, by definition.
MORE = 1.1
LESS = 0.5
TWICE = 2


@dataclass(frozen=True, slots=True)
class Change:
    """One change and the forecast with it. ``speed`` is how many times as fast the run is a sequence (1: no change);
    ``latency_s`` and ``speed`` are None where there is no forecast, and ``note`` says why (or what else follows)."""

    what: str
    before_s: float
    latency_s: float | None
    speed: float | None
    note: str = ""


def sensitivities(of: Forecast) -> tuple[Change, ...]:
    """A tenth more bandwidth, a tenth more FLOP/s, half the launch overhead (where launches count), twice the batch."""
    run, work, latency_s = of.run, of.run.work, of.latency_s
    more = f"{MORE - 1:.0%}".replace("%", " %")
    hardware = (("memory bandwidth", "memory_bandwidth"), ("FLOP/s", "peak_flops"))
    changes = [
        _changed(f"{more} more {name}", latency_s, partial(_with_gpu, run, parameter)) for name, parameter in hardware
    ]
    if any(stage.host != CAPTURED for stage in plan_of(run).stages):
        half = replace(work, launch_overhead_s=work.launch_overhead_s * LESS, launch_overhead_assumed=False)
        changes.append(_changed("half the launch overhead", latency_s, lambda: replace(run, work=half)))
    what = f"twice the batch ({work.batch * TWICE:,}), a sequence"
    changes.append(_changed(what, latency_s, lambda: replace(run, work=_larger(work)), TWICE))
    return tuple(changes)


def _with_gpu(run: Run, parameter: str) -> Run:
    gpu = vary(run.gpu, parameter, MORE)
    if parameter == "peak_flops":  # and the power that they need, or a board at its limit would show no change
        gpu = vary(gpu, "power_limit", MORE if run.work.dtype == "fp32" else MORE**NEED_EXPONENT)
    return replace(run, gpu=gpu)


def _larger(work: Workload) -> Workload:
    """Twice the sequences; a micro-batch that was asked for stays, so that there are twice as many of them."""
    return replace(work, batch=work.batch * TWICE, prompt_lens=work.prompt_lens * TWICE)


def _changed(what: str, before_s: float, make: Callable[[], Run], work: int = 1) -> Change:
    """The forecast of ``make()``, which does ``work`` times as much."""
    try:
        answer = forecast(make(), intervals=False)
    except RequestError as error:
        return Change(what, before_s, None, None, str(error))
    note = "" if answer.memory.fits else "does not fit in memory"
    return Change(what, before_s, answer.latency_s, before_s * work / answer.latency_s, note)
