"""A forecast as one page that needs nothing else: no network, no fonts, no library. It opens from a disk or a mail.

The page is the same for the same forecast, byte for byte: it holds no date and no path but those that were asked for.
"""

from __future__ import annotations

from markupsafe import Markup

from predictor import __version__
from predictor.engines import GREEDY
from predictor.engines.registry import ALL_GATHER
from predictor.files.records import dataclass
from predictor.forecast.forecast import Forecast
from predictor.forecast.sensitivity import sensitivities
from predictor.report.detail import layers, points
from predictor.report.explain import explain_section
from predictor.report.html_pipeline import pipeline_section
from predictor.report.html_roofline import roofline_section
from predictor.report.html_sections import (
    changes_section,
    classes_section,
    hardware_rows,
    headline,
    layers_section,
    memory_section,
)
from predictor.report.html_timeline import timeline_section
from predictor.report.pages import document, render, section
from predictor.report.throughput import sources
from predictor.report.wording import dtype_words, kv_words, overhead, release_of, seconds
from predictor.request.parse import flag
from predictor.request.run import Run
from predictor.request.workload import Workload
from predictor.simulate.answer import Prediction

#: The line below the heading of a page.
BYLINE = ("quiet", f"A forecast by Tilecast {__version__}. Not a measurement.")


@dataclass(frozen=True, slots=True)
class Asked:
    """The words of a request that name files or entries of catalogues, as they were typed."""

    model: str
    gpu: str
    artifacts: str | None = None
    system: str | None = None


def to_html(forecast: Forecast, asked: Asked | None = None) -> str:
    """The page of a forecast; ``asked``: how (None: by the catalogue's names)."""
    answer, run = forecast.prediction, forecast.run
    totals: dict[str, float] = {}
    for row in answer.breakdown:
        totals[row.op] = totals.get(row.op, 0.0) + row.latency_s
    classes = sorted(totals, key=lambda name: -totals[name])
    title = f"{answer.model} on {answer.gpu}"
    parts = [
        headline(answer),
        classes_section(answer, classes),
        layers_section(layers(forecast), classes),
        *([] if answer.explained is None else [explain_section(answer.explained)]),
        roofline_section(points(forecast), run.gpu),
        *filter(None, [pipeline_section(forecast)]),
        timeline_section(forecast.ran, classes),
        memory_section(answer),
        *_power(answer),
        changes_section(sensitivities(forecast)),
        _provenance(answer, run, command(answer, asked or Asked(answer.model, answer.gpu))),
    ]
    lines = [("run", _run_words(answer)), BYLINE]
    return document(title, f"{title}: {seconds(answer.latency_s)}", parts, lines, _contents(answer))


def _power(answer: Prediction) -> list[Markup]:
    """What the GPUs draw, where the run asks for it."""
    if answer.energy is None:
        return []
    from predictor.report.power import power_section  # most pages are without it

    return [power_section(answer)]


def _run_words(answer: Prediction) -> str:
    """The run in a line: what `settings` has, and the GPUs that share it."""
    work = answer.workload
    gpus = "1 GPU" if work.system is None else f"{work.parallelism.num_gpus} GPUs of {work.system.id}"
    shown = [(name, value) for name, value in settings_shown(answer) if name not in ("system", "prompt_lens")]
    ragged = [f"ragged batch of {len(work.prompt_lens)}"] * bool(work.prompt_lens)
    words = [f"{name.replace('_', '-')} {value}" for name, value in shown if not (ragged and name == "batch")]
    return ", ".join([gpus, *words[:1], *ragged, *words[1:]])


_CONTENTS = (
    ("answer", "Answer"), ("classes", "Classes"), ("layers", "Layers"), ("explain", "Explained"),
    ("roofline", "Roofline"), ("pipeline", "Pipeline"), ("timeline", "Timeline"), ("memory", "Memory"),
    ("power", "Power"), ("changes", "What would change it"), ("provenance", "Provenance"),
)  # fmt: skip


def _contents(answer: Prediction) -> list[tuple[str, str]]:
    absent = {"explain"} if answer.explained is None else set()
    absent |= {"power"} if answer.energy is None else set()
    absent |= {"pipeline"} if answer.workload.parallelism.pp == 1 else set()
    return [(key, name) for key, name in _CONTENTS if key not in absent]


def settings(answer: Prediction) -> list[tuple[str, str]]:
    """Every flag of the run with its value, defaults included, as `predict` takes them."""
    work, training, serving = answer.workload, answer.workload.training, answer.workload.serving
    flags: list[tuple[str, str]] = [("mode", work.mode), ("batch", str(work.batch))]
    if work.prompt_lens:
        flags.append(("prompt_lens", ",".join(str(n) for n in work.prompt_lens)))
    elif work.mode == "decode":
        flags.append(("context_len", str(work.given_len)))
    else:
        flags.append(("seq_len", str(work.text_len)))
    if serving is not None and serving.images is not None:
        flags.append(("images", str(serving.images)))
    if serving is not None and serving.output_len:
        flags.append(("output_len", str(serving.output_len)))
    if work.steps > 1:
        flags.append(("steps", str(work.steps)))
    flags.append(("dtype", work.dtype_word))
    if serving is not None:
        flags.append(("kv_dtype", serving.kv_dtype))
    flags.append(("execution", work.execution))
    if work.software:
        flags.append(("software", work.software))
    flags.append(("attention", work.attention))
    if training is not None:
        flags.append(("optimizer", training.optimizer))
        flags += [(name, str(value)) for name, value in training.asked.items() if name != "optimizer"]
    if work.parallelism.num_gpus > 1 and work.system is not None:
        flags += [(name, "" if value is True else str(value)) for name, value in work.parallelism.asked.items()]
        if work.all_to_all != ALL_GATHER:
            flags.append(("all_to_all", work.all_to_all))
        flags.append(("system", work.system.id))
    if work.routing is not None:
        flags.append(("routing", str(work.routing)))
    if answer.cpu_busy_s:
        flags.append(("launch_overhead", f"{work.launch_overhead_s * 1e6:.6g}us"))
    if serving is not None and serving.step_overhead_s is not None:
        flags.append(("step_overhead", f"{serving.step_overhead_s * 1e3:.6g}ms"))
    if work.kernel_gap_s is not None:
        flags.append(("kernel_gap", f"{work.kernel_gap_s * 1e6:.6g}us"))
    if serving is not None and serving.sampling != GREEDY:
        flags.append(("sampling", serving.sampling))
    if serving is not None and serving.drafts:
        flags += [("drafts", str(serving.drafts)), ("acceptance", f"{serving.acceptance:g}")]
        flags += [("draft_model", serving.draft_model)] if serving.draft_model else []
    if work.memory_fraction is not None or answer.memory.fraction < 1.0:
        flags.append(("memory_fraction", repr(answer.memory.fraction)))
    return flags


def settings_shown(answer: Prediction) -> list[tuple[str, str]]:
    """The same as people read it: the formats that a run took and from where, the release that answers."""
    work = answer.workload
    release = f" (release {release_of(work)})" if release_of(work) else ""
    said = {
        "dtype": dtype_words(work), "software": f"{work.software}{release}",
        "launch_overhead": overhead(work) + " (assumed)" * work.launch_overhead_assumed,
    }  # fmt: skip
    if work.serving is not None:
        said["kv_dtype"] = kv_words(work.serving)
    if work.training is not None and work.training.micro_batch_assumed:
        said["micro_batch"] = f"{work.training.micro_batch} (assumed)"
    return [(name, said.get(name, value)) for name, value in settings(answer)]


def command(answer: Prediction, asked: Asked) -> str:
    """A command line that makes the forecast again, whatever the defaults will be.

    A launch overhead that was assumed stays out: one that is given has a narrower interval.
    """
    import shlex

    words = ["predict", "--model", asked.model, "--gpu", asked.gpu]
    words += [word for value in answer.gpu_set for word in ("--set", value)]
    for name, value in settings(answer):
        if name == "launch_overhead" and answer.workload.launch_overhead_assumed:
            continue
        words += [flag(name), *([asked.system or value] if name == "system" else [value] if value else [])]
    if asked.artifacts is not None:
        words += ["--artifacts", asked.artifacts]
    return shlex.join(words)


def _of_the_host(work: Workload) -> list[str]:
    """A line on a launch overhead that nobody gave."""
    if work.launch_range_s is None:
        return []
    least, most = (f"{end_s * 1e6:g}" for end_s in work.launch_range_s)
    return [f"The launch overhead is assumed: hosts need {least} to {most} us, and the interval covers that."]


def _provenance(answer: Prediction, run: Run, typed: str) -> Markup:
    said = [
        sources(answer),
        *([f"Missing in the config, so assumed: {', '.join(answer.assumed)}."] if answer.assumed else []),
        *(_of_the_host(answer.workload) if answer.cpu_busy_s else []),
        *answer.notes,
    ]
    names = sorted({name for row in answer.breakdown for name in row.estimators})
    measured = [
        (name, ", ".join(gpus) or "not stated", "yes" if run.gpu.id in gpus else "no")
        for name, gpus in ((name, run.selector.measured_on(name)) for name in names)
    ]
    inside = render(
        "provenance.html", said=said, command=_unbroken(typed), settings=_settings_rows(answer), measured=measured,
        artifacts=answer.artifacts, gpu=run.gpu, hardware=hardware_rows(run.gpu, run.numbers.gemm),
    )  # fmt: skip
    return section("provenance", "Provenance", inside)


def _unbroken(typed: str) -> list[str]:
    """The words of a command, whose flags the page does not break at their dashes."""
    import shlex

    return [shlex.quote(word) for word in shlex.split(typed)]


def _settings_rows(answer: Prediction) -> list[tuple[str, str]]:
    named = [("model", answer.model), ("gpu", answer.gpu), *settings_shown(answer)]
    return [(name.replace("_", " "), value) for name, value in named]
