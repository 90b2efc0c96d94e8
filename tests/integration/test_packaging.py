"""What ships reaches a wheel, an sdist and an editable install, and works from each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = """
from predictor.data.sources import SOURCES_FILE, read_sources
found = read_sources()
print("_datasets" in str(SOURCES_FILE), ",".join(found), len(found["neusight"].files))
"""
ASK = ["predict", "--model", "gpt2", "--gpu", "h100", "--json"]


def shipped() -> set[str]:
    """Files of the shipped set, relative to models/default."""
    folder = ROOT / "models" / "default"
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def run(command: list[str], **extra: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | extra, cwd="/")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)])
    return out


def check_answer(text: str) -> None:
    answer = json.loads(text)
    assert answer["latency_ms"] > 0
    assert answer["provenance"]["estimator"] > 0


def test_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("tilecast-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path)
        packed = archive.getinfo("predictor/_models/default/attention/weights.npz")
    # Packed with the least effort: `pip install .` waits for it (`tools/wheel_hook.py`).
    weights = (ROOT / "models" / "default" / "attention" / "weights.npz").read_bytes()
    assert packed.compress_size == pytest.approx(len(zlib.compress(weights, zlib.Z_BEST_SPEED)), rel=1e-3)
    assert packed.compress_size > 1.01 * len(zlib.compress(weights))
    assert {f"predictor/_models/default/{name}" for name in shipped()} <= names
    assert "predictor/hardware/gpus/h100-sxm.yaml" in names
    assert "predictor/models/built/configs/gpt3.json" in names
    assert {"predictor/py.typed", "tilecast/py.typed", "tilecast/__main__.py"} <= names
    check_answer(run([sys.executable, "-m", "tilecast", *ASK], PYTHONPATH=str(tmp_path)))
    # The rows stay out; where they are from, and under which licence, goes along.
    assert not [name for name in names if name.endswith(".parquet")]
    licences = {f"datasets/licences/{path.name}" for path in (ROOT / "datasets" / "licences").glob("*.txt")}
    assert {"NOTICE", "LICENSE", *licences} <= {name.partition(".dist-info/licenses/")[2] for name in names}
    said = run([sys.executable, "-c", SOURCES], PYTHONPATH=str(tmp_path))
    assert said.split() == ["True", "neusight,aiconfigurator,vidur,vtrain,llmcompass,aiter,simumax,llmservingsim", "86"]


def test_sdist(built: Path) -> None:
    (sdist,) = built.glob("tilecast-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {f"models/default/{name}" for name in shipped()} <= names
    assert "tests/conftest.py" in names
    assert {"NOTICE", "datasets/sources.yaml", "datasets/README.md"} <= names
    assert not [name for name in names if name.endswith(".parquet")]


def test_editable_install(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)  # the running environment's pip installs into it: seconds less
    python = tmp_path / "venv" / "bin" / "python"
    site = run([str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]).strip()
    # the libraries come from the running environment, so that the test needs no network
    Path(site, "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    run([*pip, "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-e", str(ROOT)])
    check_answer(run([str(tmp_path / "venv" / "bin" / "tilecast"), *ASK]))


def test_the_shipped_set_is_small_and_holds_no_pickle() -> None:
    folder = ROOT / "models" / "default"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 30 * 2**20  # about 3 MiB a board with all schemes
    for path in files:
        assert path.suffix in {".json", ".npz", ".md", ".parquet"}
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    assert b"|O" not in archive.read(name)[:200]
