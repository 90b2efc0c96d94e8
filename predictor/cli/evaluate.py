"""`tilecast evaluate kernels|workloads|served`: forecasts against measurements."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from predictor.cli.tracked import (
    file_sha256,
    log_errors,
    resolve,
    say,
    scatter_of,
    settings,
    tracking_argument,
)
from predictor.errors import RequestError, TilecastError, printable, unknown_name
from predictor.files.outputs import output_argument, table
from predictor.report.under_way import UnderWay

EXAMPLES = """examples:
  tilecast evaluate workloads $TILECAST_DATA/ground_truth/neusight_e2e.csv
  tilecast evaluate kernels datasets/neusight --split test --baselines
  tilecast evaluate served $TILECAST_DATA/ground_truth/aic_silicon_h100.csv
"""
KERNEL_KEYS = ("gpu", "operator", "scheme", "framework")
WORKLOAD_KEYS = ("gpu", "mode", "execution")

#: Columns by which a table of --out is known again.
_FORECAST = ("measured_ms", "predicted_ms", "ape_pct", "note")
_SERVED = ("predicted_tpot_ms", "note")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evaluate`."""
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    whats = {
        "kernels": "the rows of a data set", "workloads": "end-to-end latencies of a suite (CSV)",
        "served": "services under load: rows with a concurrency (CSV), or a folder of requests",
    }  # fmt: skip
    for name, text in whats.items():
        sub = actions.add_parser(name, help=text, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
        folder = ": a file, or a folder of shards" if name == "kernels" else ""
        sub.add_argument("file", help=text + folder)
        sub.add_argument("--artifacts", metavar="DIR", help="estimators to use (default: those that ship)")
        rows = table("rows with their forecasts", _SERVED if name == "served" else _FORECAST)
        output_argument(sub, "--out", rows, metavar="FILE", help="write every row with its forecast (.csv or .parquet)")
        sub.add_argument("--by", metavar="A,B", help="columns to group by")
        sub.add_argument("--worst", type=int, default=5, metavar="N", help="list the N worst rows (default 5)")
        tracking_argument(sub)
        sub.add_argument("--json", action="store_true", help="print JSON")
        if name == "kernels":
            sub.add_argument(
                "--baselines", action="store_true", help="add the roofline's and a constant efficiency's error"
            )
            sub.add_argument("--only-gpu", metavar="A,B", help="rows of these GPUs alone")
            sub.add_argument("--flagged", action="store_true", help="count rows that were kept apart, too")
            sub.add_argument("--split", help="rows of this split alone (a data set's own 'train' or 'test')")
        else:
            sub.add_argument("--configs", metavar="DIR", help="model configs (default: configs/ beside the suite)")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print."""
    if arguments.worst < 0:
        raise RequestError(f"--worst {arguments.worst}: expected 0 or more")
    if arguments.what == "served":
        from predictor.cli.evaluate_served import run as served

        return served(arguments)
    from predictor import tracking
    from predictor.kernels.artifact import default_artifacts

    asked = settings(arguments)
    arguments.artifacts = resolve(arguments.artifacts, arguments.tracking_uri)
    of = Path(arguments.file).name
    with (
        UnderWay("forecasting rows", arguments) as life,
        tracking.run("evaluate", arguments.tracking_uri, say, of=of) as tracked,
    ):
        tracked.parameters(asked)
        tracked.used(Path(arguments.artifacts) if arguments.artifacts else default_artifacts())
        rows, keys, extra = _kernels(arguments) if arguments.what == "kernels" else _workloads(arguments, life.at)
        keys, overall, groups = _errors(arguments, rows, keys, extra)
        digest = file_sha256(arguments.file)
        tracked.parameters({"file_sha256": digest})
        tracked.dataset(Path(arguments.file).name, digest, "evaluation")
        tracked.metrics(overall)
        tracked.note(_note(overall))
        log_errors(tracked, "Errors of all rows", arguments.what, groups, [], scatter_of(rows))
        if arguments.out:
            tracked.file(Path(arguments.out))
    _show(arguments, rows, keys, overall, groups)
    if not rows["predicted_ms"].notna().any():
        why = rows["note"].fillna("").value_counts().index[0]
        raise TilecastError(f"{arguments.file}: none of {len(rows):,} rows could be predicted; most often: {why}")
    return 0


def _note(overall: dict[str, Any]) -> str:
    """The errors of all rows in a line."""
    named = {"mean_ape_pct": "mean", "median_ape_pct": "median", "p90_ape_pct": "90th percentile"}
    known = [f"{name} {overall[key]:.2f} %" for key, name in named.items() if overall.get(key) is not None]
    return f"{overall['n']:,} rows: {', '.join(known)}. {_fitted(overall)}".rstrip()


def _fitted(overall: dict[str, Any]) -> str:
    """How many of the rows the set was fitted on, in words; empty where none."""
    count, total = overall.get("fitted_rows", 0), overall["n"] + overall.get("unpredicted", 0)
    if not count:
        return ""
    some = "The set was fitted on these rows" if count == total else f"The set was fitted on {count:,} of these rows"
    share = overall["fitted_holdout"]
    apart = f", but for the {share:.0%} of their shapes that it held out" if share else ""
    unsure = overall["fitted_rows_unsure"]
    few = f" Up to {unsure:,} of them were kept apart then, as tables that are not here show." if unsure else ""
    return f"{some}{apart}: their error says how well it fits, not how well it forecasts.{few}"


Rows = tuple[Any, tuple[str, ...], dict[str, Any]]


def _errors(
    arguments: argparse.Namespace, rows: Any, keys: tuple[str, ...], extra: dict[str, Any]
) -> tuple[tuple[str, ...], dict[str, Any], list[dict[str, Any]]]:
    """The keys to group by, the errors of all rows and of every group; writes --out."""
    from predictor.fit.evaluate import write_rows
    from predictor.fit.scores import by_group, coverage, summarise

    if arguments.by is not None:
        keys = tuple(arguments.by.split(","))
        unknown = [key for key in keys if key not in rows]
        if len(set(keys)) < len(keys):
            raise RequestError(f"--by {arguments.by}: a column is named twice; expected each once")
        if unknown:
            raise unknown_name("column", unknown[0], rows.columns, f"in --by {arguments.by} columns of the rows")
    if arguments.out is not None:
        write_rows(rows, arguments.out)
    measured = rows["measured_ms"].to_numpy(dtype=float)
    predicted = rows["predicted_ms"].to_numpy(dtype=float)
    overall = summarise(measured, predicted) | coverage(rows)
    if "fitted" in rows:
        count = int(rows["fitted"].sum())
        overall |= {
            "fitted_rows": count, "fitted_holdout": rows.attrs["holdout"],
            "fitted_rows_unsure": min(count, rows.attrs["unseen"]),
        }  # fmt: skip
    groups = by_group(rows, keys)
    if extra:
        overall |= {name: summarise(measured, column(rows))["median_ape_pct"] for name, column in extra.items()}
        parts = [part for _, part in rows.groupby(list(keys), observed=True, sort=True, dropna=False)]
        for group, part in zip(groups, parts, strict=True):
            truth = part["measured_ms"].to_numpy(dtype=float)
            group |= {name: summarise(truth, column(part))["median_ape_pct"] for name, column in extra.items()}
    return keys, overall, groups


def _show(
    arguments: argparse.Namespace,
    rows: Any,
    keys: tuple[str, ...],
    overall: dict[str, Any],
    groups: list[dict[str, Any]],
) -> None:
    from predictor.files.terminal import screen
    from predictor.fit.evaluate import as_json
    from predictor.fit.scores import print_table
    from predictor.report.table import say

    notes = rows.loc[rows["note"].fillna("") != "", "note"].value_counts()
    worst = rows[rows["predicted_ms"].notna()].sort_values("ape_pct", ascending=False).head(arguments.worst)
    if arguments.json:
        print(
            as_json(
                overall
                | {"groups": groups}
                | {"notes": {str(k): int(v) for k, v in notes.items()}}
                | {"worst": worst[["case", "gpu", "measured_ms", "predicted_ms", "ape_pct"]].to_dict("records")}
            )
        )
        return
    print_table(f"{arguments.file}: {len(rows):,} rows", overall, groups, keys)
    console = screen()
    if _fitted(overall):
        say(console, _fitted(overall))
    if len(worst):
        say(console, "worst rows:")
    for row in worst.to_dict("records"):
        say(
            console,
            f"{printable(str(row['case']))} on {row['gpu']}: measured {row['measured_ms']:.4g} ms,"
            f" forecast {row['predicted_ms']:.4g} ms",
            "  ", clauses=True,
        )  # fmt: skip
    for note, count in notes.items():
        say(console, f"not predicted: {count:,} x {printable(str(note))}")


def _workloads(arguments: argparse.Namespace, progress: Callable[[int, int], None]) -> Rows:
    from predictor.data.plausible import check_suite_peaks, check_suite_unit
    from predictor.fit.evaluate import predict_suite, read_suite
    from predictor.kernels.artifact import load_artifacts

    load_artifacts(arguments.artifacts)  # a wrong --artifacts is no row's fault
    frame = read_suite(arguments.file)
    configs = Path(arguments.configs) if arguments.configs else Path(arguments.file).parent / "configs"
    if not configs.is_dir():
        raise RequestError(f"--configs {str(configs)!r}: no such folder; expected one of model configs")
    rows = predict_suite(frame, configs, arguments.artifacts, progress)
    measured, predicted = (rows[name].to_numpy(dtype=float) for name in ("measured_ms", "predicted_ms"))
    check_suite_unit(measured, predicted, arguments.file, "measured_ms")
    check_suite_peaks(rows.attrs["of_peaks"], arguments.file)
    keys = tuple(key for key in WORKLOAD_KEYS if key in rows)
    return rows, keys, {}


def _kernels(arguments: argparse.Namespace) -> Rows:
    from predictor.data import dataset
    from predictor.data.plausible import keep_apart
    from predictor.data.plausible_tables import keep_tables_apart
    from predictor.fit.evaluate import predict_rows
    from predictor.fit.fitted import fitted_rows, kept_apart_rows
    from predictor.fit.scores import constant_efficiency_ms, roofline_ms
    from predictor.kernels.artifact import ArtifactSet, load_artifacts

    selector = load_artifacts(arguments.artifacts)
    parts = [dataset.read(file) for file in dataset.data_files(arguments.file)]
    frame = parts[0] if len(parts) == 1 else dataset.concat(parts)
    devices = dataset.devices(dataset.read_meta(arguments.file))
    keep_apart(frame, arguments.file, devices, say)
    manifest = selector.manifest if isinstance(selector, ArtifactSet) else {}
    frame["fitted"] = fitted_rows(frame, [len(part) for part in parts], manifest)
    keep_tables_apart(frame, _known(frame, devices), say)
    apart, unseen = kept_apart_rows(frame, manifest)
    frame["fitted"] &= ~apart
    if not arguments.flagged:
        frame = frame[frame["flag"].astype(str) == ""]
    if arguments.only_gpu:
        frame = frame[frame["gpu"].astype(str).isin(_ids(arguments.only_gpu, devices))]
    if arguments.split:
        frame = frame[frame["split"].astype(str) == arguments.split]
    if not len(frame):
        raise RequestError(f"{arguments.file}: no row is left to evaluate (--split, --only-gpu, or every row flagged)")
    rows = predict_rows(frame.reset_index(drop=True), selector, devices)
    rows.attrs |= {"holdout": manifest.get("holdout", 0.0), "unseen": unseen}
    rows["case"] = rows["op"].astype(str) + " " + rows["source_file"].astype(str) + ":" + rows["source_row"].astype(str)
    extra: dict[str, Any] = {}
    if arguments.baselines:
        extra = {
            "roofline_baseline_pct": roofline_ms,
            "constant_baseline_pct": lambda part: constant_efficiency_ms(part, selector),
        }
    return rows, KERNEL_KEYS, extra


def _ids(text: str, devices: dict[str, Any]) -> list[str]:
    from predictor.hardware.gpu import load_gpu

    return [name if name in devices else load_gpu(name).id for name in text.split(",")]


def _known(frame: Any, devices: dict[str, Any]) -> dict[str, Any]:
    """The boards of the rows by id, those of the data and of the catalogue."""
    from predictor.hardware.gpu import list_gpus, load_gpu

    names = set(frame["gpu"].astype(str).unique())
    return {name: devices.get(name) or load_gpu(name) for name in names & {*devices, *list_gpus()}}
