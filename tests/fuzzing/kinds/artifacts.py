"""Sets of estimators: manifests, routes, widths and arrays of the shipped set's smallest members, changed or damaged.

The seal and the hashes of a changed manifest are made right again in most cases, so that what stands below is judged.
"""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from predictor.fit.publish import as_manifest
from predictor.kernels.artifact import default_artifacts
from predictor.kernels.stored import FILES, MANIFEST, SEAL, WEIGHTS, described_file, sealed
from tests.fuzzing.case import Case
from tests.fuzzing.changes import ODD, changed_tree, damaged_bytes, damaged_text
from tests.fuzzing.targets import ask_words

MEMBERS = ("memory-bound", "fp32-gemm", "collective")
#: One with trees, of which a case holds those of a board and of all boards.
TREES, KEPT = "quantize", ("h100-sxm|", "*|")
WORDS = (
    "predict --model gpt2 --gpu v100-pcie-32gb --seq-len 32 --dtype fp32 --artifacts set --json",
    "predict --model gpt2 --gpu t4 --seq-len 32 --dtype fp32 --artifacts set --json --mode train --execution compile",
    "predict --model gpt2 --gpu a100 --dtype fp32 --artifacts set --json --mode train --dp 2 --batch 4",
    "predict --model gpt2 --gpu h100 --seq-len 32 --dtype int8 --execution eager --artifacts set --json",
)


@cache
def whole() -> dict[str, bytes]:
    """The files of the set: those that ship, of the members that are small."""
    home = default_artifacts()
    manifest = json.loads((home / MANIFEST).read_text(encoding="utf-8"))
    manifest["estimators"] = [each for each in manifest["estimators"] if each["folder"] in (*MEMBERS, TREES)]
    files = {f"set/{MANIFEST}": json.dumps(manifest).encode()}
    for member in MEMBERS:
        files |= {f"set/{member}/{path.name}": path.read_bytes() for path in (home / member).iterdir()}
    return files | _with_trees(home / TREES)


def _with_trees(folder: Path) -> dict[str, bytes]:
    """The files of the member with trees, sealed with the trees that a case holds."""
    files = {f"set/{TREES}/{path.name}": path.read_bytes() for path in folder.iterdir()}
    manifest = json.loads(files[f"set/{TREES}/{MANIFEST}"])
    for key in ("cores", "core_rows", "boosters"):
        manifest[key] = {name: each for name, each in manifest[key].items() if name.startswith(KEPT)}
    kept = tuple(booster["prefix"] for booster in manifest["boosters"].values())
    with np.load(folder / WEIGHTS) as held:
        arrays = {name: held[name] for name in held.files if name.startswith(kept)}
    out = io.BytesIO()
    np.savez(out, **arrays)
    files |= {f"set/{TREES}/{MANIFEST}": json.dumps(manifest).encode(), f"set/{TREES}/{WEIGHTS}": out.getvalue()}
    _seal(files, f"set/{TREES}")
    return files


def _arrays(draw: st.DrawFn, data: bytes) -> bytes:
    """An archive of arrays with one of them of another shape, kind or values."""
    with np.load(io.BytesIO(data)) as held:
        arrays: dict[str, Any] = {name: held[name] for name in held.files}
    if not arrays:
        return draw(damaged_bytes(data))
    name = draw(st.sampled_from(sorted(arrays)))
    array = arrays[name]
    odd = draw(st.sampled_from(("nan", "inf", "negative", "huge", "flat", "empty", "text", "int", "scalar")))
    arrays[name] = {
        "nan": lambda: array * np.nan, "inf": lambda: array + np.inf, "negative": lambda: -array,
        "huge": lambda: array * 1e30, "flat": lambda: array.ravel()[:-1], "empty": lambda: array[:0],
        "text": lambda: array.astype(str), "int": lambda: array.astype(np.int64), "scalar": lambda: np.float64(1.0),
    }[odd]()  # fmt: skip
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    files = dict(whole())
    name = draw(st.sampled_from(sorted(name for name in files if not name.endswith(".md"))))
    content = files[name]
    if name.endswith(WEIGHTS):
        content = _arrays(draw, content) if draw(st.booleans()) else draw(damaged_bytes(content))
    elif draw(st.integers(0, 5)):
        content = json.dumps(draw(changed_tree(json.loads(content), most=2, values=ODD))).encode("utf-8", "replace")
    else:
        content = draw(damaged_text(content.decode("utf-8")))
    files[name] = content
    if draw(st.integers(0, 9)):
        _seal(files, name.rpartition("/")[0])
    return Case("artifacts", files, draw(st.sampled_from(WORDS)).split())


def _seal(files: dict[str, bytes], folder: str) -> None:
    """Hashes and seal of a member's manifest, of the files as they are now."""
    name = f"{folder}/{MANIFEST}"
    try:
        manifest = json.loads(files[name])
        beside = {path.rpartition("/")[2]: content for path, content in files.items() if path.startswith(f"{folder}/")}
        manifest[FILES] = {file: described_file(file, beside[file]) for file in manifest[FILES]}
        files[name] = sealed(as_manifest({**manifest, SEAL: ""})).encode()
    except (ValueError, KeyError, TypeError, AttributeError):
        return  # it is damaged: as it is


ask = ask_words
