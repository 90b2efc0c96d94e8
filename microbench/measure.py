"""One case -> one row: prepare, run once, name the kernel, check, warm up, measure, summarise.

`microbench.timing` says how long and how precisely. All times inside are seconds; a row's are milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from microbench import kernels, launchers
from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import TOLERANCE, Prepared, allow_tf32
from microbench.measure_rows import shape_cells
from microbench.own_ops import Ceiling
from microbench.schema import SENSOR_LIMITS
from microbench.stopping import median_half_width
from microbench.timing import POWER_CAP, Settings, Timer, Timing
from predictor.data.schema import OWN_SOURCE, ROTATING, SUSTAINED, SUSTAINED_FLAG


class WrongResult(Exception):
    """A kernel whose result is not what the reference says: its time is worth nothing."""


class Measurer:
    """Measures cases on one device; remembers which kernels were checked already."""

    def __init__(self, device: BenchDevice, settings: Settings) -> None:
        self.device = device
        self.settings = settings
        self._environment = device.environment()
        self._checked: set[tuple[Any, ...]] = set()
        self._timer = Timer(device, settings)

    def measure(
        self, case: Case, samples_s: float | None = None, kernel: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The row of ``case``, with samples of ``samples_s`` at most, where that is less than the settings say.

        ``kernel``: what another process saw of its kernels. A GPU's are never looked up here: CUPTI, once attached,
        slows every launch and replay of a process down.
        Raises IllegalCase, WrongResult, MemoryError or what PyTorch raises.
        """
        allow_tf32(case.op.dtype == "tf32", self.device)  # a switch of the process: the case before may have set it
        prepared: Prepared = launchers.load(case.launcher).prepare(case, self.device)
        prepared.launch()
        self.device.synchronize()
        if kernel is None and self.settings.profile and not self.device.profiled_apart:
            kernel = kernels.profile(self.device, prepared.launch)
        kernel = dict(kernel or {})
        error, checked = self._check(case, prepared, kernel.get("kernel_name", ""))
        launch, turns = prepared.launch, 1
        if case.cache == ROTATING:
            launch = prepared.rotation(case.op, self.device.cache_bytes)
            turns = len(launch.calls)
        timing = self._timer.time(case, launch, samples_s, turns)
        row = self._row(case, prepared, timing)
        row |= kernel | {"checked": checked}
        if error is not None:
            row["check_error"] = error
        return row

    def build(self, case: Case) -> dict[str, Any]:
        """One call of ``case``, so that what it has to compile is there when it is timed; an empty row."""
        launchers.load(case.launcher).prepare(case, self.device).launch()
        self.device.synchronize()
        return {}

    # ------------------------------------------------------------------------------------------------------ steps

    def _check(self, case: Case, prepared: Prepared, kernel: str) -> tuple[float | None, str]:
        """Once a kernel: (error, "yes"), or (None, "kernel" or "no")."""
        key = (
            case.launcher,
            case.op.dtype,
            case.phase,
            case.options,
            getattr(case.op, "fn", ""),
            getattr(case.op, "kind", ""),
            kernel,
            prepared.form,
        )
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

    # -------------------------------------------------------------------------------------------------------- row

    def _row(self, case: Case, prepared: Prepared, timing: Timing) -> dict[str, Any]:
        ms = np.asarray(timing.rule.samples) * 1e3
        if not ms.min() > 0:
            raise RuntimeError("a call took no time by the device's clock: it did nothing, or the clock stood still")
        median = float(np.median(ms))
        flags = [prepared.flag] if prepared.flag else []
        if case.protocol == SUSTAINED:
            flags.append(SUSTAINED_FLAG)
        if timing.kept_throttled and set(timing.reasons) != {POWER_CAP}:
            flags.append("throttled")
        row: dict[str, Any] = {
            "case_id": case.id, "launcher": case.launcher, "source": OWN_SOURCE, "source_file": "", "source_row": 0,
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
        held = {name: getattr(timing, name) for name in ("load_s", "gpu_s", "clock_drift")}
        row |= {name: value for name, value in held.items() if value is not None}
        noise = median_half_width(timing.rule.samples)
        if np.isfinite(noise):
            row["noise"] = noise
        row |= self._environment | _state_cells(timing) | dict(prepared.extra or {}) | shape_cells(case)
        if isinstance(case.op, Ceiling):
            amount = case.op.flops() or case.op.bytes_moved()
            row |= {"rate": amount / median * 1e3, "rate_max": amount / float(ms.min()) * 1e3}
        return row


def _state_cells(timing: Timing) -> dict[str, Any]:
    """Medians over the rounds that were kept, of the values that a sensor can have: 0 MHz is what some machines say.

    Power is the energy counter's where the samples took long enough for it, else what the sensor said at the moment.
    """
    cells: dict[str, Any] = {}
    for name, (low, high) in SENSOR_LIMITS.items():
        read = [value for state in timing.states if (value := getattr(state, name)) is not None]
        values = [value for value in read if low <= value <= high]
        if values:
            cells[name] = float(np.median(values))
    sources = {state.power_source for state in timing.states if state.power_source}
    if "power_w" in cells and len(sources) == 1:
        cells["power_source"] = sources.pop()
    low, high = SENSOR_LIMITS["power_w"]
    if timing.watts is not None and low <= timing.watts <= high:
        cells |= {"power_w": timing.watts, "power_source": "energy"}
    return cells
