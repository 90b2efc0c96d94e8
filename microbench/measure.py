"""One case -> one row: prepare, run once, name the kernel, check, warm up, measure, summarise.

`Settings` says how long and how precisely. All times inside are seconds; a row's are milliseconds.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from microbench import kernels, launchers
from microbench.case import Case
from microbench.devices.base import Device, Launch, State
from microbench.launchers.base import TOLERANCE, Prepared, allow_tf32
from microbench.measure_rows import shape_cells
from microbench.own_ops import Ceiling
from microbench.schema import SENSOR_LIMITS
from microbench.stopping import StoppingRule, median_half_width

#: The reason for a lower clock that is no fault: a board with a low limit is held by it in every model it runs.
POWER_CAP = "power_cap"


class WrongResult(Exception):
    """A kernel whose result is not what the reference says: its time is worth nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a case is measured; the same for a whole collection.

    A sample is a batch of launches of at least ``sample_s``; ``case_s`` bounds the measuring of one case.
    """

    #: All of these were chosen by hand, not from data (docs/measuring.md says what they do).
    noise: float = 0.01
    min_samples: int = 10
    max_samples: int = 500
    case_s: float = 0.4
    sample_s: float = 0.0005
    warm_up_s: float = 0.02
    profile: bool = True
    check: bool = True


@dataclass(slots=True)
class Timing:
    """Samples in seconds a call, and what was thrown away."""

    rule: StoppingRule
    launches: int
    throttled: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    kept_throttled: bool = False
    states: list[State] = field(default_factory=list)


class Measurer:
    """Measures cases on one device; remembers which kernels were checked already."""

    def __init__(self, device: Device, settings: Settings) -> None:
        self.device = device
        self.settings = settings
        self._environment = device.environment()
        self._checked: set[tuple[Any, ...]] = set()

    def measure(self, case: Case, samples_s: float | None = None) -> dict[str, Any]:
        """The row of ``case``, with samples of ``samples_s`` at most, where that is less than the settings say.

        Raises IllegalCase, WrongResult, MemoryError or what PyTorch raises.
        """
        allow_tf32(case.op.dtype == "tf32", self.device)  # a switch of the process: the case before may have set it
        prepared: Prepared = launchers.load(case.launcher).prepare(case, self.device)
        prepared.launch()
        self.device.synchronize()
        kernel = kernels.profile(self.device, prepared.launch) if self.settings.profile else {}
        error, checked = self._check(case, prepared, kernel.get("kernel_name", ""))
        timing = self._time(case, prepared.launch, samples_s)
        row = self._row(case, prepared, timing)
        row |= kernel | {"checked": checked}
        if error is not None:
            row["check_error"] = error
        return row

    # ------------------------------------------------------------------------------------------------------ steps

    def _check(self, case: Case, prepared: Prepared, kernel: str) -> tuple[float | None, str]:
        """Once a kernel: (error, "yes"), or (None, "kernel" or "no")."""
        key = (case.launcher, case.op.dtype, case.phase, case.options, getattr(case.op, "fn", ""), kernel)
        if not self.settings.check or prepared.check is None:
            return None, "no"
        if key in self._checked:
            return None, "kernel"
        error = prepared.check()
        if error is None:
            return None, "no"
        if not error <= TOLERANCE[case.op.dtype]:
            raise WrongResult(
                f"the result is off by {error:.2g} of its largest value; {case.op.dtype} may be off by "
                f"{TOLERANCE[case.op.dtype]:.2g}"
            )
        self._checked.add(key)
        return float(error), "yes"

    def _warm_up(self, launch: Launch) -> float:
        """Launches until ``warm_up_s`` have passed (twice at least); returns seconds of the quickest call."""
        begin, count, once = time.perf_counter(), 0, float("inf")
        while count < 2 or (time.perf_counter() - begin < self.settings.warm_up_s and count < 10_000):
            once = min(once, self.device.time_batch(launch, 1))
            count += 1
        return max(once, 1e-9)

    def _time(self, case: Case, launch: Launch, samples_s: float | None = None) -> Timing:
        settings = self.settings
        once = self._warm_up(launch)
        longest_s = min(settings.case_s, samples_s or settings.case_s)
        rule = StoppingRule(settings.noise, settings.min_samples, settings.max_samples, longest_s)
        if case.cache == "cold":
            return self._rounds(rule, 1, lambda: self.device.time_cold(launch, 5 if once < 0.01 else 1))
        launches = int(min(1000, max(1, np.ceil(settings.sample_s / once))))
        if case.protocol != "cuda_graph":
            repeats = 5 if once * launches < 0.01 else 1
            return self._rounds(
                rule, launches, lambda: [self.device.time_batch(launch, launches) for _ in range(repeats)]
            )
        launches = min(1000, max(4, 2 * launches))  # a kernel alone is quicker than its launch
        replay = self.device.capture(launch, launches)
        self.device.time_replays(replay, 2)
        graph_s = max(self.device.time_replays(replay, 1), 1e-9)
        replays = int(min(16, max(1, np.ceil(settings.sample_s / graph_s))))
        repeats = 5 if graph_s * replays < 0.01 else 1
        return self._rounds(
            rule, launches * replays,
            lambda: [self.device.time_replays(replay, replays) / launches for _ in range(repeats)],
        )  # fmt: skip

    def _rounds(self, rule: StoppingRule, launches: int, take: Any) -> Timing:
        """Takes samples until the rule says stop. A round that saw throttling, before or after, is thrown away.

        A board that throttles for the whole time-out gives no clean sample; then what it gave is kept and the row is
        flagged "throttled". Not where its power limit alone did it: that is how fast such a board runs large products.
        """
        timing = Timing(rule, launches)
        thrown: list[float] = []
        begin = time.perf_counter()
        before = self.device.state()
        while not rule.done(time.perf_counter() - begin):
            samples = take()
            after = self.device.state()
            reasons = set(before.throttled) | set(after.throttled)
            before = after
            if not reasons:
                rule.add(samples)
                timing.states.append(after)
                continue
            thrown += samples
            timing.throttled += len(samples)
            timing.reasons.update(reasons)
            if not rule.samples and time.perf_counter() - begin > rule.timeout_s:
                rule.add(thrown)
                timing.states.append(after)
                timing.kept_throttled = True
            else:
                before = self.device.rest(after)
        return timing

    # -------------------------------------------------------------------------------------------------------- row

    def _row(self, case: Case, prepared: Prepared, timing: Timing) -> dict[str, Any]:
        ms = np.asarray(timing.rule.samples) * 1e3
        if not ms.min() > 0:
            raise RuntimeError("a call took no time by the device's clock: it did nothing, or the clock stood still")
        median = float(np.median(ms))
        flags = [prepared.flag] if prepared.flag else []
        if timing.kept_throttled and set(timing.reasons) != {POWER_CAP}:
            flags.append("throttled")
        row: dict[str, Any] = {
            "case_id": case.id, "launcher": case.launcher, "source": "microbench", "source_file": "", "source_row": 0,
            "split": "", "gpu": self.device.id, "framework": "pytorch",
            "framework_version": str(self._environment["torch_version"]), "kernel_source": prepared.kernel_source,
            "protocol": case.protocol, "cache_state": case.cache, "quant": "",
            "options": json.dumps(dict(case.options)),
            "latency_ms": median, "latency_min_ms": float(ms.min()), "latency_mean_ms": float(ms.mean()),
            "latency_median_ms": median, "latency_max_ms": float(ms.max()), "latency_std_ms": float(ms.std()),
            "samples": len(ms), "launches": timing.launches, "stop": timing.rule.reason, "flag": ";".join(flags),
            "throttled_samples": timing.throttled, "throttle_reasons": ";".join(sorted(timing.reasons)),
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        noise = median_half_width(timing.rule.samples)
        if np.isfinite(noise):
            row["noise"] = noise
        row |= self._environment | _state_cells(timing.states) | (prepared.extra or {}) | shape_cells(case)
        if isinstance(case.op, Ceiling):
            amount = case.op.flops() or case.op.bytes_moved()
            row |= {"rate": amount / median * 1e3, "rate_max": amount / float(ms.min()) * 1e3}
        return row


def _state_cells(states: list[State]) -> dict[str, Any]:
    """Medians over the rounds that were kept, of the values that a sensor can have: 0 MHz is what some machines say."""
    cells: dict[str, Any] = {}
    for name, (low, high) in SENSOR_LIMITS.items():
        read = [value for state in states if (value := getattr(state, name)) is not None]
        values = [value for value in read if low <= value <= high]
        if values:
            cells[name] = float(np.median(values))
    return cells
