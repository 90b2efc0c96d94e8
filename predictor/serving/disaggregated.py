"""Servers that read prompts apart from those that decode: the KV cache of a prompt goes from one to the other.

A request's first token is made where its prompt is read, and given out when its cache has come over; it then waits for
a place among those who decode. One that loses its pages there is read again on the spot.
"""

from __future__ import annotations

import numpy as np

from predictor.engines.scheduling import Batching, Pages, StepBatch
from predictor.engines.vintage import Scheduler
from predictor.errors import RequestError
from predictor.files.records import dataclass, replace
from predictor.hardware.system import default_system
from predictor.kernels.base import predict_kernels
from predictor.ops.collective import Collective, over
from predictor.ops.roofline import FloatArray
from predictor.request.options import SIMULATIONS
from predictor.request.run import Run
from predictor.serving.costs import StepCosts
from predictor.serving.deployment import Deployment, Options
from predictor.serving.simulator import Served, ServerPool, costs_of, deployed, through
from predictor.serving.traffic import Traffic
from predictor.simulate.memory import cache_bytes

#: Lengths of prompts at which a transfer is forecast, with lines between them. Chosen by hand, not from data: bytes
#: follow the length, a message's start does not.
_LENGTHS = 32


class Handed(Batching):
    """Requests whose prompts came with their cache: who has room decodes; who lost its pages is read again."""

    def __init__(self, rules: Scheduler, pages: Pages, width: int = 1, prefixes: bool = False) -> None:
        super().__init__(rules, pages, width, prefixes)
        self._lost: set[int] = set()

    def batch(self) -> StepBatch:
        """The next step."""
        batch = StepBatch()
        self.make_room(batch)
        self._lost |= {sequence.index for sequence in batch.preempted}
        while self.waiting and self.running < self.rules.sequences:
            sequence = self.waiting[0]
            if self.wants(sequence, sequence.prompt) > self.spare:
                break
            chunk = self.admit(sequence.prompt)
            if sequence.index in self._lost:
                self._lost.remove(sequence.index)
                batch.chunks.append(chunk)
            else:
                self.finish_prompt(sequence)
        batch.decodes = bool(self.decoding)
        return batch


def hand_over(prompts: Run, decodes: Run, tokens: int, gpus: int) -> Collective:
    """The message that the busiest GPU sends for a prompt of so many tokens: its part of the cache, or that of all GPUs
    that it serves.

    Every GPU that decodes takes its own part, over the links where ``gpus``, all of the deployment, are in one node,
    else over the network.
    """
    system = decodes.work.system or default_system(decodes.gpu)
    work = decodes.work.changed(
        mode="prefill", batch=decodes.work.parallelism.dp, seq_len=tokens, output_len=0, context_len=0, prompt_lens=()
    )
    senders, takers = (run.work.parallelism.tp * run.work.parallelism.pp for run in (prompts, decodes))
    size = round(cache_bytes(decodes.config, work, decodes.numbers) * max(1.0, takers / senders))
    near = 2 if gpus <= system.gpus_per_node else 1
    return over(system, "send_recv", decodes.numbers.kv, max(size, 1), 2, near)


def moved_s(prompts: Run, decodes: Run, lengths: FloatArray, gpus: int) -> FloatArray:
    """Seconds of the hand-over of prompts of ``lengths`` tokens."""
    points = np.unique(np.round(np.geomspace(lengths.min(), lengths.max(), _LENGTHS)).astype(np.int64))
    ops = [hand_over(prompts, decodes, int(tokens), gpus) for tokens in points]
    seconds = predict_kernels(ops, decodes.gpu, decodes.selector, decodes.work.engine.kernels).latency_s
    between: FloatArray = np.interp(lengths, points, seconds)
    return between


@dataclass(frozen=True, slots=True)
class Apart:
    """``servers`` of ``run`` read the prompts of the servers of another run."""

    run: Run
    servers: int

    def __post_init__(self) -> None:
        SIMULATIONS["prefill_servers"].check(self.servers)


def serve_apart(
    run: Run, apart: Apart, traffic: Traffic, options: Options, costs: tuple[StepCosts, StepCosts] | None = None
) -> Served:
    """``traffic`` whose prompts ``apart`` reads and whose answers ``options.replicas`` servers of ``run`` make.

    ``costs``: of both, as `costs_apart` has them. RequestError where one of them cannot serve it.
    """
    reads, decodes = _both(run, apart, traffic, options)
    made = costs or costs_apart(run, apart, traffic, options)
    gpus = apart.run.work.parallelism.num_gpus * apart.servers + run.work.parallelism.num_gpus * options.replicas
    prompts = ServerPool(reads, made[0], [[reads.batching() for _ in range(reads.ranks)] for _ in range(apart.servers)])
    answers = ServerPool(decodes, made[1], [handed_ranks(decodes) for _ in range(options.replicas)])
    between = moved_s(apart.run, run, traffic.input_tokens.astype(np.float64), gpus)
    return through(answers, traffic, prompts, between)


def costs_apart(run: Run, apart: Apart, traffic: Traffic, options: Options) -> tuple[StepCosts, StepCosts]:
    """The tables of steps that prompts and answers may meet."""
    reads, decodes = _both(run, apart, traffic, options)
    return costs_of(reads, _first_tokens(traffic)), costs_of(decodes, traffic)


def _first_tokens(traffic: Traffic) -> Traffic:
    return replace(traffic, output_tokens=np.ones_like(traffic.output_tokens))


def _both(run: Run, apart: Apart, traffic: Traffic, options: Options) -> tuple[Deployment, Deployment]:
    if options.drafts:
        raise RequestError(f"--drafts {options.drafts}: not with --prefill-servers; expected 0")
    reading = replace(options, replicas=apart.servers)
    return deployed(apart.run, _first_tokens(traffic), reading), deployed(run, traffic, options)


def handed_ranks(deployment: Deployment) -> list[Batching]:
    """Schedulers of one server whose prompts are read elsewhere."""
    return [Handed(deployment.rules, Pages(deployment.pages, deployment.page_tokens)) for _ in range(deployment.ranks)]
