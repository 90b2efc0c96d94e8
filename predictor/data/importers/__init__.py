"""Public data sets in their native layout -> the measurement schema. `import_source(name, path)` is the way in."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from predictor.data.importers.base import ImportResult, Skipped
from predictor.errors import RequestError, TilecastError, unknown_name

__all__ = ["SOURCES", "ImportResult", "Skipped", "import_parts", "import_source"]

#: Name of a source -> the module that reads it, each with a `run(root: Path) -> ImportResult`.
SOURCES: tuple[str, ...] = (
    "neusight",
    "aiconfigurator",
    "vidur",
    "vtrain",
    "llmcompass",
    "aiter",
    "simumax",
    "llmservingsim",
    "microbench",
)


def import_source(source: str, path: str | Path) -> ImportResult:
    """Every measurement of the data set `source` below the folder `path`, which has the source's own layout.

    Rows that cannot be read are counted and named in the result. Raises UnknownNameError for an unknown source,
    RequestError where `path` is no folder, SpecError, one line, for a folder or a file of another layout, and
    TilecastError where no row could be imported, and where pandas or pyarrow is not installed.
    """
    module, root = _module(source, path)
    result: ImportResult = module.run(root)
    if not len(result.frame):
        skipped = sorted(result.skipped_by_reason().items(), key=lambda item: -item[1])
        why = "".join(f", {count:,} x {reason}" for reason, count in skipped[:3])
        raise TilecastError(f"no row was imported from {root}{why}; expected measurements in {module.EXPECTED}")
    return result


def import_parts(source: str, path: str | Path) -> Iterator[ImportResult]:
    """What `import_source` gives, in parts of a GPU or more each: a large source never lies in memory whole."""
    module, root = _module(source, path)
    yield from module.parts(root) if hasattr(module, "parts") else [module.run(root)]


def _module(source: str, path: str | Path) -> tuple[Any, Path]:
    if source not in SOURCES:
        raise unknown_name("data source", source, SOURCES)
    root = Path(path).absolute()
    if not root.is_dir():
        raise RequestError(f"{path} is not a folder: expected the root of the {source} data")
    return importlib.import_module(f"{__name__}.{source}"), root
