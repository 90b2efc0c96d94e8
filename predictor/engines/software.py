"""The age of an engine as a person says it: "vllm 0.24", "vllm 2023", or "0.24" where the engine is named elsewhere.

A year stands for what had been released by its middle. What is older than every release that is listed is the first.
"""

from __future__ import annotations

import re
from functools import lru_cache

from predictor.engines.base import CALLS, Engine
from predictor.engines.pytorch import EAGER
from predictor.engines.registry import engine, names
from predictor.engines.releases import is_version
from predictor.errors import RequestError

_YEAR = re.compile(r"20\d\d", re.ASCII)
#: The month in the middle of a year, by definition.
_MIDDLE = "-06"


def running(execution: str, software: str = "") -> Engine:
    """The engine that ``--execution`` and ``--software`` name together, in the release that they say.

    A name in ``software`` decides where ``execution`` is left at its default. RequestError, one line, for a name that
    is another engine's, or what is no version or year.
    """
    if not isinstance(software, str):
        raise RequestError(f"--software {software!r}: expected text such as 'vllm 2024'")
    if not software:
        return engine(execution)
    return _running(execution, software)


@lru_cache(maxsize=256)
def _running(execution: str, software: str) -> Engine:
    *words, last = software.split() or [""]
    if not (is_version(last) or not last):
        words, last = [*words, last], ""
    name = " ".join(words).lower()
    asked = engine(execution)
    if name and name not in (asked.name, *asked.called):
        named = [each for each in map(engine, names()) if name in (each.name, *each.called)]
        if not named or asked is not EAGER:
            raise RequestError(_wrong(execution, software, named[0].name if named else ""))
        asked = named[0]
    return asked.as_of(_version(asked, last) if _YEAR.fullmatch(last) else last)


def _version(asked: Engine, year: str) -> str:
    """The newest release by the middle of ``year``, the first that is listed where all are newer."""
    releases = asked.vintages()
    older = [each.version for each in releases if each.since <= year + _MIDDLE]
    return older[-1] if older else releases[0].version if releases else ""


def _wrong(execution: str, software: str, other: str) -> str:
    if other:
        return f"--software {software!r}: --execution is {execution}; expected --execution {other}"
    example = execution if engine(execution).host != CALLS else "vllm"
    return f"--software {software!r}: expected an engine and its version or a year, such as '{example} 2024'"
