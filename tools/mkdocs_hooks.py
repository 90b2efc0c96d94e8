"""Pages that are written while the site is built (mkdocs.yml names this file): notebooks, run and rendered as Markdown,
and a page of every option of every command, from the parsers.

TILECAST_DOCS_RUN=0 renders notebooks as they are kept, without outputs.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import sys
from collections.abc import Iterator
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
    """Add the page of options, and a page for every notebook with its figures beside it."""
    files.append(File.generated(config, "reference/options.md", content=options_page()))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, figures = render(path, run=os.environ.get("TILECAST_DOCS_RUN") != "0")
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, content in figures.items():
            files.append(File.generated(config, f"notebooks/{path.stem}/{name}", content=content))
    return files


def options_page() -> str:
    """Every option of every command as Markdown: a section a command, a table of its words."""
    if str(ROOT) not in sys.path:  # a checkout that was not installed
        sys.path.insert(0, str(ROOT))
    from predictor.cli.main import build_parser

    lines = ["# Every option", "", "From the parsers of the command line, as `--help` prints it.", ""]
    for parser in every_parser(build_parser()):
        rows = [row(parser, action) for action in parser._actions if type(action) not in LEFT_OUT]
        if rows:
            lines += [f"## {parser.prog}", "", (parser.description or "").strip().partition("\n")[0], ""]
            lines += ["| word | what it says |", "| --- | --- |", *rows, ""]
    return "\n".join(lines)


#: Actions of a parser that are no words of a command: its help, and the commands below it.
LEFT_OUT = (argparse._HelpAction, argparse._SubParsersAction)


def every_parser(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of the commands below it, each once."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield from every_parser(below)


def row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """A line of a table: the word as it is typed, and its help with defaults filled in."""
    formatter = parser._get_formatter()
    value = formatter._format_args(action, formatter._get_default_metavar_for_optional(action))
    word = ", ".join(action.option_strings) + (f" {value}" if value else "") if action.option_strings else value
    said = " ".join(formatter._expand_help(action).split()) if action.help else ""
    return f"| `{cell(word)}` | {html.escape(cell(said), quote=False)} |"


def cell(text: str) -> str:
    """Text for a cell of a table, whose bars end a cell."""
    return text.replace("|", "\\|")


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
