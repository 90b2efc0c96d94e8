"""docs/reference/boards.md is what tools/boards.py writes."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import boards  # noqa: E402


def test_the_page_of_boards_is_that_of_the_catalogue() -> None:
    written = (ROOT / "docs/reference/boards.md").read_text(encoding="utf-8")
    assert written == boards.page(), "python tools/boards.py > docs/reference/boards.md"
