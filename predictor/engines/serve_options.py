"""The command that starts an engine: its options by release, from a list that names where each was read.

`launch_options/` has a YAML file an engine: its ``command``, and ``releases``, the oldest first, each with its
``source`` and the ``options`` that it brings or changes, by the word that they stand for; ``file`` are lines of a file
of options, of an engine that takes some only there. A placeholder {tp} is a value; ``words`` are an engine's own words
for ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from predictor.engines.base import Engine
from predictor.engines.releases import numbers
from predictor.errors import UnsupportedError
from predictor.files.records import dataclass
from predictor.files.yaml_reader import read_yaml_file

FOLDER = Path(__file__).parent / "launch_options"


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What starts an engine from ``version`` on: ``command``, ``options`` and lines of the ``file`` of options by word,
    its own ``words`` for values; ``sources`` they were read in, ``unverified`` what nobody read."""

    version: str
    command: str
    options: Mapping[str, str]
    file: Mapping[str, str]
    words: Mapping[str, Mapping[str, str]]
    sources: tuple[str, ...]
    unverified: tuple[str, ...] = field(default=())


def listed() -> tuple[str, ...]:
    """Engines that have a list."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def launch_options(engine: Engine) -> LaunchOptions:
    """The options of an engine's release. UnsupportedError where it has no list, or its release is older than that."""
    if engine.name not in listed():
        raise UnsupportedError(f"--emit {engine.name}: no list of its options; expected one of {', '.join(listed())}")
    release = engine.vintage()
    version = release.version if release is not None else ""
    releases = [
        release for release in _releases(engine.name) if not version or numbers(release.version) <= numbers(version)
    ]
    if not releases:
        first = _releases(engine.name)[0].version
        raise UnsupportedError(f"--software {engine.name} {version}: its options are known from {first} on")
    return releases[-1]


@lru_cache(maxsize=16)
def _releases(name: str) -> tuple[LaunchOptions, ...]:
    document = read_yaml_file(FOLDER / f"{name}.yaml", "a list of launch options")
    options: dict[str, str] = {}
    lines: dict[str, str] = {}
    sources: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    releases = []
    for release in document["releases"]:
        options, lines = options | release["options"], lines | release.get("file", {})
        sources = (*sources, str(release["source"]))
        unverified = (*unverified, *([str(release["unverified"])] if "unverified" in release else []))
        releases.append(
            LaunchOptions(
                str(release["version"]), document["command"], MappingProxyType(options), MappingProxyType(lines),
                MappingProxyType(document.get("words", {})), sources, unverified,
            )
        )  # fmt: skip
    return tuple(releases)
