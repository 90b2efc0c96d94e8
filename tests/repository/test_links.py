"""Links and names of pages lead to files. mkdocs looks at links between the pages of docs/; this looks at the rest."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("tutorials", "how-to", "reference", "explanation")
#: A page of a part, or a file of results, that a text names by its path from the root.
NAMED = re.compile(rf"(?<![\w./-])(?:docs/(?:{'|'.join(PARTS)})|benchmarks/results)/[\w.-]+\.(?:md|csv|yaml)(?![\w-])")
#: `[text](target)` of Markdown whose target is no address and no heading of the page itself.
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)[^)\s]*\)")


def texts(*patterns: str) -> dict[Path, str]:
    """The tracked files that match, and what is in them."""
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    return {path: path.read_text(encoding="utf-8") for path in paths}


def missing_links(path: Path, text: str) -> list[str]:
    """Targets of a page's links that are no files, seen from its folder."""
    return [target for target in LINK.findall(text) if not (path.parent / target).exists()]


def test_links_of_markdown_outside_the_site_lead_to_files() -> None:
    pages = {path: text for path, text in texts("*.md").items() if ROOT / "docs" not in path.parents}
    assert len(pages) > 10
    wrong = {str(path.relative_to(ROOT)): lost for path, text in pages.items() if (lost := missing_links(path, text))}
    assert not wrong


def test_pages_that_code_and_notebooks_name_are_there() -> None:
    named = {
        (str(path.relative_to(ROOT)), name)
        for path, text in texts("*.py", "*.yaml", "*.yml", "*.md", "*.ipynb", "tools/*").items()
        if path != Path(__file__)
        for name in NAMED.findall(text)
        if "-DATE." not in name  # what a command writes, by its day
    }
    assert len(named) > 50
    assert sorted((file, name) for file, name in named if not (ROOT / name).is_file()) == []


def test_every_page_is_in_one_of_four_parts() -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert {page.parts[0] for page in pages} == {*PARTS, "index.md"}
    assert max(len(page.parts) for page in pages) == 2


def test_pages_are_short_enough_to_be_read() -> None:
    """No page has more than 2,500 words, all of them together no more than 4,500 lines: data goes to results."""
    pages = texts("docs/*.md")
    assert len(pages) > 30
    words = {path.name: len(text.split()) for path, text in pages.items()}
    assert {name: count for name, count in words.items() if count > 2500} == {}
    assert sum(len(text.splitlines()) for text in pages.values()) <= 4500


def test_a_lost_page_would_be_noticed() -> None:
    readme = ROOT / "README.md"
    assert missing_links(readme, "[a](docs/gone.md#x) [b](README.md) [c](https://gone.example) [d](#here)") == [
        "docs/gone.md"
    ]
    assert NAMED.findall("see docs/how-to/gone.md, vLLM's docs/features/gone.md") == ["docs/how-to/gone.md"]
