"""What changes from one release of a product to the next: a tuple of releases, the oldest first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar

from predictor.errors import RequestError

#: "0.24.0", "0.6.6.post1", "1.3.0rc20", "0.20.1.dev3+gabc": numbers with points between; a pre-release is the release.
_VERSION = re.compile(r"(\d+(?:\.\d+)*)(?:\.?(?:post|dev|rc)\d*)?(?:\+[\w.]+)?", re.ASCII)


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
    if not version:
        return 0
    asked = numbers(version)
    return min(len(releases) - 1, sum(numbers(one.version) > asked for one in releases))


def is_version(text: str) -> bool:
    """Whether `as_of` reads it: tables hold words ("unknown") as well."""
    return _VERSION.fullmatch(text) is not None


def numbers(version: str) -> tuple[int, ...]:
    """ "0.24" and "0.6.6.post1" as numbers to compare; "0.24.0" is 0.24. RequestError for a version that is none."""
    if not version:
        return ()
    found = _VERSION.fullmatch(version)
    if found is None:
        raise RequestError(f"version {version!r}: expected numbers with points between them, such as 0.24.0")
    parts = [int(word) for word in found[1].split(".")]
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)
