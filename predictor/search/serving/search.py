"""Deployments on so many GPUs: what each does in its steady state, those within the SLA, and the frontier.

A deployment is replicas of a group, each with ``concurrency`` requests at a time, or (disaggregated) groups that run
prompts and groups that decode, between which the KV cache goes over the links. All concurrencies of all groups are
looked at; of each layout the best that meets the SLA is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from predictor.errors import RequestError
from predictor.files.records import dataclass, replace
from predictor.ops.roofline import FloatArray
from predictor.search.serving.space import Group
from predictor.search.serving.steady import FULL, Steady, closed_loop, decode_alone, prefill_rate
from predictor.search.serving.tables import GroupTimes, hand_overs

#: Concurrencies that are looked at, of each group: every one up to `EVERY`, beyond that so many more. Chosen by hand,
#: not from data.
EVERY, BEYOND = 64, 160
#: Numbers of groups for prompts that are looked at, around that at which both sides would be as fast. Chosen by hand,
#: not from data.
AROUND = (-2, -1, 0, 1, 2)


@dataclass(frozen=True, slots=True)
class Sla:
    """At most so many seconds to the first token of a request, and from one to the next: of the mean request, or of so
    many percent of them (``ttft_percentile``, ``tpot_percentile``; 0: the mean). The search looks at means; simulations
    are held against percentiles."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf
    ttft_percentile: float = 0.0
    tpot_percentile: float = 0.0

    @property
    def has_percentiles(self) -> bool:
        """Whether a limit is for more than the mean, so that plans have to be simulated."""
        return bool(self.ttft_percentile or self.tpot_percentile)

    def excess(self, ttft_s: FloatArray, tpot_s: FloatArray) -> FloatArray:
        """The larger of both over its limit: at most 1 where the SLA is met."""
        return np.maximum(ttft_s / self.ttft_s, tpot_s / self.tpot_s)

    def missed(self, ttft_s: float, tpot_s: float) -> list[str]:
        """The limits that these seconds are above, by their keys: ttft, tpot."""
        sides = (("ttft", ttft_s, self.ttft_s), ("tpot", tpot_s, self.tpot_s))
        return [name for name, seconds, limit in sides if seconds > limit]


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """One deployment in its steady state. ``times`` are those of its (decoding) groups, of which it has ``replicas``
    with ``concurrency`` requests each; ``prefill``, ``prefill_replicas``: the groups that run prompts, None and 0 where
    every group does. ``rate`` in requests/s of all; ``mixed``: share of the steps that have prompts; ``load`` of the
    groups that run prompts; ``hand_over_s`` seconds that the KV cache of a prompt is on its way; ``comes`` requests/s
    that come, 0 for as many as are served.
    """

    times: GroupTimes
    replicas: int
    concurrency: int
    ttft_s: float
    tpot_s: float
    rate: float
    mixed: float
    decoding: float
    prefill: GroupTimes | None = None
    prefill_replicas: int = 0
    load: float = 0.0
    hand_over_s: float = 0.0
    comes: float = 0.0

    @property
    def group(self) -> Group:
        """Degrees of a (decoding) group."""
        return self.times.group

    @property
    def gpus(self) -> int:
        """GPUs of all groups."""
        prompts = self.prefill.group.gpus * self.prefill_replicas if self.prefill is not None else 0
        return self.group.gpus * self.replicas + prompts

    @property
    def served(self) -> float:
        """Requests/s that are answered: those that come, where it could answer more."""
        return min(self.rate, self.comes) if self.comes else self.rate

    @property
    def tokens_per_s(self) -> float:
        """Output tokens/s of all."""
        return self.rate * self.times.osl

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Output tokens/s of a GPU that is in use."""
        return self.tokens_per_s / self.gpus

    @property
    def tokens_per_s_per_user(self) -> float:
        """Tokens/s that a user sees once they come."""
        return 1.0 / self.tpot_s if self.tpot_s > 0 else math.inf

    @property
    def kv_bytes(self) -> float:
        """Bytes of KV cache on a GPU when all its requests are at the end of their output."""
        return math.ceil(self.concurrency / self.group.dp) * self.times.kv_bytes

    def same_layout(self, other: ServingPlan) -> bool:
        """Whether it has the same groups, as many of each."""
        return (self.times, self.replicas, self.prefill, self.prefill_replicas) == (
            other.times, other.replicas, other.prefill, other.prefill_replicas,
        )  # fmt: skip

    def __str__(self) -> str:
        if self.prefill is None:
            return f"{self.replicas} x {self.group}, {self.concurrency} at a time"
        return (
            f"{self.prefill_replicas} x {self.prefill.group} for prompts, {self.replicas} x {self.group} for decodes,"
            f" {self.concurrency} at a time"
        )


@dataclass(frozen=True, slots=True)
class SearchedDeployments:
    """``best`` deployments within the SLA, best first; the ``frontier`` of tokens/s a user against tokens/s a GPU, of
    those that meet the TTFT; the ``nearest`` to the SLA where none meets it; how many points were looked at."""

    best: tuple[ServingPlan, ...]
    frontier: tuple[ServingPlan, ...]
    nearest: ServingPlan
    points: int


@dataclass(frozen=True, slots=True)
class _Points:
    """Deployments that differ in concurrency alone; arrays of shape (n,)."""

    times: GroupTimes
    replicas: FloatArray
    steady: Steady
    prefill: GroupTimes | None = None
    prefill_replicas: FloatArray | float = 0.0
    load: FloatArray | None = None
    hand_over_s: float = 0.0

    @property
    def rate(self) -> FloatArray:
        return self.steady.rate * self.replicas

    @property
    def gpus(self) -> FloatArray:
        prompts = self.prefill.group.gpus * self.prefill_replicas if self.prefill is not None else 0
        return self.times.group.gpus * self.replicas + prompts

    def at(self, i: int) -> ServingPlan:
        s, groups = self.steady, np.broadcast_to(self.prefill_replicas, self.rate.shape)
        return ServingPlan(
            self.times, int(self.replicas[i]), int(s.concurrency[i]), float(s.ttft_s[i]), float(s.tpot_s[i]),
            float(self.rate[i]), float(s.mixed[i]), float(s.decoding[i]), self.prefill, int(groups[i]),
            0.0 if self.load is None else float(self.load[i]), self.hand_over_s,
        )  # fmt: skip


def search(
    several: Sequence[GroupTimes], gpus: int, sla: Sla, rate: float = 0.0, fewest: bool = False, split: bool = True,
    joined: bool = True,
) -> SearchedDeployments:  # fmt: skip
    """The deployments of groups with these times on at most ``gpus`` GPUs.

    Best first: the most requests/s; with a ``rate`` to be served, the fastest for a user, or (``fewest``) the fewest
    GPUs. ``split``: disaggregated ones, ``joined``: those whose groups do both. Raises
    RequestError where not one group fits on so many GPUs.
    """
    layouts = list(_together(several, gpus, rate if fewest else 0.0)) if joined else []
    if split and several and several[0].osl > 1:
        layouts += _apart(several, gpus, rate if fewest else 0.0, sla)
    if not layouts:
        raise RequestError(f"--num-gpus {gpus}: too few GPUs to hold the model")
    best, nearest, least = [], None, math.inf
    for points in layouts:
        excess = sla.excess(points.steady.ttft_s, points.steady.tpot_s)
        meets = (excess <= 1.0) & (points.rate >= rate * (1.0 - 1e-9))
        if rate:
            excess = np.maximum(excess, rate / points.rate)
        i = int(np.argmin(excess))
        if excess[i] < least:
            nearest, least = points.at(i), float(excess[i])
        if meets.any():
            best.append(points.at(int(np.argmax(np.where(meets, _worth(points, rate, fewest), -np.inf)))))
    assert nearest is not None
    best.sort(key=lambda d: order(d, rate, fewest))
    front = _frontier(layouts, sla)
    return SearchedDeployments(tuple(best), front, nearest, sum(len(points.rate) for points in layouts))


def _worth(points: _Points, rate: float, fewest: bool) -> FloatArray:
    """What one concurrency is better by than another of the same layout."""
    if not rate:
        return points.rate
    fast = -points.steady.tpot_s
    return fast - points.gpus * 1e6 if fewest else fast


def order(plan: ServingPlan, rate: float, fewest: bool) -> tuple[float, ...]:
    """What plans are sorted by, the best first."""
    if not rate:
        return -plan.rate, plan.gpus, plan.tpot_s
    return (plan.gpus, plan.tpot_s) if fewest else (plan.tpot_s, plan.gpus)


@lru_cache(maxsize=1024)  # groups of a search have a few
def concurrencies(most: int) -> FloatArray:
    """Those that are looked at, up to ``most``, whole numbers; nobody writes to them."""
    far = np.geomspace(EVERY, 2.0**20, BEYOND)
    levels = {*range(1, min(most, EVERY) + 1), *(int(n) for n in far if n <= most), most}
    looked_at = np.array(sorted(levels), dtype=np.float64)
    looked_at.flags.writeable = False
    return looked_at


def _together(several: Iterable[GroupTimes], gpus: int, rate: float) -> Iterable[_Points]:
    """Layouts whose groups do both."""
    for times in several:
        most = gpus // times.group.gpus
        if not most:
            continue
        steady = closed_loop(times, concurrencies(times.most))
        replicas = np.full(len(steady.rate), float(most))
        if rate:
            replicas = np.minimum(np.ceil(rate / steady.rate * (1.0 - 1e-9)), most)
        yield _Points(times, replicas, steady)


def _apart(several: Sequence[GroupTimes], gpus: int, rate: float, sla: Sla) -> list[_Points]:
    """Disaggregated layouts of the groups of one engine; ``rate``: the fewest groups that serve it, 0 for all GPUs."""
    pairs = [(p, d) for p in _worth_prompts(several) for d in several if p.group.execution == d.group.execution]
    pairs = [(p, d) for p, d in pairs if p.group.gpus + d.group.gpus <= gpus]
    reads = {id(p): prefill_rate(p) for p, _ in pairs}
    rates = {id(d): decode_alone(d, concurrencies(d.most))[1] for _, d in pairs}
    return [
        _pair((prompts, *reads[id(prompts)]), (decodes, rates[id(decodes)]), hand_over, gpus, rate, sla)
        for (prompts, decodes), hand_over in zip(pairs, hand_overs(pairs, gpus), strict=True)
    ]


def _pair(
    reads: tuple[GroupTimes, float, float], rates: tuple[GroupTimes, FloatArray], hand_over: float, gpus: int,
    rate: float, sla: Sla,
) -> _Points:  # fmt: skip
    """One pair of groups, that of prompts with its `prefill_rate`, that of decodes with its requests/s by concurrency:
    of each concurrency the numbers of both that serve most, where the slower side decides."""
    (prompts, reached, prompt_s), (decodes, each) = reads, rates
    spare = sla.ttft_s - prompt_s - hand_over
    highest = min(FULL, 2.0 * spare / (2.0 * spare + prompt_s)) if spare < math.inf else FULL
    reach = reached * max(highest, 1e-3)  # where the TTFT cannot be met, a point to be near to
    c = concurrencies(decodes.most)
    few, many = prompts.group.gpus, decodes.group.gpus
    balanced = np.floor(gpus * each / (reach * many + each * few))
    options = [np.full(len(c), math.ceil(rate / reach))] if rate else [balanced + i for i in AROUND]
    best = total = replicas = np.zeros(len(c))
    for option in options:
        n = np.clip(option, 1.0, (gpus - many) // few)
        left = np.floor((gpus - n * few) / many)
        if rate:
            left = np.minimum(np.ceil(rate / each * (1.0 - 1e-9)), left)
        served = np.minimum(left * each, n * reach)
        better = served > total * (1.0 + 1e-12)
        best, replicas = np.where(better, n, best), np.where(better, left, replicas)
        total = np.where(better, served, total)
    load = total / (best * reached)
    waits = np.minimum(load, FULL)
    ttft = prompt_s + hand_over + prompt_s * waits / (2.0 * (1.0 - waits))
    used = np.where(replicas * each > total * (1.0 + 1e-12), decodes_for(decodes, total / replicas), c)
    steady = Steady(np.ceil(used), ttft, decodes.decode(used), total / replicas, used, np.zeros(len(c)))
    return _Points(decodes, replicas, steady, prompts, best, load, hand_over)


def _worth_prompts(several: Sequence[GroupTimes]) -> list[GroupTimes]:
    """The groups for prompts that no other one of their engine beats in GPUs, prompts/s a GPU and seconds of one."""
    useful = []
    known = [(times, *prefill_rate(times)) for times in several]
    for times, rate, prompt_s in known:
        group = times.group
        better = [
            other
            for other, its_rate, its_one in known
            if other is not times and other.group.execution == group.execution and other.group.gpus <= group.gpus
            and its_rate / other.group.gpus >= rate / group.gpus and its_one <= prompt_s
            and (other.group.gpus, its_rate, its_one) != (group.gpus, rate, prompt_s)
        ]  # fmt: skip
        if not better:
            useful.append(times)
    return useful


def decodes_for(times: GroupTimes, rate: FloatArray) -> FloatArray:
    """How many decode at a time where so many requests/s come: Little's law, rate x (O - 1) x TPOT(b) = b."""
    grid = concurrencies(times.most)
    _, reached = decode_alone(times, grid)
    reached = np.maximum.accumulate(reached)
    return np.interp(rate, np.concatenate(([0.0], reached)), np.concatenate(([1e-3], grid)))


def _frontier(layouts: Sequence[_Points], sla: Sla) -> tuple[ServingPlan, ...]:
    """Of all points that meet the TTFT (of all, where none does), those that no other one beats in both tokens/s a user
    and tokens/s a GPU, the fastest for a user first."""
    user = np.concatenate([1.0 / np.maximum(p.steady.tpot_s, 1e-12) for p in layouts])
    each = np.concatenate([p.rate * p.times.osl / p.gpus for p in layouts])
    ttft = np.concatenate([p.steady.ttft_s for p in layouts])
    place = [(k, i) for k, p in enumerate(layouts) for i in range(len(p.rate))]
    allowed = ttft <= sla.ttft_s
    if not allowed.any():
        allowed[:] = True
    order = sorted(np.flatnonzero(allowed), key=lambda i: (-user[i], -each[i]))
    front, highest = [], -math.inf
    for i in order:
        if each[i] > highest * (1.0 + 1e-9):
            highest = float(each[i])
            k, at = place[i]
            front.append(layouts[k].at(at))
    return tuple(front)


def at_concurrency(plan: ServingPlan, concurrency: int) -> ServingPlan:
    """The same plan with another number of requests at a time in each (decoding) group."""
    times, c = plan.times, np.array([float(concurrency)])
    if plan.prefill is None:
        steady = closed_loop(times, c)
        return replace(
            plan, concurrency=concurrency, ttft_s=float(steady.ttft_s[0]), tpot_s=float(steady.tpot_s[0]),
            rate=float(steady.rate[0] * plan.replicas), mixed=float(steady.mixed[0]),
            decoding=float(steady.decoding[0]),
        )  # fmt: skip
    tpot, each = decode_alone(times, c)
    rate = min(plan.rate, float(each[0]) * plan.replicas)
    reached, prompt_s = prefill_rate(plan.prefill)
    load = min(rate / (reached * plan.prefill_replicas), FULL)
    ttft = prompt_s + plan.hand_over_s + waiting(prompt_s, load)
    return replace(
        plan, concurrency=concurrency, decoding=float(concurrency), ttft_s=ttft, tpot_s=float(tpot[0]), rate=rate,
        load=load,
    )  # fmt: skip


def waiting(prompt_s: float, load: float) -> float:
    """Seconds that a prompt waits for those before it, of a server that is ``load`` of the time at work: M/D/1."""
    return prompt_s * load / (2.0 * (1.0 - load))


def with_rate(plan: ServingPlan, rate: float) -> ServingPlan:
    """The deployment where ``rate`` requests/s come, fewer than it could serve: as many at a time as that takes."""
    plan = replace(plan, comes=rate)
    if not rate or plan.prefill is not None or plan.rate <= rate:
        return plan
    steady = closed_loop(plan.times, concurrencies(plan.concurrency))
    enough = np.flatnonzero(steady.rate * plan.replicas >= rate * (1.0 - 1e-9))
    i = int(enough[0])
    return replace(
        plan, concurrency=int(steady.concurrency[i]), ttft_s=float(steady.ttft_s[i]), tpot_s=float(steady.tpot_s[i]),
        rate=float(steady.rate[i] * plan.replicas), mixed=float(steady.mixed[i]), decoding=float(steady.decoding[i]),
    )  # fmt: skip
