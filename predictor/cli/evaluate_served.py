"""`tilecast evaluate served`: the simulation against measured services."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from predictor.cli.tracked import resolve
from predictor.errors import RequestError, TilecastError, printable, unknown_name
from predictor.report.under_way import UnderWay

SERVED_KEYS = ("model", "gpu", "execution")


def run(arguments: argparse.Namespace) -> int:
    """Simulate every service, print the errors of its times."""
    from predictor.data.plausible import check_suite_unit
    from predictor.fit.evaluate import write_rows
    from predictor.fit.served import as_frame, errors, ranking
    from predictor.fit.served_rows import read_cases
    from predictor.kernels.artifact import load_artifacts

    artifacts = resolve(arguments.artifacts, arguments.tracking_uri)
    load_artifacts(artifacts)  # a wrong --artifacts is no row's fault
    configs = Path(arguments.configs) if arguments.configs else None
    if configs is not None and not configs.is_dir():
        raise RequestError(f"--configs {str(configs)!r}: no such folder; expected one of model configs")
    cases = read_cases(Path(arguments.file), configs)
    with UnderWay("simulating services", arguments, total=len(cases), unit="services") as life:
        rows = as_frame(cases, artifacts, progress=life.at)
    for name in ("ttft_ms", "tpot_ms"):
        measured, predicted = (rows[f"{kind}_{name}"].to_numpy(dtype=float) for kind in ("measured", "predicted"))
        check_suite_unit(measured, predicted, arguments.file, name)
    keys = _keys(arguments, rows)
    if arguments.out:
        write_rows(rows, arguments.out)
    overall, ranks = errors(rows), ranking(rows)
    groups = [
        dict(zip(keys, map(str, values), strict=True)) | errors(part)
        for values, part in rows.groupby(list(keys), sort=True, dropna=False)
    ]
    if arguments.json:
        from predictor.fit.evaluate import as_json

        why = {f"{name}s" if name == "note" else name: _counted(rows, name) for name in ("note", "left_out")}
        flat = dict(overall.get("tpot") or overall.get("output_tokens_per_s_per_gpu") or {})
        print(as_json(flat | overall | {"ranking": ranks, "groups": groups} | why))
    else:
        _show(arguments, rows, overall, ranks, groups, keys)
    if not rows["predicted_tpot_ms"].notna().any():
        why = (rows["note"] + rows["left_out"]).iloc[0]
        raise TilecastError(f"{arguments.file}: none of {len(rows):,} services could be forecast: {why}")
    return 0


def _counted(rows: Any, column: str) -> dict[str, int]:
    """How many rows say what in a column of texts, the most frequent first."""
    return {str(text): int(n) for text, n in rows.loc[rows[column] != "", column].value_counts().items()}


def _keys(arguments: argparse.Namespace, rows: Any) -> list[str]:
    keys = arguments.by.split(",") if arguments.by is not None else [key for key in SERVED_KEYS if key in rows]
    unknown = [key for key in keys if key not in rows]
    if unknown:
        raise unknown_name("column", unknown[0], rows.columns, f"in --by {arguments.by} columns of the rows")
    return keys


def _show(
    arguments: argparse.Namespace, rows: Any, overall: dict[str, Any], ranks: dict[str, Any],
    groups: list[dict[str, Any]], keys: list[str],
) -> None:  # fmt: skip
    from predictor.files.terminal import screen
    from predictor.report.table import Column, print_table, say

    console = screen()
    say(console, f"{arguments.file}: {len(rows):,} services")
    names = [name for name in overall if len(rows) == 1 or not name.startswith("p99_ttft")]
    table = []
    for group in [*groups, {keys[0]: "all"} | overall]:
        for name in names:
            scored = group.get(name)
            if scored is None or not scored["n"]:
                continue
            figures = [scored.get(key) for key in ("mean_ape_pct", "median_ape_pct", "p90_ape_pct", "mean_signed_pct")]
            inside = scored.get("interval_coverage_pct")
            table.append([
                *(str(group.get(key, "")) for key in keys), name, f"{scored['n']:,}", f"{scored['unpredicted']:,}",
                *(f"{value:.2f} %" for value in figures), "" if inside is None else f"{inside:.0f} %",
            ])  # fmt: skip
    heads = ["figure", "n", "unpredicted", "mean", "median", "p90", "signed", "in the interval"]
    columns = [*(Column(key, key=True) for key in keys), *(Column(name, right=name != "figure") for name in heads)]
    print_table(console, columns, table)
    if ranks:
        say(
            console,
            f"rank correlation, median of {ranks['groups']} groups of one model and traffic: tokens/s a GPU"
            f" {ranks['tokens_per_s_per_gpu']:.3f}, TPOT {ranks['tpot']:.3f}",
        )
    known = rows[rows["predicted_tpot_ms"].notna() & rows["measured_tpot_ms"].notna()].copy()
    known["ape"] = (known["predicted_tpot_ms"] / known["measured_tpot_ms"] - 1.0).abs()
    for row in known.sort_values("ape", ascending=False).head(arguments.worst).to_dict("records"):
        say(
            console,
            f"{printable(str(row['case']))}: TPOT measured {row['measured_tpot_ms']:.4g} ms, forecast"
            f" {row['predicted_tpot_ms']:.4g}, TTFT {row['measured_ttft_ms']:.4g} and {row['predicted_ttft_ms']:.4g}",
            "  ", clauses=True,
        )  # fmt: skip
    for title, column in (("not predicted", "note"), ("not scored", "left_out")):
        for text, count in _counted(rows, column).items():
            say(console, f"{title}: {count:,} x {printable(text)}")
