"""Shared by all tests: the public data, if it is here; and no setting of the caller's shell that decides a test."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]


def data_folder() -> Path | None:
    """The folder of public measurements: $TILECAST_DATA, else shared/data beside the checkout; None where absent."""
    named = os.environ.get("TILECAST_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


#: What the caller may set for the tests; all else of ours, MLflow's and git's (a hook names its repository) goes.
_KEPT = ("TILECAST_DATA", "TILECAST_CHROMIUM")
_TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "PYTHON_COLORS")
for name in list(os.environ):
    foreign = name.startswith(("TILECAST_", "MICROBENCH_", "MLFLOW_", "GIT_")) and name not in _KEPT
    if foreign or name in _TERMINAL:
        del os.environ[name]
for name in _TERMINAL:  # readline, which pytest loads, sets COLUMNS for processes below without a word to os.environ
    os.unsetenv(name)
#: A home of the tests, one a process: none reads or writes the user's own stores, recordings and settings.
_HOME = tempfile.mkdtemp(prefix="tilecast-tests-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ |= {"TILECAST_STATE": f"{_HOME}/state", "TILECAST_CACHE": f"{_HOME}/cache", "TZ": "UTC"}
os.environ |= {"XDG_STATE_HOME": f"{_HOME}/xdg-state", "XDG_CACHE_HOME": f"{_HOME}/xdg-cache"}  # tests that unset ours
for name in ("LANGUAGE", *filter(lambda each: each.startswith("LC_"), list(os.environ))):
    os.environ.pop(name, None)
os.environ["LC_ALL"] = "C.UTF-8"  # messages of the C library in English, on every machine
os.umask(0o022)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a script's `pytest &` begins: deaf, and its children with it
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Hundreds of processes import the package: it is compiled once, not by each of them; so are the tests' assertions.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["TILECAST_TRACKING_URI"] = "off"  # tests that track say so; none writes to the user's own store
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks a hub but those that bring one
os.environ["HF_HOME"] = f"{_HOME}/huggingface"
for name in ("NO_PROXY", "no_proxy"):  # servers of the tests are on loopback
    os.environ[name] = ",".join(["127.0.0.1", "localhost", *filter(None, [os.environ.get(name)])])

warm.install()

# The same examples every time, on a machine of any speed. To search for new ones: pytest --hypothesis-profile search
_SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, database=None, **_SLOW)
settings.register_profile("search", max_examples=1000, print_blob=True, **_SLOW)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Two workers: files of few, long tests (real processes, a browser) first, so that none is left to run alone."""
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist, which is handed files in this order
        items.sort(key=lambda item: item.path.parent.name not in ("integration", "ui"))


def pytest_collection_finish() -> None:
    """Modules and thousands of collected cases stay until the end: the collector of garbage need not look at them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data() -> Path:
    """The public data; a test that asks for it is skipped where it is absent."""
    folder = data_folder()
    if folder is None:
        pytest.skip("public data is not here: set TILECAST_DATA to a folder that holds it")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium: $TILECAST_CHROMIUM, one on the path, or the one that playwright brings."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra 'test')")
    with playwright.sync_playwright() as driver:
        names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
        found = [os.environ.get("TILECAST_CHROMIUM"), *map(shutil.which, names), driver.chromium.executable_path]
        path = next((p for p in found if p and Path(p).is_file()), None)
        if path is None:
            pytest.skip("no Chromium: apt install chromium, or playwright install chromium, or set TILECAST_CHROMIUM")
        root = hasattr(os, "geteuid") and os.geteuid() == 0  # Chromium's sandbox refuses root
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"] if root else [], timeout=180_000)
        yield started
        started.close()
