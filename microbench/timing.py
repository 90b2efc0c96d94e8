"""How a call becomes samples: warm-up, load, rounds, and what of them is kept. All times are in seconds.

Protocol "cuda_graph" is the burst: a board that was at rest, whose rounds below the full clock are thrown away.
"cuda_graph_sustained" is the long run: `Settings.load_s` of load before, until the clock has settled, then at least
`Settings.min_gpu_s` of GPU time, with what the power limit makes of it; every sample is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from microbench.devices.base import BenchDevice, DeviceState, Launch
from microbench.stopping import StoppingRule
from microbench.timing_settings import LONG_SAMPLES, MOST_LAUNCHES, Settings
from predictor.data.schema import CUDA_GRAPH, SUSTAINED

if TYPE_CHECKING:
    from microbench.case import Case

__all__ = ["POWER_CAP", "Settings", "Timer", "Timing"]

#: The reason for a lower clock that is no fault: a board with a low limit is held by it in every model it runs.
POWER_CAP = "power_cap"
#: Replays between two looks at the clock of a loaded board, and how far its medians may lie apart for the clock to have
#: settled: chosen by hand, not from data.
_LOOK_S, _SETTLED = 0.05, 0.01
#: Looks at a loaded board's clock that have to agree, and the longest load over the least: chosen by hand, not from
#: data.
_LOOKS, _LONGEST_LOAD = 3, 5.0


@dataclass(slots=True)
class Timing:
    """Samples in seconds a call, and what was thrown away. ``watts``: of the energy counter, over the samples."""

    rule: StoppingRule
    launches: int
    throttled: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    kept_throttled: bool = False
    states: list[DeviceState] = field(default_factory=list)
    load_s: float | None = None
    gpu_s: float | None = None
    clock_drift: float | None = None
    watts: float | None = None


class Timer:
    """Times calls on one device."""

    def __init__(self, device: BenchDevice, settings: Settings) -> None:
        self.device, self.settings = device, settings

    def time(self, case: Case, launch: Launch, samples_s: float | None = None, turns: int = 1) -> Timing:
        """The samples of ``case``, ``samples_s`` of them at most where that is less than the settings say.

        Of a rotation, ``turns`` launches go once around: a sample holds whole rounds.
        """
        settings = self.settings
        once = self._warm_up(launch)
        longest_s = min(settings.case_s, samples_s or settings.case_s)
        rule = StoppingRule(settings.noise, settings.min_samples, settings.max_samples, longest_s)
        if case.cache == "cold":
            return self._rounds(rule, 1, lambda: self.device.time_cold(launch, 5 if once < 0.01 else 1))
        if case.protocol == SUSTAINED:
            return self._sustained(launch, once, samples_s, turns)
        if case.protocol == CUDA_GRAPH:
            replay, launches, graph_s = self._graph(launch, once, settings.sample_s, turns)
            replays = int(min(16, max(1, np.ceil(settings.sample_s / graph_s))))
            repeats = 5 if graph_s * replays < 0.01 else 1
            return self._rounds(
                rule, launches * replays,
                lambda: [self.device.time_replays(replay, replays) / launches for _ in range(repeats)],
            )  # fmt: skip
        launches = _whole(int(min(1000, max(1, np.ceil(settings.sample_s / once)))), turns)
        repeats = 5 if once * launches < 0.01 else 1
        return self._rounds(rule, launches, lambda: [self.device.time_batch(launch, launches) for _ in range(repeats)])

    def _warm_up(self, launch: Launch) -> float:
        """Launches until ``warm_up_s`` have passed (twice at least); returns seconds of the quickest call."""
        now = self.device.now
        begin, count, once = now(), 0, float("inf")
        while count < 2 or (now() - begin < self.settings.warm_up_s and count < 10_000):
            once = min(once, self.device.time_batch(launch, 1))
            count += 1
        return max(once, 1e-9)

    def _graph(self, launch: Launch, once: float, long_s: float, turns: int = 1) -> tuple[Launch, int, float]:
        """A graph whose replay takes ``long_s`` or more, its launches, and seconds of a replay.

        A kernel alone is quicker than its launch, by how much the first graph tells: too short a one is captured again.
        """
        launches = _whole(int(min(1000, max(4, 2 * np.ceil(long_s / once)))), turns)
        while True:
            replay = self.device.capture(launch, launches)
            self.device.time_replays(replay, 2)
            graph_s = max(self.device.time_replays(replay, 1), 1e-9)
            needed = _whole(int(min(MOST_LAUNCHES, np.ceil(1.1 * launches * long_s / graph_s))), turns)
            if graph_s >= long_s or needed <= launches:
                return replay, launches, graph_s
            launches = needed

    def _rounds(self, rule: StoppingRule, launches: int, take: Callable[[], list[float]]) -> Timing:
        """Takes samples until the rule says stop. A round that saw throttling, before or after, is thrown away.

        A board that throttles for the whole time-out gives no clean sample; then what it gave is kept and the row is
        flagged "throttled". Not where its power limit alone did it: that is how fast such a board runs large products.
        """
        timing = Timing(rule, launches)
        thrown: list[float] = []
        now = self.device.now
        begin = now()
        before = self.device.state()
        while not rule.done(now() - begin):
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
            if not rule.samples and now() - begin > rule.timeout_s:
                rule.add(thrown)
                timing.states.append(after)
                timing.kept_throttled = True
            else:
                before = self.device.rest(after)
        return timing

    # -------------------------------------------------------------------------------------------------------- long runs

    def _sustained(self, launch: Launch, once: float, samples_s: float | None, turns: int) -> Timing:
        """Samples of a loaded board: all are kept, and labelled with what held the clock down."""
        settings = self.settings
        share = 1.0 if samples_s is None else min(1.0, samples_s / settings.case_s)
        gpu_s = share * settings.min_gpu_s
        sample_s = max(settings.sample_s, gpu_s / LONG_SAMPLES)
        replay, launches, graph_s = self._graph(launch, once, min(sample_s, 50 * once), turns)
        replays = int(max(1, np.ceil(sample_s / graph_s)))
        rule = StoppingRule(settings.noise, settings.min_samples, settings.max_samples, share * settings.sustained_s)
        timing = Timing(rule, launches * replays)
        timing.load_s = self._load(replay, graph_s, share * settings.load_s)
        before, energy = self.device.state(), self.device.energy_j()
        now = self.device.now
        begin, timing.gpu_s = now(), 0.0
        coming = self.device.queue_replays(replay, replays)
        while not rule.done(now() - begin) or (timing.gpu_s < gpu_s and len(rule.samples) < rule.max_samples):
            ready, coming = coming, self.device.queue_replays(replay, replays)  # no pause while sensors are read
            sample = ready()
            timing.gpu_s += sample * replays
            rule.add([sample / launches])
            state = self.device.state()
            timing.states.append(state)
            timing.reasons.update(state.throttled)
        coming()
        after, seconds = self.device.energy_j(), now() - begin
        if energy is not None and after is not None and after > energy:
            timing.watts = (after - energy) / seconds
        if before.sm_clock_hz and timing.states[-1].sm_clock_hz:
            timing.clock_drift = timing.states[-1].sm_clock_hz / before.sm_clock_hz - 1.0
        timing.kept_throttled = bool(set(timing.reasons) - {POWER_CAP})
        return timing

    def _load(self, replay: Launch, graph_s: float, least_s: float) -> float:
        """Replays for ``least_s`` and until looks at the clock agree; returns seconds of load."""
        loaded, looks = 0.0, list[float]()
        count = int(max(1, np.ceil(_LOOK_S / graph_s)))
        while loaded < _LONGEST_LOAD * least_s:
            loaded += self.device.time_replays(replay, count) * count
            looks.append(self.device.state().sm_clock_hz or 0.0)
            last = looks[-_LOOKS:]
            if loaded >= least_s and len(last) == _LOOKS and max(last) <= (1 + _SETTLED) * min(last):
                break
        return loaded


def _whole(launches: int, turns: int) -> int:
    """So many launches, or the next more that are whole rounds of ``turns``."""
    return -(-launches // turns) * turns
