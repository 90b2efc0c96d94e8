"""Degrees of each parallelism, checked once."""

from __future__ import annotations

from math import gcd, prod
from typing import Any, Self

from predictor.errors import RequestError
from predictor.files.records import dataclass
from predictor.request.options import (
    BREADTH_FIRST,
    GPIPE,
    HSDP,
    INTERLEAVED,
    NO_SHARD,
    ON,
    ONE_F_ONE_B,
    OPTIONS,
    RING,
    Words,
    check_words,
    checks_of,
)
from predictor.request.parse import LARGEST_DEGREE, flag, stage_layers

#: Degrees beside tp that serving has, too.
SERVED = ("pp", "dp", "ep")


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Degrees of each parallelism, ``num_gpus`` the product of tp, pp, dp and cp.

    ``ep`` adds no GPUs: experts are shared out over groups of ep of the dp x cp ranks in training, of the tp x dp GPUs
    of a stage in serving. ``sp``: outside of what tp
    splits, sequences are split over its ranks (sequence parallelism). ``vpp``: model chunks that a pipeline stage
    holds. ``schedule``: one of `SCHEDULES` ("": interleaved where vpp is above 1, else 1f1b). ``shard``: what of the
    training state is spread over the data-parallel ranks, one of `SHARDS`; hsdp spreads all of it within a node.
    ``cp_comm``: one of `CP_COMMS`; ``ulysses``: of the cp ranks of a traced forward pass, so many exchange heads, and
    their groups are a ring (0: all do, or none, by ``cp_comm``). ``tp_overlap``: products run in pieces beside the
    collectives of tp (Transformer Engine's `--tp-comm-overlap`), which takes sp. ``dp_overlap``: of `DP_OVERLAPS`, or
    "", for gradients and weights that replicas exchange once a step. ``stage_layers``: layers of every chunk of the
    pipeline in the model's order (none: as evenly as they go); 0 at an end is a stage of the embedding, or the head,
    alone. ``etp``: GPUs that share the width of each expert (0: the framework's rule, tp in training); 1 with tp above
    it folds experts over the ranks of tp, too, which have a part of each sequence then (sp). ``ep_overlap``: what
    brings tokens to experts runs beside the passes of another micro-batch, which takes ep.
    """

    num_gpus: int = 1
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    shard: str = NO_SHARD
    sp: bool = False
    vpp: int = 1
    schedule: str = ""
    cp_comm: str = RING
    tp_overlap: bool = False
    ulysses: int = 0
    stage_layers: tuple[int, ...] = ()
    dp_overlap: str = ""
    etp: int = 0
    ep_overlap: bool = False

    def __post_init__(self) -> None:
        check_words(self, _CHECKED)
        if self.tp_overlap and not self.sp:
            raise RequestError("--tp-overlap: needs --sp, whose collectives it overlaps; expected --sp")
        if self.ep_overlap and self.ep == 1:
            raise RequestError("--ep-overlap: needs --ep, whose exchanges it overlaps; expected --ep 2 or more")
        if self.ulysses and self.cp % self.ulysses:
            raise RequestError(f"--ulysses {self.ulysses}: expected a divisor of --cp {self.cp}, or 0")
        rest = self.tp * self.pp * self.cp
        if self.num_gpus != rest * self.dp:
            used = " ".join(f"{flag(n)} {v}" for n in ("tp", "pp", "dp", "cp") if (v := getattr(self, n)) > 1)
            whole = max(1, self.num_gpus // rest)
            what = f"--dp {whole}" if whole * rest == self.num_gpus else f"--dp {whole} of {whole * rest} GPUs"
            if self.dp == self.pp == self.cp == 1:
                replicas = f", --dp {whole}" if rest > 1 and whole * rest == self.num_gpus else ""
                what = f"--tp {self.num_gpus}{replicas}"
            raise RequestError(
                f"--num-gpus {self.num_gpus}: {used or '--tp 1'} uses {rest * self.dp}; expected {what}, or no"
                " --num-gpus"
            )
        if self.vpp > 1 and self.pp == 1:
            raise RequestError(f"--vpp {self.vpp}: needs pipeline stages; expected --pp 2 or more, or --vpp 1")
        if self.vpp > 1 and self.schedule in (GPIPE, ONE_F_ONE_B):
            raise RequestError(
                f"--schedule {self.schedule}: runs one chunk per stage, not --vpp {self.vpp}; expected {INTERLEAVED} or"
                f" {BREADTH_FIRST}"
            )
        if self.stage_layers:
            self._check_stages()

    @classmethod
    def of(cls, asked: Words) -> Self:
        """The degrees that ``asked`` has, and their product where ``num_gpus`` is not given."""
        words: dict[str, Any] = {name: getattr(asked, name) for name in cls.__match_args__}
        words["stage_layers"] = stage_layers(asked.stage_layers)
        if asked.num_gpus is None:
            degrees = (asked.tp, asked.pp, asked.dp, asked.cp)
            words["num_gpus"] = prod(n for n in degrees if isinstance(n, int) and 0 < n <= LARGEST_DEGREE)
        return cls(**words)

    def _check_stages(self) -> None:
        """RequestError where the stages' layers are not of as many chunks, or leave one in the middle empty."""
        shown = ",".join(map(str, self.stage_layers))
        if self.pp == 1:
            raise RequestError(f"--stage-layers {shown}: needs pipeline stages; expected --pp 2 or more")
        parts = self.pp * self.vpp
        if len(self.stage_layers) != parts:
            of = f"--pp {self.pp}" + (f" --vpp {self.vpp}" if self.vpp > 1 else "")
            raise RequestError(f"--stage-layers {shown}: {len(self.stage_layers)} numbers; expected {parts} for {of}")
        if 0 in self.stage_layers[1:-1]:
            raise RequestError(f"--stage-layers {shown}: a middle stage has no layer; expected 0 only at the two ends")

    def check_ep(self, trains: bool) -> None:
        """RequestError where ``ep`` does not divide the ranks that share the experts: other ones in training."""
        self._check_etp(trains)
        ranks, words = (self.cp * self.dp, "--dp x --cp") if trains else (self.tp * self.dp, "--tp x --dp")
        if self.folds:
            ranks, words = ranks * self.tp, "--tp x --dp x --cp"
        if self.ep > 1 and ranks % self.ep:
            fit = max(n for n in range(1, ranks + 1) if ranks % n == 0 and n <= self.ep)
            over = ranks * self.tp
            more = trains and not self.folds and self.tp > 1 and over % self.ep == 0
            hint = f", or --etp 1 --sp, which spreads experts over all {over} ranks" if more else ""
            raise RequestError(
                f"--ep {self.ep}: does not divide the {ranks} ranks of {words}; nearest valid: {fit}{hint}"
            )

    def _check_etp(self, trains: bool) -> None:
        """RequestError for a degree within experts that is neither the framework's rule nor 1."""
        etp, usual = self.etp, self.tp if trains else self.tp * self.dp // self.ep
        if etp in (0, usual):
            return
        if not trains or etp != 1:
            also = " or 1" if trains else ""
            raise RequestError(f"--etp {etp}: {usual} GPUs split the width of an expert here; expected {usual}{also}")
        if not self.sp:
            raise RequestError(f"--etp 1 with --tp {self.tp}: needs split sequences; expected --sp")

    @property
    def folds(self) -> bool:
        """Whether whole experts are shared out over the ranks of tp, too."""
        return self.etp == 1 and self.tp > 1 and self.sp

    @property
    def groups(self) -> tuple[int, ...]:
        """GPUs of groups that are numbered side by side: those along tp, along cp beside it, and so on up to all."""
        sizes = [self.tp]
        for degree in (self.cp, self.dp, self.pp):
            sizes.append(sizes[-1] * degree)
        return tuple(sizes)

    @property
    def sharers(self) -> int:
        """GPUs, numbered side by side, that share the experts."""
        return self.ep if self.folds else self.tp * self.ep

    def replicas(self, gpus_per_node: int, experts: bool = False) -> tuple[int, int]:
        """Ranks that keep a part of the training state each, where it is spread, and how many groups of them have
        copies of it.

        Weights lie on dp x cp ranks. Experts' weights have groups of their own (Megatron's expert data parallelism):
        num_gpus / (pp x etp x ep) ranks have the same experts.
        """
        count = self.dp * self.cp
        part = max(1, min(count, gpus_per_node // self.tp)) if self.shard == HSDP else count
        if experts:
            width = self.tp if self.folds else 1
            count, part = count * width // self.ep, part * width
            part //= gcd(part, self.ep)
        return part, count // part

    @property
    def order(self) -> str:
        """The pipeline's schedule."""
        return self.schedule or (INTERLEAVED if self.vpp > 1 else ONE_F_ONE_B)

    def beside(self, default: bool) -> bool:
        """Whether what replicas exchange once a step runs beside computation, in a framework that has it so or not."""
        return self.dp_overlap == ON if self.dp_overlap else default

    @property
    def asked(self) -> dict[str, object]:
        """Every word, by name, that is not at its default."""
        words = {name: getattr(self, name) for name in _WORDS} | {"stage_layers": ",".join(map(str, self.stage_layers))}
        return {name: value for name, value in words.items() if value != OPTIONS[name].default}

    @property
    def trains_only(self) -> dict[str, object]:
        """The words, by name, that serving does not take, where they are not at their defaults."""
        return {name: value for name, value in self.asked.items() if name not in _SERVING_TOO}


#: All but the product of the degrees; and those that serving takes as it takes them in training, or that say nothing
#: where the degree that they are of is refused.
_WORDS = tuple(name for name in Parallelism.__match_args__ if name != "num_gpus")
_SERVING_TOO = ("tp", "etp", "cp_comm", "ulysses")
_CHECKED = checks_of(Parallelism.__match_args__)
