"""What was asked, with its defaults filled in and checked: words become a `Run`, once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from predictor.engines import Engine, check_board, running, version_asked
from predictor.errors import RequestError, UnsupportedError
from predictor.files.records import dataclass, replace
from predictor.hardware.gpu import GPUSpec, gpus_of, load_gpu
from predictor.hardware.what_if import with_values
from predictor.kernels.artifact import ArtifactSet, RooflineOnly, load_artifacts
from predictor.models.base import MODES, Feature, Model
from predictor.models.forms import model_of
from predictor.request.images import note_of_size, pictures_of
from predictor.request.options import DECODES, OPTIONS, Words
from predictor.request.parallelism import Parallelism
from predictor.request.parse import (
    LARGEST_DEGREE,
    LARGEST_TOKENS,
    kernel_gap_seconds,
    launch_overhead_seconds,
    plan_of,
    ragged_lengths,
    several,
)
from predictor.request.precision import Cache, cached, default_attention, dtype_word, experts_as_they_are, numbers_of
from predictor.request.routing import router_of
from predictor.request.run import Run
from predictor.request.serving import Serving
from predictor.request.speculation import check_speculation, name_of, read_acceptance
from predictor.request.training import Training
from predictor.request.workload import DEFAULT_LAUNCH_OVERHEAD_S, Workload

if TYPE_CHECKING:
    from predictor.hardware.system import SystemSpec

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

#: Longest sequence that is taken where none is asked for: chosen by hand, not from data.
DEFAULT_SEQ_LEN = 2048
#: Tokens that generate makes a sequence where none are asked for: `vllm bench serve` asks for as many by default
#: (source: its --random-output-len).
DEFAULT_OUTPUT_LEN = 128


@dataclass(slots=True)
class Request(Words):
    """The words of one run (`predictor.request.options`), which become a `Run`. `predictor.predict` takes the same."""

    def run(self, selector: ArtifactSet | RooflineOnly | None = None) -> Run:
        """The run, checked: names are specs and words a Workload, with the defaults filled in.

        ``selector``: the estimators, in place of those of ``artifacts``. Raises RequestError (or one of its kinds), one
        line, for a request that cannot be answered.
        """
        word = dtype_word(self.dtype)
        if isinstance(word, str) and word != self.dtype:
            return replace(self, dtype=word).run(selector)
        asked, said = _of_instance(self)
        model, notes = asked._model()
        return _fixed(asked, model)._checked(model, said + notes, selector)

    def board(self) -> GPUSpec:
        """The GPU, with the values of ``gpu_set`` in place of its file's."""
        gpu = self.gpu if isinstance(self.gpu, GPUSpec) else load_gpu(self.gpu)
        return with_values(gpu, self.gpu_set) if self.gpu_set else gpu

    def _model(self) -> tuple[Model, tuple[str, ...]]:
        """The model that runs, with the sizes of a pipeline that are asked for, and notes about it."""
        model = self.model if isinstance(self.model, Model) else model_of(self.model, self.input)
        plan = None if self.tp_plan is None else plan_of(self.tp_plan, model.refusal(Feature.PLAN))
        model, notes = model.as_run(running(self.execution, self.software), self.mode, self.tp, plan)
        return _sized(self, model), notes

    def _checked(self, config: Model, notes: tuple[str, ...], selector: ArtifactSet | RooflineOnly | None) -> Run:
        gpu = self.board()
        if isinstance(self.top, bool) or not isinstance(self.top, int) or self.top < 0:
            raise RequestError(f"--top {self.top!r}: expected 0 or more")
        engine = running(self.execution, self.software)
        check_board(engine, gpu, version_asked(self.execution, self.software))
        slots = () if self.prompt_lens is None else ragged_lengths(self.prompt_lens)
        lens = tuple(n for n in slots if n)  # an empty sequence costs nothing
        sizes = _sizes(self, config, slots)
        pictures = pictures_of(self.images, config, bool(slots), self.pp)
        if pictures is not None and isinstance(sizes["seq_len"], int):
            OPTIONS["seq_len"].check(sizes["seq_len"])
            sizes["seq_len"] += pictures.tokens
            if sizes["seq_len"] > LARGEST_TOKENS:
                raise RequestError(
                    f"--images {self.images}: {pictures.tokens:,} tokens a sequence; expected at most"
                    f" {LARGEST_TOKENS:,} with those of --seq-len"
                )
            config = config.seeing()
            said = note_of_size(pictures, config)
            notes += (said,) if said else ()
        lora = self.lora != 0
        before = engine.fp8 is not None and config.model_type in engine.fp8.before
        published = "" if before else config.published_fp8
        numbers, source = numbers_of(config.checkpoint, gpu, self.dtype, self.mode, engine, lora, published)
        if config.every_expert and not engine.fuses:
            numbers = experts_as_they_are(numbers, config.name)
        attention = _attention(self, config, gpu, engine, numbers.name, sizes["seq_len"])
        cache = Cache(self.mode, engine, attention, gpu, config.is_mla)
        numbers, kv_source = cached(numbers, config.checkpoint, self.kv_dtype, cache)
        if self.mode in DECODES and self.drafts and self.acceptance is not None:
            OPTIONS["drafts"].check(self.drafts)
            said = read_acceptance(self.acceptance, self.drafts)[1]
            notes += (said,) if said else ()
        numbers = replace(numbers, notes=numbers.notes + notes) if notes else numbers
        degrees = Parallelism.of(self)
        launch_s, assumed = _launch_overhead(self.launch_overhead, gpu, engine)
        for name in ("mode", "power"):
            OPTIONS[name].check(getattr(self, name))
        work = Workload(
            batch=sizes["batch"],
            seq_len=sizes["seq_len"],
            dtype=numbers.name,
            execution=engine.name,
            attention=attention,
            training=Training.of(self, config),
            serving=Serving.of(self, sizes, numbers.kv, kv_source, pictures),
            launch_overhead_s=launch_s,
            launch_overhead_assumed=assumed,
            parallelism=degrees,
            prompt_lens=lens,
            kernel_gap_s=None if self.kernel_gap is None else kernel_gap_seconds(self.kernel_gap),
            software=self.software,
            system=_system(self.system, gpu, degrees),
            memory_fraction=self.memory_fraction,
            all_to_all=self.all_to_all,
            steps=1 if self.steps is None else self.steps,
            dtype_source=source,
            dtype_recipe=numbers.recipe,
            routing=router_of(self.routing, 0 if config.expert_capacity else config.experts, config.top_k),
        )
        work.check_model(config)
        chosen = load_artifacts(self.artifacts) if selector is None else selector
        draft = _draft(self, config, engine, lens, chosen) if self.mode in DECODES else None
        return Run(config, gpu, work, numbers, chosen, self.top, self.explain, self.strict, self.power, draft)


#: Words that are sizes: of the others follows all of a run but its lengths.
SIZES = ("batch", "seq_len", "context_len", "output_len")
_words_of = attrgetter(*(name for name in OPTIONS if name not in SIZES))


class Runs:
    """Runs of requests that come one after the other: of those that differ in sizes alone, the words that they share
    are checked once, and the sizes of each."""

    def __init__(self, selector: ArtifactSet | RooflineOnly | None = None) -> None:
        self._selector = selector
        self._known: dict[Hashable, tuple[Request, Run]] = {}

    def run(self, asked: Request) -> Run:
        """`Request.run` of a request."""
        words = _words_of(asked)
        key = (words, tuple(map(type, words)))  # True is no degree of 1
        try:
            known = self._known.get(key)
        except TypeError:  # a list among them
            return asked.run(self._selector)
        if known is not None:
            first, run = known
            sizes = _sizes(asked, run.config)
            engine, numbers = run.work.engine, run.numbers.name
            if _attention(first, run.config, run.gpu, engine, numbers, sizes["seq_len"]) == run.work.attention:
                work = run.work.changed(**sizes)
                work.check_model(run.config)
                return replace(run, work=work)
        run = asked.run(self._selector)
        if known is None and _sized_alone(asked, run.config):
            self._known[key] = asked, run
        return run


def _sized_alone(asked: Request, model: Model) -> bool:
    """Whether sizes change nothing of a run but its lengths: those of no inputs, and of no micro-batches."""
    fixed = asked.images is not None or model.sizes is not None or model.parts() or not model.supports(Feature.LENGTH)
    return asked.mode != "train" and asked.prompt_lens is None and not fixed and not asked.drafts


def _sizes(asked: Request, config: Model, slots: tuple[int, ...] = ()) -> dict[str, Any]:
    """The sizes of a workload, by name: as asked for, else what the model can take; ``slots``: of a ragged batch."""
    lens = tuple(n for n in slots if n)
    output_len = _output_len(asked, config, lens)
    seq_len, context_len = _lengths(asked, config, lens, output_len)
    batch = len(lens) or 1 if asked.batch is None or (slots and asked.batch == len(slots)) else asked.batch
    return {"batch": batch, "seq_len": seq_len, "output_len": output_len, "context_len": context_len or 0}


def _attention(asked: Request, config: Model, gpu: GPUSpec, engine: Engine, dtype: str, seq_len: int) -> str:
    """The kernel of attention: as asked for, else that of the board, or of an engine's rule for encoders."""
    fused = engine.fused_encoders if asked.mode == "forward" and not config.causal else None
    tokens = seq_len if isinstance(seq_len, int) else 0  # what is no number is refused with the workload
    return asked.attention or default_attention(dtype, gpu, fused, config.head_width, tokens)


def _draft(
    asked: Request, config: Model, engine: Engine, lens: tuple[int, ...], selector: ArtifactSet | RooflineOnly
) -> Run | None:
    """The run of the model that makes drafts, None where a layer of the model's own does, or nothing.

    RequestError, one line, where words of speculation do not go together.
    """
    check_speculation(asked.drafts, asked.acceptance, asked.draft_model, config, engine, asked.pp)
    if asked.drafts and lens:
        raise RequestError(f"--drafts {asked.drafts}: not built for --prompt-lens; expected one length, or 0")
    if asked.draft_model is None:
        return None
    alone = replace(
        asked, model=asked.draft_model, drafts=0, acceptance=None, draft_model=None, top=0, explain=None, power=False
    )
    try:
        return alone.run(selector)
    except RequestError as error:
        raise type(error)(f"--draft-model {name_of(asked.draft_model)}: {error}") from None


def of_words(source: Callable[Given, Request]) -> Callable[[Callable[[Request], Answer]], Callable[Given, Answer]]:
    """Makes a function of a Request one of its words, so that these, their types and their defaults are listed once.

    What it makes has the signature of ``source``, the class Request, for type checkers and for `inspect`.
    """

    def decorate(answer: Callable[[Request], Answer]) -> Callable[Given, Answer]:
        @wraps(answer, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
        def call(*args: Given.args, **words: Given.kwargs) -> Answer:
            return answer(source(*args, **words))

        shown = signature(source).replace(return_annotation=answer.__annotations__["return"])
        call.__signature__ = shown  # type: ignore[attr-defined]
        return call

    return decorate


def _of_instance(asked: Request) -> tuple[Request, tuple[str, ...]]:
    """The request with the GPUs of the cloud's instance that it names (`--gpu p5.48xlarge`), and a note that says so;
    itself for a board.

    Who gives ``num_gpus`` or a degree has chosen how many GPUs run. Who gives neither gets all of the instance's: they
    share every layer (tp), and in training the batch (dp).
    """
    count = gpus_of(asked.gpu)
    if count == 1:
        return asked, ()
    has = f"{asked.gpu} is {count} x {load_gpu(str(asked.gpu)).id}"
    degrees = 1
    for degree in (asked.tp, asked.pp, asked.dp, asked.cp):
        degrees *= degree if isinstance(degree, int) and degree > 0 else 1
    used = degrees if asked.num_gpus is None else asked.num_gpus
    if asked.num_gpus is None and degrees == 1:
        word = "dp" if asked.mode == "train" else "tp"
        note = f"{has}: taken as --num-gpus {count} --{word} {count} (--num-gpus 1 for one of them)."
        shared = replace(asked, dp=count) if asked.mode == "train" else replace(asked, tp=count)
        return replace(shared, num_gpus=count), (note,)
    if used == count:
        return asked, (f"{has}.",)
    several = isinstance(used, int) and used > count
    return asked, (f"{has}: the run has {used} GPUs" + (f", {-(-used // count)} instances." if several else "."),)


def _sized(asked: Request, model: Model) -> Model:
    """A pipeline with the batch and the steps that are asked for; any other model itself."""
    named = {"batch": asked.batch, "steps": asked.steps, "gpus": asked.dp if several(asked.dp) else None}
    return model.with_sizes(**{name: value for name, value in named.items() if value is not None})


def _fixed(asked: Request, model: Model) -> Request:
    """The request with what the model itself fixes: sizes by its inputs, and perhaps the dtype.

    RequestError (or UnsupportedError), one line, for a word that asks for something else, or for what it has not got.
    """
    if asked.mode in MODES and asked.mode not in model.modes:
        has = f"has {', '.join(model.modes)}; expected one of these"
        if len(model.modes) == 1:
            made = "was recorded in" if model.dtype else "has"
            has = f"{made} mode {model.modes[0]} alone; add --mode {model.modes[0]}"
        raise UnsupportedError(f"--mode {asked.mode}: {model.name} {has}")
    _check_features(asked, model)
    if model.dtype and asked.dtype not in (None, model.dtype):
        raise RequestError(f"--dtype {asked.dtype}: {model.name} was recorded in another; expected {model.dtype}")
    if model.sizes is None:
        return replace(asked, dtype=model.dtype) if model.dtype else asked
    if asked.prompt_lens is not None:
        raise UnsupportedError(f"--prompt-lens: {model.name} was recorded with fixed inputs; leave it out")
    batch, tokens = model.sizes
    # The inputs are those of one rank, the batch of training is that of all.
    ranks = asked.dp if asked.mode == "train" and isinstance(asked.dp, int) and 0 < asked.dp <= LARGEST_DEGREE else 1
    of_all = batch * ranks
    for name, given, fixed in (("batch", asked.batch, of_all), ("seq-len", asked.seq_len, tokens)):
        if given not in (None, fixed):
            how = f"{fixed}, as it was recorded" if model.dtype else "that, by --input"
            raise RequestError(f"--{name} {given}: the inputs of {model.name} have {fixed}; expected {how}")
    if asked.micro_batch not in (0, batch):
        raise UnsupportedError(
            f"--micro-batch {asked.micro_batch}: {model.name} was recorded with {batch}; expected {batch}"
        )
    steps = asked.steps if model.steps is None else model.steps
    return replace(asked, batch=of_all, seq_len=tokens, dtype=asked.dtype or model.dtype or None, steps=steps)


def _check_features(asked: Request, model: Model) -> None:
    """UnsupportedError, one line, for the first word that asks for a feature which the model has not got."""
    forward = asked.mode == "forward"
    words = (
        (f"--seq-len {asked.seq_len}", asked.seq_len is not None, Feature.LENGTH),
        ("--prompt-lens", asked.prompt_lens is not None, Feature.LENGTH),
        (f"--cp {asked.cp}", forward and several(asked.cp), Feature.CONTEXT_OF_A_PASS),
        (f"--dp {asked.dp}", forward and several(asked.dp), Feature.REPLICAS_OF_A_PASS),
        (f"--cp {asked.cp}", not forward and asked.cp != 1, Feature.CONTEXT),
        (f"--ep {asked.ep}", asked.ep != 1, Feature.EXPERTS),
        ("--sp", bool(asked.sp), Feature.SEQUENCE),
        (f"--lora {asked.lora}", bool(asked.lora), Feature.ADAPTERS),
        ("--recompute selective", asked.recompute == "selective", Feature.SELECTIVE),
        (f"--offload-layers {asked.offload_layers}", bool(asked.offload_layers), Feature.OFFLOAD),
    )
    for word, said, feature in words:
        if said and (reason := model.refusal(feature)):
            raise UnsupportedError(f"{word}: {reason}")


def _output_len(asked: Request, config: Model, lens: tuple[int, ...]) -> int:
    """Tokens to make a sequence: as asked for, else the default, or as many as learned positions leave room for."""
    if asked.output_len is not None or asked.mode != "generate":
        return asked.output_len or 0
    if config.position != "learned":
        return DEFAULT_OUTPUT_LEN
    prompt = max(lens) if lens else asked.seq_len
    room = config.max_positions // 2 if not isinstance(prompt, int) else config.max_positions - prompt + 1
    return max(1, min(DEFAULT_OUTPUT_LEN, room))


def _lengths(asked: Request, config: Model, lens: tuple[int, ...], output_len: int) -> tuple[int, int | None]:
    """Tokens of a sequence, and those in its KV cache: as asked for, else what the model can take."""
    seq_len, context_len = asked.seq_len, asked.context_len
    if lens:
        pads = asked.mode == "forward" and running(asked.execution, asked.software).pads_attention
        _check_ragged(config, asked.mode, None if pads else seq_len, context_len)
        seq_len = max(lens) if seq_len is None else seq_len
    longest = min(config.max_positions, DEFAULT_SEQ_LEN)
    if lens and asked.mode == "decode":
        context_len = seq_len
    if asked.mode == "decode" and context_len is None:
        context_len = longest - 1 if seq_len is None else seq_len  # the step's own token is the last that fits
    if seq_len is None:
        makes = output_len - 1 if asked.mode == "generate" and isinstance(output_len, int) else 0
        seq_len = max(1, longest - max(0, makes)) if config.position == "learned" else longest
    return seq_len, context_len


def _system(given: str | Path | SystemSpec | None, gpu: GPUSpec, degrees: Parallelism) -> SystemSpec | None:
    """What joins the GPUs of a run; None for one GPU, whose system says nothing (a wrong name is still an error)."""
    if given is None and degrees.num_gpus == 1:
        return None
    from predictor.hardware.system import SystemSpec, default_system, load_system  # a run of one GPU starts without it

    if given is None:
        given = default_system(gpu)
    system = load_system(given) if isinstance(given, str | Path) else given
    if not isinstance(system, SystemSpec):
        raise RequestError(f"--system {system!r:.40}: expected a system's name, or a YAML file")
    return system.shared_by(degrees.groups, (degrees.sharers,)) if degrees.num_gpus > 1 else None


def _check_ragged(config: Model, mode: str, seq_len: int | None, context_len: int | None) -> None:
    """A ragged batch says its lengths itself, and has to be of a model that can be packed."""
    for name, value in (("seq-len", seq_len), ("context-len", context_len if mode == "decode" else None)):
        if value is not None:
            raise RequestError(f"--{name} {value}: --prompt-lens gives every sequence's length; leave --{name} out")
    if config.is_encoder_decoder:
        raise UnsupportedError(f"--prompt-lens: not built for an encoder-decoder ({config.name}); expected --seq-len")


def _launch_overhead(given: str | float | None, gpu: GPUSpec, engine: Engine) -> tuple[float, bool]:
    """Seconds of one framework call (of one launch from C++): as asked for, else of the GPU's host where its file names
    it, else the default; and whether it is the default, assumed for want of these."""
    if given is not None:
        return launch_overhead_seconds(given), False
    native = engine.launch_overhead_s
    if native is not None:
        return native, True
    if gpu.launch_overhead_s is None:
        return DEFAULT_LAUNCH_OVERHEAD_S, True
    try:
        return launch_overhead_seconds(gpu.launch_overhead_s), False
    except RequestError as error:
        raise RequestError(f"GPU file '{gpu.path}': {error}") from None
