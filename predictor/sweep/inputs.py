"""What the answers of a sweep follow from, by content: the code, the set of estimators, every file that a point names.

Two runs of a sweep belong together only where these are the same, byte by byte: a board, a model or a set that was
edited between them gives other rows.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from predictor.errors import RequestError
from predictor.files.read import note_read
from predictor.kernels.artifact import default_artifacts

#: Files of the package that a forecast may depend on, and packages beside it.
_CODE = (".py", ".yaml", ".json", ".csv")
_PACKAGES = ("numpy", "torch", "transformers", "diffusers", "onnx", "torchvision", "timm")
#: Of a folder that a model names: what is read.
_OF_A_FOLDER = ("*.json", "snapshots/*/*.json")

Stamp = tuple[int, int, int, int]


@lru_cache(maxsize=1)
def code_digest() -> str:
    """The hash of all files of the package and of the versions of what it computes with."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(path for path in package.rglob("*") if path.suffix in _CODE and path.is_file()):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    for name in _PACKAGES:
        try:
            digest.update(f"{name} {metadata.version(name)}\0".encode())
        except metadata.PackageNotFoundError:
            continue
    return digest.hexdigest()


class Inputs:
    """The files of a sweep, each hashed once. ``artifacts``: the set's folder, None for the shipped one."""

    def __init__(self, artifacts: str | None) -> None:
        self._known: dict[Path, tuple[Stamp, str]] = {}
        self._of_word: dict[tuple[str, str], tuple[Path, ...]] = {}
        self._set = self._digests(self._manifests(artifacts))

    def key(self, points: Sequence[Mapping[str, Any]]) -> str:
        """The hash of all that the rows of ``points`` follow from."""
        files = {path for point in points for word, value in point.items() for path in self._files(word, value)}
        about = [code_digest(), self._set, list(points), self._digests(sorted(files))]
        return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()

    def check_same(self) -> None:
        """RequestError where a file that was hashed is another by now."""
        for path, (stamp, digest) in self._known.items():
            if _stamp(path) != stamp and _sha256(path) != digest:
                raise RequestError(
                    f"{path} changed while the sweep ran; expected it to stay: the same command runs its points again"
                )

    def _digests(self, paths: Sequence[Path]) -> list[tuple[str, str]]:
        return [(str(path), self._digest(path)) for path in paths]

    def _digest(self, path: Path) -> str:
        if path not in self._known:
            with contextlib.suppress(OSError):
                note_read(path)  # so that the table is not written there
            self._known[path] = (_stamp(path), _sha256(path))
        return self._known[path][1]

    @staticmethod
    def _manifests(artifacts: str | None) -> list[Path]:
        """The manifests of a set, which have the hashes of its other files."""
        folder = default_artifacts() if artifacts is None else Path(artifacts)
        return sorted(path for path in (*folder.glob("manifest.json"), *folder.glob("*/manifest.json")))

    def _files(self, word: str, value: Any) -> tuple[Path, ...]:
        """The files that a word of a point names, and those that they name."""
        if not isinstance(value, str):
            return ()
        if (word, value) not in self._of_word:
            paths: dict[Path, None] = {}
            for path in _named(value, Path()):
                if path.is_dir():
                    inside = (
                        [file for pattern in _OF_A_FOLDER for file in path.glob(pattern)] if word == "model" else []
                    )
                    paths.update(dict.fromkeys(sorted(inside)))
                else:
                    _closure(path, paths)
            self._of_word[word, value] = tuple(paths)
        return self._of_word[word, value]


def _named(text: str, folder: Path) -> Iterator[Path]:
    """What is there of the paths in a text: itself, entries of a list, what stands behind "hf:" or before ":name"."""
    parts = re.split(r"[,;=\s]+", text)
    for each in dict.fromkeys((text, *parts, *(end for part in parts for end in part.split(":")))):
        try:
            path = folder / Path(each).expanduser() if each else None
            if path is not None and (path.is_dir() or stat.S_ISREG(path.stat().st_mode)):
                yield path.absolute()
        except (OSError, RuntimeError, ValueError):
            continue


def _closure(path: Path, paths: dict[Path, None]) -> None:
    """Add a file, and what it names in turn: modules that Python code imports from beside it, files of a YAML, the
    quantization beside a config.json."""
    if path in paths or not path.is_file():
        return
    paths[path] = None
    if path.suffix == ".py":
        for name in _imported(path):
            beside = path.parent.joinpath(*name.split("."))
            for imported in (beside.with_suffix(".py"), *(sorted(beside.glob("**/*.py")) if beside.is_dir() else ())):
                _closure(imported, paths)
    elif path.suffix in (".yaml", ".yml"):
        try:
            words = set(re.findall(r"[^\s\"'\[\]{},]+", path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return
        for word in sorted(words):
            for imported in (*_named(word, path.parent), *_named(word, Path())):
                _closure(imported, paths)
    elif path.name.endswith("config.json"):
        _closure(path.with_name(path.name.removesuffix("config.json") + "hf_quant_config.json"), paths)


def _imported(path: Path) -> list[str]:
    """Names of the modules that a file imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in dict.fromkeys(names) if name.isprintable()]


def _stamp(path: Path) -> Stamp:
    try:
        of = path.stat()
    except OSError:
        return (0, 0, 0, 0)
    return (of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns)


def _sha256(path: Path) -> str:
    """The hash of a file's bytes; "" for one that is gone."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
