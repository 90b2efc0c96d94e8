"""Every legal plan of a training step: the words of `predict` that say how GPUs share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

from predictor.errors import RequestError, unknown_name
from predictor.hardware.system import SystemSpec
from predictor.models.base import Model
from predictor.passes.pipeline import chunks_of
from predictor.request.options import BREADTH_FIRST, GPIPE, INTERLEAVED, ONE_F_ONE_B, OPTIONS, RING
from predictor.request.parallelism import Parallelism
from predictor.request.parse import one_of, recomputed
from predictor.search.training.cuts import near_even

#: Sequences of a micro-batch that are tried, at most; tokens that cp leaves a rank of a sequence, at least; chunks of a
#: pipeline stage, at most. Chosen by hand, not from data: beyond them plans want micro-batches, or wait for each other.
MICRO_BATCHES = 16
CONTEXT_TOKENS = 4096
CHUNKS = 8


@dataclass(frozen=True, slots=True, order=True)
class ParallelPlan:
    """How ``tp x pp x dp x cp`` GPUs share a step of training: words of `predict`, with its meanings. ``etp``: 0 is the
    framework's rule, the width of an expert over tp."""

    tp: int = 1
    sp: bool = False
    pp: int = 1
    vpp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    shard: str = "none"
    micro_batch: int = 1
    recompute: str = "none"
    schedule: str = ""
    stage_layers: tuple[int, ...] = ()
    etp: int = 0

    @property
    def num_gpus(self) -> int:
        """GPUs that it takes."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def groups(self) -> tuple[int, ...]:
        """GPUs of its groups (`Parallelism.groups`)."""
        return Parallelism(self.num_gpus, self.tp, self.pp, self.dp, self.cp).groups

    @property
    def words(self) -> dict[str, Any]:
        """Keyword arguments of `predictor.predict`."""
        return asdict(self) | {"stage_layers": ",".join(map(str, self.stage_layers))}

    def value(self, name: str) -> Any:
        """What it has of a word, as people say it: etp is a number of GPUs."""
        return self.words[name] or self.tp if name == "etp" else self.words[name]

    @property
    def label(self) -> str:
        """The plan in one word: "tp8-sp-pp4-vpp2-dp16-mb1-selective-zero1"; degrees of 1 are left out. Of
        a cut "layers2.3x14.1": the first chunk has 2 layers, the next 14 have 3, the last has 1."""
        degrees = [f"tp{self.tp}", "sp" * self.sp]
        degrees += [f"{name}{value}" for name in ("pp", "vpp", "dp", "cp", "ep") if (value := getattr(self, name)) > 1]
        degrees += [f"etp{self.etp}"] if self.etp else []
        recompute = "" if self.recompute == "none" else self.recompute
        shard = "" if self.shard == "none" else self.shard
        runs = [(layers, len(list(alike))) for layers, alike in groupby(self.stage_layers)]
        shown = ".".join(f"{layers}x{n}" if n > 2 else ".".join([str(layers)] * n) for layers, n in runs)
        cut = f"layers{shown}" if shown else ""
        return "-".join(filter(None, [*degrees, f"mb{self.micro_batch}", recompute, shard, self.schedule, cut]))


#: What plans can be held to; their cuts follow from the rest.
WORDS = tuple(name for name in OPTIONS if name in {field.name for field in fields(ParallelPlan)} - {"stage_layers"})


def read_only(given: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """What plans are held to: word -> its values, of texts such as "tp=4,8" and "recompute=selective".

    Raises RequestError, one line, for an unknown word or a value that is none of it.
    """
    values_of: dict[str, tuple[Any, ...]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if name not in WORDS:
            raise unknown_name("word of a plan", name, WORDS, f"in --only {text} one of {', '.join(WORDS)}")
        if not equals or not all(value.strip() for value in values.split(",")):
            raise RequestError(f"--only {text}: expected WORD=VALUE,..., such as tp=4,8")
        if name in values_of:
            raise RequestError(f"--only {text}: {name} is given twice; expected once, with commas between its values")
        values_of[name] = tuple(_value(name, value.strip(), text) for value in values.split(","))
    return values_of


def _value(name: str, text: str, where: str) -> Any:
    option = OPTIONS[name]
    if option.kind == "switch":
        known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() not in known:
            raise RequestError(f"--only {where}: {text!r}; expected {name}=true or {name}=false")
        return known[text.lower()]
    if option.kind == "whole":
        if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**7):
            raise RequestError(f"--only {where}: {text!r}; expected whole numbers from 1 on")
        return int(text)
    if name == "recompute":
        recomputed(text)
    else:
        one_of(name, text, option.choices)
    return text


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """What divides ``number``, from 1 on."""
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*low, *(number // n for n in low)}))


@dataclass(frozen=True)
class Space:
    """What plans are made of. ``shards`` and ``schedules``: those of the framework; ``recomputes``: what
    may run again in the backward pass; ``placed`` raises RequestError
    where a mesh cannot hold the degrees."""

    config: Model
    system: SystemSpec
    num_gpus: int
    batch: int
    seq_len: int
    shards: tuple[str, ...]
    schedules: tuple[str, ...]
    recomputes: tuple[str, ...]
    placed: Callable[[Parallelism, SystemSpec], object]
    only: Mapping[str, tuple[Any, ...]]

    def plans(self) -> Iterator[ParallelPlan]:
        """Every legal plan, in a fixed order."""
        layers = self.config.stack().layers
        for tp in self._held("tp", self._tensor_degrees()):
            for cp in self._held("cp", self._contexts(self.num_gpus // tp)):
                rest = self.num_gpus // (tp * cp)
                for pp in self._held("pp", [n for n in divisors(rest) if n <= layers and self._cut(n)]):
                    dp = rest // pp
                    if self.batch % dp or dp not in self._held("dp", [dp]) or not self._fits(tp, pp, dp, cp):
                        continue
                    yield from self._of_degrees(tp, pp, dp, cp)

    def _of_degrees(self, tp: int, pp: int, dp: int, cp: int) -> Iterator[ParallelPlan]:
        each = self.batch // dp
        micros = self._held("micro_batch", [n for n in divisors(each) if n <= MICRO_BATCHES])
        experts = self._experts(tp, dp * cp)
        recomputes = self._held("recompute", self.recomputes)
        shards = self._held("shard", self.shards if dp * cp > 1 else ("none",))
        sequences = self._held("sp", (False, True) if tp > 1 and self.seq_len % (tp * cp) == 0 else (False,))
        for micro in micros:
            for vpp, schedule in self._looped(pp, each // micro):
                cut = self._uneven(pp, vpp)
                for ep, etp in experts:
                    for recompute in recomputes:
                        for sp in sequences:
                            if etp and not sp:  # every rank along tp sends its part of the sequences
                                continue
                            for shard in shards:
                                yield ParallelPlan(
                                    tp, sp, pp, vpp, dp, cp, ep, shard, micro, recompute, schedule, cut, etp
                                )

    def _experts(self, tp: int, ranks: int) -> list[tuple[int, int]]:
        """Degrees (ep, etp) of experts over ``ranks`` of dp x cp: their width over tp (etp 0), or whole on more."""
        count = self.config.experts
        if not count:
            return [(1, 0)] if 1 in self._held("ep", [1]) else []
        folds = tp > 1 and not self.config.is_encoder_decoder
        ways = [(0, tp, ranks), *([(1, 1, tp * ranks)] if folds else [])]
        return [
            (ep, etp) for etp, width, among in ways if self._held("etp", [width])
            for ep in self._held("ep", [n for n in divisors(among) if count % n == 0])
        ]  # fmt: skip

    def _looped(self, pp: int, micro_batches: int) -> Iterator[tuple[int, str]]:
        """Chunks of a stage, and the schedule ("" where it is the default)."""
        if pp == 1:
            if 1 in self._held("vpp", [1]) and (schedules := self._held("schedule", [""])):
                yield 1, schedules[0]
            return
        for vpp in self._held("vpp", [n for n in range(1, CHUNKS + 1) if n == 1 or self._even(pp, n)]):
            default = INTERLEAVED if vpp > 1 else ONE_F_ONE_B
            for schedule in self.schedules:
                if schedule in (GPIPE, ONE_F_ONE_B) and vpp > 1:
                    continue
                if schedule == INTERLEAVED and (vpp == 1 or micro_batches % pp):
                    continue
                if schedule == BREADTH_FIRST and vpp == 1:
                    continue  # that of one chunk is gpipe
                said = "" if schedule == default else schedule
                if {said, schedule} & set(self._held("schedule", [said, schedule])):
                    yield vpp, said

    def _cut(self, pp: int) -> bool:
        """Whether stages have layers, two each where not all have as many."""
        layers = self.config.stack().layers
        return pp == 1 or (not self.config.is_encoder_decoder and (self._even(pp, 1) or 2 * pp <= layers))

    def _uneven(self, pp: int, vpp: int) -> tuple[int, ...]:
        """Layers of the stages where `predict` has no cut of its own."""
        return () if self._even(pp, vpp) else near_even(self.config.stack().layers, pp)

    def _even(self, pp: int, vpp: int) -> bool:
        """Whether layers can be shared out over chunks, as many to each or one less to the ends."""
        if (pp, vpp) not in self._divides:  # asked of thousands of plans
            try:
                chunks_of(self.config.stack(), pp, vpp)
            except RequestError:
                self._divides[pp, vpp] = False
            else:
                self._divides[pp, vpp] = True
        return self._divides[pp, vpp]

    @cached_property
    def _divides(self) -> dict[tuple[int, int], bool]:
        return {}

    def _held(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        chosen = self.only.get(name)
        return values if chosen is None else [value for value in values if value in chosen]

    def _tensor_degrees(self) -> list[int]:
        degrees = []
        for tp in divisors(self.num_gpus):
            try:
                self.config.check_tensor(tp)
            except RequestError:
                continue
            degrees.append(tp)
        return degrees

    def _contexts(self, rest: int) -> list[int]:
        """Degrees of cp: each rank has a whole piece of the front and of the back of a sequence."""
        most = max(1, self.seq_len // CONTEXT_TOKENS)
        return [n for n in divisors(rest) if n == 1 or (n <= most and self.seq_len % (2 * n) == 0)]

    def _fits(self, tp: int, pp: int, dp: int, cp: int) -> bool:
        """Whether groups lie in nodes in one way."""
        try:
            self.placed(Parallelism(tp * pp * dp * cp, tp, pp, dp, cp, cp_comm=RING), self.system)
        except RequestError:
            return False
        return True


def named(label: str, plans: Sequence[ParallelPlan]) -> ParallelPlan:
    """The plan of ``plans`` that a text means: its label, or its place among them from 1 on. RequestError for none."""
    text = label.strip()
    if text.isdigit() and 0 < int(text) <= len(plans):
        return plans[int(text) - 1]
    by_label = {plan.label: plan for plan in plans}
    if text not in by_label:
        expected = f"the label of a plan that fits, or 1 to {len(plans)}"
        raise unknown_name("plan", text, by_label, expected, "--explain")
    return by_label[text]
