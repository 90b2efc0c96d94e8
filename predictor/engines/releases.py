"""What changes from one release of a product to the next: a tuple of releases, the oldest first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

from predictor.errors import RequestError

#: Builds of a development branch: "nightly", "nightly-20260402", "latest", "main".
_NIGHTLY = re.compile(r"(?:nightly|latest|main)(?:[-_.][\w.-]*)?", re.ASCII)
#: Longest text that is read as a version: a guard, chosen by hand, not from data.
_LONGEST = 64


class Release(Protocol):
    """Something as a product has it from ``version`` on; "" for all versions."""

    @property
    def version(self) -> str: ...


R = TypeVar("R", bound=Release)


def as_of(releases: Sequence[R], version: str = "") -> R:
    """The release of ``releases``, the oldest first, as of ``version`` ("0.19.1"; "": the newest listed).

    A version before the first that is listed takes the first. RequestError for a version that is none.
    """
    return releases[-1 - age(releases, version)]


def age(releases: Sequence[R], version: str = "") -> int:
    """How many of ``releases`` came after the one as of ``version``: 0 for the newest."""
    if not version or is_nightly(version):
        return 0
    asked = numbers(version)
    return min(len(releases) - 1, sum(numbers(release.version) > asked for release in releases))


def is_version(text: str) -> bool:
    """Whether `as_of` reads it: tables hold words ("unknown") as well."""
    return is_nightly(text) or _parsed(text) is not None


def is_nightly(text: str) -> bool:
    """Whether it names builds of a development branch, which stand for the newest release that is listed."""
    return _NIGHTLY.fullmatch(text.lower()) is not None


def numbers(version: str) -> tuple[int, ...]:
    """ "0.24", "v0.15.1", "0.6.6.post1" and "1.2.0rc6.post2" as numbers to compare; "0.24.0" is 0.24.

    Versions are those of PEP 440, with or without a build behind them as tags of containers have it ("0.5.9-cu130"). A
    pre-release, a post-release and a local build are the release. RequestError for a version that is none.
    """
    if not version:
        return ()
    parsed = _parsed(version)
    if parsed is None:
        raise RequestError(f"version {version[:_LONGEST]!r}: expected numbers with points between them, such as 0.24.0")
    return parsed


@lru_cache(maxsize=1024)
def _parsed(text: str) -> tuple[int, ...] | None:
    """The numbers of a release without zeros at their end; None for what is no version."""
    from packaging.version import InvalidVersion, Version  # a run whose engine has no age does without

    if len(text) > _LONGEST or not text.isascii():
        return None
    for said in (text, text.partition("-")[0]):
        try:
            parts = list(Version(said).release)
        except InvalidVersion:
            continue
        while parts and not parts[-1]:
            parts.pop()
        return tuple(parts)
    return None
