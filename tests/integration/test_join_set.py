"""A family that was fitted alone takes its place in a set, whose manifest says what each estimator was fitted on."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from predictor.cli.main import main
from predictor.data import dataset
from predictor.errors import RequestError
from predictor.fit.join import join

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "join_set"
WHOLE = ("constant_efficiency", "roofline_width")  # of a sample of all rows


def rows(slower: float) -> Any:
    """Products and norms of two boards; the norms take ``slower`` times as long. Of each, one row is flagged."""
    n = 40
    size = 2.0 ** np.arange(n) % 8192 + 64
    parts = []
    for gpu in ("h100-sxm", "l40s"):
        same = {
            "source": "made-up", "source_file": "none", "source_row": np.arange(n), "gpu": gpu, "framework": "pytorch",
            "framework_version": "0", "kernel_source": "aten", "protocol": "cuda_graph", "cache_state": "unknown",
            "dtype": "bf16", "quant": "", "flag": ["slow_machine"] + [""] * (n - 1),
        }  # fmt: skip
        sizes = (size + np.arange(n)).astype(int)
        product = {"op": "gemm", "m": sizes, "n": 4096, "k": 4096, "batch": 1, "kind": "linear", "bias": False,
                   "layout": "tn", "latency_ms": 0.2 + sizes * 1e-3}  # fmt: skip
        norm = {"op": "norm", "kind": "rms", "rows": sizes * 16, "cols": 4096,
                "latency_ms": slower * (0.02 + sizes * 1e-3)}  # fmt: skip
        parts += [dataset.to_frame({**same, **own}, n) for own in (product, norm)]
    return dataset.concat(parts)


def trained(folder: Path, out: Path, *words: str) -> Path:
    assert main(["train", "--data", str(folder), "--out", str(out), "--name", "set", "--no-intervals", *words]) == 0
    return out


def contents(folder: Path) -> dict[str, Any]:
    """The files of a set, its own manifest as JSON without what is of a sample of all rows."""
    found: dict[str, Any] = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    manifest = json.loads(found["manifest.json"])
    found["manifest.json"] = {key: value for key, value in manifest.items() if key not in WHOLE}
    return found


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Rows of before, and of after the norms of the file were mended."""
    for name, slower in (("before", 1.0), ("after", 2.0)):
        dataset.write(rows(slower), tmp_path / name / "rows.parquet")
    return tmp_path / "before", tmp_path / "after"


def fitted(folder: Path, set_: Path, out: Path) -> dict[str, int]:
    """How many rows of each operator `evaluate kernels` marks as those that the set was fitted on."""
    assert main(["evaluate", "kernels", str(folder), "--artifacts", str(set_), "--out", str(out)]) == 0
    scored = pd.read_parquet(out)
    return {str(op): int(part["fitted"].sum()) for op, part in scored.groupby("op", observed=True)}


def test_a_joined_set_is_the_set_of_one_fit(folders: tuple[Path, Path], tmp_path: Path) -> None:
    before, after = folders
    set_, other = trained(before, tmp_path / "set"), tmp_path / "alone"
    assert fitted(before, set_, tmp_path / "a.parquet") == {"gemm": 78, "norm": 78}
    assert fitted(after, set_, tmp_path / "b.parquet") == {"gemm": 78, "norm": 0}  # the file changed, the products not
    assert join(set_, trained(after, other, "--estimators", "memory-bound")) == ["memory-bound"]
    assert contents(set_) == contents(trained(after, tmp_path / "whole"))
    assert "- 4 x slow_machine" in (set_ / "README.md").read_text(encoding="utf-8")  # of both, though one was joined
    assert fitted(after, set_, tmp_path / "c.parquet") == {"gemm": 78, "norm": 78}
    assert fitted(before, set_, tmp_path / "d.parquet") == {"gemm": 78, "norm": 0}


def test_a_set_of_before_is_told_what_it_was_fitted_on(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = folders
    set_ = trained(before, tmp_path / "set")
    made = contents(set_)
    path = set_ / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for entry in manifest["estimators"]:
        del entry["rows"], entry["kept_apart"], entry["data"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    assert fitted(before, set_, tmp_path / "a.parquet") == {"gemm": 78, "norm": 78}  # by the whole file
    with pytest.raises(RequestError, match=r"does not say what memory-bound, gemm was fitted on"):
        join(set_, trained(after, tmp_path / "alone", "--estimators", "memory-bound"))
    silent = path.read_bytes()
    for folder, status in ((after, 1), (before, 0)):
        assert path.read_bytes() == silent
        monkeypatch.setattr(sys, "argv", ["join_set", str(set_), "--data", str(folder)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        assert ended.value.code == status
        said = capsys.readouterr().out.splitlines()
        assert said[1] == "gemm: fitted on these rows"
        assert said[0].startswith("memory-bound: fitted on " + ("other rows" if status else "these rows"))
    assert contents(set_) == made


def test_sets_that_held_rows_out_are_not_joined(folders: tuple[Path, Path], tmp_path: Path) -> None:
    set_ = trained(folders[0], tmp_path / "set")
    other = trained(folders[1], tmp_path / "other", "--exclude-gpu", "l40s")
    with pytest.raises(RequestError, match=r"other: held rows out"):
        join(set_, other)
