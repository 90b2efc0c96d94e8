"""Every number that a module or a class names says where it is from, in a comment on its lines or directly above.

Structural numbers (-1, 0, 1, 2) and values without a number need no comment, numbers inside functions are not looked
at; defaults of a class's fields are. A comment names one of the origins below, each with its marker, and says more than
the marker. A record that has its source as a text (a release of an engine) needs no comment. Assignments that follow
each other without a blank line may share the comment above the first. As a command, it counts them:

    python tests/repository/test_constants_have_sources.py [--list KIND] [ROOT]
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

STRUCTURAL = frozenset({-1, 0, 1, 2})

#: Origin -> its marker. "by hand" comes first: a comment that owns up to a choice has no other origin beside it.
ORIGINS: dict[str, re.Pattern[str]] = {
    "by hand": re.compile(r"by hand, not from data"),
    "fitted": re.compile(r"fitted by `[^`]+` on \w"),
    "source": re.compile(
        r"https?://\S|arXiv:\d{4}\.\d{4,5}|\([^()]*\b(199\d|20[0-3]\d)\b[^()]*\)|\bdata sheets?\b|Programming Guide"
        r"|[\w/]+\.(cuh?|cc|cpp|h|ya?ml|css)\b|\b(Source|source): \w"
    ),
    "chosen": re.compile(r"\b[Cc]hosen (by (?!hand)|on )"),
    "measured": re.compile(r"\b[Mm]easured (by|on) "),
    "limit": re.compile(r"\b[Gg]uards? against |slip of the keyboard"),
    "definition": re.compile(r"\b[Dd]efinition\b|\bby construction\b"),
}  # fmt: skip

#: Words that a comment has beside its marker.
LEAST_WORDS = 3

#: What a record that keeps its own source says there: a file, with its lines or not, a page, an issue or a pull.
RECORDED = re.compile(r"\w\.(py|cuh?|cpp|h|md)\b|\bllmapi/|\b(issue|pull) \d+|\bblog \d{4}|^torch\.distributed")

#: Files, or folders ("/" at the end), that this test does not cover yet.
NOT_COVERED = ("microbench/launchers/tile",)


@dataclass(frozen=True)
class Constant:
    """An assignment of numbers in a module or in the body of a class, the comments that belong to it, and its texts."""

    path: str
    line: int
    names: str
    comment: str
    texts: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The name of the origin that its comment gives, "source" where a text of a record does, or "none"."""
        found = origin_of(self.comment)
        return "source" if found == "none" and any(RECORDED.search(text) for text in self.texts) else found


def origin_of(comment: str) -> str:
    """The origin that a comment gives, or "none"."""
    for name, marker in ORIGINS.items():
        found = marker.search(comment)
        if found:
            rest = comment[: found.start()] + " " + comment[found.end() :]
            return name if len(re.findall(r"[A-Za-z]{2,}", rest)) >= LEAST_WORDS else "none"
    return "none"


def numbers(value: ast.expr) -> list[float]:
    """The numbers written in an expression, those that are structural left out."""
    found = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)]
    return [float(n) for n in found if type(n) in (int, float) and n not in STRUCTURAL]


def assignments(body: list[ast.stmt]) -> Iterator[ast.Assign | ast.AnnAssign]:
    """Assignments of a module and of its classes, also those under an `if` or a `try`."""
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            yield from assignments([n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)])


def comments_of(text: str) -> dict[int, str]:
    """Line -> its comment."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {t.start[0]: t.string.lstrip("#: ") for t in tokens if t.type == tokenize.COMMENT}


def texts_of(value: ast.expr, named: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The texts written in an expression, those of names that are texts too."""
    found = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    names = [node.id for node in ast.walk(value) if isinstance(node, ast.Name)]
    return (*found, *(text for name in names for text in named.get(name, ())))


def constants(text: str, path: str = "") -> list[Constant]:
    """The constants of a module."""
    comments, lines = comments_of(text), text.splitlines()
    nodes = list(assignments(ast.parse(text).body))
    ends = {node.end_lineno: node for node in nodes}
    named: dict[str, tuple[str, ...]] = {}  # names of texts, f-strings among them -> their texts
    shared: dict[int, str] = {}  # line at which an assignment begins -> the comment above it or its run
    found = []
    for node in nodes:
        above, line = [], node.lineno - 1
        while line in comments and lines[line - 1].lstrip().startswith("#"):
            above.insert(0, comments[line])
            line -= 1
        before = ends.get(node.lineno - 1)
        shared[node.lineno] = " ".join(above) if above or before is None else shared[before.lineno]
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        assert node.value is not None
        texts = texts_of(node.value, named)
        if isinstance(node.value, ast.Constant | ast.JoinedStr):
            named |= {ast.unparse(target): texts for target in targets}
        if numbers(node.value):
            own = [comments[n] for n in range(node.lineno, (node.end_lineno or 0) + 1) if n in comments]
            names = ", ".join(ast.unparse(target) for target in targets)
            found.append(Constant(path, node.lineno, names, " ".join([*own, shared[node.lineno]]), texts))
    return found


def product(root: Path, everything: bool = False) -> list[Constant]:
    """The constants of the product's files; those of files not covered yet only if ``everything``."""
    found = []
    for path in sorted([*root.glob("predictor/**/*.py"), *root.glob("microbench/**/*.py")]):
        name = path.relative_to(root).as_posix()
        if everything or not name.startswith(NOT_COVERED):
            found += constants(path.read_text(encoding="utf-8"), name)
    return found


def test_every_constant_has_an_origin() -> None:
    bare = [f"{c.path}:{c.line} {c.names}" for c in product(ROOT) if c.origin == "none"]
    assert not bare, "no origin in the comment of:\n" + "\n".join(bare)


def test_files_not_covered_exist() -> None:
    assert all(list(ROOT.glob(name.rstrip("/") + "*")) for name in NOT_COVERED)


def test_what_counts_as_a_constant() -> None:
    text = "A = 3\nB = {'x': 1, 'y': 2.5}\nC = 'text'\nD = -1\nE: int = 7\nF = [0, 1, 2]\nG = True\nif A:\n    H = 4\n"
    text += "class I:\n    j: int = 5\n    k: int = 0\n    def f(self, x=6):\n        y = 7\n"
    assert [c.names for c in constants(text)] == ["A", "B", "E", "H", "j"]


def test_what_counts_as_an_origin() -> None:
    given = {
        "half of the rows; chosen by hand, not from data": "by hand",
        "fitted by `tilecast train` on the rows of NeuSight": "fitted",
        "threads of a block (Dao, 2023, section 4.1)": "source",
        "dim_size <= 1024 in SoftMax.cu, as PyTorch has it": "source",
        "the watts of a board: its data sheet": "source",
        "chosen by looking at A100 left out": "chosen",
        "measured on V100 and A100 in long runs": "measured",
        "dollars an hour; beyond it is a slip of the keyboard": "limit",
        "definition: seconds of an hour": "definition",
        "queries of a tile": "none",
        "": "none",
        "chosen by ": "none",
        "chosen by hand after a long look": "none",
        "fitted by hand on data, as it is said": "none",
        "definition": "none",
    }
    assert {comment: origin_of(comment) for comment in given} == given


def test_a_record_may_say_its_source_itself() -> None:
    text = 'FILE = "engine 1.0 core/scheduler.py:12"\nA = Rule(16, source=f"{FILE}, Args")\nB = Rule(16, FILE)\n'
    text += 'C = Rule(16, source="somewhere")\nD = Rule(16, "engine issue 1099")\nE = {"py": 3}\n'
    assert {c.names: c.origin for c in constants(text)} == {
        "A": "source", "B": "source", "C": "none", "D": "source", "E": "none",
    }  # fmt: skip


def test_a_run_of_assignments_shares_a_comment() -> None:
    text = "#: Of a tile: measured on V100 alone.\nA = 3\nB = 4  # rows of it\n\nC = 5\n#: Bytes.\nD = 6\n"
    assert [c.origin for c in constants(text)] == ["measured", "measured", "none", "none"]


def main(arguments: list[str]) -> None:
    """Prints how many constants have which origin."""
    kind = arguments[1] if arguments[:1] == ["--list"] else ""
    rest = arguments[2:] if kind else arguments
    found = product(Path(rest[0]) if rest else ROOT)
    if kind:
        print(*(f"{c.path}:{c.line} {c.names}" for c in found if c.origin == kind), sep="\n")
        return
    count = Counter(c.origin for c in found)
    for name in (*ORIGINS, "none"):
        print(f"{count[name]:5d} {name}")
    print(f"{len(found):5d} in all")


if __name__ == "__main__":
    main(sys.argv[1:])
