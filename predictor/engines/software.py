"""The age of an engine as a person says it: "vllm 0.24", "vllm 2023", or "0.24" where the engine is named elsewhere.

A year stands for what had been released by its middle, a month ("2024-11") for what had been by its end, and a nightly
build with a date ("nightly-20260402") for the newest release of its month; one without a date is the newest that is
listed. What is older than every release that is listed is the first, what is newer the last, and `remark` says so.
"""

from __future__ import annotations

import re
from functools import lru_cache

from predictor.engines.base import CALLS, Engine
from predictor.engines.pytorch.engine import EAGER
from predictor.engines.registry import engine, names
from predictor.engines.releases import is_nightly, is_version, numbers
from predictor.errors import RequestError, nearest

_YEAR = re.compile(r"20\d\d", re.ASCII)
_MONTH = re.compile(r"20\d\d-(?:0[1-9]|1[0-2])", re.ASCII)
#: The date in the name of a nightly build: 20260402 or 2026-04-02.
_DATE = re.compile(r"[-_.](20\d\d)-?(0[1-9]|1[0-2])-?[0-3]\d(?![^-_.])", re.ASCII)
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


def version_asked(execution: str, software: str) -> str:
    """The version that ``software`` says, or had come out by its date; "" for the newest."""
    if not software:
        return ""
    asked, said = _read(execution, software)
    month = _month(said)
    return _version(asked, month) if month else "" if is_nightly(said) else said


def remark(execution: str, software: str) -> str:
    """What to know of how ``software`` was taken: another release answers for it, or releases are not told apart. ""
    where there is nothing to say."""
    if not software:
        return ""
    asked, said = _read(execution, software)
    releases = asked.vintages()
    if not said:
        return ""
    if len(releases) < 2:
        return f"--software {software!r}: Tilecast models one release of {asked.name}."
    first, last = releases[0], releases[-1]
    month = _month(said)
    if is_nightly(said):
        older, newer = "" < month < first.since, month >= last.since or not month
    elif month:
        older, newer = said < first.since[: len(said)], said[:4] > last.since[:4]
    else:
        older = numbers(said) < numbers(first.version)
        newer = numbers(said)[: len(numbers(last.version))] > numbers(last.version)
    if not older and not newer:
        return ""
    which, taken = ("oldest", first.version) if older else ("newest", last.version)
    return f"--software {software!r}: modelled as {taken}, the {which} release of {asked.name} that Tilecast knows."


@lru_cache(maxsize=256)
def _running(execution: str, software: str) -> Engine:
    return _read(execution, software)[0].as_of(version_asked(execution, software))


def _month(said: str) -> str:
    """The month that ``said`` stands for, "2023-06" for 2023; "" for a version, and a nightly build without a date."""
    if _YEAR.fullmatch(said):
        return said + _MIDDLE
    if _MONTH.fullmatch(said):
        return said
    date = _DATE.search(said) if is_nightly(said) else None
    return f"{date[1]}-{date[2]}" if date else ""


def _read(execution: str, software: str) -> tuple[Engine, str]:
    """The engine in its newest release, and the version or year that was said of it, "" where none was."""
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
    releases = asked.vintages()
    if last and not _month(last) and not is_nightly(last) and len(releases) > 1:
        newest = releases[-1].version
        if numbers(last)[:1] > (numbers(newest)[0] + 1,):
            raise RequestError(
                f"--software {software!r}: expected a release of {asked.name} such as {newest}, the newest that is"
                " known, or a year such as 2024"
            )
    return asked, last


def _version(asked: Engine, month: str) -> str:
    """The newest release by ``month``, the first that is listed where all are newer."""
    releases = asked.vintages()
    older = [each.version for each in releases if each.since <= month]
    return older[-1] if older else releases[0].version if releases else ""


def _wrong(execution: str, software: str, other: str) -> str:
    if other:
        return f"--software {software!r}: --execution is {execution}; expected --execution {other}"
    example = execution if engine(execution).host != CALLS else "vllm"
    close = nearest(software.split()[0], names())
    tail = f"; nearest: {close[0]}" if close and close[0] != execution else ""
    return f"--software {software!r}: expected an engine and its version or a year, such as '{example} 2024'{tail}"
