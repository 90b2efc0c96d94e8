"""What the page asks of a forecast: what it shows, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.forecast import forecast
from predictor.request.options import OPTIONS
from predictor.ui.answers import quick
from predictor.ui.fields import fields_of
from predictor.ui.state import read_state


def test_boards_side_by_side_need_no_notes_and_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked(*_: Any) -> Any:
        raise AssertionError("the page shows none of it")

    for name in ("advised", "falling_notes", "wide_notes", "unknown_shares", "power_notes"):
        monkeypatch.setattr(forecast, name, unasked)
    fields = fields_of(OPTIONS.values())
    state = read_state({"model": "llama-3.1-70b", "gpu": ["h100", "a100"], "mode": "decode", "batch": "8"}, fields)
    answer = quick(state, fields, None)
    assert answer["errors"] == []
    assert "137.0 of 80.0 GiB" in answer["html"]
