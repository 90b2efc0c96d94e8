"""Many forecasts side by side: a table, JSON, and a picture with the interval of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from predictor.errors import RequestError
from predictor.files import outputs
from predictor.files.records import dataclass
from predictor.files.terminal import Screen
from predictor.graph.samples import TOKENS
from predictor.report.json_report import to_dict
from predictor.report.table import Column, print_table, say
from predictor.report.wording import (
    LEVEL_WORDS,
    dtype_words,
    execution_words,
    gib,
    gib_of,
    kv_words,
    rate,
    seconds,
    significant,
    span,
)
from predictor.simulate.answer import SCHEMA_VERSION, Prediction

#: File endings that a picture may have.
PICTURES = (".svg",)
#: What the rows of models of several kinds are counted in, each with its word beside it.
_MIXED = "units"
HOUR_S = 3600.0  # seconds of an hour, by definition


@dataclass(frozen=True, slots=True)
class Entry:
    """One model on one GPU: its forecast, or None and the reason; ``price`` in dollars an hour of one GPU,
    ``price_source`` where a file says whose."""

    model: str
    gpu: str
    answer: Prediction | None
    reason: str = ""
    price: float | None = None
    price_source: str = ""

    @property
    def fits(self) -> bool:
        """Whether there is a forecast of a run that the GPU has the memory for."""
        return self.answer is not None and self.answer.memory.fits

    @property
    def dollars_per_s(self) -> float | None:
        """Dollars a second of all GPUs of the run; None without a price, or where the run does not fit."""
        if self.price is None or self.answer is None or not self.fits:
            return None
        return self.price * self.answer.workload.parallelism.num_gpus / HOUR_S

    @property
    def cost_per_million_tokens(self) -> float | None:
        """Dollars for a million tokens, of the kind that `Prediction.tokens_per_s` counts."""
        dollars = self.dollars_per_s
        return None if dollars is None or self.answer is None else dollars * 1e6 / self.answer.tokens_per_s

    @property
    def cost_per_million_units(self) -> float | None:
        """Dollars for a million of `Prediction.unit`: tokens, or images and samples where the model reads no tokens."""
        dollars = self.dollars_per_s
        return None if dollars is None or self.answer is None else dollars * 1e6 / self.answer.units_per_s

    @property
    def cost_per_1000_steps(self) -> float | None:
        """Dollars for a thousand steps of training; None in other modes."""
        dollars = self.dollars_per_s
        if dollars is None or self.answer is None or self.answer.workload.training is None:
            return None
        return dollars * 1e3 * self.answer.latency_s

    @property
    def trouble(self) -> str:
        """Why it cannot run, in one line; empty where it can."""
        if self.answer is None:
            return self.reason
        memory = self.answer.memory
        if memory.fits:
            return ""
        why = memory.reason or "the total is too large"
        return f"does not fit, {gib(memory.missing)} too large: {why}; the time assumes that it fits"


def ranked(entries: Sequence[Entry]) -> list[Entry]:
    """The fastest first; then what does not fit, by its time, and last what has no forecast, in the order given."""

    def key(entry: Entry) -> tuple[int, float]:
        if entry.answer is None:
            return 2, 0.0
        return (0 if entry.fits else 1), entry.answer.latency_s

    return sorted(entries, key=key)


def first_faster(entries: Sequence[Entry]) -> list[float | None]:
    """How likely the first entry is faster than each: None of itself, of what does not run, and without intervals."""
    from predictor.simulate.odds import faster

    outlooks = [entry.answer.outlook if entry.answer is not None and entry.fits else None for entry in entries]
    first = outlooks[0]
    if first is None:
        return [None] * len(entries)
    return [None, *(None if outlook is None else faster(first, outlook) for outlook in outlooks[1:])]


def bound_by(answer: Prediction) -> str:
    """What bounds most of a run: "compute 84%" of its GPU time, "CPU launches" or "CPU steps"."""
    if answer.launch_bound:
        return "CPU launches" if answer.launches_bound else "CPU steps"
    name, part = next(iter(answer.bound_shares.items()), ("", 0.0))
    return f"{name} {part:.0%}" if name else "-"


# --------------------------------------------------------------------------------------------------------- the table


def print_comparison(entries: Sequence[Entry], console: Screen) -> None:
    """A line of what was asked, the table, and a line for each entry that cannot run."""
    many_models = _many_models(entries)
    say(console, _first_line(entries), clauses=True)
    _table(entries, many_models, console)
    names = [entry.model if many_models else entry.gpu for entry in entries]
    told = [(name, chance) for name, chance in zip(names, first_faster(entries), strict=True) if chance is not None]
    if told:
        from predictor.simulate.odds import chances

        say(console, f"How likely {names[0]} is faster: than {chances(told)}.")
    for entry in entries:
        if entry.trouble:
            name = entry.model if many_models else entry.gpu
            say(console, f"{name}: {entry.trouble}")
    for note, names in _notes(entries, many_models).items():
        say(console, f"{', '.join(names)}: {note}")
    if entries[0].price_source:
        say(console, f"Prices: {entries[0].price_source}, and --price.")
    works = [entry.answer.workload for entry in entries if entry.answer is not None]
    formats = {
        "dtype": {work.dtype for work in works},
        "kv-dtype": {work.serving.kv_dtype for work in works if work.serving is not None},
        "attention": {work.attention for work in works},
    }
    for name, values in formats.items():
        if len(values) > 1:
            say(console, f"{name} differs between rows; --{name} sets the same one for all.")


def _notes(entries: Sequence[Entry], many_models: bool) -> dict[str, list[str]]:
    """What the forecasts say a reader should know -> the rows that say it."""
    rows_of: dict[str, list[str]] = {}
    for entry in entries:
        for note in entry.answer.notes if entry.answer is not None else ():
            rows_of.setdefault(note, []).append(entry.model if many_models else entry.gpu)
    return rows_of


def _many_models(entries: Sequence[Entry]) -> bool:
    return len({entry.gpu for entry in entries}) == 1 and len({entry.model for entry in entries}) > 1


def _first_line(entries: Sequence[Entry]) -> str:
    """What the forecasts share; sizes that differ between models (their longest sequence) are left to the rows."""
    first = entries[0]
    works = [entry.answer.workload for entry in entries if entry.answer is not None]
    parts = [f"{len(entries)} models on {first.gpu}" if _many_models(entries) else first.model]
    served = [work.serving for work in works if work.serving is not None]
    said = {"mode": [work.mode for work in works], "batch": [str(work.batch) for work in works]}
    if works[0].prompt_lens:
        parts.append(f"ragged batch of {len(works[0].prompt_lens)}")
    elif any(entry.answer is not None and entry.answer.lengths_matter for entry in entries):
        if works[0].mode == "decode":
            said["context-len"] = [str(work.given_len) for work in works]
        else:
            said["seq-len"] = [str(work.text_len) for work in works]
    if any(serving.images is not None for serving in served):
        said["images"] = [
            f"{serving.images} ({serving.images.tokens:,} tokens beside)" for serving in served if serving.images
        ]
    if works[0].mode == "generate":
        said["output-len"] = [str(serving.output_len) for serving in served]
    if works[0].steps > 1:
        said["steps"] = [str(work.steps) for work in works]
    said["dtype"] = [dtype_words(work) for work in works]
    if served:
        said["kv-dtype"] = [kv_words(serving) for serving in served]
    said["execution"] = [execution_words(work) for work in works]
    said["attention"] = [work.attention for work in works]
    parts += [f"{name} {' or '.join(sorted(set(values)))}" for name, values in said.items()]
    gpus = works[0].parallelism.num_gpus
    parts.append(f"{gpus} GPU" + "s" * (gpus > 1))
    changed = next((entry.answer.gpu_set for entry in entries if entry.answer is not None), ())
    parts += [f"set {word}" for word in changed]
    return f"{parts[0]}: {', '.join(parts[1:])}"


def _table(entries: Sequence[Entry], many_models: bool, console: Screen) -> None:
    priced = any(entry.price is not None for entry in entries)
    training, shared, unit = _training(entries), _shared(entries), _unit(entries)
    heads = ["model" if many_models else "GPU", "latency", f"{LEVEL_WORDS} interval", f"{unit}/s",
             *[f"{unit}/s a GPU"] * shared, "MFU", "memory", "fits", "bound by", "dtype"]  # fmt: skip
    if priced:
        heads += ["$/h", f"$/M {unit}"] + ["$/1000 steps"] * training
    drawn = any(entry.answer is not None and entry.answer.energy is not None for entry in entries)
    if drawn:
        heads += ["W a GPU", f"J/{unit.removesuffix('s')}"]
    words = ("fits", "bound by", "dtype", heads[2])
    columns = [Column(head, right=i > 0 and head not in words, key=i == 0) for i, head in enumerate(heads)]
    rows = []
    for entry in entries:
        cells = [entry.model if many_models else entry.gpu, *_cells(entry.answer, shared, unit == _MIXED)]
        if priced:
            cells += [_dollars(entry.price), _dollars(entry.cost_per_million_units)]
            cells += [_dollars(entry.cost_per_1000_steps)] * training
        if drawn:
            cells += _drawn(entry.answer)
        rows.append(cells)
    print_table(console, columns, rows, ["" if entry.fits else "dim" for entry in entries])


def _shared(entries: Sequence[Entry]) -> bool:
    """Whether runs are on several GPUs each."""
    return any(entry.answer is not None and entry.answer.workload.parallelism.num_gpus > 1 for entry in entries)


def _cells(answer: Prediction | None, shared: bool, mixed: bool) -> list[str]:
    if answer is None:
        return ["cannot run", *["-"] * (7 + shared)]
    memory = answer.memory
    return [
        seconds(answer.latency_s),
        "-" if answer.interval_s is None else span(*answer.interval_s),
        _made(answer.units_per_s, answer, mixed),
        *[_made(answer.units_per_s_per_gpu, answer, mixed)] * shared,
        f"{answer.mfu:.1%}",
        gib_of(memory.total, memory.capacity),
        "yes" if memory.fits else "no",
        bound_by(answer),
        answer.workload.dtype,
    ]


def _drawn(answer: Prediction | None) -> list[str]:
    """Watts of a GPU, and joules of all for one unit."""
    if answer is None or answer.energy is None or answer.joule_per_unit is None:
        return ["-", "-"]
    return [f"{answer.energy.power_w_per_gpu:,.0f}", significant(answer.joule_per_unit)]


def _unit(entries: Sequence[Entry]) -> str:
    """What the throughput of the entries is counted in, where it is one."""
    units = {entry.answer.unit for entry in entries if entry.answer is not None}
    return units.pop() if len(units) == 1 else _MIXED if units else TOKENS


def _made(value: float, answer: Prediction, mixed: bool) -> str:
    """Throughput; with its unit where the heads of the table do not say it."""
    return f"{rate(value)} {answer.unit}" if mixed else rate(value)


def _dollars(value: float | None) -> str:
    """Cents where they say enough, else three significant digits."""
    if value is None:
        return "-"
    return f"{value:,.2f}" if value >= 0.995 or round(value, 2) == value else significant(value)


# ----------------------------------------------------------------------------------------------------------- the JSON


def to_json(entries: Sequence[Entry]) -> str:
    """The JSON text: ``rows`` in the order of the table, each with the forecast of `predict --json` or null."""
    rows = [_row(*each) for each in zip(entries, first_faster(entries), strict=True)]
    return json.dumps({"schema_version": SCHEMA_VERSION, "rows": rows}, indent=2, allow_nan=False)


def _row(entry: Entry, first_is_faster: float | None) -> dict[str, Any]:
    return {
        "model": entry.model,
        "gpu": entry.gpu,
        "reason": entry.trouble or None,
        "bound_by": None if entry.answer is None else bound_by(entry.answer),
        "p_first_faster": first_is_faster,
        "price_usd_per_gpu_hour": entry.price,
        "price_source": entry.price_source or None,
        "cost_usd_per_million_tokens": entry.cost_per_million_tokens,
        "cost_usd_per_million_units": entry.cost_per_million_units,
        "cost_usd_per_1000_steps": entry.cost_per_1000_steps,
        "forecast": None if entry.answer is None else to_dict(entry.answer),
    }


# -------------------------------------------------------------------------------------------------------- the picture


def check_picture(path: Path) -> None:
    """Raises RequestError for a file that no picture can be written to."""
    if path.suffix.lower() not in PICTURES:
        raise RequestError(f"--out {path}: expected a file that ends in {', '.join(PICTURES)}")
    if path.exists() and not path.is_file():
        raise RequestError(f"--out {path}: exists and is not a plain file; expected a file to write")


def draw(entries: Sequence[Entry], path: Path) -> None:
    """A bar an entry, the fastest on top, with its interval as whiskers and its cost beside it; what does not fit has
    another colour, and what has no forecast has its place and no bar. Raises RequestError where the file cannot be
    written."""
    from predictor.report.drawing import Bar, Size, bars, file_of

    many_models = _many_models(entries)
    rows = []
    for entry in entries:
        name, words = (entry.model if many_models else entry.gpu), _value(entry)
        time = 0.0 if entry.answer is None else entry.answer.latency_s
        ends = None if entry.answer is None else entry.answer.interval_s
        rows.append((name, words, Bar(0.0, time, 0 if entry.fits else 5, f"{name}: {words}", ends)))
    what, how = _first_line(entries).split(": ", 1)
    # Chosen by looking at pictures: the right margin holds what stands beside a bar.
    size = Size("wide", 1200, 0, 190, 480, 56, 34)
    title = f"{what if many_models else f'{what} on each of {len(entries)} GPUs'}: {how}"
    outputs.write("--out", path, file_of(bars(rows, size, title), title=title))


def _value(entry: Entry) -> str:
    """What stands beside the bar of an entry: its time, interval and cost."""
    answer = entry.answer
    if answer is None:
        return "cannot run"
    words = seconds(answer.latency_s)
    words += "" if answer.interval_s is None else f" ({span(*answer.interval_s)})"
    if not entry.fits:
        return f"{words}, does not fit"
    training = _training([entry])
    cost = entry.cost_per_1000_steps if training else entry.cost_per_million_units
    unit = "1000 steps" if training else f"M {answer.unit}"
    return words if cost is None else f"{words}, ${_dollars(cost)}/{unit}"


def _training(entries: Sequence[Entry]) -> bool:
    return any(entry.answer is not None and entry.answer.workload.training is not None for entry in entries)
