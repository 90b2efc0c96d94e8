"""Hatchling's hook for wheels: packed with little effort, so that `pip install .` from a checkout is done sooner.

Two thirds of a wheel are the arrays of the shipped models, which zlib's default effort makes 3 % smaller than the least
one, in three times the time. Hatchling takes the default level and has no word for another.
"""

from __future__ import annotations

import zlib
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class QuickWheel(BuildHookInterface[Any]):
    """Sets the level of the process that builds the wheel, which does nothing else."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by Hatchling before it packs; ``version``: "standard" or "editable"."""
        zlib.Z_DEFAULT_COMPRESSION = zlib.Z_BEST_SPEED  # type: ignore[misc]
