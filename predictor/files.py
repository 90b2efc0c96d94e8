"""Reading JSON and writing files whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from predictor.errors import SpecError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises SpecError, one line, with the line of a syntax error."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}: line {error.lineno}: not valid JSON ({error.msg})") from error
    except RecursionError as error:
        raise SpecError(f"{path}: not valid JSON (nested too deep)") from error
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror or error}); expected a JSON file") from error
    except ValueError as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "a number of too many digits"
        raise SpecError(f"{path}: cannot be read as JSON ({reason})") from error
    if not isinstance(value, dict):
        raise SpecError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def atomic_write(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` whole or not at all; its folder is made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
