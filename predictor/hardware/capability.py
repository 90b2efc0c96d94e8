"""What an instruction set fixes, by compute capability (AMD: by generation): `compute_capabilities.json` as fields."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from predictor.files.read import read_json

#: Read at every start: JSON takes a hundredth of the time of YAML.
CAPABILITIES = Path(__file__).parent / "compute_capabilities.json"
_ABOUT = "about"


@cache
def _table() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Compute capability or generation -> field -> {value, source}."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for field, groups in read_json(CAPABILITIES).items():
        for group in groups if field != _ABOUT else ():
            for capability, value in group["values"].items():
                table.setdefault(capability, {})[field] = {"value": value, "source": group["source"]}
    return table


def capabilities() -> tuple[str, ...]:
    """What the table has rows of, sorted."""
    return tuple(sorted(_table()))


def of_capability(capability: str | None, architecture: str) -> Mapping[str, Mapping[str, Any]]:
    """Field of a GPU file -> `{value, source}`; empty for a compute capability or generation that the table lacks.

    >>> of_capability("9.0", "hopper")["matrix_tile_rows"]["value"]
    '64'
    """
    return _table().get(capability or architecture, {})
