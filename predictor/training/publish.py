"""A set of estimators on disk: written whole or not at all, with the hashes that `estimators.stored` checks."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.estimators.interval import FILE as INTERVALS
from predictor.estimators.stored import FILES, MANIFEST, SCHEMA_VERSION, SEAL, VERSION_KEY, WEIGHTS, described, sealed
from predictor.files import atomic_write

_VERSION = {VERSION_KEY: SCHEMA_VERSION}


def write_estimator(
    folder: Path, manifest: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]],
    intervals: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """An estimator's folder: weights.npz, intervals.json (None: the one that is there stays) and the manifest with
    their hashes and its own, the same bytes for the same content. Both files of text say their schema version."""
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
