"""The answer: what `predict` returns and every report reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from predictor.files.records import dataclass
from predictor.graph.samples import SAMPLES, TOKENS
from predictor.request.workload import Workload
from predictor.simulate.memory import Memory
from predictor.simulate.stage import PIPELINE
from predictor.simulate.times import GAPS, LAUNCHING

if TYPE_CHECKING:
    from predictor.kernels.explanation import Term
    from predictor.simulate.energy import Energy
    from predictor.simulate.odds import Outlook

SCHEMA_VERSION = 1
#: From what share of the GPU's busy time on its wait for the CPU makes a run launch-bound. Chosen by hand, not from
#: data.
LAUNCH_BOUND = 0.05


@dataclass(frozen=True, slots=True)
class ClassTime:
    """One operator class of the breakdown. ``latency_s`` is GPU time, ``share`` its part of all GPU time.

    ``utilization`` is the class's roofline (cold cache) over its time; ``bound`` what bounds most of it; ``source``
    "estimator" or "roofline" ("mixed" where both), ``estimators`` the artifacts behind it. ``bounds`` has the seconds
    of ``latency_s`` by what bounds their operators.
    """

    op: str
    phase: str
    count: float
    latency_s: float
    share: float
    utilization: float
    bound: str
    source: str
    estimators: tuple[str, ...]
    bounds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class NodeTime:
    """One operator of the model: its place, its shape in words, how often it runs and what that costs."""

    name: str
    op: str
    shape: str
    phase: str
    count: float
    latency_s: float
    share: float
    bound: str
    source: str


@dataclass(frozen=True, slots=True)
class Explained:
    """One operator of a forecast: of those under its name, the one that takes longest in all. Times in seconds.

    ``latency_s`` is of one call, ``share`` of all GPU time. ``terms`` are the roofline's and those of ``estimator``;
    ``bound`` what takes most of the time, by the estimator where it can say. ``others``: further shapes of that name.
    """

    name: str
    op: str
    shape: str
    phase: str
    count: float
    latency_s: float
    share: float
    bound: str
    source: str
    estimator: str
    rests_on: str
    others: tuple[str, ...]
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A forecast. Times in seconds; ``interval_s`` is the 80 % interval, and ``median_s`` what half of the measurements
    should lie below; None where the estimators have none.

    ``phases_s`` splits the total: forward, backward, optimizer in training; prefill (TTFT), decode and TPOT in
    generation. ``gpu_busy_s`` and ``cpu_busy_s`` are the two timelines; the total is the slower one at every point.
    ``between_s``: seconds in which no kernel runs, by what there is in their place; with ``gpu_busy_s`` the total.
    ``unknown``: share of the GPU time by operators that a frontend has no entry for, whose roofline answers.
    ``flops`` are all that the GPUs run; ``mfu`` is the share of the peak that the model's come to, ``hfu`` that of all,
    with what runs again in the backward pass.
    ``exposed_s``: of training on many GPUs, seconds of what they exchange that nothing covers, by what it is;
    ``bubble_s``: what a stage of the pipeline idles on average. ``gpu_set``: words of what differs from the GPU's file.
    ``unit``: what the throughput is counted in, of `predictor.graph.samples.UNITS`. ``energy``: what the GPUs draw,
    where the run asks for it.
    """

    model: str
    gpu: str
    workload: Workload
    latency_s: float
    interval_s: tuple[float, float] | None
    phases_s: Mapping[str, float]
    gpu_busy_s: float
    cpu_busy_s: float
    between_s: Mapping[str, float]
    flops: float
    mfu: float
    hfu: float
    tokens: float
    sequences: float
    parameters: int
    memory: Memory
    breakdown: tuple[ClassTime, ...]
    nodes: tuple[NodeTime, ...]
    provenance: Mapping[str, int]
    artifacts: str
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)
    explained: Explained | None = None
    unknown: Mapping[str, float] = field(default_factory=dict)
    exposed_s: Mapping[str, float] = field(default_factory=dict)
    bubble_s: float = 0.0
    gpu_set: tuple[str, ...] = ()
    unit: str = TOKENS
    energy: Energy | None = None
    median_s: float | None = None

    @property
    def latency_ms(self) -> float:
        """Total latency in milliseconds."""
        return self.latency_s * 1e3

    @property
    def outlook(self) -> Outlook | None:
        """What is expected of the latency; None without an interval."""
        if self.interval_s is None or self.median_s is None:
            return None
        from predictor.simulate.odds import Outlook  # most answers are read without it

        return Outlook(self.interval_s[0], self.median_s, self.interval_s[1], self.gpu, self.workload.execution)

    @property
    def between_kernels_s(self) -> float:
        """Seconds in which no kernel runs."""
        return sum(self.between_s.values())

    @property
    def host_s(self) -> float:
        """Seconds in which the GPU waits for the CPU: launches, and what an engine's host adds to steps."""
        return self.between_kernels_s - self.between_s.get(GAPS, 0.0) - self.between_s.get(PIPELINE, 0.0)

    @property
    def tokens_per_s(self) -> float:
        """Tokens processed (forward, train, prefill) or made (decode, generate) a second."""
        return self.tokens / self.latency_s

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens a second over the GPUs of the run."""
        return self.tokens_per_s / self.workload.parallelism.num_gpus

    @property
    def units_per_s(self) -> float:
        """Of ``unit`` so many a second: tokens, or entries of the batch where the model reads no tokens."""
        return self.tokens_per_s if self.unit == TOKENS else self.sequences_per_s

    @property
    def units_per_s_per_gpu(self) -> float:
        """``units_per_s`` over the GPUs of the run."""
        return self.units_per_s / self.workload.parallelism.num_gpus

    @property
    def joule_per_unit(self) -> float | None:
        """Joules of all GPUs for one of ``unit``; None where the run does not ask for energy."""
        return None if self.energy is None else self.energy.power_w / self.units_per_s

    @property
    def joule_per_token(self) -> float | None:
        """Joules of all GPUs for a token of `tokens_per_s`; None where the unit is no token, or nobody asked."""
        return self.joule_per_unit if self.unit == TOKENS else None

    @property
    def entries(self) -> str:
        """What an entry of the batch is called, in the plural: "sequences" where the unit is a token."""
        return "sequences" if self.unit == TOKENS else self.unit

    @property
    def lengths_matter(self) -> bool:
        """Whether the tokens of an entry say anything of the run: images have none."""
        return self.unit == TOKENS or (self.unit == SAMPLES and self.workload.seq_len > 1)

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: of the prefill, which makes it. None in modes without one."""
        return self.phases_s.get("prefill")

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first: of a decode step, in generate their mean; with drafts of a step that
        gives several. None in other modes."""
        serving = self.workload.serving
        if serving is None or serving.mode != "decode":
            return self.phases_s.get("tpot")
        return self.latency_s / serving.acceptance_length

    @property
    def sequences_per_s(self) -> float:
        """Sequences a second."""
        return self.sequences / self.latency_s

    @property
    def bound_shares(self) -> dict[str, float]:
        """Parts of the GPU time by what bounds the operators in it, the largest first; they sum to 1."""
        totals: dict[str, float] = {}
        for row in self.breakdown:
            for name, seconds in row.bounds.items():
                totals[name] = totals.get(name, 0.0) + seconds
        whole = sum(totals.values()) or 1.0
        return {name: seconds / whole for name, seconds in sorted(totals.items(), key=lambda kv: -kv[1])}

    @property
    def launches_bound(self) -> bool:
        """True where launches are the larger part of what the GPU waits for the CPU (`launch_bound`)."""
        return self.launch_bound and self.between_s.get(LAUNCHING, 0.0) >= self.host_s / 2.0

    @property
    def launch_bound(self) -> bool:
        """True where the GPU waits for the CPU for more than a twentieth of the time."""
        return self.host_s > LAUNCH_BOUND * self.gpu_busy_s
