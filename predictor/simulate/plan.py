"""What a run does, in every mode: stages one after the other, each of passes that are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from predictor.engines import CAPTURED, GREEDY, PIECES
from predictor.files.records import replace
from predictor.graph import Graph, Node
from predictor.models.base import Feature, Model, Part
from predictor.models.step import ATTENTION_LINEAR, Step
from predictor.ops.attention import Attention
from predictor.ops.collective import Collective, over
from predictor.ops.routing import RANDOM
from predictor.request.precision import Precision
from predictor.request.run import Run
from predictor.request.workload import Workload
from predictor.simulate.capture import decode_size, padded, padded_lens, prompt_size, tokens_of
from predictor.simulate.columns import NoColumns, Size, agree, each_of, first, points, whole
from predictor.simulate.lower import Lowering, lower, mesh_of
from predictor.simulate.stage import DRAFT, DRAFT_PROMPTS, IMAGES, Plan, Stage
from predictor.simulate.templates import lower_alike
from predictor.simulate.timeline import gaps_of

if TYPE_CHECKING:
    from predictor.passes.mesh import Mesh
    from predictor.request.images import Pictures

#: Context lengths at which a decode step is forecast; steps between them are interpolated. A step's time is close to
#: linear in the context, with bends where attention's tiles fill another wave. Chosen by looking at 24 random runs of
#: 64 to 700 steps: the sum differs from that of every step by 0.07 % on average, 0.6 % at most.
DECODE_SAMPLES = 4


def plan_of(run: Run, captured: bool = True) -> Plan:
    """The stages of a run on one of its GPUs; without ``captured`` every kernel of a serving engine is launched.

    A forward pass runs ``steps`` times, a part of a pipeline as often as that says; generate is a prefill, which gives
    the first token, then ``output_len - 1`` decode steps (fewer with drafts, and after each the passes that make the
    next ones); training one stage of ``batch / micro_batch`` passes forward and backward, then one step of the
    optimizer (none of it, where there is no optimizer). RequestError where a degree does not divide the model.
    """
    config, work, numbers = run.config, run.work, run.numbers
    if work.training is not None:
        from predictor.simulate.step_plan import training_plan  # a forward pass starts without it

        pass_ = make_step(work, numbers, "train", work.tokens_each, 0, work.sequences_a_pass)
        return training_plan(config, work, numbers, pass_, run.gpu)
    engine, launch_s, mode = work.engine, work.launch_overhead_s, work.mode
    waits = tuple(work.waits_s.items())

    def stage(passes: _Passes, phase: str, weight: float = 1.0, context: int = 0) -> Stage:
        graph, host, alone = passes
        gaps = gaps_of(host in (CAPTURED, PIECES), work.kernel_gap_s)
        once = () if phase in (DRAFT, DRAFT_PROMPTS, IMAGES) else waits
        passed = Stage(reducing(graph, run), phase, weight, host, launch_s, once, gaps, context, counted=alone)
        return passed if work.parallelism.pp == 1 else _piped(passed, config, work, numbers)

    if mode == "decode":
        (passes,) = _decode_steps(run, (0,), captured)
        drafts = (stage(each, DRAFT, float(_drafts(run))) for each in _draft_passes(run, (0,), captured))
        return Plan((stage(passes, mode), *drafts))
    parts = config.parts()
    if parts:
        return Plan(
            tuple(
                stage(_Passes(_part_graph(part, work, numbers), engine.host), part.name, float(part.times))
                for part in parts
            )
        )
    prompts = mode if mode != "generate" else "prefill"
    stages = [stage(_prompts(run, prompts, captured), prompts, float(work.steps))]
    if work.serving is not None and work.serving.images is not None:
        stages.append(stage(_Passes(_tower_graph(run, work.serving.images), engine.host), IMAGES))
    if mode == "generate":
        assert work.serving is not None
        grown, weights = sample_contexts(work.serving.output_len - 1)
        steps, each = 1.0 / work.serving.acceptance_length, _drafts(run)
        stages += [
            stage(passes, "decode", weight * steps if each else weight, work.seq_len + more)
            for passes, weight, more in zip(_decode_steps(run, grown, captured), weights, grown, strict=True)
        ]
        if each:
            stages += [
                stage(passes, DRAFT, weight * steps * each, work.seq_len + more)
                for passes, weight, more in zip(_draft_passes(run, grown, captured), weights, grown, strict=True)
            ]
            stages.append(stage(_draft_prompts(run, captured), DRAFT_PROMPTS))
    return Plan(tuple(stages))


def _tower_graph(run: Run, images: Pictures) -> Graph:
    """The pass of the images of all sequences of a rank through the model's tower, in 16 bit."""
    work, tower = run.work, run.config.tower
    assert tower is not None
    count = first(work.sequences_a_pass) * images.number * images.sequences
    step = replace(make_step(work, run.numbers, "forward", images.patches, 0, count), attention="flash")
    mesh = mesh_of(work)
    if mesh is not None and tower.ranks(mesh.degree("tp")) == 1:
        mesh = None  # a copy on each GPU
    return lower(Lowering(run.config.tower_model(), step, mesh, None, work.engine))


class _Passes(NamedTuple):
    """A pass as it is run, what the CPU does in it, and the pass without what pads it to a captured one's size, None
    where nothing does."""

    graph: Graph
    host: str
    alone: Graph | None = None


def _decode_steps(run: Run, grown: tuple[Size, ...], captured: bool) -> list[_Passes]:
    """Decode steps that find ``grown`` tokens in the cache beside the run's own, as the engine runs them."""
    config, work, numbers, engine = run.config, run.work, run.numbers, run.work.engine
    exact = _decode_graphs(config, work, numbers, grown)
    tokens, drafts = work.sequences_a_pass, _drafts(run)
    if drafts:  # all tokens of a sequence are checked in one pass, whose attention reads its cache once
        tokens *= 1 + drafts
        exact = tuple(padded(_decode_graphs(config, work, numbers, grown, tokens), exact))
    size = decode_size(run) if captured else None
    if size is None or np.all(size == tokens):
        host = engine.host if size is None else engine.decode_host
        return [_Passes(graph, host) for graph in exact]
    wide = _decode_graphs(config, work, numbers, grown, size)
    return [_Passes(graph, engine.decode_host, alone) for graph, alone in zip(padded(wide, exact), exact, strict=True)]


def _drafts(run: Run) -> int:
    """Tokens that are guessed a step."""
    return 0 if run.work.serving is None else run.work.serving.drafts


def _draft_passes(run: Run, grown: tuple[Size, ...], captured: bool) -> list[_Passes]:
    """What guesses a token after a step with ``grown`` tokens more in the cache: a decode step of the model that makes
    drafts, or a layer and the head of the run's own. None without drafts."""
    if not _drafts(run):
        return []
    if run.draft is not None:
        return _decode_steps(run.draft, grown, captured)
    host = run.work.engine.host if not captured or decode_size(run) is None else run.work.engine.decode_host
    graphs = _decode_graphs(run.config, run.work, run.numbers, grown)
    return [_Passes(drafting(graph), host) for graph in graphs]


def _draft_prompts(run: Run, captured: bool) -> _Passes:
    """The pass of what makes drafts over the prompts, which fills its part of the cache."""
    if run.draft is not None:
        return _prompts(run.draft, "prefill", captured)
    passes = _prompts(run, "prefill", captured)
    alone = None if passes.alone is None else drafting(passes.alone)
    return _Passes(drafting(passes.graph), passes.host, alone)


def drafting(graph: Graph) -> Graph:
    """Of a pass of a model, that of its layer of multi-token prediction: the last layer, between embedding and head,
    both of which are the model's own (DeepSeek-V3, arXiv:2412.19437, section 2.2)."""
    numbered = [place for place, block in enumerate(graph.blocks) if block.layers]
    last = max(numbered, key=lambda place: graph.blocks[place].layers[-1])
    layer = graph.blocks[last]
    layer = replace(layer, repeat=1, layers=layer.layers[-1:])
    return replace(graph, blocks=(*graph.blocks[: numbered[0]], layer, *graph.blocks[numbered[-1] + 1 :]))


def _prompts(run: Run, mode: str, captured: bool) -> _Passes:
    """The pass over the prompts, as the engine runs it."""
    config, work, numbers, engine = run.config, run.work, run.numbers, run.work.engine
    exact = _whole_graph(config, work, numbers, mode)
    size = prompt_size(run) if captured and mode == "prefill" else None
    if size is None:
        return _Passes(exact, engine.host)
    if agree(size == tokens_of(run)):
        return _Passes(exact, PIECES)
    if points(run):
        raise NoColumns  # a batch that is padded is ragged
    wide = _whole_graph(config, work, numbers, mode, padded_lens(run, size))
    (graph,) = padded([wide], [exact])
    return _Passes(graph, PIECES, exact)


def reducing(graph: Graph, run: Run) -> Graph:
    """``graph`` with the norms that the engine's all_reduce does in its kernel; itself where it does none."""
    engine, gpu = run.work.engine, run.gpu
    release = engine.vintage() if run.work.parallelism.num_gpus > 1 and engine.serves else None
    if release is None or release.collectives is None or not release.collectives.fused:
        return graph
    from predictor.engines.defaults import fused_norm  # one GPU reduces nothing
    from predictor.passes.fuse_modules import norms_in_reductions

    def takes(op: Collective, tokens: int) -> bool:
        alone = op.local_ranks == op.ranks and op.link != "pcie"
        capability, model = gpu.compute_capability or "", run.config.model_type
        if not alone:
            return False

        def fused(size: float, rows: int) -> bool:
            return fused_norm(engine, size, rows, op.ranks, capability, model) is not None

        size, rows = np.broadcast_arrays(op.size, tokens)
        return agree(np.array(each_of(fused, size, rows))) if size.ndim else fused(op.size, tokens)

    return norms_in_reductions(graph, takes)


def _piped(stage: Stage, config: Model, work: Workload, numbers: Precision) -> Stage:
    """The stage with its passes cut into those of a pipeline."""
    from predictor.passes.pipeline import check_stages, staged  # a forecast of one GPU starts without it

    stack, mesh = config.stack(stage.graph), mesh_of(work)
    assert mesh is not None  # pp GPUs or more
    check_stages(stack, work.parallelism.pp)
    tokens = work.sequences_a_pass
    if stage.phase != "decode":
        tokens = sum(work.lens_a_pass) or tokens * work.seq_len
    graph, ends = staged(stage.graph, mesh, stack.layers, tokens, stack.hidden, numbers.activation)
    return stage._replace(graph=graph, ends=ends, in_flight=work.in_flight)


def make_step(
    work: Workload, numbers: Precision, mode: str, seq_len: int, context_len: int, batch: int,
    lens: tuple[int, ...] = (),
) -> Step:  # fmt: skip
    """The pass of a workload that a network builds a graph for."""
    serving = mode in ("prefill", "decode")
    engine, training = work.engine, work.training
    sampling = GREEDY if work.serving is None else work.serving.sampling
    one_kernel = mode == "decode" and engine.decodes_in_one_kernel
    return Step(
        mode=mode,
        batch=batch,
        seq_len=seq_len,
        context_len=context_len,
        act_dtype=numbers.activation,
        kv_dtype=numbers.kv,
        attention="flash" if one_kernel else work.attention,
        logits="last" if serving else "all",
        training=mode == "train" or (mode == "forward" and engine.trains),
        lens=lens,
        routing=RANDOM if work.routing is None else work.routing.distribution,
        experts="whole" if engine.fuses else "loop",
        lora=0 if training is None else training.lora,
        lora_targets=ATTENTION_LINEAR if training is None else training.lora_targets or ATTENTION_LINEAR,
        masked=0 if training is None else training.masked_tokens,
        capacity=0.0 if training is None else training.capacity_factor,
        sampling=sampling if serving and engine.samples else "",
        classes=engine.classes,
    )


def sample_contexts(steps: Size) -> tuple[tuple[Size, ...], tuple[Any, ...]]:
    """Decode steps to forecast, and how many steps each stands for: a line between them (they sum to ``steps``).

    Step i of ``steps`` finds i tokens more in the cache than the prompt has.
    """
    if agree(steps <= DECODE_SAMPLES):
        steps = first(steps)  # which all points of a column have then (`columns.structure`)
        return tuple(range(steps)), (1.0,) * steps
    picked = [whole(i * (steps - 1) / (DECODE_SAMPLES - 1)) for i in range(DECODE_SAMPLES)]
    share: list[Any] = [0.0] * DECODE_SAMPLES
    share[-1] = 1.0
    for i in range(DECODE_SAMPLES - 1):  # the steps from picked[i] up to, not including, picked[i + 1]
        gap = picked[i + 1] - picked[i]
        share[i] = share[i] + (gap + 1) / 2.0
        share[i + 1] = share[i + 1] + (gap - 1) / 2.0
    return tuple(picked), tuple(share)


def _whole_graph(
    config: Model, work: Workload, numbers: Precision, mode: str, padded_to: tuple[int, ...] = ()
) -> Graph:
    """A pass over all tokens of the prompts, of these lengths where they are padded."""
    batch, lens, mesh = work.sequences_a_pass, padded_to or work.lens_a_pass, mesh_of(work)
    seq_len = max(padded_to) if padded_to else work.seq_len
    step = make_step(work, numbers, mode, first(seq_len), 0, first(batch), lens)
    if work.parallelism.sp:
        return lower(Lowering(config, step, mesh, numbers.formats, work.engine, sequences=True))
    graphs = lower_alike(config, step, (seq_len,), mesh, numbers.formats, work.engine, batch)
    over = work.parallelism
    how = Lowering(config, step, mesh, numbers.formats, work.engine, cp_comm=over.cp_comm, ulysses=over.ulysses)
    return graphs[0] if graphs else lower(how)


def _part_graph(part: Part, work: Workload, numbers: Precision) -> Graph:
    """A pass of a part of a pipeline, its collectives over the links of the run's system."""
    step = replace(
        make_step(work, numbers, part.mode, part.seq_len, 0, part.batch), act_dtype=part.dtype or numbers.activation
    )
    formats, degrees, mesh = None if part.dtype else numbers.formats, work.parallelism, mesh_of(work)
    accumulate = False if part.mode == "train" else None
    graph = lower(Lowering(
        part.model, step, mesh, formats, work.engine, accumulate, cp_comm=degrees.cp_comm, ulysses=degrees.ulysses
    ))  # fmt: skip
    if mesh is None or not any(isinstance(node.op, Collective) and not node.op.system for node, _ in graph.nodes()):
        return graph
    blocks = (replace(block, nodes=tuple(_linked(node, mesh) for node in block.nodes)) for block in graph.blocks)
    return replace(graph, blocks=tuple(blocks))


def _linked(node: Node, mesh: Mesh) -> Node:
    """A node with the links of ``mesh``, where it is a collective that has none yet."""
    op = node.op
    if not isinstance(op, Collective) or op.system:
        return node
    return replace(node, op=over(mesh.system, op.kind, op.dtype, op.size, op.ranks))


def _decode_graphs(
    config: Model, work: Workload, numbers: Precision, grown: tuple[Size, ...], sequences: Size | None = None
) -> tuple[Graph, ...]:
    """Decode steps that find ``grown`` tokens in the cache beside the workload's own, one for each; of so many
    ``sequences`` where they are not the workload's."""
    before, mesh = work.given_len, mesh_of(work)
    formats, engine = numbers.formats, work.engine
    batch = work.sequences_a_pass if sequences is None else sequences
    lens = work.lens_a_pass if sequences is None else ()
    single = make_step(work, numbers, "decode", 1, 1, first(batch))
    if not lens:
        graphs = lower_alike(config, single, [before + more for more in grown], mesh, formats, engine, batch)
        if graphs:
            return tuple(graphs)
    alone = engine.fuses and single.attention == "flash" and not lens and not config.is_encoder_decoder
    if alone and config.supports(Feature.OPEN_SIZES):
        # Attention alone knows how long the context is: the rest of the step is built once.
        graph = lower(Lowering(config, single, mesh, formats, engine))
        return tuple(_with_context(graph, before + more) for more in grown)
    steps = (
        make_step(work, numbers, "decode", 1, before + more, batch, tuple(n + more for n in lens)) for more in grown
    )
    return tuple(lower(Lowering(config, step, mesh, formats, engine)) for step in steps)


def _with_context(graph: Graph, context: int) -> Graph:
    """A fused decode step with ``context`` tokens in the cache, from one with another number."""
    blocks = list(graph.blocks)
    for b, block in enumerate(blocks):
        for i, node in enumerate(block.nodes):
            if isinstance(node.op, Attention):  # once a layer
                other = replace(node, op=replace(node.op, kv_len=context + 1))
                blocks[b] = replace(block, nodes=(*block.nodes[:i], other, *block.nodes[i + 1 :]))
                break
    return replace(graph, blocks=tuple(blocks))
