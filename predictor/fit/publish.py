"""A set of estimators on disk: written whole or not at all, with the hashes that `estimators.stored` checks."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data.sources import read_sources
from predictor.files.read import atomic_write
from predictor.kernels.interval import FILE as INTERVALS
from predictor.kernels.ranges import INTERVALS as WIDTHS
from predictor.kernels.ranges import MANIFEST as RANGES
from predictor.kernels.ranges import check, check_array
from predictor.kernels.stored import FILES, MANIFEST, SCHEMA_VERSION, SEAL, VERSION_KEY, WEIGHTS, described, sealed

_VERSION = {VERSION_KEY: SCHEMA_VERSION}


def write_estimator(
    folder: Path, manifest: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]],
    intervals: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """An estimator's folder: weights.npz, intervals.json (None: the one that is there stays) and the manifest with
    their hashes and its own, the same bytes for the same content. Both files of text say their schema version.

    Raises SpecError for a number that no set may hold (`predictor.kernels.ranges`)."""
    for name, array in weights.items():
        check_array(folder / WEIGHTS, name, array)
    for name, content, rules in ((MANIFEST, manifest, RANGES), (INTERVALS, intervals, WIDTHS)):
        check(folder / name, json.loads(as_manifest(content)), rules)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{key: weights[key] for key in sorted(weights)})  # stored: loads 5 x faster
    atomic_write(folder / WEIGHTS, buffer.getvalue())
    if intervals is not None:
        atomic_write(folder / INTERVALS, as_manifest({**_VERSION, **intervals}).encode())
    said = as_manifest({**_VERSION, **manifest, FILES: described(folder), SEAL: ""})
    atomic_write(folder / MANIFEST, sealed(said).encode())


@contextmanager
def published(out: Path) -> Iterator[Path]:
    """A new folder that takes the place of ``out`` once it is finished; where it is not, ``out`` stays as it was."""
    temporary = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        yield temporary
        _publish(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _publish(temporary: Path, out: Path) -> None:
    """Put the finished set in place of an older one."""
    temporary.chmod(0o755)
    old = None
    if out.exists():
        old = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.old."))
        out.rename(old / "set")
    temporary.rename(out)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def as_manifest(value: Any) -> str:
    """JSON as manifests are written, numpy's numbers and arrays as plain ones."""
    return json.dumps(value, indent=1, sort_keys=False, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} does not go into a manifest")


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
        lines += ["Nothing was held out of this fit: docs/explanation/accuracy.md has the errors of fits that did.", ""]
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
