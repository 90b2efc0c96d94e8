"""Every notebook of notebooks/ runs, is kept without outputs, and defines nothing that would be worth importing."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import data_folder

from predictor.kernels.artifact import default_artifacts

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LONGEST_FUNCTION = 8  # lines: what is longer belongs into the package

pytestmark = pytest.mark.filterwarnings("default")  # those of Jupyter's own libraries


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def test_there_are_seven() -> None:
    assert len(NOTEBOOKS) == 7


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_kept_without_outputs(path: Path) -> None:
    document = read(path)
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], f"clear the outputs of {path.name} before it is committed"
            assert cell["execution_count"] is None
    assert "widgets" not in document["metadata"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_defines_nothing_worth_reusing(path: Path) -> None:
    code = "\n".join("".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "code")
    for node in ast.walk(ast.parse(code)):
        assert not isinstance(node, ast.ClassDef), f"{path.name} defines class {node.name}"
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < LONGEST_FUNCTION, f"{path.name} defines {node.name}"
    imported = {alias.name for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Import) for alias in n.names}
    imported |= {n.module or "" for n in ast.walk(ast.parse(code)) if isinstance(n, ast.ImportFrom)}
    assert any(name.split(".")[0] in ("tilecast", "predictor") for name in imported)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if data_folder() is not None:
        monkeypatch.setenv("TILECAST_DATA", str(data_folder()))
    execute(path, monkeypatch, tmp_path)


def test_accuracy_without_the_data_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILECAST_DATA", str(tmp_path))
    document = execute(ROOT / "notebooks" / "accuracy.ipynb", monkeypatch, tmp_path)
    said = [output.get("text", "") for cell in document.cells for output in cell.get("outputs", ())]
    assert "TILECAST_DATA has none" in said[0]


def execute(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A notebook, run in its own folder; raises with the cell and its traceback where one fails."""
    if not (default_artifacts() / "manifest.json").is_file():
        pytest.skip("no shipped estimators in this checkout")
    nbformat = pytest.importorskip("nbformat", reason="extra 'test'")
    nbclient = pytest.importorskip("nbclient", reason="extra 'test'")
    pytest.importorskip("ipykernel", reason="extra 'test'")
    pytest.importorskip("pandas", reason="extra 'train'")
    pytest.importorskip("matplotlib", reason="extra 'plot'")
    pytest.importorskip("mlflow", reason="extra 'train'")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("TILECAST_STATE", str(tmp_path))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):  # histories and sockets of kernels, which others run, too
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    document = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        document, timeout=600, startup_timeout=300, kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )  # fmt: skip
    client.execute()
    assert all(cell["execution_count"] for cell in document.cells if cell["cell_type"] == "code")
    return document
