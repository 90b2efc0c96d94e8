"""What serves: a model on GPUs under an engine, with its scheduler's numbers, its pages of KV cache and its graphs."""

from __future__ import annotations

from predictor.engines import DECODE
from predictor.engines.defaults import attention_kernel, graphs, overlaps, page_tokens
from predictor.engines.scheduling import Batching, Pages
from predictor.engines.vintage import NO_LIMIT, SCHEDULING, Graphs, Scheduler, Setting
from predictor.errors import RequestError, TilecastError, UnsupportedError
from predictor.files.records import dataclass, replace
from predictor.hardware.system import default_system
from predictor.models.base import Model
from predictor.request.options import SIMULATIONS
from predictor.request.run import Run
from predictor.request.speculation import read_acceptance, tokens_a_step
from predictor.simulate.memory import Memory, bytes_of_drafts, cache_bytes, memory_of
from predictor.simulate.plan import plan_of


@dataclass(frozen=True, slots=True)
class Options:
    """What a person may set of a server; None is the engine's default for the GPU.

    ``drafts``: tokens that are guessed a step, ``acceptance``: the chance that one is right where those before it were,
    or, above 1, the tokens that a step gives;
    ``replicas``: servers alike that share the traffic; ``captured``: decode batches of 1 to so many are captured, each
    in a graph of its own; ``online``: behind a server, not called from Python; ``chunked_prefill``: a prompt may take
    several steps; ``receive_every``: decode steps after which the scheduler looks for requests that have come.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    prefix_cache: bool | None = None
    drafts: int = 0
    acceptance: float = 0.0
    replicas: int = 1
    captured: int | None = None
    online: bool = True
    chunked_prefill: bool | None = None
    receive_every: int = 1

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "drafts", "replicas", "receive_every"):
            value = getattr(self, name)
            if value is not None:
                SIMULATIONS[name].check(value)
        read_acceptance(self.acceptance, self.drafts)
        if self.captured is not None and (isinstance(self.captured, bool) or self.captured < 0):
            raise RequestError(f"captured {self.captured!r}: expected a whole number, at least 0")

    @property
    def tokens_a_step(self) -> float:
        """What a decode step gives a sequence on average: its own token and the drafts up to the first wrong one."""
        return tokens_a_step(self.acceptance, self.drafts)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A server of a run: ``rules`` of its scheduler, ``captured`` graphs (None: nobody read them), ``pages`` of
    ``page_tokens`` tokens, whether it shares prefixes and schedules ``ahead``; ``memory`` is that of one GPU."""

    run: Run
    options: Options
    rules: Scheduler
    captured: Graphs | None
    pages: int
    page_tokens: int
    prefixes: bool
    ahead: bool
    memory: Memory

    @property
    def ranks(self) -> int:
        """Schedulers of a server, each with pages of its own: those of attention data parallelism, for every lane of a
        pipeline."""
        return self.run.work.parallelism.dp * self.run.work.parallelism.pp

    def batching(self) -> Batching:
        """A scheduler with an empty cache."""
        make = self.run.work.engine.batching
        assert make is not None  # `deploy` has looked
        pages = Pages(self.pages, self.page_tokens)
        return make(self.rules)(self.rules, pages, 1 + self.options.drafts, self.prefixes)


def deploy(run: Run, options: Options, longest: int) -> Deployment:
    """The server of ``run`` (mode generate) for requests of up to ``longest`` tokens; RequestError where it cannot
    serve, which says the tensor parallelism that has room."""
    try:
        return _deployed(run, options, longest)
    except NoRoom as error:
        raise NoRoom(f"{error}; {_roomier(run, options, longest)}") from None


class NoRoom(RequestError):
    """The KV cache does not hold one request."""


def _roomier(run: Run, options: Options, longest: int) -> str:
    """Degrees of tensor parallelism that have room, the smallest of those within a node; in words."""
    over, tried = run.work.parallelism, [run.work.parallelism.tp]
    try:
        joined = run.work.system or default_system(run.gpu)
    except TilecastError:  # a GPU whose file has no links stands alone
        return "no system says how these GPUs are connected"
    whole = joined.whole or joined
    while (tp := 2 * tried[-1]) <= whole.gpus_per_node:
        tried.append(tp)
        wider = replace(over, num_gpus=over.num_gpus // over.tp * tp, tp=tp)
        try:
            work = replace(run.work, parallelism=wider, system=whole.shared_by(wider.groups))
            _deployed(replace(run, work=work), options, longest)
        except TilecastError:  # what does not divide the model, or has no room either
            continue
        return f"--tp {tp} has room"
    return f"no --tp up to {tried[-1]} has room"


def _deployed(run: Run, options: Options, longest: int) -> Deployment:
    engine, work = run.work.engine, run.work
    release = engine.vintage()
    if options.receive_every > 1 and not (engine.receives_apart and work.parallelism.dp == 1):
        raise UnsupportedError(
            f"--receive-every {options.receive_every}: {engine.name}"
            f"{' with data-parallel attention' if engine.receives_apart else ''} looks for requests in every step;"
            " expected 1"
        )
    if engine.batching is None or release is None or release.scheduler is None:
        raise UnsupportedError(f"--execution {engine.name} serves no requests; expected vllm, sglang or tensorrt_llm")
    check_serves(run.config)
    lanes = work.parallelism.pp
    context = max(run.config.trained_positions or longest, longest)
    setting = Setting(
        run.gpu, work.parallelism.tp, lanes, context_len=context, drafts=options.drafts, online=options.online,
        latent=run.config.is_mla, dp=work.parallelism.dp,
    )  # fmt: skip
    rules = _limited(release.scheduler(setting), options)
    memory, each_token = _memory(run, min(rules.tokens, context), longest, options.drafts > 0)
    size = page_tokens(engine, attention_kernel(engine, DECODE, run.gpu, latent=run.config.is_mla) or "") or 1
    tokens = int(memory.kv_cache_capacity / each_token)
    if not tokens:
        raise NoRoom(
            f"{run.config.name} on {run.gpu.id}: no memory is left for a KV cache;"
            " expected more GPUs, or a larger --memory-fraction"
        )
    pages = tokens // size // lanes
    if pages * size < longest:
        raise NoRoom(
            f"{run.config.name} on {run.gpu.id}: the KV cache{' of a lane' if lanes > 1 else ''} holds"
            f" {pages * size:,} tokens and a request has"
            f" {longest:,}; expected more GPUs (--tp), a larger --memory-fraction or shorter requests"
        )
    rules = _limited(release.scheduler(replace(setting, cache_tokens=tokens)), options)
    rules = replace(rules, sequences=max(1, rules.sequences // lanes))
    cache = release.cache
    prefixes = cache is not None and cache.prefixes if options.prefix_cache is None else options.prefix_cache
    ahead = overlaps(engine, SCHEDULING, setting)
    held = graphs(engine, setting)
    if options.captured is not None:
        held = Graphs(tuple(range(1, options.captured + 1)), "as asked", longest=held.longest if held else NO_LIMIT)
    return Deployment(run, options, rules, held, pages, size, prefixes, ahead, memory)


def check_serves(config: Model) -> None:
    """UnsupportedError for a model whose requests no scheduler here takes: each of an encoder-decoder has an encoder's
    pass and a cache of its output."""
    if config.is_encoder_decoder:
        raise UnsupportedError(
            f"{config.name} is an encoder-decoder, which serving does not model; expected a decoder, or one batch with"
            " `predict --mode generate`"
        )


def _limited(rules: Scheduler, options: Options) -> Scheduler:
    """The engine's numbers with those that somebody asked for."""
    tokens = options.max_num_batched_tokens or rules.tokens
    sequences = min(options.max_num_seqs or rules.sequences, max(1, tokens // (1 + options.drafts)))
    prompts = max(rules.prefill_tokens, tokens) if options.max_num_batched_tokens else rules.prefill_tokens
    chunks = rules.chunks if options.chunked_prefill is None else options.chunked_prefill
    if chunks and not rules.chunks and not rules.mixes:
        raise UnsupportedError("chunked prefill: the scheduler of this release runs whole prompts in separate steps")
    return replace(
        rules, tokens=tokens, sequences=sequences, prefill_tokens=prompts, chunks=chunks,
        receive_every=options.receive_every,
    )  # fmt: skip


def _memory(run: Run, budget: int, longest: int, drafts: bool) -> tuple[Memory, float]:
    """What one GPU keeps beside the cache while ``budget`` tokens are read, and bytes of the cache of a token of a
    sequence of ``longest``; with what makes ``drafts``."""
    ranks = run.work.parallelism.dp
    work = run.work.changed(mode="prefill", batch=ranks, seq_len=budget, output_len=0, prompt_lens=())
    reading = replace(run, work=work)
    each = cache_bytes(run.config, replace(work, seq_len=longest), run.numbers) / longest
    memory = memory_of(reading, plan_of(reading))
    if not drafts:
        return memory, each
    weights, more = bytes_of_drafts(run, longest)
    return replace(memory, weights=memory.weights + weights), each + more / longest
