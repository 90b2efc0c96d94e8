"""A Prediction on the terminal: the answer at a glance, then a table of operator classes."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from predictor.estimators.interval import LEVEL
from predictor.prediction import Prediction
from predictor.report.formats import count, gib, given, quantity, rate, seconds, share, span
from predictor.workload import Workload


def first_line(answer: Prediction) -> str:
    """Every setting of the run, defaults included."""
    work = answer.workload
    parts = [answer.model, f"on {answer.gpu}", f"mode {work.mode}", f"batch {work.batch}"]
    if work.prompt_lens:
        shown = ",".join(str(n) for n in work.prompt_lens[:8]) + (",..." if len(work.prompt_lens) > 8 else "")
        parts.append(f"prompt-lens {shown}")
    elif work.mode == "decode":
        parts.append(f"context-len {work.context_len}")
    else:
        parts.append(f"seq-len {work.seq_len}")
    if work.mode == "generate":
        parts.append(f"output-len {work.output_len}")
    parts += [f"dtype {work.dtype}", f"execution {work.execution}", f"attention {work.attention}", _gpus(work)]
    if work.mode == "train":
        parts.append(f"optimizer {work.optimizer}")
    if answer.cpu_busy_s:
        parts.append(f"launch-overhead {given(work.launch_overhead_s)}")
    if work.step_overhead_s:
        parts.append(f"step-overhead {given(work.step_overhead_s)}")
    return f"{parts[0]} {parts[1]}: {', '.join(parts[2:])}"


def _gpus(work: Workload) -> str:
    if work.system is None:
        return "1 GPU"
    return f"{work.parallelism.num_gpus} GPUs of {work.system.id}, tp {work.parallelism.tp}"


def print_prediction(answer: Prediction, console: Console) -> None:
    """The answer, its memory, what bounds it, and the breakdown."""
    console.print(first_line(answer), highlight=False, soft_wrap=True)
    _headline(answer, console)
    _memory(answer, console)
    console.print(_classes(answer))
    if answer.nodes:
        console.print(_operators(answer))
    known, fallback = answer.provenance.get("estimator", 0), answer.provenance.get("roofline", 0)
    console.print(
        f"{known + fallback} distinct operators: {known} from estimators ({answer.artifacts}), {fallback} from the"
        " roofline alone (a perfect kernel with a cold cache).",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    if answer.assumed:
        console.print(f"Assumed, missing in the config: {', '.join(answer.assumed)}", highlight=False, soft_wrap=True)
    for note in answer.notes:
        console.print(note, highlight=False, soft_wrap=True)


def _headline(answer: Prediction, console: Console) -> None:
    low_high = ""
    if answer.interval_s is not None:
        low_high = f"  ({LEVEL:.0%} interval {span(*answer.interval_s)})".replace("%", " %", 1)
    console.print(Text.assemble("\n", (seconds(answer.latency_s), "bold"), low_high))
    work = answer.workload
    phases = ", ".join(f"{name} {seconds(t)}" for name, t in answer.phases_s.items())
    if len(answer.phases_s) > 1:
        console.print(f"  phases      {phases}", highlight=False)
    what = "tokens/s" if work.mode != "decode" else "tokens/s (one a sequence)"
    each = f" ({rate(answer.tokens_per_s_per_gpu)} a GPU)" if work.parallelism.num_gpus > 1 else ""
    console.print(
        f"  throughput  {rate(answer.tokens_per_s)} {what}{each}, {rate(answer.sequences_per_s)} sequences/s",
        highlight=False,
    )
    console.print(f"  MFU         {answer.mfu:.1%} of the {work.dtype} peak", highlight=False)
    console.print(f"  bound by    {_bound(answer)}", highlight=False)


def _bound(answer: Prediction) -> str:
    if answer.launch_bound:
        work, busy = answer.workload, f"the GPU is busy for {seconds(answer.gpu_busy_s)}"
        if work.execution != "eager":
            return f"the CPU, which needs {seconds(answer.cpu_busy_s)} for launches and steps; {busy}"
        return (
            f"the CPU, which needs {seconds(answer.cpu_busy_s)} to launch ({given(work.launch_overhead_s)}"
            f" a framework call); {busy} (cuda_graph or compile would take the launches away)"
        )
    return ", ".join(f"{name} {part:.0%}" for name, part in answer.bound_shares.items() if part >= 5e-3)


def _memory(answer: Prediction, console: Console) -> None:
    memory = answer.memory
    named = {
        "weights": memory.weights, "gradients": memory.gradients, "optimizer": memory.optimizer,
        "activations": memory.activations, "KV cache": memory.kv_cache,
    }  # fmt: skip
    parts = ", ".join(f"{name} {gib(value)}" for name, value in named.items() if value)
    of = " a GPU" if memory.gpus > 1 else ""
    console.print(f"  memory      {gib(memory.total)} of {gib(memory.capacity)}{of}: {parts}", highlight=False)
    if memory.largest_batch:
        console.print(f"  fits        up to {memory.largest_batch:,} such sequences", highlight=False)
    work = quantity(answer.flops, "FLOP")
    console.print(f"  model       {count(answer.parameters)} parameters, {work}", highlight=False)
    if not memory.fits:
        why = memory.reason or "the sum is too large"
        console.print(
            f"  does not fit by {gib(memory.missing)}: {why}. It takes {memory.smallest_gpu_count} of these"
            " GPUs to hold it. The time above is what one would take if it had the memory.",
            style="bold red", highlight=False, soft_wrap=True,
        )  # fmt: skip


def _classes(answer: Prediction) -> Table:
    table = Table(title=None, box=None, pad_edge=False, header_style="bold")
    for name in ("operator", "phase", "count", "time", "share", "of roofline", "bound", "source"):
        table.add_column(name, justify="right" if name in ("count", "time", "share", "of roofline") else "left")
    for row in answer.breakdown:
        source = row.source if not row.estimators else f"{row.source}: {', '.join(row.estimators)}"
        table.add_row(
            row.op, row.phase, f"{row.count:,.0f}", seconds(row.latency_s), share(row.share),
            f"{row.utilization:.0%}", row.bound, source,
        )  # fmt: skip
    return table


def _operators(answer: Prediction) -> Table:
    table = Table(title="longest operators", title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in ("operator", "shape", "phase", "count", "time", "share", "bound", "source"):
        table.add_column(name, justify="right" if name in ("count", "time", "share") else "left")
    for row in answer.nodes:
        table.add_row(
            row.name, row.shape, row.phase, f"{row.count:,.0f}", seconds(row.latency_s), share(row.share),
            row.bound, row.source,
        )  # fmt: skip
    return table
