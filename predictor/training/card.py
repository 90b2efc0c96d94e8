"""The card of a set of estimators: what it was fitted on, under which licence, what was held out, how it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from predictor.training.sources import read_sources


def card_sources() -> dict[str, str]:
    """Source in a data set -> what the card says of it."""
    return {name: f"{source.short}: {source.holds}" for name, source in read_sources().items()}


def card(manifest: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """The card's Markdown, of a set's manifest and its errors on held-out rows."""
    names = sorted({name for item in manifest["data"] for name in item["sources"]})
    lines = [f"# Estimators `{manifest['name']}`", "", "Written by `tilecast train`; loads without pickle.", ""]
    lines += ["## Data", ""]
    known = card_sources()
    lines += [f"- {known.get(name, name)}" for name in names]
    lines += ["", "| file | rows | SHA-256 of the rows |", "| --- | --: | --- |"]
    lines += [f"| {item['file']} | {item['rows']:,} | `{item['sha256'][:16]}` |" for item in manifest["data"]]
    lines += ["", f"GPUs: {', '.join(manifest['gpus'])}."]
    if manifest["excluded_gpus"]:
        lines += [f"Left out: {', '.join(manifest['excluded_gpus'])}."]
    if manifest["holdout"]:
        what = "shape groups" if manifest["holdout_by"] == "shapes" else "MoE models"
        lines += [f"Held out: {manifest['holdout']:.0%} of the {what}, seed {manifest['seed']}.", ""]
    else:
        lines += ["Nothing was held out of this fit: docs/accuracy.md has the errors of fits that did.", ""]
    apart: Counter[str] = Counter()
    for item in manifest["estimators"]:
        apart.update(item["kept_apart"])
    if apart:
        lines += ["Rows of these operators that were kept apart, in no fit:", ""]
        lines += [f"- {count:,} x {reason}" for reason, count in apart.most_common()] + [""]
    lines += ["## Estimators", "", "| folder | rows fitted | families | dtypes |", "| --- | --: | --- | --- |"]
    for item in manifest["estimators"]:
        families, dtypes = ", ".join(item["families"]), ", ".join(item["dtypes"])
        lines.append(f"| {item['folder']} | {item['rows']:,} | {families} | {dtypes} |")
    for title, groups in (("Held-out shapes", metrics["heldout_shapes"]), ("Left-out GPUs", metrics["heldout_gpus"])):
        if groups:
            lines += ["", f"## {title}", "", *error_table(groups)]
    lines += ["", "Not for: GPUs without a catalogue file, dtypes not listed, sizes far outside the data's ranges.", ""]
    return "\n".join(lines)


def error_table(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Errors by group as the lines of a Markdown table."""
    lines = [
        "| GPU | operator | dtype | framework | n | mean | median | p90 | signed |",
        "| --- | --- | --- | --- | --: | --: | --: | --: | --: |",
    ]
    for row in groups:
        if not row["n"]:
            continue
        figures = " | ".join(
            f"{row[key]:.2f} %" for key in ("mean_ape_pct", "median_ape_pct", "p90_ape_pct", "mean_signed_pct")
        )
        names = " | ".join(str(row[key]) for key in ("gpu", "operator", "dtype", "framework"))
        lines.append(f"| {names} | {row['n']:,} | {figures} |")
    return lines
