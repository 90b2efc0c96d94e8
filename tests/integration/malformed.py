"""Malformed words and files for every verb -> what the one line says of them. `test_malformed` runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Case:
    """``words`` of a program, with ``files`` beside, are refused with ``said`` and ``status``."""

    words: str | Sequence[str]
    said: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    status: int = 2
    microbench: bool = False
