"""The archive of the harness that travels to a machine with a GPU: small, and whole with four packages."""

from __future__ import annotations

import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What a bare machine lacks: an import of any of these fails.
_LACKING = """
import sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('pandas', 'scipy', 'sklearn', 'lightgbm', 'transformers', 'rich', 'mlflow', 'torch'):
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, Lacking())
sys.path.insert(0, '.')
from microbench.cli import main
status = main(['plan', '--gpu', 'h100', '--ops', 'gemm', '--calibration', '--rows', '16'])
import microbench.commands.first_run, microbench.worker
import predictor
assert predictor.__file__.startswith(sys.argv[1]), predictor.__file__
sys.exit(status)
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lab") / "lab.tar.gz"
    tool = runpy.run_path(str(ROOT / "tools" / "lab_archive"))
    assert tool["main"]([str(out)]) == 0 and tool["main"]([]) == 2
    return out


def test_the_archive_is_small_and_holds_no_data(archive: Path) -> None:
    assert archive.stat().st_size < 5 * 2**20
    with tarfile.open(archive) as opened:
        names = opened.getnames()
    assert "tilecast-lab/microbench/sweeps/gemm.yaml" in names and "tilecast-lab/LICENSE" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".parquet", ".npz", ".pyc"))]
    assert not [name for name in names if name.split("/")[1] in ("models", "datasets", "tests", "docs")]


def test_the_harness_runs_from_it_with_four_packages(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # 3.11.4 on
    folder = tmp_path / "tilecast-lab"
    words = [sys.executable, "-c", _LACKING, str(folder)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "32 cases on h100-sxm" in done.stdout
