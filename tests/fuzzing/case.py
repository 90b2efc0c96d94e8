"""One input of a fuzzer: files, and what is asked of them; as JSON it is run again (`tools/fuzz --replay FILE`)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Case:
    """``files``: name (may hold folders) -> content; ``ask``: what the kind's target is asked, as JSON has it."""

    kind: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    ask: Any = None

    def write(self, folder: Path) -> None:
        """The files, in a folder that is there."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def to_json(self) -> str:
        """The case as one JSON text."""
        files = {name: _shown(content) for name, content in self.files.items()}
        return json.dumps({"kind": self.kind, "ask": self.ask, "files": files}, indent=1)


def from_json(text: str) -> Case:
    """The case of such a text."""
    read = json.loads(text)
    files = {
        name: base64.b64decode(content["base64"]) if isinstance(content, dict) else content.encode("utf-8")
        for name, content in read["files"].items()
    }
    return Case(read["kind"], files, read["ask"])


def _shown(content: bytes) -> str | dict[str, str]:
    """Text where it is some, so that a person can read the case."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode("ascii")}


def seed(name: str) -> bytes:
    """A file of the seed corpus."""
    return (CORPUS / name).read_bytes()
