"""Where the time goes: operators of all stages gathered into classes, and the longest of them one by one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import cast

from predictor.errors import UnsupportedError, unknown_name
from predictor.files.records import dataclass
from predictor.kernels.artifact import ArtifactSet, RooflineOnly
from predictor.kernels.base import ESTIMATOR, ROOFLINE, KernelPrediction, KernelTable, make_batch
from predictor.kernels.explanation import COUNT, Explains, Explanation, Term, terms
from predictor.models.base import Model
from predictor.ops.attention import Attention
from predictor.ops.base import BACKWARD, Op
from predictor.ops.gemm import Gemm
from predictor.ops.moe import MoE
from predictor.ops.opaque import Opaque
from predictor.ops.roofline import bound_name
from predictor.request.run import Run
from predictor.request.workload import Workload
from predictor.simulate.answer import ClassTime, Explained, NodeTime
from predictor.simulate.stage import Plan
from predictor.simulate.sustained import POWER, held_terms
from predictor.simulate.times import OpTime, TimedStage

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")


@dataclass(slots=True)
class _Sum:
    count: float = 0.0
    latency: float = 0.0
    roofline: float = 0.0
    bounds: dict[str, float] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)
    estimators: set[str] = field(default_factory=set)


def classes(op_times: Sequence[OpTime], table: KernelTable) -> tuple[ClassTime, ...]:
    """The breakdown by operator class and phase, the longest first."""
    latency = table.latency_s.tolist()
    compute = table.compute_s.tolist()
    dram = table.dram_s.tolist()
    link = table.link_s.tolist()
    sums: dict[tuple[str, str], _Sum] = {}
    for item in op_times:
        i = item.index
        entry = sums.get((item.op.label, item.phase))
        if entry is None:
            entry = sums[(item.op.label, item.phase)] = _Sum()
        seconds = latency[i] * item.times
        entry.count += item.times
        entry.latency += seconds
        entry.roofline += max(compute[i], dram[i], link[i]) * item.times
        bound = bound_name(compute[i], dram[i], latency[i], link[i])
        entry.bounds[bound] = entry.bounds.get(bound, 0.0) + seconds
        name = table.estimators[i]
        entry.sources.add(ESTIMATOR if name else ROOFLINE)
        if name:
            entry.estimators.add(name)
    total = sum(s.latency for s in sums.values()) or 1.0
    rows = [
        ClassTime(
            op, phase, s.count, s.latency, s.latency / total, min(1.0, s.roofline / s.latency),
            max(s.bounds, key=lambda b: s.bounds[b]), s.sources.pop() if len(s.sources) == 1 else "mixed",
            tuple(sorted(s.estimators)), s.bounds,
        )
        for (op, phase), s in sums.items()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: -row.latency_s))


#: Operator classes that no data set here measures: their time is bytes and FLOPs at the efficiency of a sibling.
UNMEASURED = ("optimizer", "cross-entropy", "moe routing")


def notes(rows: Sequence[ClassTime], gpu: str, selector: ArtifactSet | RooflineOnly) -> tuple[str, ...]:
    """What a reader should know of where the numbers are from: a GPU or operators that nobody measured."""
    lines = []
    used = sorted({name for row in rows for name in row.estimators})
    unseen = [name for name in used if gpu not in selector.measured_on(name)]
    if unseen:
        lines.append(f"No measurements of {gpu} for {', '.join(unseen)}: these times rest on other GPUs.")
    guessed = {row.op for row in rows if row.op in UNMEASURED}
    if any(row.phase == BACKWARD for row in rows):
        guessed.add("backward kernels other than GEMM")
    if guessed and used:
        lines.append(
            f"No measurements of {', '.join(sorted(guessed))}: forecast with the efficiency of similar kernels."
        )
    return tuple(lines)


def context_notes(config: Model, work: Workload) -> tuple[str, ...]:
    """A note where the engine has no such model, or a sequence is longer than those that a model without learned
    positions was made for.

    Engines that serve take such a request where somebody raises their limit. Source: max_model_len of vLLM,
    context_length of SGLang and max_seq_len of TensorRT-LLM, whose default is what the config says, as we understand
    them.
    """
    if config.is_encoder_decoder and work.engine.decoders_alone:
        return (
            f"--execution {work.execution} does not support encoder-decoders such as {config.name}: the time is what"
            " its kernels would take.",
        )
    longest, trained = work.longest_sequence, config.trained_positions
    if config.position not in ("rotary", "alibi") or longest <= trained:
        return ()
    return (
        f"{longest:,} tokens exceed the {trained:,} that {config.name} was trained for ({config.position} positions)."
        " The time still holds; the output may be useless."
        + " The engine refuses such a request unless its limit is raised."
        * work.engine.samples,
    )


def longest_nodes(stages: Sequence[Sequence[OpTime]], table: KernelTable, top: int) -> tuple[NodeTime, ...]:
    """The ``top`` operators by time in all their runs, each once.

    ``stages`` are the operators of every stage. Stages from the second on that have the same operators in the same
    places are steps of one kind (the sampled decode steps of generate): one row stands for an operator of all of them,
    with the range of what grows with the context in its shape.
    """
    if top < 1:
        return ()
    latency = table.latency_s.tolist()
    rows: dict[tuple[str, str, str, tuple[int, ...]], list[OpTime]] = {}
    for members in _same_places(stages):
        first = members[0]
        key = (first.name, first.op.label, first.phase, tuple(dict.fromkeys(item.index for item in members)))
        rows.setdefault(key, []).extend(members)
    ranked = [(sum(latency[item.index] * item.times for item in members), members) for members in rows.values()]
    total = sum(seconds for seconds, _ in ranked) or 1.0
    ranked.sort(key=lambda row: -row[0])
    return tuple(_node(members, seconds, seconds / total, table) for seconds, members in ranked[:top])


def _same_places(stages: Sequence[Sequence[OpTime]]) -> list[list[OpTime]]:
    """Operators that are one: each of the first stage, and those in one place of all later stages of one kind."""
    groups: list[list[OpTime]] = [[item] for item in stages[0]]
    places: dict[tuple[int, str, str, str], list[OpTime]] = {}
    for later in stages[1:]:
        for place, item in enumerate(later):
            places.setdefault((place, item.name, item.op.label, item.phase), []).append(item)
    return groups + list(places.values())


def _node(members: Sequence[OpTime], seconds: float, share: float, table: KernelTable) -> NodeTime:
    """The row of one operator; what bounds it is what bounds most of its time."""
    times: dict[int, float] = {}
    for item in members:
        times[item.index] = times.get(item.index, 0.0) + item.times
    longest = table.row(max(times, key=lambda i: float(table.latency_s[i]) * times[i]))
    first, texts = members[0], [shape_text(item.op) for item in members]
    return NodeTime(
        first.name or first.op.label, first.op.label, _range_text(texts[0], texts[-1]), first.phase,
        sum(times.values()), seconds, share, longest.bound, longest.source,
    )  # fmt: skip


def _range_text(first: str, last: str) -> str:
    """Two shapes as one, numbers that differ as "512 to 640".

    >>> _range_text("batch 1, q 1, kv 512, bf16", "batch 1, q 1, kv 640, bf16")
    'batch 1, q 1, kv 512 to 640, bf16'
    """
    if first == last:
        return first
    ours, theirs = _NUMBER.split(first), _NUMBER.split(last)  # words and numbers in turn
    if ours[::2] != theirs[::2]:
        return f"{first} to {last}"
    return "".join(a if a == b else f"{a} to {b}" for a, b in zip(ours, theirs, strict=True))


def shape_text(op: Op) -> str:
    """An operator's shape in a few words."""
    if isinstance(op, Gemm):
        batch = f"{op.batch} x " if op.batch > 1 else ""
        return f"{batch}{op.m} x {op.n} x {op.k} {op.dtype}"
    if isinstance(op, Attention):
        return f"batch {op.batch}, heads {op.heads}/{op.kv_heads}, q {op.q_len}, kv {op.kv_len}, {op.dtype}"
    if isinstance(op, MoE):
        return f"{op.tokens} tokens, {op.experts} experts, top {op.top_k}, {op.dtype}"
    moved = op.bytes_moved()
    factor, unit = next((f, u) for f, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (0.0, "B")) if moved >= f)
    return f"{moved / (factor or 1.0):.4g} {unit} {op.dtype}"


def unknown_shares(op_times: Sequence[OpTime], table: KernelTable) -> dict[str, float]:
    """Share of all GPU time by name of an operator without an entry, the largest first; empty where there is none."""
    shares: dict[str, float] = {}
    total = 0.0
    for item in op_times:
        seconds = float(table.latency_s[item.index]) * item.times
        total += seconds
        if isinstance(item.op, Opaque):
            shares[item.op.name] = shares.get(item.op.name, 0.0) + seconds
    return {name: s / (total or 1.0) for name, s in sorted(shares.items(), key=lambda row: -row[1])}


def unknown_notes(shares: Mapping[str, float]) -> tuple[str, ...]:
    """The line that a reader gets of them."""
    if not shares:
        return ()
    named = ", ".join(f"{name} {share:.2%}" for name, share in shares.items())
    return (
        f"{sum(shares.values()):.2%} of the GPU time is from operators that Tilecast does not know: {named}. They are"
        " taken at their roofline (--strict refuses them).",
    )


def wide_notes(run: Run, op_times: Sequence[OpTime]) -> tuple[str, ...]:
    """The line of operators with weights that stay wide where linear layers are in a narrow format: no kernel of theirs
    in it is known."""
    formats = run.numbers.formats
    if formats.linear == formats.high:
        return ()
    from predictor.ops.convolution import Convolution  # 16-bit runs start without it

    wide = any(isinstance(item.op, Convolution) for item in op_times)
    narrow = formats.linear.quant or formats.linear.dtype
    return (f"Convolutions stay in {formats.high.dtype}: no kernel is known for {narrow}.",) if wide else ()


def check_strict(run: Run, plan: Plan) -> None:
    """UnsupportedError, one line, where a strict run has an operator without an entry."""
    if not run.strict:
        return
    names = {
        node.op.name: node.name for stage in plan.stages for block in stage.graph.blocks for node in block.nodes
        if isinstance(node.op, Opaque)
    }  # fmt: skip
    if names:
        named = ", ".join(f"{name} (in {where!r})" for name, where in sorted(names.items()))
        raise UnsupportedError(f"--strict: {run.config.name} runs operators that Tilecast does not know: {named}")


def names_of(stages: Sequence[TimedStage]) -> list[str]:
    """Names of a run's operators, as a list of the longest ones has them, the longest first."""
    seconds_of: dict[str, float] = {}
    for timed in stages:
        for item in timed.op_times():
            name = item.name or item.op.label
            seconds_of[name] = seconds_of.get(name, 0.0) + float(timed.table.latency_s[item.index]) * item.times
    return sorted(seconds_of, key=lambda name: -seconds_of[name])


def explained(stages: Sequence[TimedStage], asked: str) -> Explained:
    """The operator called ``asked``; UnknownNameError with the nearest names."""
    known, said = names_of(stages), str(asked)
    name = next((name for name in known if name.lower() == said.strip().lower()), None)
    if name is None:
        raise unknown_name("operator of this run", said, known, "a name that --top lists", "--explain")
    table = stages[0].table
    total, times = 0.0, dict[int, float]()
    first: dict[int, OpTime] = {}
    for timed in stages:
        for item in timed.op_times():
            seconds = float(table.latency_s[item.index]) * item.times
            total += seconds
            if (item.name or item.op.label) == name:
                times[item.index] = times.get(item.index, 0.0) + item.times
                first.setdefault(item.index, item)
    index = max(times, key=lambda i: float(table.latency_s[i]) * times[i])
    item, row, operators = first[index], table.row(index), stages[0].operators
    estimator = operators.selector.select(item.op.family, item.op.dtype)
    why = Explanation((), row.bound)
    choose = operators.engine.library_of(operators.gpu)
    kernels = operators.engine.kernels if choose is None else choose(item.op)
    batch = make_batch(item.op.family, [item.op], kernels)
    if estimator is not None and hasattr(estimator, "explain"):
        why = cast(Explains, estimator).explain(batch, operators.gpu)
    ceilings = [float(column[index]) for column in (table.compute_s, table.dram_s, table.link_s)]
    kernel = float(estimator.seconds(batch, operators.gpu)[0]) if estimator is not None else 0.0
    bound = why.bound or row.bound
    if estimator is not None and row.latency_s > kernel * (1 + 1e-9):
        bound = "the lower bound; the estimator is below it"
    power = held_terms(operators, index)
    bound = POWER if power else bound
    others = tuple(sorted({shape_text(other.op) for i, other in first.items() if i != index} - {shape_text(item.op)}))
    return Explained(
        name, item.op.label, shape_text(item.op), item.phase, times[index], row.latency_s,
        row.latency_s * times[index] / (total or 1.0), bound, row.source, row.estimator, why.rests_on, others,
        (*_roofline(item.op, row, *ceilings), *power, *why.terms),
    )  # fmt: skip


def _roofline(op: Op, row: KernelPrediction, compute_s: float, dram_s: float, link_s: float) -> list[Term]:
    rows = [
        ("FLOPs", op.flops(), "FLOP", ""),
        ("bytes", float(op.bytes_moved()), "bytes", "read and written"),
        ("compute", compute_s, "s", "FLOPs at the peak"),
        ("DRAM", dram_s, "s", "all bytes at DRAM's bandwidth"),
    ]
    rows += [("link", link_s, "s", "bytes at the links' bandwidth")] if link_s else []
    rows += [("lower bound", row.lower_bound_s, "s", "no kernel is faster; L2 may hold what fits in it")]
    if row.interval_s is not None:
        rows += [("interval, low", row.interval_s[0], "s", ""), ("interval, high", row.interval_s[1], "s", "")]
    kernels = op.kernels()
    rows += [("kernels", float(kernels), COUNT, "")] if kernels != 1 else []
    return terms("roofline", rows)
