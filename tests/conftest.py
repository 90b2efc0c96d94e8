"""Shared by all tests: where the public data lies, if it is here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def data_folder() -> Path | None:
    """The folder of public measurements: $TILECAST_DATA, else shared/data beside the checkout; None where absent."""
    named = os.environ.get("TILECAST_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


os.environ["TILECAST_TRACKING_URI"] = "off"  # tests that track say so; none writes to the user's own store


@pytest.fixture(scope="session")
def data() -> Path:
    """The public data; a test that asks for it is skipped where it is absent."""
    folder = data_folder()
    if folder is None:
        pytest.skip("public data is not here: set TILECAST_DATA to a folder that holds it")
    return folder
