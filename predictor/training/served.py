"""Measured services against the simulation: rows with a concurrency, or folders of requests with their times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from predictor.engines import running
from predictor.engines.vintage import NO_LIMIT, Setting
from predictor.errors import RequestError, SpecError, TilecastError
from predictor.files import read_json, read_table_text
from predictor.networks import load_config
from predictor.request import Request
from predictor.roofline import FloatArray
from predictor.run import Run
from predictor.simulate.serving.costs import Sizes, StepCosts
from predictor.simulate.serving.deployment import Options, deploy
from predictor.simulate.serving.goals import ranges_of
from predictor.simulate.serving.simulator import Served, serve, sizes_of
from predictor.simulate.serving.traffic import Traffic, made
from predictor.training.extras import require
from predictor.training.importers.benchmarks import Launcher, Tool, sampling_of, tool_of
from predictor.training.metrics import summarise
from predictor.yaml_reader import read_yaml_file

Frame = Any

#: Columns of a suite that decide a forecast; others are carried along.
COLUMNS = (
    "case", "config", "model", "gpu", "num_gpus", "execution", "software", "dtype", "kv_dtype", "tp", "pp", "dp",
    "moe_ep", "concurrency", "isl", "osl", "length_range", "requests", "max_num_seqs", "max_num_batched_tokens",
    "memory_fraction", "sampling", "origin", "ttft_ms", "tpot_ms", "output_tps_per_gpu",
)  # fmt: skip
#: The times of a service: column -> attribute of `Served`.
TIMES = {"ttft_ms": "ttft_s", "tpot_ms": "tpot_s"}


@dataclass(slots=True)
class Case:
    """A measured service: the words of its run, its traffic, and what was measured, means in milliseconds; ``whole``:
    the row, or the summary, that it stands for; ``requests``: each one's times, where they are known."""

    name: str
    words: dict[str, Any]
    traffic: Traffic
    options: Options
    measured: dict[str, float]
    whole: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, FloatArray] = field(default_factory=dict)
    note: str = ""


def read_cases(path: Path, configs: Path | None = None) -> list[Case]:
    """The services of a CSV file, or of a folder with requests.parquet and meta.yaml (or of folders with them)."""
    if path.is_dir():
        folders = (
            [path]
            if (path / "requests.parquet").is_file()
            else sorted(p.parent for p in path.glob("*/requests.parquet"))
        )
        if not folders:
            raise RequestError(f"{path}: no requests.parquet; expected a folder of requests, or a CSV file")
        return [_folder(folder) for folder in folders]
    pd = require("pandas")
    import io

    text = read_table_text(path, "a CSV file of measured services", COLUMNS)
    if not text.strip():
        raise SpecError(f"{path}: expected rows of measured services, found an empty file")
    frame = pd.read_csv(io.StringIO(text))
    missing = [name for name in ("execution", "gpu", "concurrency", "isl", "osl") if name not in frame]
    if missing:
        raise SpecError(f"{path}: no column {missing[0]!r}; expected measured services with a concurrency")
    return [_row(row, path, configs) for row in frame.to_dict("records")]


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)


def _number(row: Mapping[str, Any], key: str, default: float) -> float:
    text = _text(row, key)
    try:
        return float(text) if text else default
    except ValueError:
        raise RequestError(f"{key} {text!r}: expected a number") from None


def _whole(row: Mapping[str, Any], key: str, default: int) -> int:
    found = float(_number(row, key, default))
    if not found.is_integer():  # nor is infinity
        raise RequestError(f"{key} {_text(row, key)}: expected a whole number")
    return int(found)


def _time(row: Mapping[str, Any], key: str) -> float:
    """Milliseconds; NaN where nobody measured them."""
    found = _number(row, key, math.nan)
    if not (math.isnan(found) or 0.0 < found < math.inf):
        raise RequestError(f"{key} {_text(row, key)}: expected milliseconds above 0")
    return found


def _row(row: dict[str, Any], path: Path, configs: Path | None) -> Case:
    """A service of a closed loop; its note says what is wrong with it."""
    measured = dict.fromkeys(TIMES, math.nan)
    name = _text(row, "case") or f"{_text(row, 'config')} {_text(row, 'concurrency')}"
    empty = Traffic(np.zeros(0), *(np.ones(1, dtype=np.int64),) * 2, np.zeros(1, dtype=np.int64), 1)
    case = Case(name, {}, empty, Options(), measured, row)
    try:
        measured.update({key: _time(row, key) for key in TIMES})
        clients, isl, osl = (_whole(row, key, 0) for key in ("concurrency", "isl", "osl"))
        tool = tool_of(_text(row, "origin"))
        least = _number(row, "length_range", tool.least)
        count = _whole(row, "requests", tool.rounds * clients)
        case.traffic = made(count, None, clients, None, isl, osl, least)
        launcher = tool.launchers.get(_text(row, "execution"), Launcher())
        case.options = _options(row, launcher, clients, isl)
        case.words = _words(row, _config(row, path, configs), tool, launcher)
    except TilecastError as error:
        case.note = str(error)
    return case


def _options(row: Mapping[str, Any], launcher: Launcher, clients: int, isl: int) -> Options:
    """The limits that a row gives, or that its launcher chose."""
    sequences, tokens = (_whole(row, key, 0) or None for key in ("max_num_seqs", "max_num_batched_tokens"))
    if tokens is None and launcher.room is not None:
        tokens = clients + isl + launcher.room
    return Options(sequences, tokens, captured=clients if launcher.captures else None)


def _config(row: Mapping[str, Any], path: Path, configs: Path | None) -> str | Path:
    """The model's config file, or its name where no file is there."""
    text = _text(row, "config")
    for folder in (configs,) if configs else (path.parent / "configs", path.parent, path.parent.parent):
        for found in (folder / text, folder / f"{text}.json", folder / Path(text).name) if folder and text else ():
            if found.is_file():
                return found
    return _text(row, "model") or text


def _words(row: Mapping[str, Any], model: str | Path, tool: Tool, launcher: Launcher) -> dict[str, Any]:
    tp, dp, ep, pp = (_whole(row, key, 1) for key in ("tp", "dp", "moe_ep", "pp"))
    dtype, execution, software = (_text(row, key) for key in ("dtype", "execution", "software"))
    chosen = sampling_of(tool, _text(row, "model"), running(execution, software).vintage())
    return {
        "model": model, "gpu": _text(row, "gpu"), "execution": execution, "software": software,
        "dtype": _own(model, dtype), "kv_dtype": _text(row, "kv_dtype") or _kv_of_checkpoint(model, dtype), "tp": tp,
        "dp": dp, "ep": ep, "pp": pp, "num_gpus": tp * dp * pp, "sampling": _text(row, "sampling") or chosen,
        "memory_fraction": _number(row, "memory_fraction", 0.0) or launcher.fraction,
    }  # fmt: skip


def _own(model: str | Path, dtype: str) -> str | None:
    """None, for what its own config says, where a row's word is the checkpoint's: "fp8" is that in blocks, too."""
    checkpoint = load_config(model).checkpoint if isinstance(model, Path) else None
    own = checkpoint is not None and dtype != "" and all(word.startswith(dtype) for word in checkpoint.words if word)
    return None if own else dtype or None


def _named(model: str, folder: Path) -> str | Path:
    """The config of a model by its Hugging Face name, in a folder hf_configs above ``folder``, else the name."""
    file = f"{model.replace('/', '--')}_config.json"
    return next(
        (at / "hf_configs" / file for at in folder.absolute().parents if (at / "hf_configs" / file).is_file()), model
    )


def _kv_of_checkpoint(model: str | Path, dtype: str) -> str | None:
    """The KV cache's dtype in a checkpoint of the model in ``dtype``, where one is known: ModelOpt's own config beside
    the model's, as MODEL-WORDS_hf_quant_config.json."""
    if isinstance(model, str) or not dtype:
        return None
    stem = model.name.removesuffix(".json").removesuffix("_config")
    for path in sorted(model.parent.glob(f"{stem}-*_hf_quant_config.json")):
        known = read_json(path).get("quantization")
        if isinstance(known, dict) and str(known.get("quant_algo")).lower() == dtype:
            return str(known.get("kv_cache_quant_algo") or "").lower() or None
    return None


def _folder(folder: Path) -> Case:
    """Requests of one run, with the words of its meta.yaml."""
    from predictor.training.parquet import read_rows

    meta = read_yaml_file(folder / "meta.yaml", "a YAML file that describes the run")
    rows = sorted(read_rows(folder / "requests.parquet"), key=lambda row: float(row["queued_s"]))
    column = {key: np.array([row[key] for row in rows]) for key in rows[0] if key != "request_id"}
    queued = column["queued_s"].astype(np.float64)
    traffic = Traffic(
        queued - queued.min(), column["input_toks"].astype(np.int64), column["output_toks"].astype(np.int64),
        column.get("prefix_shared_tokens", np.zeros(len(rows))).astype(np.int64),
    )  # fmt: skip
    options = Options(max_num_seqs=meta.get("max_num_seqs"), max_num_batched_tokens=meta.get("max_num_batched_tokens"))
    tp, dp = int(meta.get("tp", 1)), int(meta.get("dp", 1))
    dtype = {"bfloat16": "bf16", "float16": "fp16"}.get(meta.get("dtype"), meta.get("dtype"))
    words = {
        "model": _named(str(meta["model"]), folder), "gpu": str(meta["gpu"]), "execution": str(meta["engine"]),
        "software": str(meta.get("engine_version") or ""), "dtype": dtype, "tp": tp, "dp": dp,
        "ep": tp * dp if meta.get("expert_parallel") else 1, "num_gpus": tp * dp,
    }  # fmt: skip
    times = {
        "ttft_ms": (column["first_token_s"] - queued) * 1e3,
        "tpot_ms": column["tpot_ms"].astype(np.float64),
        "latency_ms": (column["last_token_s"] - queued) * 1e3,
    }
    span = float(column["last_token_s"].max() - queued.min())
    measured = {name: float(np.nanmean(times[name])) for name in TIMES}
    measured["output_tokens_per_s"] = float(traffic.output_tokens.sum()) / span
    whole = {
        "case": folder.name,
        **{key: words[key] for key in ("gpu", "execution", "tp", "dp")},
        "model": str(meta["model"]),
    }
    return Case(folder.name, words, traffic, options, measured, whole, times)


# ------------------------------------------------------------------------------------------------------------- forecast


def forecast_cases(
    cases: Sequence[Case], artifacts: str | None = None, intervals: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Served | None, dict[str, tuple[float, float]], str]]:  # fmt: skip
    """(place, what came of the case, 80 % intervals of the means in seconds, why there is none) of every case.

    Cases of one model, engine and GPU share the table of their steps.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, case in enumerate(cases):
        if case.note:
            yield place, None, {}, case.note
        else:
            groups.setdefault((*case.words.items(), case.options.captured), []).append(place)
    done = 0
    for places in groups.values():
        for place, found in zip(places, _group([cases[i] for i in places], artifacts, intervals), strict=True):
            yield place, *found
            done += 1
            if progress is not None:
                progress(done)


Found = tuple[Served | None, dict[str, tuple[float, float]], str]


def _group(cases: Sequence[Case], artifacts: str | None, intervals: bool) -> Iterator[Found]:
    longest = max(int(case.traffic.input_tokens.max()) for case in cases)
    output = max(int(case.traffic.output_tokens.max()) for case in cases)
    try:
        run = Request(
            **cases[0].words, mode="generate", batch=cases[0].words["dp"], seq_len=longest, output_len=output,
            artifacts=artifacts,
        ).run()  # fmt: skip
        options = [_admitting(run, case) for case in cases]
        deployments = [
            deploy(run, each, int((case.traffic.input_tokens + case.traffic.output_tokens).max()))
            for each, case in zip(options, cases, strict=True)
        ]
        sizes = [sizes_of(one, case.traffic) for one, case in zip(deployments, cases, strict=True)]
        costs = StepCosts(run, Sizes.together(sizes), deployments[0].captured)
    except TilecastError as error:
        yield from ((None, {}, str(error)) for _ in cases)
        return
    for case, each in zip(cases, options, strict=True):
        try:
            served = serve(run, case.traffic, each, costs)
        except TilecastError as error:
            yield None, {}, str(error)
            continue

        def again(factor: float, case: Case = case, each: Options = each) -> Served:
            return serve(run, case.traffic, each, costs.scaled(factor))

        yield served, ranges_of(served, again) if intervals else {}, ""


def _admitting(run: Run, case: Case) -> Options:
    """The case's options; where its engine reads prompts whole and its default step is too short for them, the shortest
    step with which the run can have been made."""
    release = run.work.engine.vintage()
    longest = int(case.traffic.input_tokens.max())
    if case.options.max_num_batched_tokens is not None or release is None or release.scheduler is None:
        return case.options
    rules = release.scheduler(Setting(run.gpu, run.work.parallelism.tp))
    most = min(rules.tokens, rules.prefill_tokens or NO_LIMIT)
    if rules.chunks or longest + case.traffic.concurrency <= most:
        return case.options
    return replace(case.options, max_num_batched_tokens=longest + case.traffic.concurrency)


#: Figures of a service: what JSON and tables call them, and the columns behind measured_ and predicted_.
FIGURES = {
    "tpot": "tpot_ms", "ttft": "ttft_ms", "p99_tpot": "p99_tpot_ms", "p99_ttft": "p99_ttft_ms",
    "output_tokens_per_s": "output_tokens_per_s",
}  # fmt: skip


def errors(rows: Frame) -> dict[str, dict[str, Any]]:
    """Errors of every figure that rows have: `predictor.training.metrics.summarise`, and of intervals where there are
    any the share that holds the measurement (``interval_coverage_pct``)."""
    found = {}
    for name, column in FIGURES.items():
        if f"measured_{column}" not in rows or rows[f"measured_{column}"].isna().all():
            continue
        measured, predicted = (rows[f"{which}_{column}"].to_numpy(dtype=float) for which in ("measured", "predicted"))
        known = np.isfinite(measured)
        found[name] = summarise(measured[known], predicted[known])
        if f"low_{column}" in rows:
            low, high = (rows[f"{which}_{column}"].to_numpy(dtype=float) for which in ("low", "high"))
            inside = np.isfinite(low) & np.isfinite(high) & known
            if inside.any():
                held = (low[inside] <= measured[inside]) & (measured[inside] <= high[inside])
                found[name]["interval_coverage_pct"] = float(held.mean() * 100.0)
    return found


#: Fewest rows of one model and traffic that are ranked. Source: the question that the ranking answers, which of many
#: ways to serve is best; chosen by hand, not from data.
RANKED = 8


def ranking(rows: Frame) -> dict[str, Any]:
    """Over groups of one model, isl and osl with `RANKED` rows or more, whatever the engine, degrees and concurrency:
    the median of Spearman's rank correlation of tokens/s a GPU, and of TPOT."""
    pd = require("pandas")
    if rows.empty or not {"isl", "osl", "model", "output_tps_per_gpu"} <= set(rows):
        return {}
    found: dict[str, list[float]] = {"tokens_per_s_per_gpu": [], "tpot": []}
    for _, part in rows[rows["predicted_tpot_ms"].notna()].groupby(["model", "isl", "osl"]):
        if len(part) < RANKED:
            continue
        rate = part["concurrency"] * part["osl"] * 1e3 / part["num_gpus"]
        spans = part["predicted_ttft_ms"] + (part["osl"] - 1) * part["predicted_tpot_ms"]
        pairs = {
            "tokens_per_s_per_gpu": (part["output_tps_per_gpu"], rate / spans),
            "tpot": (part["measured_tpot_ms"], part["predicted_tpot_ms"]),
        }
        for name, (measured, predicted) in pairs.items():
            found[name].append(float(pd.Series(measured).corr(pd.Series(predicted), method="spearman")))
    if not found["tpot"]:
        return {}
    return {"groups": len(found["tpot"]), **{name: float(np.median(values)) for name, values in found.items()}}


def as_frame(cases: Sequence[Case], artifacts: str | None = None, intervals: bool = True) -> Frame:
    """A row a case: what it was, ``measured_``, ``predicted_``, ``low_`` and ``high_`` of ttft_ms and tpot_ms (and the
    99th percentile and tokens a second where requests are known), ``note`` where there is no forecast."""
    pd = require("pandas")
    rows: list[dict[str, Any]] = [{} for _ in cases]
    for place, served, ranges, note in forecast_cases(cases, artifacts, intervals):
        case = cases[place]
        row = dict(case.whole) | {"case": case.name, "note": note}
        for name, attribute in TIMES.items():
            values = getattr(served, attribute) if served is not None else np.full(1, np.nan)
            values = values[~np.isnan(values)] if not np.isnan(values).all() else np.zeros(0)
            mean = float(values.mean()) * 1e3 if values.size else math.nan
            low, high = ranges.get(name.removesuffix("_ms"), (math.nan, math.nan))
            row |= {
                f"measured_{name}": case.measured[name], f"predicted_{name}": mean, f"low_{name}": low * 1e3,
                f"high_{name}": high * 1e3,
            }  # fmt: skip
            if case.requests:
                row |= {
                    f"measured_p99_{name}": float(np.nanpercentile(case.requests[name], 99)),
                    f"predicted_p99_{name}": float(np.percentile(values, 99)) * 1e3 if values.size else math.nan,
                }
        if served is not None:
            tokens = float(case.traffic.output_tokens.sum()) / served.span_s
            row["predicted_output_tokens_per_s"] = tokens
            row["measured_output_tokens_per_s"] = case.measured.get("output_tokens_per_s", math.nan)
        rows[place] = row
    return pd.DataFrame(rows)
