"""Notebooks as pages of the docs: run, and rendered as Markdown, while the site is built (mkdocs.yml names this file).

TILECAST_DOCS_RUN=0 renders them as they are kept, without outputs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[1]
#: ANSI colours of a terminal table, and lines that only a kernel's log has.
NOISE = re.compile(r"\x1b\[[0-9;]*m")
#: What pandas puts around a table. Without it, and without a class, the theme styles the table and lets it scroll.
FRAME = re.compile(r"<div>\s*<style scoped>.*?</style>\s*<table[^>]*dataframe[^>]*>(.*?</table>)\s*</div>", re.S)


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every notebook, and its figures beside it."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, figures = render(path, run=os.environ.get("TILECAST_DOCS_RUN") != "0")
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, content in figures.items():
            files.append(File.generated(config, f"notebooks/{path.stem}/{name}", content=content))
    return files


def render(path: Path, run: bool) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its figures by file name. A cell that fails fails the build."""
    document = nbformat.read(path, as_version=4)
    if run:
        from nbclient import NotebookClient

        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        where = {"metadata": {"path": str(path.parent)}}
        NotebookClient(document, timeout=300, kernel_name="python3", resources=where).execute()
    text, resources = MarkdownExporter().from_notebook_node(document)
    figures: dict[str, bytes] = resources.get("outputs", {})
    for name in figures:
        text = text.replace(f"({name})", f"({path.stem}/{name})")
    return FRAME.sub(r"<table>\1", NOISE.sub("", text)), figures
