"""A Prediction on the terminal: the answer at a glance, then a table of operator classes."""

from __future__ import annotations

from predictor.engines import CALLS
from predictor.files.terminal import Screen, headed, show
from predictor.report.explain import print_explained
from predictor.report.table import Column, print_table, say
from predictor.report.throughput import hardware_use, sources, throughput
from predictor.report.wording import (
    LEVEL_WORDS,
    count,
    dtype_words,
    execution_words,
    gib,
    gib_of,
    given,
    kv_words,
    may_use,
    overhead,
    quantity,
    seconds,
    share,
    span,
)  # fmt: skip
from predictor.request.options import NO_SHARD
from predictor.request.precision import computes_in
from predictor.request.workload import Workload
from predictor.simulate.answer import Prediction


def first_line(answer: Prediction) -> str:
    """Every setting of the run, defaults included."""
    work, training, serving = answer.workload, answer.workload.training, answer.workload.serving
    parts = [answer.model, f"on {answer.gpu}{_set(answer)}", f"mode {work.mode}", f"batch {work.batch}"]
    if work.prompt_lens:
        shown = ",".join(str(n) for n in work.prompt_lens[:8]) + (",..." if len(work.prompt_lens) > 8 else "")
        parts.append(f"prompt-lens {shown}")
    elif work.mode == "decode":
        parts.append(f"context-len {work.given_len}")
    elif answer.lengths_matter:
        parts.append(f"seq-len {work.text_len}")
    if serving is not None and serving.images is not None:
        parts.append(f"images {serving.images} ({serving.images.tokens:,} tokens beside)")
    if serving is not None and serving.output_len:
        parts.append(f"output-len {serving.output_len}")
    if serving is not None and serving.drafts:
        by = f" of {serving.draft_model}" if serving.draft_model else ""
        parts.append(f"{serving.drafts} drafts{by}, {serving.acceptance_length:.3g} tokens a step")
    if work.steps > 1:
        parts.append(f"steps {work.steps}")
    parts += [f"dtype {dtype_words(work)}"]
    if serving is not None:
        parts.append(f"kv-dtype {kv_words(serving)}")
    parts += [f"execution {execution_words(work)}", f"attention {work.attention}", _gpus(work)]
    if training is not None:
        parts.append(f"optimizer {training.optimizer}")
        assumed = " (assumed)" if training.micro_batch_assumed else ""
        parts += [f"micro-batch {training.micro_batch}{assumed}"] if training.micro_batch else []
        parts += [f"recompute {training.recompute}"] if training.recompute != "none" else []
    if work.routing is not None:
        parts.append(f"routing {work.routing}")
    if answer.cpu_busy_s:
        assumed = " (assumed)" if work.launch_overhead_assumed else ""
        parts.append(f"launch-overhead {overhead(work)}{assumed}")
    if serving is not None and serving.step_overhead_s:
        parts.append(f"step-overhead {given(serving.step_overhead_s)}")
    if work.kernel_gap_s is not None:
        parts.append(f"kernel-gap {given(work.kernel_gap_s)}")
    return f"{parts[0]} {parts[1]}: {', '.join(parts[2:])}"


def _set(answer: Prediction) -> str:
    """What differs from the GPU's file."""
    return f" ({', '.join(answer.gpu_set)})" if answer.gpu_set else ""


def _gpus(work: Workload) -> str:
    if work.system is None:
        return "1 GPU"
    over = work.parallelism
    degrees = {"tp": over.tp, "pp": over.pp, "vpp": over.vpp, "dp": over.dp, "cp": over.cp, "ep": over.ep}
    parts = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
    parts += [f"etp {over.etp}"] if over.etp else []
    parts += ["sp"] if over.sp else []
    parts += [f"layers {','.join(map(str, over.stage_layers))}"] if over.stage_layers else []
    parts += [over.order] if over.pp > 1 and work.training is not None else []
    parts += [f"shard {over.shard}"] if over.shard != NO_SHARD else []
    whole = work.system.whole
    part = "" if whole is None else f" ({work.system.gpus_per_node} of the {whole.gpus_per_node} of each node)"
    return f"{over.num_gpus} GPUs of {work.system.id}{part}, {', '.join(parts)}"


def print_prediction(answer: Prediction, console: Screen) -> None:
    """The answer, its memory, what bounds it, and the breakdown."""
    say(console, first_line(answer), clauses=True)
    _headline(answer, console)
    _memory(answer, console)
    console.print()
    _classes(answer, console)
    if answer.nodes:
        show(console, "\nlongest operators")
        _operators(answer, console)
    if answer.explained is not None:
        console.print()
        print_explained(answer.explained, console)
    console.print()
    say(console, sources(answer))
    if answer.assumed:
        say(console, f"Missing in the config, so assumed: {', '.join(answer.assumed)}.")
    for note in answer.notes:
        say(console, note)


def _headline(answer: Prediction, console: Screen) -> None:
    low_high = "" if answer.interval_s is None else f"  ({LEVEL_WORDS} interval {span(*answer.interval_s)})"
    console.print()
    headed(console, seconds(answer.latency_s), low_high)
    work = answer.workload
    phases = ", ".join(f"{name} {seconds(t)}" for name, t in answer.phases_s.items())
    if len(answer.phases_s) > 1:
        say(console, phases, "  phases      ", clauses=True)
    say(console, throughput(answer), "  throughput  ", clauses=True)
    used = f"{answer.mfu:.1%} of the {computes_in(work.dtype)} peak{hardware_use(answer)}"
    say(console, used, "  MFU         ")
    say(console, _bound(answer), "  bound by    ")
    if answer.between_kernels_s:
        say(console, _between(answer), "  GPU idle    ", clauses=True)
    if answer.exposed_s:
        say(console, _exposed(answer), "  exposed     ", clauses=True)
    if answer.energy is not None:
        from predictor.report.power import parts_words, power_words

        say(console, power_words(answer), "  power       ", clauses=True)
        say(console, parts_words(answer.energy), "  of that     ", clauses=True)


def _exposed(answer: Prediction) -> str:
    """What GPUs exchange that nothing covers, and the pipeline's bubble."""
    parts = [f"{name} {seconds(t)} ({t / answer.latency_s:.1%})" for name, t in answer.exposed_s.items()]
    if answer.bubble_s:
        parts.append(f"bubble {seconds(answer.bubble_s)} ({answer.bubble_s / answer.latency_s:.1%})")
    return ", ".join(parts)


def _between(answer: Prediction) -> str:
    parts = [f"{name} {seconds(t)}" for name, t in answer.between_s.items() if t > 0.0]
    whole, part = seconds(answer.between_kernels_s), answer.between_kernels_s / answer.latency_s
    return f"{whole} ({part:.1%}): {', '.join(parts)}"


def _bound(answer: Prediction) -> str:
    if answer.launch_bound:
        work, busy = answer.workload, f"the GPU is busy for {seconds(answer.gpu_busy_s)}"
        if not answer.launches_bound:
            return f"the CPU: the GPU waits {seconds(answer.host_s)} for it; {busy}"
        if work.engine.host != CALLS:
            return f"the CPU: launches and steps take {seconds(answer.cpu_busy_s)}; {busy}"
        newer = "another batch or a newer release" if work.engine.decode_host != CALLS else "a newer release"
        better = f"{newer} captures" if work.engine.serves else "cuda_graph or compile would remove"
        return (
            f"the CPU: launches take {seconds(answer.cpu_busy_s)} ({overhead(work)} per framework call); {busy}"
            f" ({better} the launches)"
        )
    return ", ".join(f"{name} {part:.0%}" for name, part in answer.bound_shares.items() if part >= 5e-3)


def _memory(answer: Prediction, console: Screen) -> None:
    memory = answer.memory
    named = {
        "weights": memory.weights, "gradients": memory.gradients, "optimizer": memory.optimizer,
        "activations": memory.activations, "KV cache": memory.kv_cache, "CUDA context": memory.context,
        "workspaces": memory.workspaces,
    }  # fmt: skip
    parts = ", ".join(f"{name} {gib(value)}" for name, value in named.items() if value)
    of = " a GPU" if memory.gpus > 1 else ""
    of += f" of stage {memory.stage + 1} of {memory.stages}" if memory.stages > 1 else ""
    say(console, f"{gib_of(memory.total, memory.capacity)}{of}: {parts}", "  memory      ", clauses=True)
    if memory.fraction < 1.0:
        say(console, may_use(memory), "  may use     ")
    if memory.largest_batch:
        say(console, f"up to {memory.largest_batch:,} such {answer.entries}", "  fits        ")
    work = quantity(answer.flops, "FLOP")
    say(console, f"{count(answer.parameters)} parameters, {work}", "  model       ")
    if not memory.fits:
        why = memory.reason or "the total is too large"
        say(
            console,
            f"does not fit, {gib(memory.missing)} too large: {why}. {memory.advice}. The time above"
            " assumes that it fits.",
            "  ", "bold red",
        )  # fmt: skip


def _classes(answer: Prediction, console: Screen) -> None:
    columns = [
        Column("operator", key=True), Column("phase", key=True), Column("count", right=True),
        Column("time", right=True), Column("share", right=True), Column("of roofline", right=True, wrap=True),
        Column("bound"), Column("source", wrap=True),
    ]  # fmt: skip
    rows = []
    for row in answer.breakdown:
        source = row.source if not row.estimators else f"{row.source}: {', '.join(row.estimators)}"
        rows.append(
            (row.op, row.phase, f"{row.count:,.0f}", seconds(row.latency_s), share(row.share), f"{row.utilization:.0%}",
             row.bound, source)
        )  # fmt: skip
    print_table(console, columns, rows)


def _operators(answer: Prediction, console: Screen) -> None:
    columns = [
        Column("operator", key=True), Column("shape", wrap=True), Column("phase"), Column("count", right=True),
        Column("time", right=True), Column("share", right=True), Column("bound"), Column("source"),
    ]  # fmt: skip
    rows = [
        (row.name, row.shape, row.phase, f"{row.count:,.0f}", seconds(row.latency_s), share(row.share), row.bound,
         row.source)
        for row in answer.nodes
    ]  # fmt: skip
    print_table(console, columns, rows)
