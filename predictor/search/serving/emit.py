"""The commands that start a plan: one for each kind of group, with what they are of as comments."""

from __future__ import annotations

import shlex

from predictor.engines.serve_options import LaunchOptions, launch_options
from predictor.errors import UnsupportedError
from predictor.request.precision import ASKED, CHECKPOINT, ENGINE
from predictor.search.serving.search import ServingPlan
from predictor.search.serving.space import Group
from predictor.search.serving.tables import GroupTimes

#: Tokens that a served sequence may have beyond those that were planned. Chosen by hand, not from data.
_SLACK = 1.25
#: What a group is for.
PROMPTS, DECODES = "prompts", "decodes"


def commands(plan: ServingPlan, model: str) -> str:
    """Shell text that starts every group of ``plan``, of the model called ``model``; UnsupportedError for an option
    that the release does not have.

    Weights in a format that the engine does not make of a 16-bit checkpoint as it loads it have to come in one: then
    ``<model in format>`` stands in place of the model, which no engine takes for a name.
    """
    options = launch_options(plan.times.run.work.engine)
    kinds = [(plan.times, plan.replicas, plan.concurrency, DECODES if plan.prefill is not None else "")]
    if plan.prefill is not None:
        kinds.insert(0, (plan.prefill, plan.prefill_replicas, 0, PROMPTS))
    lines = [f"# options of {plan.group.execution} {options.version}, read in {'; '.join(options.sources)}"]
    lines += [f"# not read there: {what}" for what in options.unverified if plan.prefill is not None]
    work = plan.times.run.work
    if not _loads(options, plan.times):
        model = f"<{model} in {work.dtype}>"
        lines.append(f"# weights in {work.dtype} are read from a checkpoint that has them: put its path for {model}")
    for times, replicas, concurrency, role in kinds:
        group = times.group
        of = f" for {role}" if role else f", {concurrency} requests at a time in each"
        lines += [f"# {replicas} of these{of}, on {group.gpus} {times.run.gpu.id} each",
                  *_one(options, times, concurrency, role, model)]  # fmt: skip
    return "\n".join(lines)


def _loads(options: LaunchOptions, times: GroupTimes) -> bool:
    """Whether the engine gets the weights' format from the model as it is published: its checkpoint has it, it is that
    of 16-bit weights, or the engine makes it of these."""
    work, published = times.run.work, times.run.config.checkpoint
    if work.dtype_source == CHECKPOINT:
        return True
    return published is None and any(work.dtype in options.words.get(word, {}) for word in ("dtype", "weights"))


def _one(options: LaunchOptions, times: GroupTimes, concurrency: int, role: str, model: str) -> list[str]:
    group, run = times.group, times.run
    rule = times.scheduler
    sequences = min(rule.sequences, max(1, -(-concurrency // group.dp))) if concurrency else 0
    values = {
        "tp": group.tp, "pp": group.pp, "dp": group.dp, "ep": group.ep, "world": group.tp * group.dp,
        "sequences": sequences or rule.sequences,
        "total_sequences": (sequences or rule.sequences) * group.dp,
        "tokens": rule.tokens, "total_tokens": rule.tokens * group.dp,
        "context": round((times.isl + times.osl) * _SLACK),
        "memory": f"{times.memory.fraction:g}", "model": shlex.quote(model), "file": f"{group.execution}.yaml",
        "kv_dtype": _word(options, "kv_dtype", run.numbers.kv), "dtype": _word(options, "dtype", run.work.dtype),
        "weights": _word(options, "weights", run.work.dtype),
        "exchange": _word(options, f"exchange of {role}", _word(options, "exchange", run.work.all_to_all)),
    }  # fmt: skip
    words = [*_wanted(group, run.config.experts > 0, bool(sequences), role), *_formats(options, times)]
    lines = [options.file[word].format(**values) for word in words if word in options.file]
    said = [options.options[word].format(**values) for word in words if word in options.options]
    missing = [word for word in words if word not in options.options and word not in options.file]
    if "exchange" in words and run.work.all_to_all not in options.words.get("exchange", {}):
        missing.append(f"--all-to-all {run.work.all_to_all}")
    said = [option for option in said if option]
    if missing:
        raise UnsupportedError(f"--emit {group.execution} {options.version}: it has no option for {', '.join(missing)}")
    if not lines:
        return [" ".join([options.command.format(**values), *said])]
    said.append(options.options["file"].format(**values))
    return [
        f"cat > {values['file']} <<'END'", *lines, "END", " ".join([options.command.format(**values), *said]),
    ]  # fmt: skip


def _formats(options: LaunchOptions, times: GroupTimes) -> list[str]:
    """The words of number formats that the model's checkpoint does not say."""
    work, numbers = times.run.work, times.run.numbers
    assert work.serving is not None
    formats = []
    if _loads(options, times) and work.dtype_source != CHECKPOINT:
        formats = [word for word in ("dtype", "weights") if work.dtype in options.words.get(word, {})]
    if work.serving.kv_dtype_source in (ASKED, ENGINE) and numbers.kv != numbers.activation:
        formats.append("kv_dtype")
    return formats


def _wanted(group: Group, experts: bool, limited: bool, role: str) -> list[str]:
    """The words of a group that are not at their defaults."""
    words = ["tp"]
    words += [word for word in ("pp", "dp") if group.degrees[word] > 1]
    if experts and group.ep > 1:
        words += ["ep", *(["exchange"] if group.dp > 1 else [])]
    return [*words, *["sequences"] * limited, "tokens", "context", "memory", *[role] * bool(role)]


def _word(options: LaunchOptions, name: str, value: str) -> str:
    return options.words.get(name, {}).get(value, value)
