"""Work that kills its worker, and work that takes its time: in the place of `predictor.sweep.answers.answer`, in
workers of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def answer(points: Sequence[Mapping[str, Any]], first: int, artifacts: str | None) -> list[dict[str, Any]]:
    """Rows of points; ``artifacts`` is a folder. The first worker on a point with "dies" is killed there (as out of
    memory), and every worker on one with "kills"; the others find out by the way."""
    folder = Path(str(artifacts))
    for words in points:
        marker = folder / f"died-{words['model']}"
        if words.get("kills") or (words.get("dies") and not marker.exists()):
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
    with (folder / "answered").open("a", encoding="utf-8") as file:
        file.write(f"{first}\n")
    return [{"point": first + i, **words, "note": ""} for i, words in enumerate(points)]


#: Seconds that a part takes in `paced`: a sweep that is stopped after its next part is at work, however late the
#: signal comes on a loaded machine.
PACE_S = 1.0


def paced(points: Sequence[Mapping[str, Any]], first: int, artifacts: str | None) -> list[dict[str, Any]]:
    """The rows of `predictor.sweep.answers.answer`, slowly: whoever interrupts a sweep finds it at work."""
    from predictor.sweep.answers import answer as at_once

    time.sleep(PACE_S)
    return at_once(points, first, artifacts)
