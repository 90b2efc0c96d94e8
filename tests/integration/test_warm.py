"""Children of the nursery are processes like any other, and what is none for it starts as ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(subprocess.Popen is not warm.Popen, reason="no nursery on this system")
#: A module of the name of a worker's: what it says of itself, and how it ends.
PROBE = """
import json, os, signal, subprocess, sys
if sys.argv[1] == "raise":
    raise ValueError("as it was told")
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGSEGV)
if sys.argv[1] == "interrupted":
    os.kill(os.getpid(), signal.SIGINT)
if sys.argv[1] == "parent":
    done = subprocess.run([sys.executable, "-m", "microbench.probe", "look"], capture_output=True, text=True)
    print(json.dumps({"pid": os.getpid(), "child": json.loads(done.stdout)}))
    sys.exit()
words = open("/proc/self/cmdline").read().split(chr(0))
loaded = [name for name in sys.modules if name.split(".")[0] in ("predictor", "pytest")]
print(json.dumps({
    "parent": os.getppid(), "words": [word for word in words if word], "argv": sys.argv[1:], "folder": os.getcwd(),
    "said": os.environ.get("SAID"), "home": "HOME" in os.environ, "torch": "torch" in sys.modules, "loaded": loaded,
    "read": sys.stdin.read(), "name": __name__, "session": os.getsid(0) == os.getpid(),
    "streams": os.listdir("/proc/self/fd"),
}))
sys.stderr.write("to stderr")
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder in which `microbench.probe` is found before this repository's `microbench`."""
    (tmp_path / "site" / "microbench").mkdir(parents=True)
    (tmp_path / "site" / "microbench" / "__init__.py").touch()
    (tmp_path / "site" / "microbench" / "probe.py").write_text(PROBE)
    return tmp_path / "site"


def probe(site: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    variables = more.pop("env", os.environ) | {"PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "microbench.probe", *words]
    place = {"cwd": site} | more
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False, **place)


def test_a_child_is_a_process_of_its_own(site: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "HOME"} | {"SAID": "that"}
    done = probe(site, "look", "7", env=variables, input="hello", cwd="/", start_new_session=True)
    assert (done.returncode, done.stderr) == (7, "to stderr")
    said = json.loads(done.stdout)
    assert said.pop("words") == [sys.executable, "-m", "microbench.probe", "look", "7"]
    assert len(said.pop("streams")) == 5  # the three, the one that lists them, and that of its own nursery
    assert said == {
        "parent": os.getpid(), "argv": ["look", "7"], "folder": "/", "said": "that", "home": False, "torch": True,
        "loaded": [], "read": "hello", "name": "__main__", "session": True,
    }  # fmt: skip


def test_a_child_ends_as_it_would(site: Path) -> None:
    assert probe(site, "killed").returncode == -signal.SIGSEGV
    assert probe(site, "interrupted").returncode == -signal.SIGINT
    raised = probe(site, "raise")
    assert raised.returncode == 1 and raised.stderr.endswith("ValueError: as it was told\n")


def test_a_child_has_children_of_its_own(site: Path) -> None:
    said = json.loads(probe(site, "parent").stdout)
    assert said["child"]["parent"] == said["pid"] != os.getpid() and said["child"]["torch"]


def test_a_hidden_library_and_other_variables_start_an_interpreter(site: Path) -> None:
    for variables in ({"PYTHONHASHSEED": "1"}, {"OMP_NUM_THREADS": "2"}):
        done = probe(site, "look", env=os.environ | variables, stdin=subprocess.DEVNULL)
        assert json.loads(done.stdout)["torch"] is False
    (site / "torch.py").touch()
    assert json.loads(probe(site, "look", stdin=subprocess.DEVNULL).stdout)["torch"] is False
    said = subprocess.run([sys.executable, "-c", "import sys; print('torch' in sys.modules)"], capture_output=True)
    assert said.stdout == b"False\n"
