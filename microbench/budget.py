"""How the clock of a collection is shared: set-up, a first round of the operators, ceilings, the rest, and the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

#: Shares of the time left after set-up, at most: of the first round (its rest comes after the ceilings), and of the
#: ceilings; the few that a device file cannot be made without are measured whatever it says. Chosen by hand, not from
#: data.
FIRST_ROUND_SHARE = 0.75
CEILING_SHARE = 0.25
#: Kept for the end, when files are compacted: measured on the machines seen, a second or two; less where the budget is
#: short, a share chosen by hand, not from data.
_END_S, _END_SHARE = 1.5, 0.1
#: Of the budget, what is left for measuring on a machine so busy that its set-up takes longer than the rest. Chosen by
#: hand, not from data.
_LEAST_SHARE = 0.5
#: Of the time after set-up, what is kept for collectives where boards can have any. Chosen by hand, not from data.
COLLECTIVE_SHARE = 0.12
#: Of the time that falls to a case of the first round, what may go to its samples: the rest is its data and its check.
#: Chosen by hand, not from data.
_SAMPLE_SHARE = 0.25


@dataclass(slots=True)
class Budget:
    """``seconds`` from ``begin`` on (None: no end). `set_up` is called once when all devices are open."""

    seconds: float | None
    begin: float
    clock: Callable[[], float] = field(default=time.monotonic)
    _ends: float = field(default=math.inf, init=False)
    _first_round_ends: float = field(default=math.inf, init=False)
    _ceiling_s: float = field(default=math.inf, init=False)
    _kept_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.seconds is not None:
            self._ends = self.begin + self.seconds - min(_END_S, _END_SHARE * self.seconds)

    def set_up(self) -> None:
        """Shares out what set-up has left, and half of the budget where it has left less."""
        if self.seconds is None:
            return
        opened = self.clock()
        self._ends = max(self._ends, opened + _LEAST_SHARE * self.seconds)
        self._first_round_ends = opened + FIRST_ROUND_SHARE * (self._ends - opened)
        self._ceiling_s = CEILING_SHARE * (self._ends - opened)

    def keep(self, share: float) -> None:
        """Keeps ``share`` of the time that is left for what comes after; `spend` gives it free."""
        if self.seconds is not None:
            self._kept_s = share * max(0.0, self._ends - self.clock())
            self._ends -= self._kept_s

    def spend(self) -> None:
        """What was kept counts again."""
        self._ends, self._kept_s = self._ends + self._kept_s, 0.0

    def left_s(self) -> float:
        """Seconds until measuring has to end; infinite without a budget."""
        return self._ends - self.clock()

    def first_round_left_s(self) -> float:
        """The same for the first round."""
        return self._first_round_ends - self.clock()

    def ceilings_end(self) -> float:
        """When ceilings that begin now have to end, by the clock."""
        return min(self._ends, self.clock() + self._ceiling_s)

    def samples_s(self, round_left: int) -> float | None:
        """Seconds of samples that the next case may take, where ``round_left`` cases of the first round are to come,
        this one among them; None without a budget and after that round."""
        if self.seconds is None or round_left < 1:
            return None
        return max(1e-3, _SAMPLE_SHARE * self.first_round_left_s() / round_left)
