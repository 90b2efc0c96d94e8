#!/usr/bin/env python
"""Writes the shards of `datasets/` anew from the public sources, and the table of rows in its README.

usage: tools/make_datasets.py --data $TILECAST_DATA [--out datasets] [--only neusight,vidur] [--checksums]

``--data`` holds a folder a source in the layout of its repository. Its files are checked against datasets/checksums/
first; ``--checksums`` writes those lists instead (for a new commit of a source). The same files give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from predictor.data.shards import rows_markdown
from predictor.data.sources import SOURCES_FILE, DataSource, check, import_to_shards, read_sources
from predictor.files.read import atomic_write

BEGIN, END = "<!-- rows -->\n", "<!-- end of rows -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with a folder for every source")
    parser.add_argument("--out", type=Path, default=SOURCES_FILE.parent, help="where the shards go (default datasets/)")
    parser.add_argument("--only", help="these sources alone")
    parser.add_argument("--checksums", action="store_true", help="write datasets/checksums/ instead")
    arguments = parser.parse_args()
    for name, source in read_sources().items():
        if arguments.only and name not in arguments.only.split(","):
            continue
        root = arguments.data / name
        if arguments.checksums:
            write_checksums(source, root)
            continue
        check(source, root)
        done = import_to_shards(source, root, arguments.out / name)
        size = sum(path.stat().st_size for path in done.shards)
        print(f"{name}: {done.rows:,} rows in {len(done.shards)} shards, {size / 1e6:.2f} MB", flush=True)
        for reason, count in done.skipped.items():
            print(f"  not imported: {count:,} x {reason}", flush=True)
    if not arguments.checksums:
        write_table(arguments.out)


def write_checksums(source: DataSource, root: Path) -> None:
    """The hash of every file below the source's paths, as sha256sum prints them."""
    files = sorted(file for part in source.paths for file in (root / part).rglob("*") if file.is_file())
    hashes = {file.relative_to(root).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    lines = [f"{found}  {name}\n" for name, found in hashes.items()]
    path = SOURCES_FILE.parent / "checksums" / f"{source.name}.sha256"
    atomic_write(path, "".join(lines).encode())
    print(f"{path.name}: {len(lines)} files")


def write_table(folder: Path) -> None:
    """The table of rows between its two marks in the folder's README, if it has one."""
    readme = folder / "README.md"
    if not readme.is_file():
        return
    text = readme.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    atomic_write(readme, f"{before}{BEGIN}{rows_markdown(folder)}\n{END}{after}".encode())


if __name__ == "__main__":
    main()
