"""Measured services as cases: rows of a suite (closed loops, open loops, all at once), or folders of requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from predictor.data.importers.benchmarks import Launcher, Tool, sampling_of, tool_of
from predictor.engines import running
from predictor.errors import RequestError, SpecError, TilecastError, UnsupportedError
from predictor.files.extras import require
from predictor.files.read import inside, read_table_text
from predictor.files.records import dataclass, replace
from predictor.files.yaml_reader import read_yaml_file
from predictor.hardware.gpu import load_gpu
from predictor.models.built import load_config
from predictor.ops.roofline import FloatArray
from predictor.request.options import BURSTS, GAMMA, POISSON
from predictor.serving.deployment import Options
from predictor.serving.traffic import Traffic, made

#: Columns of a suite that decide a forecast; others are carried along.
COLUMNS = (
    "case", "id", "config", "mode", "model", "gpu", "num_gpus", "execution", "framework", "software", "version",
    "dtype", "kv_dtype", "tp", "pp", "dp", "moe_ep", "replicas", "concurrency", "rate", "duration_s", "isl", "isl_max",
    "isl_served_about", "osl", "length_range", "requests", "stage", "system_prompt_len", "num_system_prompts",
    "max_num_seqs", "max_num_batched_tokens", "prefix_caching", "chunked_prefill", "memory_fraction", "sampling",
    "spec_method", "mtp_tokens", "acceptance", "prefill_workers", "prefill_tp", "prefill_pp", "prefill_dp",
    "prefill_moe_ep", "decode_workers", "decode_tp", "decode_pp", "decode_dp", "decode_moe_ep", "origin", "statistic",
    "setup_id", "suspect", "valid", "note", "ttft_ms", "ttft_p50_ms", "tpot_ms", "output_tps_per_gpu",
)  # fmt: skip
#: Columns that are carried along and are no slip of one above.
CARRIED = (
    "ttft_p90_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "itl_ms", "e2e_ms", "requests_measured", "moe_tp",
    "prefill_moe_tp", "decode_moe_tp", "prefill_gpus", "decode_gpus", "tokens_per_s", "repeats", "round",
)  # fmt: skip
#: The times of a service: column -> attribute of `Served`.
TIMES = {"ttft_ms": "ttft_s", "tpot_ms": "tpot_s"}
#: What a service gives at most, all requests being there from the start: the one figure of rows of this mode.
THROUGHPUT, TOKENS_A_GPU = "throughput", "output_tps_per_gpu"
#: How long an open loop lasts where its row does not say. Source: MLPerf Inference rules, the least duration of the
#: Server scenario, 600 s (recalled, unverified).
DURATION_S = 600.0
#: Requests of an open loop whose row says neither how many nor how long, at most: chosen by hand, not from data; means
#: of so many differ by less than a percent from those of all.
DRAWN = 10_000
#: Requests of a throughput row. Source: TensorRT-LLM's performance overview asks trtllm-bench for 1,000 to 3,000 by
#: length (recalled, unverified); all of them are there from the start.
OFFLINE_REQUESTS = 3000
#: What a row's ``note`` says of a service that is not one kind of board.
_MIXED = "mixed boards"


@dataclass(slots=True)
class MeasuredService:
    """A measured service: the words of its run, its traffic, and what was measured, in milliseconds (tokens a second a
    GPU), of which ``statistic`` is mean or median.

    ``whole``: the row, or the summary, that it stands for; ``requests``: each one's times, where they are known;
    ``prompts``: words of the servers that read prompts apart, and how many (0: none); ``note``: why it has no forecast;
    ``left_out``: why it is not scored though it might be forecast.
    """

    name: str
    words: dict[str, Any]
    traffic: Traffic
    options: Options
    measured: dict[str, float]
    whole: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, FloatArray] = field(default_factory=dict)
    note: str = ""
    statistic: str = "mean"
    prompts: dict[str, Any] = field(default_factory=dict)
    prompt_servers: int = 0
    left_out: str = ""

    @property
    def gpus(self) -> int:
        """GPUs of all its servers."""
        reading = self.prompt_servers * int(self.prompts.get("num_gpus", 0))
        return self.options.replicas * int(self.words.get("num_gpus", 0)) + reading


def read_cases(path: Path, configs: Path | None = None) -> list[MeasuredService]:
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

    text = read_table_text(path, "a CSV file of measured services", COLUMNS + CARRIED)
    if not text.strip():
        raise SpecError(f"{path}: expected rows of measured services, found an empty file")
    frame = pd.read_csv(io.StringIO(text), low_memory=False)
    for names in (("execution", "framework"), ("gpu",), ("concurrency", "rate"), ("isl", "isl_max"), ("osl",)):
        if not any(name in frame for name in names):
            raise SpecError(f"{path}: no column {names[0]!r}; expected measured services with a concurrency or a rate")
    cases = [_row(row, path, configs) for row in frame.to_dict("records")]
    _score_once(cases, frame.groupby(list(frame.columns), dropna=False, sort=False).ngroup().tolist())
    return cases


def _score_once(cases: Sequence[MeasuredService], rows: Sequence[int]) -> None:
    """Of rows that are the same (their numbers in ``rows`` are), and of those with one ``setup_id``, the first that is
    scored stands for all."""
    first: dict[str, int] = {}
    place: dict[int, int] = {}
    for number, (case, row) in enumerate(zip(cases, rows, strict=True), start=1):
        setup = _text(case.whole, "setup_id")
        if case.left_out:
            continue
        if place.setdefault(row, number) != number:
            case.left_out = f"the same as row {place[row]}, which counts once"
        elif setup and first.setdefault(setup, number) != number:
            case.left_out = "a repeat of a set-up that another row stands for"


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
    number = float(_number(row, key, default))
    if not number.is_integer():  # nor is infinity
        raise RequestError(f"{key} {_text(row, key)}: expected a whole number")
    return int(number)


def _time(row: Mapping[str, Any], key: str) -> float:
    """Milliseconds; NaN where nobody measured them."""
    milliseconds = _number(row, key, math.nan)
    if not (math.isnan(milliseconds) or 0.0 < milliseconds < math.inf):
        raise RequestError(f"{key} {_text(row, key)}: expected milliseconds above 0")
    return milliseconds


def _row(row: dict[str, Any], path: Path, configs: Path | None) -> MeasuredService:
    """A service of a row; its note says what is wrong with it."""
    measured = dict.fromkeys((*TIMES, TOKENS_A_GPU), math.nan)
    name = _text(row, "case") or _text(row, "id") or f"{_text(row, 'config')} {_text(row, 'concurrency')}"
    empty = Traffic(np.zeros(0), *(np.ones(1, dtype=np.int64),) * 2, np.zeros(1, dtype=np.int64), 1)
    case = MeasuredService(name, {}, empty, Options(), measured, row, left_out=_left_out(row))
    try:
        case.statistic = _text(row, "statistic") or "mean"
        if case.statistic not in ("mean", "median"):
            raise RequestError(f"statistic {case.statistic!r}: expected mean or median")
        measured.update({key: _time(row, key) for key in TIMES})
        if case.statistic == "median" and math.isnan(measured["ttft_ms"]):
            measured["ttft_ms"] = _time(row, "ttft_p50_ms")
        tool = tool_of(_text(row, "origin"))
        if _text(row, "mode") == THROUGHPUT:
            measured[TOKENS_A_GPU] = _time(row, TOKENS_A_GPU)
        elif not _text(row, "isl") and not _text(row, "concurrency"):
            measured["ttft_ms"] = math.nan  # of prompts whose lengths nobody says
        case.traffic = _traffic(row, tool)
        launcher = tool.launchers.get(_execution(row), Launcher())
        case.options = _options(row, launcher, case.traffic)
        config = _config(row, path, configs)
        case.words = _words(_part(row, "decode"), config, tool, launcher)
        case.prompt_servers = _whole(row, "prefill_workers", 0)
        if case.prompt_servers:
            case.prompts = _words(_part(row, "prefill"), config, tool, launcher)
    except TilecastError as error:
        case.note = str(error)
    return case


def _left_out(row: Mapping[str, Any]) -> str:
    """Why a row is not scored; "" where it is."""
    if _text(row, "suspect"):
        return f"suspect: {_text(row, 'suspect')}"
    if _text(row, "valid") == "INVALID":
        return "its submission was found invalid"
    return _MIXED if _MIXED in _text(row, "note") else ""


def _execution(row: Mapping[str, Any]) -> str:
    return _text(row, "execution") or _text(row, "framework")


def _part(row: Mapping[str, Any], which: str) -> Mapping[str, Any]:
    """The row with the degrees of those servers that read prompts, or decode, where they are apart."""
    if not _text(row, "prefill_workers"):
        return row
    return {**row, **{name: row.get(f"{which}_{name}") for name in ("tp", "pp", "dp", "moe_ep")}}


def _traffic(row: Mapping[str, Any], tool: Tool) -> Traffic:
    """The requests that the servers of a row had: of a closed loop, at a rate, or all at once."""
    least = _number(row, "length_range", tool.least)
    if _text(row, "concurrency"):
        clients, isl, osl = (_whole(row, key, 0) for key in ("concurrency", "isl", "osl"))
        return made(_whole(row, "requests", tool.rounds * clients), None, clients, None, isl, osl, least)
    osl = round(_number(row, "osl", 0.0))  # of an open loop the mean
    if _text(row, "mode") == THROUGHPUT:
        count = _whole(row, "requests", OFFLINE_REQUESTS)
        return made(count, 1.0, None, None, _whole(row, "isl", 0), osl, least, BURSTS, count)
    if not _text(row, "rate"):
        raise RequestError("neither concurrency nor rate; expected one of them")
    if _text(row, "stage") == "both":
        raise UnsupportedError("stage both: its rate is the mean of two; expected a row a stage")
    return _with_system_prompts(row, _open(row, osl, least))


def _open(row: Mapping[str, Any], osl: int, least: float) -> Traffic:
    """What one of the row's engines has of requests that come at a rate and go to the engines in turn: every n-th of a
    Poisson process, whose gaps are of a gamma distribution. Prompts of which only the longest is known are drawn evenly
    up to that."""
    engines = _whole(row, "replicas", 1)
    if engines < 1:
        raise RequestError(f"replicas {engines}: expected at least 1")
    rate = _number(row, "rate", 0.0) / engines
    asked = _number(row, "requests", 0.0) / engines or rate * _number(row, "duration_s", 0.0)
    asked = asked or min(rate * DURATION_S, DRAWN)
    if not (math.isfinite(asked) and math.isfinite(rate)):
        raise RequestError(f"rate {_text(row, 'rate')}: expected a number above 0")
    how = (POISSON, 1.0) if engines == 1 else (GAMMA, engines**-0.5)
    isl = _whole(row, "isl_served_about", 0) or _whole(row, "isl", 0)
    if isl:
        return made(round(asked), rate, None, None, isl, osl, least, *how)
    drawn = made(round(asked), rate, None, None, longest := _whole(row, "isl_max", 0), osl, 1.0 / max(longest, 1), *how)
    return replace(drawn, output_tokens=np.full_like(drawn.output_tokens, osl))


def _with_system_prompts(row: Mapping[str, Any], traffic: Traffic) -> Traffic:
    """The traffic, each request with one of the row's system prompts in turn, which all but the first of it share."""
    tokens, prompts = _whole(row, "system_prompt_len", 0), _whole(row, "num_system_prompts", 1)
    if not tokens:
        return traffic
    shared = np.full(len(traffic), tokens, dtype=np.int64)
    shared[:prompts] = 0
    return replace(traffic, shared=np.minimum(shared, traffic.input_tokens))


def _options(row: Mapping[str, Any], launcher: Launcher, traffic: Traffic) -> Options:
    """The limits that a row gives, or that its launcher chose."""
    sequences, tokens = (_whole(row, key, 0) or None for key in ("max_num_seqs", "max_num_batched_tokens"))
    longest, clients = int(traffic.input_tokens.max()), traffic.concurrency
    chunks = _flag(row, "chunked_prefill")
    if chunks is None and tokens is not None and tokens < longest:
        chunks = True  # else no prompt of that length could have been read
    if tokens is None and launcher.room is not None and clients:
        tokens = clients + _whole(row, "isl", 0) + launcher.room
    drafts, acceptance = _drafts(row)
    return Options(
        sequences, tokens, _flag(row, "prefix_caching"), drafts, acceptance, _whole(row, "decode_workers", 1),
        captured=clients if launcher.captures and clients else None, chunked_prefill=chunks,
        receive_every=_receives(row, launcher, clients),
    )  # fmt: skip


def _receives(row: Mapping[str, Any], launcher: Launcher, clients: int) -> int:
    """Decode steps after which the row's scheduler looks for requests: of servers that read prompts and decode, and
    share no attention among ranks of data."""
    if _text(row, "prefill_workers") or _whole(row, "dp", 1) > 1 or not clients:
        return 1
    return launcher.receives(_text(row, "model"), load_gpu(_text(row, "gpu")), clients)


def _flag(row: Mapping[str, Any], key: str) -> bool | None:
    return bool(_number(row, key, 0.0)) if _text(row, key) else None


def _drafts(row: Mapping[str, Any]) -> tuple[int, float]:
    """Tokens that are guessed a step, and the chance of each; UnsupportedError where a row with drafts lacks either."""
    drafts, method = _whole(row, "mtp_tokens", 0), _text(row, "spec_method")
    if not drafts and not method:
        return 0, 0.0
    said = f"mtp_tokens {drafts}" if drafts else f"spec_method {method}"
    lacks = [key for key in ("mtp_tokens", "acceptance") if not _text(row, key)]
    if lacks:
        raise UnsupportedError(f"{said}: speculation without a column {lacks[0]}; expected a row that says it")
    return drafts, _number(row, "acceptance", 0.0)


def _config(row: Mapping[str, Any], path: Path, configs: Path | None) -> str | Path:
    """The model's config file, or its name where no file is there."""
    text = _text(row, "config")
    for folder in (configs,) if configs else (path.parent / "configs", path.parent, path.parent.parent):
        for candidate in (inside(folder, text), folder / f"{text}.json", folder / Path(text).name) if text else ():
            if candidate.is_file():
                return candidate
    return _text(row, "model") or text


def _words(row: Mapping[str, Any], model: str | Path, tool: Tool, launcher: Launcher) -> dict[str, Any]:
    tp, dp, ep, pp = (_whole(row, key, 1) for key in ("tp", "dp", "moe_ep", "pp"))
    if not _text(row, "tp") and _whole(row, "num_gpus", 1) > 1:
        raise UnsupportedError(f"tp is empty: nobody says how the {_whole(row, 'num_gpus', 1)} GPUs share the model")
    dtype, execution = _text(row, "dtype"), _execution(row)
    narrower = launcher.runs_as.get(dtype)
    if narrower and load_gpu(_text(row, "gpu")).supports("fp4"):  # whose units scale blocks themselves
        dtype = narrower
    software = _text(row, "software") or _text(row, "version")
    chosen = sampling_of(tool, _text(row, "model"), running(execution, software).vintage())
    return {
        "model": model, "gpu": _text(row, "gpu"), "execution": execution, "software": software,
        "dtype": _own(model, dtype), "kv_dtype": _text(row, "kv_dtype") or launcher.caches.get(dtype), "tp": tp,
        "dp": dp, "ep": ep, "pp": pp, "num_gpus": tp * dp * pp, "sampling": _text(row, "sampling") or chosen,
        "memory_fraction": _number(row, "memory_fraction", 0.0) or launcher.fraction,
    }  # fmt: skip


def _own(model: str | Path, dtype: str) -> str | None:
    """None, for what its own config says, where a row's word is the checkpoint's: "fp8" is that in blocks, too."""
    checkpoint = load_config(model).checkpoint if isinstance(model, Path) else None
    as_stored = (
        checkpoint is not None and dtype != "" and all(word.startswith(dtype) for word in checkpoint.words if word)
    )
    return None if as_stored else dtype or None


def _named(model: str, folder: Path) -> str | Path:
    """The config of a model by its Hugging Face name, in a folder hf_configs above ``folder``, else the name."""
    file = f"{model.replace('/', '--')}_config.json"
    return next(
        (at / "hf_configs" / file for at in folder.absolute().parents if (at / "hf_configs" / file).is_file()), model
    )


def _folder(folder: Path) -> MeasuredService:
    """Requests of one run, with the words of its meta.yaml."""
    from predictor.data.parquet import read_rows

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
    return MeasuredService(folder.name, words, traffic, options, measured, whole, times)
