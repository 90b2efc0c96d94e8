"""The public sources that `datasets/` was made of: their commits, licences and hashes, and how to fetch them again.

datasets/sources.yaml names them; a list in the format of sha256sum has the hash of every file that is imported. A
fetched file with another hash is refused: what was measured is then not what the estimators were trained on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from predictor.data import shards
from predictor.data.importers import import_parts
from predictor.errors import RequestError, SpecError, TilecastError, unknown_name
from predictor.files.extras import require
from predictor.files.records import dataclass

_HERE = Path(__file__).resolve().parent.parent
_INSTALLED, _CHECKOUT = (folder / "sources.yaml" for folder in (_HERE / "_datasets", _HERE.parent / "datasets"))
#: Inside the package when installed, under datasets/ in a checkout.
SOURCES_FILE = _INSTALLED if _INSTALLED.is_file() else _CHECKOUT
_LFS = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class DataSource:
    """One public source. ``files``: path in the repository -> SHA-256 (hex); ``commit`` is None where none is known."""

    name: str
    repository: str
    commit: str | None
    paths: tuple[str, ...]
    licence: str
    licence_text: str
    copyright: str
    holds: str
    files: Mapping[str, str]

    @property
    def pinned(self) -> str:
        """Repository and commit as a reader wants them: sitar-lab/NeuSight@6945927."""
        name = self.repository.removeprefix("https://github.com/")
        return f"{name}@{self.commit}" if self.commit else name

    @property
    def short(self) -> str:
        """What the metadata of a shard says of its origin."""
        return f"{self.pinned}, {self.licence}"


@dataclass(frozen=True, slots=True)
class Fetched:
    """What `fetch` wrote: shards, rows, and the rows that were not imported, by reason."""

    shards: tuple[Path, ...]
    rows: int
    skipped: Mapping[str, int]


def read_sources(path: Path | None = None) -> dict[str, DataSource]:
    """The sources by name. Raises SpecError, one line, for a file that does not hold them."""
    path = path or SOURCES_FILE
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {name: _source(name, entry, path.parent) for name, entry in entries.items()}
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise SpecError(f"{path} cannot be read as a list of sources: {error!r}") from None


def _source(name: str, entry: Mapping[str, Any], folder: Path) -> DataSource:
    listed = folder / "checksums" / f"{name}.sha256"
    files = {line[66:]: line[:64] for line in listed.read_text(encoding="utf-8").splitlines()}
    fields = {key: entry[key] for key in DataSource.__slots__ if key not in ("name", "files", "paths")}
    return DataSource(name=name, files=files, paths=tuple(entry["paths"]), **fields)


def fetch(name: str, out: Path, origin: Path | None = None) -> Fetched:
    """Gets the files of source ``name``, checks them, and writes their rows as shards to ``out``/``name``.

    ``origin``: a git repository or a plain folder of yours to take them from, in place of the source's own address.
    Raises UnknownNameError for a source that is not listed, RequestError where ``origin`` is no folder, TilecastError,
    one line, where git or the network is absent, the commit is not there, or a file is missing or another one.
    """
    known = read_sources()
    if name not in known:
        raise unknown_name("data source", name, known)
    source = known[name]
    with _files(source, origin) as root:
        check(source, root)
        return import_to_shards(source, root, out / name)


def import_to_shards(source: DataSource, root: Path, folder: Path) -> Fetched:
    """Imports the source that lies in ``root``, in its own layout, to shards in ``folder``, in place of older ones.

    They are moved there once all are written. Raises RequestError where that cannot be.
    """
    rows, skipped = 0, dict[str, int]()

    def frames() -> Iterator[Any]:
        nonlocal rows
        for part in import_parts(source.name, root):
            rows += part.imported
            for reason, count in part.skipped_by_reason().items():
                skipped[reason] = skipped.get(reason, 0) + count
            yield part.frame

    about = {"source": source.name, "origin": source.short}
    for path in sorted(folder.glob("*.parquet")):
        if path.stat().st_size and _source_of(path) != source.name:
            raise RequestError(f"{path}: exists and is not a shard of {source.name}; expected another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as temporary:
            written = [
                path.replace(folder / path.name) for path in list(shards.write_shards(frames(), Path(temporary), about))
            ]
        for old in set(folder.glob("*.parquet")) - set(written):
            old.unlink()
    except OSError as error:
        raise RequestError(f"cannot write {folder}: {error.strerror or error}") from None
    return Fetched(tuple(written), rows, skipped)


def _source_of(path: Path) -> str:
    """The source that a shard names, of whatever schema version; "" for a file that is none."""
    try:
        about = (require("pyarrow.parquet").read_schema(path).metadata or {}).get(shards.KEY)
        return str(json.loads(about or b"")["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def check(source: DataSource, root: Path) -> None:
    """Raises TilecastError, which names the file, where one below ``root`` is not what the list says."""
    for name, expected in source.files.items():
        path = root / name
        if not path.is_file():
            raise TilecastError(f"{source.name}: {name} is not there: expected the files of {source.pinned}")
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest != expected:
            what = f"has {digest[:12]}"
            if data.startswith(_LFS):
                what = "is a pointer of Git LFS (install git-lfs)"
            raise TilecastError(f"{source.name}: {name} {what}: expected SHA-256 {expected[:12]} of {source.pinned}")


@contextmanager
def _files(source: DataSource, origin: Path | None) -> Iterator[Path]:
    """A folder with the listed files and no others."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / source.name
        if origin is None or (origin / ".git").exists() or origin.suffix == ".git":
            _clone(source, origin, root)
        else:
            _copy(source, origin, root)
        yield root


def _copy(source: DataSource, origin: Path, root: Path) -> None:
    if not origin.is_dir():
        raise RequestError(f"--from {str(origin)!r} is no folder: expected one that holds {source.pinned}")
    for name in source.files:
        if (origin / name).is_file():  # `check` names what is missing
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(origin / name, root / name)


def _clone(source: DataSource, origin: Path | None, root: Path) -> None:
    """The listed files at the pinned commit; of a repository elsewhere, no other file's content is downloaded."""
    if shutil.which("git") is None:
        raise TilecastError("git is not installed: expected it on the PATH, or --from with a folder that has the files")
    where = str(origin) if origin else source.repository
    lazy = [] if origin else ["--filter=blob:none"]
    _git(f"cannot clone {where}; --from takes a copy that you have", "clone", "--no-checkout", *lazy, where, str(root))
    commit = source.commit or "HEAD"
    at = ["-C", str(root)]
    _git(f"{where} has no commit {commit} of {source.name}", *at, "rev-parse", "--verify", f"{commit}^{{commit}}")
    _git(
        f"cannot check out {source.pinned} from {where}", *at, "checkout", commit, "--pathspec-from-file=-",
        feed="\n".join(source.files),
    )  # fmt: skip


def _git(failure: str, *words: str, feed: str = "") -> None:
    """Runs git quietly; where it fails, TilecastError with ``failure`` and git's last line."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"GIT_TERMINAL_PROMPT": "0"}
    done = subprocess.run(["git", *words], input=feed, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise TilecastError(f"{failure}: {said[-1].removeprefix('fatal: ').removeprefix('error: ')}")
